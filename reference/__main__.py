"""Write the generated pages, or compare with ``--check``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from reference import troubleshooting, values

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


def wanted() -> Mapping[Path, str]:
    """Path -> text of every generated page."""
    return {DOCS / "troubleshooting.md": troubleshooting.text(), DOCS / "values.md": values.text()}


def main(arguments: list[str]) -> int:
    stale = {path: text for path, text in wanted().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" in arguments:
            sys.stderr.write(f"{path.name} is stale: run python -m reference\n")
        else:
            path.write_text(text)
            sys.stdout.write(f"wrote {path.name}\n")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
