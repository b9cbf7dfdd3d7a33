"""What to do next for one job: a pure function of what was observed and the time.

The same observation always gives the same plan, and a crash after any action converges on the next pass: rows are committed before Pods
are deleted, names are deterministic, and everything counted is counted anew. Suspend, cancel, deadlines, quota and time to live are
branches here, not other code paths.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.names import ROLE_TRIAL, ROLE_VERIFY
from seatrial.api.reasons import Reason
from seatrial.core.actions import Action, CommitRow, CreatePod, DeleteJob, DeletePod, FindResult, SaveResults
from seatrial.core.expand import Trial
from seatrial.core.frozen import FrozenPlan
from seatrial.core.manifests import GRACE_SECONDS
from seatrial.core.naming import pod_name
from seatrial.core.observe import PodView, format_time, parse_time
from seatrial.core.policy import POLICIES, Budget, RetryRules, backoff_seconds, may_retry
from seatrial.core.rows import Outcome, Row, TrialError, handed_over, past
from seatrial.core.trial import Found, Judgement, Limits, Running, Unclear, Waiting, derive, failure, is_lost, judge, lost_at
from seatrial.core.trial_input import error_overrides

ACTIONS_PER_PASS: Final = 50
"""Creates and deletes; then the job goes to the back of the queue, so that a large one does not starve the others."""
ROWS_PER_PASS: Final = 1000
RESYNC_SECONDS: Final = 60.0
"""Look again while trials are live, whatever the informer says."""
STOP_GRACE_SECONDS: Final = 5
"""For Pods whose verdict is known: only the task's own server may still run."""


class Stop(NamedTuple):
    """The job ends early."""

    reason: Reason
    message: str
    drains: bool = False
    """What runs goes on to its score; only no further agent starts."""


class ImageWait(NamedTuple):
    """The image of a task is not there yet: its trials wait, those of other tasks go on."""

    reason: Reason
    message: str


