"""Views: several outputs of a trial reduced to one named score. Source: nemo.md 22."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from seatrial.scoring.observations import Observation, Output, Value, is_number
from seatrial.scoring.ranges import RangeScore, range_score

Reducer = Literal["single", "all", "any", "mean", "weighted_mean"]


class Signal(NamedTuple):
    metric: str
    output: str
    weight: float | None = None
    """None counts as 1; only ``weighted_mean`` reads it."""


class View(NamedTuple):
    reducer: Reducer
    signals: tuple[Signal, ...]


class InvalidView(ValueError):
    """A view names what no metric of its task declares."""


def check_view(name: str, view: View, declared: Mapping[str, Sequence[str]]) -> None:
    """Every signal is a declared output.

    Args:
        declared: metric -> its outputs.

    Raises:
        InvalidView: with the name of what is unknown.
    """
    for signal in view.signals:
        if signal.metric not in declared:
            raise InvalidView(f"view {name!r} references unknown metric {signal.metric!r}")
        if signal.output not in declared[signal.metric]:
            raise InvalidView(f"view {name!r} references unknown output {signal.output!r} for metric {signal.metric!r}")


def reduce(view: View, values: Sequence[Value]) -> float | None:
    """The view's value of one trial; None as soon as one signal is missing, not finite or a label, or where no float can hold it. Booleans
    count as 1 and 0.

    Args:
        values: one per signal, in their order.
    """
    numbers = [float(value) for value in values if is_number(value) or isinstance(value, bool)]  # type: ignore[arg-type]
    if not values or len(numbers) != len(values):
        return None
    match view.reducer:
        case "single":
            return numbers[0]
        case "all":
            return min(numbers)
        case "any":
            return max(numbers)
        case "mean":
            return _quotient(numbers, float(len(numbers)))
        case "weighted_mean":
            weights = [1.0 if signal.weight is None else signal.weight for signal in view.signals]
            total = math.fsum(weights)
            return _quotient([a * b for a, b in zip(numbers, weights, strict=True)], total)


def _quotient(values: Sequence[float], by: float) -> float | None:
    """The sum of ``values`` over ``by``; None where that is no number."""
    try:
        result = math.fsum(values) / by
    except (OverflowError, ValueError, ZeroDivisionError):
        return None
    return result if math.isfinite(result) else None


def view_scores(views: Mapping[str, Mapping[str, View]], outputs: Sequence[Output]) -> tuple[RangeScore, ...]:
    """``view.<name>`` over all trials of the tasks that declare the name, sorted.

    Args:
        views: task -> view name -> view.
        outputs: of all metrics.
    """
    values: dict[tuple[str, str, str], Value] = {}
    trials: dict[str, dict[str, None]] = {}
    for output in outputs:
        for item in output.observations:
            trials.setdefault(item.task, {})[item.trial] = None
            if item.state == "observed":
                values[output.metric, output.output, item.trial] = item.value
    names = sorted({name for task in views.values() for name in task})
    result = []
    for name in names:
        rows = [
            reduce(view, [values.get((signal.metric, signal.output, trial)) for signal in view.signals])
            for task, known in views.items()
            if (view := known.get(name)) is not None
            for trial in trials.get(task, ())
        ]
        result.append(range_score(f"view.{name}", [row for row in rows if row is not None], observations=len(rows)))
    return tuple(result)


__all__ = ["InvalidView", "Observation", "Reducer", "Signal", "View", "check_view", "reduce", "view_scores"]
