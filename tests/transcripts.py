"""Transcripts of the documentation's commands: what the cluster tests saw, and the page that shows it.

``make tutorial`` follows the pages of ``TUTORIAL`` on the local cluster and writes ``docs/transcript.md``; a test compares the page's
commands with those of the pages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests import docpages

REPOSITORY: Final = Path(__file__).resolve().parents[1]
RECORDED: Final = REPOSITORY / "build" / "docs"
PAGE: Final = docpages.DOCS / "transcript.md"
TUTORIAL: Final = {"install": "An installation", "first-evaluation": "An evaluation, and a gate"}
"""Pages that lead from an empty cluster to a gate in CI."""
HEAD: Final = """# Transcript

[Install](install.md) and [First evaluation](first-evaluation.md), followed from an empty cluster to a gate in CI, as `make tutorial` saw
them. Lines that begin with `$` are the pages' commands.
"""


def record(page: str, text: str) -> None:
    """Keep what the commands of a page printed."""
    RECORDED.mkdir(parents=True, exist_ok=True)
    (RECORDED / f"{page}.log").write_text(text)


def commands(text: str) -> list[str]:
    """The commands in a transcript: they are shown whole, before their output."""
    lines, found = text.splitlines(), []
    for index, line in enumerate(lines):
        if line.startswith("$ "):
            shown = [line.removeprefix("$ ")]
            # Further lines belong to the command as long as it is not complete without them.
            for following in lines[index + 1 :]:
                if docpages.is_complete("\n".join(shown)):
                    break
                shown.append(following)
            found.append("\n".join(shown))
    return found


def text() -> str:
    """The page, from the newest records."""
    parts = [f"\n## {title}\n\n```text\n{recorded(page)}\n```\n" for page, title in TUTORIAL.items()]
    return HEAD + "".join(parts)


def recorded(page: str) -> str:
    """The newest transcript of a page, without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in (RECORDED / f"{page}.log").read_text().splitlines())


if __name__ == "__main__":
    PAGE.write_text(text())
    sys.stdout.write(f"wrote {PAGE.relative_to(REPOSITORY)}\n")
