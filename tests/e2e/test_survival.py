"""Kills at bad moments: nothing lost, nothing run twice, nothing scored that was not graded."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..chaos.counter import SERVER
from .conftest import NAMESPACE
from .harness import SYSTEM, Cluster, evaljob, unique, wait_until, write_task

pytestmark = pytest.mark.cluster
IMAGE = "seatrial.local/smoke/hello-pass:dev"


@pytest.fixture(scope="module")
def counter(installed: Cluster) -> Iterator[str]:
    """Address of a server that counts agent runs; an extra NetworkPolicy lets trial Pods reach it."""
    labels = {"app": "agent-run-counter"}
    meta = {"name": "agent-run-counter", "namespace": NAMESPACE}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "counter", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["python3", "-c", SERVER]},
            ],
        },
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta,
        "spec": {
            "podSelector": {"matchLabels": {"seatrial.dev/role": "trial"}},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": labels}}]}],
        },
    }
    installed.apply(pod, policy)
    installed.kubectl("wait", "--for=condition=Ready", "pod/agent-run-counter", "-n", NAMESPACE, "--timeout=60s")
    address = installed.get("pod", "agent-run-counter", "-n", NAMESPACE)["status"]["podIP"]
    yield f"http://{address}:8000"
    installed.kubectl("delete", "pod/agent-run-counter", "networkpolicy/agent-run-counter", "-n", NAMESPACE, "--wait=false")


def hits(cluster: Cluster) -> Counter[str]:
    """Agent runs by the name that the agent told."""
    read = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/hits').read().decode())"
    return Counter(cluster.kubectl("exec", "agent-run-counter", "-n", NAMESPACE, "--", "python3", "-c", read).split())


def publish_counting(cluster: Cluster, suite: Path, counter: str, taskset: str, *, tasks: int, seconds: float) -> None:
    """Tasks whose solution reports its run and then works for a while."""
    for number in range(tasks):
        report = f"import urllib.request; urllib.request.urlopen('{counter}/{taskset}-{number}', timeout=10).read()"
        write_task(suite, f"{taskset}-{number}", image=IMAGE, solve=f'python3 -c "{report}"\nsleep {seconds}')
    cluster.seatrial("publish", str(suite), "--taskset", taskset, "--namespace", NAMESPACE)


def assert_scored_once(rows: list[dict[str, Any]], *, tasks: int) -> None:
    """Every trial has one final row with the reward of its tests."""
    final = [row for row in rows if row["outcome"] != "retried"]
    assert len({row["trial"] for row in final}) == len(final) == tasks
    assert [(row["outcome"], row["rewards"]) for row in final] == [("scored", {"reward": 1.0})] * tasks


def running(cluster: Cluster, job: str) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in cluster.trial_pods(NAMESPACE, job))


@pytest.mark.conforms("H-147", "H-151")
@pytest.mark.parametrize("moment", ["just-submitted", "agents-running", "half-finished"])
def test_sigkill_of_the_operator_loses_no_trial_and_runs_none_twice(installed: Cluster, counter: str, suite: Path, moment: str) -> None:
    tag, tasks = unique("kill"), 6
    publish_counting(installed, suite, counter, tag, tasks=tasks, seconds=4)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag, concurrency=3, retry={"max": 1}))
    reached = {
        "just-submitted": lambda: True,
        "agents-running": lambda: running(installed, tag) >= 2,
        "half-finished": lambda: installed.job(tag, NAMESPACE).get("status", {}).get("trials", {}).get("scored", 0) >= 2,
    }[moment]
    wait_until(reached, bool, timeout=120, what=moment)
    assert installed.kill_operator() >= 1
    installed.finished(tag, NAMESPACE, timeout=240)
    assert_scored_once(installed.rows(tag, NAMESPACE), tasks=tasks)
    assert {name: count for name, count in hits(installed).items() if name.startswith(tag)} == {f"{tag}-{n}": 1 for n in range(tasks)}


@pytest.mark.conforms("H-146", "H-150")
def test_a_deleted_trial_pod_is_retried_once_and_counted(installed: Cluster, counter: str, suite: Path) -> None:
    tag = unique("gone")
    publish_counting(installed, suite, counter, tag, tasks=2, seconds=5)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag, concurrency=2, retry={"max": 1}))
    wait_until(lambda: sum(hits(installed)[f"{tag}-{n}"] for n in range(2)), lambda n: n == 2, timeout=90, what="two agent runs")
    victim = installed.trial_pods(NAMESPACE, tag)[0]["metadata"]
    installed.kubectl("delete", "pod", victim["name"], "-n", NAMESPACE, "--force", "--grace-period=0")
    job = installed.finished(tag, NAMESPACE, timeout=240)
    rows = installed.rows(tag, NAMESPACE)
    assert_scored_once(rows, tasks=2)
    assert job["status"]["trials"]["retried"] == 1
    runs = {name: count for name, count in hits(installed).items() if name.startswith(tag)}
    assert sorted(runs.values()) == [1, 2]


def test_a_restart_of_the_api_server_changes_no_result(installed: Cluster, counter: str, suite: Path) -> None:
    tag, tasks = unique("api"), 4
    publish_counting(installed, suite, counter, tag, tasks=tasks, seconds=6)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag, concurrency=2, retry={"max": 1}))
    wait_until(lambda: running(installed, tag), lambda n: n == 2, timeout=90, what="two running trials")
    installed.component("restart", "apiserver")
    wait_until(lambda: installed.kubectl("get", "--raw", "/readyz", check=False), lambda text: text == "ok", timeout=60, what="API server")
    installed.finished(tag, NAMESPACE, timeout=240)
    assert_scored_once(installed.rows(tag, NAMESPACE), tasks=tasks)
    assert {name: count for name, count in hits(installed).items() if name.startswith(tag)} == {f"{tag}-{n}": 1 for n in range(tasks)}


def test_a_store_outage_degrades_the_job_and_loses_nothing(installed: Cluster, counter: str, suite: Path) -> None:
    tag, tasks = unique("store"), 4
    publish_counting(installed, suite, counter, tag, tasks=tasks, seconds=3)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag, concurrency=2, retry={"max": 1}))
    wait_until(lambda: running(installed, tag), lambda n: n >= 1, timeout=90, what="a running trial")
    installed.kubectl("scale", "deployment/s3", "-n", "seatrial-s3", "--replicas=0")
    time_down = time.monotonic() + 20
    wait_until(time.monotonic, lambda now: now > time_down, timeout=30, what="20 s without a store")
    pods_down = {pod["metadata"]["name"] for pod in installed.trial_pods(NAMESPACE, tag)}
    installed.kubectl("scale", "deployment/s3", "-n", "seatrial-s3", "--replicas=1")
    installed.kubectl("rollout", "status", "deployment/s3", "-n", "seatrial-s3", "--timeout=60s")
    assert len(pods_down) <= 4
    installed.finished(tag, NAMESPACE, timeout=300)
    assert_scored_once(installed.rows(tag, NAMESPACE), tasks=tasks)


def test_a_standby_takes_over_when_the_leader_is_killed(installed: Cluster) -> None:
    def holder() -> str:
        leases = installed.items("leases", "-n", SYSTEM)
        return next((one["spec"].get("holderIdentity", "") for one in leases if one["metadata"]["name"].startswith("seatrial")), "")

    before = wait_until(holder, bool, timeout=60, what="a leader")
    installed.kubectl("delete", "pod", before.split("_")[0], "-n", SYSTEM, "--force", "--grace-period=0", check=False)
    wait_until(holder, lambda now: now not in ("", before), timeout=60, what="another leader")


@pytest.mark.deep
@pytest.mark.parametrize(("change", "ended"), [("cancel", "Cancelled"), ("suspend", "Suspended")])
def test_a_pod_that_stays_although_it_was_deleted_holds_no_job(installed: Cluster, suite: Path, change: str, ended: str) -> None:
    tag = unique("stays")
    write_task(suite, "endless", image=IMAGE, solve="sleep 10000")
    installed.seatrial("publish", str(suite), "--taskset", tag, "--namespace", NAMESPACE)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag, timeouts={"multiplier": 100}))
    wait_until(lambda: running(installed, tag), lambda n: n == 1, timeout=90, what="a running trial")
    pod = installed.trial_pods(NAMESPACE, tag)[0]["metadata"]["name"]
    finalizers = {"metadata": {"finalizers": ["tests.seatrial.dev/hold"]}}
    installed.kubectl("patch", "pod", pod, "-n", NAMESPACE, "--type=merge", "--patch", json.dumps(finalizers))
    try:
        installed.kubectl("patch", "evaljob", tag, "-n", NAMESPACE, "--type=merge", "--patch", json.dumps({"spec": {change: True}}))
        wait_until(
            lambda: installed.job(tag, NAMESPACE)["status"]["phase"], lambda phase: phase == ended, timeout=360, what=f"phase {ended}"
        )
        assert [one["metadata"]["name"] for one in installed.trial_pods(NAMESPACE, tag)] == [pod]
    finally:
        installed.kubectl("patch", "pod", pod, "-n", NAMESPACE, "--type=merge", "--patch", '{"metadata":{"finalizers":null}}')
