"""Confidence intervals of a mean, each with the name of its method.

Attempts at one task are not independent, so the unit is the task: an interval over trials would be too narrow by the number of attempts.
- ``clopper-pearson``: exact; every task has one attempt and every value is 0 or 1.
- ``student-t-by-task``: mean over all trials, spread of the tasks' sums of deviations (cluster-robust), t with tasks - 1 degrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

LEVEL: Final = 0.95


class Interval(NamedTuple):
    low: float
    high: float
    method: str
    level: float = LEVEL

    def raw(self) -> dict[str, Any]:
        """As written to summary.json."""
        return {"low": self.low, "high": self.high, "method": self.method, "level": self.level}


def mean_interval(values: Iterable[tuple[str, float]], *, level: float = LEVEL) -> Interval | None:
    """Interval of the mean of ``(task, value)`` pairs; None for fewer than two tasks, where the spread is unknown, or beyond any float."""
    by_task: dict[str, list[float]] = {}
    for task, value in values:
        by_task.setdefault(task, []).append(value)
    tasks, flat = len(by_task), [value for group in by_task.values() for value in group]
    if flat and tasks == len(flat) and all(value in (0.0, 1.0) for value in flat):
        return clopper_pearson(int(sum(flat)), len(flat), level=level)
    if tasks < 2:
        return None
    try:
        mean = math.fsum(flat) / len(flat)
        squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in by_task.values())
    except OverflowError:
        return None
    error = math.sqrt(squares * tasks / (tasks - 1)) / len(flat)
    reach = t_quantile(0.5 + level / 2, tasks - 1) * error
    if not math.isfinite(mean - reach) or not math.isfinite(mean + reach):
        return None
    return Interval(mean - reach, mean + reach, "student-t-by-task", level)


def clopper_pearson(successes: int, total: int, *, level: float = LEVEL) -> Interval:
    """Exact interval of a proportion."""
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else beta_quantile(tail, successes, total - successes + 1)
    high = 1.0 if successes == total else beta_quantile(1 - tail, successes + 1, total - successes)
    return Interval(low, high, "clopper-pearson", level)


def beta_quantile(p: float, a: float, b: float) -> float:
    """x with I_x(a, b) = p."""
    return _bisect(lambda x: beta_cdf(x, a, b), p, 0.0, 1.0)


def t_quantile(p: float, degrees: float) -> float:
    """x with P(T <= x) = p, for p >= 0.5."""
    high = 2.0
    while t_cdf(high, degrees) < p:
        high *= 2
    return _bisect(lambda x: t_cdf(x, degrees), p, 0.0, high)


def t_cdf(x: float, degrees: float) -> float:
    """P(T <= x) of Student's t."""
    tail = beta_cdf(degrees / (degrees + x * x), degrees / 2, 0.5) / 2
    return 1 - tail if x >= 0 else tail


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (modified Lentz)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _away(1 + even * d, tiny)
        c = _away(1 + even / c, tiny)
        result *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / _away(1 + odd * d, tiny)
        c = _away(1 + odd / c, tiny)
        step = d * c
        result *= step
        if abs(step - 1) < 1e-15:
            break
    return result


def _away(value: float, tiny: float) -> float:
    return tiny if abs(value) < tiny else value


def _bisect(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
