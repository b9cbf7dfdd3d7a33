"""EvalJobs in a queue of a real Kueue: admission, waiting, preemption, end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import rights

from . import kueue
from .harness import condition, evaljob, unique, wait_until, write_task
from .ops import TRIALS, Release

pytestmark = [pytest.mark.cluster, pytest.mark.deep]

IMAGE = "seatrial.local/smoke/hello-pass:dev"
API = f"{kueue.GROUP}/v1beta2"
QUEUE = "team"
QUOTA = {"cpu": "150m", "memory": "4Gi", "ephemeral-storage": "100Gi"}
"""CPU for two trials: 50m of the task and 20m of the runner each."""


def queues() -> list[dict[str, Any]]:
    """One queue with room for one job of two trials; who is more urgent takes it."""
    resources = [{"name": name, "nominalQuota": amount} for name, amount in QUOTA.items()]
    groups = [{"coveredResources": list(QUOTA), "flavors": [{"name": "ordinary", "resources": resources}]}]
    return [
        {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "ordinary"}},
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {
                "namespaceSelector": {},
                "queueingStrategy": "BestEffortFIFO",
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": groups,
            },
        },
        {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": QUEUE, "namespace": TRIALS}, "spec": {"clusterQueue": "all"}},
        {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, "value": 1000},
    ]


@pytest.fixture(scope="module")
def queued(ops: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The release with ``kueue.enabled``, beside a running Kueue with a queue."""
    running = kueue.start(ops.cluster, tmp_path_factory.mktemp("kueue"))
    try:
        ops.cluster.apply(*queues())
        ops.install(ops.values(kueue={"enabled": True}))
        ops.ready()
        wait_until(
            lambda: ops.cluster.get("localqueues.kueue.x-k8s.io", QUEUE, "-n", TRIALS),
            lambda queue: condition(queue, "Active").get("status") == "True",
            timeout=60,
            what=f"active queue; see {running.log}",
        )
        yield ops
        ops.install(ops.values())
        ops.cluster.kubectl("delete", "clusterqueues.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io", "--all", "--wait=false")
    finally:
        running.stop()


def submit(release: Release, taskset: str, *, urgent: bool = False) -> str:
    job = evaljob(unique("queued"), TRIALS, taskset=taskset, agent={"name": "oracle"}, concurrency=2)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE} | ({"kueue.x-k8s.io/priority-class": "urgent"} if urgent else {})
    release.cluster.apply(job)
    return str(job["metadata"]["name"])


def workload(release: Release, job: str) -> dict[str, Any]:
    """The only Workload of a job."""
    found = release.cluster.items("workloads.kueue.x-k8s.io", "--namespace", TRIALS)
    (one,) = [item for item in found if item["metadata"]["ownerReferences"][0]["name"] == job]
    return one


def running(release: Release, job: str) -> int:
    return int(release.cluster.job(job, TRIALS).get("status", {}).get("trials", {}).get("running", 0))


def wait_for_trials(release: Release, job: str) -> None:
    wait_until(lambda: running(release, job), lambda count: count == 2, timeout=120, what=f"trials of {job}")


def wait_in_queue(release: Release, job: str, *, why: str) -> None:
    """No Pod is there, and Kueue's reason is told."""
    seen = wait_until(
        lambda: release.cluster.job(job, TRIALS),
        lambda found: why in condition(found, "Suspended").get("message", ""),
        timeout=90,
        what=why,
    )
    assert (seen["status"]["phase"], condition(seen, "Suspended")["reason"]) == ("Suspended", "Queued")
    assert release.cluster.trial_pods(TRIALS, job) == []


def publish(release: Release, suite: Path, *, seconds: int) -> str:
    """A Taskset of two tasks whose agents take so long."""
    name = unique("queue")
    for number in range(2):
        write_task(suite / name, f"{name}-{number}", image=IMAGE, solve=f"sleep {seconds}")
    release.seatrial("publish", str(suite / name), "--taskset", name, "--namespace", TRIALS)
    return name