class Hold(NamedTuple):
    """No Pod is created before ``until``."""

    reason: Reason
    message: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a plan is made from."""

    spec: EvalJobSpec
    plan: FrozenPlan
    rows: Mapping[str, tuple[Row, ...]]
    """Committed rows by trial, as ``rows.by_trial`` gives them."""
    pods: Mapping[str, PodView]
    """Pods of the job by name, from the informer."""
    vanished: Mapping[tuple[str, int], PodView] = field(default_factory=dict)
    """Last views of Pods that were seen and are gone, by trial and retry; those with a row do not matter."""
    starting: frozenset[tuple[str, int]] = frozenset()
    """Created by us and not yet shown by the informer."""
    deleted: frozenset[str] = frozenset()
    """UIDs of Pods that we deleted and the informer still shows."""
    found: Mapping[tuple[str, int], Found] = field(default_factory=dict)
    """What the store answered for retries without a verdict."""
    refused: Mapping[tuple[str, int], Judgement] = field(default_factory=dict)
    """Pods that could not be created, for good."""
    images: Mapping[int, ImageWait | Judgement] = field(default_factory=dict)
    """By number of the task: the wait for an image that the cluster builds, or why there will be none. Absent: nothing to wait for."""
    started_at: datetime | None = None
    hold: Hold | None = None
    saved: bool = False
    """The results of the ended job are written."""
    finished_at: datetime | None = None
    """The job is in a terminal phase since then."""


@dataclass(frozen=True, slots=True)
class Plan:
    commits: tuple[CommitRow, ...] = ()
    lookups: tuple[FindResult, ...] = ()
    creates: tuple[CreatePod, ...] = ()
    deletes: tuple[DeletePod, ...] = ()
    save: SaveResults | None = None
    delete_job: DeleteJob | None = None
    progress: Progress | None = None
    requeue_seconds: float | None = None
    """None: only an event wakes the job."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of them in the order in which they are executed."""
        last = [item for item in (self.save, self.delete_job) if item is not None]
        return (*self.commits, *self.lookups, *self.creates, *self.deletes, *last)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is, for the status."""

    pending: int
    running: int
    final: tuple[Row, ...]
    """Final rows in plan order."""
    retried: int
    waiting: Mapping[Reason, str]
    """Why live Pods wait, with one message each; empty as soon as one of them runs."""
    live_pods: int
    stop: Stop | None
    tasks: Mapping[str, str] = field(default_factory=dict)
    """Task of each trial; one that is not named is taken for a task of its own."""

    @property
    def total(self) -> int:
        return self.pending + self.running + len(self.final)

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome == outcome for row in self.final)


def plan(observed: Observed, now: datetime, limits: Limits) -> Plan:
    """The next actions of a job.

    Args:
        observed: of this moment; nothing else is read.
        now: aware, UTC.
        limits: how long Pods may wait.

    Guarantees: a trial with a final row gets nothing any more; no Pod is deleted whose retry has no row, unless the job is stopped or
    suspended, and then the row is written when the Pod is gone, from its verdict or result if there is one; at most ``spec.concurrency``
    Pods hold resources, counted with those that were just created or are being deleted; while the job is held, suspended or stopped,
    nothing is created, but for the verifiers of agents that have run where a stop lets those go on.
    """
    passed = _Pass(observed, now, limits)
    stop = _stop(observed, now)
    passed.visit_all(stop)
    deletes = passed.deletes()
    creates = () if _ends_pods(stop) or observed.spec.suspend or passed.held() else passed.creates()
    commits = tuple(passed.commits[:ROWS_PER_PASS])
    progress = passed.progress(stop)
    ended = len(progress.final) == len(observed.plan.trials) and not commits
    if len(passed.commits) > ROWS_PER_PASS or len(creates) + len(deletes) >= ACTIONS_PER_PASS:
        passed.wake(now)
    return Plan(
        commits=commits,
        lookups=tuple(passed.lookups),
        creates=creates,
        deletes=deletes,
        save=SaveResults() if ended and not observed.saved and observed.finished_at is None else None,
        delete_job=passed.expired(),
        progress=progress,
        requeue_seconds=passed.requeue_seconds(),
    )


def retry_rules(spec: EvalJobSpec) -> RetryRules:
    """``spec.retry`` and ``spec.errorPolicy`` as the policy functions read them."""
    return RetryRules(
        most=spec.retry.max,
        include=spec.retry.include,
        exclude=spec.retry.exclude or (),
        overrides={name: {key: bool(value) for key, value in flags.items()} for name, flags in error_overrides(spec).items()},
        min_seconds=spec.retry.backoff.min.seconds,
        max_seconds=spec.retry.backoff.max.seconds,
    )


def build_row(
    trial: str,
    retry: int,
    judgement: Judgement,
    *,
    earlier: Iterable[Row],
    spec: EvalJobSpec,
    rules: RetryRules,
    now: datetime,
    pod: PodView | None,
) -> Row:
    """The row for an ended Pod: scored, errored, or retried when the policy allows another Pod."""
    error, verdict = judgement.error, judgement.verdict
    budget = _budget(judgement, spec=spec, rules=rules)
    outcome: Outcome = "scored" if judgement.valid else "errored"
    if judgement.is_handed_over:
        outcome = "retried"
    elif not judgement.valid and error is not None:
        before = past(tuple(earlier))
        if may_retry(rules, error=error.type, harbor=error.harbor, budget=budget, most=judgement.most, past=before):
            outcome = "retried"
    started = min((item.started_at for item in pod.containers if item.started_at), default=None) if pod is not None else None
    return Row(
        trial=trial,
        retry=retry,
        outcome=outcome,
        ended_at=format_time(now),
        rewards=judgement.rewards,
        error=error,
        budget=budget if outcome == "retried" else Budget.NONE,
        pod=pod.name if pod is not None else "",
        started_at=format_time(started) if started else None,
        stored=verdict.stored if verdict is not None else False,
        result_sha256=verdict.result_sha256 if verdict is not None else None,
        logs_sha256=verdict.logs_sha256 if verdict is not None else None,
        seconds=verdict.seconds if verdict is not None else {},
        tampered=verdict.tampered if verdict is not None else False,
        measures=verdict.measures if verdict is not None else {},
        leftover_processes=verdict.leftover_processes if verdict is not None else 0,
        usage=verdict.usage if verdict is not None else {},
        changed_tools=verdict.changed_tools if verdict is not None else 0,
    )


def _budget(judgement: Judgement, *, spec: EvalJobSpec, rules: RetryRules) -> Budget:
    """The judgement's budget, unless the job's own words say more: an explicit exclusion list replaces Harbor's (H-144)."""
    error = judgement.error
    if error is None or judgement.valid or judgement.budget is not Budget.NONE:
        return judgement.budget
    allowed = any(rules.overrides.get(name, {}).get("retry") is True for name in (error.type, error.harbor))
    is_verdict = judgement.verdict is not None and error.type == error.harbor
    return Budget.COUNTED if allowed or (is_verdict and spec.retry.exclude is not None) else Budget.NONE


