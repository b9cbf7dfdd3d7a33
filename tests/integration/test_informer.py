"""The Pod informer against an API that loses history, connections and patience."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from seatrial.effects.informer import PodInformer
from seatrial.effects.kube import Kube
from tests.builders import UID, make_pod
from tests.integration.fakeapi import FakeApi, status
from tests.integration.harness import wait_until


class Subject:
    """An informer at work, and what it told."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.woken: list[str] = []
        self.differences: list[int] = []
        self.informer: PodInformer

    def add(self, name: str) -> None:
        self.api.put("/api/v1", "pods", make_pod().named(name).obj())

    def names(self) -> list[str]:
        return sorted(self.informer.pods(UID))


@contextlib.asynccontextmanager
async def informer(*names: str, resync_seconds: float = 600.0, page_size: int | None = None) -> AsyncIterator[Subject]:
    async with FakeApi().running() as api:
        api.page_size = page_size
        subject = Subject(api)
        for name in names:
            subject.add(name)
        async with Kube(api.access) as kube:
            subject.informer = PodInformer(
                kube, namespace=None, changed=subject.woken.append, resync_seconds=resync_seconds, relisted=subject.differences.append
            )
            task = asyncio.create_task(subject.informer.run())
            await subject.informer.synced.wait()
            await wait_until(lambda: api.watches)
            try:
                yield subject
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def test_all_pages_of_a_list_are_read() -> None:
    async with informer(*[f"pod-{number}" for number in range(7)], page_size=3) as subject:
        assert subject.names() == [f"pod-{number}" for number in range(7)]
        assert subject.woken == [UID]


async def test_changes_come_by_watch_and_wake_their_job() -> None:
    async with informer("one") as subject:
        subject.add("two")
        await wait_until(subject.names, lambda names: names == ["one", "two"])
        subject.api.remove("pods", "one")
        await wait_until(subject.names, lambda names: names == ["two"])
        assert subject.woken == [UID] * 3
        assert list(subject.informer.gone(UID)) == ["one"]


async def test_a_change_that_the_view_does_not_have_wakes_nobody() -> None:
    async with informer("one") as subject:
        subject.api.change("pods", "one", lambda pod: pod["metadata"].setdefault("annotations", {}).update(x="y"))
        subject.add("two")
        await wait_until(subject.names, lambda names: len(names) == 2)
        assert subject.woken == [UID] * 2


async def test_a_cut_stream_goes_on_without_another_list() -> None:
    async with informer("one") as subject:
        subject.api.cut_watches()
        subject.add("two")
        await wait_until(subject.names, lambda names: names == ["one", "two"])
        assert subject.differences == []


async def test_pods_that_vanish_while_history_is_lost_are_noticed() -> None:
    async with informer("stays", "goes") as subject:
        subject.api.remove("pods", "goes", silent=True)
        subject.api.forget_history()
        subject.api.cut_watches()
        await wait_until(subject.names, lambda names: names == ["stays"])
        assert list(subject.informer.gone(UID)) == ["goes"]
        assert subject.differences == [1]


async def test_a_410_in_the_stream_lists_again() -> None:
    async with informer("stays", "goes") as subject:
        subject.api.remove("pods", "goes", silent=True)
        subject.api.send_error(410)
        await wait_until(subject.names, lambda names: names == ["stays"])


async def test_another_error_in_the_stream_goes_on_from_the_last_version() -> None:
    async with informer("one") as subject:
        subject.api.send_error(500, "etcd is busy")
        subject.add("two")
        await wait_until(subject.names, lambda names: names == ["one", "two"])
        assert subject.differences == []


async def test_a_410_on_a_page_starts_the_list_over() -> None:
    async with FakeApi().running() as api:
        api.page_size = 1
        api.faults.append(status(410, "Expired", times=1, method="GET", path="/pods"))
        for name in ("a", "b"):
            api.put("/api/v1", "pods", make_pod().named(name).obj())
        async with Kube(api.access) as kube:
            subject = PodInformer(kube, namespace=None, changed=lambda job: None)
            task = asyncio.create_task(subject.run())
            await asyncio.wait_for(subject.synced.wait(), 10)
            assert sorted(subject.pods(UID)) == ["a", "b"]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_old_list_is_repeated_and_differences_are_counted() -> None:
    async with informer("one", resync_seconds=0.0) as subject:
        subject.api.remove("pods", "one", silent=True)
        subject.api.cut_watches()
        await wait_until(subject.names, lambda names: names == [])
        assert 1 in subject.differences


async def test_a_server_that_is_away_is_waited_for() -> None:
    async with informer("one") as subject:
        subject.api.faults.append(status(503, times=3, method="GET", path="/pods"))
        subject.api.cut_watches()
        subject.add("two")
        await wait_until(subject.names, lambda names: names == ["one", "two"])


async def test_the_view_in_a_deletion_is_the_last_one() -> None:
    async with informer() as subject:
        body = make_pod().named("one").obj()
        subject.api.put("/api/v1", "pods", body)
        await wait_until(subject.names)
        subject.api.put("/api/v1", "pods", make_pod().named("one").verdict({"reward": 1.0}).obj())
        subject.api.remove("pods", "one")
        gone = await wait_until(lambda: subject.informer.gone(UID))
        assert gone["one"].container("verifier") is not None
        subject.informer.forget(UID, ["one"])
        assert subject.informer.gone(UID) == {}
