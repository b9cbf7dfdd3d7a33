"""Observations: one declared output of one trial, and how much of an output was observed. Source: nemo.md 23.1 and 23.3."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from seatrial.scoring.passes import PassRates, pass_rates, task_counts
from seatrial.scoring.ranges import RangeScore, range_score

Kind = Literal["continuous", "discrete", "boolean", "label"]
ObservationState = Literal["observed", "missing", "metric_failed", "trial_failed", "unscored"]
Value = float | bool | str | None


class Observation(NamedTuple):
    task: str
    trial: str
    state: ObservationState
    """``unscored``: the trial never had a valid reward, which is nobody's score."""
    value: Value


class Coverage(NamedTuple):
    total: int
    scored: int
    failed: int
    missing: int


@dataclass(frozen=True, slots=True)
class Output:
    """One output of one metric over the trials that should have it."""

    metric: str
    output: str
    kind: Kind
    observations: tuple[Observation, ...]

    @property
    def name(self) -> str:
        return f"{self.metric}.{self.output}"

    def numbers(self) -> list[tuple[str, float]]:
        """``(task, value)`` of what was observed and is a finite number; booleans and labels are none."""
        return [(item.task, item.value) for item in self.observations if item.state == "observed" and is_number(item.value)]  # type: ignore[misc]

    def range(self) -> RangeScore:
        return range_score(self.name, (value for _, value in self.numbers()), observations=len(self.observations))

    def coverage(self) -> Coverage:
        states = [item.state for item in self.observations]
        scored, missing = states.count("observed"), states.count("missing")
        return Coverage(len(states), scored, len(states) - scored - missing, missing)

    def tasks(self) -> dict[str, int]:
        """Observations by task."""
        return Counter(item.task for item in self.observations)

    def passes(self) -> Iterator[PassRates]:
        """Rates for every k up to the largest number of observations of a task; only continuous and boolean outputs have any.

        Metric failures, omissions and unscored trials are outside n; a failed trial is a non-pass.
        """
        if self.kind not in ("continuous", "boolean"):
            return
        values: list[tuple[str, float]] = []
        for item in self.observations:
            if item.state == "trial_failed":
                values.append((item.task, 0.0))
            elif item.state == "observed" and (is_number(item.value) or isinstance(item.value, bool)):
                values.append((item.task, float(item.value)))  # type: ignore[arg-type]
        yield from pass_rates(task_counts(values).values(), max_k=max(self.tasks().values(), default=0))


def is_number(value: object) -> bool:
    """A number that a float can hold; a boolean is none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
