"""Range scores: count, mean, spread and percentiles of observed numbers, with what is missing counted beside them.

Formulas and names: nemo.md 23.2. A statistic of nothing is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

PERCENTILES: Final = tuple(range(10, 101, 10))


@dataclass(frozen=True, slots=True)
class RangeScore:
    """One aggregate with all its statistics; every one of them is None while ``count`` is 0."""

    name: str
    count: int
    nan_count: int
    """Observations without a usable number."""
    sum: float | None = None
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    variance: float | None = None
    std_dev: float | None = None
    sample_variance: float | None = None
    """Divided by count - 1; None for one value."""
    sample_std_dev: float | None = None
    median: float | None = None
    percentiles: tuple[float, ...] | None = None
    """Of 10, 20 … 100 per cent."""

    def raw(self) -> dict[str, Any]:
        """As written to summary.json."""
        percentiles = None if self.percentiles is None else {f"p{p}": v for p, v in zip(PERCENTILES, self.percentiles, strict=True)}
        return {
            "name": self.name,
            "score_type": "range",
            "count": self.count,
            "nan_count": self.nan_count,
            "sum": self.sum,
            "mean": self.mean,
            "min": self.min,
            "max": self.max,
            "variance": self.variance,
            "std_dev": self.std_dev,
            "sample_variance": self.sample_variance,
            "sample_std_dev": self.sample_std_dev,
            "median": self.median,
            "percentiles": percentiles,
        }


def range_score(name: str, values: Iterable[float], *, observations: int) -> RangeScore:
    """Statistics of the finite ``values``.

    Args:
        observations: how many values there should be; the difference is ``nan_count``.
    """
    ordered = sorted(float(value) for value in values if math.isfinite(value))
    count = len(ordered)
    missing = max(0, observations - count)
    if not count:
        return RangeScore(name, 0, missing)
    total = _finite_sum(ordered)
    mean = None if total is None else total / count
    squares = None if mean is None else _finite_sum([(value - mean) * (value - mean) for value in ordered])
    variance = None if squares is None else squares / count
    sample = None if squares is None or count < 2 else squares / (count - 1)
    return RangeScore(
        name,
        count,
        missing,
        sum=total,
        mean=mean,
        min=ordered[0],
        max=ordered[-1],
        variance=variance,
        std_dev=None if variance is None else math.sqrt(variance),
        sample_variance=sample,
        sample_std_dev=None if sample is None else math.sqrt(sample),
        median=percentile(ordered, 50),
        percentiles=tuple(percentile(ordered, p) for p in PERCENTILES),
    )


def percentile(ordered: Sequence[float], p: float) -> float:
    """Percentile ``p`` of sorted values: position p/100 · (n+1) - 1, clamped to the ends, linear between neighbours."""
    position = min(max(p / 100 * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    low = math.floor(position)
    if low == position:
        return ordered[low]
    weight = position - low
    return ordered[low] * (1 - weight) + ordered[low + 1] * weight


def _finite_sum(values: Sequence[float]) -> float | None:
    """None where the sum is beyond what a float can hold."""
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):
        return None
    return total if math.isfinite(total) else None
