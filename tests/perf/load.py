"""Jobs for the harness, what is measured while they run, and what must hold afterwards."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.taskpkg.pack import pack_task

from .operator_process import OperatorProcess, Sample
from .plane import Plane, wait_for

GROUP = "/apis/seatrial.dev/v1alpha1"
NAMESPACE = "perf"
TERMINAL = ("Completed", "Failed", "Cancelled")
ENVIRONMENT = '[environment]\ndocker_image = "registry.example/perf:1"\ncpus = 0.1\nmemory_mb = 64\n'


@dataclass
class Watched:
    """Extremes of one operator's metrics over a run."""

    first: Sample
    last: Sample
    seconds: float
    rss_bytes: float
    """Largest of all samples."""
    live_pods: float
    """Largest number in the informer."""
    queue_seconds: float
    """Longest wait of a key for its pass."""

    @property
    def cpu_seconds(self) -> float:
        return self.last.one("process_cpu_seconds_total") - self.first.one("process_cpu_seconds_total")

    def grown(self, name: str, **labels: str) -> float:
        """Growth of a counter."""
        return self.last.sum(name, **labels) - self.first.sum(name, **labels)

    def requests(self) -> dict[str, float]:
        """Requests by verb and resource."""
        before, after = (sample.by("seatrial_api_requests_total", "verb", "resource") for sample in (self.first, self.last))
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        return {name: value for name, value in sorted(grown.items()) if value}


