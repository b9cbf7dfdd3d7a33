"""``summary.json``: every score of a job under its original name, with coverage, per-task values and what went wrong.

Fields: nemo.md 23 and 24, harbor.md 8; ``pass_all``, ``confidence``, ``groups`` and ``harbor_metrics`` are ours. Equal input gives an
equal document, whatever the order in which trials ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.scoring.harbor import AGGREGATES, all_rows, eval_stats, harbor_metric, valid_rows
from seatrial.scoring.intervals import mean_interval
from seatrial.scoring.observations import Observation, Output, is_number
from seatrial.scoring.ranges import RangeScore, range_score
from seatrial.scoring.rewards import Rewards, Trial
from seatrial.scoring.views import View, view_scores


def build_summary(
    trials: Sequence[Trial],
    rewards: Rewards,
    *,
    tasks: Sequence[str],
    metrics: Sequence[Output] = (),
    views: Mapping[str, Mapping[str, View]] | None = None,
    labels: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """The statistics of a job.

    Args:
        trials: ended trials in plan order.
        rewards: their rewards, from ``reward_outputs``.
        tasks: ids of all tasks of the plan.
        metrics: outputs of additional metrics.
        views: task -> view name -> view.
        labels: task -> label such as ``category`` -> value, for the breakdown.
    """
    outputs = (*rewards.outputs, *metrics)
    ordered = sorted(outputs, key=lambda output: output.name)
    coverage: dict[str, dict[str, dict[str, int]]] = {}
    for output in ordered:
        coverage.setdefault(output.metric, {})[output.output] = output.coverage()._asdict()
    passes, hats = pass_scores(ordered)
    errors: dict[str, list[str]] = {}
    for trial in trials:
        if trial.error is not None:
            errors.setdefault(trial.error, []).append(trial.name)
    intervals = {output.name: interval.raw() for output in ordered if (interval := mean_interval(output.numbers())) is not None}
    return {
        "scores": [score.raw() for score in (*(output.range() for output in ordered), *view_scores(views or {}, outputs), *passes)],
        "pass_all": [score.raw() for score in hats],
        "metric_coverage": coverage,
        "task_metric_values": task_values(ordered),
        "error_trial_ids": errors,
        "task_count": len(tasks),
        "trial_count": len(trials),
        "score_count": sum(trial.is_scoreable for trial in trials) * (1 + len({output.metric for output in metrics})),
        "error_count": sum(len(names) for names in errors.values()),
        "outcome": outcome(trials),
        "harbor_metrics": harbor_metrics(trials),
        "harbor_stats": eval_stats(trials),
        "confidence": intervals,
        "groups": grouped(rewards, labels or {}),
        "unscored_tasks": unscored_tasks(trials, tasks),
        "diagnostics": [{"trial_id": item.trial, "message": item.message, "details": dict(item.details)} for item in rewards.diagnostics],
    }


def pass_scores(outputs: Sequence[Output]) -> tuple[list[RangeScore], list[RangeScore]]:
    """pass@k and pass^k over tasks, by output, then k."""
    at, hat = [], []
    for output in outputs:
        tasks = len(output.tasks())
        for rates in output.passes():
            at.append(range_score(f"{output.name}.pass@{rates.k}", rates.at, observations=tasks))
            hat.append(range_score(f"{output.name}.pass^{rates.k}", rates.hat, observations=tasks))
    return at, hat


def task_values(outputs: Sequence[Output]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """task -> ``metric.output`` -> one entry per trial; an unmeasured trial has none, a failed one is missing."""
    values: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for output in outputs:
        for item in output.observations:
            if item.state in ("missing", "unscored"):
                continue
            values.setdefault(item.task, {}).setdefault(output.name, []).append(_entry(item))
    return values


def _entry(item: Observation) -> dict[str, Any]:
    value = item.value
    if item.state != "observed" or value is None:
        return {"trial_id": item.trial, "value_type": "missing", "value": None}
    if isinstance(value, str):
        return {"trial_id": item.trial, "value_type": "label", "value": value}
    if not isinstance(value, bool) and not is_number(value):
        return {"trial_id": item.trial, "value_type": "number", "value": str(value)}
    return {"trial_id": item.trial, "value_type": "number", "value": value}


def outcome(trials: Sequence[Trial]) -> dict[str, Any]:
    """Counts of trials and one sentence; ``failed`` only when there are trials and none is scored."""
    total, scored = len(trials), sum(trial.is_scoreable for trial in trials)
    errored = sum(trial.error is not None or trial.state != "scored" for trial in trials)
    failed = total > 0 and scored == 0
    text = f"{scored} of {total} trials scored; {errored} reported errors."
    if failed:
        text = f"No usable scores across {total} trials ({errored} reported errors). See the job logs."
    return {"unit": "trials", "total": total, "errored": errored, "scored": scored, "failed": failed, "message": text}


def harbor_metrics(trials: Sequence[Trial]) -> dict[str, dict[str, dict[str, float]]]:
    """Both readings of "missing": ``skip`` over valid trials (Harbor's software), ``zero`` with null rows as 0 (its documents)."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name, rows in (("skip", valid_rows(trials)), ("zero", all_rows(trials))):
        result[name] = {kind: harbor_metric(rows, kind) for kind in AGGREGATES} if rows and any(rows) else {}
    return result


def grouped(rewards: Rewards, labels: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """label -> its value -> reward name -> statistics over the tasks that carry it, denominator included."""
    names = sorted({name for task in labels.values() for name in task})
    result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name in names:
        for output in rewards.outputs:
            members: dict[str, list[Observation]] = {}
            for item in output.observations:
                if (value := labels.get(item.task, {}).get(name)) is not None:
                    members.setdefault(value, []).append(item)
            for value, items in sorted(members.items()):
                part = Output(output.metric, output.output, output.kind, tuple(items))
                score, spread = part.range(), mean_interval(part.numbers())
                result.setdefault(name, {}).setdefault(value, {})[output.name] = {
                    "tasks": len(part.tasks()),
                    "count": score.count,
                    "missing": score.nan_count,
                    "mean": score.mean,
                    "confidence": None if spread is None else spread.raw(),
                }
    return result


def unscored_tasks(trials: Sequence[Trial], tasks: Sequence[str]) -> list[str]:
    """Tasks without any scored trial, in plan order."""
    scored = {trial.task for trial in trials if trial.is_scoreable}
    return [task for task in tasks if task not in scored]
