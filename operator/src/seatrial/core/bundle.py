"""The bundle of an ended job: metadata.json, tasks.jsonl, trials.jsonl, scores.jsonl, report.html, summary.json.

The same plan and rows give the same bytes.

Names and fields: nemo.md 27.1. References to evidence are relative to the bundle's folder, so a copy of it stays whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from seatrial import __version__
from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.reasons import Reason
from seatrial.core import naming, rows
from seatrial.core.frozen import FrozenPlan, config_to_json
from seatrial.core.measures import findings_of
from seatrial.core.observe import parse_time
from seatrial.core.rows import Row
from seatrial.core.scores import Summary, as_trials
from seatrial.core.scripts import ScriptOutcome
from seatrial.core.scripts import to_lines as script_lines
from seatrial.core.status import job_summary, judge_thresholds
from seatrial.scoring.evaluate import NOTHING, Findings, MetricScore
from seatrial.scoring.groups import group_failures
from seatrial.scoring.observations import Value
from seatrial.scoring.report import build_report
from seatrial.scoring.rewards import DEFAULT_REWARD, REWARD_METRIC
from seatrial.scoring.summary import build_summary

SCHEMA: Final = 2

Tables = dict[str, bytes]
"""File name -> content, ``summary.json`` last: where it is, everything else is."""


class Run(NamedTuple):
    """How a bundle calls what it is the result of."""

    id: str
    kind: Literal["harbor", "imported"] = "harbor"
    """``imported``: the trials come from a file, no job of this cluster is known to have run them."""
    labels: Mapping[str, str] = {}


def build_tables(
    plan: FrozenPlan,
    spec: EvalJobSpec,
    by_trial: Mapping[str, Sequence[Row]],
    findings: Findings = NOTHING,
    *,
    run: Run | None = None,
    scripts: Sequence[ScriptOutcome] = (),
) -> Tables:
    """All files of the bundle.

    Args:
        by_trial: rows of each trial in the order of retries, as ``rows.by_trial`` gives them.
        findings: what other metrics than the verifier's rewards found.
        run: None: as the plan says.
        scripts: what the job's scripts gave, in the plan's order.
    """
    run = run or run_of(plan)
    names = {trial.name: trial.key.task for trial in plan.trials}
    ended = [(trial, by_trial[trial.name]) for trial in plan.trials if trial.name in by_trial]
    final, scoring = [history[-1] for _, history in ended], plan.scoring(scripts)
    if findings is NOTHING:
        findings = findings_of(scoring.tasks, final, as_trials(final, names))
    summary = job_summary(final, spec, names, findings, scoring=scoring)
    further: dict[str, list[MetricScore]] = {}
    for score in findings.scores:
        further.setdefault(score.trial, []).append(score)
    diagnostics: dict[str, list[dict[str, Any]]] = {}
    for item in summary.rewards.diagnostics:
        diagnostics.setdefault(item.trial, []).append({"severity": "info", "message": item.message, "details": dict(item.details)})
    primary = summary.primary or spec.reward_key or DEFAULT_REWARD
    trials, scores = [], []
    for index, (trial, history) in enumerate(ended):
        row = history[-1]
        trials.append({**trial_record(row, task=trial.key.task, primary=primary), **row_record(trial.key, history)})
        if row.outcome != "cancelled":
            found = diagnostics.get(row.trial, [])
            if findings.rewards:
                scores.append(score_record(row, run=run.id, task=trial.key.task, index=index, primary=summary.primary, diagnostics=found))
            scores += [metric_record(score, run=run.id, index=index, retry=row.retry) for score in further.get(row.trial, ())]
    about = metadata(plan, [row for _, history in ended for row in history], run)
    numbers = summary_document(plan, summary, by_trial, findings, run)
    if scripts:
        numbers["scripts"] = [json.loads(line) for line in script_lines(scripts).splitlines()]
    numbers["thresholds"] = [gate.raw() for gate in judge_thresholds(spec, summary)]
    return {
        "metadata.json": document(about),
        "tasks.jsonl": lines(task_record(plan, index) for index in range(len(plan.tasks))),
        "trials.jsonl": lines(trials),
        "scores.jsonl": lines(scores),
        "report.html": build_report(about, numbers, trials),
        "summary.json": document(numbers),
    }


def run_of(plan: FrozenPlan) -> Run:
    """``agent-eval-<UTC time>-<8 hex>`` of the submission."""
    digits = "".join(char for char in plan.created_at if char.isdigit())[:14].ljust(14, "0")
    imported = (plan.spec.get("rescore") or {}).get("trials")
    return Run(f"agent-eval-{digits}-{hashlib.sha256(plan.uid.encode()).hexdigest()[:8]}", "imported" if imported else "harbor")


def metadata(plan: FrozenPlan, history: Sequence[Row], run: Run) -> dict[str, Any]:
    """Who was evaluated, and when."""
    start = min((row.started_at for row in history if row.started_at), default=None)
    end = max((row.ended_at for row in history if row.ended_at), default=None)
    agent = {name: value for name, value in (plan.spec.get("agent") or {}).items() if value not in (None, [], {})}
    return {
        "schema": SCHEMA,
        "run_id": run.id,
        "job": {"namespace": plan.namespace, "name": plan.job, "uid": plan.uid, "createdAt": plan.created_at},
        "labels": dict(run.labels),
        "target": {
            "name": str(agent.get("name") or agent.get("importPath") or agent.get("image") or "command"),
            "kind": run.kind,
            "version": None,
            "config": agent,
        },
        "taskset": plan.taskset,
        "spec": plan.spec,
        "started_at": start,
        "finished_at": end,
        "duration_sec": _seconds(parse_time(start), parse_time(end)),
        "sdk_version": __version__,
    }


def task_record(plan: FrozenPlan, index: int) -> dict[str, Any]:
    """A line of tasks.jsonl."""
    task = plan.tasks[index]
    return {
        "id": task.id,
        "ref": task.ref,
        "revision": task.revision,
        "checksum": task.checksum,
        "archive_sha256": task.archive_sha256,
        "labels": dict(task.labels),
        "config": config_to_json(task.config),
    }


def trial_record(row: Row, *, task: str, primary: str) -> dict[str, Any]:
    """A trial under NeMo's names. COMPLETED only without an error and with the primary reward; otherwise PARTIAL, never FAILED."""
    rewards = dict(row.rewards) if row.rewards is not None else None
    completed = row.error is None and row.outcome == "scored" and primary in (rewards or {})
    evidence = {}
    if row.stored:
        evidence["result"] = {"ref": naming.result_key(*_place(row)), "sha256": row.result_sha256}
    if row.logs_sha256 is not None:
        evidence["logs"] = {"ref": naming.logs_key(*_place(row)), "sha256": row.logs_sha256}
    return {
        "id": row.trial,
        "task_id": task,
        "status": "COMPLETED" if completed else "PARTIAL",
        "output": None,
        "evidence": evidence,
        "measurements": {"runtime_sec": row.seconds["agent_execution"]} if "agent_execution" in row.seconds else {},
        "metadata": {
            "harbor_primary_reward_key": primary,
            "reward": (rewards or {}).get(primary) if row.outcome == "scored" else None,
            "reward_details": rewards or {},
            "reward_rejections": {},
            "reward_entry_rejections": [],
            "harbor_trial_dir": naming.result_key(*_place(row)).rpartition("/")[0],
        },
    }


