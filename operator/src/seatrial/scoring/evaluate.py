"""Metrics beside the verifier's rewards: one metric on one trial is a score, all scores of a metric are its outputs.

Metrics are somebody else's code: whatever one raises or returns concerns its own score alone. Source: nemo.md 21.1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from seatrial.scoring.builtin import Metric, MetricFailed, OutputSpec, Row
from seatrial.scoring.groups import FailureGroup
from seatrial.scoring.observations import Kind, Observation, ObservationState, Output, Value
from seatrial.scoring.rewards import Trial
from seatrial.scoring.views import View

MESSAGE_CHARS: Final = 500
_WHOLE: Final = 2**53
_MOST: Final = int(sys.float_info.max)


@dataclass(frozen=True, slots=True)
class MetricScore:
    """What one metric made of one trial."""

    task: str
    trial: str
    metric: str
    values: Mapping[str, Value] | None
    """By output; None: the metric failed on this trial."""
    message: str | None = None
    """Why it failed, or what it left out."""
    details: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Mapping[str, Any], ...] = ()
    """Of a metric over turns: ``{turn_index, value, reason}`` or ``{turn_index, error}`` for each."""

    @property
    def failed(self) -> bool:
        return self.values is None


@dataclass(frozen=True)
class Findings:
    """What all metrics beside the verifier's rewards found over a job."""

    scores: tuple[MetricScore, ...] = ()
    outputs: tuple[Output, ...] = ()
    views: Mapping[str, Mapping[str, View]] = field(default_factory=dict)
    """task -> view name -> view."""
    rewards: bool = True
    """Whether the verifier's rewards are scores, too."""
    groups: tuple[FailureGroup, ...] = ()
    """Failing labels."""
    judge: Mapping[str, Any] | None = None
    """Requests, tokens and cost of the judge, where one was asked."""


NOTHING: Final = Findings()


def compute(metric: Metric, row: Row, *, task: str, trial: str) -> MetricScore:
    """The score of ``metric`` on one trial; never raises."""
    try:
        return MetricScore(task, trial, metric.type, checked(metric, metric.compute(row)))
    except Exception as error:  # noqa: BLE001 somebody else's code: see the top of this module
        return failed(metric.type, error, task=task, trial=trial)


def failed(metric: str, error: Exception, *, task: str, trial: str) -> MetricScore:
    """A score without values that says why."""
    text = str(error) if isinstance(error, MetricFailed) else f"{type(error).__name__}: {error}"
    return MetricScore(task, trial, metric, None, storable(text[:MESSAGE_CHARS]), {"exception_type": type(error).__name__})


def checked(metric: Metric, values: Mapping[str, Value]) -> dict[str, Value]:
    """``values`` as declared: every required output, none that is undeclared, each of its kind.

    Raises:
        MetricFailed: with the name of the output.
    """
    declared = {spec.name: spec for spec in metric.outputs}
    if unknown := sorted(set(values) - set(declared)):
        raise MetricFailed(f"reported undeclared outputs: {', '.join(unknown)}")
    if missing := [spec.name for spec in metric.outputs if spec.required and values.get(spec.name) is None]:
        raise MetricFailed(f"did not report: {', '.join(missing)}")
    if wrong := [name for name, value in values.items() if value is not None and not _is_of(declared[name].kind, value)]:
        raise MetricFailed(f"reported no {declared[wrong[0]].kind} value under {wrong[0]}")
    return {name: _exact(value) for name, value in values.items() if value is not None}


def storable(text: str) -> str:
    """``text`` as files and API objects can hold it: a lone surrogate, of no encoding, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _exact(value: Value) -> Value:
    """A whole number that a table's columns cannot hold as one is kept as what it is anyway: an approximate one."""
    return float(value) if isinstance(value, int) and abs(value) > _WHOLE else value


def _is_of(kind: Kind, value: Value) -> bool:
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "label":
            return isinstance(value, str) and storable(value) == value
        case "continuous":
            return _is_number(value)
        case "discrete":
            return _is_number(value) and math.isfinite(value) and value == int(value)  # type: ignore[arg-type]


def _is_number(value: Value) -> bool:
    """NaN and the infinities are numbers, too; what is beyond them is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not (isinstance(value, int) and abs(value) > _MOST)


def metric_outputs(
    declared: Mapping[str, Mapping[str, Sequence[OutputSpec]]], trials: Sequence[Trial], scores: Iterable[MetricScore]
) -> tuple[Output, ...]:
    """The outputs of all metrics as observations: one per trial of each task that declares the output.

    Args:
        declared: task -> metric -> its outputs.
        trials: ended trials.
        scores: at most one per trial and metric; a declared one that is not there is a failure of the metric.
    """
    found = {(score.trial, score.metric): score for score in scores}
    observations: dict[tuple[str, str, Kind], list[Observation]] = {}
    for trial in trials:
        for metric, specs in declared.get(trial.task, {}).items():
            for spec in specs:
                item = _observe(trial, metric, spec, found.get((trial.name, metric)))
                observations.setdefault((metric, spec.name, spec.kind), []).append(item)
    return tuple(Output(metric, name, kind, tuple(items)) for (metric, name, kind), items in observations.items())


def observe(score: MetricScore, spec: OutputSpec) -> Observation:
    """One declared output of one score."""
    value = score.values.get(spec.name) if score.values is not None else None
    state: ObservationState = "metric_failed" if score.values is None else "missing" if value is None else "observed"
    return Observation(score.task, score.trial, state, value)


def _observe(trial: Trial, metric: str, spec: OutputSpec, score: MetricScore | None) -> Observation:
    if not trial.is_scoreable:
        return Observation(trial.task, trial.name, "unscored", None)
    return observe(score or MetricScore(trial.task, trial.name, metric, None), spec)
