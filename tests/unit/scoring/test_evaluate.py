"""Metrics beside the rewards: what one metric on one trial may report, and what becomes of it in the bundle."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from seatrial.core.bundle import build_tables
from seatrial.core.status import job_summary
from seatrial.scoring.builtin import ExactMatch, MetricFailed, OutputSpec
from seatrial.scoring.evaluate import Findings, MetricScore, compute, metric_outputs
from seatrial.scoring.observations import Observation, Output
from seatrial.scoring.rewards import Trial
from seatrial.scoring.views import Signal, View
from tests.builders import make_job, make_row, make_task


@dataclass(frozen=True)
class Reports:
    """Reports what it was made with."""

    values: Any
    type: str = "reports"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("main", "continuous"), OutputSpec("label", "label", required=False))

    def compute(self, row: Any) -> Any:
        if isinstance(self.values, Exception):
            raise self.values
        return self.values


def of(values: Any) -> MetricScore:
    return compute(Reports(values), {}, task="t", trial="t__1")


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"main": 0.5, "label": "good"}, {"main": 0.5, "label": "good"}),
        ({"main": 1}, {"main": 1}),
        ({"main": 1.0, "label": None}, {"main": 1.0}),
    ],
)
def test_declared_values_are_kept_in_their_own_type(values: Any, kept: Any) -> None:
    assert of(values) == MetricScore("t", "t__1", "reports", kept)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"label": "good"}, "did not report: main"),
        ({"main": None}, "did not report: main"),
        ({"main": 1.0, "other": 2.0}, "reported undeclared outputs: other"),
        ({"main": True}, "reported no continuous value under main"),
        ({"main": 1.0, "label": 3}, "reported no label value under label"),
        (MetricFailed("the trial has no trajectory"), "the trial has no trajectory"),
        (ZeroDivisionError("x"), "ZeroDivisionError: x"),
        (7, "TypeError: 'int' object is not iterable"),
    ],
)
def test_anything_else_is_that_metrics_failure_with_its_reason(values: Any, message: str) -> None:
    found = of(values)
    assert (found.failed, found.message) == (True, message)


def test_an_output_has_one_observation_for_each_trial_that_should_have_it() -> None:
    trials = [Trial(f"a__{index}", "a", "scored", {"reward": 1.0}) for index in range(4)]
    trials += [Trial("a__lost", "a", "errored"), Trial("b__1", "b", "scored", {"reward": 1.0})]
    scores = [
        MetricScore("a", "a__0", "m", {"x": 0.5, "y": "good"}),
        MetricScore("a", "a__1", "m", {"x": math.nan}),
        MetricScore("a", "a__2", "m", None, "why"),
    ]
    specs = (OutputSpec("x", "continuous"), OutputSpec("y", "label", required=False))
    x, y = metric_outputs({"a": {"m": specs}}, trials, scores)
    assert y == Output(
        "m",
        "y",
        "label",
        (
            Observation("a", "a__0", "observed", "good"),
            Observation("a", "a__1", "missing", None),
            Observation("a", "a__2", "metric_failed", None),
            Observation("a", "a__3", "metric_failed", None),
            Observation("a", "a__lost", "unscored", None),
        ),
    )
    assert (x.range().mean, x.range().count, x.range().nan_count) == (0.5, 1, 4)
    assert x.coverage() == (5, 2, 3, 0)


JOB = make_job().tasks(make_task("bench/a")).spec(attempts=2)
FIRST, SECOND = (trial.name for trial in JOB.plan().trials)
HISTORY = {FIRST: (make_row(FIRST),), SECOND: (make_row(SECOND, rewards={"reward": 0.0}),)}


def findings(**more: Any) -> Findings:
    metric = ExactMatch("Done")
    scores = [
        compute(metric, {"sample": {"output_text": text}}, task="bench/a", trial=name) for name, text in ((FIRST, "done!"), (SECOND, "no"))
    ]
    trials = [Trial(name, "bench/a", "scored", {"reward": 1.0}) for name in (FIRST, SECOND)]
    view = View("mean", (Signal("harbor_reward", "reward"), Signal("exact-match", "exact-match")))
    outputs = metric_outputs({"bench/a": {metric.type: metric.outputs}}, trials, scores)
    return Findings(tuple(scores), outputs, {"bench/a": {"quality": view}}, **more)


@pytest.mark.conforms("N-83", "N-84")
def test_metrics_and_views_stand_beside_the_rewards_under_their_full_names() -> None:
    summary = job_summary([rows[-1] for rows in HISTORY.values()], JOB.job_spec(), dict.fromkeys(HISTORY, "bench/a"), findings())
    values = {score.name: (score.value, score.count, score.missing) for score in summary.scores}
    assert values == {
        "reward.mean": (0.5, 2, 0),
        "reward.mean.zero": (0.5, 2, 0),
        "exact-match.exact-match.mean": (0.5, 2, 0),
        "view.quality.mean": (0.5, 2, 0),
        "reward.pass@1": (0.5, 1, 0),
        "reward.pass@2": (1.0, 1, 0),
        "reward.pass^2": (0.0, 1, 0),
        "exact-match.exact-match.pass@1": (0.5, 1, 0),
        "exact-match.exact-match.pass@2": (1.0, 1, 0),
        "exact-match.exact-match.pass^2": (0.0, 1, 0),
    }


@pytest.mark.conforms("N-78", "N-84")
def test_the_reward_is_scored_first_then_the_other_metrics_and_all_are_in_the_bundle() -> None:
    tables = build_tables(JOB.plan(), JOB.job_spec(), HISTORY, findings(judge={"requests": 3}))
    lines = [json.loads(line) for line in tables["scores.jsonl"].splitlines()]
    assert [(line["trial_id"], line["metric_type"], line["outputs"][0]["value"]) for line in lines] == [
        (FIRST, "harbor_reward", 1.0),
        (FIRST, "exact-match", 1.0),
        (SECOND, "harbor_reward", 0.0),
        (SECOND, "exact-match", 0.0),
    ]
    summary = json.loads(tables["summary.json"])
    assert [score["name"] for score in summary["scores"]][:3] == ["exact-match.exact-match", "harbor_reward.reward", "view.quality"]
    assert summary["judge"] == {"requests": 3}
    assert summary["metric_coverage"]["exact-match"]["exact-match"] == {"total": 2, "scored": 2, "failed": 0, "missing": 0}


def test_without_the_reward_metric_the_reward_is_no_score() -> None:
    tables = build_tables(JOB.plan(), JOB.job_spec(), HISTORY, findings(rewards=False))
    assert {json.loads(line)["metric_type"] for line in tables["scores.jsonl"].splitlines()} == {"exact-match"}
    assert next(score["name"] for score in json.loads(tables["summary.json"])["scores"]) == "exact-match.exact-match"
    assert not any("reward" in score["name"] for score in json.loads(tables["summary.json"])["aggregates"])
