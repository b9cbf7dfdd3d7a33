"""A judge model behind an endpoint that speaks OpenAI's chat completions: an object of a schema, or a named error.

Retries and their pauses are bounded; tokens are counted, so that a judge's cost is known. The key is read from a variable, never stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import urllib3
from pydantic import BaseModel, ValidationError

from seatrial.errors import SeatrialError

Schema = TypeVar("Schema", bound=BaseModel)

ANSWER_BYTES: Final = 1024 * 1024
MOST_PAUSE: Final = 60.0
"""Seconds; a server that asks for more is asked again after this."""
RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})


class JudgeError(SeatrialError):
    """The judge gave no usable answer; ``reason`` is JudgeUnavailable, JudgeRefused or JudgeMalformed."""

    def __init__(self, reason: str, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.retry_after = reason, retry_after


@dataclass(frozen=True)
class JudgeSettings:
    """Where the judge is.

    ``endpoint`` ends in ``/v1``; the key comes from the environment variable ``key_variable``, where the endpoint wants one.
    """

    endpoint: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    timeout_seconds: float = 30.0
    """For the connection, for each wait, and for the whole answer."""
    attempts: int = 3
    pause_seconds: float = 1.0
    """Before the second attempt; doubled after each, or longer where the server says so."""
    prompt_price: float | None = None
    completion_price: float | None = None
    """US dollars for a million tokens; None: the cost is not known."""
    temperature: float | None = 0.0
    """None: not sent, for models that refuse it."""


@dataclass
class Usage:
    """What the judge has cost so far; answers that could not be used cost, too."""

    model: str = ""
    prompt_price: float | None = None
    completion_price: float | None = None
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Objects that were never got, by reason."""

    @property
    def cost_usd(self) -> float | None:
        """None without prices."""
        if self.prompt_price is None or self.completion_price is None:
            return None
        return (self.prompt_tokens * self.prompt_price + self.completion_tokens * self.completion_price) / 1e6

    def raw(self) -> dict[str, Any]:
        """As in summary.json."""
        counts = {"requests": self.requests, "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {"model": self.model, **counts, "cost_usd": self.cost_usd, "failures": dict(sorted(self.failures.items()))}


@dataclass
class ChatJudge:
    """A ``JudgeModel`` over HTTP."""

    settings: JudgeSettings
    usage: Usage = field(default_factory=Usage)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Of the usage: answers come in threads."""
    _pool: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False, maxsize=32), repr=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.usage.model, self.usage.prompt_price = settings.model, settings.prompt_price
        self.usage.completion_price = settings.completion_price

    async def generate_object(self, schema: type[Schema], messages: Sequence[Mapping[str, str]]) -> Schema:
        """An object of ``schema``. A malformed answer is asked for again, like a server that is busy.

        Raises:
            JudgeError: no usable answer after all attempts.
        """
        last = JudgeError("JudgeUnavailable", "was never asked: attempts must be at least 1")
        for attempt in range(self.settings.attempts):
            if attempt:
                await asyncio.sleep(max(self.settings.pause_seconds * 2 ** (attempt - 1), min(last.retry_after, MOST_PAUSE)))
            try:
                return await asyncio.to_thread(self._ask, schema, messages)
            except JudgeError as error:
                last = error
                if error.reason == "JudgeRefused":
                    break
        with self._lock:
            self.usage.failures[last.reason] += 1
        raise last

    def _ask(self, schema: type[Schema], messages: Sequence[Mapping[str, str]]) -> Schema:
        form = {"name": schema.__name__, "schema": strict_schema(schema.model_json_schema()), "strict": True}
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [dict(message) for message in messages],
            "response_format": {"type": "json_schema", "json_schema": form},
        }
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.settings.key_variable):
            if not key.isascii() or not key.isprintable():
                raise JudgeError("JudgeRefused", f"the key in {self.settings.key_variable} has a line break or another odd character")
            headers["Authorization"] = f"Bearer {key}"
        with self._lock:
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
            data = self._body(answer)
            answer.close()
        except urllib3.exceptions.HTTPError as error:
            raise JudgeError("JudgeUnavailable", f"{self.settings.endpoint} does not answer: {type(error).__name__}") from None
        if answer.status != 200:
            reason = "JudgeUnavailable" if answer.status in RETRIED else "JudgeRefused"
            message = f"{self.settings.endpoint} answered {answer.status} for model {self.settings.model}"
            raise JudgeError(reason, message, retry_after=_seconds(answer.headers.get("Retry-After")))
        return self._read(schema, data)

    def _body(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        """The answer's bytes, one more than allowed at most. A server that sends a byte now and then does not hold the call for ever.

        Raises:
            JudgeError: it was not through in time.
        """
        end, data = time.monotonic() + self.settings.timeout_seconds, b""
        while len(data) <= ANSWER_BYTES and (block := answer.read1(65536)):
            data += block
            if time.monotonic() > end:
                answer.close()
                raise JudgeError("JudgeUnavailable", f"{self.settings.endpoint} did not end its answer in time")
        return data

    def _read(self, schema: type[Schema], data: bytes) -> Schema:
        if len(data) > ANSWER_BYTES:
            raise JudgeError("JudgeMalformed", f"answered with more than {ANSWER_BYTES} bytes")
        try:
            body: Any = json.loads(data)
            self._count_tokens(body["usage"] if isinstance(body, dict) and isinstance(body.get("usage"), dict) else {})
            return schema.model_validate_json(body["choices"][0]["message"]["content"])
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            what = f"{error.error_count()} faults in its object" if isinstance(error, ValidationError) else type(error).__name__
            raise JudgeError("JudgeMalformed", f"answered with no {schema.__name__}: {what}") from None

    def _count_tokens(self, usage: Mapping[str, Any]) -> None:
        with self._lock:
            self.usage.prompt_tokens += _count(usage.get("prompt_tokens"))
            self.usage.completion_tokens += _count(usage.get("completion_tokens"))


def strict_schema(schema: Any) -> Any:
    """A JSON schema as strict structured output wants it: every property required, none besides, no defaults."""
    if isinstance(schema, list):
        return [strict_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {name: strict_schema(value) for name, value in schema.items() if name != "default"}
    rest = {name: strict_schema(value) for name, value in schema.items() if name not in ("default", "properties")}
    # A property may be called "default": the names are no keywords here.
    inner = {name: strict_schema(value) for name, value in properties.items()}
    return {**rest, "properties": inner, "required": list(inner), "additionalProperties": False}


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _seconds(text: str | None) -> float:
    """``Retry-After`` in seconds; 0 where it says none, or a date."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
