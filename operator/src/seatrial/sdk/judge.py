"""A judge model behind an endpoint that speaks OpenAI's chat completions: an object of a schema, or a named error.

Retries and their pauses are bounded; tokens are counted, so that a judge's cost is known. The key is read from a variable, never stored.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import urllib3
from pydantic import BaseModel, ValidationError

from seatrial.errors import SeatrialError

Schema = TypeVar("Schema", bound=BaseModel)

ANSWER_BYTES: Final = 1024 * 1024
RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})


class JudgeError(SeatrialError):
    """The judge gave no usable answer; ``reason`` is JudgeUnavailable, JudgeRefused or JudgeMalformed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"judge: {message}")
        self.reason = reason


@dataclass(frozen=True)
class JudgeSettings:
    """Where the judge is.

    ``endpoint`` ends in ``/v1``; the key comes from the environment variable ``key_variable``, where the endpoint wants one.
    """

    endpoint: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    timeout_seconds: float = 30.0
    attempts: int = 3
    pause_seconds: float = 1.0
    """Before the second attempt; doubled after each."""


@dataclass
class Usage:
    """What the judge has cost so far."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class ChatJudge:
    """A ``JudgeModel`` over HTTP."""

    settings: JudgeSettings
    usage: Usage = field(default_factory=Usage)
    _pool: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False), repr=False)

    async def generate_object(self, schema: type[Schema], messages: Sequence[Mapping[str, str]]) -> Schema:
        """An object of ``schema``. A malformed answer is asked for again, like a server that is busy.

        Raises:
            JudgeError: no usable answer after all attempts.
        """
        last = JudgeError("JudgeUnavailable", "was never asked: attempts must be at least 1")
        for attempt in range(self.settings.attempts):
            if attempt:
                await asyncio.sleep(self.settings.pause_seconds * 2 ** (attempt - 1))
            try:
                return await asyncio.to_thread(self._ask, schema, messages)
            except JudgeError as error:
                if error.reason == "JudgeRefused":
                    raise
                last = error
        raise last

    def _ask(self, schema: type[Schema], messages: Sequence[Mapping[str, str]]) -> Schema:
        form = {"name": schema.__name__, "schema": schema.model_json_schema(), "strict": True}
        body = {
            "model": self.settings.model,
            "messages": [dict(message) for message in messages],
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": form},
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.settings.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        self.usage.requests += 1
        try:
            answer = self._pool.request(
                "POST",
                f"{self.settings.endpoint.rstrip('/')}/chat/completions",
                body=json.dumps(body).encode(),
                headers=headers,
                timeout=self.settings.timeout_seconds,
                preload_content=False,
                redirect=False,
            )
            data = answer.read(ANSWER_BYTES + 1)
            answer.close()
        except urllib3.exceptions.HTTPError as error:
            raise JudgeError("JudgeUnavailable", f"{self.settings.endpoint} does not answer: {type(error).__name__}") from None
        if answer.status != 200:
            reason = "JudgeUnavailable" if answer.status in RETRIED else "JudgeRefused"
            raise JudgeError(reason, f"{self.settings.endpoint} answered {answer.status} for model {self.settings.model}")
        return self._read(schema, data)

    def _read(self, schema: type[Schema], data: bytes) -> Schema:
        if len(data) > ANSWER_BYTES:
            raise JudgeError("JudgeMalformed", f"answered with more than {ANSWER_BYTES} bytes")
        try:
            body: Any = json.loads(data)
            text = body["choices"][0]["message"]["content"]
            found = schema.model_validate_json(text)
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            what = f"{error.error_count()} faults in its object" if isinstance(error, ValidationError) else type(error).__name__
            raise JudgeError("JudgeMalformed", f"answered with no {schema.__name__}: {what}") from None
        usage = body.get("usage")
        if isinstance(usage, dict):
            self.usage.prompt_tokens += _count(usage.get("prompt_tokens"))
            self.usage.completion_tokens += _count(usage.get("completion_tokens"))
        return found


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
