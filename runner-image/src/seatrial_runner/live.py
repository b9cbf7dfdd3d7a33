"""The agent's output in the log of our own container while it runs, for ``seatrial logs -f``.

Why a copy: the output goes to a file of the environment, which is kept with the trial, and a pipe to us would be held open by every
process that the agent leaves behind. The file lies in a volume that the task can write, so it is read through no link, and only so much of
it: the log lies on the node's disk.
"""

from __future__ import annotations

import os
import stat
import threading
from typing import BinaryIO, Final

from seatrial_runner.redact import Redactor

LIMIT_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 0.5
_PIECE_BYTES: Final = 64 * 1024
CUT: Final = b"\n[cut here; the whole output is kept with the trial]\n"


class LiveLog:
    """Copies a growing file until it is left, at most ``limit_bytes`` of it, without the redactor's values."""

    def __init__(self, path: str, out: BinaryIO, redactor: Redactor, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path, self._out, self._redactor = path, out, redactor
        self._left = limit_bytes
        self._offset = 0
        self._held = b""
        """Read and not yet written: it may end within a value that is to be redacted."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live log", daemon=True)

    def __enter__(self) -> LiveLog:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        try:
            while not self._over.wait(_LOOK_SECONDS) and self._left:
                self._copy()
            self._copy()
            self._write(self._held)
        except OSError:
            return  # nobody reads our log, or the volume is gone: the trial goes on without

    def _copy(self) -> None:
        while self._left and (piece := self._read()):
            data = self._redactor.mask(self._held + piece)
            kept = max(0, self._redactor.longest - 1)
            self._held = data[len(data) - kept :] if kept else b""
            self._write(data[: len(data) - kept])

    def _read(self) -> bytes:
        """The next piece; empty where there is none yet, or the file is none."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return b""
            if found.st_size < self._offset:
                self._offset = 0
            data = os.pread(descriptor, _PIECE_BYTES, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(data)
        return data

    def _write(self, data: bytes) -> None:
        if not data or not self._left:
            return
        self._out.write(data[: self._left])
        self._left = max(0, self._left - len(data))
        if not self._left:
            self._out.write(CUT)
        self._out.flush()
