from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seatrial.api.evaljob import EvalJob
from seatrial.core.manifests import PodSettings
from seatrial.core.workload import (
    Admission,
    Priority,
    build_workload,
    covers,
    finished,
    given_back,
    is_of,
    largest_requests,
    mended_spec,
    pod_count,
    queue_of,
    read_admission,
    started,
    workload_name,
)
from tests.builders import NOW, make_job, make_row, make_task

META = {"name": "nightly", "namespace": "evals", "uid": "u-1", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}}
SETTINGS = PodSettings(runner_image="runner:1")


def a_job(**spec: Any) -> EvalJob:
    return EvalJob.parse({"apiVersion": "seatrial.dev/v1alpha1", "kind": "EvalJob", "metadata": META, "spec": {"taskset": "suite", **spec}})


def workload(*conditions: tuple[str, str, str], admission: dict[str, Any] | None = None) -> dict[str, Any]:
    """Type, status and message of each condition."""
    return {
        "metadata": {"name": "w", "namespace": "evals", "uid": "w-1", "resourceVersion": "7"},
        "spec": {"queueName": "team-a", "podSets": [{"name": "trials", "count": 4}]},
        "status": {
            "conditions": [{"type": kind, "status": status, "message": text, "reason": "Because"} for kind, status, text in conditions],
            **({"admission": admission} if admission is not None else {}),
        },
    }


def changed(body: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    return {**body, **{name: {**body[name], **part} for name, part in parts.items()}}


def test_a_job_is_one_workload_of_its_largest_trial() -> None:
    plan = make_job().tasks(make_task("a"), make_task("b")).plan()
    requests = largest_requests(a_job().spec, plan, SETTINGS)
    built = build_workload(a_job(concurrency=8), plan, requests, queue="team-a", priority=Priority("high", 1000))
    (pods,) = built["spec"].pop("podSets")
    (container,) = pods["template"]["spec"]["containers"]
    assert built == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(a_job()),
            "namespace": "evals",
            "ownerReferences": [
                {"apiVersion": "seatrial.dev/v1alpha1", "kind": "EvalJob", "name": "nightly", "uid": "u-1", "controller": True}
            ],
        },
        "spec": {
            "queueName": "team-a",
            "active": True,
            "priority": 1000,
            "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"},
        },
    }
    # Two tasks are two trials: more Pods than that never run.
    assert (pods["name"], pods["count"], set(container["resources"]["requests"])) == ("trials", 2, {"cpu", "memory", "ephemeral-storage"})


def test_each_resource_is_that_of_the_task_that_wants_most() -> None:
    tasks = (
        make_task("a", toml={"environment": {"cpus": 2, "memory_mb": 100}}),
        make_task("b", toml={"environment": {"cpus": 1, "memory_mb": 900}}),
    )
    plan = make_job().tasks(*tasks).plan()
    requests = largest_requests(a_job().spec, plan, SETTINGS)
    # Beside the environment, two containers of the runner with 10m and 32Mi each.
    assert (requests["cpu"], requests["memory"]) == ("2.02", str((900 + 64) * 1024 * 1024))


def test_a_separate_verifier_that_wants_more_than_its_agent_is_counted() -> None:
    toml = {
        "environment": {"cpus": 1, "memory_mb": 100},
        "verifier": {"environment_mode": "separate", "environment": {"docker_image": "tests:1", "cpus": 4}},
    }
    plan = make_job().tasks(make_task("a", toml=toml)).plan()
    requests = largest_requests(a_job().spec, plan, SETTINGS)
    assert (requests["cpu"], requests["memory"]) == ("4.02", str((100 + 64) * 1024 * 1024))


def sealed(**pods: Any) -> dict[str, Any]:
    """The Workload that the operator makes for a job of two trials; ``pods`` replaces fields of its only PodSet."""
    built = build_workload(a_job(concurrency=8), make_job().trials(2).plan(), {"cpu": "0.5", "memory": "100"}, queue="team-a")
    return {**built, "spec": {**built["spec"], "podSets": [{**built["spec"]["podSets"][0], **pods}]}}


