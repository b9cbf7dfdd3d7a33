"""Metrics and views of Tasks: from the spec over the plan and the rows to scores."""

from __future__ import annotations

import math
from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.contract import ContractBroken, Measures, Verdict, read_measures, read_verdict, write_verdict
from seatrial.core.bundle import build_tables
from seatrial.core.frozen import PlanRefused, decode_plan, encode_plan
from seatrial.core.measures import NOT_COMPUTED, MetricUnsupported, PlannedMetric, TaskScoring, findings_of, read_scoring
from seatrial.core.rows import by_trial, from_json, to_json
from seatrial.core.scores import as_trials
from seatrial.core.status import job_summary
from seatrial.scoring.builtin import MetricRefused, built_in
from seatrial.scoring.views import Signal, View
from tests.builders import make_job, make_row, make_task

EXACT = {"type": "exact-match", "config": {"reference": "Done"}}
QUALITY = {
    "reducer": "mean",
    "signals": [{"metric": "harbor_reward", "output": "reward"}, {"metric": "exact-match", "output": "exact-match"}],
}
SCORING = TaskScoring(
    (PlannedMetric("exact-match", {"reference": "Done"}),),
    {"quality": View("mean", (Signal("harbor_reward", "reward"), Signal("exact-match", "exact-match")))},
    {"difficulty": "easy"},
)


def test_a_tasks_metrics_and_views_are_frozen_with_the_plan() -> None:
    assert read_scoring([EXACT], {"quality": QUALITY}, {"difficulty": "easy"}) == SCORING
    assert read_scoring([], {}, {"difficulty": "easy"}) is None
    plan = make_job().tasks(make_task(scoring=SCORING)).plan()
    assert decode_plan(encode_plan(plan)).tasks[0].scoring == SCORING


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([{"type": "mine", "image": "registry.example/metric:1"}], "metrics of one's own do not run"),
        ([{"ref": "evals/mine#latest"}], "metrics of one's own do not run"),
        ([EXACT, EXACT], "duplicate task metric types: exact-match"),
    ],
)
def test_metrics_that_the_cluster_cannot_run_are_refused_by_name(metrics: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(MetricUnsupported, match=words):
        read_scoring(metrics, {}, {})


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("bleurt", {}, "no built-in metric 'bleurt'; known: bleu"),
        ("exact-match", {}, "needs the setting 'reference'"),
        ("exact-match", {"reference": 5}, "reference cannot be '5'"),
        ("exact-match", {"reference": "a", "type": "b"}, "no setting 'type'"),
        ("string-check", {"left": "a", "operation": "like", "right": "b"}, "operation cannot be 'like'"),
        ("number-check", {"left": "a", "operation": "<", "right": "b", "epsilon": True}, "epsilon cannot be 'True'"),
    ],
)
def test_a_metric_that_cannot_be_made_is_refused_with_its_setting(name: str, config: dict[str, Any], words: str) -> None:
    with pytest.raises(MetricRefused, match=words.replace("[", r"\[")):
        built_in(name, config)
    with pytest.raises(PlanRefused, match="task bench/task-0: ") as refused:
        make_job().tasks(make_task(scoring=TaskScoring((PlannedMetric(name, config),)))).plan()
    assert refused.value.reason is Reason.UNSUPPORTED_METRIC


@pytest.mark.conforms("N-85")
@pytest.mark.parametrize(
    ("signal", "key", "words"),
    [
        (Signal("harbor_reward", "reward"), None, None),
        (Signal("harbor_reward", "accuracy"), "accuracy", None),
        (Signal("harbor_reward", "reward"), "accuracy", "unknown output 'reward' for metric 'harbor_reward'"),
        (Signal("f1", "f1"), None, "unknown metric 'f1'"),
        (Signal("exact-match", "score"), None, "unknown output 'score' for metric 'exact-match'"),
    ],
)
def test_a_view_names_the_primary_reward_and_declared_outputs_or_the_job_is_refused(signal: Signal, key: str | None, words: str) -> None:
    scoring = SCORING._replace(views={"quality": View("single", (signal,))})
    job = make_job().tasks(make_task(scoring=scoring)).spec(rewardKey=key)
    if words is None:
        assert job.plan().tasks[0].scoring == scoring
        return
    with pytest.raises(PlanRefused, match=words) as refused:
        job.plan()
    assert refused.value.reason is Reason.INVALID_VIEW


