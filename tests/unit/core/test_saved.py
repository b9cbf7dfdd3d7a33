"""Lines of saved trials: what is taken, what is refused, and what becomes of them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.core.bundle import build_tables
from seatrial.core.frozen import PlanRefused, Submission, decode_plan, encode_plan
from seatrial.core.measures import PlannedMetric, TaskScoring
from seatrial.core.reuse import Tasks, saved_plan
from seatrial.core.rows import Origin, Row, TrialError, to_json
from seatrial.core.saved import SavedTrial, SavedTrialsRefused, attempts, parse_saved, recorded_key, saved_row
from tests.builders import make_job, make_row, make_task


def line(**more: Any) -> dict[str, Any]:
    return {"id": "a__1", "task_id": "bench/a", "status": "COMPLETED", **more}


def parse(*lines: Any) -> tuple[SavedTrial, ...]:
    return parse_saved("\n".join(item if isinstance(item, str) else json.dumps(item) for item in lines).encode())


@pytest.mark.conforms("N-89")
def test_blank_lines_are_ignored_and_the_case_of_the_status_does_not_matter() -> None:
    assert parse("", line(status="completed"), "  ", line(id="a__2", status="PARTIAL"), "") == (
        SavedTrial("a__1", "bench/a", "COMPLETED"),
        SavedTrial("a__2", "bench/a", "PARTIAL"),
    )
    assert parse("") == ()


ROW = to_json(make_row("a__1"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "line 1: "),
        ("[]", "line 1: is no JSON object"),
        ("[" * 100_000, "line 1: "),
        (line(surprise=1), "unknown field 'surprise'"),
        ({"id": "a", "task_id": "b"}, "status is no text"),
        (line(id=7), "id is no text"),
        (line(id="../a"), "is no name of a trial"),
        (line(id="a" * 300), "is no name of a trial"),
        (line(status="DONE"), "is none of COMPLETED, PARTIAL, FAILED"),
        (line(metadata=[]), "metadata is no JSON object"),
        (line(evidence=None), "evidence is no JSON object"),
        (line(error="x"), "error is no JSON object with a type"),
        (line(error={"message": "x"}), "error is no JSON object with a type"),
        (line(trial="a__1"), "outcome 'None' is not that of an ended trial"),
        (line(**ROW, metadata={"harbor_primary_reward_key": "reward"}), "its outcome is scored and it has no reward"),
        (line(metadata={"reward_details": [1]}), "its rewards are no JSON object of at most 1000"),
        (line(metadata={"reward_details": {str(number): 1 for number in range(1001)}}), "its rewards are no JSON object of at most 1000"),
        (line(**{**ROW, "outcome": "retried"}), "is not that of an ended trial"),
        (line(**{**ROW, "retry": True}), "retry is no number of a Pod"),
        (line(**{**ROW, "retry": -1}), "retry is no number of a Pod"),
        (line(**ROW, error={"type": "X"}), "error has no exceptionType, cause or message"),
    ],
)
def test_a_line_that_is_no_trial_is_refused_with_its_number_and_fault(body: Any, words: str) -> None:
    with pytest.raises(SavedTrialsRefused, match=words.replace("(", r"\(")) as refused:
        parse(body)
    assert refused.value.reason == "SavedTrialsInvalid"


def test_a_trial_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SavedTrialsRefused, match="trial a__1 is there twice"):
        parse(line(), line())


def metadata(key: str = "reward", reward: Any = None, **details: Any) -> dict[str, Any]:
    return {"harbor_primary_reward_key": key, "reward": reward, "reward_details": details}


@pytest.mark.conforms("N-97")
@pytest.mark.parametrize(
    ("saved", "rewards"),
    [
        (metadata("accuracy", 0.7, accuracy=0.7, style=1), {"accuracy": 0.7, "style": 1.0}),
        (metadata("accuracy", 0.7, style=1), {"accuracy": 0.7, "style": 1.0}),
        (metadata("accuracy", 0.7, accuracy=0.1), {"accuracy": 0.7}),
        (metadata("accuracy", None, style="0.5", odd=None, flag=True), {"style": 0.5}),
        ({"harbor_primary_reward_key": "reward"}, {}),
    ],
)
def test_the_saved_primary_value_stands_and_secondaries_are_found_beside_it(saved: dict[str, Any], rewards: dict[str, float]) -> None:
    (trial,) = parse(line(metadata=saved))
    assert trial.rewards == rewards
    assert saved_row(trial, "").rewards == (rewards or None)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "scored"), ("RuntimeError", "scored"), ("AgentTimeoutError", "scored"), ("ApiRateLimitError", "errored")],
)
def test_an_error_beside_a_reward_counts_as_harbors_table_says(error: str | None, outcome: str) -> None:
    given_error = {"error": {"type": error, "message": "m"}} if error else {}
    (trial,) = parse(line(metadata=metadata(reward=1.0), **given_error))
    row = saved_row(trial, "")
    assert (row.outcome, row.error) == (outcome, TrialError(error, error, "agent", "m") if error else None)


def test_a_trial_without_a_reward_is_errored_with_a_reason() -> None:
    (trial,) = parse(line(metadata=metadata()))
    row = saved_row(trial, "")
    assert (row.outcome, row.error and row.error.harbor) == ("errored", "RewardFileNotFoundError")
    (failed,) = parse(line(status="FAILED", metadata=metadata(reward=1.0)))
    assert saved_row(failed, "").outcome == "errored"


@pytest.mark.parametrize("attempt", [0, -1, True, "1", 1.0, 10**30], ids=str)
def test_an_attempt_that_no_job_can_have_is_numbered_anew(attempt: Any) -> None:
    assert attempts(parse(line(**{**ROW, "attempt": attempt}, metadata=metadata(reward=1.0)))) == [1]


def test_evidence_is_where_the_file_lies_whatever_a_line_says() -> None:
    foreign = {"folder": "jobs/other/secret-1/", "trial": "x", "retry": 3}
    row = to_json(make_row("a__1", 2, stored=True, result_sha256="a" * 64, logs_sha256="b" * 64))
    (trial,) = parse(line(**row, origin=foreign, metadata=metadata(reward=1.0)))
    assert saved_row(trial, "filesets/evals/saved/one/").origin == Origin("filesets/evals/saved/one/", "a__1", 2)
    here = saved_row(trial, "")
    assert (here.origin, here.stored, here.result_sha256, here.logs_sha256) == (None, False, None, None)


def test_everything_that_a_job_keeps_of_a_trial_is_read_again() -> None:
    row = Row(
        trial="a__1",
        retry=2,
        outcome="scored",
        ended_at="2026-03-04T11:00:00Z",
        rewards={"reward": 0.5, "style": 1.0},
        error=TrialError("AgentTimeoutError", "AgentTimeoutError", "agent", "timed out"),
        pod="job-a-1-2",
        started_at="2026-03-04T10:00:00Z",
        stored=True,
        result_sha256="a" * 64,
        logs_sha256="b" * 64,
        seconds={"agent_execution": 2.5},
        tampered=True,
        leftover_processes=3,
        changed_tools=2,
        usage={"n_input_tokens": 10.0},
        measures={"exact-match": {"exact-match": 1.0}, "f1": "the trial has no trajectory"},
    )
    (trial,) = parse(line(**to_json(row), metadata=metadata(reward=0.5, style=1.0)))
    assert saved_row(trial, "filesets/evals/s/") == replace(row, pod="", origin=Origin("filesets/evals/s/", "a__1", 2))
    # A new field of a row has to be read here, too.
    unset = {item.name for item in fields(Row) if getattr(row, item.name) in (item.default, {})}
    assert unset == {"budget", "origin"}, "a final row has no budget, and where evidence is does not come from the line"


def test_attempts_are_those_that_were_said_else_the_next_free_ones() -> None:
    said = [3, None, 3, True, 0, 1, None]
    trials = [
        SavedTrial(f"a__{index}", "a", "PARTIAL", row={} if number is None else {"attempt": number}) for index, number in enumerate(said)
    ]
    assert attempts(trials) == [3, 1, 2, 4, 5, 6, 7]
    many = [SavedTrial(f"a__{index}", "a", "PARTIAL") for index in range(20_000)]
    assert attempts(many) == list(range(1, 20_001))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("id", "task_id", "status", "evidence", "error", "metadata", "measurements", *ROW, "seconds", "usage", "measures", "attempt")
JOB = make_job().tasks(make_task("bench/a", scoring=TaskScoring((PlannedMetric("exact-match", {"reference": "Done"}),))))


odd_measures = st.fixed_dictionaries({"measures": st.dictionaries(st.sampled_from(["exact-match", "x"]), json_values, max_size=2)})
odd_outputs = json_values.map(lambda value: {"measures": {"exact-match": {"exact-match": value}}})


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=8) | odd_measures | odd_outputs)
def test_whatever_a_line_holds_it_is_refused_or_becomes_a_whole_bundle(body: dict[str, Any]) -> None:
    try:
        trials = parse_saved(json.dumps({**line(**ROW, metadata=metadata(reward=1.0)), **body}).encode())
        recorded = recorded_key(trials)
        spec = JOB.job_spec().model_copy(update={"reward_key": recorded})
        tasks = Tasks(JOB.plan().tasks, None)
        plan = saved_plan(
            Submission("evals", "job", "uid", "2026-01-01T00:00:00Z"), spec, trials, tasks, folder="filesets/evals/s/", spec_raw={}
        )
    except PlanRefused:
        return
    history = {row.trial: (row,) for row in decode_plan(encode_plan(plan)).adopted}
    tables = build_tables(plan, spec, history)
    assert parse_saved(tables["trials.jsonl"])[0].id == trials[0].id
