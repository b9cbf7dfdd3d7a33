"""An HTTP server on loopback that keeps what is posted to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Receiver:
    """Answers with the statuses given, then with 200; a redirect leads back to it. ``got``: content type, authorization, what was read."""

    read: Callable[[bytes], Any]
    url: str = ""
    answers: list[int] = field(default_factory=list)
    got: list[tuple[str, str, Any]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.got.append((request.headers["Content-Type"], request.headers.get("Authorization", ""), self.read(await request.read())))
        status = self.answers.pop(0) if self.answers else 200
        return web.Response(status=status, headers={"Location": self.url} if status == 302 else {})


@contextlib.asynccontextmanager
async def receiving(path: str, read: Callable[[bytes], Any]) -> AsyncIterator[Receiver]:
    """A receiver of posts to ``path``; its ``url`` is that of the server."""
    found, app = Receiver(read), web.Application()
    app.add_routes([web.post(path, found.take)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield found
    finally:
        await runner.cleanup()
