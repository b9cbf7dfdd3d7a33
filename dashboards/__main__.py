"""Write what is generated, or compare with ``--check``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dashboards import boards, panels, reference, rules

REPOSITORY: Final = Path(__file__).resolve().parent.parent
FILES: Final = REPOSITORY / "charts" / "seatrial" / "files"


def wanted() -> Mapping[Path, str]:
    """Path -> text of every generated file."""
    return {
        **{FILES / "dashboards" / f"{board.uid}.json": panels.text(board) for board in boards.ALL},
        FILES / "rules.yaml": rules.text(),
        REPOSITORY / "docs" / "metrics.md": reference.text(),
    }


def main(arguments: list[str]) -> int:
    stale = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(REPOSITORY)} is stale: run python -m dashboards\n")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted()[path])
        sys.stdout.write(f"wrote {path.relative_to(REPOSITORY)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
