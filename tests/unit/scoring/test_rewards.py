"""From reward mappings to outputs, coverage and diagnostics: the worked examples of the sources."""

from __future__ import annotations

import math
from typing import Any

import pytest

from seatrial.scoring.observations import Observation, Output
from seatrial.scoring.ranges import RangeScore
from seatrial.scoring.rewards import Diagnostic, Parsed, Trial, choose_primary, key_rejection, parse_rewards, reward_outputs
from seatrial.scoring.summary import build_summary
from seatrial.scoring.views import InvalidView, Signal, View, check_view, reduce, view_scores


def scored(name: str, task: str = "t", error: str | None = None, **rewards: float) -> Trial:
    return Trial(name, task, "scored", rewards, error)


def errored(name: str, task: str = "t", error: str = "VerifierTimeoutError") -> Trial:
    return Trial(name, task, "errored", None, error)


def summary_of(*trials: Trial, reward_key: str | None = None, **options: Any) -> dict[str, Any]:
    tasks = list(dict.fromkeys(trial.task for trial in trials))
    return build_summary(trials, reward_outputs(trials, reward_key), tasks=tasks, **options)


def brief(summary: dict[str, Any]) -> dict[str, tuple[float | None, int, int]]:
    return {item["name"]: (item["mean"], item["count"], item["nan_count"]) for item in summary["scores"]}


@pytest.mark.conforms("N-203")
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("reward", None),
        ("a" * 255, None),
        ("x.pass@", None),
        ("", "invalid_key"),
        ("a" * 256, "invalid_key"),
        ("a\nb", "invalid_key"),
        ("a\x7f", "invalid_key"),
        ("a\x85", "invalid_key"),
        ("a\ud800", "invalid_key"),
        (7, "invalid_key"),
        ("reward.pass@3", "reserved_key"),
        ("reward.pass^3", "reserved_key"),
    ],
)
def test_which_keys_may_name_a_reward(key: object, reason: str | None) -> None:
    assert key_rejection(key) == reason


@pytest.mark.conforms("N-123", "N-124")
def test_each_entry_of_a_mapping_is_judged_on_its_own() -> None:
    mapping = {"ok": 1, "text": "1.25", "flag": True, "none": None, "word": "pass", "nan": math.nan, "big": 10**400, "": 1, "a.pass@2": 1}
    assert parse_rewards(mapping) == Parsed(
        values={"ok": 1.0, "text": 1.25},
        rejected={"flag": "boolean", "none": "non_numeric", "word": "non_numeric", "nan": "non_finite", "big": "non_finite"},
        bad_keys=("invalid_key", "reserved_key"),
    )


@pytest.mark.conforms("N-132")
def test_oracle_on_one_task() -> None:
    assert brief(summary_of(scored("a", reward=1.0))) == {"harbor_reward.reward": (1.0, 1, 0), "harbor_reward.reward.pass@1": (1.0, 1, 0)}


@pytest.mark.conforms("N-130", "N-204")
def test_a_sparse_secondary_reward_is_a_gap_and_no_zero() -> None:
    summary = summary_of(scored("a", reward=1.0, format_ok=1.0), scored("b", reward=0.0))
    assert brief(summary) == {
        "harbor_reward.format_ok": (1.0, 1, 1),
        "harbor_reward.reward": (0.5, 2, 0),
        "harbor_reward.format_ok.pass@1": (1.0, 1, 0),
        "harbor_reward.format_ok.pass@2": (None, 0, 1),
        "harbor_reward.reward.pass@1": (0.5, 1, 0),
        "harbor_reward.reward.pass@2": (1.0, 1, 0),
    }
    assert summary["metric_coverage"] == {
        "harbor_reward": {
            "format_ok": {"total": 2, "scored": 1, "failed": 0, "missing": 1},
            "reward": {"total": 2, "scored": 2, "failed": 0, "missing": 0},
        }
    }
    assert summary["task_metric_values"] == {
        "t": {
            "harbor_reward.format_ok": [{"trial_id": "a", "value_type": "number", "value": 1.0}],
            "harbor_reward.reward": [
                {"trial_id": "a", "value_type": "number", "value": 1.0},
                {"trial_id": "b", "value_type": "number", "value": 0.0},
            ],
        }
    }
    assert [item["details"] for item in summary["diagnostics"]] == [{"output": "format_ok", "reason": "absent"}]


