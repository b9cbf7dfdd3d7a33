"""Jobs in a queue of Kueue. Its kinds and its answers are played by the tests; no controller of Kueue takes part."""

from __future__ import annotations

import time
from typing import Any

from seatrial.api.evaljob import EvalJob
from seatrial.core.workload import workload_name
from tests.integration.fakeapi import Answer, Raw, Request
from tests.integration.harness import GROUP, World, operator, wait_until, world

LABEL = "kueue.x-k8s.io/queue-name"
QUICK: dict[str, Any] = {"kueue": True, "kueue_ask_seconds": 0.05}


def submit(made: World, **spec: Any) -> None:
    meta = {
        "name": "job",
        "namespace": "evals",
        "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "labels": {LABEL: "team-a"},
    }
    made.api.put(
        GROUP,
        "evaljobs",
        {"apiVersion": "seatrial.dev/v1alpha1", "kind": "EvalJob", "metadata": meta, "spec": {"taskset": "suite", **spec}},
    )


def workloads(made: World) -> list[Raw]:
    return list(made.api.all("workloads").values())


async def the_workload(made: World) -> str:
    (found,) = await wait_until(lambda: workloads(made), lambda items: len(items) == 1)
    return str(found["metadata"]["name"])


def tell(made: World, name: str, **conditions: str) -> None:
    """What Kueue writes: ``Admitted="True"``."""

    def edit(body: Raw) -> None:
        kept = [item for item in body.get("status", {}).get("conditions", ()) if item["type"] not in conditions]
        told = [{"type": kind, "status": status, "reason": "Told", "message": f"{kind} by the test"} for kind, status in conditions.items()]
        body["status"] = {
            **body.get("status", {}),
            "conditions": [*kept, *told],
            "admission": {"podSetAssignments": [{"name": "trials", "count": 2}]},
        }

    made.api.change("workloads", name, edit)


async def with_two_trials_running(made: World) -> str:
    """A job of two trials was let in, and neither ends by itself; the answer is its Workload."""
    made.suite(2)
    made.fate = lambda pod: "silent"
    submit(made, concurrency=2)
    name = await the_workload(made)
    tell(made, name, QuotaReserved="True", Admitted="True")
    await wait_until(lambda: made.status().get("trials", {}).get("running"), lambda count: count == 2)
    return name


def conditions(made: World) -> dict[str, str]:
    (found,) = workloads(made)
    return {item["type"]: item["status"] for item in found.get("status", {}).get("conditions", ())}


async def test_no_pod_exists_before_the_job_is_admitted_and_the_end_gives_the_quota_back() -> None:
    async with world(**QUICK) as made, operator(made):
        made.suite(4)
        submit(made, concurrency=4)
        name = await the_workload(made)
        await wait_until(lambda: made.condition("Suspended"), lambda seen: seen == ("True", "Queued"))
        assert (made.status()["phase"], made.pods(), made.runs) == ("Suspended", [], [])
        made.fate = lambda pod: "silent"
        tell(made, name, QuotaReserved="True", Admitted="True")
        # Two of the four that it asked for.
        await wait_until(made.pods, lambda pods: len(pods) == 2)
        for pod in made.pods():
            made.finish(pod["metadata"]["name"], rewards={"reward": 1.0})
        made.fate = lambda pod: "scored"
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"], len(made.runs)) == ("Completed", 4, 4)
        await wait_until(lambda: conditions(made).get("Finished"), lambda status: status == "True")
        assert len([item for item in made.api.requests if item.method == "POST" and item.path.endswith("/workloads")]) == 1


async def test_a_preempted_job_loses_its_pods_as_infrastructure_and_runs_again_when_it_is_let_in() -> None:
    async with world(**QUICK) as made, operator(made):
        name = await with_two_trials_running(made)
        tell(made, name, Evicted="True")
        await wait_until(lambda: conditions(made), lambda seen: seen.get("QuotaReserved") == "False" and seen.get("Admitted") == "False")
        assert made.pods() == []
        await wait_until(lambda: made.condition("Suspended"), lambda seen: seen == ("True", "Queued"))
        made.fate = lambda pod: "scored"
        tell(made, name, QuotaReserved="True", Admitted="True", Evicted="False")
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"], seen["trials"]["errored"], seen["trials"]["retried"]) == ("Completed", 2, 0, 2)


async def test_a_job_that_its_user_suspends_leaves_the_queue_and_comes_back() -> None:
    async with world(**QUICK) as made, operator(made):
        made.suite(1)
        submit(made, suspend=True)
        await the_workload(made)
        assert workloads(made)[0]["spec"]["active"] is False
        made.edit("job", suspend=False)
        await wait_until(lambda: workloads(made)[0]["spec"]["active"], lambda active: active is True)
        assert made.pods() == []


async def test_a_job_without_a_queue_asks_nobody() -> None:
    async with world(**QUICK) as made, operator(made):
        made.suite(1)
        made.submit()
        assert (await made.ended())["phase"] == "Completed"
        assert workloads(made) == []


async def test_without_the_setting_the_label_means_nothing() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        submit(made)
        assert (await made.ended())["phase"] == "Completed"
        assert workloads(made) == []


