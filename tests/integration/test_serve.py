"""The whole process with Kopf, Lease and signals, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from seatrial.handlers.serve import TaskEnded, serve
from tests.integration.fakeapi import DISCOVERY
from tests.integration.harness import World, wait_until, world


@contextlib.asynccontextmanager
async def process(made: World, identity: str, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
    """One operator process; SIGTERM ends all of them, because they share this one."""
    given = replace(
        made.settings,
        namespaces=("evals",),
        identity=identity,
        listen_host="127.0.0.1",
        lease_duration_seconds=1.0,
        lease_retry_seconds=0.05,
        renew_deadline_seconds=0.8,
        **{"listen_port": 0, **settings},
    )
    task = asyncio.create_task(serve(settings=given, access=made.api.access, store=made.store))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def holder(made: World) -> str:
    found = made.api.all("leases")
    return str(next(iter(found.values()))["spec"]["holderIdentity"]) if found else ""


async def test_kopf_brings_the_events_and_writes_nothing_and_sigterm_ends_in_order() -> None:
    async with world() as made, process(made, "first") as running:
        made.suite(2)
        made.submit()
        seen = await made.ended(seconds=30)
        assert (seen["phase"], seen["trials"]["scored"]) == ("Completed", 2)
        for plural in ("tasks", "tasksets", "evaljobs"):
            for body in made.api.all(plural).values():
                assert not {"annotations", "finalizers"} & set(body["metadata"])
        patches = [request.path for request in made.api.writes() if request.method == "PATCH" and "/events" not in request.path]
        assert patches
        assert all(path.endswith("/status") for path in patches)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 20)
        assert holder(made) == ""


async def test_a_job_that_is_deleted_is_forgotten_and_one_that_is_changed_obeys() -> None:
    async with world() as made, process(made, "first"):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 1, seconds=30)
        made.edit("job", suspend=True)
        await wait_until(lambda: made.status()["phase"], lambda phase: phase == "Suspended")
        made.api.remove("evaljobs", "job")
        made.fate = lambda pod: "scored"
        made.submit()
        assert (await made.ended(seconds=20))["phase"] == "Completed"


async def test_health_and_metrics_on_leader_and_standby() -> None:
    async with world() as made, process(made, "first", listen_port=18611), aiohttp.ClientSession() as http:
        await wait_until(lambda: holder(made), lambda name: name == "first")
        async with process(made, "second", listen_port=18612):

            async def answer(port: int, path: str) -> tuple[int, str]:
                async with http.get(f"http://127.0.0.1:{port}{path}") as response:
                    return response.status, await response.text()

            async with asyncio.timeout(20):
                status = 0
                while status != 200:
                    status, _ = await answer(18611, "/readyz")
            assert await answer(18611, "/healthz") == (200, "ok\n")
            assert await answer(18612, "/healthz") == (200, "ok\n")
            status, text = await answer(18612, "/readyz")
            assert (status, text.splitlines()[0]) == (503, "leader: another replica leads")
            _, metrics = await answer(18611, "/metrics")
            assert "seatrial_leader 1.0" in metrics
            assert 'seatrial_api_requests_total{code="201",resource="leases",verb="POST"} 1.0' in metrics


async def test_without_the_crds_the_process_ends_with_the_next_step() -> None:
    async with world() as made:
        made.api.faults.append(lambda asked: _missing(asked.path))
        async with process(made, "first") as running:
            with pytest.raises(TaskEnded, match="apply crds/"):
                await asyncio.wait_for(running, 20)


def _missing(path: str) -> Any:
    from tests.integration.fakeapi import Answer

    return (
        Answer(404, "NotFound", "the server could not find the requested resource")
        if "seatrial.dev" in path and path not in DISCOVERY
        else None
    )
