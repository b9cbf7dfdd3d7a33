"""Harbor itself on the local cluster: its ``ack`` environment needs nothing but a kubeconfig."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

OVERRIDES: Final = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}}
"""Requests, so that a small node takes as many Pods as it can run."""


class Ended(NamedTuple):
    """How a trial ended, the same for both systems."""

    rewards: Mapping[str, float] | None
    error: str | None

    @classmethod
    def of_result(cls, result: Mapping[str, Any]) -> Ended:
        """From Harbor's trial result; the error of a step is the trial's."""
        steps = result.get("step_results") or ()
        errors = [item.get("exception_info") for item in (result, *steps)]
        error = next((item["exception_type"] for item in errors if item), None)
        return cls((result.get("verifier_result") or {}).get("rewards"), error)


PASSED: Final = Ended({"reward": 1.0}, None)


class HarborRun(NamedTuple):
    trials: dict[str, Ended]
    """By the last part of the task's name; of several attempts the last one."""
    passed: int
    """Trials with reward 1 and no error."""
    seconds: float


def run_harbor(
    python: Path, suite: Path, *, jobs: Path, kubeconfig: str, namespace: str, concurrency: int, attempts: int = 1, timeout: float = 900
) -> HarborRun:
    """Run the suite's own solutions.

    Raises:
        RuntimeError: Harbor itself failed; its output is in the message.
    """
    options = {
        "namespace": namespace,
        "skip_image_check": "true",
        "kubeconfig": kubeconfig,
        "pod_overrides": json.dumps(OVERRIDES),
    }
    command = [str(python.with_name("harbor")), "run", "-p", str(suite), "-a", "oracle", "-e", "ack", "-n", str(concurrency), "-q", "-y"]
    command += ["-k", str(attempts), "--job-name", "parity", "-o", str(jobs)]
    for name, value in options.items():
        command += ["--ek", f"{name}={value}"]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - begin
    results = [json.loads(file.read_text()) for file in sorted(jobs.glob("parity/*/result.json"))]
    if not results:
        raise RuntimeError(f"harbor ended with {done.returncode} and left no trial\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    trials = [(str(result["task_name"]).rpartition("/")[2], Ended.of_result(result)) for result in results]
    return HarborRun(dict(trials), sum(ended == PASSED for _, ended in trials), seconds)
