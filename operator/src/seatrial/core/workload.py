"""The Workload by which Kueue lets an EvalJob as a whole in: one for each job, never a gated Pod.

A job that names a queue behaves as if ``spec.suspend`` were true until its Workload is admitted, and again when it is evicted.
Source: Kueue's API v1beta2, and what its own integrations do at eviction and end (jobframework).
"""

from __future__ import annotations

import hashlib
import re
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
from seatrial.core.trial_input import separate_place

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
QUEUE_LABEL: Final = f"{GROUP}/queue-name"
PRIORITY_LABEL: Final = f"{GROUP}/priority-class"
POD_SET: Final = "trials"
_NAME_CHARS: Final = 40
_RUNNER_CONTAINERS: Final = 2
_REQUEUED_AT_ONCE: Final = ("Preempted", "NodeFailures")


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
    is_ready: bool = False
    """It knows that Pods run: a Kueue that waits for them would evict the job otherwise."""


def queue_of(job: EvalJob) -> str | None:
    """The queue that the job names by label."""
    return job.metadata.labels.get(QUEUE_LABEL)


def workload_name(job: EvalJob) -> str:
    """The same for the same object; another object of the same name gets another one."""
    digest = hashlib.sha256(job.metadata.uid.encode()).hexdigest()[:8]
    return f"evaljob-{job.metadata.name[:_NAME_CHARS].rstrip('-.')}-{digest}"


def pod_count(job: EvalJob, plan: FrozenPlan) -> int:
    """Trial Pods that the job may have at a time; 0 where all its results are reused."""
    return min(job.spec.concurrency, len(plan.trials) - len(plan.adopted))


def largest_requests(spec: EvalJobSpec, plan: FrozenPlan, settings: PodSettings) -> dict[str, str]:
    """Of each resource, what the trial asks for that wants most of it. Reads every task."""
    sizes = [pod_requests(task, spec, settings) for task in plan.tasks]
    largest = {name: max(size.get(name, Decimal(0)) for size in sizes) for name in sorted({name for size in sizes for name in size})}
    return {name: format(amount.normalize(), "f") for name, amount in largest.items()}


