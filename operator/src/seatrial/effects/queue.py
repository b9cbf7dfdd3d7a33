"""The work queue: each key at most once at a time, never lost, failures with growing pauses.

Source of the rules: client-go's work queue; ``spec/operator.md`` section 6.
"""

from __future__ import annotations

import asyncio
import random
from typing import Generic, TypeVar

Key = TypeVar("Key")

LONGEST_PAUSE_SECONDS = 60.0


class WorkQueue(Generic[Key]):
    """Keys to be worked on. Must be made and used inside one running event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._dirty: set[Key] = set()
        self._busy: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._since: dict[Key, float] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Make ``key`` due after ``delay`` seconds; the earliest of several calls wins, but nothing comes before ``rest``."""
        loop = asyncio.get_running_loop()
        due = max(loop.time() + delay, self._not_before.get(key, 0.0))
        if due <= loop.time():
            self._mark(key)
            return
        timer = self._timers.get(key)
        if timer is None or due < timer.when():
            if timer is not None:
                timer.cancel()
            self._timers[key] = loop.call_at(due, self._mark, key)

    def rest(self, key: Key, seconds: float) -> None:
        """Keep ``key`` away for so long, whatever is added meanwhile: a stream of events costs one pass, not one each."""
        self._not_before[key] = asyncio.get_running_loop().time() + seconds

    def _mark(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key not in self._dirty:
            self._dirty.add(key)
            self._since[key] = asyncio.get_running_loop().time()
            if key not in self._busy:
                self._ready.put_nowait(key)

    async def take(self) -> Key:
        """The next key; it is not handed out again before ``done``. Waits for ever once the queue is closed."""
        while True:
            await self._open.wait()
            key = await self._ready.get()
            if self._open.is_set():
                break
            self._ready.put_nowait(key)
        # Before the pass reads its caches: a change during the pass is not lost.
        self._dirty.discard(key)
        self._since.pop(key, None)
        self._not_before.pop(key, None)
        self._busy.add(key)
        self._idle.clear()
        return key

    def done(self, key: Key, *, failed: bool) -> None:
        """Give a key back. After a failure it comes again, after a pause that no event can shorten."""
        self._busy.discard(key)
        if not self._busy:
            self._idle.set()
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            pause = random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_SECONDS, 2.0 ** self._failures[key])
            self.rest(key, pause)
            self._dirty.discard(key)
            self.add(key, pause)
        else:
            self._failures.pop(key, None)
            if key in self._dirty:
                self._dirty.discard(key)
                self.add(key)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key that no longer exists."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Hand out nothing any more."""
        self._open.clear()

    async def idle(self) -> None:
        """Wait until no key is being worked on."""
        await self._idle.wait()

    @property
    def depth(self) -> int:
        return self._ready.qsize()

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest due key has waited."""
        return asyncio.get_running_loop().time() - min(self._since.values()) if self._since else 0.0
