"""OpenTelemetry traces: one for each trial, a span for each Pod of it and each of its phases, sent as OTLP over HTTP in protobuf.

Why in the background and at most so many: it must never delay a pass. What cannot be sent is counted and dropped.
Source: OTLP 1.x, sections on OTLP/HTTP requests, responses and retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from seatrial import __version__
from seatrial.core.observe import PodView
from seatrial.core.rows import Row
from seatrial.core.spans import ROOT, Span, Trace, Value, trace_of
from seatrial.effects.credentials import Headers
from seatrial.effects.metrics import Metrics
from seatrial.effects.post import post

log = logging.getLogger(__name__)

PATH: Final = "/v1/traces"
CONTENT_TYPE: Final = "application/x-protobuf"
SCOPE: Final = "seatrial.operator"
WAITING: Final = 2000
"""Traces that may wait; more are dropped."""
BATCH: Final = 200
MESSAGE_CHARS: Final = 500
_NANOSECONDS: Final = 10**9


class Tracer:
    """Sends traces of ended Pods; without an endpoint it does nothing."""

    def __init__(
        self,
        endpoint: str,
        *,
        headers: Headers,
        metrics: Metrics,
        batch_seconds: float = 1.0,
        first_pause_seconds: float = 1.0,
    ) -> None:
        """``endpoint``: base URL, to which ``/v1/traces`` is appended. ``first_pause_seconds``: doubled with each further try."""
        self._url = f"{endpoint.rstrip('/')}{PATH}" if endpoint else ""
        self._headers, self._metrics = headers, metrics
        self._batch_seconds, self._pause = batch_seconds, first_pause_seconds
        self._waiting: list[Trace] = []
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def trial_ended(self, row: Row, pod: PodView | None, *, namespace: str, job: str, uid: str) -> None:
        """Queue the trace of an ended Pod; failures are logged and counted only."""
        if not self._url:
            return
        trace = trace_of(row, pod, namespace=namespace, job=job, uid=uid)
        if trace is None:
            return
        if len(self._waiting) >= WAITING:
            self._metrics.traces.labels("dropped").inc()
            return
        self._waiting.append(trace)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name="traces")

    async def flush(self) -> None:
        """Send what waits, at once."""
        self._hurry.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _drain(self) -> None:
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._batch_seconds)
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            fault = await post(
                self._url,
                encode(batch),
                content_type=CONTENT_TYPE,
                headers=self._headers,
                may_retry=_may_retry,
                first_pause_seconds=self._pause,
            )
            self._metrics.traces.labels("failed" if fault else "sent").inc(len(batch))
            if fault:
                log.warning("traces not sent", extra={"traces": len(batch), "reason": fault})


def _may_retry(status: int) -> bool:
    return status in (429, 502, 503, 504)


def encode(traces: Sequence[Trace]) -> bytes:
    """An ``ExportTraceServiceRequest``."""
    # Loaded on need: an installation without traces should not hold protobuf in memory.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add()
    spans.resource.attributes.extend(_attributes({"service.name": "seatrial", "service.version": __version__}))
    scope = spans.scope_spans.add()
    scope.scope.name, scope.scope.version = SCOPE, __version__
    for trace in traces:
        scope.spans.extend(_span(trace, item) for item in (trace.root, *trace.phases))
    return bytes(request.SerializeToString())


def _span(trace: Trace, span: Span) -> Any:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    is_root = span.name == ROOT
    return Message(
        trace_id=trace.trace_id,
        span_id=trace.span_id(span.name),
        parent_span_id=b"" if is_root else trace.span_id(ROOT),
        name=span.name,
        kind=Message.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_nanoseconds(span.begin),
        end_time_unix_nano=_nanoseconds(span.end),
        attributes=_attributes(span.attributes),
        status=Status(code=Status.STATUS_CODE_ERROR, message=trace.error[:MESSAGE_CHARS]) if is_root and trace.error else None,
    )


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp()) * _NANOSECONDS + at.microsecond * 1000


def _attributes(values: Mapping[str, Value]) -> list[Any]:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    found = []
    for name, value in values.items():
        match value:
            case bool():
                shown = AnyValue(bool_value=value)
            case int():
                shown = AnyValue(int_value=value)
            case float():
                shown = AnyValue(double_value=value)
            case _:
                shown = AnyValue(string_value=value)
        found.append(KeyValue(key=name, value=shown))
    return found
