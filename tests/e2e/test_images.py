"""Images that tasks describe by Dockerfiles: built once, by buildah here or by the cluster, with the same verdicts.

The suite of twelve is in ``tests/images/suites/builds``: nine good tasks and three whose Dockerfiles are broken in different ways.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seatrial.effects.registry import Registry as Client
from seatrial.taskpkg.imagekey import image_key, read_context

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
    repository: str
    """Where the cluster's own builds are pushed."""
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
    repository = f"{found['address']}/{unique('cluster')}/tasks"
    values = {
        "builds.repository": repository,
        "builds.insecure": "true",
        "builds.args.BASE": found["base"],
        "builds.executorImage": found["executor"],
        "builds.storageLimit": "2Gi",
        "networkPolicies.registry.to[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name": "seatrial-registry",
        "networkPolicies.registry.port": "5000",
        "site.imageMirrors.mirrored\\.invalid": f"{found['address']}/seatrial",
        f"builds.files.{CERTIFICATES.replace('.', chr(92) + '.')}": "build-files/ca-certificates.crt",
    }
    installed.install(NAMESPACE, values)
    yield Registry(installed, found["address"], found["base"], repository, scratch)
    installed.install(NAMESPACE)


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
    """A task that passes in whatever image its Dockerfile makes; ``config`` are lines of ``[environment]``, or sections behind it."""
    task = folder / name
    for part in ("environment", "solution", "tests"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(
        f'artifacts = ["/app/answer"]\n[task]\nname = "e2e/{name}"\n[environment]\ncpus = 0.05\nmemory_mb = 64\n{config}'
    )
    (task / "instruction.md").write_text("Write the answer.\n")
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    write_script(task / "solution" / "solve.sh", "mkdir -p /app; echo 42 > /app/answer; touch /app/elsewhere")
    write_script(task / "tests" / "test.sh", "echo 1 > /logs/verifier/reward.txt")


def write_script(file: Path, body: str) -> None:
    file.write_text(f"#!/bin/bash\n{body}\n")
    file.chmod(0o755)


def build_pods(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    return cluster.items("pods", "-n", NAMESPACE, "-l", f"seatrial.dev/role=build,seatrial.dev/job-name={job}")


def test_fifty_trials_that_wait_for_one_image_cause_one_build_although_the_job_that_asked_first_is_deleted(
    registry: Registry, suite: Path
) -> None:
    cluster, first, job = registry.cluster, unique("first"), unique("fifty")
    write_dockerfile_task(suite, job, f"ARG BASE=debian:12\nFROM ${{BASE}}\nRUN echo {job} > /opt/name && sleep 20\n")
    cluster.seatrial("publish", str(suite), "-n", NAMESPACE)
    cluster.apply(evaljob(first, NAMESPACE, tasks=[f"e2e-{job}"]))
    cluster.apply(evaljob(job, NAMESPACE, tasks=[f"e2e-{job}"], attempts=50, concurrency=4))

    def owners() -> set[str]:
        return {owner["name"] for pod in build_pods(cluster, first) for owner in pod["metadata"]["ownerReferences"]}

    wait_until(owners, lambda found: found == {first, job}, timeout=60, what="build of both jobs")
    (pod,) = build_pods(cluster, first)
    cluster.kubectl("delete", "evaljob", first, "-n", NAMESPACE)
    wait_until(owners, lambda found: found == {job}, timeout=30, what="one owner less")
    assert cluster.trial_pods(NAMESPACE, job) == []
    wait_until(
        lambda: cluster.job(job, NAMESPACE)["status"].get("trials", {}).get("scored", 0),
        lambda scored: scored >= 2,
        timeout=300,
        what="scored trials",
    )
    cluster.kubectl("patch", "evaljob", job, "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"cancel":true}}')
    assert starts(cluster, pod["metadata"]["name"]) == {pod["metadata"]["uid"]}
    trials = cluster.finished(job, NAMESPACE, timeout=180)["status"]["trials"]
    assert (trials["errored"], trials["scored"] + trials["cancelled"]) == (0, 50)


def scale_registry(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("scale", "deployment/registry", "-n", "seatrial-registry", f"--replicas={replicas}")
    if not replicas:
        label = "app.kubernetes.io/name=registry"
        cluster.kubectl("wait", "--for=delete", "pod", "-n", "seatrial-registry", "-l", label, "--timeout=60s")


def wait_for_registry(cluster: Cluster, job: str) -> dict[str, Any]:
    """The job's status once it says that its images wait for the registry."""
    return wait_until(
        lambda: cluster.job(job, NAMESPACE).get("status", {}),
        lambda status: any("does not answer" in one["message"] for one in status.get("conditions", [])),
        timeout=120,
        what="wait with its reason",
    )


def starts(cluster: Cluster, pod: str) -> set[str]:
    """UIDs of all Pods of that name that were ever scheduled."""
    events = cluster.items("events", "-n", NAMESPACE, f"--field-selector=reason=Scheduled,involvedObject.name={pod}")
    return {event["involvedObject"]["uid"] for event in events}


def test_a_registry_outage_before_a_build_and_in_the_middle_of_one_makes_trials_wait(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("outage")
    write_dockerfile_task(suite, job, f"ARG BASE=debian:12\nFROM ${{BASE}}\nRUN echo {job} > /opt/name && sleep 20\n")
    cluster.seatrial("publish", str(suite), "--taskset", job, "-n", NAMESPACE)
    scale_registry(cluster, 0)
    try:
        cluster.apply(evaljob(job, NAMESPACE, taskset=job))
        status = wait_for_registry(cluster, job)
        assert (status["trials"]["pending"], status["trials"]["errored"], build_pods(cluster, job)) == (1, 0, [])

        scale_registry(cluster, 1)
        (pod,) = wait_until(lambda: build_pods(cluster, job), bool, timeout=120, what="build")
        name = pod["metadata"]["name"]
        # The base image is there, so the next that is asked of the registry is the push.
        wait_until(
            lambda: cluster.kubectl("logs", name, "-c", "build", "-n", NAMESPACE, check=False),
            lambda log: "Running: [/bin/sh" in log,
            timeout=120,
            what="instruction that sleeps",
        )
        scale_registry(cluster, 0)
        status = wait_for_registry(cluster, job)
        assert (status["trials"]["pending"], status["trials"]["errored"]) == (1, 0)
        assert len(starts(cluster, name)) == 1
    finally:
        scale_registry(cluster, 1)
    ended = cluster.finished(job, NAMESPACE, timeout=300)
    assert (rows_by_task(cluster, job), ended["status"]["mean"]) == ({job: 1.0}, "1.000")
    assert len(starts(cluster, name)) == 2


@contextmanager
def manifests_refused(registry: Registry) -> Iterator[None]:
    """The registry takes layers for the cluster's repository and cannot write manifests: its folders are read-only."""
    data = Path(registry.cluster.env["kubeconfig"]).parent / "registry" / "docker/registry/v2/repositories"
    folder = data / registry.repository.partition("/")[2] / "_manifests"
    for path in reversed((folder, *folder.relative_to(data).parents)):
        if not (data / path).exists():
            (data / path).mkdir()
            os.chown(data / path, data.stat().st_uid, data.stat().st_gid)
    places = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        yield
    finally:
        for place in places:
            place.chmod(0o755)


@pytest.mark.deep
def test_a_push_that_breaks_off_behind_the_layers_is_made_again(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("push")
    write_dockerfile_task(suite, job, f"ARG BASE=debian:12\nFROM ${{BASE}}\nRUN echo {job} > /opt/name\n")
    cluster.seatrial("publish", str(suite), "--taskset", job, "-n", NAMESPACE)
    key = image_key(read_context(suite / job / "environment").key, args={"BASE": registry.base})
    with manifests_refused(registry):
        cluster.apply(evaljob(job, NAMESPACE, taskset=job))
        wait_until(
            lambda: starts(cluster, f"seatrial-build-{key}"),
            lambda found: len(found) == 2,
            timeout=240,
            what="second build",
        )
        trials = cluster.job(job, NAMESPACE)["status"]["trials"]
        assert (trials["pending"], trials["errored"]) == (1, 0)
    ended = cluster.finished(job, NAMESPACE, timeout=300)
    assert (rows_by_task(cluster, job), ended["status"]["mean"]) == ({job: 1.0}, "1.000")


@pytest.mark.deep
def test_a_build_whose_node_does_not_take_it_away_is_given_up_and_made_again(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("cut-off")
    until = int(time.time()) + 240
    write_dockerfile_task(suite, job, f"ARG BASE=debian:12\nFROM ${{BASE}}\nRUN while [ $(date +%s) -lt {until} ]; do sleep 1; done\n")
    cluster.seatrial("publish", str(suite), "--taskset", job, "-n", NAMESPACE)
    cluster.apply(evaljob(job, NAMESPACE, taskset=job))
    (pod,) = wait_until(lambda: build_pods(cluster, job), bool, timeout=60, what="build")
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    wait_until(
        lambda: cluster.get("pod", name, "-n", NAMESPACE)["status"]["phase"],
        lambda phase: phase == "Running",
        timeout=60,
        what="build at work",
    )
    cluster.component("kill", "kubelet")
    try:
        cluster.kubectl("delete", "pod", name, "-n", NAMESPACE, "--wait=false")
        # Nobody but the operator takes it away; its own registry is on the node that is cut off, so a new Pod waits for both.
        wait_until(
            lambda: [item["metadata"]["uid"] for item in build_pods(cluster, job)],
            lambda uids: uid not in uids,
            timeout=200,
            what="end of the Pod that was cut off",
        )
    finally:
        cluster.component("start", "kubelet")
    trials = cluster.job(job, NAMESPACE)["status"]["trials"]
    assert (trials["pending"], trials["errored"]) == (1, 0)
    ended = cluster.finished(job, NAMESPACE, timeout=400)
    assert (rows_by_task(cluster, job), ended["status"]["mean"]) == ({job: 1.0}, "1.000")
    assert len(starts(cluster, name)) == 2


def test_builds_that_hang_fill_the_disk_or_print_much_are_named_by_their_line_and_siblings_go_on(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("ends")
    base = "ARG BASE=debian:12\nFROM ${BASE}\n"
    write_dockerfile_task(suite, "good", f"{base}RUN echo {job} > /opt/name\n")
    write_dockerfile_task(suite, "hangs", f"{base}RUN echo {job} && sleep 3600\n", config="build_timeout_sec = 45.0\n")
    write_dockerfile_task(suite, "fills", f"{base}RUN fallocate -l 3G /{job} && sleep 3600\n")
    write_dockerfile_task(suite, "noisy", f"{base}RUN true\nRUN seq 20000 && echo {job} && exit 9\nRUN true\n")
    write_dockerfile_task(suite, "no-base", f"FROM {registry.address}/seatrial/{job}:1\nRUN true\n")
    template = ["--name-template", f"{job}-{{dir}}"]
    cluster.seatrial("publish", str(suite), "--taskset", job, "-n", NAMESPACE, *template)
    cluster.apply(evaljob(job, NAMESPACE, taskset=job, concurrency=4))
    ended = cluster.finished(job, NAMESPACE, timeout=400)
    failed = {"fills": "ImageBuildFailed", "hangs": "ImageBuildTimeout", "no-base": "ImageBuildFailed", "noisy": "ImageBuildFailed"}
    assert rows_by_task(cluster, job) == {"good": 1.0, **failed}
    assert (ended["status"]["mean"], ended["status"]["trials"]["errored"]) == ("1.000", 4)
    rows = {row["task"].rpartition("/")[2]: row for row in cluster.rows(job, NAMESPACE) if row.get("error")}
    messages = {name: row["error"]["message"] for name, row in rows.items()}
    assert {name: text.partition(": ")[0] for name, text in messages.items()} == {
        "fills": f"environment/Dockerfile line 3, RUN fallocate -l 3G /{job} && sleep 3600",
        "hangs": f"environment/Dockerfile line 3, RUN echo {job} && sleep 3600",
        "no-base": f"environment/Dockerfile line 1, FROM {registry.address}/seatrial/{job}:1",
        "noisy": f"environment/Dockerfile line 4, RUN seq 20000 && echo {job} && exit 9",
    }
    assert "the build fills the disk" in messages["fills"]
    assert "the build did not end within 45 s" in messages["hangs"]
    assert "the base image cannot be pulled" in messages["no-base"]


WHOSE = '[ "$(cat /opt/whose)" = {whose} ] && [ "$(cat /app/answer)" = 42 ] && [ ! -e /app/elsewhere ] && {more}'
PASS = "echo 1 > /logs/verifier/reward.txt"
KEPT_OUT = """\
ARG BASE=debian:12
FROM ${BASE}
RUN mkdir /opt/seen; timeout 5 bash -c '</dev/tcp/kubernetes.default.svc.cluster.local/443' && touch /opt/seen/cluster; \
    timeout 5 bash -c '</dev/tcp/HOST/PORT' && touch /opt/seen/registry; true
"""


def write_verifier_suite(folder: Path, registry: Registry, *, stamp: str) -> None:
    """Every kind of image that an environment or a separate verifier may have; ``stamp`` makes them new."""

    def dockerfile(whose: str, base: str = "${BASE}") -> str:
        return f"ARG BASE=debian:12\nFROM {base}\nRUN echo {stamp} > /opt/stamp && echo {whose} > /opt/whose\n"

    separate = '[verifier]\nenvironment_mode = "separate"\n'
    write_dockerfile_task(folder, "own-dockerfile", dockerfile("environment"), config=separate)
    (folder / "own-dockerfile/tests/Dockerfile").write_text(f"{dockerfile('verifier')}COPY . /tests\n")
    write_script(folder / "own-dockerfile/tests/test.sh", WHOSE.format(whose="verifier", more=PASS))

    # Its image is the environment's; of its settings it inherits nothing.
    inherits = 'env = { OF_THE_AGENT = "yes" }\n[verifier.environment]\nmemory_mb = 64\n'
    write_dockerfile_task(folder, "copied", dockerfile("environment"), config=inherits)
    more = f'[ -z "$OF_THE_AGENT" ] && [ -e /tests/test.sh ] && {PASS}'
    write_script(folder / "copied/tests/test.sh", WHOSE.format(whose="environment", more=more))

    write_dockerfile_task(folder, "broken-verifier", dockerfile("environment"), config=separate)
    (folder / "broken-verifier/tests/Dockerfile").write_text(f"{dockerfile('verifier')}RUN exit 3\n")

    write_dockerfile_task(folder, "mirrored-base", dockerfile("environment", "mirrored.invalid/base:12"))
    write_dockerfile_task(folder, "mirrored", "FROM seatrial.invalid/no/such/image\n", config='docker_image = "mirrored.invalid/base:12"\n')
    write_script(folder / "mirrored/tests/test.sh", f"[ ! -e /opt/whose ] && {PASS}")

    host, _, port = registry.address.partition(":")
    write_dockerfile_task(folder, "kept-out", KEPT_OUT.replace("HOST", host).replace("PORT", port))
    write_script(folder / "kept-out/tests/test.sh", f'[ "$(ls /opt/seen)" = registry ] && {PASS}')


def planned(cluster: Cluster, job: str) -> dict[str, dict[str, Any]]:
    """Tasks of the job's frozen plan by the last part of their names."""
    data = cluster.store().get(f"{cluster.prefix(job, NAMESPACE)}plan.json", max_bytes=1024 * 1024)
    return {task["id"].rpartition("/")[2]: task for task in json.loads(data)["tasks"]}


@pytest.mark.conforms("H-33", "H-58", "H-103")
def test_images_of_separate_verifiers_are_built_by_the_cluster_and_by_the_client_with_the_same_verdicts(
    registry: Registry, suite: Path
) -> None:
    cluster, job = registry.cluster, unique("verifiers")
    write_verifier_suite(suite, registry, stamp=job)
    publish = ["publish", str(suite), "--taskset", job, "-n", NAMESPACE, "--name-template", f"{job}-{{dir}}"]
    cluster.seatrial(*publish)
    cluster.apply(evaljob(job, NAMESPACE, taskset=job, concurrency=4))
    cluster.finished(job, NAMESPACE, timeout=400)
    good = ("own-dockerfile", "copied", "mirrored-base", "mirrored", "kept-out")
    assert rows_by_task(cluster, job) == {**dict.fromkeys(good, 1.0), "broken-verifier": "ImageBuildFailed"}
    broken = next(row for row in cluster.rows(job, NAMESPACE) if row.get("error"))
    assert broken["error"]["message"].startswith("tests/Dockerfile line 4, RUN exit 3: ")
    digest = Client(insecure=(registry.address,)).digest(registry.base)
    assert planned(cluster, job)["mirrored"]["pins"] == {"mirrored.invalid/base:12": f"{registry.base}@{digest}"}

    # What the cluster has built is there for the client: nothing is built again, and the digests are recorded.
    shutil.rmtree(suite / "broken-verifier")
    shutil.rmtree(suite / "mirrored-base")  # this machine's builder does not know the cluster's mirrors
    for log in (registry.scratch / "logs").glob("*.log"):
        log.unlink()
    verifier = image_key(read_context(suite / "own-dockerfile/tests").key, args={"BASE": registry.base})
    ready = f'docker_image = "{registry.base}"\n[verifier.environment]\nmemory_mb = 64\ndocker_image = "{registry.repository}:{verifier}"\n'
    write_dockerfile_task(suite, "ready-verifier", "FROM seatrial.invalid/no/such/image\n", config=ready)
    write_script(suite / "ready-verifier/tests/test.sh", "exit 1")
    again = unique("verifiers")
    registry.seatrial(*publish[:2], "--build", "--repository", registry.repository, "--taskset", again, *publish[4:])
    assert registry.logs() == set()
    cluster.apply(evaljob(again, NAMESPACE, taskset=again, concurrency=4))
    cluster.finished(again, NAMESPACE, timeout=300)
    kept = ("own-dockerfile", "copied", "mirrored", "kept-out", "ready-verifier")
    assert rows_by_task(cluster, again) == dict.fromkeys(kept, 1.0)
    tasks = planned(cluster, again)
    recorded, _, found = tasks["own-dockerfile"]["verifierImage"].partition("@")
    assert recorded == registry.repository
    named = f"{registry.repository}:{verifier}"
    assert tasks["ready-verifier"]["pins"] == {registry.base: f"{registry.base}@{digest}", named: f"{named}@{found}"}


@pytest.mark.deep
def test_a_cluster_without_a_registry_builds_into_the_charts_own(registry: Registry, suite: Path) -> None:
    cluster, job = registry.cluster, unique("bundled")
    write_dockerfile_task(suite, job, f"FROM {registry.base}\nRUN echo {job} > /opt/name\n")
    write_script(suite / job / "tests/test.sh", f'[ "$(cat /opt/name)" = {job} ] && {PASS}')
    values = {
        "bundledRegistry.enabled": "true",
        "bundledRegistry.nodePort": "30501",
        "bundledRegistry.persistence.enabled": "false",
        "bundledRegistry.image.repository": "seatrial.local/registry",
        "bundledRegistry.image.tag": "3.1.2",
        "builds.repository": "seatrial-registry.seatrial-system.svc.cluster.local:5000/tasks",
        "builds.pullRepository": "localhost:30501/tasks",
        "builds.insecure": "true",
        "builds.executorImage": "seatrial.local/kaniko:1.24.0",
        # The base image is in the other registry.
        "networkPolicies.publicEgress[0].ports[0].port": "5000",
    }
    cluster.install(NAMESPACE, values)
    cluster.seatrial("publish", str(suite), "-n", NAMESPACE)
    cluster.apply(evaljob(job, NAMESPACE, tasks=[f"e2e-{job}"]))
    cluster.finished(job, NAMESPACE, timeout=300)
    assert rows_by_task(cluster, job) == {job: 1.0}
