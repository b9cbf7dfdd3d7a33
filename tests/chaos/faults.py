"""What is done to the cluster, by name. Each takes the cluster down in part and leaves it whole again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..e2e.harness import SYSTEM, Cluster, wait_until

PAUSE_SECONDS = 20.0
"""Longer than the Lease, which lasts 15 s."""
OUTAGE_SECONDS = 5.0
S3_NAMESPACE = "seatrial-s3"


def kill_operator(cluster: Cluster) -> None:
    """SIGKILL to every replica. After some kills the kubelet starts a container only minutes later: a new Pod takes its place at once."""
    if not cluster.operator_pids():
        cluster.kubectl("delete", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator", "--wait=false", "--grace-period=1")
    wait_until(cluster.kill_operator, bool, timeout=120, what="a process of the operator")


def pause_operator(cluster: Cluster) -> None:
    """SIGSTOP to every replica for longer than the Lease."""
    pids = wait_until(cluster.operator_pids, bool, timeout=60, what="a process of the operator")
    for number, pause in ((signal.SIGSTOP, PAUSE_SECONDS), (signal.SIGCONT, 0.0)):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        time.sleep(pause)


def kill_s3(cluster: Cluster) -> None:
    """SIGKILL to the S3 server; the kubelet starts it again, and where it would wait for minutes, a new Pod takes its place."""
    if not s3_pids(cluster):
        cluster.kubectl("delete", "pods", "-n", S3_NAMESPACE, "--all", "--wait=false", "--grace-period=1")
    for pid in wait_until(lambda: s3_pids(cluster), bool, timeout=90, what="a process of the S3 server"):
        os.kill(pid, signal.SIGKILL)


def s3_pids(cluster: Cluster) -> list[int]:
    return processes(cluster, S3_NAMESPACE, b"versitygw")


def component(name: str) -> Callable[[Cluster], None]:
    """SIGKILL to a component of the cluster, which starts again after an outage."""

    def kill(cluster: Cluster) -> None:
        cluster.component("kill", name)
        time.sleep(OUTAGE_SECONDS)
        cluster.component("start", name)
        if name == "etcd":
            # The API server ends itself when etcd stays away for long.
            cluster.component("start", "apiserver")
        if name in ("etcd", "apiserver"):
            wait_until(lambda: cluster.kubectl("get", "--raw", "/readyz", check=False), lambda text: text == "ok", timeout=90, what="API")
            for other in ("controller-manager", "scheduler"):
                cluster.component("start", other)

    return kill


def processes(cluster: Cluster, namespace: str, word: bytes) -> list[int]:
    """Host pids of a namespace's Pods whose command line holds ``word``."""
    uids = [pod["metadata"]["uid"] for pod in cluster.items("pods", "-n", namespace)]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            groups, command = (entry / "cgroup").read_text(), (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in command and any(uid in groups for uid in uids):
            found.append(int(entry.name))
    return found


FAULTS: Mapping[str, Callable[[Cluster], None]] = {
    "operator": kill_operator,
    "operator-pause": pause_operator,
    "s3": kill_s3,
    "apiserver": component("apiserver"),
    "etcd": component("etcd"),
    "kubelet": component("kubelet"),
    "containerd": component("containerd"),
}
HARMLESS = frozenset({"operator", "operator-pause", "s3", "apiserver", "etcd"})
"""No trial Pod is touched: every agent runs exactly once."""

__all__ = ["FAULTS", "HARMLESS", "SYSTEM"]
