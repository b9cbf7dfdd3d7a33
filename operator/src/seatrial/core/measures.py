"""Metrics and views that a Task names: what is frozen of them, and what they found over a job.

Why in the Pod that grades the trial: it has the trajectory at hand, and its verdict brings the values, so that a job needs no further Pod
and partial scores have them. Source: nemo.md 21 and 22.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from seatrial.contract import Measures
from seatrial.core.rows import Row
from seatrial.scoring.builtin import BUILT_IN, OutputSpec, built_in
from seatrial.scoring.evaluate import NOTHING, Findings, MetricScore, metric_outputs
from seatrial.scoring.observations import Value
from seatrial.scoring.rewards import REWARD_METRIC, Trial
from seatrial.scoring.views import Signal, View, check_view

NOT_COMPUTED = "the trial was graded without this metric"


class PlannedMetric(NamedTuple):
    """A built-in metric with its settings."""

    type: str
    config: Mapping[str, Any]


class TaskScoring(NamedTuple):
    """What a Task adds to the verifier's rewards."""

    metrics: tuple[PlannedMetric, ...] = ()
    """In their order; the rewards come first."""
    views: Mapping[str, View] = {}
    metadata: Mapping[str, Any] = {}
    """Of the Task: what templates may name."""

    def outputs(self) -> dict[str, tuple[OutputSpec, ...]]:
        """Metric -> its outputs."""
        return {metric.type: BUILT_IN[metric.type].outputs for metric in self.metrics}


class MetricUnsupported(ValueError):
    """The operator cannot compute a metric of this kind."""


def read_scoring(metrics: Sequence[Mapping[str, Any]], views: Mapping[str, Any], metadata: Mapping[str, Any]) -> TaskScoring | None:
    """Metrics and views of a Task's revision; None where it names none.

    Raises:
        MetricUnsupported: a metric of one's own, or two of one type.
    """
    if not metrics and not views:
        return None
    found = []
    for entry in metrics:
        name = entry.get("type") or entry.get("ref")
        if entry.get("ref") or entry.get("image"):
            raise MetricUnsupported(
                f"metric {name}: metrics of one's own do not run in the cluster yet: seatrial rescore --metrics runs them"
            )
        found.append(PlannedMetric(entry["type"], entry.get("config", {})))
    names = [metric.type for metric in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MetricUnsupported(f"duplicate task metric types: {', '.join(twice)}")
    return TaskScoring(tuple(found), {name: _view(body) for name, body in views.items()}, metadata)


def check_scoring(scoring: TaskScoring, *, primary: str) -> None:
    """Build every metric and look every view up.

    Args:
        primary: the reward key of the job, the only reward that a view may name.

    Raises:
        MetricRefused: a metric's type or settings.
        InvalidView: a name that no metric declares.
    """
    for metric in scoring.metrics:
        built_in(*metric)
    declared = {REWARD_METRIC: [primary], **{metric: [spec.name for spec in specs] for metric, specs in scoring.outputs().items()}}
    for name, view in scoring.views.items():
        check_view(name, view, declared)


def scoring_to_json(scoring: TaskScoring) -> dict[str, Any]:
    """As in plan.json."""
    return {
        "metrics": [{"type": metric.type, "config": dict(metric.config)} for metric in scoring.metrics],
        "views": {
            name: {"reducer": view.reducer, "signals": [signal._asdict() for signal in view.signals]}
            for name, view in scoring.views.items()
        },
        "metadata": dict(scoring.metadata),
    }


def scoring_from_json(body: Mapping[str, Any]) -> TaskScoring:
    """Inverse of ``scoring_to_json``."""
    metrics = tuple(PlannedMetric(item["type"], item["config"]) for item in body["metrics"])
    return TaskScoring(metrics, {name: _view(item) for name, item in body["views"].items()}, body["metadata"])


def findings_of(scorings: Mapping[str, TaskScoring], rows: Iterable[Row], trials: Sequence[Trial]) -> Findings:
    """What the metrics of all tasks found.

    Args:
        scorings: by task; those that name metrics or views.
        rows: final rows.
        trials: the same trials as the scores see them, in the same order.
    """
    if not scorings:
        return NOTHING
    scores = []
    declared = {task: scoring.outputs() for task, scoring in scorings.items()}
    for row, trial in zip(rows, trials, strict=True):
        if trial.is_scoreable:
            for metric, specs in declared.get(trial.task, {}).items():
                scores.append(_score(trial, metric, specs, row.measures))
    views = {task: scoring.views for task, scoring in scorings.items() if scoring.views}
    return Findings(tuple(scores), metric_outputs(declared, trials, scores), views)


def _score(trial: Trial, metric: str, specs: Sequence[OutputSpec], measures: Measures) -> MetricScore:
    found = measures.get(metric, NOT_COMPUTED)
    if isinstance(found, str):
        return MetricScore(trial.task, trial.name, metric, None, found, {"trial_status": "scored"})
    kinds = {spec.name: spec.kind for spec in specs}
    values: dict[str, Value] = {}
    for name, value in found.items():
        # NaN and the infinities travel as text.
        try:
            values[name] = float(value) if isinstance(value, str) and kinds.get(name) in ("continuous", "discrete") else value
        except ValueError:
            return MetricScore(trial.task, trial.name, metric, None, f"reported no number under {name}"[:200], {"trial_status": "scored"})
    return MetricScore(trial.task, trial.name, metric, values)


def _view(body: Mapping[str, Any]) -> View:
    signals = tuple(Signal(item["metric"], item["output"], item.get("weight")) for item in body["signals"])
    return View(body["reducer"], signals)