def test_jobs_wait_for_admission_are_preempted_as_infrastructure_and_all_end_scored(queued: Release, suite: Path) -> None:
    taskset = publish(queued, suite, seconds=20)
    first = submit(queued, taskset)
    wait_for_trials(queued, first)
    wait_until(
        lambda: {kind: condition(workload(queued, first), kind).get("status") for kind in ("Admitted", "PodsReady")},
        lambda states: states == {"Admitted": "True", "PodsReady": "True"},
        timeout=30,
        what="Workload of a job that runs",
    )
    second = submit(queued, taskset)
    wait_in_queue(queued, second, why="insufficient unused quota")

    third = submit(queued, taskset, urgent=True)
    wait_for_trials(queued, third)
    assert queued.cluster.trial_pods(TRIALS, first) == []

    jobs = (third, first, second)
    ends = [queued.cluster.finished(job, TRIALS, timeout=240)["status"] for job in jobs]
    assert [(end["phase"], end["trials"]["scored"], end["trials"]["errored"]) for end in ends] == [("Completed", 2, 0)] * 3
    assert [end["trials"]["retried"] for end in ends] == [0, 2, 0]
    wait_until(
        lambda: [condition(workload(queued, job), "Finished").get("status") for job in jobs],
        lambda states: states == ["True"] * 3,
        timeout=60,
        what="end of the Workloads",
    )


def test_a_suspended_job_gives_its_place_to_the_next_and_a_workload_made_smaller_gets_nobody_in(queued: Release, suite: Path) -> None:
    first = submit(queued, publish(queued, suite, seconds=60))
    wait_for_trials(queued, first)
    second = submit(queued, publish(queued, suite, seconds=5))
    wait_in_queue(queued, second, why="insufficient unused quota")

    # Whoever may write Workloads asks for next to nothing, and Kueue lets the job in for that.
    small = [{"op": "replace", "path": "/spec/podSets/0/template/spec/containers/0/resources/requests", "value": {"cpu": "1m"}}]
    name = workload(queued, second)["metadata"]["name"]
    sizes = workload(queued, second)["spec"]["podSets"]
    queued.cluster.kubectl("patch", "workload.kueue.x-k8s.io", name, "-n", TRIALS, "--type=json", f"--patch={json.dumps(small)}")
    wait_until(
        lambda: workload(queued, second),
        lambda found: found["spec"]["podSets"] == sizes and found["spec"]["active"],
        timeout=90,
        what="mended",
    )
    wait_in_queue(queued, second, why="insufficient unused quota")

    queued.cluster.kubectl("patch", "evaljob", first, "-n", TRIALS, "--type=merge", '--patch={"spec": {"suspend": true}}')
    ended = queued.cluster.finished(second, TRIALS, timeout=120)["status"]
    assert (ended["phase"], ended["trials"]["scored"], ended["trials"]["retried"]) == ("Completed", 2, 0)
    assert queued.cluster.trial_pods(TRIALS, first) == []
    queued.cluster.kubectl("patch", "evaljob", first, "-n", TRIALS, "--type=merge", '--patch={"spec": {"suspend": false}}')
    ended = queued.cluster.finished(first, TRIALS, timeout=240)["status"]
    assert (ended["phase"], ended["trials"]["scored"], ended["trials"]["retried"]) == ("Completed", 2, 2)


def test_every_right_for_queues_is_used(queued: Release) -> None:
    """By the tests above."""
    given = rights.documented("With `kueue.enabled`") | rights.documented("With `kueue.enabled`, in the cluster")
    calls = [event for event in queued.audit() if event.get("objectRef", {}).get("apiGroup") == kueue.GROUP]
    assert {event["annotations"]["authorization.k8s.io/decision"] for event in calls} == {"allow"}
    assert rights.of_audit(calls) == given