@pytest.mark.conforms("N-131")
def test_an_error_beside_a_valid_reward_changes_the_roll_up_and_not_the_score() -> None:
    summary = summary_of(scored("a", reward=1.0), scored("b", error="RuntimeError", reward=0.8))
    assert brief(summary) == {
        "harbor_reward.reward": (0.9, 2, 0),
        "harbor_reward.reward.pass@1": (0.5, 1, 0),
        "harbor_reward.reward.pass@2": (1.0, 1, 0),
    }
    assert (summary["error_trial_ids"], summary["error_count"]) == ({"RuntimeError": ["b"]}, 1)


@pytest.mark.conforms("N-120")
def test_the_primary_is_chosen_by_name_and_never_by_order() -> None:
    trials = [scored("a", alpha=0.1, reward=0.7, zeta=0.2)]
    assert choose_primary(trials, None) == "reward"
    assert choose_primary(trials, "zeta") == "zeta"
    assert [output.output for output in reward_outputs(trials, "zeta").outputs] == ["zeta", "alpha", "reward"]


@pytest.mark.conforms("N-121", "N-122")
def test_a_graded_trial_without_the_primary_counts_as_zero_with_a_diagnostic() -> None:
    rewards = reward_outputs([scored("a", reward=-2.5), scored("b", other=1.0)], None)
    assert rewards.outputs[0] == Output(
        "harbor_reward", "reward", "continuous", (Observation("t", "a", "observed", -2.5), Observation("t", "b", "observed", 0.0))
    )
    assert rewards.diagnostics[0] == Diagnostic("b", "Harbor reward 'reward' was not measured", {"output": "reward", "reason": "absent"})


@pytest.mark.conforms("N-122")
def test_a_default_key_that_nobody_reports_is_not_measured() -> None:
    rewards = reward_outputs([scored("a", x=1.0, y=0.0)], None)
    assert (rewards.primary, [output.output for output in rewards.outputs]) == (None, ["x", "y"])


@pytest.mark.conforms("N-127")
def test_a_secondary_of_one_task_is_not_expected_of_another() -> None:
    summary = summary_of(scored("a", "one", reward=1.0, extra=0.5), scored("b", "two", reward=1.0))
    assert brief(summary)["harbor_reward.extra"] == (0.5, 1, 0)
    assert summary["metric_coverage"]["harbor_reward"]["extra"] == {"total": 1, "scored": 1, "failed": 0, "missing": 0}


@pytest.mark.conforms("N-211", "H-139")
def test_infrastructure_errors_are_counted_beside_the_mean_and_zero_only_where_the_name_says_so() -> None:
    trials = [*(scored(f"s{i}", f"t{i}", reward=1.0) for i in range(7)), *(errored(f"e{i}", f"u{i}") for i in range(3))]
    summary = summary_of(*trials)
    assert brief(summary)["harbor_reward.reward"] == (1.0, 7, 3)
    assert summary["metric_coverage"]["harbor_reward"]["reward"] == {"total": 10, "scored": 7, "failed": 3, "missing": 0}
    assert summary["harbor_metrics"]["skip"]["mean"] == {"mean": 1.0}
    assert summary["harbor_metrics"]["zero"]["mean"] == {"mean": 0.7}
    assert summary["unscored_tasks"] == ["u0", "u1", "u2"]
    assert brief(summary)["harbor_reward.reward.pass@1"] == (1.0, 7, 3)


