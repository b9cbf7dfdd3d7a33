"""Status of an EvalJob: counts, scores, errors and conditions, all computed anew from the plan's progress.

Why no field is ever read back, times of transitions excepted: a status that is derived cannot drift from what happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from seatrial.api.evaljob import (
    MAX_COVERAGE,
    MAX_ERROR_SAMPLE,
    MAX_ERRORS,
    MAX_SCORES,
    TERMINAL_PHASES,
    Cause,
    CoverageStatus,
    ErrorStatus,
    EvalJobSpec,
    EvalJobStatus,
    Phase,
    PlanStatus,
    ResultsStatus,
    ScoreStatus,
    ThresholdStatus,
    TrialCounts,
)
from seatrial.api.meta import Condition, StatusText
from seatrial.api.reasons import JOB_CONDITIONS, ConditionType, Reason
from seatrial.core.gates import key_of_score
from seatrial.core.measures import findings_of
from seatrial.core.observe import format_time
from seatrial.core.plan import Hold, Progress
from seatrial.core.rows import Row
from seatrial.core.scores import NO_SCORING, Scoring, Summary, as_trials, column_text, decimal_text, metric_rules, summarise
from seatrial.core.scripts import ScriptError, ScriptOutcome, merged_values
from seatrial.scoring.evaluate import NOTHING, Findings

STATUS_BYTES: Final = 60 * 1024
"""Below the 64 KiB that are promised, with room for what the server adds."""
NAME_CHARS: Final = 128

Truth = Literal["True", "False", "Unknown"]


class State(NamedTuple):
    """What a condition says; times and generation are added."""

    status: Truth
    reason: Reason
    message: str = ""


class Frozen(NamedTuple):
    """Where the plan is."""

    key: str
    sha256: str
    tasks: int
    trials: int


class Context(NamedTuple):
    """What is the same for every status of one pass."""

    generation: int
    previous: Mapping[str, Any]
    """The status that the server has, raw."""
    now: datetime
    prefix: str
    """``s3://bucket/jobs/…/``"""


def merge_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Smallest JSON merge patch that turns ``old`` into ``new``; ``{}`` when they are equal."""
    patch: dict[str, Any] = {}
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before != after:
            nested = isinstance(before, Mapping) and isinstance(after, Mapping)
            patch[key] = merge_difference(before or {}, after or {}) if nested else after
    return patch


def job_summary(
    rows: Sequence[Row],
    spec: EvalJobSpec,
    tasks: Mapping[str, str],
    findings: Findings = NOTHING,
    *,
    scoring: Scoring = NO_SCORING,
    most_keys: int | None = None,
) -> Summary:
    """Scores and coverage of final rows under the job's rules; ``tasks`` gives the task of each trial. Without ``findings`` those of the
    tasks' own metrics are taken from the rows. With ``most_keys`` further rewards than so many are left out, unless a gate names them."""
    if findings is NOTHING:
        findings = findings_of(scoring.tasks, rows, as_trials(rows, tasks))
    return summarise(
        rows,
        reward_key=spec.reward_key,
        metrics=metric_rules(spec, scoring.metrics),
        tasks=tasks,
        findings=findings,
        scripts=merged_values(scoring.scripts),
        most_keys=most_keys,
        named_keys={key for gate in spec.thresholds if (key := key_of_score(gate.score)) is not None},
    )


def waiting_status(context: Context, reason: Reason, message: str, *, degraded: bool = False) -> dict[str, Any]:
    """Status of a job that cannot be planned yet: a reference that may still come, or a store that is down."""
    not_ready = State("False" if not degraded else "Unknown", reason, message)
    states = {
        ConditionType.PLAN_READY: not_ready,
        ConditionType.PROGRESSING: State("False", reason, message),
        ConditionType.DEGRADED: State("True", reason, message) if degraded else State("False", Reason.HEALTHY),
    }
    return _assemble(context, phase="Pending", states=states)


def refused_status(context: Context, reason: Reason, message: str) -> dict[str, Any]:
    """Terminal status of a job that cannot be planned, or whose plan is lost."""
    failed = State("True", reason, message)
    states = {
        ConditionType.PLAN_READY: State("False", reason, message),
        ConditionType.PROGRESSING: State("False", Reason.FINISHED),
        ConditionType.COMPLETE: State("False", reason),
        ConditionType.FAILED: failed,
        ConditionType.FINISHED: failed,
        ConditionType.DEGRADED: State("False", Reason.HEALTHY),
    }
    return _assemble(context, phase="Failed", states=states, completion=format_time(context.now))