def build_workload(
    job: EvalJob, plan: FrozenPlan, requests: Mapping[str, str], *, queue: str, priority: Priority | None = None
) -> dict[str, Any]:
    """As many Pods as may run at a time, each with ``requests``."""
    meta = job.metadata
    limits = {name: text for name, text in requests.items() if "/" in name}
    resources = {"requests": dict(requests)} | ({"limits": limits} if limits else {})
    spec: dict[str, Any] = {
        "queueName": queue,
        "active": not job.spec.suspend,
        "podSets": [
            {
                "name": POD_SET,
                "count": pod_count(job, plan),
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
    """What the larger one of a trial's Pods asks for, in base units: its environment, or that of its separate verifier, and the runner's
    containers beside it."""
    runner = {"cpu": settings.runner_cpu, "memory": settings.runner_memory, "ephemeral-storage": settings.runner_storage}
    largest: dict[str, Decimal] = {}
    for place in (None, *filter(None, (separate_place(task),))):
        resources = environment_resources(task, spec, settings, place)
        for name, text in {**resources.get("limits", {}), **resources["requests"]}.items():
            beside = Quantity(runner[name]).amount * _RUNNER_CONTAINERS if name in runner else 0
            largest[name] = max(largest.get(name, Decimal(0)), Quantity(text).amount + beside)
    return largest


def is_of(workload: Mapping[str, Any], job: EvalJob) -> bool:
    """Whether the job controls it; anybody may have made an object of that name."""
    owners = workload["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] == job.metadata.uid for owner in owners)


def covers(workload: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether its Pods ask for what the job's Pods will: whoever may write Workloads could name less, and be let in for that."""
    given, asked = workload["spec"]["podSets"], wanted["spec"]["podSets"][0]
    if [item["name"] for item in given] != [POD_SET]:
        return False
    there, here = _pod_spec(given[0]), _pod_spec(asked)
    if not here.get("nodeSelector", {}).items() <= (there.get("nodeSelector") or {}).items():
        return False
    found = [(item.get("resources") or {}).get("requests") or {} for item in there["containers"]]
    requests = here["containers"][0]["resources"]["requests"]
    return all(
        sum((_amount(item[name]) for item in found if name in item), Decimal(0)) >= Quantity(text).amount for name, text in requests.items()
    )


def mended_spec(workload: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a Workload's spec that make it say what the job says; empty where it does.

    While it holds quota, only leaving the queue is possible: one that does not cover the job leaves it, and is mended and joins it again.
    """
    spec, told = workload["spec"], wanted["spec"]
    reserved = _holds(workload, "QuotaReserved")
    is_enough = covers(workload, wanted)
    changes: dict[str, Any] = {"active": bool(told["active"] and (is_enough or not reserved))}
    if not reserved:
        changes["queueName"] = told["queueName"]
        if not is_enough or spec["podSets"][0]["count"] != told["podSets"][0]["count"]:
            changes["podSets"] = told["podSets"]
    # An absent ``active`` is true.
    current = {"active": True, **spec}
    return {name: value for name, value in changes.items() if current.get(name) != value}


def read_admission(workload: Mapping[str, Any]) -> Admission:
    """What the conditions of a Workload say."""
    status, evicted = workload.get("status") or {}, _holds(workload, "Evicted")
    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    pods = next((item.get("count") for item in assigned if item.get("name") == POD_SET), None) or workload["spec"]["podSets"][0]["count"]
    holds_quota = evicted and (_holds(workload, "QuotaReserved") or "admission" in status)
    # An eviction stays told until the job is let in again; once its quota is given back, what it waits for is news.
    told = _conditions(workload).get("Evicted" if holds_quota else "QuotaReserved", {})
    is_leaving = evicted or "deletionTimestamp" in workload["metadata"] or not workload["spec"].get("active", True)
    return Admission(
        is_admitted=_holds(workload, "Admitted") and not is_leaving,
        pods=pods,
        message=f"queue {workload['spec']['queueName']}: {told.get('message') or 'not admitted yet'}",
        holds_quota=holds_quota,
        is_ready=_holds(workload, "PodsReady"),
    )


def given_back(workload: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of an evicted Workload whose Pods are gone: its quota is free.

    It waits again at once where only its place was needed; after any other reason, Kueue itself says when.
    """
    evicted = _conditions(workload)["Evicted"]
    reason, message = evicted["reason"], evicted.get("message", "")
    changes = {
        "QuotaReserved": ("False", "Pending", message),
        "Admitted": ("False", "NoReservation", message),
        "Requeued": ("True" if reason in _REQUEUED_AT_ONCE else "False", reason, message),
        "PodsReady": ("False", "WaitForStart", message),
    }
    return {"admission": None, "conditions": _changed(workload, changes, now)}


def started(workload: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of an admitted Workload whose trials have begun."""
    return {"conditions": _changed(workload, {"PodsReady": ("True", "Started", "trials run")}, now)}


def finished(workload: Mapping[str, Any], now: datetime, *, is_good: bool, message: str) -> dict[str, Any] | None:
    """The status of a Workload whose job has ended; None if it says so already."""
    if _holds(workload, "Finished"):
        return None
    return {"conditions": _changed(workload, {"Finished": ("True", "Succeeded" if is_good else "Failed", message)}, now)}


def _changed(workload: Mapping[str, Any], changes: Mapping[str, tuple[str, str, str]], now: datetime) -> list[Mapping[str, Any]]:
    return [
        *(item for kind, item in _conditions(workload).items() if kind not in changes),
        *(
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": format_time(now)}
            for kind, (status, reason, message) in changes.items()
        ),
    ]


def _conditions(workload: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {item["type"]: item for item in (workload.get("status") or {}).get("conditions") or ()}


def _holds(workload: Mapping[str, Any], kind: str) -> bool:
    return bool(_conditions(workload).get(kind, {}).get("status") == "True")


def _amount(value: Any) -> Decimal:
    """Of a quantity that others may have written; one that we would not write counts as nothing."""
    text = str(value)
    return Quantity(text).amount if re.fullmatch(Quantity.PATTERN, text) else Decimal(0)


def _pod_spec(pod_set: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = pod_set["template"]["spec"]
    return found