@pytest.mark.conforms("N-206")
def test_the_outcome_fails_only_when_trials_exist_and_none_is_scored() -> None:
    nothing = summary_of(errored("a"), errored("b"))["outcome"]
    assert nothing == {
        "unit": "trials",
        "total": 2,
        "errored": 2,
        "scored": 0,
        "failed": True,
        "message": "No usable scores across 2 trials (2 reported errors). See the job logs.",
    }
    assert summary_of()["outcome"]["failed"] is False
    mixed = summary_of(scored("a", reward=0.0), errored("b"))["outcome"]
    assert (mixed["failed"], mixed["message"]) == (False, "1 of 2 trials scored; 1 reported errors.")


def test_scores_by_category_name_their_denominators() -> None:
    labels = {"one": {"category": "math"}, "two": {"category": "code"}, "three": {"category": "math"}}
    summary = summary_of(
        scored("a", "one", reward=1.0),
        scored("b", "two", reward=0.0),
        errored("c", "three"),
        scored("d", "four", reward=1.0),
        labels=labels,
    )
    groups = summary["groups"]["category"]
    assert {
        value: {name: (item["mean"], item["count"], item["missing"]) for name, item in group.items()} for value, group in groups.items()
    } == {
        "code": {"harbor_reward.reward": (0.0, 1, 0)},
        "math": {"harbor_reward.reward": (1.0, 1, 1)},
    }


@pytest.mark.conforms("N-205")
@pytest.mark.parametrize(
    ("reducer", "expected"), [("single", 0.25), ("all", 0.25), ("any", 1.0), ("mean", 0.625), ("weighted_mean", 0.4375)]
)
def test_the_five_reducers(reducer: Any, expected: float) -> None:
    view = View(reducer, (Signal("m", "a", 3.0), Signal("m", "b")))
    assert reduce(view, [0.25, True]) == expected


@pytest.mark.conforms("N-205")
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, "good"])
@pytest.mark.parametrize("reducer", ["single", "all", "any", "mean", "weighted_mean"])
def test_one_unusable_signal_voids_the_row(reducer: Any, bad: Any) -> None:
    assert reduce(View(reducer, (Signal("m", "a"), Signal("m", "b"))), [1.0, bad]) is None


@pytest.mark.conforms("N-205")
def test_weights_that_add_up_to_zero_give_no_value() -> None:
    assert reduce(View("weighted_mean", (Signal("m", "a", 1.0), Signal("m", "b", -1.0))), [1.0, 0.5]) is None


@pytest.mark.conforms("N-205")
def test_a_view_is_reduced_per_trial_and_aggregated_over_the_tasks_that_declare_it() -> None:
    trials = [scored("a", "one", reward=1.0), scored("b", "one", reward=0.0), scored("c", "two", reward=1.0), errored("d", "one")]
    match = Output(
        "exact-match",
        "exact-match",
        "continuous",
        (Observation("one", "a", "observed", 0.5), Observation("one", "b", "missing", None), Observation("one", "d", "unscored", None)),
    )
    view = View("mean", (Signal("harbor_reward", "reward"), Signal("exact-match", "exact-match")))
    (found,) = view_scores({"one": {"quality": view}}, [*reward_outputs(trials, None).outputs, match])
    assert (found.name, found.mean, found.count, found.nan_count) == ("view.quality", 0.75, 1, 2)
    assert isinstance(found, RangeScore)


def test_a_view_of_something_undeclared_is_refused_by_name() -> None:
    declared = {"harbor_reward": ["reward"]}
    check_view("quality", View("single", (Signal("harbor_reward", "reward"),)), declared)
    with pytest.raises(InvalidView, match="view 'quality' references unknown metric 'nope'"):
        check_view("quality", View("single", (Signal("nope", "x"),)), declared)
    with pytest.raises(InvalidView, match="view 'quality' references unknown output 'style' for metric 'harbor_reward'"):
        check_view("quality", View("single", (Signal("harbor_reward", "style"),)), declared)


@pytest.mark.parametrize("reducer", ["mean", "weighted_mean"])
def test_a_view_beyond_any_float_is_not_measured(reducer: Any) -> None:
    view = View(reducer, (Signal("m", "a", 1.0), Signal("m", "b", 1.0)))
    assert reduce(view, [1.7e308, 1.7e308]) is None
