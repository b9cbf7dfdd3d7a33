"""Harbor's arithmetic: tables of its documents, and answers of its own code (``harbor_scores.py``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seatrial.harbor_errors import error_policy
from seatrial.scoring.harbor import EvalGroup, all_rows, eval_stats, harbor_metric, job_stats, metric_order, valid_rows
from seatrial.scoring.passes import harbor_ks, harbor_pass_at_k
from seatrial.scoring.rewards import Trial

VECTORS: Mapping[str, Any] = json.loads((Path(__file__).with_name("data") / "harbor_scores.json").read_text())
NO_USAGE: dict[str, float | None] = {}


def trial(name: str, task: str, rewards: dict[str, float] | None, error: str | None = None) -> Trial:
    valid = bool(rewards) and (error is None or error_policy(error, {}).valid)
    state = "cancelled" if error == "CancelledError" else "scored" if valid else "errored"
    return Trial(name, task, state, rewards if valid else None, error)  # type: ignore[arg-type]


@pytest.mark.conforms("H-132", "H-135", "N-157", "N-158", "N-159")
@pytest.mark.parametrize(
    ("rows", "kind", "expected"),
    [
        ([{"reward": 1}, {"reward": 0}, None], "mean", {"mean": 1 / 3}),
        ([{"a": 1, "b": 2}, {"a": 3}], "mean", {"a": 2, "b": 1}),
        ([{"x": 1}, {"y": 3}], "mean", {"x": 0.5, "y": 1.5}),
        ([{"a": -1}, None], "max", {"max": 0}),
        ([{"reward": 1}, {"reward": 0}, None, {"reward": 0}], "mean", {"mean": 0.25}),
        (
            [{"correctness": 1, "style": 0.5}, {"correctness": 0, "style": 1}, None, {"correctness": 1, "style": 0.5}],
            "mean",
            {"correctness": 0.5, "style": 0.5},
        ),
        ([{"correctness": 1}, {"style": 1}, {}, None], "mean", {"correctness": 0.25, "style": 0.25}),
    ],
)
def test_the_examples_of_the_documents(rows: list[dict[str, float] | None], kind: str, expected: dict[str, float]) -> None:
    assert harbor_metric(rows, kind) == expected


@pytest.mark.parametrize("kind", ["mean", "sum", "min", "max"])
def test_an_aggregate_of_no_rows_is_an_error(kind: str) -> None:
    with pytest.raises(ValueError, match=f"the {kind} of no rows"):
        harbor_metric([], kind)


@pytest.mark.conforms("H-132", "H-135")
def test_metrics_agree_with_harbors_code() -> None:
    for case in VECTORS["lists"]:
        assert {kind: harbor_metric(case["rows"], kind) for kind in case["metrics"]} == {
            kind: pytest.approx(values, rel=1e-12) for kind, values in case["metrics"].items()
        }
    assert len(VECTORS["lists"]) == 150


@pytest.mark.conforms("H-124", "H-126", "H-133", "H-137")
@pytest.mark.parametrize("case", VECTORS["jobs"], ids=str)
def test_statistics_of_a_job_agree_with_harbors_code(case: dict[str, Any]) -> None:
    trials = [
        trial(f"{item['task']}__{number:07x}", item["task"], item["rewards"], item["error"]) for number, item in enumerate(case["trials"])
    ]
    assert [item.is_scoreable for item in trials] == case["valid"]
    ours = job_stats([EvalGroup("oracle", None, "ds", tuple(trials))], total=len(trials), retries=0, usage=NO_USAGE)
    assert plain(ours) == plain(case["stats"])


def plain(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Equal values written alike: the text of reward values, and numbers to twelve digits."""
    copy: dict[str, Any] = json.loads(json.dumps(stats), parse_float=lambda text: round(float(text), 12))
    for group in copy["evals"].values():
        group["metrics"] = [{name: round(float(value), 12) for name, value in item.items()} for item in group["metrics"]]
        group["pass_at_k"] = {k: round(float(value), 12) for k, value in group["pass_at_k"].items()}
        group["reward_stats"] = {
            key: {float(value): names for value, names in values.items()} for key, values in group["reward_stats"].items()
        }
    return copy


