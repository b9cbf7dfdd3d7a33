"""The documentation as the tests read it: pages, the commands on them, and their links."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WALK = ("install", "s3", "first-evaluation", "tasks", "agents", "security", "troubleshooting", "operations")
"""Pages with commands, in the order in which a reader follows them."""

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> dict[str, str]:
    """Path below ``docs`` without its ending -> text."""
    return {str(path.relative_to(DOCS).with_suffix("")): path.read_text() for path in sorted(DOCS.rglob("*.md"))}


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of that language."""
    return [body for name, body in _BLOCK.findall(text) if name == language]


def commands(script: str) -> list[str]:
    """The script's commands, each whole: with its continued lines, its here-document, its branches."""
    found, lines = [], []
    for line in script.splitlines():
        lines.append(line)
        text = "\n".join(lines)
        if not text.strip():
            lines.clear()
        elif is_complete(text):
            found.append(text.strip("\n"))
            lines.clear()
    assert lines == [], f"no end of the command: {lines}"
    return found


def is_complete(text: str) -> bool:
    """Bash says nothing against it; to an open here-document it only warns."""
    read = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
    return not text.endswith("\\") and (read.returncode, read.stderr) == (0, "")


def links(text: str) -> Iterator[str]:
    """Targets of links outside code."""
    yield from _LINK.findall(re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", text)))


def runbook_commands(text: str) -> list[str]:
    """Indented lines."""
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]
