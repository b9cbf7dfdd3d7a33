"""The operator dies between any two of its writes, and another one goes on: no trial is lost, none is run twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from seatrial.core.observe import parse_pod
from seatrial.effects.kube import Kube
from seatrial.errors import SeatrialError, Unavailable
from tests.integration.harness import World, operator, wait_until, world


class Death:
    """Counts the writes of one operator, to the API and to the store; after ``after`` of them nothing of it gets through any more."""

    def __init__(self, made: World, after: int) -> None:
        self.after, self.writes, self.dead = after, 0, asyncio.Event()
        made.store.fault = self._store

    def wrap(self, kube: Kube) -> None:
        """Between the operator and the API."""
        real = kube.request

        async def request(method: str, path: str, **options: Any) -> Mapping[str, Any]:
            if "/events" in path and self.dead.is_set():
                raise Unavailable("dead")
            if method != "GET" and "/events" not in path:
                await self._count()
            elif self.dead.is_set():
                await asyncio.Event().wait()
            return await real(method, path, **options)

        kube.request = request  # type: ignore[method-assign,assignment]

    async def _count(self) -> None:
        if self.writes >= self.after:
            self.dead.set()
            await asyncio.Event().wait()
        self.writes += 1

    def _store(self, operation: str, key: str) -> SeatrialError | None:
        # A thread: it cannot wait for the test, so a dead operator's call fails, and its loop cannot tell anybody.
        if operation.startswith("put"):
            if self.writes >= self.after:
                self.dead.set()
            self.writes += 1
        return Unavailable("dead") if self.dead.is_set() else None


@pytest.mark.conforms("H-151", "H-147")
@pytest.mark.parametrize("after", range(32))
async def test_killed_after_any_write_the_job_ends_as_if_nothing_had_happened(after: int) -> None:
    async with world() as made:
        made.suite(3)
        made.submit(concurrency=2)
        death = Death(made, after)
        async with operator(made, wrap=death.wrap):
            done = asyncio.ensure_future(wait_until(lambda: made.condition("Finished")[0], lambda seen: seen == "True", seconds=20))
            dead = asyncio.ensure_future(death.dead.wait())
            await asyncio.wait([done, dead], return_when=asyncio.FIRST_COMPLETED)
            for future in (done, dead):
                future.cancel()
            await asyncio.gather(done, dead, return_exceptions=True)
        made.store.fault = lambda operation, key: None
        async with operator(made):
            seen = await made.ended(seconds=20)
        assert (seen["phase"], seen["trials"]["scored"], seen["trials"]["retried"], seen["mean"]) == ("Completed", 3, 0, "1.000")
        assert len(made.runs) == len(set(made.runs)) == 3
        assert made.pods() == []


@pytest.mark.conforms("H-151")
async def test_a_pod_that_ended_and_vanished_while_nobody_looked_still_counts() -> None:
    async with world() as made:
        made.suite(2)
        made.fate = lambda pod: "silent"
        made.submit()
        async with operator(made):
            await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 2)
        for pod in made.pods():
            made.save_result(pod, {"reward": 0.5})
            made.api.remove("pods", pod["metadata"]["name"], silent=True)
        calls = len(made.store.calls)
        async with operator(made):
            seen = await made.ended()
        assert (seen["trials"]["scored"], seen["mean"], len(made.runs)) == (2, "0.500", 2)
        # A restart reads the plan, the shards of rows, one listing of the trials, and the results that no row has.
        since = [call for call in made.store.calls[calls:] if call[0] in ("get", "list")]
        assert len([key for operation, key in since if operation == "list" and key.endswith("/trials/")]) == 1
        assert len([key for operation, key in since if operation == "get" and key.endswith("result.json")]) == 2


@pytest.mark.conforms("H-151")
async def test_a_result_that_came_after_the_store_was_asked_in_vain_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.handlers.reconcile.EXPECTATION_SECONDS", 0.2)
    lost: list[str] = []

    def lose_the_first_pod(kube: Kube) -> None:
        request = kube.request

        async def lose(method: str, path: str, **options: Any) -> Any:
            if method == "POST" and path.endswith("/pods") and not lost:
                lost.append(path)
                meta = {**options["body"]["metadata"], "uid": "lost", "creationTimestamp": "2026-01-01T00:00:00Z"}
                return {**options["body"], "metadata": meta}
            return await request(method, path, **options)

        kube.request = lose  # type: ignore[method-assign]

    async with world() as made, operator(made, wrap=lose_the_first_pod):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        await wait_until(lambda: [pod for pod in made.pods() if parse_pod(pod).containers])
        assert made.store.count("get", "result.json") == 1
        (pod,) = made.pods()
        made.save_result(pod, {"reward": 1.0})
        made.api.remove("pods", pod["metadata"]["name"])
        seen = await made.ended()
        assert (seen["trials"]["scored"], seen["trials"]["retried"], len(made.runs)) == (1, 0, 1)


async def test_last_views_of_pods_are_forgotten_with_their_rows() -> None:
    async with world() as made, operator(made) as subject:
        made.suite(1)
        made.fate = lambda pod: "silent" if (parse_pod(pod).trial, "0") in made.runs[9:] else "scored"
        made.submit(attempts=10, concurrency=2)
        await wait_until(lambda: made.status().get("trials", {}).get("scored"), lambda scored: scored == 9)
        uid = made.job()["metadata"]["uid"]
        await wait_until(lambda: (len(made.pods()), len(subject.informers.gone(uid))), lambda seen: seen == (1, 0))


async def test_a_result_without_the_jobs_signature_is_no_score() -> None:
    async with world() as made:
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        async with operator(made):
            await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 1)
        (pod,) = made.pods()
        made.save_result(pod, {"reward": 1.0})
        (key,) = [key for key in made.store.objects if key.endswith("result.json")]
        made.store.objects[key] = made.store.objects[key].replace(b'"reward":1.0', b'"reward":9.0')
        made.api.remove("pods", pod["metadata"]["name"], silent=True)
        async with operator(made):
            seen = await made.ended()
        assert (seen["trials"]["scored"], seen["trials"]["errored"]) == (0, 1)
        assert [(item["type"], item["cause"]) for item in seen["errors"]] == [("PodDeleted", "infrastructure")]
        assert "not signed" in seen["errors"][0]["message"]


async def test_a_restart_with_many_finished_trials_reads_no_result() -> None:
    async with world() as made:
        made.suite(1)
        made.fate = lambda pod: "silent" if parse_pod(pod).job_uid and len(made.runs) > 40 else "scored"
        made.submit(attempts=42, concurrency=10)
        async with operator(made):
            await wait_until(lambda: made.status().get("trials", {}).get("scored", 0), lambda scored: scored >= 30, seconds=20)
        calls = len(made.store.calls)
        made.fate = lambda pod: "scored"
        for pod in made.pods():
            if not parse_pod(pod).is_terminal:
                made.finish(pod["metadata"]["name"], rewards={"reward": 1.0})
        async with operator(made):
            seen = await made.ended(seconds=20)
        assert (seen["trials"]["scored"], seen["trials"]["retried"]) == (42, 0)
        assert len(made.runs) == len(set(made.runs)) == 42
        assert made.store.count("get", "result.json") == 0
        assert calls < len(made.store.calls)


async def test_two_operators_at_once_run_nothing_twice() -> None:
    async with world() as made:
        made.suite(6)
        made.submit(concurrency=3)
        async with operator(made), operator(made):
            seen = await made.ended(seconds=30)
        assert (seen["phase"], seen["trials"]["scored"]) == ("Completed", 6)
        assert len(made.runs) == len(set(made.runs)) == 6


async def test_a_plan_that_was_changed_stops_the_job() -> None:
    async with world() as made:
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        async with operator(made):
            await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 1)
        key = made.status()["plan"]["key"]
        made.store.objects[key] = made.store.objects[key].replace(b"task-0", b"task-9")
        async with operator(made):
            seen = await made.ended()
        assert (seen["phase"], made.condition("Failed")) == ("Failed", ("True", "PlanCorrupt"))
