"""Images that the cluster builds before the first trial of a task: asked for by passes, made in the background, once per key.

State is what the registry has, which Pods live and which jobs own them; nothing else survives a restart, and nothing else is needed. A
registry that does not answer is waited for: no trial is errored for it until ``timeouts.pending`` is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.names import LABEL_ROLE, ROLE_BUILD
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
    change_owners,
    container_states,
    is_lost,
    judge_build,
    owner_uids,
)
from seatrial.core.frozen import FrozenPlan, ImageRole, PlannedTask
from seatrial.core.manifests import PodSettings
from seatrial.core.plan import ImageWait
from seatrial.core.trial import Judgement, failure
from seatrial.core.trial_input import timeouts
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.clock import Clock
from seatrial.effects.kube import STRATEGIC_PATCH, Kube, MissingRight, NamespaceGone, QuotaExceeded, Rejected, core_path
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
class _Waiter:
    """A job that waits or has waited, as long as it wants to."""

    name: str
    since: float
    pending_seconds: float
    lapsed: Judgement | None = None
    """What it ends with: its time was over before the build's."""


@dataclass(slots=True)
class _Build:
    state: ImageWait | Judgement | Made
    task: asyncio.Task[None] | None = None
    jobs: dict[str, _Waiter] = field(default_factory=dict)
    """By UID."""

    @property
    def names(self) -> dict[str, str]:
        """UID -> name of the jobs."""
        return {uid: waiter.name for uid, waiter in self.jobs.items()}


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
        self._left: dict[tuple[str, str], dict[str, Any]] = {}
        """Pods of an earlier process that nobody has asked for since."""
        self._tasks: set[asyncio.Task[object]] = set()

    async def recall(self, scopes: Iterable[str | None]) -> None:
        """Find the Pods that an earlier process has left: who asks for their images goes on with them, the others go with their jobs.

        Call it before the first job is looked at.

        Args:
            scopes: namespaces; None is all of them.

        Raises:
            SeatrialError: the API.
        """
        for scope in scopes:
            page = await self._kube.get(core_path("pods", namespace=scope), {"labelSelector": f"{LABEL_ROLE}={ROLE_BUILD}"})
            for pod in page.get("items") or ():
                meta = pod["metadata"]
                key = (meta.get("labels") or {}).get(LABEL_BUILD, "")
                if meta["name"] == build_pod_name(key):
                    self._left[meta["namespace"], key] = pod

    def look(self, plan: FrozenPlan, spec: EvalJobSpec, tasks: Iterable[int]) -> dict[int, ImageWait | Judgement]:
        """Start what is missing, and say what the trials of these tasks wait for; a task that is absent has its image."""
        states: dict[int, ImageWait | Judgement] = {}
        for number in tasks:
            task = plan.tasks[number]
            found = [self._ensure(_Request(plan, spec, task, role, key)) for role, key in task.builds.items()]
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
            build.jobs.pop(job_uid, None)
            if not build.jobs:
                if build.task is not None:
                    build.task.cancel()
                del self._builds[place]
        for place, pod in list(self._left.items()):
            if job_uid in owner_uids(pod):
                self._leave(place, pod, job_uid)

    def _leave(self, place: tuple[str, str], pod: dict[str, Any], job_uid: str) -> None:
        """A Pod of an earlier process has one owner less."""
        (namespace, _), meta = place, pod["metadata"]
        others = [owner for owner in meta["ownerReferences"] if owner["uid"] != job_uid]
        if others:
            # They may have been deleted meanwhile: the garbage collector knows, as soon as this one is no owner any more.
            self._left[place] = {**pod, "metadata": {**meta, "ownerReferences": others}}
            path, waiters = core_path("pods", namespace=namespace, name=meta["name"]), {owner["uid"]: owner["name"] for owner in others}
            self._spawn(self._share(path, pod, waiters), name=f"share {meta['name']}")
            return
        del self._left[place]
        if (pod.get("status") or {}).get("phase") != "Failed":  # that one is kept for its log, and goes with the job itself
            self._spawn(self._delete(namespace, meta["name"], meta["uid"]), name=f"delete {meta['name']}")

    def _spawn(self, work: Coroutine[Any, Any, object], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ensure(self, request: _Request) -> ImageWait | Judgement | Made:
        place = (request.plan.namespace, request.key)
        build = self._builds.get(place)
        # A failure holds for the jobs that met it; a later job tries again, because the base image may be there now.
        stale = build is not None and isinstance(build.state, Judgement) and request.plan.uid not in build.jobs
        if build is None or stale:
            build = _Build(state=ImageWait(Reason.IMAGE_BUILDING, f"{request} is not built yet"))
            self._builds[place] = build
            build.task = asyncio.create_task(self._provide(request, build), name=f"image {request.key[:12]}")
        pending = request.spec.timeouts.pending.seconds
        waiter = build.jobs.setdefault(request.plan.uid, _Waiter(request.plan.job, self._clock.monotonic(), pending))
        return waiter.lapsed or build.state

    async def _provide(self, request: _Request, build: _Build) -> None:
        began = self._clock.monotonic()
        failures = pauses = 0
        while isinstance(build.state, ImageWait):
            try:
                outcome = await self._try(request, build)
            except (InvalidSpec, Rejected, NamespaceGone) as error:
                outcome = failure(Reason.POD_REJECTED, f"{request} cannot be built: {error}")
            except (SeatrialError, OSError) as error:
                outcome = self._untried(request, build, Reason.IMAGE_BUILDING, error)
            except Exception:
                log.exception("build failed with a bug", extra={"job": request.plan.job, "task": request.task.id})
                outcome = failure(Reason.RUNNER_CRASHED, "the operator could not build the image; its log says why")
            if not isinstance(outcome, Passing):
                build.state = outcome
                break
            failures += outcome.counts
            if failures >= ATTEMPTS or self._lapse(build, outcome.judgement, since=began):
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

    def _lapse(self, build: _Build, judgement: Judgement, *, since: float) -> bool:
        """End the wait of jobs whose ``timeouts.pending`` is over, reckoned from ``since`` at the earliest; True when nobody waits on."""
        now = self._clock.monotonic()
        for uid, waiter in build.jobs.items():
            if waiter.lapsed is None and now - max(since, waiter.since) > waiter.pending_seconds:
                waiter.lapsed = judgement
                self._wake(uid)
        return all(waiter.lapsed is not None for waiter in build.jobs.values())

    def _untried(self, request: _Request, build: _Build, reason: Reason, error: Exception) -> Passing:
        """The registry, the store or the API does not answer, or does not let us in: that passes, or a person acts."""
        self._wait(build, f"{request} waits: {error}")
        return Passing(failure(reason, f"the image could not be provided in time: {error}"), counts=False)

    async def _try(self, request: _Request, build: _Build) -> Made | Passing | Judgement:
        tag = f"{self._settings.repository}:{request.key}"
        try:
            digest = await asyncio.to_thread(self._registry.digest, tag)
        except (Unavailable, Forbidden) as error:
            return self._untried(request, build, Reason.REGISTRY_UNAVAILABLE, error)
        if digest is not None:
            return self._settings.image(digest)
        async with self._slots:
            self._wait(build, f"{request} is being built from {FOLDERS[request.role]}/Dockerfile")
            began = self._clock.monotonic()
            end = await self._build(request, build)
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

    async def _build(self, request: _Request, build: _Build) -> Pushed | Passing | Judgement:
        namespace, name = request.plan.namespace, build_pod_name(request.key)
        path = core_path("pods", namespace=namespace, name=name)
        creating = asyncio.create_task(self._create(request, build.names), name=f"create {name}")
        try:
            body = await asyncio.shield(creating)
        except asyncio.CancelledError:
            # The request may be under way: what it makes is nobody's.
            self._spawn(self._undo(creating, namespace, name), name=f"undo {name}")
            raise
        began = self._clock.monotonic()
        uid = body["metadata"]["uid"]
        end: Pushed | Passing | Judgement | None = None
        may_share = True
        try:
            while True:
                end = judge_build(
                    body,
                    role=request.role,
                    dockerfile=_staged_text(body),
                    timeout_seconds=request.timeout_seconds,
                    now=self._clock.now(),
                )
                if end is None and _never_ran(body):
                    late = failure(Reason.POD_START_TIMEOUT, f"the build's Pod {name} did not start in time: {_waits_for(body)}")
                    end = late if self._lapse(build, late, since=began) else None
                if end is not None:
                    return end
                if may_share and not body["metadata"].get("deletionTimestamp"):
                    may_share = await self._share(path, body, build.names)
                await asyncio.sleep(POLL_SECONDS)
                owners = owner_uids(body)
                try:
                    body = dict(await self._kube.get(path))
                except NotFound:
                    # One that went with the jobs it belonged to is begun anew for those that came later.
                    gone = failure(Reason.POD_DELETED, f"the build's Pod {name} was deleted")
                    return Passing(gone, counts=not owners.isdisjoint(build.jobs))
                except Unavailable as error:
                    log.warning("build not observed", extra={"pod": name, "error": str(error)[:200]})
                if body["metadata"]["uid"] != uid:
                    return Passing(failure(Reason.POD_DELETED, f"the build's Pod {name} was replaced"))
        finally:
            keep = request.spec.pod.keep_failed_seconds if isinstance(end, Judgement) else 0
            if keep:
                self._spawn(self._delete_later(namespace, name, uid, seconds=keep), name=f"keep {name}")
            else:
                await asyncio.shield(self._delete(namespace, name, uid, at_once=is_lost(body, now=self._clock.now())))

    async def _share(self, path: str, body: Mapping[str, Any], waiters: Mapping[str, str]) -> bool:
        """Make the Pod belong to the jobs that wait for it; False where the operator must not."""
        patch = change_owners(body, waiters)
        if patch is None:
            return True
        try:
            await self._kube.request("PATCH", path, body=patch, content_type=STRATEGIC_PATCH)
        except (NotFound, Conflict):
            return True  # the next look shows what became of it
        except SeatrialError as error:
            # It goes with the jobs that it belonged to before, and the others begin anew.
            log.warning("build not shared", extra={"pod": body["metadata"]["name"], "error": str(error)[:200]})
            return not isinstance(error, Forbidden)
        return True

    async def _undo(self, creating: asyncio.Task[dict[str, Any]], namespace: str, name: str) -> None:
        try:
            body = await creating
        except (SeatrialError, OSError):
            return
        await self._delete(namespace, name, body["metadata"]["uid"])

    async def _delete_later(self, namespace: str, name: str, uid: str, *, seconds: float) -> None:
        """A failed build's log can be read until then. After a restart it is kept until its job goes, or another job builds the image."""
        await asyncio.sleep(seconds)
        await self._delete(namespace, name, uid)

    async def _create(self, request: _Request, waiters: Mapping[str, str]) -> dict[str, Any]:
        """The build's Pod: a new one, or the one that an earlier process has begun."""
        task, place = request.task, (request.plan.namespace, request.key)
        body = build_pod(
            request.plan,
            task,
            role=request.role,
            key=request.key,
            archive_url=self._store.presign_get(task.archive_key, expires_seconds=URL_SECONDS),
            timeout_seconds=request.timeout_seconds,
            settings=self._settings,
            pods=self._pods,
            waiters=waiters,
            pull_secrets=[item.name for item in request.spec.pod.image_pull_secrets],
        )
        namespace, name = request.plan.namespace, build_pod_name(request.key)
        path = core_path("pods", namespace=namespace)
        for _ in range(20):
            try:
                made = dict(await self._kube.request("POST", path, params={"fieldValidation": "Strict"}, body=body))
                self._left.pop(place, None)
                return made
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
            if not meta.get("deletionTimestamp") and (not is_over or not owner_uids(found).isdisjoint(waiters)):
                self._left.pop(place, None)
                return found
            await self._delete(namespace, name, meta["uid"], at_once=is_lost(found, now=self._clock.now()))
            await asyncio.sleep(POLL_SECONDS)
        raise Unavailable(f"Pod {name} does not go away", retry_after=10.0)

    async def _delete(self, namespace: str, name: str, uid: str, *, at_once: bool = False) -> None:
        """``at_once``: without the word of its node, which does not answer. What may still run there pushes the same image."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0 if at_once else 1, "preconditions": {"uid": uid}}
        try:
            await self._kube.request("DELETE", core_path("pods", namespace=namespace, name=name), body=body)
        except (NotFound, Conflict):
            return
        except SeatrialError as error:
            # It belongs to jobs and goes with the last of them.
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
