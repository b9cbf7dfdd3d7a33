"""The Workload by which Kueue lets an EvalJob as a whole in: one for each job, never a gated Pod.

A job that names a queue behaves as if ``spec.suspend`` were true until its Workload is admitted, and again when it is evicted.
Source: Kueue's API v1beta2, and what its own integrations do at eviction and end (jobframework).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from seatrial.api.evaljob import EvalJob, EvalJobSpec
from seatrial.api.meta import Quantity
from seatrial.api.names import API_VERSION, EVALJOB
from seatrial.core.frozen import FrozenPlan, PlannedTask
from seatrial.core.manifests import PodSettings, environment_resources
from seatrial.core.observe import format_time

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
QUEUE_LABEL: Final = f"{GROUP}/queue-name"
PRIORITY_LABEL: Final = f"{GROUP}/priority-class"
POD_SET: Final = "trials"
_NAME_CHARS: Final = 40
_RUNNER_CONTAINERS: Final = 2


class Priority(NamedTuple):
    """A WorkloadPriorityClass."""

    name: str
    value: int


class Admission(NamedTuple):
    """What the queue says of a job."""

    is_admitted: bool
    pods: int
    """Trial Pods that it lets run at a time."""
    message: str
    """Why it is not admitted."""
    holds_quota: bool
    """Evicted, and its quota is not given back yet."""


def queue_of(job: EvalJob) -> str | None:
    """The queue that the job names by label."""
    return job.metadata.labels.get(QUEUE_LABEL)


def workload_name(job: EvalJob) -> str:
    """The same for the same object; another object of the same name gets another one."""
    digest = hashlib.sha256(job.metadata.uid.encode()).hexdigest()[:8]
    return f"evaljob-{job.metadata.name[:_NAME_CHARS].rstrip('-.')}-{digest}"


def build_workload(job: EvalJob, plan: FrozenPlan, settings: PodSettings, *, queue: str, priority: Priority | None) -> dict[str, Any]:
    """As many Pods as may run at a time, each as large as the largest trial."""
    meta = job.metadata
    sizes = [pod_requests(task, job.spec, settings) for task in plan.tasks]
    largest = {name: max(size.get(name, Decimal(0)) for size in sizes) for name in sorted({name for size in sizes for name in size})}
    requests = {name: format(amount.normalize(), "f") for name, amount in largest.items()}
    limits = {name: text for name, text in requests.items() if "/" in name}
    resources = {"requests": requests} | ({"limits": limits} if limits else {})
    spec: dict[str, Any] = {
        "queueName": queue,
        "active": not job.spec.suspend,
        "podSets": [
            {
                "name": POD_SET,
                "count": min(job.spec.concurrency, len(plan.trials)),
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "nodeSelector": dict(job.spec.pod.node_selector),
                        "containers": [{"name": "trial", "image": "trial", "resources": resources}],
                    }
                },
            }
        ],
    }
    if priority is not None:
        spec["priority"] = priority.value
        spec["priorityClassRef"] = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": priority.name}
    owner = {"apiVersion": API_VERSION, "kind": EVALJOB, "name": meta.name, "uid": meta.uid, "controller": True}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Workload",
        "metadata": {"name": workload_name(job), "namespace": meta.namespace, "ownerReferences": [owner]},
        "spec": spec,
    }


def pod_requests(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings) -> dict[str, Decimal]:
    """What a trial's Pod asks for, in base units: its environment and the runner's containers beside it."""
    resources = environment_resources(task, spec, settings)
    runner = {"cpu": settings.runner_cpu, "memory": settings.runner_memory, "ephemeral-storage": settings.runner_storage}
    found = {name: Quantity(text).amount for name, text in (*resources.get("limits", {}).items(), *resources["requests"].items())}
    return {name: amount + (Quantity(runner[name]).amount * _RUNNER_CONTAINERS if name in runner else 0) for name, amount in found.items()}


def read_admission(workload: Mapping[str, Any]) -> Admission:
    """What the conditions of a Workload say."""
    status = workload.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}

    def holds(kind: str) -> bool:
        return bool(conditions.get(kind, {}).get("status") == "True")

    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    pods = next((item.get("count") for item in assigned if item.get("name") == POD_SET), None) or workload["spec"]["podSets"][0]["count"]
    told = conditions.get("Evicted", {}) if holds("Evicted") else conditions.get("QuotaReserved", {})
    return Admission(
        is_admitted=holds("Admitted") and not holds("Evicted"),
        pods=pods,
        message=f"queue {workload['spec']['queueName']}: {told.get('message') or 'not admitted yet'}",
        holds_quota=holds("Evicted") and (holds("QuotaReserved") or "admission" in status),
    )


def given_back(workload: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of an evicted Workload whose Pods are gone: its quota is free, and it waits again."""
    reason = next((item["reason"] for item in workload["status"]["conditions"] if item["type"] == "Evicted"), "Pending")
    changes = {
        "QuotaReserved": ("False", "Pending", "the trials were taken away"),
        "Admitted": ("False", "NoReservation", "the trials were taken away"),
        "Requeued": ("True", reason, "the job waits again"),
    }
    return {"admission": None, "conditions": _changed(workload, changes, now)}


def finished(workload: Mapping[str, Any], now: datetime, *, is_good: bool, message: str) -> dict[str, Any] | None:
    """The status of a Workload whose job has ended; None if it says so already."""
    if any(item["type"] == "Finished" and item["status"] == "True" for item in (workload.get("status") or {}).get("conditions") or ()):
        return None
    return {"conditions": _changed(workload, {"Finished": ("True", "Succeeded" if is_good else "Failed", message)}, now)}


def _changed(workload: Mapping[str, Any], changes: Mapping[str, tuple[str, str, str]], now: datetime) -> list[dict[str, Any]]:
    kept = [item for item in (workload.get("status") or {}).get("conditions") or () if item["type"] not in changes]
    return [
        *kept,
        *(
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": format_time(now)}
            for kind, (status, reason, message) in changes.items()
        ),
    ]