def template(*requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{number}", "resources": {"requests": amounts}} for number, amounts in enumerate(requests)]
    return {"spec": {"containers": containers, **spec}}


@pytest.mark.parametrize(
    ("pods", "is_enough"),
    [
        ({}, True),
        ({"count": 1}, True),
        ({"template": template({"cpu": "500m", "memory": "1Ki"})}, True),
        ({"template": template({"cpu": "250m", "memory": "50"}, {"cpu": "250m", "memory": "50"})}, True),
        ({"template": template({"cpu": "499m", "memory": "1Ki"})}, False),
        ({"template": template({"memory": "1Ki"})}, False),
        ({"template": template({"cpu": "5e2", "memory": "1Ki"})}, False),
        ({"template": {"spec": {"containers": [{"name": "trial"}]}}}, False),
        ({"name": "other"}, False),
    ],
    ids=["as made", "fewer", "more", "in two containers", "less CPU", "no CPU", "odd", "nothing", "another set"],
)
def test_a_workload_that_asks_for_less_than_the_trials_is_not_believed(pods: dict[str, Any], is_enough: bool) -> None:
    assert covers(sealed(**pods), sealed()) is is_enough


def test_a_workload_for_other_nodes_than_those_of_the_trials_is_not_believed() -> None:
    def on(**labels: str) -> dict[str, Any]:
        return sealed(template=template({"cpu": "1", "memory": "100"}, nodeSelector=labels))

    assert [covers(on(), on(pool="gpu")), covers(on(pool="gpu", zone="a"), on(pool="gpu"))] == [False, True]


def with_conditions(body: dict[str, Any], **statuses: str) -> dict[str, Any]:
    return {**body, "status": {"conditions": [{"type": kind, "status": status, "reason": "R"} for kind, status in statuses.items()]}}


SMALL = {"template": template({"cpu": "1m"})}


@pytest.mark.parametrize(
    ("found", "wanted", "changes"),
    [
        (sealed(), sealed(), {}),
        (with_conditions(sealed(), QuotaReserved="True"), sealed(count=9), {}),
        (sealed(count=9), sealed(), {"podSets": sealed()["spec"]["podSets"]}),
        (sealed(**SMALL), sealed(), {"podSets": sealed()["spec"]["podSets"]}),
        (with_conditions(sealed(**SMALL), QuotaReserved="True"), sealed(), {"active": False}),
    ],
    ids=["as made", "more wanted than reserved", "more trials than there are", "too small", "too small and let in"],
)
def test_a_workload_that_others_changed_is_mended_or_leaves_the_queue(
    found: dict[str, Any], wanted: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert mended_spec(found, wanted) == changes


def test_a_waiting_job_changes_its_queue_and_an_admitted_one_does_not() -> None:
    other = {**sealed(), "spec": {**sealed()["spec"], "queueName": "team-b"}}
    assert mended_spec(sealed(), other) == {"queueName": "team-b"}
    assert mended_spec(with_conditions(sealed(), QuotaReserved="True"), other) == {}


def test_only_the_workload_that_the_job_controls_is_its_own() -> None:
    bare = {"metadata": {"name": workload_name(a_job())}}
    foreign = {"metadata": {"ownerReferences": [{"kind": "EvalJob", "name": "nightly", "uid": "u-2", "controller": True}]}}
    held = {"metadata": {"ownerReferences": [{"kind": "EvalJob", "name": "nightly", "uid": "u-1"}]}}
    assert [is_of(found, a_job()) for found in (sealed(), bare, foreign, held)] == [True, False, False, False]


def test_a_job_whose_results_are_all_reused_wants_no_pods() -> None:
    plan = make_job().trials(3).plan()
    assert pod_count(a_job(concurrency=2), plan) == 2
    assert pod_count(a_job(concurrency=2), replace(plan, adopted=tuple(make_row(trial.name) for trial in plan.trials))) == 0


def test_only_a_job_with_the_label_names_a_queue() -> None:
    assert queue_of(a_job()) == "team-a"
    bare = a_job().model_copy(update={"metadata": a_job().metadata.model_copy(update={"labels": {}})})
    assert queue_of(bare) is None


@pytest.mark.parametrize(
    ("seen", "admission"),
    [
        (workload(), Admission(False, 4, "queue team-a: not admitted yet", False)),
        (workload(("QuotaReserved", "False", "no quota")), Admission(False, 4, "queue team-a: no quota", False)),
        (
            workload(
                ("QuotaReserved", "True", ""), ("Admitted", "True", ""), admission={"podSetAssignments": [{"name": "trials", "count": 3}]}
            ),
            Admission(True, 3, "queue team-a: not admitted yet", False),
        ),
        (
            workload(("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("Evicted", "True", "preempted"), admission={}),
            Admission(False, 4, "queue team-a: preempted", True),
        ),
        (
            workload(("QuotaReserved", "False", "waits"), ("Admitted", "False", ""), ("Evicted", "True", "preempted")),
            Admission(False, 4, "queue team-a: waits", False),
        ),
        (
            workload(("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("PodsReady", "True", "")),
            Admission(True, 4, "queue team-a: not admitted yet", False, is_ready=True),
        ),
        (
            changed(workload(("Admitted", "True", "")), spec={"active": False}),
            Admission(False, 4, "queue team-a: not admitted yet", False),
        ),
        (
            changed(workload(("Admitted", "True", "")), metadata={"deletionTimestamp": "2026-03-04T12:00:00Z"}),
            Admission(False, 4, "queue team-a: not admitted yet", False),
        ),
    ],
    ids=["new", "no quota", "admitted in part", "evicted", "evicted and given back", "ready", "suspended", "being deleted"],
)
def test_what_conditions_mean(seen: dict[str, Any], admission: Admission) -> None:
    assert read_admission(seen) == admission


@pytest.mark.parametrize(
    ("reason", "again"), [("Preempted", "True"), ("NodeFailures", "True"), ("PodsReadyTimeout", "False"), ("Deactivated", "False")]
)
def test_an_evicted_job_gives_its_quota_back_and_waits_again_when_kueue_says(reason: str, again: str) -> None:
    seen = workload(("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("Evicted", "True", "preempted"), admission={})
    seen["status"]["conditions"][2]["reason"] = reason
    status = given_back(seen, NOW)
    assert status["admission"] is None
    assert {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]} == {
        "Evicted": ("True", reason),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Requeued": (again, reason),
        "PodsReady": ("False", "WaitForStart"),
    }


def test_a_kueue_that_waits_for_pods_is_told_that_they_run() -> None:
    seen = workload(("Admitted", "True", ""), ("PodsReady", "False", ""))
    status = started(seen, NOW)
    assert [(item["type"], item["status"]) for item in status["conditions"]] == [("Admitted", "True"), ("PodsReady", "True")]


def test_an_end_is_told_once() -> None:
    status = finished(workload(), NOW, is_good=True, message="AllScored: 4 of 4")
    assert status is not None
    assert [(item["type"], item["status"], item["reason"]) for item in status["conditions"]] == [("Finished", "True", "Succeeded")]
    assert finished({**workload(), "status": status}, NOW, is_good=True, message="again") is None
