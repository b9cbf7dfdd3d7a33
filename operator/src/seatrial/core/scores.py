"""From rows to the scores of a job: per reward key, over the trials that count, with what was missing named.

Two rules above all: an infrastructure failure is never a score, and "no score" is never 0. The arithmetic is in ``seatrial.scoring``; this
module says which trials count and how the scores are named in the status. Source: nemo.md 19, 23 and 30.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from seatrial.api.evaljob import EvalJobSpec
from seatrial.core.measures import TaskScoring
from seatrial.core.rows import Row
from seatrial.core.scripts import ScriptOutcome
from seatrial.scoring.evaluate import NOTHING, Findings
from seatrial.scoring.harbor import all_rows, harbor_metric
from seatrial.scoring.observations import Output
from seatrial.scoring.rewards import Rewards, Trial, narrowed, reward_outputs
from seatrial.scoring.views import view_scores

DEFAULT_REWARD: Final = "reward"
Aggregate = Literal["mean", "sum", "min", "max"]


class MetricRule(NamedTuple):
    type: Aggregate = "mean"
    zero_missing: bool = False
    """In addition ``<key>.<type>.zero``: Harbor's documented arithmetic, where a missing reward counts as 0."""


def metric_rules(spec: EvalJobSpec, of_taskset: Sequence[MetricRule] = ()) -> tuple[MetricRule, ...]:
    """The aggregates of a job: those of its taskset, then ``spec.metrics``; nothing means mean (H-134)."""
    named = (MetricRule(item.type, item.missing == "zero") for item in spec.metrics if item.type != "script")
    return tuple(dict.fromkeys((*of_taskset, *named))) or (MetricRule(),)


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a plan adds to the rules of the spec."""

    metrics: tuple[MetricRule, ...] = ()
    """Of the taskset."""
    scripts: tuple[ScriptOutcome, ...] = ()
    tasks: Mapping[str, TaskScoring] = field(default_factory=dict)
    """Metrics and views of tasks that name any."""


NO_SCORING: Final = Scoring()


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    """``<key>.<aggregate>``, ``<key>.<aggregate>.zero``, ``<key>.pass@<k>``, ``<key>.pass^<k>``, ``<metric>.<output>.mean``,
    ``view.<name>.mean``, ``script.<name>``."""
    value: float | None
    """None: nothing was measured."""
    count: int
    """What the value is made of: trials, or tasks for pass@k."""
    missing: int
    """How many more there should be."""


class Coverage(NamedTuple):
    name: str
    total: int
    scored: int
    failed: int
    """Ended without a valid reward."""
    missing: int
    """Graded, and the verifier did not report this key."""


@dataclass(frozen=True)
class Summary:
    scores: tuple[Score, ...]
    """The primary reward first, then by name."""
    coverage: tuple[Coverage, ...]
    primary: str | None
    """The key that counts, or None where no trial measured it."""
    trials: tuple[Trial, ...] = field(default=(), repr=False, compare=False)
    rewards: Rewards = field(default=Rewards(None, ()), repr=False, compare=False)

    def score(self, name: str) -> Score | None:
        """A score by its name, or None."""
        return next((item for item in self.scores if item.name == name), None)


def summarise(
    rows: Iterable[Row],
    *,
    reward_key: str | None,
    metrics: Sequence[MetricRule] = (MetricRule(),),
    tasks: Mapping[str, str] | None = None,
    findings: Findings = NOTHING,
    scripts: Mapping[str, float] | None = None,
    most_keys: int | None = None,
    named_keys: Collection[str] = (),
) -> Summary:
    """All scores of a job.

    Args:
        rows: final rows, one per ended trial.
        reward_key: the key that the user named. A graded trial without it counts as 0.0 under a named key, and under the default key
            ``reward`` as soon as one valid trial reports that; a default key that nobody reports is not measured.
        metrics: at least one; the first makes the column MEAN.
        tasks: trial -> task; a trial that it does not name is a task of its own; None: all trials are attempts at one task.
        findings: what other metrics found.
        most_keys: rewards under more names are left out, except the primary one and those of ``named_keys``; None: nothing is left out.
        scripts: values that scripts computed from the same rows.
    """
    trials = as_trials(rows, tasks)
    if most_keys is not None:
        trials = narrowed(trials, reward_key, most=most_keys, named=named_keys)
    rewards = reward_outputs(trials, reward_key) if findings.rewards else Rewards(None, ())
    filled = zero_filled(trials, rewards, {rule.type for rule in metrics if rule.zero_missing} | {metrics[0].type})
    scores: list[Score] = []
    lines = len(all_rows(trials))
    script_scores = [Score(f"script.{name}", value, lines, 0) for name, value in (scripts or {}).items()]
    for output in rewards.outputs:
        scores += _aggregates(output, metrics)
        if output.output == rewards.primary:
            scores += _filled(output.output, filled, metrics, always=metrics[0].type)
        else:
            scores += _filled(output.output, filled, metrics)
        if output.output == rewards.primary:
            scores += script_scores
    if rewards.primary is None:
        scores += script_scores
    named = [(output.output, output) for output in rewards.outputs] + [(output.name, output) for output in findings.outputs]
    for output in findings.outputs:
        found = output.range()
        scores.append(Score(f"{output.name}.mean", found.mean, found.count, found.nan_count))
    for view in view_scores(findings.views, [output for _, output in named]):
        scores.append(Score(f"{view.name}.mean", view.mean, view.count, view.nan_count))
    for name, output in named:
        tasks_of = len(output.tasks())
        for k, at, hat in output.passes():
            scores.append(Score(f"{name}.pass@{k}", aggregate(at, "mean"), len(at), tasks_of - len(at)))
            if k > 1:
                scores.append(Score(f"{name}.pass^{k}", aggregate(hat, "mean"), len(hat), tasks_of - len(hat)))
    coverage = tuple(Coverage(name, *output.coverage()) for name, output in named)
    return Summary(tuple(scores), coverage, rewards.primary, tuple(trials), rewards)


def as_trials(rows: Iterable[Row], tasks: Mapping[str, str] | None = None) -> list[Trial]:
    """Final rows as the scores see them."""
    return [
        Trial(
            name=row.trial,
            task="" if tasks is None else tasks.get(row.trial, row.trial),
            state=row.outcome if row.outcome != "retried" else "errored",
            rewards=row.rewards if row.outcome == "scored" else None,
            error=None if row.error is None else row.error.harbor,
        )
        for row in rows
    ]


def zero_filled(trials: Sequence[Trial], rewards: Rewards, kinds: Iterable[str]) -> dict[str, dict[str, tuple[float, int]]]:
    """Harbor's documented arithmetic: aggregate -> key -> (value, rows). Errored trials count as 0, cancelled ones are left out."""
    lines = all_rows(trials)
    if not rewards.outputs or not lines:
        return {}
    found = {}
    for kind in sorted(set(kinds)):
        values = harbor_metric(lines, kind)
        if list(values) == [kind] and len({key for line in lines for key in line or ()}) == 1:
            # One key only: Harbor names the value after the metric.
            values = {next(key for line in lines for key in line or ()): values[kind]}
        found[kind] = {key: (value, len(lines)) for key, value in values.items()}
    return found


