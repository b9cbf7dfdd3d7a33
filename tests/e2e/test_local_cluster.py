"""The local cluster itself: a second one beside the first, its death, its end.

Only the native provider: kind's nodes are kind's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .harness import REPOSITORY, wait_until

# Of this checkout alone: another one may run the same tests on the same machine.
STATE = f"/var/lib/seatrial/second-{hashlib.sha256(os.fsencode(REPOSITORY)).hexdigest()[:8]}"
IDENT = hashlib.sha256(os.fsencode(STATE)).hexdigest()[:8]
"""What the cluster's interface, rules and cgroups are named by."""

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="the native cluster needs root")]


@dataclass(frozen=True)
class Second:
    """A cluster with a state folder of its own."""

    def run(self, *words: str, check: bool = True) -> str:
        environ = {**os.environ, "SEATRIAL_STATE_DIR": STATE, "SEATRIAL_PROVIDER": "native"}
        done = subprocess.run(
            ["python3", "tests/cluster", *words], cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def pids(self) -> dict[str, int]:
        return {part["name"]: part["pid"] for part in json.loads(self.run("status", "--json")) if part["pid"]}

    def kubectl(self, *words: str) -> str:
        argv = [f"{STATE}/bin/kubectl", f"--kubeconfig={STATE}/kubeconfig", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def traces() -> dict[str, Any]:
    """What the second cluster could leave on the machine; clusters of other checkouts may come and go meanwhile."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout.splitlines()
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True).stdout)
    return {
        "rules": sorted(line for line in rules if line.startswith("-A") and is_ours(line)),
        "links": sorted(link["ifname"] for link in links if is_ours(link["ifname"])),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if is_ours(line)),
        "cgroups": sorted({path.name for path in Path("/sys/fs/cgroup").glob("**/seatrial-*") if path.is_dir() and is_ours(path.name)}),
        "processes": sorted(command for command in commands() if STATE in command),
        "state": Path(STATE).exists(),
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
    }


def is_ours(text: str) -> bool:
    return IDENT in text or STATE in text


def commands() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return traces()


@pytest.fixture(scope="module")
def second(before: dict[str, Any]) -> Iterator[Second]:
    cluster = Second()
    assert before == {"rules": [], "links": [], "mounts": [], "cgroups": [], "processes": [], "state": False, "forwarding": "1\n"}
    try:
        cluster.run("up")
        yield cluster
    finally:
        cluster.run("down")


def test_a_second_cluster_is_healthy_beside_the_first(second: Second) -> None:
    second.run("status")
    status = ["python3", "tests/cluster", "status", "--json"]
    first = json.loads(subprocess.run(status, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout)
    assert [part["name"] for part in first if not part["healthy"]] == []
    assert second.pids().keys() == {part["name"] for part in first if part["pid"]}


def test_nothing_of_a_cluster_is_mounted_on_the_machine(second: Second) -> None:
    found = traces()
    assert found["mounts"] == []
    assert all(found[kind] for kind in ("rules", "links", "cgroups", "processes"))


def test_up_again_leaves_every_process_as_it_is(second: Second) -> None:
    pids = second.pids()
    second.run("up")
    assert second.pids() == pids


def test_a_killed_component_is_reported_and_started_again(second: Second) -> None:
    second.run("kill", "scheduler")
    health = {part["name"]: part["healthy"] for part in json.loads(second.run("status", "--json", check=False))}
    assert [name for name, healthy in health.items() if not healthy] == ["scheduler"]
    second.run("start", "scheduler")
    second.run("status")


def test_a_dead_node_comes_back_with_its_objects(second: Second) -> None:
    second.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    os.kill(second.pids()["init"], signal.SIGKILL)
    second.run("up")
    assert json.loads(second.kubectl("get", "configmap", "kept", "--output=json"))["data"] == {"a": "b"}
    wait_until(
        lambda: json.loads(second.kubectl("get", "pods", "--all-namespaces", "--output=json"))["items"],
        lambda pods: bool(pods) and all(status["ready"] for pod in pods for status in pod["status"]["containerStatuses"]),
        timeout=60,
        what="running Pods",
    )


def test_down_leaves_no_process_mount_interface_rule_or_cgroup(second: Second, before: dict[str, Any]) -> None:
    assert traces()["processes"] != []
    second.run("down")
    assert traces() == before
