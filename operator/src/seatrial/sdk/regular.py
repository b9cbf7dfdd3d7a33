"""Read a file that somebody else laid down: bounded, and a regular one whatever its name promises."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, *, max_bytes: int) -> bytes | None:
    """The bytes of a regular file; None where there is none, where it is a link, a device or a pipe, and where it is larger."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: no name of a file at all
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = file.read(max_bytes + 1)
    return data if len(data) <= max_bytes else None
