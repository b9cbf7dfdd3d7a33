"""Images that the cluster builds before the first trial of a task: asked for by passes, made in the background, once per key.

State is what the registry has and which Pods live; nothing else survives a restart, and nothing else is needed. A registry that does not
answer is waited for: no trial is errored for it until ``timeouts.pending`` is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.names import LABEL_JOB
from seatrial.api.reasons import Reason
from seatrial.core.builds import (
    BUILD,
    CONTEXT,
    FOLDERS,
    LABEL_BUILD,
    BuildSettings,
    Passing,
    Pushed,
    build_pod,
    build_pod_name,
    container_states,
    judge_build,
)
from seatrial.core.frozen import FrozenPlan, ImageRole, PlannedTask
from seatrial.core.manifests import PodSettings
from seatrial.core.plan import ImageWait
from seatrial.core.trial import Judgement, failure
from seatrial.core.trial_input import timeouts
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.clock import Clock
from seatrial.effects.kube import Kube, MissingRight, NamespaceGone, QuotaExceeded, Rejected, core_path
from seatrial.effects.metrics import Metrics
from seatrial.effects.registry import Registry
from seatrial.errors import AlreadyExists, Conflict, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.5
PAUSES_SECONDS: Final = (2.0, 5.0, 10.0, 20.0, 30.0)
ATTEMPTS: Final = 3
"""Pods for one build whose end was not the task's fault."""
URL_SECONDS: Final = 24 * 3600

Made = str
"""The image by digest."""


@dataclass(slots=True)
class _Build:
    state: ImageWait | Judgement | Made
    task: asyncio.Task[None] | None = None
    jobs: set[str] = field(default_factory=set)
    """UIDs of the jobs that wait or have waited for it."""


@dataclass(frozen=True, slots=True)
class _Request:
    plan: FrozenPlan
    spec: EvalJobSpec
    task: PlannedTask
    role: ImageRole
    key: str

    def __str__(self) -> str:
        return f"the image of task {self.task.id}" if self.role == "environment" else f"the verifier's image of task {self.task.id}"

    @property
    def timeout_seconds(self) -> float:
        return timeouts(self.task, self.spec)["environment"]