def _stop(observed: Observed, now: datetime) -> Stop | None:
    spec = observed.spec
    if spec.cancel:
        return Stop(Reason.CANCELLED, "cancelled by spec.cancel")
    deadline = spec.limits.deadline
    if deadline is not None and observed.started_at is not None and now >= observed.started_at + timedelta(seconds=deadline.seconds):
        return Stop(Reason.JOB_DEADLINE_EXCEEDED, f"not finished within spec.limits.deadline of {deadline}")
    most = spec.limits.max_errored
    if most is not None:
        errored = sum(bool(rows) and rows[-1].outcome == "errored" for rows in observed.rows.values())
        if errored > most:
            return Stop(Reason.MAX_ERRORED_REACHED, f"{errored} trials errored, more than spec.limits.maxErrored of {most}")
    dollars = spec.limits.max_cost_usd
    if dollars is not None:
        # Retried Pods have cost too; what another job ran has not.
        cost = math.fsum(row.usage.get("cost_usd", 0.0) for rows in observed.rows.values() for row in rows if row.origin is None)
        if cost >= dollars:
            message = f"the agents have cost {cost:.2f} US dollars, and spec.limits.maxCostUsd is {dollars:g}: no further one starts"
            return Stop(Reason.COST_LIMIT_REACHED, message, drains=True)
    return None


def _ends_pods(stop: Stop | None) -> bool:
    return stop is not None and not stop.drains