@pytest.mark.conforms("N-78", "N-83", "N-84")
def test_values_of_rows_become_scores_coverage_and_views_beside_the_rewards() -> None:
    job = make_job().tasks(make_task(scoring=SCORING)).spec(attempts=4)
    plan = job.plan()
    measures: list[Measures] = [{"exact-match": {"exact-match": 0.0}}, {"exact-match": "no text"}, {}, {}]
    rows = [
        make_row(trial.name, outcome="errored" if index == 3 else "scored", rewards={"reward": 1.0}, measures=measures[index])
        for index, trial in enumerate(plan.trials)
    ]
    names = {trial.name: trial.key.task for trial in plan.trials}
    summary = job_summary(rows, job.job_spec(), names, scoring=plan.scoring())
    found = {item.name: (item.value, item.count, item.missing) for item in summary.scores}
    assert next(iter(found)) == "reward.mean"
    assert (found["exact-match.exact-match.mean"], found["view.quality.mean"]) == ((0.0, 1, 3), (0.5, 1, 3))
    assert {item.name: item[1:] for item in summary.coverage} == {"reward": (4, 3, 1, 0), "exact-match.exact-match": (4, 1, 3, 0)}
    findings = findings_of(plan.scoring().tasks, rows, as_trials(rows, names))
    assert [(score.values, score.message) for score in findings.scores] == [
        ({"exact-match": 0.0}, None),
        (None, "no text"),
        (None, NOT_COMPUTED),
    ]
    tables = build_tables(plan, job.job_spec(), by_trial(rows))
    assert b'"metric_type":"exact-match"' in tables["scores.jsonl"]
    assert b'"view.quality"' in tables["summary.json"]


def test_a_number_that_is_none_travels_as_text_and_counts_as_missing() -> None:
    scoring = TaskScoring((PlannedMetric("number-check", {"left": "x", "operation": "<", "right": "1"}),))
    plan = make_job().tasks(make_task(scoring=scoring)).plan()
    row = make_row(plan.trials[0].name, rewards={"reward": 1.0}, measures={"number-check": {"number-check": "nan"}})
    assert from_json(to_json(row)) == row
    names = {trial.name: trial.key.task for trial in plan.trials}
    (score,) = findings_of(plan.scoring().tasks, [row], as_trials([row], names)).scores
    assert score.values is not None
    assert math.isnan(float(str(score.values["number-check"])))
    assert job_summary([row], make_job().job_spec(), names, scoring=plan.scoring()).score("number-check.number-check.mean") is not None


def make_verdict(measures: Measures, *, stored: bool = True) -> Verdict:
    return Verdict(
        trial="task-0__abcdef0",
        retry=0,
        rewards={"reward": 1.0},
        rewards_elsewhere=False,
        error=None,
        stored=stored,
        result_sha256=None,
        logs_sha256=None,
        seconds={},
        tampered=False,
        leftover_processes=0,
        measures=measures,
    )


def test_what_metrics_found_goes_with_the_verdict_as_long_as_it_fits() -> None:
    small = make_verdict({"f1": {"f1": 0.5}, "bleu": "no text"})
    assert read_verdict(write_verdict(small).decode()) == small
    many: Measures = {f"metric-{number}": {"value": 0.123456789} for number in range(40)}
    stored = read_verdict(write_verdict(make_verdict(many)).decode())
    assert (stored.rewards, stored.rewards_elsewhere, stored.measures) == (None, True, {})
    kept = read_verdict(write_verdict(make_verdict(many, stored=False)).decode())
    assert (kept.rewards, kept.rewards_elsewhere, kept.measures) == ({"reward": 1.0}, False, {})


@pytest.mark.parametrize("value", [[], {"m": 1}, {"m": {"o": None}}, {"m": {"o": [1]}}, {str(n): "" for n in range(65)}], ids=str)
def test_measures_of_another_shape_break_the_contract(value: object) -> None:
    with pytest.raises(ContractBroken):
        read_measures(value)
    assert read_measures({"m": "x" * 500, "n": {"o": "y" * 500, "p": True}}) == {"m": "x" * 200, "n": {"o": "y" * 200, "p": True}}