class ImageBuilds:
    """Provides images, a few builds at a time."""

    def __init__(
        self,
        kube: Kube,
        store: AsyncStore,
        registry: Registry,
        *,
        settings: BuildSettings,
        pods: PodSettings,
        concurrency: int,
        clock: Clock,
        metrics: Metrics,
        wake: Callable[[str], None],
    ) -> None:
        """``wake`` gets the UID of a job whose image was settled, or waits for another reason."""
        self._kube, self._store, self._registry = kube, store, registry
        self._settings, self._pods, self._clock, self._metrics, self._wake = settings, pods, clock, metrics, wake
        self._slots = asyncio.Semaphore(concurrency)
        self._builds: dict[tuple[str, str], _Build] = {}
        self._kept: set[asyncio.Task[None]] = set()

    def look(self, plan: FrozenPlan, spec: EvalJobSpec, tasks: Iterable[int]) -> dict[int, ImageWait | Judgement]:
        """Start what is missing, and say what the trials of these tasks wait for; a task that is absent has its image."""
        states: dict[int, ImageWait | Judgement] = {}
        for number in tasks:
            task = plan.tasks[number]
            found = [self._ensure(_Request(plan, spec, task, role, key)).state for role, key in task.builds.items()]
            missing = [state for state in found if not isinstance(state, str)]
            if missing:
                states[number] = next((state for state in missing if isinstance(state, Judgement)), missing[0])
        return states

    def images(self, namespace: str, task: PlannedTask) -> dict[ImageRole, str]:
        """The images of a task whose builds are done, by digest."""
        built = {role: self._builds.get((namespace, key)) for role, key in task.builds.items()}
        return {role: build.state for role, build in built.items() if build is not None and isinstance(build.state, str)}

    def forget(self, job_uid: str) -> None:
        """The job is over; builds that nobody else waits for end."""
        for place, build in list(self._builds.items()):
            build.jobs.discard(job_uid)
            if not build.jobs:
                if build.task is not None:
                    build.task.cancel()
                del self._builds[place]

    def _ensure(self, request: _Request) -> _Build:
        place = (request.plan.namespace, request.key)
        build = self._builds.get(place)
        # A failure holds for the jobs that met it; a later job tries again, because the base image may be there now.
        stale = build is not None and isinstance(build.state, Judgement) and request.plan.uid not in build.jobs
        if build is None or stale:
            build = _Build(state=ImageWait(Reason.IMAGE_BUILDING, f"{request} is not built yet"))
            self._builds[place] = build
            build.task = asyncio.create_task(self._provide(request, build), name=f"image {request.key[:12]}")
        build.jobs.add(request.plan.uid)
        return build

    async def _provide(self, request: _Request, build: _Build) -> None:
        began = self._clock.monotonic()
        failures = pauses = 0
        while isinstance(build.state, ImageWait):
            try:
                outcome = await self._try(request, build)
            except (InvalidSpec, Rejected, NamespaceGone) as error:
                outcome = failure(Reason.POD_REJECTED, f"{request} cannot be built: {error}")
            except (SeatrialError, OSError) as error:
                # The registry, the store or the API does not answer, or does not let us in: that passes, or a person acts.
                reason = Reason.REGISTRY_UNAVAILABLE if isinstance(error, Unavailable | Forbidden) else Reason.IMAGE_BUILDING
                self._wait(build, f"{request} waits: {error}")
                outcome = Passing(failure(reason, f"the image could not be provided in time: {error}"))
                failures -= 1  # nothing was tried
            except Exception:
                log.exception("build failed with a bug", extra={"job": request.plan.job, "task": request.task.id})
                outcome = failure(Reason.RUNNER_CRASHED, "the operator could not build the image; its log says why")
            if not isinstance(outcome, Passing):
                build.state = outcome
                break
            failures += 1
            if failures >= ATTEMPTS or self._clock.monotonic() - began > request.spec.timeouts.pending.seconds:
                build.state = outcome.judgement
                break
            await asyncio.sleep(PAUSES_SECONDS[min(pauses, len(PAUSES_SECONDS) - 1)])
            pauses += 1
        state = build.state
        log.info(
            "image settled",
            extra={
                "job": request.plan.job,
                "task": request.task.id,
                "reason": state.error.type if isinstance(state, Judgement) and state.error is not None else "Pushed",
            },
        )
        self._wake_all(build)

    async def _try(self, request: _Request, build: _Build) -> Made | Passing | Judgement:
        tag = f"{self._settings.repository}:{request.key}"
        digest = await asyncio.to_thread(self._registry.digest, tag)
        if digest is not None:
            return self._settings.image(digest)
        async with self._slots:
            self._wait(build, f"{request} is being built from {FOLDERS[request.role]}/Dockerfile")
            began = self._clock.monotonic()
            end = await self._build(request)
            outcome = "pushed" if isinstance(end, Pushed) else "failed"
            self._metrics.build_seconds.labels(outcome).observe(self._clock.monotonic() - began)
        if isinstance(end, Pushed):
            return self._settings.image(end.digest)
        return end

    def _wait(self, build: _Build, message: str) -> None:
        state = ImageWait(Reason.IMAGE_BUILDING, message[:500])
        if build.state != state:
            build.state = state
            self._wake_all(build)

    def _wake_all(self, build: _Build) -> None:
        for uid in build.jobs:
            self._wake(uid)

    async def _build(self, request: _Request) -> Pushed | Passing | Judgement:
        namespace, name = request.plan.namespace, build_pod_name(request.key)
        path = core_path("pods", namespace=namespace, name=name)
        body = await self._create(request)
        began = self._clock.monotonic()
        uid = body["metadata"]["uid"]
        end: Pushed | Passing | Judgement | None = None
        try:
            while True:
                end = judge_build(body, role=request.role, dockerfile=_staged_text(body), timeout_seconds=request.timeout_seconds)
                if end is None and _never_ran(body) and self._clock.monotonic() - began > request.spec.timeouts.pending.seconds:
                    end = failure(Reason.POD_START_TIMEOUT, f"the build's Pod {name} did not start in time: {_waits_for(body)}")
                if end is not None:
                    return end
                await asyncio.sleep(POLL_SECONDS)
                try:
                    body = dict(await self._kube.get(path))
                except NotFound:
                    return Passing(failure(Reason.POD_DELETED, f"the build's Pod {name} was deleted"))
                except Unavailable as error:
                    log.warning("build not observed", extra={"pod": name, "error": str(error)[:200]})
                if body["metadata"]["uid"] != uid:
                    return Passing(failure(Reason.POD_DELETED, f"the build's Pod {name} was replaced"))
        finally:
            keep = request.spec.pod.keep_failed_seconds if isinstance(end, Judgement) else 0
            if keep:
                self._delete_later(namespace, name, uid, seconds=keep)
            else:
                await asyncio.shield(self._delete(namespace, name, uid))

    def _delete_later(self, namespace: str, name: str, uid: str, *, seconds: float) -> None:
        """A failed build's log can be read until then. After a restart it is kept until its job goes, or another job builds the image."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            await self._delete(namespace, name, uid)

        task = asyncio.create_task(wait(), name=f"keep {name}")
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def _create(self, request: _Request) -> dict[str, Any]:
        """The build's Pod: a new one, or the one that an earlier process or another job has begun."""
        task = request.task
        body = build_pod(
            request.plan,
            task,
            role=request.role,
            key=request.key,
            archive_url=self._store.presign_get(task.archive_key, expires_seconds=URL_SECONDS),
            timeout_seconds=request.timeout_seconds,
            settings=self._settings,
            pods=self._pods,
            pull_secrets=[item.name for item in request.spec.pod.image_pull_secrets],
        )
        namespace, name = request.plan.namespace, build_pod_name(request.key)
        path = core_path("pods", namespace=namespace)
        for _ in range(20):
            try:
                return dict(await self._kube.request("POST", path, params={"fieldValidation": "Strict"}, body=body))
            except AlreadyExists:
                pass
            except (QuotaExceeded, MissingRight) as error:
                raise Unavailable(f"the build's Pod cannot be created: {error}", retry_after=10.0) from error
            try:
                found = dict(await self._kube.get(core_path("pods", namespace=namespace, name=name)))
            except NotFound:
                continue
            meta = found["metadata"]
            labels = meta.get("labels") or {}
            if labels.get(LABEL_BUILD) != request.key:
                raise Rejected(f"Pod {name} exists in namespace {namespace} and is no build of ours: remove it")
            is_over = (found.get("status") or {}).get("phase") in ("Failed", "Succeeded")
            if not meta.get("deletionTimestamp") and (not is_over or labels.get(LABEL_JOB) == request.plan.uid):
                return found
            await self._delete(namespace, name, meta["uid"])
            await asyncio.sleep(POLL_SECONDS)
        raise Unavailable(f"Pod {name} does not go away", retry_after=10.0)

    async def _delete(self, namespace: str, name: str, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1, "preconditions": {"uid": uid}}
        try:
            await self._kube.request("DELETE", core_path("pods", namespace=namespace, name=name), body=body)
        except (NotFound, Conflict):
            return
        except SeatrialError as error:
            # It belongs to a job and goes with it at the latest.
            log.warning("build not deleted", extra={"pod": name, "error": str(error)[:200]})


def _staged_text(body: Mapping[str, Any]) -> str:
    """The Dockerfile's text, which the init container reports."""
    staged = container_states(body).get(CONTEXT, {}).get("terminated") or {}
    return str(staged.get("message") or "") if staged.get("exitCode") == 0 else ""


def _never_ran(body: Mapping[str, Any]) -> bool:
    states = container_states(body)
    return "running" not in states.get(BUILD, {}) and "running" not in states.get(CONTEXT, {})


def _waits_for(body: Mapping[str, Any]) -> str:
    for name, state in container_states(body).items():
        if waiting := state.get("waiting"):
            return f"{name}: {waiting.get('reason', '')} {waiting.get('message', '')}"[:300]
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next(
        (f"{item.get('reason')}: {item.get('message')}"[:300] for item in conditions if item.get("status") == "False"), "not scheduled"
    )
