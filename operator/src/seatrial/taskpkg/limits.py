"""How much of a task package is believed. Standard library only: the runner enforces the same numbers.

Source: nemo.md section 6. Deployments may lower the numbers of ``Limits``, never raise them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Expanded tar over payload, and download over expanded tar: room for headers, padding and incompressible content.
TAR_OVERHEAD_BYTES: Final = 256 * MIB
GZIP_OVERHEAD_BYTES: Final = 64 * MIB

RESERVED_ROOT: Final = "task_template"
"""Name of template folders; never a task, compared without case."""


class Limits(NamedTuple):
    """Bounds of one task package; sizes in bytes."""

    entries: int = 100_000
    """Files, directories and links, the root directory included."""
    file_bytes: int = 4 * GIB
    payload_bytes: int = 16 * GIB
    """All regular files together."""
    pax_header_bytes: int = MIB
    pax_chain: int = 8
    task_toml_bytes: int = MIB
    gitignore_bytes: int = 256 * KIB
    instruction_bytes: int = MIB
    metadata_bytes: int = 16 * MIB
    """task.toml, root .gitignore and all instructions together."""
    steps: int = 128
    path_bytes: int = 4096
    """One path or link target in UTF-8."""
    depth: int = 200
    """Directories within each other. Not from NeMo: tools that walk or remove a tree recurse, and none goes deeper than about 1000."""

    @property
    def expanded_bytes(self) -> int:
        return self.payload_bytes + TAR_OVERHEAD_BYTES

    @property
    def compressed_bytes(self) -> int:
        return self.expanded_bytes + GZIP_OVERHEAD_BYTES

    @property
    def records(self) -> int:
        """Physical tar headers: each entry may have one extended header."""
        return 2 * self.entries


DEFAULT: Final = Limits()
