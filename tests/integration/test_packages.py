"""Tasks and Tasksets over time: what heals, what moves, and what stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seatrial.api.names import ANNOTATION_AGAIN
from seatrial.effects.kube import Kube
from tests.integration.harness import GROUP, World, operator, wait_until, world

ETCD_BYTES = 1_572_864
"""What one object of the API may hold."""


async def verified(made: World, name: str, wanted: tuple[str, str] = ("True", "ArchiveVerified")) -> dict[str, Any]:
    await wait_until(lambda: made.condition("Verified", name, "tasks"), lambda seen: seen == wanted)
    return dict(made.api.get("tasks", name)["status"])


def edit(made: World, plural: str, name: str, **spec: Any) -> None:
    body = made.api.get(plural, name)
    made.api.put(GROUP, plural, {**body, "spec": {**body["spec"], **spec}})


async def generation_seen(made: World, plural: str, name: str) -> None:
    body = made.api.get(plural, name)
    await wait_until(
        lambda: made.api.get(plural, name)["status"].get("observedGeneration"), lambda seen: seen == body["metadata"]["generation"]
    )


# --- what the store can heal --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_an_archive_that_comes_back_is_verified_by_itself(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr("seatrial.handlers.tasks.RETRY_SECONDS", 0.05)
    async with world() as made, operator(made):
        made.publish("task")
        await verified(made, "task")
        made.api.remove("tasks", "task")
        key = next(key for key in made.store.objects if key.startswith("filesets/"))
        good = made.store.objects.pop(key)
        if damage == "corrupt":
            made.store.objects[key] = b"other bytes"
        made.api.put(GROUP, "tasks", {**_body("task", key), "spec": {"source": _source(key)}})
        reason = {"missing": "TaskArchiveMissing", "corrupt": "TaskArchiveCorrupt"}[damage]
        status = await verified(made, "task", ("False", reason))
        assert status["observedGeneration"] == 1
        made.store.objects[key] = good
        assert (await verified(made, "task"))["revision"] == 1


async def test_an_archive_that_stays_bad_is_read_seldom_and_written_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made, operator(made) as subject:
        made.publish("task")
        key = next(iter(made.store.objects))
        made.store.objects[key] = b"other bytes"
        await verified(made, "task", ("False", "TaskArchiveCorrupt"))
        await wait_until(lambda: subject.queue.depth, lambda depth: depth == 0)
        writes, reads = len(made.api.writes("tasks")), made.store.count("get", key)
        made.publish("other")
        await verified(made, "other")
        assert len(made.api.writes("tasks")) == writes + 1
        # The write of our own condition is an event, and an event is one more look.
        assert made.store.count("get", key) <= reads + 1 <= 3


async def test_publishing_again_has_the_archive_looked_at_at_once() -> None:
    async with world() as made, operator(made):
        made.publish("task")
        key = next(iter(made.store.objects))
        good = made.store.objects.pop(key)
        await verified(made, "task", ("False", "TaskArchiveMissing"))
        made.store.objects[key] = good
        body = made.api.get("tasks", "task")
        body["metadata"]["annotations"] = {ANNOTATION_AGAIN: "1"}
        made.api.put(GROUP, "tasks", body)
        assert (await verified(made, "task"))["revision"] == 1


async def test_a_task_that_is_invalid_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.handlers.tasks.RETRY_SECONDS", 0.01)
    async with world() as made, operator(made):
        made.publish("task", toml="[agent]\ntimeout_sec = 'never'\n")
        await verified(made, "task", ("False", "InvalidTask"))
        reads = made.store.count("get", "filesets/")
        made.publish("other")
        await verified(made, "other")
        assert made.store.count("get", "filesets/") == reads + 1


async def test_a_manifest_that_comes_back_is_pinned_by_itself() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets")[0], lambda status: status == "True")
        manifest = made.api.get("tasksets", "suite")["status"]["manifest"]
        good = made.store.objects.pop(manifest["ref"])
        ref = manifest["ref"].removeprefix("filesets/").replace("/tasksets/", "/suite#", 1).replace("evals/suite#", "evals/tasksets#", 1)
        made.taskset("copy")
        edit_spec = {"manifest": {"ref": ref, "sha256": manifest["sha256"]}}
        body = made.api.get("tasksets", "copy")
        made.api.put(GROUP, "tasksets", {**body, "spec": edit_spec})
        await wait_until(lambda: made.condition("Pinned", "copy", "tasksets"), lambda seen: seen == ("False", "ManifestInvalid"))
        made.store.objects[manifest["ref"]] = good
        await wait_until(lambda: made.condition("Pinned", "copy", "tasksets"), lambda seen: seen == ("True", "MembersPinned"))


# --- tags ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-200", "N-201")
async def test_a_tag_moves_back_cuts_no_revision_and_is_what_a_new_set_pins() -> None:
    async with world() as made, operator(made):
        made.publish("task")
        first = (await verified(made, "task"))["digest"]
        edit(made, "tasks", "task", metadata={"changed": True}, tags=["stable"])
        await wait_until(lambda: made.api.get("tasks", "task")["status"]["tags"], lambda tags: tags == {"latest": 2, "stable": 2})
        edit(made, "tasks", "task", tags=[], tagPointers={"stable": first})
        await wait_until(lambda: made.api.get("tasks", "task")["status"]["tags"], lambda tags: tags == {"latest": 2, "stable": 1})
        made.taskset("suite", "task#stable")
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets")[0], lambda status: status == "True")
        assert made.api.get("tasksets", "suite")["status"]["sample"] == [f"evals/task#{first}"]
        assert made.api.get("tasks", "task")["status"]["revision"] == 2


async def test_a_change_that_overtakes_the_answer_to_the_operators_own_write_is_not_lost() -> None:
    async with world() as made:
        overtaken: list[str] = []

        def slow_answers(kube: Kube) -> None:
            request = kube.request

            async def overtake(method: str, path: str, **options: Any) -> Any:
                answer = await request(method, path, **options)
                if method == "PATCH" and path.endswith("/tasks/task/status") and not overtaken:
                    overtaken.append(path)
                    edit(made, "tasks", "task", tags=["stable"])
                return answer

            kube.request = overtake  # type: ignore[method-assign]

        async with operator(made, wrap=slow_answers):
            made.publish("task")
            await wait_until(
                lambda: (made.api.get("tasks", "task").get("status") or {}).get("tags"), lambda tags: tags == {"latest": 1, "stable": 1}
            )
        assert len(overtaken) == 1


# --- jobs ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-60", "N-66", "N-72")
async def test_a_bare_reference_is_resolved_anew_by_each_job_and_a_digest_stays() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets")[0], lambda status: status == "True")
        old = made.api.get("tasksets", "suite")["status"]["digest"]
        made.submit("first")
        assert (await made.ended("first"))["plan"]["tasks"] == 2
        made.taskset("suite", "task-0")
        await generation_seen(made, "tasksets", "suite")
        made.submit("second")
        made.submit("fixed", taskset=f"suite#{old}")
        made.submit("listed", taskset=None, tasks=["task-1", "task-0"])
        counts = {name: (await made.ended(name))["plan"]["tasks"] for name in ("second", "fixed", "listed")}
        assert counts == {"second": 1, "fixed": 2, "listed": 2}


@pytest.mark.conforms("N-67")
async def test_ids_that_differ_only_in_case_are_refused_before_any_trial() -> None:
    async with world() as made, operator(made):
        made.publish("task")
        made.publish("TASK")
        upper = made.api.get("tasks", "TASK")
        made.api.remove("tasks", "TASK")
        meta = {"name": "second", "namespace": "evals", "creationTimestamp": upper["metadata"]["creationTimestamp"]}
        made.api.put(GROUP, "tasks", {**upper, "metadata": meta, "status": {}})
        await verified(made, "second")
        made.taskset("suite", "task", "second")
        made.submit()
        assert (await made.ended())["phase"] == "Failed"
        assert (made.condition("PlanReady"), made.runs) == (("False", "DuplicateTaskId"), [])


@pytest.mark.conforms("N-73")
async def test_a_plan_larger_than_an_object_of_the_api_is_accepted_and_the_status_stays_small() -> None:
    async with world() as made, operator(made):
        made.suite(30)
        made.fate = lambda pod: "silent"
        made.submit(attempts=1_000, concurrency=1)
        await wait_until(lambda: made.condition("PlanReady"), lambda seen: seen == ("True", "Planned"), seconds=60)
        (plan,) = [data for key, data in made.store.objects.items() if key.endswith("plan.json")]
        assert (made.status()["plan"]["trials"], len(plan) > ETCD_BYTES) == (30_000, True)
        assert len(json.dumps(made.job())) < 8_000


def _source(key: str) -> dict[str, str]:
    namespace, fileset, path = key.removeprefix("filesets/").split("/", 2)
    return {"ref": f"{namespace}/{fileset}#{path}", "sha256": path.split("/")[-2]}


def _body(name: str, key: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "evals", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "seatrial.dev/v1alpha1", "kind": "Task", "metadata": metadata}
