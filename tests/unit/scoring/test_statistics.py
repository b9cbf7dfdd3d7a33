"""Range scores, percentiles, pass rates and intervals against independent formulas."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time

import pytest

from seatrial.scoring.intervals import beta_cdf, clopper_pearson, mean_interval, t_cdf, t_quantile
from seatrial.scoring.passes import pass_at_k, pass_hat_k, pass_rates, task_counts
from seatrial.scoring.ranges import RangeScore, percentile, range_score


@pytest.mark.conforms("N-204")
def test_a_range_of_nothing_has_no_statistic() -> None:
    assert range_score("x", [], observations=3) == RangeScore("x", count=0, nan_count=3)
    assert range_score("x", [math.nan, math.inf], observations=2) == RangeScore("x", count=0, nan_count=2)
    assert range_score("x", [], observations=1).raw()["mean"] is None


@pytest.mark.conforms("N-204")
def test_a_single_value_has_no_sample_variance() -> None:
    score = range_score("x", [0.5], observations=1)
    assert (score.variance, score.std_dev, score.sample_variance, score.sample_std_dev) == (0.0, 0.0, None, None)
    assert score.percentiles == (0.5,) * 10


@pytest.mark.conforms("N-204")
def test_percentiles_sit_at_p_of_n_plus_one_and_are_clamped() -> None:
    ordered = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(ordered, p) for p in (10, 20, 40, 50, 70, 80, 100)] == pytest.approx([1.0, 1.0, 2.0, 2.5, 3.5, 4.0, 4.0])


@pytest.mark.conforms("N-204")
def test_ranges_agree_with_the_statistics_module_over_ten_thousand_cases() -> None:
    rng = random.Random(7)
    pool = (0.0, 1.0, 0.5, -3.25, 1e9, math.nan, math.inf)
    for _ in range(10_000):
        values = [rng.choice(pool) if rng.random() < 0.7 else rng.gauss(0, 10) for _ in range(rng.randint(0, 12))]
        finite = [value for value in values if math.isfinite(value)]
        score = range_score("x", values, observations=len(values) + 1)
        assert (score.count, score.nan_count) == (len(finite), len(values) + 1 - len(finite))
        if not finite:
            assert score.mean is None
            continue
        assert score.mean == pytest.approx(statistics.fmean(finite), rel=1e-12, abs=1e-9)
        assert score.sum == pytest.approx(math.fsum(finite), rel=1e-12, abs=1e-9)
        assert (score.min, score.max) == (min(finite), max(finite))
        assert score.median == pytest.approx(statistics.median(finite), rel=1e-12, abs=1e-9)
        assert score.variance == pytest.approx(statistics.pvariance(finite), rel=1e-9, abs=1e-9)
        if len(finite) > 1:
            assert score.sample_variance == pytest.approx(statistics.variance(finite), rel=1e-9, abs=1e-9)
            deciles = statistics.quantiles(finite, n=10, method="exclusive") if len(finite) > 9 else None
            if deciles is not None and score.percentiles is not None:
                assert score.percentiles[:9] == pytest.approx(deciles, rel=1e-9, abs=1e-9)


def test_a_sum_beyond_a_float_is_no_number() -> None:
    score = range_score("x", [1e308, 1e308], observations=2)
    assert (score.sum, score.mean, score.max) == (None, None, 1e308)


@pytest.mark.conforms("H-138", "N-204")
def test_pass_rates_equal_binomial_coefficients() -> None:
    for n in range(1, 13):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)
            assert pass_hat_k(n, c, k) == pytest.approx(math.comb(c, k) / math.comb(n, k), abs=1e-12)
        rates = list(pass_rates([(n, c) for c in range(n + 1)], max_k=n + 1))
        for k, at, hat in rates[:-1]:
            assert at == pytest.approx([pass_at_k(n, c, k) for c in range(n + 1)], abs=1e-12)
            assert hat == pytest.approx([pass_hat_k(n, c, k) for c in range(n + 1)], abs=1e-12)
        assert rates[-1] == (n + 1, [], [])


@pytest.mark.conforms("H-138")
def test_fewer_failures_than_k_is_certain() -> None:
    assert (pass_at_k(5, 4, 2), pass_at_k(5, 0, 5), pass_at_k(5, 5, 1)) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (2, 3, 1), (2, 1, 3), (2, 1, 0)])
def test_an_impossible_pass_rate_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass rate of"):
        pass_at_k(n, c, k)


def test_a_trial_passes_at_one() -> None:
    assert task_counts([("a", 1.0), ("a", 0.999), ("a", 2.5), ("b", 0.0)]) == {"a": (3, 2), "b": (1, 0)}


def test_students_t_and_the_beta_function_have_their_known_values() -> None:
    assert t_quantile(0.975, 1) == pytest.approx(12.7062047361747, rel=1e-9)
    assert t_quantile(0.975, 10) == pytest.approx(2.22813885198627, rel=1e-9)
    assert t_quantile(0.975, 1e6) == pytest.approx(1.95996636817, rel=1e-6)
    assert t_cdf(-2.0, 5) == pytest.approx(0.0509697394149, rel=1e-9)
    assert beta_cdf(0.3, 2, 3) == pytest.approx(0.3483, rel=1e-12)


def test_the_exact_interval_has_the_promised_tails() -> None:
    def upper_tail(n: int, x: int, p: float) -> float:
        return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(x, n + 1))

    for n, x in ((10, 3), (25, 24), (50, 1)):
        low, high, method, level = clopper_pearson(x, n)
        assert (method, level) == ("clopper-pearson", 0.95)
        assert upper_tail(n, x, low) == pytest.approx(0.025, rel=1e-6)
        assert 1 - upper_tail(n, x + 1, high) == pytest.approx(0.025, rel=1e-6)
    assert clopper_pearson(0, 4).low == 0.0
    assert clopper_pearson(4, 4).high == 1.0


def test_the_method_of_an_interval_follows_the_design() -> None:
    assert mean_interval([("a", 1.0), ("b", 0.0)]) == clopper_pearson(1, 2)
    assert mean_interval([("a", 1.0), ("a", 0.0)]) is None
    found = mean_interval([("a", 0.2), ("b", 0.4), ("c", 0.9)])
    expected = statistics.stdev([0.2, 0.4, 0.9]) / math.sqrt(3) * t_quantile(0.975, 2)
    assert found is not None
    assert found[:2] == pytest.approx((0.5 - expected, 0.5 + expected))
    assert found.method == "student-t-by-task"


def test_intervals_by_task_cover_the_truth_about_as_often_as_they_say() -> None:
    rng, covered = random.Random(3), 0
    for _ in range(400):
        values = []
        for task in range(30):
            skill = rng.random()
            values += [(str(task), float(rng.random() < skill)) for _ in range(4)]
        interval = mean_interval(values)
        assert interval is not None
        covered += interval.low <= 0.5 <= interval.high
    assert 0.91 <= covered / 400 <= 0.99


def test_repeating_attempts_does_not_make_an_interval_narrower() -> None:
    once = mean_interval([(str(task), task / 10) for task in range(11)])
    often = mean_interval([(str(task), task / 10) for task in range(11) for _ in range(50)])
    assert once is not None
    assert often is not None
    assert often.high - often.low == pytest.approx(once.high - once.low)


def test_a_pass_curve_of_a_thousand_attempts_is_quick() -> None:
    started = time.process_time()
    rates = list(pass_rates([(1000, 400)] * 10, max_k=1000))
    assert time.process_time() - started < 1
    assert len(rates) == 1000
