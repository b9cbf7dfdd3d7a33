"""Bills of materials in CycloneDX, made by CycloneDX's own tools from what the images hold.

The operator's image holds the packages of ``requirements/operator.txt``; the runner's image holds one of them and ``envd``. Packages of the
base image's distribution are in neither: the distribution keeps their list in the image itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = REPOSITORY / "build" / "sbom"
LOCK: Final = REPOSITORY / "requirements" / "operator.txt"
ENVD: Final = REPOSITORY / "runner-image" / "envd"
PYTHON_TOOL: Final = "cyclonedx-bom==7.5.0"
GO_TOOL: Final = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0"
UV: Final = Path(sys.executable).with_name("uv")


class Component(NamedTuple):
    name: str
    version: str
    licences: tuple[str, ...]
    """As the component declares them: SPDX identifiers and expressions, or classifiers."""


def run(*command: str | Path, folder: Path = REPOSITORY) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "VIRTUAL_ENV")}
    subprocess.run([str(word) for word in command], cwd=folder, env=environment, check=True)


def python_bill() -> Path:
    """Of the operator's packages, as they are installed from the lock."""
    target, environment = FOLDER / "operator.cdx.json", FOLDER / "environment"
    FOLDER.mkdir(parents=True, exist_ok=True)
    run(UV, "venv", "--quiet", "--clear", environment)
    run(UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", "--require-hashes", "--requirement", LOCK)
    tool = (UV, "tool", "run", "--quiet", "--from", PYTHON_TOOL, "cyclonedx-py", "environment")
    run(*tool, environment, "--pyproject", REPOSITORY / "pyproject.toml", "--output-reproducible", "--output-file", target)
    return target


def go_bill() -> Path:
    """Of ``envd``."""
    target = FOLDER / "envd.cdx.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    run("go", "run", GO_TOOL, "app", "-json", "-std", "-noserial", "-output", target, "-main", ".", ".", folder=ENVD)
    return target


def components(bill: Path) -> list[Component]:
    """What a bill lists, by name."""
    found = [
        Component(item["name"], item["version"], tuple(_licence(one) for one in item.get("licenses", ())))
        for item in json.loads(bill.read_text())["components"]
    ]
    return sorted(found, key=lambda item: item.name.lower())


def _licence(entry: dict[str, Any]) -> str:
    licence = entry.get("license", {})
    return str(entry.get("expression") or licence.get("id") or licence.get("name"))
