"""``/healthz``, ``/readyz`` and ``/metrics``, on the standby too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from aiohttp import web

from seatrial.effects.metrics import CONTENT_TYPE, Metrics

HEARTBEAT_SECONDS: Final = 15.0
INFORMER_SECONDS: Final = 180.0
MISSED_SECONDS: Final = 120.0
DENIED_SECONDS: Final = 180.0

Check = Callable[[], str | None]
"""None is good; otherwise the text says what is wrong."""


class Health:
    """What is asked, and the server that answers."""

    def __init__(self, metrics: Metrics, *, refresh: Callable[[], None]) -> None:
        """``refresh`` sets the gauges that are computed when somebody asks."""
        self._metrics, self._refresh = metrics, refresh
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, *, host: str, port: int) -> None:
        """Listen; port 0 takes a free one."""
        app = web.Application()
        app.add_routes([web.get("/healthz", self._live), web.get("/readyz", self._ready), web.get("/metrics", self._render)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return self._answer(self.live)

    async def _ready(self, _: web.Request) -> web.Response:
        return self._answer(self.ready)

    def _answer(self, checks: dict[str, Check]) -> web.Response:
        faults = [f"{name}: {text}" for name, check in checks.items() if (text := check()) is not None]
        return web.Response(status=503 if faults else 200, text="".join(f"{fault}\n" for fault in faults) or "ok\n")

    async def _render(self, _: web.Request) -> web.Response:
        self._refresh()
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def heartbeat_check(metrics: Metrics) -> Check:
    """The event loop turns."""

    def check() -> str | None:
        age = asyncio.get_running_loop().time() - metrics.heartbeat
        return f"the event loop was silent for {age:.0f} s" if metrics.heartbeat and age > HEARTBEAT_SECONDS else None

    return check


def informer_check(last_seen: Callable[[], float], count: Callable[[], int]) -> Check:
    """With live Pods, bookmarks alone come every minute."""

    def check() -> str | None:
        age = time.monotonic() - last_seen()
        return f"no news of Pods for {age:.0f} s" if count() and age > INFORMER_SECONDS else None

    return check


def missed_check(missed: Callable[[], float]) -> Check:
    """What a LIST knows must have come as an event too."""

    def check() -> str | None:
        age = missed()
        return f"a change is known for {age:.0f} s and no event brought it: the watch is dead" if age > MISSED_SECONDS else None

    return check


def denied_check(denied_since: Callable[[], float | None]) -> Check:
    """The API server lets us in."""

    def check() -> str | None:
        since = denied_since()
        age = time.monotonic() - since if since is not None else 0.0
        return f"the API server has refused us for {age:.0f} s" if age > DENIED_SECONDS else None

    return check
