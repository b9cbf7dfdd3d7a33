"""Leader election: takeover, loss, release; time is given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from seatrial.effects.kube import Kube, core_path
from seatrial.effects.lease import Elector, LeaseSettings
from seatrial.errors import Unavailable
from tests.integration.fakeapi import FakeApi, status
from tests.integration.harness import wait_until

SETTINGS = LeaseSettings("system", "operator", "first", duration_seconds=1.0, renew_deadline_seconds=0.5, retry_seconds=0.05)


class Replica:
    """One process."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self.lost = False
        self.elector = Elector(kube, replace(SETTINGS, identity=identity), lost=self._lose)
        self.task: asyncio.Task[None] | None = None

    def _lose(self) -> None:
        self.lost = True

    async def lead(self, seconds: float = 10) -> None:
        await asyncio.wait_for(self.elector.acquire(), seconds)
        self.task = asyncio.create_task(self.elector.run())

    async def freeze(self) -> None:
        """As after SIGKILL or SIGSTOP: no renewal, no goodbye."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[FakeApi, Replica, Replica]]:
    async with FakeApi().running() as api, Kube(api.access) as kube:
        replicas = Replica(kube, "first"), Replica(kube, "second")
        try:
            yield api, *replicas
        finally:
            for replica in replicas:
                if replica.task is not None:
                    await replica.freeze()


def lease(api: FakeApi) -> dict[str, Any]:
    spec: dict[str, Any] = api.get("leases", "operator", "system")["spec"]
    return spec


async def test_the_first_makes_the_lease_and_the_second_waits_while_it_is_renewed() -> None:
    async with two() as (api, first, second):
        await first.lead()
        waiting = asyncio.create_task(second.lead())
        renewed = lease(api)["renewTime"]
        await wait_until(lambda: lease(api)["renewTime"], lambda time: time != renewed)
        done, _ = await asyncio.wait([waiting], timeout=1.5)
        assert not done
        assert (lease(api)["holderIdentity"], lease(api)["leaseTransitions"], second.elector.is_leader) == ("first", 0, False)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_silent_leader_is_replaced_after_its_lease_and_notices_when_it_wakes() -> None:
    async with two() as (api, first, second):
        await first.lead()
        await first.freeze()
        await second.lead()
        assert (lease(api)["holderIdentity"], lease(api)["leaseTransitions"]) == ("second", 1)
        first.task = asyncio.create_task(first.elector.run())
        await wait_until(lambda: first.lost)
        assert not first.elector.is_leader


async def test_a_leader_without_the_api_gives_up_before_anybody_else_may_lead() -> None:
    async with two() as (api, first, _):
        await first.lead()
        api.faults.append(status(503, path="/leases"))
        loop = asyncio.get_running_loop()
        started = loop.time()
        await wait_until(lambda: first.lost)
        assert loop.time() - started < SETTINGS.duration_seconds


async def test_one_failed_renewal_is_not_a_loss() -> None:
    async with two() as (api, first, _):
        await first.lead()
        api.faults.append(status(409, "Conflict", times=2, method="PUT", path="/leases"))
        before = lease(api)["renewTime"]
        await wait_until(lambda: lease(api)["renewTime"], lambda time: time != before)
        assert not first.lost


async def test_a_released_lease_is_taken_at_once() -> None:
    async with two() as (api, first, second):
        await first.lead()
        await first.freeze()
        await first.elector.release()
        assert (lease(api)["holderIdentity"], lease(api)["leaseDurationSeconds"]) == ("", 1)
        await second.lead(seconds=0.8)
        assert lease(api)["holderIdentity"] == "second"


async def test_a_lease_of_somebody_else_is_not_released() -> None:
    async with two() as (api, first, second):
        await second.lead()
        await first.elector.release()
        assert lease(api)["holderIdentity"] == "second"


async def test_a_leader_that_was_paused_longer_than_its_lease_writes_nothing_when_it_wakes() -> None:
    now = 100.0
    async with FakeApi().running() as api, Kube(api.access) as kube:
        elector = Elector(kube, SETTINGS, lost=lambda: None, clock=lambda: now)
        kube.fence = elector.holds
        path = core_path("pods", namespace="evals")

        async def create(name: str) -> None:
            meta = {"name": name, "namespace": "evals"}
            await kube.request("POST", path, body={"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}})

        with pytest.raises(Unavailable, match="Lease"):
            await create("before")
        await elector.acquire()
        await create("while-it-leads")
        now += SETTINGS.renew_deadline_seconds
        with pytest.raises(Unavailable, match="Lease"):
            await create("after")
        assert [name for _, name in api.all("pods")] == ["while-it-leads"]
        assert await kube.get(path)
