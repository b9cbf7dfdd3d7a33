"""What tests ask of processes that they did not start themselves."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie; it may end at any moment of the look."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
