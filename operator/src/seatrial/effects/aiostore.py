"""The object store for the event loop: each call in a thread, a bounded number at a time, counted.

Why threads of its own: a store that hangs fills them, and the loop's own executor must stay free for what keeps the Lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from seatrial.effects.metrics import Metrics
from seatrial.effects.store import Entry, Put, Readable, Stat
from seatrial.errors import SeatrialError

Result = TypeVar("Result")


class ObjectStore(Protocol):
    """What is used of ``effects.store.Store``; tests give their own."""

    def put_new(self, key: str, data: bytes | Path, *, content_type: str = ...) -> Put: ...
    def put(self, key: str, data: bytes | Path, *, content_type: str = ...) -> None: ...
    def get(self, key: str, *, max_bytes: int) -> bytes: ...
    def open(self, key: str) -> AbstractContextManager[Readable]: ...
    def stat(self, key: str) -> Stat: ...
    def list(self, prefix: str) -> Iterator[Entry]: ...
    def presign_get(self, key: str, *, expires_seconds: int) -> str: ...
    def presign_put(self, key: str, *, expires_seconds: int) -> str: ...


class AsyncStore:
    """Awaitable calls of an ``ObjectStore``; errors are those of the store."""

    def __init__(self, store: ObjectStore, *, concurrency: int, metrics: Metrics) -> None:
        self.store = store
        self._slots, self._metrics = asyncio.Semaphore(concurrency), metrics
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="store")

    async def put_new(self, key: str, data: bytes, *, content_type: str = "application/json") -> Put:
        return await self._call("put_new", lambda: self.store.put_new(key, data, content_type=content_type))

    async def put(self, key: str, data: bytes, *, content_type: str = "application/json") -> None:
        await self._call("put", lambda: self.store.put(key, data, content_type=content_type))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        return await self._call("get", lambda: self.store.get(key, max_bytes=max_bytes))

    async def list(self, prefix: str) -> list[Entry]:
        return await self._call("list", lambda: list(self.store.list(prefix)))

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        """Without a request: the region is known."""
        return self.store.presign_get(key, expires_seconds=expires_seconds)

    def presign_put(self, key: str, *, expires_seconds: int) -> str:
        """Without a request: the region is known."""
        return self.store.presign_put(key, expires_seconds=expires_seconds)

    async def run(self, operation: str, call: Callable[[], Result]) -> Result:
        """Any other work with the store, in a thread."""
        return await self._call(operation, call)

    async def _call(self, operation: str, call: Callable[[], Result]) -> Result:
        async with self._slots:
            started = time.monotonic()
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
            except SeatrialError as error:
                self._metrics.store_requests.labels(operation, type(error).__name__).inc()
                raise
        self._metrics.store_requests.labels(operation, "ok").inc()
        self._metrics.store_seconds.labels(operation).observe(time.monotonic() - started)
        return result
