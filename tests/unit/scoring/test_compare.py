from __future__ import annotations

import json
import math
import random
import sys

import pytest

from seatrial.scoring.compare import Comparison, TaskDifference, binomial_two_sided, compare, fisher, holm, sign_flip, task_p_value


def test_the_largest_regression_comes_first() -> None:
    found = compare(
        ("old", {"a": [1.0], "b": [1.0], "c": [0.0], "gone": [1.0], "empty": []}),
        ("new", {"a": [1.0], "b": [0.0], "c": [0.5], "fresh": [1.0]}),
    )
    assert found == Comparison(
        "old",
        "new",
        (
            TaskDifference("b", 1.0, 0.0, -1.0, (1, 1), None, False),
            TaskDifference("a", 1.0, 1.0, 0.0, (1, 1), None, False),
            TaskDifference("c", 0.0, 0.5, 0.5, (1, 1), None, False),
        ),
        pytest.approx(-1 / 6),  # type: ignore[arg-type]
        found.interval,
        1.0,
        "sign-flip-exact",
        "same",
        ("gone",),
        ("fresh",),
    )
    assert found.interval is not None
    assert [item.task for item in found.regressions] == ["b"]


def test_nothing_in_common_is_no_difference_at_all() -> None:
    found = compare(("old", {"a": [1.0]}), ("new", {"b": [1.0]}))
    assert (found.mean_difference, found.p_value, found.verdict) == (None, None, "same")


def test_equal_jobs_are_the_same() -> None:
    values = {str(task): [float(task % 2)] for task in range(20)}
    found = compare(("old", values), ("new", values))
    assert (found.p_value, found.mean_difference, found.verdict) == (1.0, 0.0, "same")


def test_tests_have_their_known_values() -> None:
    assert binomial_two_sided(0, 10) == pytest.approx(2 / 1024)
    assert binomial_two_sided(5, 10) == 1.0
    assert fisher(1, 10, 9, 10) == pytest.approx(2 * (10 * 10 + 1) / math.comb(20, 10))
    assert fisher(8, 10, 1, 6) == pytest.approx(0.0349650, rel=1e-4)
    assert task_p_value([1.0], [0.0]) is None
    assert task_p_value([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(0.021311641)
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]


def test_the_sampled_test_agrees_with_the_exact_one() -> None:
    rng = random.Random(11)
    for _ in range(5):
        differences = [rng.gauss(0.4, 1) for _ in range(12)]
        exact, method = sign_flip(differences)
        sampled, other = sign_flip([*differences, 1e-9])
        assert (method, other) == ("sign-flip-exact", "sign-flip")
        assert exact is not None
        assert sampled is not None
        assert abs(exact - sampled) < 4 * math.sqrt(exact * (1 - exact) / 9_999) + 2e-4


def jobs(rng: random.Random, *, tasks: int, attempts: int, drop: dict[int, float]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Two jobs over the same tasks; ``drop`` lowers the second one's chance at a task."""
    old, new = {}, {}
    for task in range(tasks):
        skill = rng.random()
        old[f"t{task}"] = [float(rng.random() < skill) for _ in range(attempts)]
        new[f"t{task}"] = [float(rng.random() < skill - drop.get(task, 0)) for _ in range(attempts)]
    return old, new


@pytest.mark.parametrize("attempts", [1, 4])
def test_at_most_one_in_twenty_null_pairs_raises_an_alarm(attempts: int) -> None:
    rng, alarms, pairs = random.Random(2026), 0, 1000
    for _ in range(pairs):
        old, new = jobs(rng, tasks=12, attempts=attempts, drop={})
        found = compare(("old", old), ("new", new))
        alarms += found.verdict == "worse" or any(item.significant and item.difference < 0 for item in found.tasks)
    assert alarms <= pairs * 0.05


def test_a_planted_regression_is_found_and_listed_first() -> None:
    rng = random.Random(5)
    found_general = found_first = 0
    for _ in range(20):
        old, new = jobs(rng, tasks=60, attempts=4, drop=dict.fromkeys(range(60), 0.3))
        found_general += compare(("old", old), ("new", new)).verdict == "worse"
        old, new = jobs(rng, tasks=20, attempts=12, drop={})
        old["t7"], new["t7"] = [1.0] * 12, [0.0] * 12
        worst = compare(("old", old), ("new", new)).tasks[0]
        found_first += worst.task == "t7" and worst.significant
    assert (found_general, found_first) == (20, 20)


LARGEST = 1.7e308


def test_rewards_at_the_end_of_what_a_float_holds_are_compared_like_any_others() -> None:
    small = {f"t{number}": [float(number % 3), 1.0, 0.0] for number in range(20)}
    moved = {task: [value + 1.0 for value in values] for task, values in small.items()}
    unit = LARGEST / 3.0
    large, far = ({task: [value * unit for value in values] for task, values in side.items()} for side in (small, moved))
    ordinary, huge = compare(("a", small), ("b", moved)), compare(("a", large), ("b", far))
    assert (huge.verdict, huge.p_value, huge.method) == (ordinary.verdict, ordinary.p_value, ordinary.method)
    assert huge.mean_difference == pytest.approx(unit)
    opposite = compare(("a", {"t": [LARGEST], "u": [LARGEST]}), ("b", {"t": [-LARGEST], "u": [-LARGEST]}))
    assert [item.difference for item in opposite.tasks] == [-sys.float_info.max] * 2
    json.dumps(opposite.raw(), allow_nan=False)
