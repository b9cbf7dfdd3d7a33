"""``docs/values.md``: every value of the chart, from the comments in ``values.yaml``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = Path(__file__).resolve().parent.parent / "charts" / "seatrial" / "values.yaml"
_LINE: Final = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z0-9]+):")
_HEAD: Final = """\
# Values of the chart

Required are `s3.endpoint`, `s3.bucket` and `s3.existingSecret`. Every value is checked by a schema, so a misspelt one is refused. This page
is made from `charts/seatrial/values.yaml` by `python -m reference`.

| value | default | what |
|---|---|---|
"""


def documented(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path and comment of each value that has a comment with ``# --``."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("# --"):
            comment = [bare.removeprefix("# --").strip()]
        elif bare.startswith("#") and comment:
            comment.append(bare.removeprefix("#").strip())
        elif match := _LINE.match(line):
            indent = len(match["indent"])
            path = [*(item for item in path if item[0] < indent), (indent, match["name"])]
            if comment:
                yield tuple(name for _, name in path), " ".join(comment)
            comment = []
        else:
            comment = []


def text() -> str:
    """The page."""
    source = FILE.read_text()
    values = yaml.safe_load(source)
    rows = [f"| `{'.'.join(path)}` | `{_shown(values, path)}` | {_cell(said)} |" for path, said in documented(source)]
    return _HEAD + "\n".join(rows) + "\n"


def _shown(values: Any, path: tuple[str, ...]) -> str:
    for name in path:
        values = values[name]
    return _cell(json.dumps(values))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
