"""An object store in memory, with the promises of the real client and faults on demand. The real one is tested against real servers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seatrial.effects.store import Entry, Put, Readable, Stat
from seatrial.errors import AlreadyExists, InvalidSpec, NotFound, SeatrialError

Fault = Callable[[str, str], SeatrialError | None]


class MemoryStore:
    """``objects[key]``; ``calls`` are (operation, key)."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.fault: Fault = lambda operation, key: None

    def put_new(self, key: str, data: bytes | Path, *, content_type: str = "") -> Put:
        self._call("put_new", key)
        body = data if isinstance(data, bytes) else data.read_bytes()
        if key in self.objects:
            if self.objects[key] != body:
                raise AlreadyExists(key)
            return Put.SAME
        self.objects[key] = body
        return Put.CREATED

    def put(self, key: str, data: bytes | Path, *, content_type: str = "") -> None:
        self._call("put", key)
        self.objects[key] = data if isinstance(data, bytes) else data.read_bytes()

    def get(self, key: str, *, max_bytes: int) -> bytes:
        self._call("get", key)
        if key not in self.objects:
            raise NotFound(key)
        if len(self.objects[key]) > max_bytes:
            raise InvalidSpec(key, f"longer than the allowed {max_bytes} bytes")
        return self.objects[key]

    @contextmanager
    def open(self, key: str) -> Iterator[Readable]:
        yield io.BytesIO(self.get(key, max_bytes=1 << 40))

    def stat(self, key: str) -> Stat:
        return Stat(len(self.get(key, max_bytes=1 << 40)), "etag", None, None)

    def list(self, prefix: str) -> Iterator[Entry]:
        self._call("list", prefix)
        yield from [Entry(key, len(data), None) for key, data in sorted(self.objects.items()) if key.startswith(prefix)]

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return f"memory:get:{key}"

    def presign_put(self, key: str, *, expires_seconds: int) -> str:
        return f"memory:put:{key}"

    def count(self, operation: str, part: str = "") -> int:
        return sum(item[0] == operation and part in item[1] for item in self.calls)

    def _call(self, operation: str, key: str) -> None:
        self.calls.append((operation, key))
        if (error := self.fault(operation, key)) is not None:
            raise error
