"""How long somebody waits for a job: time in the queue and time at work have limits of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from seatrial.sdk.cluster import Cluster, Event
from seatrial.sdk.jobs import Limits, WaitTimeout, follow


def job(phase: str, **trials: int) -> dict[str, Any]:
    return {"metadata": {"name": "job", "uid": "u"}, "status": {"phase": phase, "trials": trials}}


class Watched:
    """A job that changes at given seconds; the clock stands at the newest change."""

    def __init__(self, *changes: tuple[float, dict[str, Any]]) -> None:
        self.changes = changes
        self.now = 0.0

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.changes[0][1]

    def events(self) -> Iterator[Event]:
        for now, body in self.changes[1:]:
            self.now = now
            yield Event("MODIFIED", body)

    def phases(self, limits: Limits) -> list[str]:
        cluster: Cluster = self  # type: ignore[assignment]
        return [body["status"]["phase"] for body in follow(cluster, "job", limits=limits, clock=lambda: self.now, events=self.events())]


@pytest.mark.conforms("N-207")
def test_time_in_the_queue_does_not_count_as_time_at_work() -> None:
    watched = Watched((0, job("Pending")), (90, job("Running", running=1)), (99, job("Completed", scored=1)), (99, job("Completed")))
    assert watched.phases(Limits(pending=100, running=10)) == ["Pending", "Running", "Completed"]


@pytest.mark.conforms("N-207")
@pytest.mark.parametrize(("limits", "kind"), [(Limits(pending=80, running=999), "pending"), (Limits(pending=999, running=80), "running")])
def test_each_limit_ends_the_waiting_and_says_which(limits: Limits, kind: str) -> None:
    watched = Watched((0, job("Pending")), (90, job("Running", running=1)), (180, job("Running", running=1)), (181, job("Completed")))
    with pytest.raises(WaitTimeout, match=f"of {kind} time; it goes on"):
        watched.phases(limits)
