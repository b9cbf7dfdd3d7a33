"""The files of an ended job."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from seatrial.core import rows
from seatrial.core.bundle import build_tables
from seatrial.core.frozen import task_labels
from seatrial.core.rows import Row, TrialError
from tests.builders import make_job, make_row, make_task

LOST = TrialError("NodeLost", "RuntimeError", "infrastructure", "node n1 went away")
TIMEOUT = TrialError("AgentTimeoutError", "AgentTimeoutError", "agent", "timed out after 300 seconds")
JOB = make_job().tasks(make_task("bench/a", labels={"category": "math"}), make_task("bench/b")).spec(attempts=2)
NAMES = [trial.name for trial in JOB.plan().trials]


def history() -> dict[str, tuple[Row, ...]]:
    """Attempt 1 of a: reward 1 after a retry; of b: reward 0.8 beside an error; attempt 2 of a: lost; of b: cancelled."""
    a1, b1, a2, b2 = NAMES
    return {
        a1: (
            make_row(a1, 0, "retried", error=LOST, started_at="2026-03-04T11:00:00Z"),
            make_row(a1, 1, stored=True, result_sha256="e" * 64, logs_sha256="f" * 64, seconds={"agent_execution": 2.5}),
        ),
        b1: (make_row(b1, rewards={"reward": 0.8, "style": 0.5}, error=TIMEOUT),),
        a2: (make_row(a2, outcome="errored", error=LOST),),
        b2: (make_row(b2, outcome="cancelled"),),
    }


def tables() -> dict[str, Any]:
    built = build_tables(JOB.plan(), JOB.job_spec(), history())
    return {
        name: json.loads(data) if name.endswith(".json") else [json.loads(line) for line in data.splitlines()]
        for name, data in built.items()
        if name != "report.html"
    }


@pytest.mark.conforms("N-133", "N-209")
def test_the_files_and_their_form() -> None:
    built = build_tables(JOB.plan(), JOB.job_spec(), history())
    assert list(built) == ["metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "report.html", "summary.json"]
    for name, data in built.items():
        assert data.endswith(b"\n")
        if name.endswith(".json"):
            assert data == json.dumps(json.loads(data), indent=2, sort_keys=True).encode() + b"\n"
        for line in data.splitlines() if name.endswith(".jsonl") else ():
            assert line == json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode()


def test_the_same_input_in_any_order_gives_the_same_bytes() -> None:
    items = list(history().items())
    random.Random(1).shuffle(items)
    assert build_tables(JOB.plan(), JOB.job_spec(), dict(items)) == build_tables(JOB.plan(), JOB.job_spec(), history())


@pytest.mark.conforms("N-209")
def test_metadata_says_who_was_evaluated_and_when() -> None:
    metadata = tables()["metadata.json"]
    assert set(metadata) >= {"run_id", "labels", "target", "started_at", "finished_at", "duration_sec", "sdk_version"}
    assert metadata["target"] == {"name": "oracle", "kind": "harbor", "version": None, "config": {"name": "oracle"}}
    assert (metadata["started_at"], metadata["finished_at"], metadata["duration_sec"]) == (
        "2026-03-04T11:00:00Z",
        "2026-03-04T11:59:30Z",
        3570.0,
    )


@pytest.mark.conforms("N-131", "N-133")
def test_a_trial_has_its_status_evidence_and_rewards() -> None:
    first, second, third, fourth = tables()["trials.jsonl"]
    assert [item["status"] for item in (first, second, third, fourth)] == ["COMPLETED", "PARTIAL", "PARTIAL", "PARTIAL"]
    assert first["evidence"] == {
        "result": {"ref": f"trials/{NAMES[0]}/1/result.json", "sha256": "e" * 64},
        "logs": {"ref": f"trials/{NAMES[0]}/1/logs.tar.gz", "sha256": "f" * 64},
    }
    assert first["measurements"] == {"runtime_sec": 2.5}
    assert first["metadata"]["harbor_primary_reward_key"] == "reward"
    assert [item["retry"] for item in first["retries"]] == [0]
    assert second["metadata"]["reward_details"] == {"reward": 0.8, "style": 0.5}
    assert (third["metadata"]["reward"], third["error"]["cause"]) == (None, "infrastructure")


def test_the_rows_can_be_read_back() -> None:
    data = build_tables(JOB.plan(), JOB.job_spec(), history())["trials.jsonl"]
    assert rows.from_lines(data) == tuple(items[-1] for items in history().values())


@pytest.mark.conforms("N-79")
def test_every_ended_trial_has_one_score_of_the_reward_metric() -> None:
    scores = tables()["scores.jsonl"]
    assert [(item["trial_id"], item["metric_type"], item["status"]) for item in scores] == [
        (NAMES[0], "harbor_reward", "completed"),
        (NAMES[1], "harbor_reward", "completed"),
        (NAMES[2], "harbor_reward", "failed"),
    ]
    assert scores[1]["outputs"] == [{"name": "reward", "value": 0.8}, {"name": "style", "value": 0.5}]
    assert scores[2]["diagnostics"][0]["details"] == {"trial_status": "unscored", "error": "RuntimeError", "cause": "infrastructure"}
    assert scores[0]["id"] == f"{scores[0]['run_id']}:bench/a:{NAMES[0]}:harbor_reward"


@pytest.mark.conforms("N-209", "N-211", "H-139")
def test_the_summary_names_every_denominator() -> None:
    summary = tables()["summary.json"]
    named = {item["name"]: (item["mean"], item["count"], item["nan_count"]) for item in summary["scores"]}
    assert named["harbor_reward.reward"] == (0.9, 2, 2)
    assert named["harbor_reward.style"] == (0.5, 1, 1)
    short = {item["name"]: (item["value"], item["count"], item["missing"]) for item in summary["aggregates"]}
    assert short["reward.mean"] == (0.9, 2, 2)
    assert short["reward.mean.zero"] == (0.6, 3, 0)
    assert (summary["trial_count"], summary["task_count"], summary["score_count"], summary["error_count"]) == (4, 2, 2, 2)
    assert summary["error_trial_ids"] == {"AgentTimeoutError": [NAMES[1]], "RuntimeError": [NAMES[2]]}
    assert summary["groups"]["category"]["math"]["harbor_reward.reward"]["mean"] == 1.0
    assert [(group["label"], group["explanation"]) for group in summary["failure_groups"]] == [
        ("AgentTimeoutError", "timed out after <n> seconds"),
        ("NodeLost", "node n<n> went away"),
    ]


@pytest.mark.parametrize(
    "rewards",
    [{key: 1} for key in ("", "a\nb", "\x85", "\ud800", "x.pass@1", "k" * 256)] + [{"reward": 1.7e308}, {"a": 1.7e308, "b": -1.7e308}],
    ids=repr,
)
def test_the_files_of_a_job_can_be_written_whatever_its_rewards_are(rewards: dict[str, float]) -> None:
    built = build_tables(JOB.plan(), JOB.job_spec(), {name: (make_row(name, rewards=rewards),) for name in NAMES})
    assert [json.loads(line)["rewards"] for line in built["trials.jsonl"].splitlines()] == [rewards] * 4


def test_ten_thousand_trials_with_five_rewards_take_seconds_and_bounded_memory() -> None:
    job = make_job().tasks(*(make_task(f"bench/{number}") for number in range(1000))).spec(attempts=10)
    plan, rng = job.plan(), random.Random(5)
    ended = {
        trial.name: (make_row(trial.name, rewards={"reward": float(rng.random() < 0.5), **{key: rng.random() for key in "abcd"}}),)
        for trial in plan.trials
    }
    started = time.process_time()
    built = build_tables(plan, job.job_spec(), ended)
    assert time.process_time() - started < 6
    assert len(built["trials.jsonl"].splitlines()) == 10_000


def test_labels_come_from_short_words_only() -> None:
    assert task_labels({"category": "math", "difficulty": 3, "tags": ["x"]}) == {"category": "math"}
    assert task_labels({"category": "x" * 64, "difficulty": ""}) == {}
