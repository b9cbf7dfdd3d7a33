from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.core.rows import Row
from seatrial.core.scores import Coverage, MetricRule, Score, Summary, aggregate, column_text, decimal_text, summarise
from tests.builders import make_row


def rows(*rewards: dict[str, float] | None) -> list[Row]:
    """One row each; None is an errored trial."""
    return [
        make_row(f"t{number}", outcome="scored" if value is not None else "errored", rewards=value) for number, value in enumerate(rewards)
    ]


def measured(summary: Summary) -> tuple[Score, ...]:
    """The scores over what was measured, without the zero-filled ones and the pass rates."""
    return tuple(score for score in summary.scores if not score.name.endswith(".zero") and ".pass" not in score.name)


@pytest.mark.conforms("H-133", "H-139", "N-211")
def test_an_errored_trial_is_neither_zero_nor_in_the_mean() -> None:
    summary = summarise(rows({"reward": 1.0}, {"reward": 0.0}, None), reward_key=None)
    assert summary.scores == (
        Score("reward.mean", 0.5, 2, 1),
        Score("reward.mean.zero", 1 / 3, 3, 0),
        Score("reward.pass@1", 0.5, 1, 0),
        Score("reward.pass@2", 1.0, 1, 0),
        Score("reward.pass^2", 0.0, 1, 0),
        Score("reward.pass@3", None, 0, 1),
        Score("reward.pass^3", None, 0, 1),
    )
    assert summary.coverage == (Coverage("reward", total=3, scored=2, failed=1, missing=0),)
    assert summary.primary == "reward"


@pytest.mark.conforms("H-133")
def test_nothing_scored_is_no_score_at_all() -> None:
    for given_rows in ([], rows(None, None)):
        for key in (None, "reward"):
            assert summarise(given_rows, reward_key=key).scores == ()


def test_a_reward_beside_an_invalid_error_does_not_count() -> None:
    assert summarise([make_row(outcome="errored", rewards={"reward": 1.0})], reward_key=None).scores == ()


def test_a_graded_trial_without_the_primary_counts_as_zero_once_the_key_is_known() -> None:
    given_rows = rows({"reward": 1.0, "format": 1.0}, {"format": 0.5})
    summary = summarise(given_rows, reward_key=None)
    assert measured(summary) == (Score("reward.mean", 0.5, 2, 0), Score("format.mean", 0.75, 2, 0))


def test_a_named_key_that_nobody_reports_is_zero_for_every_graded_trial() -> None:
    summary = summarise(rows({"format": 1.0}, None), reward_key="quality")
    assert measured(summary) == (Score("quality.mean", 0.0, 1, 1), Score("format.mean", 1.0, 1, 1))


def test_the_default_key_that_nobody_reports_is_not_measured() -> None:
    summary = summarise(rows({"a": 1.0, "b": 0.0}), reward_key=None)
    assert [score.name for score in measured(summary)] == ["a.mean", "b.mean"]
    assert summary.primary is None


def test_a_single_key_of_another_name_is_the_primary() -> None:
    assert summarise(rows({"accuracy": 0.25}), reward_key=None).primary == "accuracy"


def test_a_secondary_key_that_is_missing_is_named_and_left_out() -> None:
    summary = summarise(rows({"reward": 1.0, "format_ok": 1.0}, {"reward": 0.0}), reward_key=None)
    assert measured(summary)[1] == Score("format_ok.mean", 1.0, 1, 1)
    assert summary.coverage[1] == Coverage("format_ok", total=2, scored=1, failed=0, missing=1)


@pytest.mark.conforms("H-132", "H-135")
def test_harbors_table_of_metrics() -> None:
    every = [MetricRule(kind, zero_missing=True) for kind in ("mean", "sum", "min", "max")]
    one = summarise(rows({"reward": 1.0}, {"reward": 0.0}, {"reward": -1.0}), reward_key=None, metrics=every)
    assert [(score.name, score.value) for score in one.scores if score.name.endswith(".zero")] == [
        ("reward.mean.zero", 0.0),
        ("reward.sum.zero", 0.0),
        ("reward.min.zero", -1.0),
        ("reward.max.zero", 1.0),
    ]
    two = summarise(rows({"a": 1.0, "b": 2.0}, {"a": 3.0}), reward_key=None, metrics=[MetricRule("mean", zero_missing=True)])
    zeros = [(score.name, score.value) for score in two.scores if score.name.endswith(".zero")]
    assert zeros == [("a.mean.zero", 2.0), ("b.mean.zero", 1.0)]


def test_the_aggregate_of_nothing_is_nothing() -> None:
    assert [aggregate([], kind) for kind in ("mean", "sum", "min", "max")] == [None] * 4


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.randoms())
def test_the_order_in_which_trials_end_does_not_change_the_mean(values: list[float], random: object) -> None:
    mixed = list(values)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert aggregate(values, "mean") == aggregate(mixed, "mean")


@given(st.lists(st.one_of(st.none(), st.dictionaries(st.sampled_from("abc"), st.floats(-10, 10), max_size=3)), max_size=20))
def test_coverage_adds_up(rewards: list[dict[str, float] | None]) -> None:
    summary = summarise(rows(*rewards), reward_key="a")
    for item in summary.coverage:
        assert item.total == len(rewards) == item.scored + item.failed + item.missing
    for score in measured(summary):
        assert score.count + score.missing == len(rewards)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.5, "0.5"), (1 / 3, "0.333333333333"), (0.0, "0"), (-0.0, "0"), (1e30, "1e+30"), (-2.25, "-2.25"), (1e-9, "1e-09")],
)
def test_numbers_as_text(value: float, text: str) -> None:
    assert decimal_text(value) == text
    assert len(decimal_text(value)) <= 32


def test_the_column_has_three_decimals() -> None:
    assert [column_text(value) for value in (1.0, 2 / 3, 1.5e12)] == ["1.000", "0.667", "1.5e+12"]