def _aggregates(output: Output, metrics: Sequence[MetricRule]) -> list[Score]:
    values = [value for _, value in output.numbers()]
    missing = len(output.observations) - len(values)
    kinds = dict.fromkeys(rule.type for rule in metrics)
    return [Score(f"{output.output}.{kind}", aggregate(values, kind), len(values), missing) for kind in kinds]


def _filled(
    key: str, filled: Mapping[str, Mapping[str, tuple[float, int]]], metrics: Sequence[MetricRule], *, always: str | None = None
) -> list[Score]:
    kinds = dict.fromkeys(rule.type for rule in metrics if rule.zero_missing or rule.type == always)
    return [Score(f"{key}.{kind}.zero", *filled[kind][key], 0) for kind in kinds if key in filled.get(kind, {})]


def aggregate(values: Sequence[float], kind: Aggregate) -> float | None:
    """None for no values: the mean of nothing is not 0.

    ``fsum`` makes the result independent of the order in which trials ended.
    """
    if not values:
        return None
    try:
        match kind:
            case "mean":
                return _finite(math.fsum(values) / len(values))
            case "sum":
                return _finite(math.fsum(values))
            case "min":
                return min(values)
            case "max":
                return max(values)
    except OverflowError:
        return None


def decimal_text(value: float) -> str:
    """``value`` as decimal text of at most 32 characters: ``1``, ``0.5``, ``1e+30``; twelve significant digits."""
    text = format(value, ".12g")
    return str(Decimal(text)) if "e" not in text and "." in text else "0" if text == "-0" else text


def column_text(value: float) -> str:
    """Three decimals, for the column MEAN; large values in short form."""
    return f"{value:.3f}" if abs(value) < 1e9 else format(value, ".6g")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
