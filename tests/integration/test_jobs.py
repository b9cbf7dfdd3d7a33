"""Whole jobs through the operator: verdicts, endings, and what users see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seatrial.contract import ErrorInfo
from seatrial.core.naming import job_prefix
from seatrial.errors import Unavailable
from seatrial.handlers import reconcile
from tests.integration.fakeapi import Answer, Request, status
from tests.integration.harness import GROUP, World, operator, tar_of, wait_until, world


def rows_of(made: World, name: str = "job") -> list[dict[str, Any]]:
    prefix = job_prefix("evals", name, made.job(name)["metadata"]["uid"])
    return [json.loads(line) for line in made.store.objects[f"{prefix}trials.jsonl"].splitlines()]


async def test_from_archives_to_scores() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.fate = lambda pod: "errored" if "task-1" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"
        made.submit(attempts=2, concurrency=2)
        seen = await made.ended()
        assert (seen["phase"], seen["progress"], seen["mean"]) == ("Completed", "6/6", "1.000")
        assert seen["trials"] == {
            "total": 6,
            "pending": 0,
            "running": 0,
            "scored": 4,
            "errored": 2,
            "cancelled": 0,
            "retried": 0,
            "cached": 0,
        }
        assert seen["scores"][0] == {"name": "reward.mean", "value": "1", "count": 4, "missing": 2}
        assert [(item["type"], item["cause"], item["count"]) for item in seen["errors"]] == [("RewardFileNotFoundError", "verifier", 2)]
        assert made.condition("Complete") == ("True", "SomeErrored")
        assert len(made.runs) == len(set(made.runs)) == 6
        assert [(row["task"], row["attempt"], row["outcome"]) for row in rows_of(made)] == [
            (f"bench/task-{task}", attempt, "errored" if task == 1 else "scored") for attempt in (1, 2) for task in range(3)
        ]
        prefix = job_prefix("evals", "job", made.job()["metadata"]["uid"])
        names = {key.removeprefix(prefix).split("/")[0] for key in made.store.objects if key.startswith(prefix)}
        tables = {"metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "summary.json", "report.html"}
        assert names == {"plan.json", "trials", "rows"} | tables
        assert made.condition("Verified", "task-0", "tasks") == ("True", "ArchiveVerified")
        assert made.condition("Pinned", "suite", "tasksets") == ("True", "MembersPinned")


async def test_a_trial_costs_one_create_one_delete_and_a_share_of_the_status() -> None:
    async with world(status_interval_seconds=0.5) as made, operator(made):
        made.suite(1)
        made.submit(attempts=30, concurrency=8)
        await made.ended()
        pods = [request.method for request in made.api.writes("pods")]
        assert (pods.count("POST"), pods.count("DELETE"), len(pods)) == (30, 30, 60)
        assert sum(request.method == "GET" and "/pods/" in request.path for request in made.api.requests) == 0
        assert len(made.api.writes("evaljobs")) <= 8
        assert made.store.count("get", "/trials/") == 0


async def test_nothing_is_written_while_nothing_happens() -> None:
    async with world() as made, operator(made) as subject:
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 1)
        await wait_until(lambda: subject.queue.depth, lambda depth: depth == 0)
        before = len(made.api.writes("evaljobs"))
        for key, _ in subject.cache.all("EvalJob"):
            for _ in range(20):
                subject.queue.add(key)
                await wait_until(lambda: subject.queue.depth, lambda depth: depth == 0)
        assert len(made.api.writes("evaljobs")) == before


@pytest.mark.conforms("N-71", "H-84")
async def test_trials_that_cannot_be_built_fail_alone() -> None:
    async with world() as made, operator(made):
        made.publish("good")
        made.publish("no-image", image=None)
        made.publish("needs", toml='[verifier.env]\nTOKEN = "${TOKEN_OF_NOBODY}"\n')
        made.publish("sidecar", toml='[[verifier.collect]]\ncommand = "true"\nservice = "database"\n')
        made.taskset("suite", "good", "no-image", "needs", "sidecar")
        made.submit()
        seen = await made.ended()
        assert seen["trials"]["scored"] == 1
        assert sorted((item["type"], item["cause"], item["count"]) for item in seen["errors"]) == [
            ("UnsupportedTask", "user", 2),
            ("ValueError", "user", 1),
        ]
        assert len(made.runs) == 1
        messages = {row["task"]: row["error"]["message"] for row in rows_of(made) if "error" in row}
        assert "TOKEN_OF_NOBODY" in messages["bench/needs"]
        assert "docker_image" in messages["bench/no-image"]


async def test_nothing_scored_fails_the_job_without_a_mean() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.fate = lambda pod: "errored"
        made.submit()
        seen = await made.ended()
        assert (seen["phase"], seen["mean"], seen["scores"]) == ("Failed", "", [])
        assert made.condition("Failed") == ("True", "NothingScored")


async def test_an_image_that_does_not_exist_is_named_and_does_not_hold_the_others_up() -> None:
    async with world(image_grace_seconds=0) as made, operator(made):
        made.suite(2)
        made.fate = lambda pod: "InvalidImageName" if "task-0" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"
        made.submit(concurrency=1)
        seen = await made.ended()
        assert [(item["type"], item["count"]) for item in seen["errors"]] == [("InvalidImageName", 1)]
        assert seen["trials"]["scored"] == 1


async def test_a_counted_failure_is_run_again_and_its_evidence_is_kept() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "silent" if pod["metadata"]["labels"]["seatrial.dev/retry"] == "0" else "scored"
        made.submit(retry={"max": 1, "backoff": {"min": "1s", "max": "1s"}})
        name = (await wait_until(lambda: [pod for pod in made.pods() if pod["status"]["phase"] == "Running"]))[0]["metadata"]["name"]
        made.api.remove("pods", name)
        seen = await made.ended()
        assert (seen["trials"]["scored"], seen["trials"]["retried"]) == (1, 1)
        (row,) = rows_of(made)
        assert (row["retry"], [(item["retry"], item["error"]["type"]) for item in row["retries"]]) == (1, [(0, "PodDeleted")])


async def test_a_verdict_that_comes_with_the_deletion_counts() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        name = (await wait_until(lambda: [pod for pod in made.pods() if pod["status"]["phase"] == "Running"]))[0]["metadata"]["name"]
        made.finish(name, rewards={"reward": 0.5}, store=False)
        made.api.remove("pods", name)
        assert (await made.ended())["mean"] == "0.500"


@pytest.mark.conforms("H-85")
async def test_a_clean_up_that_fails_costs_no_graded_trial_and_runs_none_again() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.api.faults.append(status(500, times=2, method="DELETE", path="/pods"))
        made.submit(retry={"max": 3})
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"], seen["trials"]["retried"]) == ("Completed", 2, 0)
        assert len(made.runs) == 2
        await wait_until(made.pods, lambda pods: pods == [])


@pytest.mark.conforms("H-149")
async def test_concurrency_and_retries_change_while_the_job_runs() -> None:
    async with world() as made, operator(made):
        made.suite(4)
        made.fate = lambda pod: "silent"
        made.submit(concurrency=1)
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 1)
        made.edit("job", concurrency=4, retry={"max": 1})
        await wait_until(lambda: made.status()["trials"]["running"], lambda running: running == 4)
        made.fate = lambda pod: "scored"
        for pod in made.pods():
            made.api.remove("pods", pod["metadata"]["name"])
        seen = await made.ended()
        assert (seen["trials"]["scored"], seen["trials"]["retried"]) == (4, 4)


@pytest.mark.conforms("H-81", "H-82")
async def test_cancel_ends_what_runs_and_keeps_what_is_scored() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.fate = lambda pod: "scored" if "task-0" in pod["metadata"]["labels"]["seatrial.dev/task"] else "silent"
        made.submit(concurrency=2)
        await wait_until(lambda: made.status().get("trials", {}), lambda trials: (trials.get("scored"), trials.get("running")) == (1, 2))
        made.edit("job", cancel=True)
        seen = await made.ended()
        assert seen["phase"] == "Cancelled"
        assert (seen["trials"]["scored"], seen["trials"]["cancelled"]) == (1, 2)
        assert made.condition("Finished") == ("True", "Cancelled")


async def test_suspend_leaves_no_pod_and_resume_runs_each_trial_to_its_end() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.fate = lambda pod: "silent"
        made.submit()
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 2)
        made.edit("job", suspend=True)
        await wait_until(lambda: made.status()["phase"], lambda phase: phase == "Suspended")
        assert made.pods() == []
        assert made.condition("Suspended") == ("True", "SuspendedByUser")
        made.fate = lambda pod: "scored"
        made.edit("job", suspend=False)
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"]) == ("Completed", 2)
        assert sorted(retry for _, retry in made.runs) == ["0", "0", "1", "1"]


async def test_a_finished_job_deletes_itself_and_keeps_its_results() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit(ttlSecondsAfterFinished=0)
        await wait_until(lambda: made.api.all("evaljobs"), lambda jobs: not jobs)
        assert any(key.endswith("summary.json") for key in made.store.objects)


async def test_a_deleted_job_leaves_nothing_and_its_name_can_be_used_again() -> None:
    async with world() as made, operator(made) as subject:
        made.suite(2)
        made.fate = lambda pod: "silent"
        made.submit()
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 2)
        first = {pod["metadata"]["name"] for pod in made.pods()}
        made.api.remove("evaljobs", "job")
        await wait_until(made.pods, lambda pods: not pods)
        assert made.api.all("secrets") == {}
        made.fate = lambda pod: "scored"
        made.submit()
        seen = await made.ended()
        assert (seen["phase"], made.condition("Finished")) == ("Completed", ("True", "AllScored"))
        assert len(made.runs) == 4
        assert first.isdisjoint(name for _, name in made.runs)
        await wait_until(lambda: subject.jobs.trial_count("evals", "job"), lambda count: count == 0)


@pytest.mark.conforms("N-70", "N-56")
async def test_a_task_that_changes_later_changes_neither_the_set_nor_a_running_job() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets")[0], lambda status: status == "True")
        pinned = made.api.get("tasksets", "suite")["status"]
        made.fate = lambda pod: "silent"
        made.submit()
        await wait_until(made.pods)
        made.publish("task-0", toml="[agent]\ntimeout_sec = 5.0\n")
        await wait_until(lambda: made.api.get("tasks", "task-0")["status"].get("revision"), lambda revision: revision == 2)
        assert made.api.get("tasksets", "suite")["status"] == pinned
        made.fate = lambda pod: "scored"
        made.api.remove("tasks", "task-0")
        for pod in made.pods():
            made.finish(pod["metadata"]["name"], rewards={"reward": 1.0})
        assert ((await made.ended())["phase"], made.condition("Finished")[1]) == ("Completed", "AllScored")


# --- bad references and archives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"taskset": "nobody"}, "TasksetNotFound"),
        ({"taskset": "suite#nobody"}, "RevisionNotFound"),
        ({"taskset": None, "tasks": ["nobody"]}, "TaskNotFound"),
        ({"taskset": None, "tasks": ["task-0#" + "0" * 64]}, "RevisionNotFound"),
        ({"taskset": None, "tasks": ["other/task-0"]}, "CrossNamespaceReference"),
        ({"taskset": None, "tasks": ["task-0", "task-0#latest"]}, "DuplicateMember"),
        ({"select": {"include": ["nothing"]}}, "NothingSelected"),
        ({"agent": {"name": "nobody"}}, "UnsupportedAgent"),
        ({"attempts": 0}, "InvalidSpec"),
    ],
)
async def test_a_job_that_cannot_be_planned_fails_with_its_reason_and_runs_nothing(spec: dict[str, Any], reason: str) -> None:
    async with world() as made, operator(made):
        made.suite(1)
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets")[0], lambda status: status == "True")
        made.submit(**{key: value for key, value in spec.items() if value is not None})
        if spec.get("taskset", "") is None:
            body = made.job()
            body["spec"].pop("taskset")
            made.api.put(GROUP, "evaljobs", body)
        seen = await made.ended()
        assert (seen["phase"], made.condition("PlanReady"), made.condition("Finished")) == ("Failed", ("False", reason), ("True", reason))
        assert made.runs == []


async def test_objects_of_one_apply_may_come_in_any_order() -> None:
    async with world(reference_grace_seconds=20) as made, operator(made):
        made.submit()
        await wait_until(lambda: made.condition("PlanReady"), lambda seen: seen == ("False", "TasksetNotFound"))
        assert made.status()["phase"] == "Pending"
        made.taskset("suite", "late")
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets"), lambda seen: seen == ("False", "TaskNotFound"))
        made.publish("late")
        assert ((await made.ended())["phase"], made.condition("Finished")[1]) == ("Completed", "AllScored")


async def test_a_job_whose_taskset_is_refused_for_good_ends() -> None:
    async with world() as made, operator(made):
        made.publish("one")
        made.taskset("suite", "one", "one#stable")
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets"), lambda seen: seen == ("False", "DuplicateMember"))
        made.submit()
        seen = await made.ended()
        finished = next(item for item in seen["conditions"] if item["type"] == "Finished")
        assert (seen["phase"], finished["status"], finished["reason"]) == ("Failed", "True", "TasksetNotPinned")
        assert finished["message"].startswith("Taskset evals/suite: DuplicateMember: ")


@pytest.mark.parametrize("spec", [{"taskset": "suite"}, {"taskset": None, "tasks": ["bad"]}], ids=["taskset", "tasks"])
async def test_a_job_whose_task_is_refused_for_good_ends(spec: dict[str, Any]) -> None:
    async with world() as made, operator(made):
        made.publish("bad", toml="[agent]\ntimeout_sec = 'never'\n")
        made.taskset("suite", "bad")
        await wait_until(lambda: made.condition("Pinned", "suite", "tasksets"), lambda seen: seen == ("False", "MemberNotVerified"))
        made.submit(**spec)
        seen = await made.ended()
        reason = "MemberNotVerified" if spec["taskset"] is None else "TasksetNotPinned"
        assert (seen["phase"], made.condition("Finished"), made.runs) == ("Failed", ("True", reason), [])


async def test_a_job_waits_without_end_for_a_task_that_the_store_keeps_from_being_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.handlers.reconcile.WAIT_SECONDS", 0.1)
    async with world() as made, operator(made):
        down = True
        made.store.fault = lambda operation, key: Unavailable("down") if down and key.startswith("filesets/evals/suite") else None
        made.publish("late")
        made.taskset("suite", "late")
        made.submit()
        await wait_until(lambda: made.condition("PlanReady"), lambda seen: seen == ("False", "TasksetNotPinned"))
        looks = len([item for item in made.api.requests if item.path.endswith("/tasksets/suite")])
        # Ten looks, each after a pause of a third of the time that a missing reference gets.
        await wait_until(lambda: len([item for item in made.api.requests if item.path.endswith("/tasksets/suite")]) >= looks + 10)
        assert made.status()["phase"] == "Pending"
        down = False
        assert ((await made.ended())["phase"], made.condition("Finished")[1]) == ("Completed", "AllScored")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "TaskArchiveMissing"),
        (b"no gzip at all", "TaskArchiveCorrupt"),
        (tar_of({"../x": b""}), "TaskArchiveUnsafe"),
        (tar_of({"root/task.toml": b"= nonsense"}), "InvalidTask"),
    ],
)
async def test_an_archive_that_is_no_task_is_refused_by_name(data: bytes | None, reason: str) -> None:
    import hashlib

    async with world() as made, operator(made):
        sha256 = hashlib.sha256(data or b"").hexdigest()
        if data is not None:
            made.store.objects["filesets/evals/suite/bad"] = data
        spec = {"source": {"ref": "evals/suite#bad", "sha256": sha256}}
        made.api.put(GROUP, "tasks", {"kind": "Task", "metadata": {"name": "bad", "namespace": "evals"}, "spec": spec})
        await wait_until(lambda: made.condition("Verified", "bad", "tasks"), lambda seen: seen[0] == "False")
        assert made.condition("Verified", "bad", "tasks")[1] == reason
        assert not [key for key in made.store.objects if key.startswith("revisions/")]


async def test_other_bytes_than_stated_are_never_published() -> None:
    async with world() as made, operator(made):
        made.store.fault = lambda operation, key: None
        made.publish("task")
        body = made.api.get("tasks", "task")
        body["spec"]["source"]["sha256"] = "0" * 64
        made.api.put(GROUP, "tasks", body)
        await wait_until(lambda: made.condition("Verified", "task", "tasks"), lambda seen: seen == ("False", "TaskArchiveCorrupt"))


async def test_a_native_id_that_differs_is_refused() -> None:
    async with world() as made, operator(made):
        made.publish("task")
        body = made.api.get("tasks", "task")
        made.api.put(GROUP, "tasks", {**body, "spec": {**body["spec"], "nativeTaskId": "bench/other"}})
        await wait_until(lambda: made.condition("Verified", "task", "tasks"), lambda seen: seen == ("False", "NativeIDMismatch"))


@pytest.mark.conforms("N-53")
async def test_identical_content_reuses_the_revision_even_when_the_object_was_made_again() -> None:
    async with world() as made, operator(made):
        made.publish("task")
        await wait_until(lambda: made.condition("Verified", "task", "tasks"), lambda seen: seen[0] == "True")
        first = made.api.get("tasks", "task")["status"]
        made.api.remove("tasks", "task")
        made.publish("task")
        await wait_until(lambda: made.condition("Verified", "task", "tasks"), lambda seen: seen[0] == "True")
        again = made.api.get("tasks", "task")["status"]
        assert (again["revision"], again["digest"]) == (first["revision"], first["digest"]) == (1, first["digest"])
        body = made.api.get("tasks", "task")
        made.api.put(GROUP, "tasks", {**body, "spec": {**body["spec"], "metadata": {"changed": True}, "tags": ["stable"]}})
        await wait_until(lambda: made.api.get("tasks", "task")["status"].get("revision"), lambda revision: revision == 2)
        assert made.api.get("tasks", "task")["status"]["tags"] == {"latest": 2, "stable": 2}


# --- the API says no -----------------------------------------------------------------------------------------------------------------


async def test_quota_is_waited_for_and_errors_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.effects.execute.HOLD_SECONDS", 0.1)
    async with world() as made, operator(made):
        made.suite(2)
        made.api.faults.append(status(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q', times=3, method="POST", path="/pods"))
        made.submit()
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"], seen["trials"]["errored"]) == ("Completed", 2, 0)
        assert "QuotaExceeded" in [
            item["reason"]
            for request in made.api.writes("evaljobs")
            for item in ((request.body or {}).get("status", {}).get("conditions") or ())
        ]


async def test_a_missing_right_degrades_the_job_and_errors_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.effects.execute.HOLD_SECONDS", 0.1)
    async with world() as made, operator(made):
        made.suite(1)
        text = 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'
        fault = status(403, "Forbidden", text, method="POST", path="/pods")
        made.api.faults.append(fault)
        made.submit()
        await wait_until(lambda: made.condition("Degraded"), lambda seen: seen == ("True", "Forbidden"))
        made.api.faults.remove(fault)
        seen = await made.ended()
        assert (seen["trials"]["scored"], made.condition("Degraded")) == (1, ("False", "Healthy"))


async def test_a_rejected_pod_is_terminal_for_its_trial_with_the_servers_words() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.api.faults.append(status(403, "Forbidden", 'violates PodSecurity "restricted"', times=1, method="POST", path="/pods"))
        made.submit(retry={"max": 3})
        seen = await made.ended()
        assert [(item["type"], item["cause"], item["count"]) for item in seen["errors"]] == [("PodRejected", "user", 1)]
        assert "violates PodSecurity" in seen["errors"][0]["message"]


async def test_a_pod_of_our_name_that_is_not_ours_is_never_deleted() -> None:
    async with world() as made:
        made.suite(1)
        made.submit()
        made.fate = lambda pod: "silent"
        async with operator(made):
            name = (await wait_until(made.pods))[0]["metadata"]["name"]
        made.api.remove("pods", name)
        uid = made.job()["metadata"]["uid"]
        for key in [key for key in made.store.objects if "/rows/" in key or "/trials/" in key]:
            del made.store.objects[key]
        made.api.put("/api/v1", "pods", {"metadata": {"name": name, "namespace": "evals", "labels": {}}, "status": {"phase": "Running"}})
        async with operator(made):
            await wait_until(lambda: made.condition("Finished")[0], lambda seen: seen == "True")
        assert [(item["type"], item["count"]) for item in made.status()["errors"]] == [("NameConflict", 1)]
        assert made.api.get("pods", name)["status"]["phase"] == "Running"
        assert uid == made.job()["metadata"]["uid"]


async def test_a_create_whose_answer_was_lost_is_not_repeated_as_another_pod() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.api.lost_answers.append(status(500, times=1, method="POST", path="/pods"))
        made.submit()
        seen = await made.ended(seconds=20)
        assert (seen["trials"]["scored"], seen["trials"]["retried"]) == (1, 0)
        assert len(made.runs) == 1


async def test_a_status_that_somebody_changed_is_computed_again() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.api.faults.append(status(409, "Conflict", "modified", times=2, method="PATCH", path="/evaljobs"))
        made.submit()
        assert ((await made.ended())["phase"], made.condition("Finished")[1]) == ("Completed", "AllScored")


async def test_no_pod_exists_before_the_status_names_the_plan() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.api.faults.append(status(409, "Conflict", "modified", times=3, method="PATCH", path="/evaljobs"))
        named: list[bool] = []
        made.api.listeners.append(
            lambda event, kind, body: named.append("plan" in made.status()) if (event, kind.plural) == ("ADDED", "pods") else None
        )
        made.submit()
        await made.ended()
        assert named == [True]


async def test_a_job_whose_first_status_was_lost_finds_what_its_trials_have_stored() -> None:
    async with world() as made:
        made.suite(2)
        made.submit(concurrency=1)
        async with operator(made):
            await made.ended()
        body = made.job()
        body["status"] = {}
        made.api.put(GROUP, "evaljobs", body)
        made.api.change("evaljobs", "job", lambda job: job.update(status={}))
        async with operator(made):
            assert (await made.ended())["trials"]["scored"] == 2
        assert len(made.runs) == 2


def refuse_scores(asked: Request) -> Answer | None:
    body = asked.body or {}
    full = asked.method == "PATCH" and "scores" in (body.get("status") or {}) and body["status"]["scores"]
    return Answer(422, "Invalid", "status.scores: Invalid value") if full else None


async def test_a_status_that_the_server_refuses_holds_nothing_up() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.api.faults.append(refuse_scores)
        made.submit(concurrency=1)
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"], seen.get("scores", [])) == ("Completed", 3, [])
        assert made.condition("Degraded") == ("True", "StatusTruncated")


async def test_a_pod_that_was_never_shown_is_not_run_again_when_its_result_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.handlers.reconcile.EXPECTATION_SECONDS", 0.5)
    async with world() as made, operator(made) as subject:
        made.suite(1)
        monkeypatch.setattr(subject.informers, "pods", lambda uid: {})
        monkeypatch.setattr(subject.informers, "gone", lambda uid: {})
        made.submit()
        await wait_until(lambda: [key for key in made.store.objects if key.endswith("result.json")])
        for pod in made.pods():
            made.api.remove("pods", pod["metadata"]["name"])
        await wait_until(lambda: made.condition("Finished")[0], lambda seen: seen == "True", seconds=20)
        assert (made.status()["trials"]["scored"], len(made.runs)) == (1, 1)


# --- the store is away ---------------------------------------------------------------------------------------------------------------


async def test_without_the_store_nothing_is_created_or_deleted_and_the_job_goes_on_afterwards() -> None:
    from seatrial.errors import Unavailable

    async with world() as made, operator(made):
        made.suite(4)
        made.fate = lambda pod: "silent"
        made.submit(concurrency=2)
        await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda running: running == 2)
        made.store.fault = lambda operation, key: Unavailable("the object store does not answer")
        for pod in made.pods():
            made.finish(pod["metadata"]["name"], rewards={"reward": 1.0})
        await wait_until(lambda: made.condition("Degraded"), lambda seen: seen == ("True", "ObjectStoreUnavailable"))
        assert len(made.pods()) == 2
        assert len(made.api.writes("pods")) == 2
        made.fate = lambda pod: "scored"
        made.store.fault = lambda operation, key: None
        seen = await made.ended(seconds=20)
        assert (seen["phase"], seen["trials"]["scored"], made.condition("Degraded")) == ("Completed", 4, ("False", "Healthy"))
        assert len(made.runs) == 4


async def test_events_tell_the_story_and_carry_no_secret() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "errored"
        made.submit()
        await made.ended()
        wanted = {"ArchiveVerified", "MembersPinned", "Planned", "RewardFileNotFoundError", "NothingScored"}
        await wait_until(lambda: {reason for reason, _ in made.events}, lambda seen: wanted <= seen)
        assert not [note for _, note in made.events if "memory:" in note]


async def test_an_error_of_the_pod_carries_the_agents_cause() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit()
        name = (await wait_until(lambda: [pod for pod in made.pods() if pod["status"]["phase"] == "Running"]))[0]["metadata"]["name"]
        error = ErrorInfo(type="GKEPodNotFoundError", cause="environment", message="the environment exited", reason="EnvironmentExited")
        made.finish(name, error=error)
        seen = await made.ended()
        assert [(item["type"], item["cause"]) for item in seen["errors"]] == [("EnvironmentExited", "environment")]


async def test_a_status_over_very_many_rewards_is_computed_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "VALUES_ON_LOOP", 0)
    async with world() as made, operator(made):
        made.suite(3)
        made.submit(attempts=2, concurrency=2)
        seen = await made.ended()
        assert (seen["phase"], seen["mean"], seen["trials"]["scored"]) == ("Completed", "1.000", 6)


async def test_a_task_without_any_score_fails_a_job_that_requires_all_tasks() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.fate = lambda pod: "errored" if "task-1" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"
        made.submit(attempts=2)
        assert (await made.ended())["phase"] == "Completed"
        made.submit("strict", attempts=2, scoring={"requireAllTasks": True})
        seen = await made.ended("strict")
        assert (seen["phase"], made.condition("Failed", "strict")) == ("Failed", ("True", "TaskWithoutScore"))
        message = next(item["message"] for item in seen["conditions"] if item["type"] == "Failed")
        assert message.startswith("no trial of bench/task-1 is scored; 2 of 4 trials scored")
        assert seen["results"]["summary"]


async def test_a_job_that_ended_waits_for_no_image_although_its_failed_pods_are_kept() -> None:
    # A registry that does not answer: the second task's image is waited for.
    async with world(build_repository="127.0.0.1:1/tasks", build_insecure=True) as made, operator(made) as subject:
        made.publish("ready")
        made.publish("waits", image=None)
        made.taskset("suite", "ready", "waits")
        made.fate = lambda pod: "errored"
        made.submit(pod={"keepFailedSeconds": 3600})
        await wait_until(lambda: made.status().get("trials", {}).get("errored"), lambda errored: errored == 1)
        assert len(subject.images._builds) == 1
        made.edit("job", cancel=True)
        await wait_until(lambda: (made.condition("Finished")[0], subject.images._builds), lambda seen: seen == ("True", {}))
        assert len(made.pods()) == 1
