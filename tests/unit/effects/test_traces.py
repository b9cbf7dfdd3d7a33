"""Traces against an HTTP server on loopback that reads them with OpenTelemetry's own messages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from seatrial.core.rows import Row, TrialError
from seatrial.effects.metrics import Metrics
from seatrial.effects.traces import WAITING, Tracer
from tests.builders import NOW, ago
from tests.receiver import Receiver, receiving

SECOND = 10**9
ROW = Row("t__1", 0, "scored", ago(0), pod="p", started_at=ago(30), rewards={"reward": 1.0}, seconds={"verifier": 4.0, "total": 20.0})


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving("/v1/traces", ExportTraceServiceRequest.FromString) as found:
        yield found


def counted(metrics: Metrics) -> dict[str, float]:
    return {outcome: metrics.traces.labels(outcome)._value.get() for outcome in ("sent", "failed", "dropped")}


def tracer(url: str, metrics: Metrics, **headers: str) -> Tracer:
    return Tracer(url, headers=lambda: headers, metrics=metrics, batch_seconds=30, first_pause_seconds=0.01)


def tell(subject: Tracer, row: Row = ROW) -> None:
    subject.trial_ended(row, None, namespace="evals", job="nightly", uid="u-1")


async def test_ended_trials_are_sent_together_in_protobuf_with_the_headers(receiver: Receiver) -> None:
    metrics = Metrics()
    subject = tracer(receiver.url, metrics, Authorization="Bearer secret")
    error = TrialError("OOMKilled", "x", "environment", "killed")
    tell(subject)
    tell(subject, Row("t__2", 0, "errored", ago(0), pod="q", started_at=ago(9), error=error))
    await subject.flush()
    ((kind, authorization, message),) = receiver.got
    assert (kind, authorization) == ("application/x-protobuf", "Bearer secret")
    (resource,) = message.resource_spans
    assert {item.key: item.value.string_value for item in resource.resource.attributes}["service.name"] == "seatrial"
    root, phase, other = resource.scope_spans[0].spans
    assert (root.name, len(root.trace_id), len(root.span_id), root.parent_span_id) == ("trial", 16, 8, b"")
    assert (phase.name, phase.trace_id, phase.parent_span_id) == ("verifier", root.trace_id, root.span_id)
    begin = int(NOW.timestamp()) * SECOND
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (begin - 30 * SECOND, begin)
    assert (phase.start_time_unix_nano, phase.end_time_unix_nano) == (begin - 20 * SECOND, begin - 16 * SECOND)
    values = {item.key: item.value for item in root.attributes}
    assert (values["seatrial.retry"].int_value, values["seatrial.reward"].double_value) == (0, 1.0)
    assert values["seatrial.trial"].string_value == "t__1"
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert (other.status.code, other.status.message) == (Status.STATUS_CODE_ERROR, "OOMKilled: killed")
    assert counted(metrics) == {"sent": 2, "failed": 0, "dropped": 0}


@pytest.mark.parametrize(
    ("answers", "posts", "outcome"),
    [([503, 429], 3, "sent"), ([503] * 9, 5, "failed"), ([400], 1, "failed"), ([500], 1, "failed"), ([302], 1, "failed")],
    ids=["a collector that recovers", "one that does not", "what it refuses", "what OTLP does not repeat", "a redirect is not followed"],
)
async def test_only_what_otlp_allows_is_tried_again(receiver: Receiver, answers: list[int], posts: int, outcome: str) -> None:
    metrics, receiver.answers = Metrics(), answers
    subject = tracer(receiver.url, metrics)
    tell(subject)
    await subject.flush()
    assert (len(receiver.got), counted(metrics)) == (posts, {"sent": 0, "failed": 0, "dropped": 0} | {outcome: 1})


async def test_a_flood_is_dropped() -> None:
    metrics = Metrics()
    subject = tracer("http://127.0.0.1:9", metrics)
    for number in range(WAITING + 3):
        tell(subject, Row(f"t__{number}", 0, "scored", ago(0), pod="p", started_at=ago(1)))
    await subject.flush()
    assert counted(metrics) == {"sent": 0, "failed": WAITING, "dropped": 3}


async def test_without_an_endpoint_nothing_is_sent() -> None:
    metrics = Metrics()
    subject = tracer("", metrics)
    tell(subject)
    await subject.flush()
    assert counted(metrics) == {"sent": 0, "failed": 0, "dropped": 0}
