"""10,000 random jobs against numpy: every statistic of the rewards, whatever the verifiers reported and whatever is missing.

The oracle knows nothing of the code under test: it fills a table of trials by keys with numbers and NaN, by the rules of nemo.md 19 and 23,
and lets numpy do the arithmetic. pass@k is counted over all subsets instead of by a formula.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from seatrial.core.rows import Row
from seatrial.core.scores import MetricRule, as_trials, summarise
from seatrial.scoring.ranges import range_score
from seatrial.scoring.rewards import reward_outputs
from tests.builders import make_row

CASES = 10_000
KEYS = ("reward", "style", "format_ok")
NUMBERS = (0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 2, -1.5, 1e-9, 1e6)
ODD: tuple[Any, ...] = (math.nan, math.inf, -math.inf, True, False, "1.25", "no", None)


def random_job(rng: random.Random, odd: float) -> tuple[list[Row], dict[str, str]]:
    """Up to three tasks of up to four attempts: scored, errored, cancelled; ties are frequent, odd values are there."""
    rows, tasks = [], {}
    keys = rng.sample(KEYS, rng.randint(1, 3))
    for task in range(rng.randint(0, 3)):
        for attempt in range(rng.randint(1, 4)):
            name = f"t{task}__{attempt}"
            tasks[name] = f"t{task}"
            outcome: Any = rng.choices(("scored", "errored", "cancelled"), (8, 2, 1))[0]
            values = {key: rng.choice(ODD) if rng.random() < odd else rng.choice(NUMBERS) for key in keys if rng.random() < 0.85}
            rows.append(make_row(name, outcome=outcome, rewards=values if outcome == "scored" or rng.random() < 0.3 else None))
    return rows, tasks


def expected(rows: list[Row], tasks: dict[str, str], reward_key: str | None) -> dict[str, tuple[float | None, int, int]]:
    """name -> value, count, missing."""
    scored = [row for row in rows if row.outcome == "scored" and row.rewards]
    if not scored:
        return {}
    numbers = [{key: as_number(value) for key, value in (row.rewards or {}).items()} for row in scored]
    reported = {key for row in numbers for key in row}
    primary = reward_key or ("reward" if "reward" in reported else next(iter(reported)) if len(reported) == 1 else None)
    found: dict[str, tuple[float | None, int, int]] = {}
    for key in reported | ({primary} if primary is not None else set()):
        of_key = {tasks[row.trial] for row, values in zip(scored, numbers, strict=True) if key in values}
        cells = []
        for row in rows:
            if key != primary and tasks[row.trial] not in of_key:
                continue
            value = math.nan
            if row in scored:
                value = numbers[scored.index(row)].get(key, math.nan)
                value = 0.0 if key == primary and math.isnan(value) else value
            cells.append((tasks[row.trial], value))
        column = np.array([value for _, value in cells])
        good = column[~np.isnan(column)]
        for name, function in (("mean", np.mean), ("sum", np.sum), ("min", np.min), ("max", np.max)):
            found[f"{key}.{name}"] = (float(function(good)) if len(good) else None, len(good), len(column) - len(good))
        found.update(passes(key, cells))
    return found


def as_number(value: Any) -> float:
    """NaN for what is no reward."""
    if value is None or isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def passes(key: str, cells: list[tuple[str, float]]) -> dict[str, tuple[float | None, int, int]]:
    """pass@k and pass^k by counting subsets of attempts."""
    by_task: dict[str, list[float]] = {}
    for task, value in cells:
        by_task.setdefault(task, []).append(value)
    found: dict[str, tuple[float | None, int, int]] = {}
    for k in range(1, max(map(len, by_task.values())) + 1):
        groups = [[value >= 1.0 for value in values if not math.isnan(value)] for values in by_task.values()]
        groups = [group for group in groups if len(group) >= k]
        for name, rule in ((f"{key}.pass@{k}", any), (f"{key}.pass^{k}", all)):
            if k == 1 and "^" in name:
                continue
            rates = [np.mean([rule(subset) for subset in itertools.combinations(group, k)]) for group in groups]
            found[name] = (float(np.mean(rates)) if rates else None, len(groups), len(by_task) - len(groups))
    return found


def through_outputs(rows: list[Row], tasks: dict[str, str], reward_key: str | None) -> dict[str, tuple[float | None, int, int]]:
    """The same from the outputs of the reward metric, which take odd values as they come."""
    found: dict[str, tuple[float | None, int, int]] = {}
    for output in reward_outputs(as_trials(rows, tasks), reward_key).outputs:
        score = output.range()
        for name in ("mean", "sum", "min", "max"):
            found[f"{output.output}.{name}"] = (getattr(score, name), score.count, score.nan_count)
        total = len(output.tasks())
        for k, at, hat in output.passes():
            for name, rates in ((f"pass@{k}", at), (f"pass^{k}", hat)):
                if k > 1 or "@" in name:
                    found[f"{output.output}.{name}"] = (math.fsum(rates) / len(rates) if rates else None, len(rates), total - len(rates))
    return found


def through_summary(rows: list[Row], tasks: dict[str, str], reward_key: str | None) -> dict[str, tuple[float | None, int, int]]:
    """The same from the scores of a job; rows of the operator hold finite numbers only."""
    scores = summarise(rows, reward_key=reward_key, metrics=RULES, tasks=tasks).scores
    return {score.name: (score.value, score.count, score.missing) for score in scores if not score.name.endswith(".zero")}


RULES = (MetricRule("mean"), MetricRule("sum"), MetricRule("min"), MetricRule("max"))


@pytest.mark.conforms("N-122", "N-124", "N-127", "N-204", "N-211")
@pytest.mark.parametrize(("through", "odd"), [(through_outputs, 0.15), (through_summary, 0.0)], ids=["odd values", "as the operator"])
def test_every_aggregate_of_ten_thousand_random_jobs_is_numpys(through: Any, odd: float) -> None:
    rng, compared = random.Random(20261130), 0
    seen: set[tuple[object, ...]] = set()
    for number in range(CASES):
        rows, tasks = random_job(rng, odd)
        key = rng.choice((None, None, "reward", "style"))
        ours, wanted = through(rows, tasks, key), expected(rows, tasks, key)
        assert set(ours) == set(wanted), (number, rows)
        for name, (value, count, missing) in wanted.items():
            assert ours[name][1:] == (count, missing), (number, name, rows)
            same = ours[name][0] is None if value is None else math.isclose(ours[name][0], value, rel_tol=1e-12, abs_tol=1e-12)
            assert same, (number, name, ours[name], value, rows)
            compared += 1
            seen.add((value is None, missing > 0, count > 1))
        seen.add(("nothing", not wanted))
    assert compared > 10 * CASES
    # Nothing measured, gaps, single values and jobs without any score all came up.
    assert {(True, True, False), (False, True, False), (False, True, True), (False, False, True), ("nothing", True)} <= seen


def test_percentiles_and_variances_of_ten_thousand_random_lists_are_numpys() -> None:
    rng = random.Random(7)
    for _ in range(CASES):
        values = [rng.choice(NUMBERS) if rng.random() < 0.7 else rng.gauss(0, 10) for _ in range(rng.randint(1, 12))]
        found, column = range_score("x", values, observations=len(values)), np.array(values)
        percents = [*range(10, 101, 10)]
        assert found.percentiles is not None
        assert np.allclose(found.percentiles, np.percentile(column, percents, method="weibull"), rtol=1e-9, atol=1e-12)
        ours, numpys = [found.variance, found.std_dev], [np.var(column), np.std(column)]
        if len(values) > 1:
            ours += [found.sample_variance, found.sample_std_dev]
            numpys += [np.var(column, ddof=1), np.std(column, ddof=1)]
        assert np.allclose(np.array(ours, dtype=float), numpys, rtol=1e-9, atol=1e-12)