@pytest.mark.conforms("H-124", "H-137")
def test_the_example_of_three_tasks_with_two_attempts() -> None:
    missing = "RewardFileNotFoundError"
    trials = [
        trial("t1__009df9d", "t1", {"reward": 0.0}),
        trial("t1__2dd7f5c", "t1", {"reward": 0.0}),
        trial("t2__eb4b759", "t2", {"reward": 1.0}),
        trial("t2__878de05", "t2", {"reward": 1.0}),
        trial("t3__77464ca", "t3", None, missing),
        trial("t3__712d41c", "t3", None, missing),
    ]
    assert job_stats([EvalGroup("oracle", None, "ds", tuple(trials))], total=6, retries=0, usage=NO_USAGE) == {
        "n_completed_trials": 6,
        "n_errored_trials": 2,
        "n_running_trials": 0,
        "n_pending_trials": 0,
        "n_cancelled_trials": 0,
        "n_retries": 0,
        "evals": {
            "oracle__ds": {
                "n_trials": 4,
                "n_errors": 2,
                "metrics": [{"mean": 0.5}],
                "pass_at_k": {"2": 0.5},
                "reward_stats": {"reward": {"0.0": ["t1__009df9d", "t1__2dd7f5c"], "1.0": ["t2__eb4b759", "t2__878de05"]}},
                "exception_stats": {missing: ["t3__77464ca", "t3__712d41c"]},
            }
        },
        "n_input_tokens": None,
        "n_cache_tokens": None,
        "n_output_tokens": None,
        "cost_usd": None,
    }
    assert harbor_metric(all_rows(trials), "mean") == {"mean": pytest.approx(1 / 3)}


@pytest.mark.conforms("H-133")
def test_without_a_valid_trial_no_metric_is_computed() -> None:
    stats = eval_stats([trial("a", "t", None, "RewardFileNotFoundError"), trial("b", "t", {})])
    assert (stats["n_trials"], stats["n_errors"], stats["metrics"], stats["pass_at_k"]) == (0, 1, [], {})


@pytest.mark.conforms("H-131")
def test_a_dataset_name_with_double_underscores_keeps_its_metrics() -> None:
    group = EvalGroup("claude-code", "opus", "my__set", (trial("a", "t", {"reward": 1.0}),))
    assert job_stats([group], total=1, retries=0, usage=NO_USAGE)["evals"]["claude-code__opus__my__set"]["metrics"] == [{"mean": 1.0}]


@pytest.mark.conforms("N-166")
def test_errored_trials_are_null_rows_and_cancelled_ones_none() -> None:
    trials = [trial("a", "t", {"reward": 1.0}), trial("b", "t", None, "VerifierTimeoutError"), trial("c", "t", None, "CancelledError")]
    assert all_rows(trials) == [{"reward": 1.0}, None]
    assert valid_rows(trials) == [{"reward": 1.0}]


@pytest.mark.conforms("H-137")
@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([("a", {"r": 0}), ("a", {"r": 0}), ("b", {"r": 1}), ("b", {"r": 1})], {2: 0.5}),
        ([("a", {"r": 0.5}), ("a", {"r": 1})], {}),
        ([("a", {"r": 1, "s": 1}), ("a", {"r": 1})], {}),
        ([("a", {"r": 1}), ("a", {"r": 0}), ("b", {"r": 1})], {}),
        ([], {}),
    ],
)
def test_pass_at_k_by_harbors_rule(rewards: list[tuple[str, dict[str, float]]], expected: dict[int, float]) -> None:
    assert harbor_pass_at_k(rewards) == expected


def test_k_runs_over_powers_of_two_and_multiples_of_five() -> None:
    assert [harbor_ks(n) for n in (0, 1, 2, 3, 5, 10, 16)] == [(), (), (2,), (2,), (2, 4, 5), (2, 4, 5, 8, 10), (2, 4, 5, 8, 10, 15, 16)]


def test_an_aggregate_that_no_float_can_hold_is_left_out() -> None:
    rows = [{"a": 1.7e308, "b": 1.0}, {"a": 1.7e308, "b": 2.0}]
    assert harbor_metric(rows, "sum") == {"b": 3.0}
    assert harbor_metric([{"a": 1.7e308}] * 2, "mean") == {}


@pytest.mark.conforms("H-134")
@pytest.mark.parametrize(
    ("scripts", "kinds", "expected"),
    [
        ([], [], [{"mean": 0.5}]),
        ([{"pass_rate": 0.25}], [], [{"pass_rate": 0.25}]),
        ([{"a": 1.0}, {"b": 2.0}], ["max", "sum"], [{"a": 1.0}, {"b": 2.0}, {"max": 1.0}, {"sum": 1.0}]),
        ([], ["min"], [{"min": 0.0}]),
    ],
)
def test_metrics_come_in_harbors_order_and_the_mean_only_where_nothing_else_is_named(
    scripts: list[dict[str, float]], kinds: list[str], expected: list[dict[str, float]]
) -> None:
    trials = [Trial("a__1", "a", "scored", {"reward": 1.0}), Trial("b__1", "b", "scored", {"reward": 0.0})]
    first, then = metric_order(scripts, kinds)
    assert eval_stats(trials, metrics=then, scripts=first)["metrics"] == expected
