"""From rewards to scores: per reward key, over the trials that count, with what was missing named.

Two rules above all: an infrastructure failure is never a score, and "no score" is never 0. Source: NeMo Evaluator's range scores and
coverage; Harbor's metrics (mean, sum, min, max).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from seatrial.core.rows import Row

DEFAULT_REWARD: Final = "reward"
Aggregate = Literal["mean", "sum", "min", "max"]


class MetricRule(NamedTuple):
    type: Aggregate = "mean"
    zero_missing: bool = False
    """A graded trial without the key counts as 0, as in Harbor."""


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    """``<key>.<aggregate>``."""
    value: float | None
    """None: nothing was measured."""
    count: int
    missing: int
    """Ended trials that have no value in it."""


class Coverage(NamedTuple):
    name: str
    total: int
    scored: int
    failed: int
    """Ended without a valid reward."""
    missing: int
    """Graded, and the verifier did not report this key."""


class Summary(NamedTuple):
    scores: tuple[Score, ...]
    """The primary reward first, then by name."""
    coverage: tuple[Coverage, ...]
    primary: str | None
    """The key that counts, or None where no trial measured it."""


def summarise(rows: Iterable[Row], *, reward_key: str | None, metrics: Sequence[MetricRule] = (MetricRule(),)) -> Summary:
    """All scores of a job.

    Args:
        rows: final rows, one per ended trial.
        reward_key: the key that the user named. A graded trial without it counts as 0.0 under a named key, and under the default key
            ``reward`` as soon as one valid trial reports that; a default key that nobody reports is not measured.
        metrics: at least one.

    Source: nemo.md 19.4 and 23; Harbor 8.3 for ``zero_missing``.
    """
    final = list(rows)
    graded = [row.rewards for row in final if row.outcome == "scored" and row.rewards]
    failed = len(final) - len(graded)
    keys = sorted({key for rewards in graded for key in rewards})
    primary = reward_key or DEFAULT_REWARD
    measured = bool(graded) and (reward_key is not None or primary in keys)
    if not measured:
        # Rewards under one other name are unambiguous: Harbor takes a trial's only value whatever it is called.
        primary = keys[0] if len(keys) == 1 and reward_key is None else ""
    if primary and graded:
        keys = [primary, *(key for key in keys if key != primary)]
    scores: list[Score] = []
    coverage: list[Coverage] = []
    for key in keys:
        reported = [rewards[key] for rewards in graded if key in rewards]
        silent = len(graded) - len(reported)
        is_primary = key == primary
        for metric in metrics:
            zeros = silent if is_primary or metric.zero_missing else 0
            values = reported + [0.0] * zeros
            scores.append(Score(f"{key}.{metric.type}", aggregate(values, metric.type), len(values), failed + silent - zeros))
        scored = len(graded) if is_primary else len(reported)
        coverage.append(Coverage(key, total=len(final), scored=scored, failed=failed, missing=len(graded) - scored))
    return Summary(tuple(scores), tuple(coverage), primary or None)


def aggregate(values: Sequence[float], kind: Aggregate) -> float | None:
    """None for no values: the mean of nothing is not 0.

    ``fsum`` makes the result independent of the order in which trials ended.
    """
    if not values:
        return None
    match kind:
        case "mean":
            return _finite(math.fsum(values) / len(values))
        case "sum":
            return _finite(math.fsum(values))
        case "min":
            return min(values)
        case "max":
            return max(values)


def decimal_text(value: float) -> str:
    """``value`` as decimal text of at most 32 characters: ``1``, ``0.5``, ``1e+30``; twelve significant digits."""
    text = format(value, ".12g")
    return str(Decimal(text)) if "e" not in text and "." in text else "0" if text == "-0" else text


def column_text(value: float) -> str:
    """Three decimals, for the column MEAN; large values in short form."""
    return f"{value:.3f}" if abs(value) < 1e9 else format(value, ".6g")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
