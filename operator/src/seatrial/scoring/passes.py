"""pass@k (at least one of k attempts passes) and pass^k (all k pass), estimated without bias from n attempts of which c passed.

Sources: nemo.md 23.4 (a trial passes when its value is 1 or more, every k from 1), harbor.md 8.5 (only 0 and 1, powers of two and
multiples of five up to the smallest n, never 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

PASSES_AT: Final = 1.0


def pass_at_k(n: int, c: int, k: int) -> float:
    """``1 - C(n-c, k) / C(n, k)``; 1 where n-c < k.

    Raises:
        ValueError: not 0 <= c <= n or not 1 <= k <= n.
    """
    _check(n, c, k)
    if n - c < k:
        return 1.0
    missed = 1.0
    for index in range(k):
        missed *= (n - c - index) / (n - index)
    return 1.0 - missed


def pass_hat_k(n: int, c: int, k: int) -> float:
    """``C(c, k) / C(n, k)``: the chance that k attempts drawn without replacement all pass."""
    _check(n, c, k)
    if c < k:
        return 0.0
    chance = 1.0
    for index in range(k):
        chance *= (c - index) / (n - index)
    return chance


def task_counts(values: Iterable[tuple[str, float]]) -> dict[str, tuple[int, int]]:
    """``(task, value)`` pairs to task -> (n, c)."""
    counts: dict[str, tuple[int, int]] = {}
    for task, value in values:
        n, c = counts.get(task, (0, 0))
        counts[task] = n + 1, c + (value >= PASSES_AT)
    return counts


class PassRates(NamedTuple):
    """pass@k and pass^k of each task with at least k usable attempts."""

    k: int
    at: list[float]
    hat: list[float]


def pass_rates(counts: Iterable[tuple[int, int]], *, max_k: int) -> Iterator[PassRates]:
    """The rates for k = 1 … ``max_k``.

    Args:
        counts: (n, c) of each task.
    """
    # Both values are products over k, so each k takes one step per task that has so many attempts.
    running = [(n, c, 1.0, 1.0) for n, c in counts]
    for k in range(1, max_k + 1):
        running = [
            (n, c, missed * max(0, n - c - k + 1) / (n - k + 1), passed * max(0, c - k + 1) / (n - k + 1))
            for n, c, missed, passed in running
            if n >= k
        ]
        yield PassRates(k, [1.0 - missed for _, _, missed, _ in running], [passed for _, _, _, passed in running])


def harbor_pass_at_k(rewards: Sequence[tuple[str, Mapping[str, float]]]) -> dict[int, float]:
    """Harbor's own: ``{}`` unless every valid trial has exactly one reward and it is 0 or 1.

    Args:
        rewards: task name and rewards of each valid trial.
    """
    passed: dict[str, list[int]] = {}
    for task, values in rewards:
        if len(values) != 1:
            return {}
        (value,) = values.values()
        if value not in (0, 1):
            return {}
        passed.setdefault(task, []).append(int(value))
    if not passed:
        return {}
    smallest = min(len(values) for values in passed.values())
    return {k: sum(pass_at_k(len(values), sum(values), k) for values in passed.values()) / len(passed) for k in harbor_ks(smallest)}


def harbor_ks(smallest: int) -> tuple[int, ...]:
    """Powers of two and multiples of five up to the smallest number of attempts, without 1."""
    powers = {1 << exponent for exponent in range(1, smallest.bit_length())}
    return tuple(sorted(k for k in powers | set(range(5, smallest + 1, 5)) if k <= smallest))


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass rate of {c} out of {n} at k = {k}: needs 0 <= c <= n and 1 <= k <= n")
