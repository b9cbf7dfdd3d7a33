"""Frames of the desk, as both of its ends in Python use them: a byte that names the kind, the size in 4 bytes, the content.

The end in Go and the kinds: ``runner-image/envd/client.go``.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any, Final

SOCKET: Final = "env.sock"
HEAD_BYTES: Final = 5
PIECE_BYTES: Final = 64 * 1024
TIMED_OUT: Final = 124
"""Exit code of a command that reached its limit, as of ``timeout``."""
FAILED: Final = 125
"""Exit code of a request that could not be served."""


def frame(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack(">I", len(data)) + data


def size_of(head: bytes) -> int:
    """Bytes of content that follow ``head`` (HEAD_BYTES long): untrusted."""
    (size,) = struct.unpack(">I", head[1:])
    return int(size)


class FrameWriter(io.RawIOBase):
    """A stream for ``tarfile`` whose content goes out in frames of one kind."""

    def __init__(self, send: Callable[[bytes, bytes], None], kind: bytes) -> None:
        self._send, self._kind = send, kind

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = bytes(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._send(self._kind, view[start : start + PIECE_BYTES])
        return len(view)
