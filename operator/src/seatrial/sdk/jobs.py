"""Submit an EvalJob, follow it, end it. The job runs in the cluster; everything here may stop and start again at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seatrial.api.evaljob import TERMINAL_PHASES
from seatrial.api.names import EVALJOB, LABEL_JOB, LABEL_TRIAL
from seatrial.effects.store import Store
from seatrial.errors import Forbidden, NotFound, SeatrialError
from seatrial.sdk.cluster import Cluster, Event
from seatrial.sdk.exports import to_arrow, to_frame
from seatrial.sdk.local_secrets import create_job, take_local_secrets
from seatrial.sdk.metric_script import run_script
from seatrial.sdk.request import JobRequest, build_job
from seatrial.sdk.results import JobFiles, Raw, Summary, TrialRecord, flat_range, flat_score, read_bundle, reward_rows
from seatrial.sdk.reuse import rerun_body, rescore_body
from seatrial.sdk.traces import Trace, primary_trace

if TYPE_CHECKING:
    from seatrial.sdk.local import EvaluationResult

SUCCESS: Final = "Completed"


class JobFailed(SeatrialError, RuntimeError):
    """The job ended without success: thresholds missed, nothing scored, cancelled, or it could not be planned."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = job
        super().__init__(f"job {job['metadata']['name']} ended {phase_of(job)}: {end_message(job)}")


class WaitTimeout(SeatrialError, TimeoutError):
    """The job goes on; only the waiting ended."""


class JobGone(NotFound):
    """The EvalJob was deleted while somebody waited for it; its results stay in the object store."""


class Limits(NamedTuple):
    """How long to wait, in seconds; None: without end. Time before the first trial started counts only against ``pending``."""

    pending: float | None = None
    running: float | None = None


NO_LIMITS: Final = Limits()


def submit(cluster: Cluster, request: JobRequest, *, dry_run: bool = False) -> Raw:
    """Create the EvalJob; with ``dry_run`` the API server checks it and stores nothing.

    Raises:
        InvalidSpec: it is refused, here or by the server.
        AlreadyExists: there is a job of this name.
    """
    request, secret = take_local_secrets(request, os.environ)
    return create_job(cluster, build_job(request, namespace=cluster.namespace), secret, dry_run=dry_run)


def follow(
    cluster: Cluster,
    name: str,
    *,
    limits: Limits = NO_LIMITS,
    clock: Callable[[], float] = time.monotonic,
    events: Iterator[Event | None] | None = None,
) -> Iterator[Raw]:
    """Each new state of the job, the last one in a terminal phase.

    Raises:
        NotFound: there is no such job.
        JobGone: it was deleted.
        WaitTimeout: a limit passed.
    """
    job = cluster.get(EVALJOB, name)
    uid, spent, last = job["metadata"]["uid"], {"pending": 0.0, "running": 0.0}, clock()
    yield job
    tick = min((limit for limit in limits if limit is not None), default=60.0)
    for event in events if events is not None else cluster.follow(EVALJOB, name=name, tick_seconds=tick):
        if is_finished(job):
            return
        now = clock()
        kind = "running" if is_started(job) else "pending"
        spent[kind] += now - last
        last = now
        limit = getattr(limits, kind)
        if limit is not None and spent[kind] > limit:
            raise WaitTimeout(f"job {name} is {phase_of(job)} after {limit:.0f} s of {kind} time; it goes on: seatrial watch {name}")
        if event is None or event.object["metadata"]["uid"] != uid:
            continue
        if event.type == "DELETED":
            raise JobGone(f"EvalJob {name} was deleted; its results stay in the object store")
        if event.object != job:
            job = event.object
            yield job


def wait(cluster: Cluster, name: str, *, limits: Limits = NO_LIMITS, on_change: Callable[[Raw], None] | None = None) -> Raw:
    """The job in its terminal phase.

    Raises:
        JobFailed: it did not end ``Completed``.
        WaitTimeout, JobGone, NotFound: as ``follow``.
    """
    job: Raw = {}
    for job in follow(cluster, name, limits=limits):
        if on_change is not None:
            on_change(job)
    if phase_of(job) != SUCCESS:
        raise JobFailed(job)
    return job


def phase_of(job: Mapping[str, Any]) -> str:
    """The phase; ``Pending`` before the operator has seen the job."""
    return str(job.get("status", {}).get("phase") or "Pending")


def is_finished(job: Mapping[str, Any]) -> bool:
    return phase_of(job) in TERMINAL_PHASES


def is_started(job: Mapping[str, Any]) -> bool:
    """A trial has had a container of its own, or the job has ended."""
    trials = job.get("status", {}).get("trials", {})
    return is_finished(job) or any(trials.get(state) for state in ("running", "scored", "errored"))


