"""Images that tasks describe by Dockerfiles: built once, by buildah here or by the cluster, with the same verdicts.

The suite of twelve is in ``tests/images/suites/builds``: nine good tasks and three whose Dockerfiles are broken in different ways.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import NAMESPACE
from .harness import REPOSITORY, Cluster, Result, evaljob, rewards_by_task, unique, wait_until

pytestmark = pytest.mark.cluster
SUITE = REPOSITORY / "tests" / "images" / "suites" / "builds"
BROKEN = {"broken-base", "broken-copy", "broken-run"}
GOOD = {path.name for path in SUITE.iterdir()} - BROKEN
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True)
class Registry:
    """The cluster's registry, and buildah with a storage of its own."""

    cluster: Cluster
    address: str
    base: str
    scratch: Path

    def seatrial(self, *arguments: str, check: bool = True) -> Result:
        """A command that builds with buildah."""
        variables = {
            "PATH": f"{self.scratch}/bin:{self.cluster.environment()['PATH']}",
            "CONTAINERS_STORAGE_CONF": f"{self.scratch}/storage.conf",
            "BUILDAH_ISOLATION": "chroot",
        }
        options = ["--builder=buildah", f"--build-arg=BASE={self.base}", "--insecure-registry", f"--log-dir={self.scratch}/logs"]
        options += ["--build-option=--network=host", "--build-option=--volume=/etc/ssl/certs:/etc/ssl/certs:ro"]
        pairs = [f"{name}={value}" for name, value in variables.items()]
        command = shutil.which("seatrial", path=self.cluster.environment()["PATH"]) or "seatrial"
        return self.cluster.run("env", *pairs, command, *arguments, *options, check=check, timeout=600)

    def logs(self) -> set[str]:
        """Names of the builds that were run."""
        return {path.name for path in (self.scratch / "logs").glob("*.log")}


