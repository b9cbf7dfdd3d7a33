"""Times for results, and deadlines that do not jump with the wall clock."""

from __future__ import annotations

import time
from typing import Final

from seatrial.contract import Span


def utc_now() -> str:
    """Now as RFC 3339 in UTC with microseconds, as Harbor writes it."""
    # NB: not datetime: its import costs more than all other work of a short trial's agent.
    micros = time.time_ns() // 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000)) + f".{micros % 1_000_000:06d}Z"


STAMP_LAG_NS: Final = 10_000_000
"""File systems stamp inodes with the time of the kernel's last tick."""


def files_since(span: Span) -> int | None:
    """From when on a file is of a phase or later, in nanoseconds since the epoch; None where the phase's time is no time."""
    from datetime import datetime

    try:
        return int(datetime.fromisoformat(span["started_at"]).timestamp() * 1_000_000) * 1000 - STAMP_LAG_NS
    except (ValueError, TypeError, OverflowError, OSError):
        return None


class Deadline:
    """A moment on the monotonic clock; ``seconds`` None means never."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def cap(self, seconds: float) -> float:
        """``seconds``, or what is left if that is less."""
        left = self.remaining()
        return seconds if left is None else min(seconds, left)

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


class Timer:
    """Measures one phase."""

    def __init__(self) -> None:
        self.started_at = utc_now()
        self._start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def span(self) -> Span:
        return Span(started_at=self.started_at, finished_at=utc_now())
