"""SIGTERM as a question instead of an exception: code that waits asks ``requested`` and ends in its own order."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

from seatrial_runner.clock import Deadline

# The Pod's grace period is 60 s and envd serves files nearly as long.
SAVING_SECONDS: Final = 50.0


class Stop:
    """Set once, by a signal or by a test."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.saving = Deadline(None)
        """How long things may still be saved; unlimited before the request."""

    @classmethod
    def on_sigterm(cls) -> Stop:
        """A stop that SIGTERM and SIGINT set; to be called in the main thread."""
        stop = cls()

        def handle(number: int, frame: FrameType | None) -> None:
            stop.request()

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)
        return stop

    def request(self) -> None:
        if not self._event.is_set():
            self.saving = Deadline(SAVING_SECONDS)
            self._event.set()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def sleep(self, seconds: float) -> bool:
        """Wait, at most until the request; True if it came."""
        return self._event.wait(seconds)