def build_status(
    context: Context,
    spec: EvalJobSpec,
    *,
    frozen: Frozen,
    progress: Progress,
    hold: Hold | None,
    degraded: State | None,
    summary_key: str | None,
    queued: str = "",
    scoring: Scoring = NO_SCORING,
    reduced: bool = False,
) -> dict[str, Any]:
    """Status of a planned job.

    Args:
        hold: what keeps the operator from creating Pods, or None.
        degraded: what needs a person, or None.
        queued: why a queue holds the whole job back, which is suspended then; or empty.
        scoring: what the plan adds to the spec's rules, and what scripts gave.
        summary_key: where the saved results are; only then the phase may become terminal.
        reduced: without anything that names rewards or errors, for a server that refused the full status.

    Once the phase is terminal it stays: callers do not compute a status for such a job.
    """
    summary = job_summary(progress.final, spec, progress.tasks, scoring=scoring, most_keys=MAX_COVERAGE)
    thresholds = judge_thresholds(spec, summary)
    ended = summary_key is not None and progress.pending == progress.running == 0
    phase, end = _end(progress, thresholds, spec) if ended else (_phase(spec, progress), None)
    suspended = spec.suspend and not ended and progress.live_pods == 0
    states = {
        ConditionType.PLAN_READY: State("True", Reason.PLANNED, f"{frozen.trials} trials of {frozen.tasks} tasks"),
        ConditionType.PROGRESSING: State("False", Reason.FINISHED) if ended else _progressing(spec, progress, hold, context.now, queued),
        ConditionType.SUSPENDED: _suspended(queued, "set spec.suspend to false to go on")
        if suspended
        else State("False", Reason.NOT_SUSPENDED),
        ConditionType.DEGRADED: degraded or State("False", Reason.HEALTHY),
    }
    if end is not None:
        good = phase == "Completed"
        states[ConditionType.COMPLETE] = State("True" if good else "False", end.reason, end.message)
        states[ConditionType.FAILED] = State("False" if good else "True", end.reason, end.message)
        states[ConditionType.FINISHED] = State("True", end.reason, end.message)
    done = len(progress.final)
    if reduced:
        text = "the API server refused the full status: scores and errors are in the results only"
        states[ConditionType.DEGRADED] = degraded or State("True", Reason.STATUS_TRUNCATED, text)
        summary, thresholds = Summary((), (), None), ()
    return _assemble(
        context,
        phase=phase,
        states=states,
        completion=format_time(context.now) if ended else None,
        progress=f"{done}/{progress.total}",
        plan=PlanStatus(key=frozen.key, sha256=frozen.sha256, tasks=frozen.tasks, trials=frozen.trials),
        trials=TrialCounts(
            total=progress.total,
            pending=progress.pending,
            running=progress.running,
            scored=progress.count("scored"),
            errored=progress.count("errored"),
            cancelled=progress.count("cancelled"),
            retried=progress.retried,
            cached=sum(row.origin is not None for row in progress.final),
        ),
        mean=_mean(summary),
        scores=tuple(
            ScoreStatus(
                name=item.name, value=None if item.value is None else decimal_text(item.value), count=item.count, missing=item.missing
            )
            for item in summary.scores
            if len(item.name) <= NAME_CHARS
        )[:MAX_SCORES],
        coverage=tuple(
            CoverageStatus(name=item.name, total=item.total, scored=item.scored, failed=item.failed, missing=item.missing)
            for item in summary.coverage
            if len(item.name) <= NAME_CHARS
        )[:MAX_COVERAGE],
        errors=() if reduced else (*script_errors(scoring.scripts), *group_errors(progress.final))[:MAX_ERRORS],
        thresholds=thresholds if ended else (),
        results=ResultsStatus(prefix=context.prefix, summary=summary_key),
    )