def condition(job: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition of this type."""
    return next((item for item in job.get("status", {}).get("conditions", []) if item.get("type") == kind), None)


def end_message(job: Mapping[str, Any]) -> str:
    """Why the job is where it is, in the operator's words: reason and message of the condition that says most."""
    for kind, status in (("Failed", "True"), ("PlanReady", "False"), ("Complete", "True"), ("Degraded", "True"), ("Progressing", "False")):
        found = condition(job, kind)
        if found is not None and found.get("status") == status:
            return f"{found.get('reason', '')}: {found.get('message', '')}".rstrip(": ")
    return "no reason given"


def change(cluster: Cluster, name: str, **spec: Any) -> Raw:
    """Set fields of the spec that may change, such as ``cancel=True``.

    Raises:
        NotFound: there is no such job.
        InvalidSpec: the server refuses the change.
    """
    return cluster.merge(EVALJOB, name, {"spec": spec})


def running_trials(cluster: Cluster, job: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the trials that have a live Pod; empty where we may not list Pods."""
    selector = f"{LABEL_JOB}={job['metadata']['uid']}"
    try:
        pods = cluster.core("pods", namespace=job["metadata"]["namespace"], query={"labelSelector": selector}).get("items", [])
    except Forbidden:
        return ()
    live = (pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"))
    return tuple(sorted({pod["metadata"]["labels"].get(LABEL_TRIAL, "") for pod in live} - {""}))


class Job:
    """A submitted EvalJob."""

    def __init__(self, cluster: Cluster, store: Callable[[], Store], raw: Raw) -> None:
        self._cluster, self._store, self._raw = cluster, store, raw

    @property
    def name(self) -> str:
        return str(self._raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self._raw["metadata"]["uid"])

    @property
    def raw(self) -> Raw:
        """The object as last seen."""
        return self._raw

    @property
    def phase(self) -> str:
        """The phase as last seen; ``refresh`` asks again."""
        return phase_of(self._raw)

    @property
    def files(self) -> JobFiles:
        """The job's folder in the object store."""
        return JobFiles.of(self._store(), self._raw)

    def refresh(self) -> Job:
        """Ask the API server for the present state."""
        self._raw = self._cluster.get(EVALJOB, self.name)
        return self

    def get_job_status(self) -> str:
        """The present phase."""
        return self.refresh().phase

    def check_if_complete(self, *, raise_if_not_complete: bool = False) -> bool:
        """Whether the job ended ``Completed``.

        Raises:
            JobFailed: it did not, and ``raise_if_not_complete`` is true.
        """
        done = self.refresh().phase == SUCCESS
        if not done and raise_if_not_complete:
            raise JobFailed(self._raw)
        return done

    def wait(
        self,
        *,
        job_timeout_seconds: float | None = None,
        pending_timeout_seconds: float | None = None,
        on_change: Callable[[Raw], None] | None = None,
    ) -> Job:
        """Wait until the job has ended; driven by a watch.

        Raises:
            JobFailed: it did not end ``Completed``.
            WaitTimeout: a limit passed. Time before the first trial counts only against the pending limit.
        """

        def remember(job: Raw) -> None:
            self._raw = job
            if on_change is not None:
                on_change(job)

        wait(self._cluster, self.name, limits=Limits(pending_timeout_seconds, job_timeout_seconds), on_change=remember)
        return self

    def wait_until_done(
        self,
        *,
        poll_interval_seconds: float = 10,
        job_timeout_seconds: float | None = 3600,
        pending_timeout_seconds: float | None = 600,
    ) -> Job:
        """``wait`` under NeMo's name and with its limits; nothing is polled, so the interval has no effect."""
        return self.wait(job_timeout_seconds=job_timeout_seconds, pending_timeout_seconds=pending_timeout_seconds)

    @property
    def summary(self) -> Summary:
        """The scores: ``summary.json``, or the status while there is none."""
        found = self.files.summary() if self.refresh() and is_finished(self._raw) else None
        return Summary(found if found is not None else dict(self._raw.get("status", {})))

    def result(self) -> EvaluationResult:
        """Everything that the job left, as a local evaluation gives it: trials that can be scored again, scores, summary, tables.

        Raises:
            NotFound: the job is not planned yet.
        """
        from seatrial.sdk.local import EvaluationResult

        return EvaluationResult(self.refresh().files.bundle(self._raw))

    def trace(self, trial: TrialRecord) -> Trace | None:
        """What the agent did in an ended trial: its OpenTelemetry trace, else its ATIF one; None without any.

        Raises:
            NotFound: the trial stored no archive.
        """
        return primary_trace(self.files.members(trial))

    def trials(self) -> tuple[TrialRecord, ...]:
        """Every trial as far as it is, in plan order.

        Raises:
            NotFound: the job is not planned yet.
        """
        self.refresh()
        return self.files.trials(running=() if is_finished(self._raw) else running_trials(self._cluster, self._raw))

    def to_records(self, view: str = "rows") -> list[dict[str, Any]]:
        """``rows``: one flat record per trial; ``aggregate``: one per score with all its statistics.

        A row has the columns of NeMo (``id``, ``run_id``, ``task_id``, ``trial_id``, ``metric_type``, ``status``, ``output.<name>``,
        ``error``, ``diagnostics.<metric>``) and those of the trial (``reward.<key>``, ``seconds.<phase>``, ``state``, …).

        Raises:
            ValueError: another view.
        """
        match view:
            case "rows":
                trials = self.trials()
                scores = {score["trial_id"]: flat_score(score) for score in read_bundle(self.files.bundle(self._raw)).scores}
                return [{**scores.get(trial.name, {}), **flatten(trial)} for trial in trials]
            case "aggregate":
                return [flat_range(score) for score in self.refresh().files.summary_of(self._raw, whole=True).ranges]
            case _:
                raise ValueError(f"no view {view!r}; known: rows, aggregate")

    def to_table(self, view: str = "rows") -> Any:
        """``to_records`` as an Arrow table; needs pyarrow."""
        return to_arrow(self.to_records(view))

    def to_pandas(self, view: str = "rows") -> Any:
        """``to_records`` as a DataFrame; needs pandas."""
        return to_frame(self.to_records(view))

    def format_summary(self) -> str:
        """The scores as lines of text, each with its denominator."""
        lines = []
        for score in self.summary.scores:
            value = "not measured" if score["value"] is None else f"{float(score['value']):.3f}"
            lines.append(f"{score['name']}  {value}  ({score['count']} of {score['count'] + score['missing']})")
        return "\n".join(lines)

    def run_metric_script(self, script: str | Path, *, allow_network: bool = False) -> dict[str, float]:
        """The values of a ``metric.py`` over the job's rewards, computed here, without a network unless allowed.

        Raises:
            MetricScriptError: the script failed, was too slow, or wrote no numbers; the job's results are as they were.
        """
        return run_script(Path(script), reward_rows(self.trials()), allow_network=allow_network)

    def rescore(
        self,
        *,
        name: str | None = None,
        taskset: str | None = None,
        metrics: Sequence[str] = (),
        thresholds: Mapping[str, float] | None = None,
    ) -> Job:
        """A new job that scores the trials of this ended one again; no trial Pod runs.

        Args:
            taskset: the tasks as of now; None: those that this job was planned with.
            metrics: ``mean``, ``sum``, ``min``, ``max``, each alone or with ``:zero``.
            thresholds: score -> smallest value that passes.

        Raises:
            InvalidSpec: it is refused.
        """
        body = rescore_body(self._raw, name=name, taskset=taskset, metrics=metrics, thresholds=thresholds)
        return Job(self._cluster, self._store, self._cluster.create(EVALJOB, body))

    def rerun(self, *, name: str | None = None, errors: Sequence[str] = (), attempts: int | None = None) -> Job:
        """A new job like this ended one that takes its results and runs the rest.

        Args:
            errors: error names whose trials run again; none: every trial without a valid reward.
            attempts: more attempts than this job had.

        Raises:
            InvalidSpec: it is refused.
        """
        body = rerun_body(self._raw, name=name, rerun_errors=errors, attempts=attempts)
        return Job(self._cluster, self._store, self._cluster.create(EVALJOB, body))

    def cancel(self) -> Job:
        """End the job; what is scored stays."""
        self._raw = change(self._cluster, self.name, cancel=True)
        return self

    def suspend(self) -> Job:
        """Stop: running trials are deleted and start again later."""
        self._raw = change(self._cluster, self.name, suspend=True)
        return self

    def resume(self) -> Job:
        """Go on after ``suspend``."""
        self._raw = change(self._cluster, self.name, suspend=False)
        return self


def flatten(trial: TrialRecord) -> dict[str, Any]:
    """A trial as one flat record: ``reward.<key>`` and ``seconds.<phase>`` per value, errors by their parts."""
    raw = trial.raw()
    error = raw.pop("error") or {}
    rewards, seconds = raw.pop("rewards") or {}, raw.pop("seconds")
    return {
        **raw,
        **{f"reward.{name}": value for name, value in rewards.items()},
        **{f"seconds.{name}": value for name, value in seconds.items()},
        "error": error.get("type"),
        "cause": error.get("cause"),
        "message": error.get("message"),
    }
