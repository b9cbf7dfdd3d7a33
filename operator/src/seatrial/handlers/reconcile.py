"""One pass over an EvalJob: observe, plan, execute, write the status. Free of Kopf.

What is kept between passes is a memory that may be lost at any moment: the plan, the rows and the Pods can all be read again, and the rest
only spares requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from pydantic import ValidationError

from seatrial.api.evaljob import EvalJob, EvalJobSpec
from seatrial.api.names import EVALJOB, ROLE_SCORE
from seatrial.api.reasons import Reason
from seatrial.core import naming
from seatrial.core.actions import CommitRow, DeletePod, FindResult
from seatrial.core.frozen import FrozenPlan, ImageRole, PlannedTask, PlanRefused
from seatrial.core.manifests import GRACE_SECONDS
from seatrial.core.observe import PodView, parse_time
from seatrial.core.plan import STOP_GRACE_SECONDS, Hold, ImageWait, Observed, Plan, plan
from seatrial.core.rows import Row
from seatrial.core.status import (
    Context,
    Frozen,
    State,
    build_status,
    is_terminal,
    merge_difference,
    refused_status,
    short,
    waiting_status,
)
from seatrial.core.trial import Found, Judgement
from seatrial.core.workload import Admission
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.clock import Clock
from seatrial.effects.execute import Created, Executor, Held, Leaving, Refused
from seatrial.effects.kube import ApiUnavailable, MissingRight, NamespaceGone, Rejected
from seatrial.effects.metrics import Metrics
from seatrial.effects.planning import Loaded, Planner
from seatrial.effects.references import NotYet
from seatrial.effects.rows import LostRace, ResultFinder, RowLog, save_results
from seatrial.effects.scripts import ScriptRuns, ScriptState
from seatrial.effects.settings import Settings
from seatrial.effects.traces import Tracer
from seatrial.effects.webhook import Webhook
from seatrial.effects.workloads import Workloads
from seatrial.errors import DiskFull, Forbidden, InvalidSpec, SeatrialError, Unavailable
from seatrial.handlers.cache import Raw
from seatrial.handlers.writer import StatusWriter

log = logging.getLogger(__name__)

EXPECTATION_SECONDS: Final = 60.0
"""A created Pod that the informer does not show for so long is no longer believed in."""
ROUNDS: Final = 6
"""Plans per pass: commits and look-ups make another one worth while at once."""
PARALLEL_CREATES: Final = 16
VALUES_ON_LOOP: Final = 20_000
"""Rewards that a status is computed from beside everything else; above that, a thread does it and the Lease is renewed meanwhile."""
WAIT_SECONDS: Final = 2.0


class Images(Protocol):
    """What is used of the builds."""

    def look(self, plan: FrozenPlan, spec: EvalJobSpec, tasks: Iterable[int]) -> dict[int, ImageWait | Judgement]: ...
    def images(self, namespace: str, task: PlannedTask) -> dict[ImageRole, str]: ...
    def forget(self, job_uid: str) -> None: ...


class Pods(Protocol):
    """What is used of the informer."""

    def pods(self, job_uid: str) -> Mapping[str, PodView]: ...
    def gone(self, job_uid: str) -> Mapping[str, PodView]: ...
    def forget(self, job_uid: str, names: Any = None) -> None: ...
    @property
    def count(self) -> int: ...


@dataclass(slots=True)
class Memory:
    """What one process knows of a job that runs."""

    loaded: Loaded
    rows: RowLog
    finder: ResultFinder
    job: EvalJob | None = None
    """As it was parsed last."""
    found: dict[tuple[str, int], Found] = field(default_factory=dict)
    refused: dict[tuple[str, int], Judgement] = field(default_factory=dict)
    started: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)
    """Pods that we created and the informer has not shown: UID and time."""
    creating: int = 0
    """Requests for Pods that are under way."""
    deleted: dict[str, float] = field(default_factory=dict)
    """UIDs of Pods that we deleted, and when."""
    hold: Hold | None = None
    scripts: ScriptState = field(default_factory=ScriptState)
    summary_key: str | None = None
    is_reduced: bool = False
    """The full status was refused; from then on the reduced one is written."""
    store_failed: bool = False
    queued: str = ""
    """Why a queue holds the whole job back."""
    status_at: float = -1e9


class JobPass:
    """Reconciles EvalJobs."""

    def __init__(
        self,
        *,
        pods: Pods,
        planner: Planner,
        store: AsyncStore,
        executor: Executor,
        writer: StatusWriter,
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        webhook: Webhook,
        tracer: Tracer,
        workloads: Workloads,
        images: Images,
        scripts: ScriptRuns,
    ) -> None:
        self._webhook, self._tracer, self._images, self._scripts = webhook, tracer, images, scripts
        self._workloads = workloads
        self._pods, self._planner, self._store, self._executor = pods, planner, store, executor
        self._writer, self._settings, self._clock, self._metrics = writer, settings, clock, metrics
        self._memories: dict[str, Memory] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._short: set[str] = set()
        """UIDs of jobs that got fewer Pods than they wanted, because of the limit for all jobs."""

    async def run(self, body: Raw) -> float | None:
        """One pass; the answer is when to look again, in seconds, or None for "only when something happens".

        Raises:
            SeatrialError: the API or the store does not answer; the pass is repeated after a pause.
        """
        meta = body["metadata"]
        self._forget_other(meta["namespace"], meta["name"], meta["uid"])
        if meta.get("deletionTimestamp"):
            return None
        if is_terminal(body.get("status") or {}):
            return await self._finished(body)
        try:
            job = self._parse(body)
        except InvalidSpec as error:
            await self._writer.write(EVALJOB, body, refused_status(self._context(body), Reason.INVALID_SPEC, short(str(error))))
            return None
        try:
            return await self._work(body, job)
        except NamespaceGone:
            return None
        except PlanRefused as error:
            await self._refuse(body, error)
            return None
        except (Unavailable, Forbidden, DiskFull) as error:
            await self._degrade(body, job, error)
            raise

    def _parse(self, body: Raw) -> EvalJob:
        """The object of a body; a job at work is parsed once per version: it has more passes than changes.

        Raises:
            InvalidSpec: it cannot be read.
        """
        meta = body["metadata"]
        memory = self._memories.get(meta["uid"])
        if memory is None:
            return EvalJob.parse(body)
        if memory.job is None or memory.job.metadata.resource_version != meta["resourceVersion"]:
            memory.job = EvalJob.parse(body)
        return memory.job

    def forget(self, namespace: str, name: str) -> None:
        """The job no longer exists; its Pods go with it."""
        self._workloads.vanished(namespace, name)
        uid = self._uids.pop((namespace, name), None)
        if uid is not None:
            self._drop(uid)

    def trial_count(self, namespace: str, name: str) -> int:
        """Trials of a job that is in memory, else 0: what a pass over it costs."""
        memory = self._memories.get(self._uids.get((namespace, name), ""))
        return memory.loaded.frozen.trials if memory is not None else 0

    # --- a job at work ---------------------------------------------------------------------------------------------------------------

    async def _work(self, body: Raw, job: EvalJob) -> float | None:
        memory = self._memories.get(job.metadata.uid)
        if memory is None:
            try:
                memory = await self._remember(body, job)
            except NotYet as error:
                return await self._wait_for_reference(body, error)
        if (body.get("status") or {}).get("plan") is None:
            # No Pod exists before the status names the plan; a write that met a conflict is repeated by the next pass.
            if not await self._send(body, job, memory, await self._status(body, job, memory, self._plan(job, memory))):
                return 0.0
            body = self._fresh(body)
        admission = await self._workloads.ask(job, memory.loaded.plan)
        if admission is not None:
            job = _as_admitted(job, admission)
            memory.queued = admission.message if not admission.is_admitted else ""
        decided = await self._settle(job, memory)
        if job.spec.suspend or (decided.progress is not None and not decided.progress.pending):
            self._short.discard(job.metadata.uid)  # it wants no Pod: the others need not leave it a share
        if memory.store_failed:
            await self._store.list(memory.loaded.frozen.key)
            memory.store_failed = False
        if decided.creates:
            await self._create(job, memory, decided)
            decided = self._plan(job, memory)
        scripts_wait = None
        if decided.save is not None:
            scripts_wait = await self._run_scripts(job, memory, decided)
        if decided.save is not None and scripts_wait is None:
            saved = await save_results(
                self._store, memory.loaded.plan, job.spec, memory.rows, prefix=self._prefix(job), scripts=memory.scripts.outcomes or ()
            )
            memory.summary_key = saved.summary_key
            decided = self._plan(job, memory)
        later = await self._write_soon(body, job, memory, decided)
        await self._delete(job, memory, decided.deletes)
        waits = [seconds for seconds in (decided.requeue_seconds, later, scripts_wait) if seconds is not None]
        if admission is not None:
            waits.append(self._settings.kueue_ask_seconds)
            if admission.is_admitted and not admission.is_ready and decided.progress is not None and decided.progress.running:
                await self._workloads.start(job)
            if admission.holds_quota and decided.progress is not None and decided.progress.live_pods == 0:
                await self._workloads.give_back(job)
        if memory.started:
            oldest = min(at for _, at in memory.started.values())
            waits.append(max(0.1, oldest + EXPECTATION_SECONDS + 0.1 - self._clock.monotonic()))
        if len(decided.commits) or len(decided.creates) + len(decided.deletes) >= PARALLEL_CREATES:
            waits.append(0.0)
        return min(waits) if waits else None

    async def _run_scripts(self, job: EvalJob, memory: Memory, decided: Plan) -> float | None:
        """When to look again while the job's scripts run; None when they are done. A job that was stopped, or scored nothing, runs none."""
        assert decided.progress is not None
        plan, uid = memory.loaded.plan, job.metadata.uid
        if not plan.scripts or decided.progress.stop is not None or not decided.progress.count("scored"):
            return None
        pods, gone = self._pods.pods(uid), self._pods.gone(uid)
        return await self._scripts.step(plan, job.spec, decided.progress.final, memory.scripts, pods=pods, gone=gone)

    async def _settle(self, job: EvalJob, memory: Memory) -> Plan:
        """Plan, commit what ended, look for what is unclear, until only creates and deletes are left."""
        # What the store did not have in an earlier pass, it may have now: a Pod may have run meanwhile.
        memory.found = {key: found for key, found in memory.found.items() if found.verdict is not None or found.touched}
        await self._recall(memory)
        for _ in range(ROUNDS):
            decided = self._plan(job, memory)
            if decided.commits:
                await self._commit(job, memory, decided.commits)
            elif decided.lookups:
                await self._look_up(memory, decided.lookups)
            else:
                return decided
        return replace(self._plan(job, memory), creates=(), save=None)

    async def _recall(self, memory: Memory) -> None:
        """Pods that were created and never shown may have come and gone: the store is asked before they are created again."""
        now = self._clock.monotonic()
        lapsed = [key for key, (_, at) in memory.started.items() if now - at > EXPECTATION_SECONDS]
        answers = await asyncio.gather(*(memory.finder.find(trial, retry) for trial, retry in lapsed))
        for key, found in zip(lapsed, answers, strict=True):
            memory.found[key] = found
            memory.started.pop(key, None)

    async def _commit(self, job: EvalJob, memory: Memory, commits: tuple[CommitRow, ...]) -> None:
        rows, uid = [await self._explained(job, item.row) for item in commits], job.metadata.uid
        pods = {**self._pods.gone(uid), **self._pods.pods(uid)}
        try:
            await memory.rows.append(rows)
        except LostRace:
            log.warning("another writer appended rows, reading them", extra={"job": str(job.key)})
            await memory.rows.load()
            return
        for row in rows:
            error = row.error
            pod = pods.get(row.pod)
            self._metrics.observe_row(row, pod, namespace=job.metadata.namespace)
            self._tracer.trial_ended(row, pod, namespace=job.metadata.namespace, job=job.metadata.name, uid=uid)
            log.info(
                f"trial {row.outcome}",
                extra={
                    "job": str(job.key),
                    "trial": row.trial,
                    "retry": row.retry,
                    "pod": row.pod,
                    "reason": error.type if error else None,
                    "cause": error.cause if error else None,
                },
            )
        self._pods.forget(uid, [row.pod for row in rows if row.pod])
        for row in rows:
            memory.started.pop((row.trial, row.retry), None)
            memory.found.pop((row.trial, row.retry), None)
            memory.refused.pop((row.trial, row.retry), None)

    async def _explained(self, job: EvalJob, row: Row) -> Row:
        """A Pod that did not start in time says why only in its Events."""
        if row.error is None or row.error.type != Reason.POD_START_TIMEOUT or not row.pod:
            return row
        text = await self._executor.newest_warning(job.metadata.namespace, row.pod)
        return replace(row, error=replace(row.error, message=f"{text}; {row.error.message}")) if text else row

    async def _look_up(self, memory: Memory, lookups: tuple[FindResult, ...]) -> None:
        found = await asyncio.gather(*(memory.finder.find(item.trial, item.retry) for item in lookups))
        for item, answer in zip(lookups, found, strict=True):
            memory.found[item.trial, item.retry] = answer

    async def _create(self, job: EvalJob, memory: Memory, decided: Plan) -> None:
        frozen = memory.loaded.plan
        held = await self._executor.ensure_secret(frozen)
        if held is not None:
            memory.hold = held.hold
            return
        allowed = self._allowed(frozen.uid, len(decided.creates))
        if allowed < len(decided.creates):
            message = f"all EvalJobs together may have {self._settings.max_pods} trial Pods; this one waits for its share"
            memory.hold = Hold(Reason.QUEUED, message, self._clock.now() + timedelta(seconds=WAIT_SECONDS))
        memory.creating = allowed  # before anything is awaited: other jobs count them
        slots, now = asyncio.Semaphore(PARALLEL_CREATES), self._clock.monotonic()
        failures: list[SeatrialError] = []

        async def create(index: int) -> None:
            action = decided.creates[index]
            key = (action.trial.name, action.retry)
            async with slots:
                if memory.hold is not None and memory.hold.reason is not Reason.QUEUED and memory.hold.until > self._clock.now():
                    return
                try:
                    images = self._images.images(frozen.namespace, frozen.tasks[action.trial.task])
                    outcome = await self._executor.create(frozen, job.spec, action, images=images)
                except Unavailable as error:
                    failures.append(error)
                    return
                finally:
                    memory.creating -= 1
            match outcome:
                case Created() | Leaving():
                    memory.started[key] = (outcome.pod.uid, now)
                    log.info("pod created", extra={"job": str(job.key), "trial": key[0], "retry": key[1], "pod": action.pod})
                case Refused():
                    memory.refused[key] = outcome.judgement
                case Held():
                    memory.hold = outcome.hold

        try:
            await asyncio.gather(*(create(index) for index in range(allowed)))
        finally:
            memory.creating = 0
        if failures:
            raise failures[0]

    def _allowed(self, uid: str, wanted: int) -> int:
        """How many of the wanted Pods a job may create: all that are free, but above its equal share only while no other job waits."""
        most = self._settings.max_pods
        if not most:
            return wanted
        starting = {uid: len(memory.started) + memory.creating for uid, memory in self._memories.items()}
        free = most - self._pods.count - sum(starting.values())
        others = self._short - {uid}
        own = len(self._pods.pods(uid)) + starting.get(uid, 0)
        share = max(0, most // (len(others) + 1) - own) if others else free
        allowed = max(0, min(wanted, free, share))
        (self._short.add if allowed < wanted else self._short.discard)(uid)
        return allowed

    async def _delete(self, job: EvalJob, memory: Memory, deletes: tuple[DeletePod, ...]) -> None:
        now = self._clock.monotonic()

        async def delete(action: DeletePod) -> None:
            await self._executor.delete(job.metadata.namespace, action)
            memory.deleted[action.uid] = now

        await asyncio.gather(*(delete(action) for action in deletes))

    def _plan(self, job: EvalJob, memory: Memory) -> Plan:
        limits = self._settings.limits(pending_seconds=job.spec.timeouts.pending.seconds)
        return plan(self._observe(job, memory), self._clock.now(), limits)

    def _observe(self, job: EvalJob, memory: Memory) -> Observed:
        uid, now = job.metadata.uid, self._clock.monotonic()
        pods = self._pods.pods(uid)
        gone = self._gone(memory)
        shown = {(pod.trial, pod.retry): pod.uid for pod in pods.values()}
        for key, (pod_uid, _) in list(memory.started.items()):
            # By UID: what is shown or gone may be an earlier Pod of the same name.
            seen = shown.get(key) == pod_uid or (key in gone and gone[key].uid == pod_uid)
            if seen:
                del memory.started[key]
        live = {pod.uid for pod in pods.values()}
        for pod_uid, at in list(memory.deleted.items()):
            if pod_uid not in live or now - at > EXPECTATION_SECONDS:
                del memory.deleted[pod_uid]
        return Observed(
            spec=job.spec,
            plan=memory.loaded.plan,
            rows=memory.rows.by_trial,
            pods=pods,
            vanished=gone,
            starting=frozenset(memory.started),
            deleted=frozenset(memory.deleted),
            found=memory.found,
            refused=memory.refused,
            images=self._look_for_images(job, memory),
            started_at=parse_time(job.status.start_time),
            hold=memory.hold,
            saved=memory.summary_key is not None,
        )

    def _gone(self, memory: Memory) -> dict[tuple[str, int], PodView]:
        """Last views of Pods whose retry has no row; those that have one are forgotten: they went after their row was written."""
        uid, rows = memory.loaded.plan.uid, memory.rows.by_trial
        gone, told = {}, []
        for name, pod in self._pods.gone(uid).items():
            if any(row.retry == pod.retry for row in rows.get(pod.trial, ())):
                told.append(name)
            elif pod.owner_uid == uid:
                gone[pod.trial, pod.retry] = pod
        self._pods.forget(uid, told)
        return gone

    def _look_for_images(self, job: EvalJob, memory: Memory) -> dict[int, ImageWait | Judgement]:
        """Waits and failures of images that the cluster builds, for tasks with trials to come."""
        frozen = memory.loaded.plan
        if job.spec.suspend or job.spec.cancel or not any(task.builds for task in frozen.tasks):
            return {}
        rows = memory.rows.by_trial
        open_tasks = {trial.task for trial in frozen.trials if not ((last := rows.get(trial.name, ())) and last[-1].is_final)}
        return self._images.look(frozen, job.spec, sorted(open_tasks))

    async def _remember(self, body: Raw, job: EvalJob) -> Memory:
        """Everything a restart needs: the plan, the rows, and one listing of what trials have stored.

        Raises:
            NotYet, PlanRefused: there is no plan. Unavailable, Forbidden: the store or the API.
        """
        meta = job.metadata
        named = job.status.plan
        if named is not None:
            loaded = await self._planner.load(Frozen(named.key, named.sha256, named.tasks, named.trials))
        else:
            loaded = await self._planner.freeze(job)
            log.info("job planned", extra={"job": str(job.key), "trials": loaded.frozen.trials, "tasks": loaded.frozen.tasks})
        prefix = self._prefix(job)
        memory = Memory(
            loaded,
            RowLog(self._store, prefix, adopted=loaded.plan.adopted),
            ResultFinder(self._store, prefix, self._settings.job_key(meta.uid)),
        )
        # Also where the status names no plan yet: an earlier process may have come further than its last write.
        await memory.rows.load()
        await self._remember_results(memory)
        await self._scripts.load(loaded.plan, memory.scripts)
        self._memories[meta.uid] = memory
        self._uids[meta.namespace, meta.name] = meta.uid
        return memory

    async def _remember_results(self, memory: Memory) -> None:
        """Trials whose Pods came and went while nobody looked: they are known by what they stored, in one listing."""
        touched = await memory.finder.touched()
        live = {(pod.trial, pod.retry) for pod in self._pods.pods(memory.loaded.plan.uid).values()}
        for (trial, retry), has_result in touched.items():
            known = any(row.retry == retry for row in memory.rows.by_trial.get(trial, ()))
            if not known and (trial, retry) not in live:
                found = await memory.finder.find(trial, retry) if has_result else Found(None)
                memory.found[trial, retry] = found._replace(touched=True)

    # --- status ----------------------------------------------------------------------------------------------------------------------

    async def _write_soon(self, body: Raw, job: EvalJob, memory: Memory, decided: Plan) -> float | None:
        """Write the status unless it was written a moment ago; the answer is when to come back for it.

        A status reads every row: it is computed only when it may be sent, or is the last one.
        """
        left = memory.status_at + self._settings.status_interval_seconds - self._clock.monotonic()
        if left > 0 and memory.summary_key is None:
            return left
        status = await self._status(body, job, memory, decided)
        if not merge_difference(body.get("status") or {}, status):
            return None
        if not await self._send(body, job, memory, status):
            return 0.0
        if is_terminal(status):
            self._ended(body, status)
        return None

    async def _send(self, body: Raw, job: EvalJob, memory: Memory, status: Mapping[str, Any]) -> bool:
        """As ``StatusWriter.write``; a status that the server refuses is sent once more in its reduced form, and never holds the job up."""
        memory.status_at = self._clock.monotonic()
        try:
            return await self._writer.write(EVALJOB, body, status)
        except Rejected as error:
            log.error("status refused", extra={"job": str(job.key), "reason": short(str(error), 256)})
            if memory.is_reduced:
                return True
        memory.is_reduced = True
        try:
            return await self._writer.write(EVALJOB, body, await self._status(body, job, memory, self._plan(job, memory)))
        except Rejected as error:
            log.error("reduced status refused", extra={"job": str(job.key), "reason": short(str(error), 256)})
            return True

    async def _status(self, body: Raw, job: EvalJob, memory: Memory, decided: Plan, *, degraded: State | None = None) -> dict[str, Any]:
        assert decided.progress is not None
        if (
            degraded is None
            and memory.hold is not None
            and memory.hold.reason is Reason.FORBIDDEN
            and memory.hold.until > self._clock.now()
        ):
            degraded = State("True", Reason.FORBIDDEN, short(memory.hold.message))
        build = partial(
            build_status,
            self._context(body),
            job.spec,
            frozen=memory.loaded.frozen,
            progress=decided.progress,
            hold=memory.hold,
            queued=memory.queued,
            degraded=degraded,
            summary_key=memory.summary_key,
            scoring=memory.loaded.plan.scoring(memory.scripts.outcomes or ()),
        )
        values = sum(len(row.rewards or ()) + len(row.measures) for row in decided.progress.final)
        try:
            if values > VALUES_ON_LOOP and not memory.is_reduced:
                return await asyncio.to_thread(build, reduced=False)
            return build(reduced=memory.is_reduced)
        except ValidationError as error:
            # What Pods report may be stranger than our checks; the counts always fit.
            log.error("status does not meet its own schema", extra={"job": str(job.key), "reason": short(str(error), 256)})
            memory.is_reduced = True
            return build(reduced=True)

    def _context(self, body: Raw) -> Context:
        meta = body["metadata"]
        prefix = naming.job_prefix(meta["namespace"], meta["name"], meta["uid"])
        return Context(
            generation=meta.get("generation", 0),
            previous=body.get("status") or {},
            now=self._clock.now(),
            prefix=f"s3://{self._settings.s3_bucket}/{prefix}",
        )

    async def _wait_for_reference(self, body: Raw, error: NotYet) -> float | None:
        """Objects of one ``kubectl apply`` come in any order: a reference that is missing or refused is final only after a moment."""
        created = parse_time(body["metadata"].get("creationTimestamp")) or self._clock.now()
        deadline = created + timedelta(seconds=self._settings.reference_grace_seconds)
        if self._clock.now() >= deadline and not error.in_work:
            raise error
        status = waiting_status(self._context(body), error.reason, short(str(error)))
        await self._writer.write(EVALJOB, body, status)
        return WAIT_SECONDS

    async def _refuse(self, body: Raw, error: PlanRefused) -> None:
        log.info("job refused", extra={"job": _name(body), "reason": error.reason.value})
        status = refused_status(self._context(body), error.reason, short(str(error)))
        body = self._fresh(body)
        if await self._writer.write(EVALJOB, body, {**(body.get("status") or {}), **status}):
            self._ended(body, status)

    async def _degrade(self, body: Raw, job: EvalJob, error: SeatrialError) -> None:
        """Say what is down. Nothing is created and nothing is deleted until it is back."""
        if isinstance(error, MissingRight):
            reason = Reason.FORBIDDEN
        elif isinstance(error, ApiUnavailable):
            return  # the status cannot be written either
        else:
            reason = Reason.OBJECT_STORE_UNAVAILABLE
        memory = self._memories.get(job.metadata.uid)
        body = self._fresh(body)
        state = State("True", reason, short(f"{error}; the job goes on when this is solved"))
        try:
            if memory is None:
                status = waiting_status(self._context(body), reason, state.message, degraded=True)
                status = {**(body.get("status") or {}), **{key: status[key] for key in ("conditions", "observedGeneration")}}
            else:
                memory.store_failed = memory.store_failed or reason is Reason.OBJECT_STORE_UNAVAILABLE
                status = await self._status(body, job, memory, self._plan(job, memory), degraded=state)
            await self._writer.write(EVALJOB, body, status)
        except SeatrialError as second:  # the first error is the one that counts
            log.warning("status not written", extra={"job": str(job.key), "reason": type(second).__name__})

    # --- a job that ended ------------------------------------------------------------------------------------------------------------

    async def _finished(self, body: Raw) -> float | None:
        """Remove what is left of Pods, and the object itself when its time to live is over."""
        meta, spec, status = body["metadata"], body["spec"], body["status"]
        uid, now = meta["uid"], self._clock.now()
        self._images.forget(uid)
        ended = parse_time(status.get("completionTime")) or now
        memory = self._memories.get(uid)
        keep = ended + timedelta(seconds=int((spec.get("pod") or {}).get("keepFailedSeconds") or 0))
        waits: list[datetime] = []
        for pod in sorted(self._pods.pods(uid).values(), key=lambda pod: pod.name):
            if pod.deleting or pod.owner_uid != uid:
                continue
            rows = memory.rows.by_trial.get(pod.trial, ()) if memory is not None else ()
            is_errored = pod.role != ROLE_SCORE and (not rows or rows[-1].outcome == "errored")
            if is_errored and now < keep:
                waits.append(keep)
                continue
            grace = STOP_GRACE_SECONDS if pod.is_terminal or (rows and rows[-1].outcome == "scored") else GRACE_SECONDS
            await self._executor.delete(meta["namespace"], DeletePod(pod.name, pod.uid, grace))
        if not self._pods.pods(uid):
            if not await self._leave_queue(body):
                waits.append(now + timedelta(seconds=WAIT_SECONDS))
            self._drop(uid)
        ttl = spec.get("ttlSecondsAfterFinished")
        if ttl is not None:
            if (until := ended + timedelta(seconds=int(ttl))) <= now:
                await self._executor.delete_job(meta["namespace"], meta["name"], uid)
            else:
                waits.append(until)
        return max(0.1, (min(waits) - now).total_seconds()) if waits else None

    async def _leave_queue(self, body: Raw) -> bool:
        """Whether the queue knows that the job has ended."""
        try:
            job = EvalJob.parse(body)
        except InvalidSpec:  # such a job was never in a queue
            return True
        end: Mapping[str, Any] = next((item for item in body["status"]["conditions"] if item["type"] == "Finished"), {})
        message = f"{end.get('reason', '')}: {end.get('message', '')}"
        return await self._workloads.finish(job, is_good=body["status"]["phase"] == "Completed", message=message)

    def _ended(self, body: Raw, status: Mapping[str, Any]) -> None:
        self._short.discard(body["metadata"]["uid"])
        reason = next((item["reason"] for item in status["conditions"] if item["type"] == "Finished"), "")
        self._metrics.jobs_ended.labels(status["phase"], reason).inc()
        self._webhook.job_ended(body, status)
        log.info("job ended", extra={"job": _name(body), "phase": status["phase"], "reason": reason, "mean": status.get("mean")})

    # --- memory ----------------------------------------------------------------------------------------------------------------------

    def _fresh(self, body: Raw) -> Raw:
        """The newest body that is known; our own writes are in the cache before the watch brings them."""
        return self._writer.newest(EVALJOB, body)

    def _prefix(self, job: EvalJob) -> str:
        return naming.job_prefix(job.metadata.namespace, job.metadata.name, job.metadata.uid)

    def _forget_other(self, namespace: str, name: str, uid: str) -> None:
        """A job that was deleted and made again under the same name is another job."""
        known = self._uids.get((namespace, name))
        if known is not None and known != uid:
            self.forget(namespace, name)

    def _drop(self, uid: str) -> None:
        self._memories.pop(uid, None)
        self._short.discard(uid)
        self._pods.forget(uid)
        self._executor.forget(uid)
        self._workloads.forget(uid)
        self._images.forget(uid)


def _as_admitted(job: EvalJob, admission: Admission) -> EvalJob:
    """The job as its queue lets it be: suspended until it is admitted, and then with no more Pods than were counted."""
    changes: dict[str, Any] = {"concurrency": min(job.spec.concurrency, admission.pods)} if admission.is_admitted else {"suspend": True}
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})


def _name(body: Raw) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"