@dataclass
class Load:
    """Tasks, jobs and results on a plane."""

    plane: Plane
    names: list[str] = field(default_factory=list)

    def namespace(self) -> None:
        self.plane.api("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def publish(self, count: int) -> None:
        """``count`` Tasks with real archives; the operator verifies them."""
        store = self.plane.store()
        for number in range(count):
            name = f"task-{number:05d}"
            with tempfile.TemporaryDirectory() as scratch:
                folder, target = Path(scratch) / name, Path(scratch) / "archive"
                write_task(folder, name)
                packed = pack_task(folder, target)
                ref = f"{NAMESPACE}/suite#{name}/{packed.sha256}/task_archive"
                store.put(f"filesets/{ref.replace('#', '/')}", target)
            self.plane.api("POST", self._path("tasks"), _object("Task", name, {"source": {"ref": ref, "sha256": packed.sha256}}))
            self.names.append(name)

    def verified(self) -> bool:
        tasks = self.plane.api("GET", self._path("tasks"))["items"]
        return all((_condition(task, "Verified") or {}).get("status") == "True" for task in tasks)

    def bystanders(self, count: int) -> None:
        """``count`` further Tasks that were verified long ago: nobody uses them, they are only there."""
        for number in range(count):
            name = f"bystander-{number:05d}"
            spec = {"source": {"ref": f"{NAMESPACE}/other#{name}/{'a' * 64}/task_archive", "sha256": "a" * 64}}
            made = self.plane.api("POST", self._path("tasks"), _object("Task", name, spec))
            condition = {
                "type": "Verified",
                "status": "True",
                "reason": "ArchiveVerified",
                "message": "revision 1",
                "lastTransitionTime": made["metadata"]["creationTimestamp"],
                "observedGeneration": 1,
            }
            status = {"observedGeneration": 1, "revision": 1, "digest": "b" * 64, "nativeTaskId": f"perf/{name}", "conditions": [condition]}
            self.plane.api("PATCH", f"{self._path('tasks')}/{name}/status", {"status": status}, kind="merge-patch+json")

    def submit(self, job: str, *, tasks: int, attempts: int, concurrency: int, **spec: Any) -> None:
        """An EvalJob on the first ``tasks`` Tasks."""
        body = {
            "tasks": self.names[:tasks],
            "attempts": attempts,
            "concurrency": concurrency,
            "agent": {"name": "oracle"},
            "retry": {"max": 3, "backoff": {"min": "1s", "max": "5s"}},
            **spec,
        }
        self.plane.api("POST", self._path("evaljobs"), _object("EvalJob", job, body))

    def job(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self.plane.api("GET", f"{self._path('evaljobs')}/{name}")
        return value

    def jobs(self) -> list[dict[str, Any]]:
        value: list[dict[str, Any]] = self.plane.api("GET", self._path("evaljobs"))["items"]
        return value

    def ended(self, jobs: Sequence[str]) -> bool:
        phases = {job["metadata"]["name"]: (job.get("status") or {}).get("phase") for job in self.jobs()}
        return all(phases.get(name) in TERMINAL for name in jobs)

    def watch(self, operator: OperatorProcess, until: Callable[[], bool], *, seconds: float, every: float = 5.0) -> Watched:
        """Sample the operator's metrics until something is true.

        Raises:
            TimeoutError: it is not within ``seconds``.
        """
        started = time.monotonic()
        first = last = operator.sample()
        rss = pods = queue = 0.0
        while True:
            rss = max(rss, last.one("process_resident_memory_bytes"))
            pods = max(pods, last.one("seatrial_informer_pods"))
            queue = max(queue, last.one("seatrial_queue_oldest_seconds"))
            if until():
                last = operator.sample()
                return Watched(first, last, time.monotonic() - started, rss, pods, queue)
            if time.monotonic() - started > seconds:
                states = Counter((job.get("status") or {}).get("progress", "-") for job in self.jobs())
                raise TimeoutError(f"the jobs did not end within {seconds:.0f} s: {dict(states)}")
            time.sleep(every)
            last = operator.sample()

    def results(self, job: str) -> list[dict[str, Any]]:
        """The rows of an ended job: ``trials.jsonl``."""
        body = self.job(job)
        key = f"jobs/{NAMESPACE}/{job}-{body['metadata']['uid']}/trials.jsonl"
        return [json.loads(line) for line in self.plane.store().get(key, max_bytes=512 * 2**20).splitlines()]

    def all_rows(self, job: str) -> list[dict[str, Any]]:
        """Every row that was committed, retried ones included, from the shards."""
        prefix = f"jobs/{NAMESPACE}/{job}-{self.job(job)['metadata']['uid']}/rows/"
        store = self.plane.store()
        keys = [entry.key for entry in store.list(prefix) if "base-" not in entry.key]
        return [json.loads(line) for key in keys for line in store.get(key, max_bytes=512 * 2**20).splitlines()]

    def pods(self) -> list[dict[str, Any]]:
        items, token = [], ""
        while True:
            page = self.plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?limit=500&continue={token}")
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return items

    def check(self, jobs: Sequence[str], *, trials: int) -> Counter[str]:
        """What must hold after any run; the answer counts outcomes of all rows.

        Raises:
            AssertionError: a trial is lost, counted twice, or something is left over.
        """
        wait_for("end of the Pods", lambda: not self.pods(), seconds=120, every=1.0)
        outcomes: Counter[str] = Counter()
        for name in jobs:
            status, rows = self.job(name)["status"], self.all_rows(name)
            final = [row for row in rows if row["outcome"] != "retried"]
            assert len({(row["trial"], row["retry"]) for row in rows}) == len(rows), f"{name}: a retry has two rows"
            assert len({row["trial"] for row in final}) == len(final) == trials, f"{name}: {len(final)} final rows of {trials} trials"
            counts = status["trials"]
            seen = Counter(row["outcome"] for row in final)
            told = {outcome: counts[outcome] for outcome in ("scored", "errored", "cancelled")}
            assert told == {outcome: seen[outcome] for outcome in told}, f"{name}: status says {told}, rows say {dict(seen)}"
            assert counts["retried"] == len(rows) - len(final), f"{name}: retried"
            assert (counts["total"], counts["pending"], counts["running"]) == (trials, 0, 0), f"{name}: {counts}"
            rewards = [row["rewards"]["reward"] for row in final if row["outcome"] == "scored"]
            mean = next(item for item in status["scores"] if item["count"] == len(rewards)) if rewards else None
            assert mean is None or abs(float(mean["value"]) - sum(rewards) / len(rewards)) < 1e-9, f"{name}: {mean}"
            assert len(json.dumps(status)) < 64 * 1024, f"{name}: the status is too long"
            outcomes.update(row["outcome"] for row in rows)
        return outcomes

    def _path(self, plural: str) -> str:
        return f"{GROUP}/namespaces/{NAMESPACE}/{plural}"


def write_task(folder: Path, name: str) -> None:
    """A small Harbor task."""
    for sub, file, text in (
        ("", "instruction.md", f"Do {name}.\n"),
        (
            "",
            "task.toml",
            f'[task]\nname = "perf/{name}"\n[environment]\ndocker_image = "registry.example/perf:1"\ncpus = 0.1\nmemory_mb = 64\n',
        ),
        ("tests", "test.sh", "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"),
        ("solution", "solve.sh", "#!/bin/sh\ntrue\n"),
        ("environment", "Dockerfile", "FROM scratch\n"),
    ):
        (folder / sub).mkdir(parents=True, exist_ok=True)
        (folder / sub / file).write_text(text)
        if file.endswith(".sh"):
            (folder / sub / file).chmod(0o755)


def _condition(body: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((item for item in (body.get("status") or {}).get("conditions", []) if item["type"] == kind), None)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "seatrial.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