class _Pass:
    """The state of one call of ``plan``."""

    def __init__(self, observed: Observed, now: datetime, limits: Limits) -> None:
        self.observed, self.now, self.limits = observed, now, limits
        self.rules = retry_rules(observed.spec)
        self.commits: list[CommitRow] = []
        self.lookups: list[FindResult] = []
        self._final: list[Row] = []
        self._ending: set[tuple[str, int]] = set()
        """Retries whose Pods a stop or a suspension takes away."""
        self._pending: list[tuple[Trial, int]] = []
        self._pending_count = self._running = self._retried = 0
        self._any_runs = False
        self._waiting: dict[Reason, str] = {}
        self._wake_at: datetime | None = None
        self._pods = {
            (pod.trial, pod.retry): pod
            for pod in observed.pods.values()
            if pod.owner_uid == observed.plan.uid and pod.role in (ROLE_TRIAL, ROLE_VERIFY)
        }

    def visit_all(self, stop: Stop | None) -> None:
        """Count every trial and note what it needs. Most of a large job has ended or waits for its turn: those two cost next to nothing."""
        observed = self.observed
        known = {trial for trial, _ in (*self._pods, *observed.vanished, *observed.starting, *observed.found, *observed.refused)}
        ordinary = [stop is None and task.refusal is None for task in observed.plan.tasks]
        for task in observed.images:
            ordinary[task] = False
        for trial in observed.plan.trials:
            rows = observed.rows.get(trial.name)
            if rows is None and ordinary[trial.task] and trial.name not in known:
                self._pending_count += 1
                self._pending.append((trial, 0))
            elif rows is not None and len(rows) == 1 and rows[0].outcome != "retried":
                self._final.append(rows[0])
            else:
                self._visit(trial, rows or (), stop)

    def _visit(self, trial: Trial, rows: tuple[Row, ...], stop: Stop | None) -> None:
        self._retried += sum(not row.is_final and not _is_hand_over(row) for row in rows)
        if rows and rows[-1].is_final:
            self._final.append(rows[-1])
            return
        retry = rows[-1].retry + 1 if rows else 0
        key = (trial.name, retry)
        pod, gone = self._pods.get(key), self.observed.vanished.get(key)
        if pod is not None:
            self._visit_pod(trial, rows, retry, pod, gone=False, stop=stop)
        elif key in self.observed.starting:
            # Before what vanished: an earlier Pod of this name may be gone, the one that was just created is not.
            self._running += 1
        elif gone is not None:
            self._visit_pod(trial, rows, retry, gone, gone=True, stop=stop)
        else:
            self._visit_waiting(trial, rows, retry, stop)

    def _visit_pod(self, trial: Trial, rows: tuple[Row, ...], retry: int, pod: PodView, *, gone: bool, stop: Stop | None) -> None:
        self._running += 1
        state = derive(
            trial.name,
            retry,
            pod=pod,
            gone=gone,
            found=self.observed.found.get((trial.name, retry)),
            now=self.now,
            limits=self.limits,
            overrides=self.rules.overrides,
        )
        is_ending = _ends_pods(stop) or self.observed.spec.suspend
        if not gone and (lost := lost_at(pod, self.limits)) is not None and lost > self.now:
            self.wake(lost)
        match state:
            case Judgement(verdict=None) if is_ending and (gone or pod.deleting or pod.uid in self.observed.deleted):
                self._commit_ending(trial, retry, stop, pod)
            case Judgement():
                self._commit(trial, rows, retry, state, pod)
            case Unclear():
                self.lookups.append(FindResult(trial.name, retry))
            case Waiting() | Running() if is_ending:
                # No row yet: until it is gone the Pod may still leave a verdict, and a committed result counts.
                self._ending.add((trial.name, retry))
            case Waiting():
                self._waiting.setdefault(state.reason, state.message)
                if state.deadline is not None:
                    self.wake(state.deadline)
            case Running():
                self._any_runs = True

    def _visit_waiting(self, trial: Trial, rows: tuple[Row, ...], retry: int, stop: Stop | None) -> None:
        """A trial without a Pod: refused, found in the store, cancelled, or ready once its back-off is over."""
        self._pending_count += 1
        task = self.observed.plan.tasks[trial.task]
        found = self.observed.found.get((trial.name, retry))
        refused = self.observed.refused.get((trial.name, retry))
        if task.refusal is not None:
            self._commit(trial, rows, retry, failure(task.refusal.reason, task.refusal.message), None)
        elif found is not None and found.verdict is not None:
            self._commit(trial, rows, retry, judge(found.verdict, self.rules.overrides), None)
        elif found is not None and found.touched and (_ends_pods(stop) or self.observed.spec.suspend):
            self._commit_ending(trial, retry, stop, None)
        elif found is not None and found.touched:
            text = found.note or "its Pod vanished before the result was stored"
            self._commit(trial, rows, retry, failure(Reason.POD_DELETED, text), None)
        elif refused is not None:
            self._commit(trial, rows, retry, refused, None)
        elif stop is not None and not (stop.drains and handed_over(rows)):
            self._commit_ending(trial, retry, stop, None)
        elif isinstance(image := self.observed.images.get(trial.task), Judgement):
            self._commit(trial, rows, retry, image, None)
        elif image is not None:
            self._waiting.setdefault(image.reason, image.message)
        else:
            ready = self._ready_at(trial, rows)
            if ready is None or ready <= self.now:
                self._pending.append((trial, retry))
            elif not self.observed.spec.suspend:
                self.wake(ready)

    def _ready_at(self, trial: Trial, rows: tuple[Row, ...]) -> datetime | None:
        failures = len(past(rows))
        if not rows or not failures or (rows[-1].error is not None and rows[-1].error.type in (Reason.SUSPENDED, Reason.HANDED_OVER)):
            return None
        ended = parse_time(rows[-1].ended_at)
        return ended + timedelta(seconds=backoff_seconds(self.rules, failures=failures, seed=trial.name)) if ended else None

    def _commit(self, trial: Trial, rows: tuple[Row, ...], retry: int, judgement: Judgement, pod: PodView | None) -> None:
        spec = self.observed.spec
        row = build_row(trial.name, retry, judgement, earlier=rows, spec=spec, rules=self.rules, now=self.now, pod=pod)
        self.commits.append(CommitRow(row))

    def _commit_ending(self, trial: Trial, retry: int, stop: Stop | None, pod: PodView | None) -> None:
        """The row of a retry that the stop, or else the suspension, ended without a verdict."""
        row = _cancelled(trial.name, retry, stop, self.now, pod) if stop is not None else _suspended(trial.name, retry, self.now, pod)
        self.commits.append(CommitRow(row))

    def deletes(self) -> tuple[DeletePod, ...]:
        """Pods whose retry has a row, Pods that a stop or a suspension ends, and Pods of trials that the plan does not know."""
        found: list[DeletePod] = []
        for (trial, retry), pod in sorted(self._pods.items()):
            if pod.deleting or pod.uid in self.observed.deleted:
                continue
            rows = self.observed.rows.get(trial, ())
            row = next((item for item in rows if item.retry == retry), rows[-1] if rows and rows[-1].is_final else None)
            if row is None and trial in self.observed.plan.task_of:
                if (trial, retry) in self._ending:
                    found.append(DeletePod(pod.name, pod.uid, grace_seconds=GRACE_SECONDS))
                continue
            keep = self._keep_until(row, retry)
            if keep is not None and keep > self.now:
                self.wake(keep)
                continue
            found.append(DeletePod(pod.name, pod.uid, grace_seconds=_grace(row)))
        return tuple(found[:ACTIONS_PER_PASS])

    def creates(self) -> tuple[CreatePod, ...]:
        """The first waiting trials in plan order that have no live Pod, as many as ``spec.concurrency`` leaves room for."""
        live = [pod for pod in self._pods.values() if self._is_live(pod)]
        held = len(self.observed.starting - self._pods.keys()) + sum(not self._is_kept(pod) for pod in live)
        room = min(self.observed.spec.concurrency - held, ACTIONS_PER_PASS)
        # A Pod that failed in part, or was taken away, may still run its agent; after a hand-over there is none.
        busy = {pod.trial for pod in live}
        ready = (item for item in self._pending if item[0].name not in busy or handed_over(self.observed.rows.get(item[0].name, ())))
        return tuple(self._create(trial, retry) for trial, retry in itertools.islice(ready, max(0, room)))

    def _is_live(self, pod: PodView) -> bool:
        return not pod.is_terminal and not self._is_lost(pod)

    def _is_lost(self, pod: PodView) -> bool:
        return is_lost(pod, now=self.now, limits=self.limits)

    def _create(self, trial: Trial, retry: int) -> CreatePod:
        job, agent_row = self.observed.plan, handed_over(self.observed.rows.get(trial.name, ()))
        return CreatePod(trial, retry, pod_name(job.job, job.uid, trial.key, retry, verifies=agent_row is not None), agent_row)

    def held(self) -> bool:
        """Whether something outside the job forbids new Pods at the moment."""
        hold = self.observed.hold
        if hold is None or hold.until <= self.now:
            return False
        self.wake(hold.until)
        return True

    def expired(self) -> DeleteJob | None:
        """Whether the finished job's time to live is over."""
        ttl, finished = self.observed.spec.ttl_seconds_after_finished, self.observed.finished_at
        if ttl is None or finished is None:
            return None
        if (until := finished + timedelta(seconds=ttl)) <= self.now:
            return DeleteJob()
        self.wake(until)
        return None

    def progress(self, stop: Stop | None) -> Progress:
        return Progress(
            pending=self._pending_count,
            running=self._running,
            final=tuple(self._final),
            retried=self._retried,
            waiting={} if self._any_runs else dict(self._waiting),
            live_pods=sum(not self._is_lost(pod) for pod in self._pods.values()) + len(self.observed.starting - self._pods.keys()),
            stop=stop,
            tasks=self.observed.plan.task_of,
        )

    def wake(self, at: datetime) -> None:
        if self._wake_at is None or at < self._wake_at:
            self._wake_at = at

    def requeue_seconds(self) -> float | None:
        deadline = self.observed.spec.limits.deadline
        live = self._running or self._pending_count
        if live and deadline is not None and self.observed.started_at is not None:
            self.wake(self.observed.started_at + timedelta(seconds=deadline.seconds))
        if live or self._pods:
            self.wake(self.now + timedelta(seconds=RESYNC_SECONDS))
        return None if self._wake_at is None else max(0.0, (self._wake_at - self.now).total_seconds())

    def _keep_until(self, row: Row | None, retry: int) -> datetime | None:
        seconds = self.observed.spec.pod.keep_failed_seconds
        if not seconds or row is None or row.outcome != "errored" or row.retry != retry:
            return None
        ended = parse_time(row.ended_at)
        return ended + timedelta(seconds=seconds) if ended else None

    def _is_kept(self, pod: PodView) -> bool:
        rows = self.observed.rows.get(pod.trial, ())
        keep = self._keep_until(rows[-1], pod.retry) if rows else None
        return keep is not None and keep > self.now and not pod.deleting


