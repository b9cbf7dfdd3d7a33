"""What commands print, compared as a whole. Formatters are pure: values in, text out."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from seatrial.cli import output
from seatrial.cli.options import Output

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)


def job(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web-smoke", "creationTimestamp": "2026-01-01T11:48:00Z"}, "spec": {}, "status": status}


RUNNING = job(
    phase="Running",
    progress="37/50",
    mean="0.514",
    trials={"total": 50, "pending": 8, "running": 5, "scored": 35, "errored": 2, "retried": 1},
    errors=[
        {
            "type": "ImageNotFound",
            "cause": "user",
            "count": 2,
            "sample": ["web-7", "web-19"],
            "message": "docker.io/acme/web:lates does not exist. Fix [environment].docker_image and publish again.",
        }
    ],
)

TRIALS = [
    {"trial": "a__1", "task": "s/a", "attempt": 1, "retry": 0, "state": "scored", "rewards": {"reward": 1}, "error": None},
    {"trial": "a__2", "task": "s/a", "attempt": 2, "retry": 1, "state": "scored", "rewards": {"reward": 0}, "error": None},
    {"trial": "b__1", "task": "s/b", "attempt": 1, "retry": 0, "state": "errored", "rewards": None, "error": {"type": "AgentTimeoutError"}},
    {"trial": "b__2", "task": "s/b", "attempt": 2, "retry": 0, "state": "pending", "rewards": None, "error": None},
]


def test_one_job_is_shown_with_its_errors_as_kubectl_would_lay_it_out() -> None:
    text = output.table(output.job_columns(NOW, named=False), [RUNNING]) + "\n\n" + output.problems_of_job(RUNNING)
    assert text == (
        "PHASE     DONE    ERRORED   MEAN    AGE\n"
        "Running   37/50   2         0.514   12m\n"
        "\n"
        "Error     ImageNotFound   2   web-7, web-19\n"
        "          docker.io/acme/web:lates does not exist. Fix [environment].docker_image and publish again."
    )


def test_a_job_that_nobody_has_seen_yet_has_no_score_and_no_zero() -> None:
    assert output.table(output.job_columns(NOW), [job()]) == (
        "NAME        PHASE     DONE   ERRORED   MEAN   AGE\nweb-smoke   Pending   -      -         -      12m"
    )


def test_missed_thresholds_and_the_reason_of_the_end_are_named() -> None:
    failed = job(
        phase="Failed",
        thresholds=[
            {"score": "reward.mean", "atLeast": 0.8, "value": "0.5", "passed": False},
            {"score": "style.mean", "atLeast": 0.1, "passed": False},
            {"score": "x.mean", "atLeast": 0.1, "value": "1", "passed": True},
        ],
        conditions=[{"type": "Failed", "status": "True", "reason": "ThresholdNotMet", "message": "2 thresholds are missed"}],
    )
    assert output.problems_of_job(failed) == (
        "Missed    reward.mean   0.500, at least 0.800 was asked for\n"
        "Missed    style.mean   not measured, at least 0.100 was asked for\n"
        "Failed:   ThresholdNotMet: 2 thresholds are missed"
    )


def test_trials_show_a_reward_only_where_it_counts() -> None:
    assert output.table(output.trial_columns("reward"), TRIALS) == (
        "TRIAL   TASK   ATTEMPT   RETRY   STATE     REWARD   ERROR\n"
        "a__1    s/a    1         0       scored    1.000    -\n"
        "a__2    s/a    2         1       scored    0.000    -\n"
        "b__1    s/b    1         0       errored   -        AgentTimeoutError\n"
        "b__2    s/b    2         0       pending   -        -"
    )


def test_the_report_adds_up_tasks_without_counting_a_missing_score_as_zero() -> None:
    done = job(scores=[{"name": "reward.mean", "value": "0.5", "count": 2, "missing": 1}, {"name": "style.mean", "count": 0, "missing": 3}])
    assert output.job_report(done, TRIALS) == (
        "TASK   TRIALS   SCORED   ERRORED   MEAN    ERRORS\n"
        "s/a    2        2        0         0.500   -\n"
        "s/b    2        0        1         -       AgentTimeoutError\n"
        "\n"
        "SCORE         VALUE   COUNT   MISSING\n"
        "reward.mean   0.500   2       1\n"
        "style.mean    -       0       3"
    )


def test_tasks_and_tasksets_show_their_conditions() -> None:
    condition = {"type": "Verified", "status": "False", "reason": "TaskArchiveMissing", "message": "not in the store"}
    task = {
        "metadata": {"name": "hello", "creationTimestamp": "2025-12-31T12:00:00Z"},
        "status": {"nativeTaskId": "bench/hello", "revision": 3, "conditions": [condition]},
    }
    pinned = {
        "metadata": {"name": "smoke", "creationTimestamp": "2026-01-01T11:59:15Z"},
        "status": {"members": 5, "revision": 1, "conditions": [{"type": "Pinned", "status": "True"}]},
    }
    assert [
        output.table(output.task_columns(NOW), [task]),
        output.bad_objects([task], "Verified"),
        output.table(output.taskset_columns(NOW), [pinned]),
    ] == [
        "NAME    VERIFIED   REVISION   TASK          AGE\nhello   False      3          bench/hello   24h",
        "hello: TaskArchiveMissing: not in the store",
        "NAME    PINNED   MEMBERS   REVISION   AGE\nsmoke   True     5         1          45s",
    ]


def test_progress_is_one_line_of_facts() -> None:
    assert [output.progress_line(RUNNING), output.progress_line(job())] == [
        "Running  37/50  5 running  2 errored  1 retried  mean 0.514",
        "Pending  0/?",
    ]


def test_what_a_job_waits_for_is_named_while_it_waits() -> None:
    def waiting(reason: str, message: str) -> dict[str, object]:
        conditions = [{"type": "Progressing", "status": "False", "reason": reason, "message": message}]
        return job(phase="Running", progress="0/1", conditions=conditions)

    held = waiting("Unschedulable", "0/1 nodes are available: 1 Insufficient cpu")
    assert [output.progress_line(held), output.problems_of_job(held)] == [
        "Running  0/1  Unschedulable",
        "Waits:    Unschedulable: 0/1 nodes are available: 1 Insufficient cpu",
    ]
    for ordinary in (waiting("ImagePulling", "container agent: PodInitializing"), waiting("Running", ""), waiting("Finished", "")):
        assert [output.progress_line(ordinary), output.problems_of_job(ordinary)] == ["Running  0/1", ""]


def test_a_job_that_cannot_be_planned_says_so_once() -> None:
    refused = job(
        phase="Failed",
        conditions=[
            {"type": "PlanReady", "status": "False", "reason": "UnsupportedAgent", "message": "spec.agent.name 'orcale'"},
            {"type": "Failed", "status": "True", "reason": "UnsupportedAgent", "message": "spec.agent.name 'orcale'"},
        ],
    )
    assert output.problems_of_job(refused) == "Failed:   UnsupportedAgent: spec.agent.name 'orcale'"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (312, "5m12s"),
        (720, "12m"),
        (10799, "179m"),
        (11100, "3h5m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (180000, "2d2h"),
        (86400 * 30, "30d"),
    ],
)
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert output.age((NOW - datetime.timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z"), NOW) == text


def test_control_characters_of_a_trial_never_reach_the_terminal() -> None:
    hostile = [{**TRIALS[2], "error": {"type": "Bad\x1b[2J\nError\x07"}}]
    assert output.table(output.trial_columns("reward")[-1:], hostile) == "ERROR\nBad\ufffd[2J Error\ufffd"


COLUMNS = [output.Column("A", lambda item: item["a"]), output.Column("B", lambda item: item.get("b"))]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (Output.TABLE, "A     B\n1     -\nx,y   0.500"),
        (Output.JSON, '[\n  {\n    "a": 1\n  },\n  {\n    "a": "x,y",\n    "b": 0.5\n  }\n]'),
        (Output.YAML, "- a: 1\n- a: x,y\n  b: 0.5"),
        (Output.JSONL, '{"a": 1}\n{"a": "x,y", "b": 0.5}'),
        (Output.CSV, 'a,b\n1,\n"x,y",0.5'),
    ],
)
def test_every_format_carries_the_same_records(format: Output, text: str) -> None:
    assert output.dump([{"a": 1}, {"a": "x,y", "b": 0.5}], format, columns=COLUMNS) == text


def test_a_single_object_stands_alone() -> None:
    assert output.dump([{"a": 1}], Output.JSON, columns=[], one=True) == '{\n  "a": 1\n}'
