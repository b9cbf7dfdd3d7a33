"""Compare jobs: differences of the tasks that both scored, regressions first, with the chance of seeing them without any cause.

The unit is the task, as for intervals: attempts at one task are averaged before anything is tested. The test flips signs: if nothing
changed, each task's difference is as likely positive as negative. Named methods:
- ``sign-flip-exact``: all 2^n flips, for at most 12 tasks that differ;
- ``mcnemar-exact``: the same as a binomial test where all differences have one size;
- ``sign-flip``: 9,999 flips from a fixed seed, so that a comparison can be repeated.
A single task is tested over its attempts: Fisher's exact test for 0 and 1, Welch's t otherwise, both with Holm's correction.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from seatrial.scoring.intervals import Interval, t_cdf, t_quantile

FLIPS: Final = 9_999
EXACT_TASKS: Final = 12
ALPHA: Final = 0.05
_LARGE: Final = 1e60

Verdict = Literal["better", "worse", "same"]
TaskValues = Mapping[str, Sequence[float]]
"""task -> values of its scored attempts; a task without any is not in it, or empty."""


class TaskDifference(NamedTuple):
    task: str
    baseline: float
    candidate: float
    difference: float
    """candidate - baseline."""
    attempts: tuple[int, int]
    p_value: float | None
    """Of this task alone, corrected for the number of tasks; None where one attempt a side says nothing."""
    significant: bool


class Comparison(NamedTuple):
    baseline: str
    candidate: str
    tasks: tuple[TaskDifference, ...]
    """The largest regression first."""
    mean_difference: float | None
    """Over the paired tasks; None without any."""
    interval: Interval | None
    p_value: float | None
    method: str | None
    verdict: Verdict
    """``same``: no difference that chance would not explain."""
    lost: tuple[str, ...]
    """Tasks that only the baseline scored."""
    gained: tuple[str, ...]

    @property
    def regressions(self) -> tuple[TaskDifference, ...]:
        return tuple(item for item in self.tasks if item.difference < 0)

    def raw(self) -> dict[str, Any]:
        """As documented JSON."""
        return {
            **self._asdict(),
            "tasks": [{**item._asdict(), "attempts": list(item.attempts)} for item in self.tasks],
            "interval": None if self.interval is None else self.interval.raw(),
            "lost": list(self.lost),
            "gained": list(self.gained),
        }


def compare(baseline: tuple[str, TaskValues], candidate: tuple[str, TaskValues], *, alpha: float = ALPHA) -> Comparison:
    """``candidate`` against ``baseline``, each a name and its values."""
    (name_a, a), (name_b, b) = baseline, candidate
    scale = _scale(value for values in (*a.values(), *b.values()) for value in values)
    a, b = ({task: [value * scale for value in values] for task, values in side.items()} for side in (a, b))
    paired = sorted(task for task in a if a[task] and b.get(task))
    raw = [(task, _mean(a[task]), _mean(b[task])) for task in paired]
    corrected = holm([task_p_value(a[task], b[task]) for task in paired])
    tasks = [
        TaskDifference(
            task,
            _at(old, scale),
            _at(new, scale),
            _at(new - old, scale),
            (len(a[task]), len(b[task])),
            p,
            p is not None and p < alpha,
        )
        for (task, old, new), p in zip(raw, corrected, strict=True)
    ]
    differences = [new - old for _, old, new in raw]
    p_value, method = sign_flip(differences)
    mean = _mean(differences) if differences else None
    verdict: Verdict = "same"
    if p_value is not None and mean is not None and p_value < alpha:
        verdict = "worse" if mean < 0 else "better"
    return Comparison(
        name_a,
        name_b,
        tuple(sorted(tasks, key=lambda item: (item.difference, item.task))),
        None if mean is None else _at(mean, scale),
        _interval(differences, scale),
        p_value,
        method,
        verdict,
        tuple(sorted(task for task in a if a[task] and not b.get(task))),
        tuple(sorted(task for task in b if b[task] and not a.get(task))),
    )


def sign_flip(differences: Sequence[float]) -> tuple[float | None, str | None]:
    """Two-sided p of "each difference is as likely positive as negative", and the method; None for no tasks."""
    if not differences:
        return None, None
    moved = [value for value in differences if abs(value) > 1e-12]
    if not moved:
        return 1.0, "sign-flip-exact"
    size = abs(moved[0])
    if all(math.isclose(abs(value), size, rel_tol=1e-9) for value in moved):
        return binomial_two_sided(sum(value > 0 for value in moved), len(moved)), "mcnemar-exact"
    observed = abs(math.fsum(moved)) - 1e-9 * max(map(abs, moved))
    if len(moved) <= EXACT_TASKS:
        sums = [
            sum(sign * value for sign, value in zip(signs, moved, strict=True)) for signs in itertools.product((1, -1), repeat=len(moved))
        ]
        return sum(abs(total) >= observed for total in sums) / len(sums), "sign-flip-exact"
    rng, total = random.Random(0), math.fsum(moved)
    # Each set bit turns one sign: the flipped sum is the total less twice the turned values, eight at a time from a table.
    tables = [_subset_sums(moved[start : start + 8]) for start in range(0, len(moved), 8)]
    extreme = 0
    for _ in range(FLIPS):
        bits = rng.randbytes(len(tables))
        turned = sum(map(list.__getitem__, tables, bits))
        extreme += abs(total - 2 * turned) >= observed
    return (extreme + 1) / (FLIPS + 1), "sign-flip"


def _subset_sums(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums += [item + value for item in sums]
    return sums * (256 // len(sums))


def binomial_two_sided(successes: int, total: int) -> float:
    """Exact two-sided p of a fair coin."""
    fewer = min(successes, total - successes)
    tail = math.fsum(math.exp(_log_choose(total, i) - total * math.log(2)) for i in range(fewer + 1))
    return min(1.0, 2 * tail)


def task_p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p of one task over its attempts, before correction."""
    if len(a) + len(b) < 4 or min(len(a), len(b)) < 2:
        return None
    if all(value in (0.0, 1.0) for value in (*a, *b)):
        return fisher(int(sum(a)), len(a), int(sum(b)), len(b))
    var_a, var_b = (_variance(values) / len(values) for values in (a, b))
    if var_a + var_b == 0:
        return 1.0 if _mean(a) == _mean(b) else 0.0
    t = abs(_mean(a) - _mean(b)) / math.sqrt(var_a + var_b)
    degrees = (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
    return 2 * (1 - t_cdf(t, degrees))


def fisher(c1: int, n1: int, c2: int, n2: int) -> float:
    """Fisher's exact test, two-sided: all tables with the same sums that are no likelier than this one."""
    passes = c1 + c2

    def log_p(c: int) -> float:
        return _log_choose(n1, c) + _log_choose(n2, passes - c) - _log_choose(n1 + n2, passes)

    observed = log_p(c1)
    chances = (log_p(c) for c in range(max(0, passes - n2), min(n1, passes) + 1))
    return min(1.0, math.fsum(math.exp(chance) for chance in chances if chance <= observed + 1e-9))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction for the number of tests; None stays None and is not counted."""
    ranked = sorted((value, index) for index, value in enumerate(values) if value is not None)
    result: list[float | None] = [None] * len(values)
    floor = 0.0
    for rank, (value, index) in enumerate(ranked):
        floor = max(floor, min(1.0, value * (len(ranked) - rank)))
        result[index] = floor
    return result


def _scale(values: Iterable[float]) -> float:
    """A power of two under which squares of the values stay numbers: 1 for all that is ordinary. No test here depends on the unit."""
    largest = max(map(abs, values), default=0.0)
    return 1.0 if largest < _LARGE else 2.0 ** -(math.frexp(largest)[1] - math.frexp(_LARGE)[1])


def _at(value: float, scale: float) -> float:
    """``value`` in the unit of the rewards; what no float can hold becomes the largest one."""
    return max(-sys.float_info.max, min(sys.float_info.max, value / scale))


def _interval(differences: Sequence[float], scale: float) -> Interval | None:
    if len(differences) < 2:
        return None
    mean, error = _mean(differences), math.sqrt(_variance(differences) / len(differences))
    reach = t_quantile(0.975, len(differences) - 1) * error
    return Interval(_at(mean - reach, scale), _at(mean + reach, scale), "student-t-by-task")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
