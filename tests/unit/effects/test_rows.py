"""Results in the store, as hostile as a Pod can make them; a store that hangs."""

from __future__ import annotations

import asyncio
import threading

from seatrial.core.trial import Found
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.metrics import Metrics
from seatrial.effects.rows import ResultFinder
from seatrial.errors import InvalidSpec, SeatrialError
from tests.integration.memstore import MemoryStore

PREFIX = "jobs/evals/job-1/"


def too_large(operation: str, key: str) -> SeatrialError | None:
    return InvalidSpec(key, "has more than 4194304 bytes") if operation == "get" else None


async def test_a_result_that_is_too_large_does_not_count_and_stops_nothing() -> None:
    store = MemoryStore()
    store.fault = too_large
    found = await ResultFinder(AsyncStore(store, concurrency=2, metrics=Metrics()), PREFIX, b"key").find("web__abc1234", 0)
    note = f"result.json does not count: {PREFIX}trials/web__abc1234/0/result.json: has more than 4194304 bytes"
    assert found == Found(None, note=note, touched=True)


async def test_a_store_that_hangs_leaves_the_threads_of_the_loop_alone() -> None:
    store, release = MemoryStore(), threading.Event()
    files = AsyncStore(store, concurrency=64, metrics=Metrics())
    hanging = [asyncio.create_task(files.run("hang", release.wait)) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "answer"), timeout=5) == "answer"
    finally:
        release.set()
        await asyncio.gather(*hanging)
