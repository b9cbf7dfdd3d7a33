"""A POST in the background to an address of the site, tried again where that may help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

ATTEMPTS: Final = 5
ANSWER_SECONDS: Final = 10.0


async def post(url: str, body: bytes, headers: Mapping[str, str], *, may_retry: Callable[[int], bool], first_pause_seconds: float) -> str:
    """What went wrong at last, or empty.

    Args:
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
                async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                    if answer.status < 300:
                        return ""
                    fault = f"status {answer.status}"
                    if not may_retry(answer.status):
                        return fault
            except (aiohttp.ClientError, TimeoutError) as error:
                fault = type(error).__name__
    return fault
