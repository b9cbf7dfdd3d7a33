"""Digests of the images that tasks name, asked when a job is planned: a tag that moves afterwards does not move a job's trials.

A registry that does not answer, or refuses, is no fault: the image then runs as it is named, and whoever did not answer is left alone for a
while: the registry where it was silent, the repository where it was refused. Tasks are strangers' work and so are the registries that they
name: none of them gets more than its share of the threads, and none longer than its time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Final

from seatrial.core.frozen import FrozenPlan, with_pins
from seatrial.effects.clock import Clock
from seatrial.effects.registry import BadAnswer, ImageRef, Registry, Throttled, parse_ref
from seatrial.errors import Forbidden, InvalidSpec, SeatrialError
from seatrial.taskpkg.mirrors import Mirrors

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""For one image: planning waits for no registry that is slow."""
BUDGET_SECONDS: Final = 60.0
"""For all images of a plan; the others run as they are named."""
SILENCE_SECONDS: Final = 600.0
"""How long a registry that did not answer, or a repository that was refused, is not asked again."""
PARALLEL: Final = 16
PARALLEL_PER_PLAN: Final = 8
PARALLEL_PER_HOST: Final = 2


class ImagePins:
    """Asks registries, and remembers which of them are silent."""

    def __init__(self, registry: Registry, *, mirrors: Mirrors, clock: Clock) -> None:
        self._registry, self._mirrors, self._clock = registry, mirrors, clock
        # Threads of its own: a registry that hangs must not hold up what else the process waits for.
        self._threads = concurrent.futures.ThreadPoolExecutor(PARALLEL, thread_name_prefix="registry")
        self._slots = asyncio.Semaphore(PARALLEL)
        self._hosts: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._silent: dict[str, float] = {}
        """Until when a host, or HOST/REPOSITORY, is not asked."""
        self._asked: set[asyncio.Task[None]] = set()

    async def pin(self, plan: FrozenPlan) -> FrozenPlan:
        """``plan`` with a digest for each image that its tasks name by a tag, where the registry gives one. Never raises for a registry."""
        names = {image for task in plan.tasks if task.refusal is None for image in task.named_images}
        return with_pins(plan, await self._resolve(sorted(names))) if names else plan

    async def _resolve(self, names: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        until = self._clock.monotonic() + BUDGET_SECONDS
        mine = asyncio.Semaphore(PARALLEL_PER_PLAN)

        async def ask(name: str, read: str, ref: ImageRef) -> None:
            host = self._hosts.setdefault(ref.host, asyncio.Semaphore(PARALLEL_PER_HOST))
            async with mine, host, self._slots:
                # A thread is free now, so what follows is this registry's own time and nobody else's.
                if self._clock.monotonic() < until and (digest := await self._digest(read, ref)) is not None:
                    found[name] = f"{read}@{digest}"

        asked = [asyncio.create_task(ask(name, read, ref)) for name in names for read, ref in self._references(name)]
        self._asked.update(asked)
        for task in asked:
            task.add_done_callback(self._asked.discard)
        if asked:
            # What is late goes on to its end, which is near: its thread cannot be taken away from it.
            await asyncio.wait(asked, timeout=BUDGET_SECONDS)
        return dict(found)

    def _references(self, name: str) -> Iterable[tuple[str, ImageRef]]:
        """The one by which the image is read here; none where it is none: the kubelet refuses that with its own words."""
        try:
            parse_ref(name)
            read = self._mirrors.of(name)
            yield read, parse_ref(read)
        except InvalidSpec:
            return

    async def _digest(self, read: str, ref: ImageRef) -> str | None:
        now = self._clock.monotonic()
        if any(now < self._silent.get(place, 0.0) for place in (ref.host, ref.name)):
            return None
        asking = partial(self._registry.digest, read, seconds=ANSWER_SECONDS)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, asking)
        except Throttled as error:
            self._silence(ref.host, error, seconds=min(max(error.retry_after or 0.0, 1.0), SILENCE_SECONDS))
        except (Forbidden, BadAnswer) as error:
            self._silence(ref.name, error, seconds=SILENCE_SECONDS)
        except (SeatrialError, OSError) as error:
            self._silence(ref.host, error, seconds=SILENCE_SECONDS)
        return None

    def _silence(self, place: str, why: Exception, *, seconds: float) -> None:
        now = self._clock.monotonic()
        # Tasks choose the names: those whose time is over go, or there would be no end of them.
        self._silent = {name: until for name, until in self._silent.items() if until > now} | {place: now + seconds}
        log.info("images not pinned", extra={"registry": place, "error": str(why)[:200], "seconds": seconds})
