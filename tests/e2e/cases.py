"""Tasks of one case each, the job that runs them, and what is left of it.

Why many in one job: a job costs more than a trial.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .harness import Cluster, evaljob, unique

NAMESPACE = "life"
IMAGE = "seatrial.local/smoke/hello-pass:dev"
PASS = "echo 1 > /logs/verifier/reward.txt"
TOP = """schema_version = "1.4"
artifacts = [{artifacts}]
[task]
name = "cases/{name}"
[environment]
docker_image = "{image}"
cpus = 0.05
memory_mb = {memory}
build_timeout_sec = 120.0
"""


def write(folder: Path, name: str, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if path.endswith(".sh"):
            file.chmod(0o755)


def case(
    folder: Path,
    name: str,
    *,
    solve: str = "true",
    test: str = PASS,
    image: str = IMAGE,
    memory: int = 64,
    environment: str = "",
    sections: str = "",
    artifacts: str = "",
    files: Mapping[str, str] | None = None,
) -> None:
    """A task of one case: ``environment`` are lines of that section, ``sections`` whole ones."""
    limits = "" if "[agent]" in sections else "[agent]\ntimeout_sec = 60.0\n"
    top = TOP.format(name=name, image=image, memory=memory, artifacts=artifacts)
    plain = {
        "task.toml": f"{top}{environment}\n{limits}{sections}\n",
        "instruction.md": f"Case {name}.\n",
        "environment/note.txt": "loose\n",
        "solution/solve.sh": f"#!/bin/sh\n{solve}\n",
        "tests/test.sh": f"#!/bin/sh\n{test}\n",
    }
    write(folder, name, {**plain, **(files or {})})


class Finished:
    """A job that ended: rows by the last part of the task's name."""

    def __init__(self, cluster: Cluster, name: str, namespace: str = NAMESPACE) -> None:
        self.cluster, self.name, self.namespace = cluster, name, namespace
        self.status = cluster.job(name, namespace)["status"]
        self.rows = {row["task"].rpartition("/")[2]: row for row in cluster.rows(name, namespace)}

    def __getitem__(self, task: str) -> tuple[float | None, str | None]:
        """Reward and error type."""
        row = self.rows[task]
        return (row.get("rewards") or {}).get("reward"), (row.get("error") or {}).get("type")

    def result(self, task: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self._object(task, "result.json"))
        return value

    def logs(self, task: str) -> dict[str, bytes]:
        found = {}
        with tarfile.open(fileobj=io.BytesIO(self._object(task, "logs.tar.gz"))) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if member.isreg() and file is not None:
                    found[member.name] = file.read()
        return found

    def _object(self, task: str, name: str) -> bytes:
        row = self.rows[task]
        key = f"{self.cluster.prefix(self.name, self.namespace)}trials/{row['trial']}/{row['retry']}/{name}"
        return bytes(self.cluster.store().get(key, max_bytes=256 * 1024 * 1024))


def run_job(cluster: Cluster, suite: Path, stem: str, *, timeout: float = 240, **spec: Any) -> Finished:
    name = unique(stem)
    cluster.seatrial("publish", str(suite), "--taskset", name, "--namespace", NAMESPACE)
    cluster.apply(evaljob(name, NAMESPACE, taskset=name, concurrency=8, **spec))
    cluster.finished(name, NAMESPACE, timeout=timeout)
    return Finished(cluster, name)
