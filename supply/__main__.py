"""``python -m supply sbom | licences | audit``."""

from __future__ import annotations

import sys

from supply import licences
from supply.audit import Answer, audit
from supply.sbom import REPOSITORY, components, go_bill, python_bill


def main(arguments: list[str]) -> int:
    match arguments:
        case ["sbom"]:
            for bill in (python_bill(), go_bill()):
                sys.stdout.write(f"{bill.relative_to(REPOSITORY)}: {len(components(bill))} components\n")
            return 0
        case ["licences"]:
            try:
                page = licences.text([*components(python_bill()), *components(go_bill())])
            except licences.UnknownLicence as error:
                sys.stderr.write(f"{error}: read it, then name it in supply/licences.py\n")
                return 1
            (REPOSITORY / "docs" / "licences.md").write_text(page)
            return 0
        case ["audit"]:
            findings = list(audit())
            for item in findings:
                sys.stdout.write(f"{item.what}: {item.answer.value}; {item.detail}\n")
            return int(any(item.answer is Answer.FOUND for item in findings))
    sys.stderr.write(f"{__doc__}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
