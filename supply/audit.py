"""Known vulnerabilities of what is shipped, by ``pip-audit`` and ``govulncheck``.

Both need data that not every network has: the advisories of PyPI, and the Go vulnerability database. Where it cannot be had this is
said, and never taken for "none known".
"""

from __future__ import annotations

import enum
import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from supply.sbom import ENVD, LOCK, UV

PYTHON_TOOL: Final = "pip-audit==2.10.1"
GO_TOOL: Final = "golang.org/x/vuln/cmd/govulncheck@v1.1.4"
GO_FOUND: Final = 3
"""govulncheck's exit code for "vulnerable"."""


class Answer(enum.Enum):
    CLEAN = "nothing known"
    FOUND = "VULNERABLE"
    UNKNOWN = "not audited"


class Finding(NamedTuple):
    what: str
    answer: Answer
    detail: str


def audit() -> Iterator[Finding]:
    """Both audits."""
    command = [str(UV), "tool", "run", "--quiet", "--from", PYTHON_TOOL, "pip-audit", "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run([*command, "--requirement", str(LOCK)], capture_output=True, text=True, check=False)
    yield read_pip_audit(done.stdout, done.stderr)
    # In the module's folder: govulncheck reads its Go version and its imports.
    done = subprocess.run(["go", "run", GO_TOOL, "./..."], cwd=ENVD, capture_output=True, text=True, check=False)
    yield read_govulncheck(done.returncode, done.stdout, done.stderr)


def read_pip_audit(out: str, errors: str) -> Finding:
    """What pip-audit's JSON says. It ends with 0 even if it could look nothing up."""
    what = LOCK.name
    try:
        packages: list[Mapping[str, Any]] = json.loads(out)["dependencies"]
    except (ValueError, KeyError):
        return Finding(what, Answer.UNKNOWN, errors.strip()[-300:])
    found = [f"{item['name']} {item['version']}: {one['id']}" for item in packages for one in item.get("vulns", ())]
    skipped = [item["name"] for item in packages if "skip_reason" in item]
    if found:
        return Finding(what, Answer.FOUND, "; ".join(found))
    if skipped:
        return Finding(what, Answer.UNKNOWN, f"no advisories to be had for {len(skipped)} of {len(packages)} packages: {skipped[0]}, …")
    return Finding(what, Answer.CLEAN, f"{len(packages)} packages")


def read_govulncheck(code: int, out: str, errors: str) -> Finding:
    if code == 0:
        return Finding("envd", Answer.CLEAN, "")
    # ``go run`` turns every failure into 1, and says the program's own code on the last line.
    is_found = code == GO_FOUND or f"exit status {GO_FOUND}" in errors
    return Finding("envd", Answer.FOUND if is_found else Answer.UNKNOWN, (out if is_found else errors).strip()[-600:])
