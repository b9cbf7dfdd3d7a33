"""Reuse of results: which trials need no Pod, because another job has made their result.

Three ways share one mechanism. A plan names *adopted* rows: final rows of trials that do not run. They come from another job by name
(``spec.rescore``, ``spec.cache.job``) or from the cache (``spec.cache.policy: reuse``). Why in the plan: everything is frozen before the
first Pod, and a restart finds the same rows.

Identity of a cached result: format version, options that can change a result, the agent, the task's archive and the attempt. A difference
in any of them is another key, so nothing stale is served and nothing has to be deleted. Source: nemo.md 26.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.reasons import Reason
from seatrial.core import rows
from seatrial.core.expand import Trial
from seatrial.core.frozen import FrozenPlan, PlannedTask, PlanRefused, Submission
from seatrial.core.measures import scoring_to_json
from seatrial.core.naming import TrialKey
from seatrial.core.rows import Origin, Row
from seatrial.core.saved import SavedTrial, attempts, check_tasks, read_row, recorded_key, saved_row
from seatrial.scoring.rewards import DEFAULT_REWARD, parse_rewards

CACHE_FORMAT: Final = 1
IMPORTED: Final = "imported"
"""Agent of a saved trial that does not name one."""

_JOB_FOLDER: Final = re.compile(r"jobs/[^/]+/[^/]+/")
_TRIAL: Final = re.compile(r"[^/]+")

RESULT_FIELDS: Final = ("agent", "environment", "verifier", "errorPolicy", "timeouts", "resources", "artifacts", "traceDir")
"""Fields of the spec that can change a result. Not attempts, retry, concurrency, rewardKey, metrics, thresholds, pod."""


class Source(NamedTuple):
    """An ended job whose results are taken."""

    folder: str
    """Its key prefix, with a slash at the end."""
    plan: FrozenPlan
    rows: Mapping[str, Row]
    """Final row by trial."""


def identity(spec: EvalJobSpec, *, runner_image: str, version: str) -> str:
    """Digest of everything but the task and the attempt that a result depends on.

    Literal environment values and references to Secrets are covered, the Secrets' contents are not: a rotated credential keeps the cache.
    """
    raw = spec.raw()
    options = {name: raw.get(name) for name in RESULT_FIELDS}
    timeouts = dict(options["timeouts"] or {})
    timeouts.pop("pending", None)
    body = {"format": CACHE_FORMAT, "version": version, "runner": runner_image, **options, "timeouts": timeouts}
    if spec.cache.scope is not None:
        body["scope"] = spec.cache.scope
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def cache_folder(namespace: str, identity_: str) -> str:
    """Key prefix of all results of one identity."""
    return f"cache/{namespace}/{identity_}/"


def cache_name(plan: FrozenPlan, trial: Trial) -> str:
    """Name of a trial's entry in that folder."""
    task = plan.tasks[trial.task]
    # A trial is graded with the metrics that its task has; those of a task without any are not part of the name.
    metrics = f"\0{_metrics(task)}" if task.scoring is not None and task.scoring.metrics else ""
    digest = hashlib.sha256(f"{task.id}\0{task.archive_sha256}{metrics}".encode()).hexdigest()[:40]
    return f"{digest}-{trial.key.attempt}.json"


def encode_entry(row: Row, *, folder: str) -> bytes:
    """A valid result as an entry of the cache."""
    origin = row.origin or Origin(folder, row.trial, row.retry)
    return json.dumps({"format": CACHE_FORMAT, "row": rows.to_json(replace(row, origin=origin))}, sort_keys=True).encode()


