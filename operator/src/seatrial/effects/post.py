"""A POST in the background to an address of the site, tried again where that may help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from seatrial.effects.credentials import Headers
from seatrial.errors import Unavailable

ATTEMPTS: Final = 5
ANSWER_SECONDS: Final = 10.0


async def post(
    url: str, body: bytes, *, content_type: str, headers: Headers, may_retry: Callable[[int], bool], first_pause_seconds: float
) -> str:
    """What went wrong at last, or empty.

    Args:
        headers: asked for with each try.
        may_retry: whether a status other than 2xx is worth another try; no answer always is.
        first_pause_seconds: doubled with each further try.
    """
    fault, pause = "", first_pause_seconds
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as session:
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                # A redirect could lead a key in the headers elsewhere.
                sent = {**headers(), "Content-Type": content_type}
                async with session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
                    if answer.status < 300:
                        return ""
                    fault = f"status {answer.status}"
                    if not may_retry(answer.status):
                        return fault
            except Unavailable as error:
                fault = str(error)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                fault = type(error).__name__  # a message could show a header
    return fault
