from __future__ import annotations

from typing import Any

import pytest

from seatrial.api.evaljob import EvalJob
from seatrial.core.manifests import PodSettings
from seatrial.core.workload import Admission, Priority, build_workload, finished, given_back, queue_of, read_admission, workload_name
from tests.builders import NOW, make_job, make_task

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


def test_a_job_is_one_workload_of_its_largest_trial() -> None:
    plan = make_job().tasks(make_task("a"), make_task("b")).plan()
    built = build_workload(a_job(concurrency=8), plan, SETTINGS, queue="team-a", priority=Priority("high", 1000))
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
    built = build_workload(a_job(), plan, SETTINGS, queue="q", priority=None)
    requests = built["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]
    # Beside the environment, two containers of the runner with 10m and 32Mi each.
    assert (requests["cpu"], requests["memory"]) == ("2.02", str((900 + 64) * 1024 * 1024))


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
            Admission(False, 4, "queue team-a: preempted", False),
        ),
    ],
    ids=["new", "no quota", "admitted in part", "evicted", "evicted and given back"],
)
def test_what_conditions_mean(seen: dict[str, Any], admission: Admission) -> None:
    assert read_admission(seen) == admission


def test_an_evicted_job_gives_its_quota_back_and_waits_again() -> None:
    seen = workload(("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("Evicted", "True", "preempted"), admission={})
    status = given_back(seen, NOW)
    assert status["admission"] is None
    assert {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]} == {
        "Evicted": ("True", "Because"),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Requeued": ("True", "Because"),
    }


def test_an_end_is_told_once() -> None:
    status = finished(workload(), NOW, is_good=True, message="AllScored: 4 of 4")
    assert status is not None
    assert [(item["type"], item["status"], item["reason"]) for item in status["conditions"]] == [("Finished", "True", "Succeeded")]
    assert finished({**workload(), "status": status}, NOW, is_good=True, message="again") is None
