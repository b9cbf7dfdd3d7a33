"""``docs/licences.md``: every dependency that is shipped, with its licence in SPDX's words. A licence nobody has read is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from supply.sbom import Component

ALLOWED: Final = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "Python-2.0", "Unlicense"),
        # Of files: what is linked to them is free, changes of the files themselves are not ours to keep.
        "MPL-2.0",
    }
)
CLASSIFIERS: Final = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    # Beside an identifier that says which one.
    "License :: OSI Approved :: BSD License": None,
}
READ: Final = {
    "protobuf": "BSD-3-Clause",
    "std": "BSD-3-Clause",
}
"""Read in the sources of those that declare nothing; ``std`` is Go's standard library."""
_HEAD: Final = """\
# Licences

seatrial is under Apache-2.0. These are the dependencies that its images carry, from the bills of materials that `make sbom` writes; the
runner's image has `pathspec` and `std` of them. Packages of the base image's distribution name their licences in `/usr/share/doc` of the
image. This page is made by `make licences`, which refuses a licence that nobody has read.

| component | version | licence |
|---|---|---|
"""


class UnknownLicence(Exception):
    """A component declares nothing, or something that is not in ``ALLOWED``."""


def licence_of(component: Component) -> str:
    """An SPDX expression.

    Raises:
        UnknownLicence: read the licence, then name it in ``READ`` or ``ALLOWED``.
    """
    declared = [CLASSIFIERS.get(item, item) for item in component.licences] or [READ.get(component.name)]
    words = list(dict.fromkeys(item for item in declared if item is not None))
    unknown = [word for item in words for word in re.split(r" (?:AND|OR) ", item.strip("()")) if word not in ALLOWED]
    if unknown or not words:
        raise UnknownLicence(f"{component.name} {component.version}: {', '.join(unknown) or 'declares nothing'}")
    return " AND ".join(f"({item})" if " OR " in item and len(words) > 1 else item for item in words)


def text(components: Iterable[Component]) -> str:
    """The page.

    Raises:
        UnknownLicence: of any component.
    """
    return _HEAD + "".join(f"| {item.name} | {item.version} | {licence_of(item)} |\n" for item in components)