@pytest.fixture(scope="module")
def registry(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """The registry, and the operator with a repository in it that nobody has used before."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    found = installed.run("python3", "tests/cluster", "registry", timeout=900).json()
    scratch = tmp_path_factory.mktemp("buildah")
    (scratch / "bin").mkdir()
    # buildah leaves its storage mounted; in a mount namespace of its own that ends with it.
    (scratch / "bin" / "buildah").write_text('#!/bin/sh\nexec unshare --mount -- /usr/bin/buildah "$@"\n')
    (scratch / "bin" / "buildah").chmod(0o755)
    (scratch / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{scratch}/graph"\nrunroot = "{scratch}/run"\n')
    certificates = Path(CERTIFICATES).read_text()
    installed.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "build-files", "namespace": NAMESPACE},
            "data": {"ca-certificates.crt": certificates},
        }
    )
    values = {
        "builds.repository": f"{found['address']}/{unique('cluster')}/tasks",
        "builds.insecure": "true",
        "builds.args.BASE": found["base"],
        "builds.executorImage": found["executor"],
        f"builds.files.{CERTIFICATES.replace('.', chr(92) + '.')}": "build-files/ca-certificates.crt",
    }
    sets = [f"--set={name}={value}" for name, value in values.items()]
    installed.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, *sets, timeout=600)
    yield Registry(installed, found["address"], found["base"], scratch)
    installed.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=600)


def rows_by_task(cluster: Cluster, job: str) -> dict[str, Any]:
    found = rewards_by_task(cluster.rows(job, NAMESPACE))
    return {name.rpartition("/")[2]: value for name, value in found.items()}


@pytest.mark.conforms("H-58")
def test_a_suite_is_built_published_and_run_and_nothing_is_built_twice(registry: Registry) -> None:
    cluster, repository = registry.cluster, f"{registry.address}/{unique('host')}/tasks"
    taskset = unique("built")
    publish = ["publish", str(SUITE), "--build", "--repository", repository, "--partial", "--taskset", taskset, "-n", NAMESPACE]
    publish += ["--name-template", f"{taskset}-{{dir}}", "-o", "jsonl"]
    first = registry.seatrial(*publish, check=False)
    tasks = {json.loads(line)["path"].rpartition("/")[2]: json.loads(line) for line in first.out.splitlines()}
    failed = {name: task["message"] for name, task in tasks.items() if task["outcome"] == "failed"}
    # Older versions of buildah do not know here-documents, and say so.
    unknown = {"heredoc"} & failed.keys()
    assert all("does not know here-documents" in failed[name] for name in unknown)
    assert failed.keys() - unknown == BROKEN
    lines = {name: failed[name].partition("): ")[0] for name in BROKEN}
    assert lines == {
        "broken-base": "environment/Dockerfile line 1 (FROM seatrial.invalid/no/such/image:1",
        "broken-copy": "environment/Dockerfile line 3 (COPY not-there.txt /opt/",
        "broken-run": 'environment/Dockerfile line 4 (RUN echo "nothing here works" >&2 && exit 7',
    }

    built = registry.logs()
    for log in (registry.scratch / "logs").glob("*.log"):
        log.unlink()
    second = registry.seatrial(*publish, check=False)
    outcomes = {json.loads(line)["path"].rpartition("/")[2]: json.loads(line)["outcome"] for line in second.out.splitlines()}
    good = GOOD - unknown
    assert {name for name, outcome in outcomes.items() if outcome == "unchanged"} == good
    # Only what failed before was tried again.
    assert {name.rpartition("-environment-")[0] for name in registry.logs()} == BROKEN | unknown
    assert len(built) == len(tasks)

    job = unique("built")
    cluster.apply(evaljob(job, NAMESPACE, taskset=taskset, concurrency=4))
    cluster.finished(job, NAMESPACE, timeout=300)
    assert rows_by_task(cluster, job) == dict.fromkeys(good, 1.0)
    spec = cluster.get("task", f"{taskset}-non-root", "-n", NAMESPACE)["spec"]["images"]["environment"]
    assert spec["image"].startswith(f"{repository}@sha256:")
    assert (spec["user"], spec["workdir"]) == ("worker", "/home/worker")


@pytest.mark.conforms("H-35", "H-58")
def test_the_cluster_builds_the_same_suite_with_the_same_verdicts(registry: Registry) -> None:
    cluster, taskset = registry.cluster, unique("kaniko")
    publish = ["publish", str(SUITE), "--taskset", taskset, "-n", NAMESPACE, "--name-template", f"{taskset}-{{dir}}"]
    cluster.seatrial(*publish)
    job = unique("kaniko")
    cluster.apply(evaljob(job, NAMESPACE, taskset=taskset, concurrency=4))
    ended = cluster.finished(job, NAMESPACE, timeout=900)
    assert rows_by_task(cluster, job) == {**dict.fromkeys(GOOD, 1.0), **dict.fromkeys(BROKEN, "ImageBuildFailed")}
    assert (ended["status"]["trials"]["scored"], ended["status"]["trials"]["errored"], ended["status"]["mean"]) == (9, 3, "1.000")
    rows = {row["task"].rpartition("/")[2]: row for row in cluster.rows(job, NAMESPACE) if row.get("error")}
    assert {name: row["error"]["message"].partition(": ")[0] for name, row in rows.items()} == {
        "broken-base": "environment/Dockerfile line 1, FROM seatrial.invalid/no/such/image:1",
        "broken-copy": "environment/Dockerfile line 3, COPY not-there.txt /opt/",
        "broken-run": 'environment/Dockerfile line 4, RUN echo "nothing here works" >&2 && exit 7',
    }
    assert all(row["error"]["exceptionType"] == "SandboxBuildFailedError" for row in rows.values())


def write_dockerfile_task(folder: Path, name: str, dockerfile: str, *, config: str = "") -> None:
    task = folder / name
    for part in ("environment", "solution", "tests"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(f'[task]\nname = "e2e/{name}"\n[environment]\ncpus = 0.05\nmemory_mb = 64\n{config}')
    (task / "instruction.md").write_text("Nothing to do.\n")
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    for script, body in (("solution/solve.sh", "true"), ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt")):
        (task / script).write_text(f"#!/bin/bash\n{body}\n")
        (task / script).chmod(0o755)


def build_pods(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    return cluster.items("pods", "-n", NAMESPACE, "-l", f"seatrial.dev/role=build,seatrial.dev/job-name={job}")


def test_fifty_trials_that_wait_for_one_image_cause_one_build(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("fifty")
    write_dockerfile_task(suite, job, f"ARG BASE=debian:12\nFROM ${{BASE}}\nRUN echo {job} > /opt/name\n")
    cluster.seatrial("publish", str(suite), "-n", NAMESPACE)
    cluster.apply(evaljob(job, NAMESPACE, tasks=[f"e2e-{job}"], attempts=50, concurrency=4))
    waiting = wait_until(lambda: build_pods(cluster, job), bool, timeout=60, what="build")
    assert len(waiting) == 1
    assert cluster.trial_pods(NAMESPACE, job) == []
    wait_until(
        lambda: cluster.job(job, NAMESPACE)["status"].get("trials", {}).get("scored", 0),
        lambda scored: scored >= 2,
        timeout=300,
        what="scored trials",
    )
    cluster.kubectl("patch", "evaljob", job, "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"cancel":true}}')
    events = cluster.items(
        "events", "-n", NAMESPACE, f"--field-selector=reason=Scheduled,involvedObject.name={waiting[0]['metadata']['name']}"
    )
    assert len(events) == 1
    trials = cluster.finished(job, NAMESPACE, timeout=180)["status"]["trials"]
    assert (trials["errored"], trials["scored"] + trials["cancelled"]) == (0, 50)


def test_a_registry_outage_makes_trials_wait_and_a_hanging_build_ends_alone(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("outage")
    write_dockerfile_task(suite, f"{job}-good", f"ARG BASE=debian:12\nFROM ${{BASE}}\nRUN echo {job} > /opt/name\n")
    hangs = "ARG BASE=debian:12\nFROM ${BASE}\nRUN sleep 3600\n"
    write_dockerfile_task(suite, f"{job}-hangs", hangs, config="build_timeout_sec = 20.0\n")
    cluster.seatrial("publish", str(suite), "--taskset", job, "-n", NAMESPACE)
    scale = ["scale", "deployment/registry", "-n", "seatrial-registry"]
    cluster.kubectl(*scale, "--replicas=0")
    cluster.kubectl("wait", "--for=delete", "pod", "-n", "seatrial-registry", "-l", "app.kubernetes.io/name=registry", "--timeout=60s")
    try:
        cluster.apply(evaljob(job, NAMESPACE, taskset=job, concurrency=2))
        status = wait_until(
            lambda: cluster.job(job, NAMESPACE).get("status", {}),
            lambda status: any("does not answer" in one["message"] for one in status.get("conditions", [])),
            timeout=60,
            what="wait with its reason",
        )
        assert (status["trials"]["pending"], status["trials"]["errored"], build_pods(cluster, job)) == (2, 0, [])
    finally:
        cluster.kubectl(*scale, "--replicas=1")
    ended = cluster.finished(job, NAMESPACE, timeout=400)
    assert rows_by_task(cluster, job) == {f"{job}-good": 1.0, f"{job}-hangs": "ImageBuildTimeout"}
    assert ended["status"]["mean"] == "1.000"
