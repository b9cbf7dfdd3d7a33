"""What tests ask of processes that they did not start themselves."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie; it may end at any moment of the look."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def ends(pid: int, *, within_seconds: float = 10.0) -> bool:
    """Whether the process is gone within a time: a killed one takes a moment on a busy machine."""
    deadline = time.monotonic() + within_seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
