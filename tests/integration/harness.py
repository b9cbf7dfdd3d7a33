"""An operator against the fake API: Pods are played by a kubelet of ours, tasks are real archives in the memory store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from seatrial.api.names import PLURALS
from seatrial.contract import ErrorInfo, Measures, Verdict, sign_result, write_verdict
from seatrial.core.naming import job_prefix, result_key, script_result_key
from seatrial.effects.clock import Clock
from seatrial.effects.kube import Kube
from seatrial.effects.metrics import Metrics
from seatrial.effects.settings import Settings
from seatrial.handlers.serve import Operator
from seatrial.taskpkg.pack import pack_task
from tests.integration.fakeapi import FakeApi, Kind, Raw
from tests.integration.memstore import MemoryStore

GROUP = "/apis/seatrial.dev/v1alpha1"
KINDS = {plural: kind for kind, plural in PLURALS.items()}
T = TypeVar("T")

SETTINGS = Settings(
    s3_endpoint="http://store",
    pin_images=False,
    s3_bucket="bucket",
    s3_access_key="unused",
    s3_secret_key="unused",
    signing_secret="of the tests",
    status_interval_seconds=0.02,
    pass_interval_seconds=0.02,
    reference_grace_seconds=0.3,
    write_rate=10_000,
    write_burst=10_000,
    identity="test",
)


async def wait_until(look: Callable[[], T], good: Callable[[T], bool] = bool, *, seconds: float = 30.0) -> T:
    """Look until it is good.

    Raises:
        AssertionError: with the last observation.
    """
    end = time.monotonic() + seconds
    while True:
        seen = look()
        if good(seen):
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s; last seen: {str(seen)[:2000]}")
        await asyncio.sleep(0.01)


class World:
    """The cluster, the store and a kubelet."""

    def __init__(self, api: FakeApi, store: MemoryStore) -> None:
        self.api, self.store = api, store
        self.runs: list[tuple[str, str]] = []
        """Trial and retry of each Pod that was started."""
        self.fate: Callable[[Raw], str] = lambda pod: "scored"
        """What becomes of a Pod: scored, errored, silent (runs until told otherwise), or a waiting reason of its stage."""
        self.measures: Callable[[Raw], Measures] = lambda pod: {}
        """What the task's own metrics find in a Pod that scores."""
        self.scripts: list[str] = []
        """Names of the Pods that run a metric.py, in the order of their creation."""
        self.script_says: Callable[[Raw], Mapping[str, Any] | None] = lambda pod: {"values": {}, "error": None}
        """What a script's Pod stores; None: nothing, until told otherwise."""
        self.settings = SETTINGS
        self.events: list[tuple[str, str]] = []
        api.listeners.append(self._seen)

    # --- users

    def publish(self, name: str, *, toml: str = "", image: str | None = "registry/task:1", namespace: str = "evals", **spec: Any) -> None:
        """A Task with a real archive; further fields of its spec."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / name
            for sub, file, text in (
                ("", "instruction.md", f"Do {name}.\n"),
                (
                    "",
                    "task.toml",
                    f'[task]\nname = "bench/{name}"\n{toml}\n[environment]\n' + (f'docker_image = "{image}"\n' if image else ""),
                ),
                ("environment", "Dockerfile", "FROM scratch\n"),
                ("tests", "test.sh", "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"),
            ):
                (root / sub).mkdir(parents=True, exist_ok=True)
                (root / sub / file).write_text(text)
            target = Path(folder) / "archive"
            packed = pack_task(root, target)
            ref = f"{namespace}/suite#{name}/{packed.sha256}/task_archive"
            self.store.objects[f"filesets/{ref.replace('#', '/')}"] = target.read_bytes()
        self.api.put(GROUP, "tasks", _object("Task", name, {"source": {"ref": ref, "sha256": packed.sha256}, **spec}, namespace))

    def taskset(self, name: str, *tasks: str, **spec: Any) -> None:
        self.api.put(GROUP, "tasksets", _object("Taskset", name, {"tasks": list(tasks), **spec}))

    def submit(self, name: str = "job", **spec: Any) -> None:
        self.api.put(GROUP, "evaljobs", _object("EvalJob", name, {"taskset": "suite", **spec}))

    def edit(self, name: str, **spec: Any) -> None:
        """Change fields of a job's spec."""
        body = self.api.get("evaljobs", name)
        self.api.put(GROUP, "evaljobs", {**body, "spec": {**body["spec"], **spec}})

    def suite(self, count: int, **spec: Any) -> None:
        """``count`` tasks and the set ``suite``; further fields of its spec."""
        names = [f"task-{number}" for number in range(count)]
        for name in names:
            self.publish(name)
        self.taskset("suite", *names, **spec)

    # --- what is seen

    def job(self, name: str = "job") -> Raw:
        return self.api.get("evaljobs", name)

    def status(self, name: str = "job") -> Raw:
        status: Raw = self.job(name).get("status") or {}
        return status

    def condition(self, kind: str, name: str = "job", plural: str = "evaljobs") -> tuple[str, str]:
        items = (self.api.get(plural, name).get("status") or {}).get("conditions") or ()
        return next(((item["status"], item["reason"]) for item in items if item["type"] == kind), ("", ""))

    def pods(self) -> list[Raw]:
        return list(self.api.all("pods").values())

    async def ended(self, name: str = "job", *, seconds: float = 30.0) -> Raw:
        """Status of the job once it finished and its Pods are gone."""
        await wait_until(lambda: self.condition("Finished", name)[0], lambda status: status == "True", seconds=seconds)
        await wait_until(self.pods, lambda pods: not pods)
        return self.status(name)

    # --- the kubelet

    def finish(
        self,
        name: str,
        *,
        rewards: Mapping[str, float] | None = None,
        error: ErrorInfo | None = None,
        store: bool = True,
        measures: Measures | None = None,
    ) -> None:
        """A trial ends: the result goes to the store, the verdict into the status."""
        pod = self.api.get("pods", name)
        labels = pod["metadata"]["labels"]
        trial, retry = labels["seatrial.dev/trial"], int(labels["seatrial.dev/retry"])
        digest = self.save_result(pod, rewards) if store else None
        verdict = Verdict(
            trial=trial,
            retry=retry,
            rewards=dict(rewards) if rewards is not None else None,
            rewards_elsewhere=False,
            error=error,
            stored=store,
            result_sha256=digest,
            logs_sha256=None,
            seconds={"agent_execution": 0.5, "total": 1.0},
            tampered=False,
            leftover_processes=0,
            measures=measures or {},
        )
        self.set_ended(name, write_verdict(verdict).decode())

    def set_ended(self, name: str, message: str = "") -> None:
        """All containers ended; ``message`` is the verifier's."""

        def edit(pod: Raw) -> None:
            names = [item["name"] for item in pod["spec"]["containers"]]
            state = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-03-04T12:00:02Z", "startedAt": "2026-03-04T12:00:00Z"}
            statuses = [
                {"name": item, "state": {"terminated": {**state, "message": message if item == "verifier" else ""}}} for item in names
            ]
            pod["status"] |= {"phase": "Succeeded", "containerStatuses": statuses}

        self.api.change("pods", name, edit)

    def save_result(self, pod: Raw, rewards: Mapping[str, float] | None) -> str:
        """What the verifier uploads."""
        labels = pod["metadata"]["labels"]
        trial, retry, uid = labels["seatrial.dev/trial"], int(labels["seatrial.dev/retry"]), labels["seatrial.dev/job"]
        body = {"trial_name": trial, "verifier_result": {"rewards": dict(rewards)} if rewards else None, "seatrial": {"retry": retry}}
        data = sign_result(body, self.settings.job_key(uid))
        prefix = job_prefix("evals", labels["seatrial.dev/job-name"], uid)
        self.store.objects[result_key(prefix, trial, retry)] = data
        return hashlib.sha256(data).hexdigest()

    def _seen(self, event: str, kind: Kind, body: Raw) -> None:
        if kind.plural == "events":
            self.events.append((body["reason"], body.get("note", "")))
        if kind.plural != "pods" or event != "ADDED" or "spec" not in body:
            return
        labels = body["metadata"]["labels"]
        if labels["seatrial.dev/role"] == "score":
            self.scripts.append(body["metadata"]["name"])
            asyncio.get_running_loop().call_later(0.01, self._play_script, body["metadata"]["name"])
            return
        self.runs.append((labels["seatrial.dev/trial"], labels["seatrial.dev/retry"]))
        asyncio.get_running_loop().call_later(0.01, self._play, body["metadata"]["name"])

    def _play_script(self, name: str) -> None:
        if ("evals", name) not in self.api.all("pods"):
            return
        pod = self.api.get("pods", name)
        said = self.script_says(pod)

        def run(body: Raw) -> None:
            body["status"] = {"phase": "Running"}

        if said is None:
            self.api.change("pods", name, run)
            return
        self.save_script_result(pod, said)
        self.set_ended(name)

    def save_script_result(self, pod: Raw, said: Mapping[str, Any], *, key: bytes | None = None) -> None:
        """What the container ``score`` uploads; signed with ``key`` instead of the job's where given."""
        labels, uid = pod["metadata"]["labels"], pod["metadata"]["labels"]["seatrial.dev/job"]
        env = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
        given = json.loads(str(env["SEATRIAL_INPUT"]))
        body = {name: given[name] for name in ("job_uid", "script", "retry", "script_sha256", "rewards_sha256")}
        prefix = job_prefix("evals", labels["seatrial.dev/job-name"], uid)
        data = sign_result({**body, **said}, key or self.settings.job_key(uid))
        self.store.objects[script_result_key(prefix, given["script"], given["retry"])] = data

    def _play(self, name: str) -> None:
        if ("evals", name) not in self.api.all("pods"):
            return
        pod = self.api.get("pods", name)
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return  # a test ended it before it was played
        fate = self.fate(pod)

        def start(body: Raw) -> None:
            body["spec"]["nodeName"] = "node-1"
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            body["status"] = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]}
            body["status"]["initContainerStatuses"] = [{"name": "stage", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]
            body["status"]["containerStatuses"] = [
                {"name": item["name"], "state": {"running": {"startedAt": since}}} for item in body["spec"]["containers"]
            ]

        match fate:
            case "scored":
                self.finish(name, rewards={"reward": 1.0}, measures=self.measures(pod))
            case "errored":
                self.finish(name, error=ErrorInfo(type="RewardFileNotFoundError", cause="verifier", message="no reward"))
            case "silent":
                self.api.change("pods", name, start)
            case _:

                def wait(body: Raw) -> None:
                    start(body)
                    body["status"] |= {"phase": "Pending", "containerStatuses": []}
                    body["status"]["initContainerStatuses"] = [{"name": "stage", "state": {"waiting": {"reason": fate}}}]

                self.api.change("pods", name, wait)


@contextlib.asynccontextmanager
async def operator(
    world: World, *, workers: int = 2, wrap: Callable[[Kube], None] | None = None, clock: Clock | None = None
) -> AsyncIterator[Operator]:
    """An operator at work; events come straight from the fake API, as Kopf would bring them."""
    metrics = Metrics()
    async with Kube(world.api.access, write_rate=10_000, write_burst=10_000, observer=metrics.observe_request) as kube:
        if wrap is not None:
            wrap(kube)
        subject = Operator(kube, world.store, settings=world.settings, metrics=metrics, clock=clock)

        def listen(event: str, kind: Kind, body: Raw) -> None:
            if kind.plural in KINDS:
                subject.cache.observe(event, KINDS[kind.plural], body)

        tasks = [asyncio.create_task(item.run()) for item in subject.informers.informers]
        await subject.informers.synced()
        world.api.listeners.append(listen)
        for plural, kind in KINDS.items():
            for body in world.api.all(plural).values():
                subject.cache.observe(None, kind, body)
        tasks += [asyncio.create_task(subject.work()) for _ in range(workers)]
        try:
            yield subject
        finally:
            world.api.listeners.remove(listen)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await subject.events.flush()


@contextlib.asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    """A cluster without an operator."""
    async with FakeApi().running() as api:
        made = World(api, MemoryStore())
        made.settings = replace(SETTINGS, **settings)
        yield made


def _object(kind: str, name: str, spec: Mapping[str, Any], namespace: str = "evals") -> Raw:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    meta = {"name": name, "namespace": namespace, "creationTimestamp": now}
    return {"apiVersion": "seatrial.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": dict(spec)}


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A gzip tar with these files, for archives that must be refused."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, data in files.items():
            folder = tarfile.TarInfo(name.partition("/")[0])
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()
