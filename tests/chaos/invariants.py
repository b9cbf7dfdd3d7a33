"""What must hold after any fault, checked against the API server, the object store and the counter, not against the operator's word."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from ..e2e.harness import Cluster, wait_until
from .counter import runs


class Watcher:
    """Looks at the trial Pods all the time: never two live ones of one trial, never more than the job's concurrency."""

    def __init__(self, cluster: Cluster, namespace: str, job: str, *, concurrency: int) -> None:
        self._cluster, self._namespace, self._job, self._concurrency = cluster, namespace, job, concurrency
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            try:
                pods = self._cluster.trial_pods(self._namespace, self._job)
            except (AssertionError, ValueError, OSError):
                continue  # the API server is down: that is the point
            self.looks += 1
            live = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
            trials = Counter(pod["metadata"]["labels"]["seatrial.dev/trial"] for pod in live)
            self.faults += [f"{trial}: {count} live Pods" for trial, count in trials.items() if count > 1]
            if len(live) > self._concurrency:
                self.faults.append(f"{len(live)} live Pods, concurrency is {self._concurrency}")


def check(cluster: Cluster, namespace: str, job: str, *, trials: int, exactly_once: bool) -> dict[str, Any]:
    """Everything that must hold of an ended job; the answer is what was counted.

    Raises:
        AssertionError: a trial is lost, was run too often, or something is left.
    """
    body = cluster.job(job, namespace)
    wait_until(lambda: cluster.trial_pods(namespace, job), lambda pods: not pods, timeout=120, what="end of the Pods")
    prefix, store = cluster.prefix(job, namespace), cluster.store()
    keys = [entry.key.removeprefix(prefix) for entry in store.list(prefix)]
    shards = [key for key in keys if re.fullmatch(r"rows/\d+\.jsonl", key)]
    rows = [json.loads(line) for key in sorted(shards) for line in store.get(prefix + key, max_bytes=64 * 2**20).splitlines()]
    final = [row for row in rows if row["outcome"] != "retried"]
    assert len({(row["trial"], row["retry"]) for row in rows}) == len(rows), "a retry has two rows"
    assert len({row["trial"] for row in final}) == len(final) == trials, f"{len(final)} final rows of {trials} trials"
    outcomes = Counter(row["outcome"] for row in final)
    assert outcomes == {"scored": trials}, f"{outcomes}: {[row.get('error') for row in final if row['outcome'] != 'scored'][:5]}"
    told = body["status"]["trials"]
    wanted = {"total": trials, "scored": trials, "errored": 0, "cancelled": 0, "pending": 0, "running": 0, "retried": len(rows) - trials}
    assert {name: told[name] for name in wanted} == wanted, told
    retries = Counter(row["trial"] for row in rows if row["outcome"] == "retried")
    counted = agent_runs(cluster, namespace, job, rows)
    for trial, count in counted.items():
        assert 1 <= count <= 1 + retries[trial], f"{trial}: {count} agent runs, {retries[trial]} recorded retries"
        assert count == 1 or not exactly_once, f"{trial}: {count} agent runs"
    known = {row["trial"] for row in rows}
    for key in keys:
        part = re.fullmatch(r"trials/([^/]+)/\d+/[^/]+", key)
        assert part is None or part[1] in known, f"{key} belongs to no trial"
    left = [item["metadata"]["name"] for item in cluster.items("secrets,pvc", "-n", namespace) if not _owned(item, body)]
    return {"rows": len(rows), "retried": len(rows) - trials, "agent runs": sum(counted.values()), "other secrets": len(left)}


def agent_runs(cluster: Cluster, namespace: str, job: str, rows: list[dict[str, Any]]) -> dict[str, int]:
    """Agent runs by trial; the counter knows Pods, the rows know whose they are."""
    told = runs(cluster, namespace, job)
    by_stem = {row["pod"].rpartition("-")[0]: row["trial"] for row in rows if row.get("pod")}
    counted = dict.fromkeys((row["trial"] for row in rows), 0)
    for pod, count in told.items():
        stem = pod.rpartition("-")[0]
        assert stem in by_stem, f"agent of {pod} ran, and no row names its trial"
        counted[by_stem[stem]] += count
    return counted


def _owned(item: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    owners = item["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)