def decode_entry(data: bytes) -> Row | None:
    """The row of an entry; None for one that is malformed, of another format, or without a valid reward.

    Whoever may write into the bucket can write entries: one that nobody can read must not stop the job that finds it.
    """
    try:
        body = json.loads(data)
        if body["format"] != CACHE_FORMAT:
            return None
        saved = body["row"]
        row = read_row(str(saved["trial"]), saved, rewards=parse_rewards(saved["rewards"]).values, error=saved.get("error"))
        origin = Origin(**saved["origin"])
        is_place = (
            _JOB_FOLDER.fullmatch(origin.folder) and _TRIAL.fullmatch(origin.trial) and type(origin.retry) is int and origin.retry >= 0
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return replace(row, origin=origin) if row.outcome == "scored" and is_place else None


def is_reusable(row: Row) -> bool:
    """Whether a row goes into the cache: a valid result, with an error beside it or not, that ran here."""
    return row.outcome == "scored" and row.origin is None


def adopt_cached(plan: FrozenPlan, entries: Mapping[str, Row]) -> FrozenPlan:
    """``plan`` with the rows of the cache.

    Args:
        entries: name of the entry -> its row.
    """
    adopted = []
    for trial in plan.trials:
        row = entries.get(cache_name(plan, trial))
        if row is not None:
            adopted.append(replace(row, trial=trial.name, retry=0, pod=""))
    return replace(plan, adopted=tuple(adopted))


def adopt_job(plan: FrozenPlan, source: Source, *, rerun_errors: Sequence[str]) -> FrozenPlan:
    """``plan`` with the rows of an ended job for the same attempts at the same tasks; the rest runs.

    Args:
        rerun_errors: errors, by our reason or Harbor's name, whose trials run again; empty: all trials without a valid reward do.
    """
    known = {(_task(source.plan, trial), trial.key.attempt): trial.name for trial in source.plan.trials}
    adopted = []
    for trial in plan.trials:
        name = known.get((_task(plan, trial), trial.key.attempt))
        row = source.rows.get(name) if name is not None else None
        if row is not None and not _runs_again(row, rerun_errors):
            adopted.append(_taken(row, source.folder, trial.name))
    return replace(plan, adopted=tuple(adopted))


def _metrics(task: PlannedTask) -> str:
    return json.dumps(scoring_to_json(task.scoring)["metrics"], sort_keys=True) if task.scoring is not None else ""


def _task(plan: FrozenPlan, trial: Trial) -> tuple[str, str]:
    task = plan.tasks[trial.task]
    return task.id, task.archive_sha256


def _runs_again(row: Row, rerun_errors: Sequence[str]) -> bool:
    if row.outcome == "cancelled":
        return True
    if not rerun_errors:
        return row.outcome == "errored"
    return row.error is not None and bool({row.error.type, row.error.harbor} & set(rerun_errors))


def _taken(row: Row, folder: str, trial: str) -> Row:
    return replace(row, trial=trial, retry=0, pod="", origin=row.origin or Origin(folder, row.trial, row.retry))


def rescore_plan(
    submission: Submission,
    spec: EvalJobSpec,
    source: Source,
    *,
    spec_raw: Mapping[str, Any],
    tasks: Tasks | None = None,
) -> FrozenPlan:
    """The plan of a job that scores saved trials again: tasks and trials of its source, and no Pod.

    Args:
        tasks: other revisions of the source's tasks, found by their native ids; None: the source's own.

    Raises:
        PlanRefused: the source has no ended trial, was scored under another reward key, or the tasks are not those of its trials.
    """
    ended = [trial for trial in source.plan.trials if trial.name in source.rows]
    if not ended:
        raise PlanRefused(Reason.RESCORE_SOURCE, f"spec.rescore: job {source.plan.job} has no ended trial to score")
    recorded = source.plan.spec.get("rewardKey")
    if recorded is not None and recorded != spec.reward_key:
        raise _other_key(f"the trials of {source.plan.job}", recorded)
    members = source.plan.tasks if tasks is None else tasks.tasks
    place = {task.id: index for index, task in enumerate(members)}
    if tasks is not None:
        check_tasks([(trial.name, trial.key.task) for trial in ended], place)
    return FrozenPlan(
        namespace=submission.namespace,
        job=submission.job,
        uid=submission.uid,
        created_at=submission.created_at,
        taskset=source.plan.taskset if tasks is None else tasks.taskset,
        spec=dict(spec_raw),
        tasks=tuple(members),
        trials=tuple(trial._replace(task=place[trial.key.task]) for trial in ended),
        adopted=tuple(_taken(source.rows[trial.name], source.folder, trial.name) for trial in ended),
    )


class Tasks(NamedTuple):
    """Resolved tasks and the set that they come from."""

    tasks: Sequence[PlannedTask]
    taskset: str | None


def saved_plan(
    submission: Submission, spec: EvalJobSpec, trials: Sequence[SavedTrial], tasks: Tasks, *, folder: str, spec_raw: Mapping[str, Any]
) -> FrozenPlan:
    """The plan of a job that scores the trials of a file.

    Args:
        folder: key prefix of the file's folder; evidence is read from there and nowhere else.

    Raises:
        PlanRefused: the trials are not of these tasks, or were scored under another reward key than the job asks for.
    """
    if (recorded := recorded_key(trials)) != (spec.reward_key or DEFAULT_REWARD):
        raise _other_key("the saved trials", recorded)
    place = {task.id: index for index, task in enumerate(tasks.tasks)}
    check_tasks([(trial.id, trial.task_id) for trial in trials], place)
    agents = [str(trial.row.get("agent") or IMPORTED)[:253] for trial in trials]
    return FrozenPlan(
        namespace=submission.namespace,
        job=submission.job,
        uid=submission.uid,
        created_at=submission.created_at,
        taskset=tasks.taskset,
        spec=dict(spec_raw),
        tasks=tuple(tasks.tasks),
        trials=tuple(
            Trial(trial.id, place[trial.task_id], TrialKey(trial.task_id, agent, attempt))
            for trial, agent, attempt in zip(trials, agents, attempts(trials), strict=True)
        ),
        adopted=tuple(saved_row(trial, folder) for trial in trials),
    )


def _other_key(whose: str, recorded: str) -> PlanRefused:
    message = f"spec.rescore: {whose} were scored under rewardKey {recorded!r}: set spec.rewardKey to it"
    return PlanRefused(Reason.REWARD_KEY_INCONSISTENT, message)


def final_rows(history: Iterable[Row]) -> dict[str, Row]:
    """Final row of each trial that has one."""
    return {name: items[-1] for name, items in rows.by_trial(history).items() if items[-1].is_final}
