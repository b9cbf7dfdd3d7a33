"""The webhook against a real HTTP server on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from seatrial.effects.clock import SystemClock
from seatrial.effects.credentials import bearer_of
from seatrial.effects.metrics import Metrics
from seatrial.effects.webhook import PENDING, Webhook
from tests.receiver import Receiver, receiving

BODY = {"metadata": {"name": "nightly", "namespace": "evals", "uid": "u-1"}}
STATUS = {
    "phase": "Completed",
    "mean": "0.750",
    "trials": {"total": 4, "scored": 4},
    "conditions": [{"type": "Finished", "status": "True", "reason": "AllScored", "message": "4 of 4 trials scored"}],
}


class FixedClock(SystemClock):
    def now(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving("/hook", json.loads) as found:
        found.url += "/hook"
        yield found


def counted(metrics: Metrics) -> dict[str, float]:
    return {outcome: metrics.webhooks.labels(outcome)._value.get() for outcome in ("posted", "failed", "dropped")}


def hook(url: str, metrics: Metrics, *, token_file: str = "") -> Webhook:
    return Webhook(url, headers=bearer_of(token_file), clock=FixedClock(), metrics=metrics, first_pause_seconds=0.01)


async def test_an_end_is_one_cloudevent_with_the_scores(receiver: Receiver, tmp_path: Path) -> None:
    metrics, token = Metrics(), tmp_path / "token"
    token.write_text("secret\n")
    sender = hook(receiver.url, metrics, token_file=str(token))
    sender.job_ended(BODY, STATUS)
    await sender.flush()
    ((kind, authorization, content),) = receiver.got
    assert (kind, authorization) == ("application/cloudevents+json; charset=utf-8", "Bearer secret")
    data = content.pop("data")
    assert content == {
        "specversion": "1.0",
        "id": "u-1-ended",
        "source": "/apis/seatrial.dev/v1alpha1/namespaces/evals/evaljobs/nightly",
        "type": "dev.seatrial.evaljob.ended",
        "subject": "evals/nightly",
        "time": "2026-01-02T03:04:05+00:00",
        "datacontenttype": "application/json",
    }
    assert (data["phase"], data["reason"], data["mean"], data["trials"]) == ("Completed", "AllScored", "0.750", {"total": 4, "scored": 4})
    assert counted(metrics) == {"posted": 1, "failed": 0, "dropped": 0}


async def test_a_rotated_token_is_sent_with_the_next_try_and_a_missing_one_is_a_failure(receiver: Receiver, tmp_path: Path) -> None:
    metrics, token = Metrics(), tmp_path / "token"
    sender = hook(receiver.url, metrics, token_file=str(token))
    for text in ("old", "new"):
        token.write_text(text)
        sender.job_ended(BODY, STATUS)
        await sender.flush()
    token.unlink()
    sender.job_ended(BODY, STATUS)
    await sender.flush()
    assert [authorization for _, authorization, _ in receiver.got] == ["Bearer old", "Bearer new"]
    assert counted(metrics) == {"posted": 2, "failed": 1, "dropped": 0}


@pytest.mark.parametrize(
    ("answers", "posts", "outcome"),
    [
        ([503, 429], 3, "posted"),
        ([500] * 9, 5, "failed"),
        ([404], 1, "failed"),
        ([302], 1, "failed"),
    ],
    ids=["a server that recovers", "a server that does not", "a wrong address", "a redirect is not followed"],
)
async def test_only_what_may_pass_is_tried_again(receiver: Receiver, answers: list[int], posts: int, outcome: str) -> None:
    metrics, receiver.answers = Metrics(), answers
    sender = hook(receiver.url, metrics)
    sender.job_ended(BODY, STATUS)
    await sender.flush()
    assert (len(receiver.got), counted(metrics)) == (posts, {"posted": 0, "failed": 0, "dropped": 0} | {outcome: 1})


async def test_a_flood_is_dropped_and_an_absent_server_is_counted() -> None:
    metrics = Metrics()
    sender = hook("http://127.0.0.1:9/hook", metrics)
    for _ in range(PENDING + 3):
        sender.job_ended(BODY, STATUS)
    await sender.flush()
    assert counted(metrics) == {"posted": 0, "failed": PENDING, "dropped": 3}


async def test_without_an_address_nothing_is_sent() -> None:
    metrics = Metrics()
    sender = hook("", metrics)
    sender.job_ended(BODY, STATUS)
    await sender.flush()
    assert counted(metrics) == {"posted": 0, "failed": 0, "dropped": 0}
