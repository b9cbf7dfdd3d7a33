"""The local cluster as the tests see it: kubectl, the CLI, S3, the operator's process.

Why subprocesses and not a client library: the tests do what users do, and compare what users see.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from seatrial.effects.store import Store, StoreSettings

REPOSITORY = Path(__file__).resolve().parents[2]
SYSTEM = "seatrial-system"
T = TypeVar("T")
TERMINAL = ("Completed", "Failed", "Cancelled")


def wait_until(observe: Callable[[], T], good: Callable[[T], bool], *, timeout: float, what: str, every: float = 0.3) -> T:
    """Observe until ``good``; gives up with the last observation.

    Raises:
        AssertionError: ``timeout`` seconds have passed.
    """
    end = time.monotonic() + timeout
    while True:
        seen = observe()
        if good(seen):
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"no {what} within {timeout:.0f} s; last seen: {str(seen)[:3000]}")
        time.sleep(every)


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cluster:
    """The local cluster; ``env`` is what ``python3 tests/cluster env`` prints."""

    env: Mapping[str, Any]

    def run(self, *command: str, given: str | None = None, check: bool = True, timeout: float = 300) -> Result:
        """Run a command with the cluster's kubeconfig and S3 settings in its environment."""
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=timeout, env=self.environment(), cwd=REPOSITORY, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)[:300]} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return Result(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": self.env["kubeconfig"],
            "PATH": f"{Path(sys.executable).parent}:{Path(self.env['kubectl']).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
        }

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True, timeout: float = 120) -> str:
        return self.run(self.env["kubectl"], *arguments, given=given, check=check, timeout=timeout).out

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        return list(self.get(*arguments)["items"])

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all([dict(one) for one in objects]))

    def seatrial(self, *arguments: str, check: bool = True, timeout: float = 600) -> Result:
        return self.run(str(Path(sys.executable).with_name("seatrial")), *arguments, check=check, timeout=timeout)

    def install(self, namespace: str, values: Mapping[str, str] = MappingProxyType({})) -> None:
        """The chart, watching one namespace more; a missing Secret is waited for a shorter time than usual."""
        given = {"operator.settings.CONFIG_GRACE_SECONDS": "15", **values}
        sets = [f"--set={name}={value}" for name, value in given.items()]
        self.run("python3", "tests/cluster", "install", "--namespace", namespace, *sets, timeout=900)

    def component(self, verb: str, name: str, *options: str) -> None:
        """``kill`` or ``restart`` a component of the cluster itself, such as ``apiserver``."""
        self.run("python3", "tests/cluster", verb, name, *options, timeout=180)

    # --- jobs -------------------------------------------------------------------------------------------------------------------------

    def job(self, name: str, namespace: str) -> dict[str, Any]:
        value: dict[str, Any] = self.get("evaljob", name, "-n", namespace)
        return value

    def finished(self, name: str, namespace: str, *, timeout: float = 180) -> dict[str, Any]:
        """The job in a terminal phase."""
        return wait_until(
            lambda: self.job(name, namespace),
            lambda job: job.get("status", {}).get("phase") in TERMINAL,
            timeout=timeout,
            what=f"end of job {name}",
        )

    def trial_pods(self, namespace: str, job: str | None = None) -> list[dict[str, Any]]:
        selector = "seatrial.dev/role=trial" + (f",seatrial.dev/job-name={job}" if job else "")
        return self.items("pods", "-n", namespace, "-l", selector)

    # --- results ----------------------------------------------------------------------------------------------------------------------

    def store(self) -> Store:
        """The object store as people reach it."""
        keys = json.loads(Path(self.env["s3"]["credentialsFile"]).read_text())
        return Store(
            StoreSettings(
                endpoint=self.env["s3"]["externalEndpoint"],
                bucket=self.env["s3"]["bucket"],
                region=self.env["s3"]["region"],
                access_key=keys["accessKey"],
                secret_key=keys["secretKey"],
            )
        )

    def prefix(self, name: str, namespace: str) -> str:
        """Key prefix of the job's results, with a slash at its end."""
        return f"jobs/{namespace}/{name}-{self.job(name, namespace)['metadata']['uid']}/"

    def rows(self, name: str, namespace: str) -> list[dict[str, Any]]:
        """The job's ``trials.jsonl``, one object a line."""
        data = self.store().get(f"{self.prefix(name, namespace)}trials.jsonl", max_bytes=64 * 1024 * 1024)
        return [json.loads(line) for line in data.splitlines()]

    # --- the operator's process -------------------------------------------------------------------------------------------------------

    def operator_pids(self) -> list[int]:
        """Host pids of the operator's containers: the processes whose control group names one of its Pods."""
        pods = self.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=seatrial")
        uids = [pod["metadata"]["uid"] for pod in pods]
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                groups, command = (entry / "cgroup").read_text(), (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"seatrial-operator" in command and any(uid in groups for uid in uids):
                found.append(int(entry.name))
        return found

    def kill_operator(self) -> int:
        """SIGKILL to every replica at once; returns how many processes were hit."""
        pids = self.operator_pids()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)


def unique(stem: str) -> str:
    """A name that no earlier test used."""
    return f"{stem}-{secrets.token_hex(3)}"


def evaljob(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "EvalJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def condition(job: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The condition of that type; empty when there is none."""
    return next((one for one in job.get("status", {}).get("conditions", []) if one["type"] == kind), {})


def write_task(
    folder: Path,
    name: str,
    *,
    image: str,
    solve: str = "true",
    test: str = "echo 1 > /logs/verifier/reward.txt",
    config: str = "",
) -> Path:
    """A small Harbor task on ``image``; scripts are bash bodies, ``config`` is appended to task.toml."""
    task = folder / name
    for part in ("environment", "solution", "tests"):
        (task / part).mkdir(parents=True)
    (task / "environment" / "notes.txt").write_text("ready image\n")
    (task / "task.toml").write_text(
        f'schema_version = "1.4"\n[task]\nname = "e2e/{name}"\n[agent]\ntimeout_sec = 60.0\n'
        f'[verifier]\ntimeout_sec = 60.0\n[environment]\ndocker_image = "{image}"\ncpus = 0.05\nmemory_mb = 64\n{config}'
    )
    (task / "instruction.md").write_text(f"Task {name} of the end-to-end tests.\n")
    for script, body in (("solution/solve.sh", solve), ("tests/test.sh", test)):
        (task / script).write_text(f"#!/bin/bash\n{body}\n")
        (task / script).chmod(0o755)
    return task


def rewards_by_task(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Task -> reward, or its error's type when it has none."""
    return {row["task"]: row["rewards"]["reward"] if row.get("rewards") else row["error"]["type"] for row in rows}