def group_errors(rows: Sequence[Row]) -> tuple[ErrorStatus, ...]:
    """Errors of final rows by type and cause, the most frequent first; a scored trial may carry one too."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.error is not None and row.outcome != "cancelled":
            groups.setdefault((row.error.type, row.error.cause), []).append(row)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].error.type if group[0].error else ""))
    return tuple(
        ErrorStatus(
            type=group[0].error.type,
            cause=group[0].error.cause,
            count=len(group),
            sample=tuple(row.trial for row in group[:MAX_ERROR_SAMPLE]),
            message=group[0].error.message,
        )
        for group in ordered
        if group[0].error is not None
    )


def script_errors(outcomes: Sequence[ScriptOutcome]) -> tuple[ErrorStatus, ...]:
    """Errors of scripts by name, with the message of the first."""
    groups: dict[tuple[str, Cause], list[ScriptError]] = {}
    for outcome in outcomes:
        if (error := outcome.error) is not None:
            groups.setdefault((error.type, error.cause), []).append(error)
    return tuple(
        ErrorStatus(type=kind, cause=cause, count=len(found), message=_both_ends(f"metric.py {found[0].message}"))
        for (kind, cause), found in groups.items()
    )


def judge_thresholds(spec: EvalJobSpec, summary: Summary) -> tuple[ThresholdStatus, ...]:
    """Every gate with its value; an unmeasured one passes only where the user said so."""
    values = {item.name: item.value for item in summary.scores}
    result = []
    for gate in spec.thresholds:
        value = values.get(gate.score)
        passed = gate.on_missing == "pass" if value is None else value >= gate.at_least
        text = None if value is None else decimal_text(value)
        result.append(ThresholdStatus(score=gate.score, at_least=gate.at_least, value=text, passed=passed))
    return tuple(result)


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """One condition of a raw status."""
    return next((item for item in status.get("conditions") or () if item.get("type") == kind), None)


def is_terminal(status: Mapping[str, Any]) -> bool:
    """Whether the job has ended; such a status never changes."""
    return status.get("phase") in TERMINAL_PHASES


def merge_conditions(
    previous: Mapping[str, Any], states: Mapping[ConditionType, State], *, order: Sequence[ConditionType], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Conditions in ``order``: the time changes only with the status, and a type that is not given keeps its last state."""
    result = []
    for kind in order:
        old = condition_of(previous, kind)
        state = states.get(kind)
        if state is None:
            state = State(old["status"], Reason(old["reason"]), old.get("message", "")) if old else State("False", Reason.PENDING)
        unchanged = old is not None and old.get("status") == state.status
        result.append(
            Condition(
                type=kind,
                status=state.status,
                reason=state.reason.value,
                message=state.message,
                last_transition_time=old["lastTransitionTime"] if old is not None and unchanged else format_time(now),
                observed_generation=generation,
            )
        )
    return tuple(result)


class Notice(NamedTuple):
    """An Event worth posting."""

    warning: bool
    reason: str
    note: str


def notices(previous: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Notice, ...]:
    """Events for conditions that changed, and for the first trial of each error."""
    result = []
    for new in status.get("conditions") or ():
        old = condition_of(previous, new["type"])
        before = (old or {}).get("status", "Unknown"), (old or {}).get("reason")
        changed = before[0] != new["status"] or (new["status"] != "False" and before[1] != new["reason"])
        if not changed or new["type"] == ConditionType.FINISHED or new["reason"] == Reason.PENDING:
            continue
        bad = new["type"] in (ConditionType.FAILED, ConditionType.DEGRADED) and new["status"] == "True"
        bad = bad or (new["type"] in (ConditionType.PLAN_READY, ConditionType.VERIFIED, ConditionType.PINNED) and new["status"] == "False")
        if new["status"] == "False" and not bad:
            continue
        result.append(Notice(bad, new["reason"], f"{new['type']}: {new.get('message', '')}".rstrip(": ")))
    known = {(item["type"], item["cause"]) for item in previous.get("errors") or ()}
    for item in status.get("errors") or ():
        if (item["type"], item["cause"]) not in known:
            trial = item["sample"][0] if item.get("sample") else "a trial"
            result.append(Notice(True, item["type"], f"{trial} ({item['cause']}): {item.get('message', '')}"))
    return tuple(result)


def _both_ends(text: str, *, limit: int = 240) -> str:
    """``text`` without its middle: a traceback's last line says most."""
    return text if len(text) <= limit else f"{text[: limit // 3]} … {text[-(limit - limit // 3 - 3) :]}"


# --- parts -----------------------------------------------------------------------------------------------------------------------------


def _phase(spec: EvalJobSpec, progress: Progress) -> Phase:
    if spec.suspend and progress.live_pods == 0 and progress.stop is None:
        return "Suspended"
    return "Running" if progress.running or progress.final or progress.live_pods else "Pending"


