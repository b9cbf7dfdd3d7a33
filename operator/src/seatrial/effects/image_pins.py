"""Digests of the images that tasks name, asked when a job is planned: a tag that moves afterwards does not move a job's trials.

A registry that does not answer, or refuses, is no fault: the image then runs as it is named, and the registry is left alone for a while.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Iterable
from typing import Final

from seatrial.core.frozen import FrozenPlan, with_pins
from seatrial.effects.clock import Clock
from seatrial.effects.registry import Registry, parse_ref
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.taskpkg.mirrors import Mirrors

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""For one image: planning waits for no registry that is slow."""
BUDGET_SECONDS: Final = 60.0
"""For all images of a plan; the others run as they are named."""
SILENCE_SECONDS: Final = 600.0
"""How long a registry that did not answer is not asked again."""
PARALLEL: Final = 8


class ImagePins:
    """Asks registries, and remembers which of them are silent."""

    def __init__(self, registry: Registry, *, mirrors: Mirrors, clock: Clock) -> None:
        self._registry, self._mirrors, self._clock = registry, mirrors, clock
        # Threads of its own: a registry that hangs must not hold up what else the process waits for.
        self._threads = concurrent.futures.ThreadPoolExecutor(PARALLEL, thread_name_prefix="registry")
        self._silent: dict[str, float] = {}

    async def pin(self, plan: FrozenPlan) -> FrozenPlan:
        """``plan`` with a digest for each image that its tasks name by a tag, where the registry gives one. Never raises for a registry."""
        names = {image for task in plan.tasks if task.refusal is None for image in task.named_images}
        return with_pins(plan, await self._resolve(sorted(names))) if names else plan

    async def _resolve(self, names: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        slots = asyncio.Semaphore(PARALLEL)

        async def ask(name: str) -> None:
            read = self._mirrors.of(name)
            host = parse_ref(read).host
            async with slots:
                if self._clock.monotonic() < self._silent.get(host, 0.0):
                    return
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        digest = await asyncio.get_running_loop().run_in_executor(self._threads, self._registry.digest, read)
                except (SeatrialError, OSError) as error:
                    self._silence(host, str(error) or "no answer in time")
                    return
            if digest is not None:
                found[name] = f"{read}@{digest}"

        asked = [asyncio.create_task(ask(name)) for name in names if _is_reference(name)]
        if asked:
            _, late = await asyncio.wait(asked, timeout=BUDGET_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return found

    def _silence(self, host: str, why: str) -> None:
        self._silent[host] = self._clock.monotonic() + SILENCE_SECONDS
        log.info("images not pinned", extra={"registry": host, "error": why[:200]})


def _is_reference(name: str) -> bool:
    try:
        parse_ref(name)
    except InvalidSpec:
        return False  # the kubelet refuses it with its own words
    return True
