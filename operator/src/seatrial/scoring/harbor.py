"""Harbor's own job arithmetic: metrics over rewards, and the statistics of a job's ``result.json``. Source: harbor.md 7.6 and 8.

Two readings of "missing" exist. Harbor's software drops trials without a valid reward before a metric sees them; its documents, and NeMo,
give one ``null`` row per such trial, which counts as 0. Both are computed here and never mixed (``harbor_metrics`` in summary.json).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from seatrial.scoring.passes import harbor_pass_at_k
from seatrial.scoring.rewards import Trial

RewardRow = Mapping[str, float] | None

AGGREGATES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "sum": math.fsum,
    "min": min,
    "max": max,
}


def harbor_metric(rows: Sequence[RewardRow], kind: str) -> dict[str, float]:
    """mean, sum, min or max of reward rows.

    With at most one key over all rows the result is named after the metric and a row's value is its only one; with two or more it is
    named after the keys, and a missing key is 0. A null or empty row is 0. An aggregate that no float can hold is left out.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError(f"the {kind} of no rows is not defined")
    aggregate = AGGREGATES[kind]
    keys = sorted({key for row in rows if row is not None for key in row})
    columns = {key: [0.0 if row is None else row.get(key, 0.0) for row in rows] for key in keys}
    if len(keys) <= 1:
        columns = {kind: next(iter(columns.values()), [0.0] * len(rows))}
    found: dict[str, float] = {}
    for name, column in columns.items():
        try:
            found[name] = aggregate(column)
        except OverflowError:
            continue
    return found


def valid_rows(trials: Sequence[Trial]) -> list[RewardRow]:
    """What Harbor's software gives a metric: valid trials only."""
    return [trial.rewards for trial in trials if trial.is_scoreable]


def all_rows(trials: Sequence[Trial]) -> list[RewardRow]:
    """What Harbor's documents give a metric: one row per ended trial, null without a valid reward; cancelled ones are left out."""
    return [trial.rewards if trial.is_scoreable else None for trial in trials if trial.state != "cancelled"]


@dataclass(frozen=True, slots=True)
class EvalGroup:
    """Trials of one agent, model and dataset."""

    agent: str
    model: str | None
    dataset: str
    trials: tuple[Trial, ...]

    @property
    def key(self) -> str:
        """``<agent>__<model>__<dataset>``; model without its provider, left out where there is none."""
        return "__".join(part for part in (self.agent, self.model, self.dataset) if part)


def metric_order(scripts: Sequence[Mapping[str, float]], kinds: Sequence[str]) -> tuple[tuple[Mapping[str, float], ...], tuple[str, ...]]:
    """What ``metrics`` of an entry is made of, in Harbor's order (8.1): scripts, then aggregates; without any of both the mean."""
    return tuple(scripts), tuple(kinds) or (() if scripts else ("mean",))


def eval_stats(
    trials: Sequence[Trial], *, metrics: Sequence[str] = ("mean",), scripts: Sequence[Mapping[str, float]] = ()
) -> dict[str, Any]:
    """One entry of ``stats.evals``. A trial with an error whose reward counts is in both counts.

    Args:
        scripts: what each metric.py gave over these trials; they come before the aggregates ``metrics``.
    """
    valid = [trial for trial in trials if trial.is_scoreable]
    rewards: dict[str, dict[str, list[str]]] = {}
    for trial in valid:
        for key, value in (trial.rewards or {}).items():
            rewards.setdefault(key, {}).setdefault(str(float(value)), []).append(trial.name)
    exceptions: dict[str, list[str]] = {}
    for trial in trials:
        if trial.error is not None:
            exceptions.setdefault(trial.error, []).append(trial.name)
    rows = valid_rows(trials)
    return {
        "n_trials": len(valid),
        "n_errors": sum(trial.error is not None for trial in trials),
        "metrics": [*map(dict, scripts), *(harbor_metric(rows, kind) for kind in metrics)] if rows else [],
        "pass_at_k": {str(k): value for k, value in harbor_pass_at_k([(trial.task, trial.rewards or {}) for trial in valid]).items()},
        "reward_stats": rewards,
        "exception_stats": exceptions,
    }


def job_stats(
    groups: Sequence[EvalGroup],
    *,
    total: int,
    retries: int,
    usage: Mapping[str, float | None],
    metrics: Sequence[str] = ("mean",),
    scripts: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """``stats`` of a job's ``result.json``.

    Args:
        total: planned trials.
        usage: ``n_input_tokens``, ``n_cache_tokens``, ``n_output_tokens``, ``cost_usd``: sums, None where no trial reported any.
    """
    trials = [trial for group in groups for trial in group.trials]
    return {
        "n_completed_trials": len(trials),
        "n_errored_trials": sum(trial.error is not None for trial in trials),
        "n_running_trials": 0,
        "n_pending_trials": max(0, total - len(trials)),
        "n_cancelled_trials": sum(trial.state == "cancelled" or trial.error == "CancelledError" for trial in trials),
        "n_retries": retries,
        "evals": {group.key: eval_stats(group.trials, metrics=metrics, scripts=scripts) for group in groups},
        **{name: usage.get(name) for name in ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")},
    }