def _suspended(queued: str, otherwise: str) -> State:
    return State("True", Reason.QUEUED, queued) if queued else State("True", Reason.SUSPENDED_BY_USER, otherwise)


def _progressing(spec: EvalJobSpec, progress: Progress, hold: Hold | None, now: datetime, queued: str) -> State:
    if progress.stop is not None:
        return State("False", progress.stop.reason, progress.stop.message)
    if spec.suspend:
        return _suspended(queued, "spec.suspend is true")._replace(status="False")
    if hold is not None and hold.until > now and progress.running == 0:
        return State("False", hold.reason, hold.message)
    for reason in (Reason.QUEUED, Reason.UNSCHEDULABLE):
        if reason in progress.waiting:
            return State("False", reason, progress.waiting[reason])
    for reason, message in progress.waiting.items():
        if reason is not Reason.POD_START_TIMEOUT:  # the ordinary moments between creation and start
            return State("True", reason, message)
    return State("True", Reason.RUNNING)


def _end(progress: Progress, thresholds: Sequence[ThresholdStatus], spec: EvalJobSpec) -> tuple[Phase, State]:
    scored, errored, cancelled = (progress.count(outcome) for outcome in ("scored", "errored", "cancelled"))
    text = f"{scored} of {progress.total} trials scored, {errored} errored, {cancelled} cancelled"
    stop = progress.stop
    if cancelled and stop is not None and stop.reason is Reason.CANCELLED:
        return "Cancelled", State("True", stop.reason, text)
    if stop is not None and stop.reason is not Reason.CANCELLED and (cancelled or stop.reason is Reason.MAX_ERRORED_REACHED):
        return "Failed", State("True", stop.reason, f"{stop.message}; {text}")
    if scored == 0:
        return "Failed", State("True", Reason.NOTHING_SCORED, f"{text}: see status.errors")
    if spec.scoring.require_all_tasks and (unscored := _unscored_tasks(progress)):
        more = f" and {len(unscored) - 3} more" if len(unscored) > 3 else ""
        return "Failed", State("True", Reason.TASK_WITHOUT_SCORE, f"no trial of {', '.join(unscored[:3])}{more} is scored; {text}")
    missed = [item for item in thresholds if not item.passed]
    if missed:
        first = missed[0]
        if first.value is None:
            return "Failed", State("True", Reason.THRESHOLD_UNMEASURED, f"nothing measured {first.score}; {text}")
        message = f"{first.score} is {first.value}, below {decimal_text(first.at_least)}; {text}"
        return "Failed", State("True", Reason.THRESHOLD_NOT_MET, message)
    return "Completed", State("True", Reason.SOME_ERRORED if errored or cancelled else Reason.ALL_SCORED, text)


def _unscored_tasks(progress: Progress) -> list[str]:
    """Tasks of the plan without any scored trial, in its order."""
    scored = {progress.tasks.get(row.trial) for row in progress.final if row.outcome == "scored"}
    return [task for task in dict.fromkeys(progress.tasks.values()) if task not in scored]


def _mean(summary: Summary) -> str:
    if summary.primary is None or not summary.scores or summary.scores[0].value is None:
        return ""
    return column_text(summary.scores[0].value)


def _assemble(
    context: Context, *, phase: Phase, states: Mapping[ConditionType, State], completion: str | None = None, **parts: Any
) -> dict[str, Any]:
    previous = context.previous
    start = previous.get("startTime") or (format_time(context.now) if "plan" in parts else None)
    conditions = merge_conditions(previous, states, order=JOB_CONDITIONS, generation=context.generation, now=context.now)
    status = EvalJobStatus(
        observed_generation=context.generation,
        phase=phase,
        start_time=start,
        completion_time=previous.get("completionTime") or completion,
        conditions=conditions,
        **parts,
    ).raw()
    for name, length in (("coverage", 8), ("scores", 16), ("errors", 8), ("thresholds", 8), ("coverage", 0), ("scores", 4)):
        if len(json.dumps(status, ensure_ascii=False).encode()) <= STATUS_BYTES:
            break
        status[name] = status.get(name, [])[:length]
    return status


def short(text: str, limit: int = 1024) -> str:
    """``text`` as a condition's message."""
    return StatusText.cut(text, limit)