def _is_hand_over(row: Row) -> bool:
    return row.error is not None and row.error.type == Reason.HANDED_OVER


def _grace(row: Row | None) -> int:
    """A Pod that was stopped in its work gets time to save evidence; one whose verdict is known does not need it."""
    stopped = row is not None and row.error is not None and row.error.type in (Reason.CANCELLED, Reason.SUSPENDED)
    return GRACE_SECONDS if stopped else STOP_GRACE_SECONDS


def _cancelled(trial: str, retry: int, stop: Stop, now: datetime, pod: PodView | None) -> Row:
    return _without_result(trial, retry, "cancelled", Reason.CANCELLED, stop.message, now=now, pod=pod)


def _suspended(trial: str, retry: int, now: datetime, pod: PodView | None) -> Row:
    return _without_result(
        trial, retry, "retried", Reason.SUSPENDED, "taken away because the job is suspended; runs again", now=now, pod=pod
    )


def _without_result(trial: str, retry: int, outcome: Outcome, reason: Reason, message: str, *, now: datetime, pod: PodView | None) -> Row:
    policy = POLICIES[reason]
    return Row(
        trial=trial,
        retry=retry,
        outcome=outcome,
        ended_at=format_time(now),
        error=TrialError(reason.value, policy.harbor, policy.cause, message),
        budget=policy.budget,
        pod=pod.name if pod is not None else "",
    )
