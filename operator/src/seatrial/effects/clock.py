"""Time, as a value that tests replace."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall clock, aware, UTC."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; no relation to the wall clock."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def boot_seconds() -> float:
    """Like ``monotonic``, and it goes on while a virtual machine is suspended: a leader must notice that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
