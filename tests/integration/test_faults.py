"""Whole jobs while the API server, the object store or the clock misbehaves: every trial ends once, and nothing is left."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from seatrial.errors import DiskFull, SeatrialError
from tests.integration.fakeapi import Answer, Fault, Request
from tests.integration.harness import World, operator, wait_until, world

TRIALS = 6
SLOW_SECONDS = 0.1


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """After failures in a row; they grow to a minute and half a minute."""
    monkeypatch.setattr("seatrial.effects.queue.LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr("seatrial.effects.informer.LONGEST_PAUSE_SECONDS", 0.2)


def every_third(code: int, *, most: int) -> Fault:
    """Answer so many requests with ``code``: of those that our work needs, every third; Leases and Events are not part of it."""
    numbers, sent = itertools.count(1), itertools.count()

    def fault(asked: Request) -> Answer | None:
        if "/leases" in asked.path or "/events" in asked.path or next(numbers) % 3:
            return None
        return Answer(code, "", "not now", {"Retry-After": "0"}) if next(sent) < most else None

    return fault


def answer(code: int) -> Callable[[World], None]:
    return lambda made: made.api.faults.append(every_third(code, most=6))


def lose_answers(made: World) -> None:
    lost = every_third(500, most=6)
    made.api.lost_answers.append(lambda asked: lost(asked) if asked.method != "GET" else None)


def on_each_pod(made: World, disturb: Callable[[], None]) -> None:
    """Disturb whenever a Pod was created."""
    made.api.listeners.append(lambda event, kind, body: disturb() if (event, kind.plural) == ("ADDED", "pods") else None)


FAULTS: dict[str, Callable[[World], None]] = {
    "watch-cut": lambda made: on_each_pod(made, made.api.cut_watches),
    "watch-410": lambda made: on_each_pod(made, lambda: made.api.send_error(410)),
    "watch-500": lambda made: on_each_pod(made, lambda: made.api.send_error(500)),
    "429": answer(429),
    "500": answer(500),
    "503": answer(503),
    "lost-answers": lose_answers,
}


@pytest.mark.conforms("H-147", "H-151")
@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_of_the_api_server_lose_no_trial_and_run_none_twice(fault: str) -> None:
    async with world() as made, operator(made):
        made.suite(2)
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets")[0], lambda seen: seen == "True")
        FAULTS[fault](made)
        made.submit(attempts=TRIALS // 2, concurrency=3)
        await check(made)


async def test_a_slow_store_makes_the_job_slow_and_nothing_else() -> None:
    async with world() as made, operator(made):

        def slow(operation: str, key: str) -> SeatrialError | None:
            time.sleep(SLOW_SECONDS)  # in a thread of the store's
            return None

        made.store.fault = slow
        made.suite(2)
        made.submit(attempts=TRIALS // 2, concurrency=3)
        await check(made)


async def test_a_store_without_room_holds_the_job_until_there_is_some() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit(attempts=TRIALS, concurrency=2)
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 2)
        made.store.fault = lambda operation, key: DiskFull("no room") if operation.startswith("put") else None
        for pod in made.pods():
            made.finish(pod["metadata"]["name"], rewards={"reward": 1.0})
        await wait_until(lambda: made.condition("Degraded"), lambda seen: seen == ("True", "ObjectStoreUnavailable"))
        degraded = next(item for item in made.status()["conditions"] if item["type"] == "Degraded")
        assert degraded["message"].startswith("no room")
        assert len(made.pods()) == 2
        made.fate = lambda pod: "scored"
        made.store.fault = lambda operation, key: None
        await check(made)


class JumpingClock:
    """A wall clock that goes wrong and is set right; the monotonic one is not concerned."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.mark.parametrize("hours", [-26, 26], ids=["back", "ahead"])
async def test_a_clock_that_jumps_ends_no_trial_that_runs_and_starts_none_twice(hours: int) -> None:
    clock = JumpingClock()
    async with world() as made, operator(made, clock=clock):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit(attempts=TRIALS, concurrency=2)
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 2)
        clock.offset = timedelta(hours=hours)
        made.edit("job", concurrency=3)
        await wait_until(lambda: made.status()["trials"]["running"], lambda running: running == 3)
        assert made.status()["trials"]["retried"] == 0
        clock.offset = timedelta()
        made.fate = lambda pod: "scored"
        for pod in made.pods():
            made.finish(pod["metadata"]["name"], rewards={"reward": 1.0})
        await check(made)


async def check(made: World) -> dict[str, Any]:
    """The job ends with each trial scored once; the answer is its status."""
    seen: dict[str, Any] = await made.ended(seconds=60)
    assert (seen["phase"], seen["trials"]["scored"], seen["trials"]["retried"]) == ("Completed", TRIALS, 0)
    assert len(made.runs) == len(set(made.runs)) == TRIALS
    assert made.condition("Degraded") == ("False", "Healthy")
    return seen