async def test_a_kueue_that_waits_for_pods_is_told_once_that_trials_run() -> None:
    async with world(**QUICK) as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "silent"
        submit(made)
        name = await the_workload(made)
        assert "PodsReady" not in conditions(made)
        tell(made, name, QuotaReserved="True", Admitted="True")
        await wait_until(lambda: conditions(made).get("PodsReady"), lambda status: status == "True")
        made.finish(made.pods()[0]["metadata"]["name"], rewards={"reward": 1.0})
        assert (await made.ended())["phase"] == "Completed"
        await wait_until(lambda: conditions(made).get("Finished"), lambda status: status == "True")
        writes = [item for item in made.api.requests if item.method == "PATCH" and item.path.endswith(f"/workloads/{name}/status")]
        assert len(writes) == 2  # that, and the end


def forge(made: World, *, owner: str, **pods: Any) -> str:
    """A Workload of the job's name that was there before the operator's, let in already; ``pods`` are fields of its PodSet."""
    name = workload_name(EvalJob.parse(made.job()))
    reference = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "EvalJob", "name": "job", "uid": owner, "controller": True}
    container = {"name": "trial", "image": "trial", "resources": {"requests": {"cpu": "1m"}}}
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "evals", "ownerReferences": [reference]},
        "spec": {"queueName": "team-a", "podSets": [{"name": "trials", "count": 100, "template": {"spec": {"containers": [container]}}}]},
    }
    made.api.put("/apis/kueue.x-k8s.io/v1beta2", "workloads", body)
    tell(made, name, QuotaReserved="True", Admitted="True")
    return name


async def test_a_workload_of_somebody_else_lets_nothing_in_and_is_not_touched() -> None:
    async with world(**QUICK, reference_grace_seconds=30.0) as made, operator(made):
        submit(made)  # no taskset yet: the operator has not asked the queue
        name = forge(made, owner="another-uid")
        before = workloads(made)
        made.suite(1)
        await wait_until(lambda: made.condition("Suspended"), lambda seen: seen == ("True", "Queued"))
        told = next(item for item in made.status()["conditions"] if item["type"] == "Suspended")["message"]
        assert told == f"Workload {name} is not of this job: delete it"
        assert (workloads(made), made.runs) == (before, [])
        made.api.remove("workloads", name)
        tell(made, await the_workload(made), QuotaReserved="True", Admitted="True")
        assert (await made.ended())["phase"] == "Completed"


async def test_a_workload_that_asks_for_less_than_the_trials_leaves_the_queue_and_is_mended() -> None:
    async with world(**QUICK, reference_grace_seconds=30.0) as made, operator(made):
        submit(made)
        name = forge(made, owner=made.job()["metadata"]["uid"])
        made.suite(1)
        await wait_until(lambda: workloads(made)[0]["spec"].get("active"), lambda active: active is False)
        assert made.runs == []
        tell(made, name, Evicted="True")
        (spec,) = [item["spec"] for item in await wait_until(lambda: workloads(made), lambda items: items[0]["spec"]["active"])]
        assert (spec["podSets"][0]["count"], made.runs) == (1, [])
        tell(made, name, QuotaReserved="True", Admitted="True", Evicted="False")
        assert (await made.ended())["phase"] == "Completed"


async def test_a_job_whose_label_is_taken_away_stays_in_the_queue_until_its_end() -> None:
    async with world(**QUICK) as made:
        made.suite(1)
        async with operator(made):
            submit(made)
            name = await the_workload(made)
        body = made.job()
        made.api.put(GROUP, "evaljobs", {**body, "metadata": {**body["metadata"], "labels": {}}})
        async with operator(made):  # the next process has never seen the label
            await wait_until(lambda: made.condition("Suspended"), lambda seen: seen == ("True", "Queued"))
            assert made.runs == []
            tell(made, name, QuotaReserved="True", Admitted="True")
            assert (await made.ended())["phase"] == "Completed"
            await wait_until(lambda: conditions(made).get("Finished"), lambda status: status == "True")


async def test_an_end_that_met_somebody_elses_write_is_told_again() -> None:
    async with world(**QUICK) as made, operator(made):
        made.suite(1)
        submit(made)
        tell(made, await the_workload(made), QuotaReserved="True", Admitted="True", PodsReady="True")
        refused: list[Request] = []

        def refuse_the_first_end(asked: Request) -> Answer | None:
            if refused or asked.method != "PATCH" or "'Finished'" not in str(asked.body) or "/workloads/" not in asked.path:
                return None
            refused.append(asked)
            return Answer(409, "Conflict")

        made.api.faults.append(refuse_the_first_end)
        assert (await made.ended())["phase"] == "Completed"
        await wait_until(lambda: conditions(made).get("Finished"), lambda status: status == "True")
        assert len(refused) == 1


async def test_a_trial_that_stored_its_result_as_its_job_was_preempted_is_scored_and_not_run_again() -> None:
    async with world(**QUICK) as made, operator(made):
        name = await with_two_trials_running(made)
        done = made.pods()[0]
        made.save_result(done, {"reward": 0.5})
        tell(made, name, Evicted="True")
        await wait_until(lambda: conditions(made).get("QuotaReserved"), lambda status: status == "False")
        made.fate = lambda pod: "scored"
        tell(made, name, QuotaReserved="True", Admitted="True", Evicted="False")
        seen = await made.ended()
        assert (seen["phase"], seen["trials"]["scored"], seen["trials"]["retried"], len(made.runs)) == ("Completed", 2, 1, 3)
        assert (made.runs.count((done["metadata"]["labels"]["seatrial.dev/trial"], "0")), seen["mean"]) == (1, "0.750")