def row_record(key: naming.TrialKey, history: Sequence[Row]) -> dict[str, Any]:
    """The operator's row, its place in the job, and the retries before it."""
    *earlier, row = history
    body = {"task": key.task, "agent": key.agent, "attempt": key.attempt, **rows.to_json(row)}
    if row.stored:
        body["result"] = naming.result_key(*_place(row))
    if earlier:
        body["retries"] = [rows.to_json(item) for item in earlier]
    return body


def score_record(
    row: Row, *, run: str, task: str, index: int, primary: str | None, diagnostics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A line of scores.jsonl: what the metric ``harbor_reward`` made of one trial; failed where it never became scoreable."""
    scored = row.outcome == "scored"
    outputs: dict[str, float] = {}
    if scored:
        rewards = row.rewards or {}
        first = [primary] if primary is not None else []
        outputs = {name: rewards.get(name, 0.0) for name in [*first, *sorted(set(rewards) - {primary})]}
    found = list(diagnostics)
    if not scored:
        error = row.error
        details = {"trial_status": "unscored", "error": error.harbor if error else None, "cause": error.cause if error else None}
        found = [{"severity": "error", "message": "The trial has no valid reward.", "details": details}]
    return {
        "id": f"{run}:{task}:{row.trial}:{REWARD_METRIC}",
        "run_id": run,
        "task_id": task,
        "trial_id": row.trial,
        "metric_type": REWARD_METRIC,
        "status": "completed" if scored else "failed",
        "outputs": [{"name": name, "value": value} for name, value in outputs.items()],
        "diagnostics": [{"source": REWARD_METRIC, **item} for item in found],
        "metadata": {"row_index": index, "trial_metadata": {"retry": row.retry}},
    }


def metric_record(score: MetricScore, *, run: str, index: int, retry: int) -> dict[str, Any]:
    """A line of scores.jsonl for a metric beside the rewards; ``turns`` where it judged turn by turn."""
    found: list[dict[str, Any]] = []
    if score.message is not None:
        severity = "error" if score.failed else "info"
        found = [{"source": score.metric, "severity": severity, "message": score.message, "details": dict(score.details)}]
    return {
        "id": f"{run}:{score.task}:{score.trial}:{score.metric}",
        "run_id": run,
        "task_id": score.task,
        "trial_id": score.trial,
        "metric_type": score.metric,
        "status": "failed" if score.failed else "completed",
        "outputs": [{"name": name, "value": _json_value(value)} for name, value in (score.values or {}).items()],
        "diagnostics": found,
        "metadata": {"row_index": index, "trial_metadata": {"retry": retry}},
        **({"turns": [dict(turn) for turn in score.turns]} if score.turns else {}),
    }


def _json_value(value: Value) -> Value:
    """JSON has no NaN and no infinity: they are written as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def summary_document(
    plan: FrozenPlan, summary: Summary, by_trial: Mapping[str, Sequence[Row]], findings: Findings, run: Run
) -> dict[str, Any]:
    """``summary.json``: the original fields, and the scores and coverage as the status names them."""
    final = [by_trial[trial.name][-1] for trial in plan.trials if trial.name in by_trial]
    counts = {name: sum(row.outcome == name for row in final) for name in ("scored", "errored", "cancelled")}
    cached = sum(row.origin is not None for row in final)
    body = build_summary(
        summary.trials,
        summary.rewards,
        tasks=[task.id for task in plan.tasks],
        metrics=findings.outputs,
        views=findings.views,
        labels={task.id: task.labels for task in plan.tasks},
    )
    errors = group_failures(
        (row.error.type, row.error.message, trial.task, row.trial)
        for row, trial in zip(final, summary.trials, strict=True)
        if row.error is not None and row.outcome != "cancelled"
    )
    return {
        **body,
        "schema": SCHEMA,
        "run_id": run.id,
        "job": {"namespace": plan.namespace, "name": plan.job, "uid": plan.uid, "createdAt": plan.created_at},
        "primary": summary.primary,
        "aggregates": [{"name": item.name, "value": item.value, "count": item.count, "missing": item.missing} for item in summary.scores],
        "coverage": [
            {"name": item.name, "total": item.total, "scored": item.scored, "failed": item.failed, "missing": item.missing}
            for item in summary.coverage
        ],
        "trials": {"total": len(plan.trials), **counts, "retried": sum(map(retried, by_trial.values())), "cached": cached},
        "failure_groups": [group.raw() for group in (*errors, *findings.groups)],
        "tampered": sorted(row.trial for row in final if row.tampered),
        **({"judge": dict(findings.judge)} if findings.judge is not None else {}),
    }


def retried(history: Sequence[Row]) -> int:
    """Further Pods of a trial that a failure has cost; a hand-over to the separate verifier is none."""
    return sum(not row.is_final and (row.error is None or row.error.type != Reason.HANDED_OVER) for row in history)


def document(body: object) -> bytes:
    """JSON with an indent of two, sorted keys and a final newline."""
    return json.dumps(body, sort_keys=True, indent=2, allow_nan=False).encode() + b"\n"


def lines(items: Iterable[object]) -> bytes:
    """One JSON object a line, with sorted keys."""
    return b"".join(json.dumps(item, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n" for item in items)


def _place(row: Row) -> tuple[str, str, int]:
    """Folder relative to the bundle, trial and retry of the stored result; one that was reused lies in the folder where it was made."""
    if row.origin is None:
        return "", row.trial, row.retry
    # A bundle lies three folders deep, jobs/<namespace>/<job>/, and evidence never comes from another namespace.
    home = f"jobs/{row.origin.folder.split('/')[1]}/bundle"
    return f"{posixpath.relpath(row.origin.folder, home)}/", row.origin.trial, row.origin.retry


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()
