"""Ten thousand generated tasks in one Taskset: published, pinned and planned: ``python -m tests.bench large``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ..e2e.harness import Cluster, condition, evaljob, unique, wait_until
from .record import Figure, figure

NAMESPACE = "bench"
TASKS = 10_000
MOST_BYTES = 100 * 1024
"""Of any object of the API."""
COMMAND = "python -m tests.bench large"
TIMEOUT = 1800


def measure(cluster: Cluster, folder: Path, *, tasks: int = TASKS) -> list[Figure]:
    """Publishing with verification of every task, publishing again, planning; checks the size of every object."""
    cluster.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=300)
    name = unique("large")
    _generate(folder, name, tasks)
    publish = ("publish", str(folder), "--taskset", name, "--namespace", NAMESPACE, "--timeout", str(TIMEOUT))
    first = _timed(lambda: cluster.seatrial(*publish, timeout=TIMEOUT))
    again = _timed(lambda: cluster.seatrial(*publish, timeout=TIMEOUT))
    start = time.perf_counter()
    cluster.apply(evaljob(name, NAMESPACE, taskset=name, concurrency=1))
    job = wait_until(
        lambda: cluster.job(name, NAMESPACE),
        lambda seen: condition(seen, "PlanReady").get("status") == "True",
        timeout=300,
        what="plan",
    )
    planned = time.perf_counter() - start
    assert job["status"]["plan"]["trials"] == tasks, job["status"]["plan"]
    cluster.kubectl("delete", "evaljob", name, "-n", NAMESPACE, "--wait=false")
    taskset = cluster.get("taskset", name, "-n", NAMESPACE)
    assert (taskset["status"]["members"], condition(taskset, "Pinned")["status"]) == (tasks, "True")
    path = f"/apis/seatrial.dev/v1alpha1/namespaces/{NAMESPACE}/tasks"
    largest = max(len(json.dumps(item)) for item in (job, taskset, *json.loads(cluster.kubectl("get", "--raw", path))["items"]))
    assert largest < MOST_BYTES, largest
    cluster.kubectl("delete", "--raw", path, timeout=300)
    note = f"{tasks} tasks of five files; the largest object of the API has {largest} bytes"
    return [
        figure("publish a large taskset", first, "s", command=COMMAND, note=f"{note}; packed, stored, verified by the operator, pinned"),
        figure("publish a large taskset again", again, "s", command=COMMAND, note=f"{note}; nothing changed, nothing is written"),
        figure("plan a large taskset", planned, "s", command=COMMAND, note=f"{note}; from apply to PlanReady"),
    ]


def _generate(folder: Path, stem: str, tasks: int) -> None:
    for index in range(tasks):
        task = folder / f"{stem}-{index:05}"
        for part in ("environment", "tests", "solution"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text(f'[task]\nname = "{stem}/t{index:05}"\n[environment]\ncpus = 1\n')
        (task / "instruction.md").write_text(f"Write {index} into /app/result.txt.\n")
        (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\n")
        (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        (task / "solution" / "solve.sh").write_text(f"#!/bin/sh\necho {index} > /app/result.txt\n")


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
