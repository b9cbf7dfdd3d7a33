"""Events: few, and no warning among them is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.core.status import Notice
from seatrial.effects.events import EventPoster
from seatrial.effects.kube import Kube
from seatrial.effects.metrics import Metrics
from tests.builders import NOW

JOB = {"name": "job", "namespace": "evals", "uid": "u"}


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> Any:
        return NOW

    def monotonic(self) -> float:
        return self.seconds


class Api:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []
        self.counts: list[int] = []

    async def request(self, method: str, path: str, *, body: Mapping[str, Any], content_type: str) -> None:
        if method == "POST":
            self.posted.append((body["reason"], body["type"]))
        else:
            self.counts.append(body["series"]["count"])


def poster(api: Api, clock: Clock) -> EventPoster:
    kube: Kube = api  # type: ignore[assignment]
    return EventPoster(kube, clock=clock, metrics=Metrics(), instance="test")


async def test_warnings_that_come_too_soon_are_counted_in_one_later_post() -> None:
    api, clock = Api(), Clock()
    events = poster(api, clock)
    for number in range(5):
        events.post("EvalJob", JOB, Notice(True, "OOMKilled", f"trial {number}"))
    events.post("EvalJob", JOB, Notice(True, "ImageNotFound", "another reason"))
    await events.flush()
    assert (api.posted, api.counts) == ([("OOMKilled", "Warning"), ("ImageNotFound", "Warning")], [5])


async def test_a_held_warning_is_posted_when_the_interval_is_over() -> None:
    api, clock = Api(), Clock()
    events = poster(api, clock)
    events.post("EvalJob", JOB, Notice(True, "OOMKilled", "one"))
    clock.seconds += 9.99
    events.post("EvalJob", JOB, Notice(True, "OOMKilled", "two"))
    clock.seconds += 10
    await events.flush()
    clock.seconds += 10
    events.post("EvalJob", JOB, Notice(True, "OOMKilled", "three"))
    await events.flush()
    assert (api.posted, api.counts) == ([("OOMKilled", "Warning")], [2, 3])


async def test_a_normal_event_that_comes_too_soon_is_dropped() -> None:
    api, clock = Api(), Clock()
    events = poster(api, clock)
    for seconds in (0, 5, 5.1):
        clock.seconds += seconds
        events.post("EvalJob", JOB, Notice(False, "Running", "runs"))
    await events.flush()
    assert (api.posted, api.counts) == ([("Running", "Normal")], [2])
