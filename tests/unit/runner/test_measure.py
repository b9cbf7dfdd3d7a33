"""Metrics of a task over a trial that really ran: values in verdict and result, and nothing of them for the agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from seatrial.contract import MetricInput, ScoringInput

if TYPE_CHECKING:
    from .conftest import Pod

TRAJECTORY: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "mine", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Do it."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "Working",
            "tool_calls": [{"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}],
        },
        {"step_id": 3, "source": "agent", "message": "Done."},
    ],
}


def with_metrics(pod: Pod, *metrics: MetricInput, trajectory: object = TRAJECTORY) -> None:
    (pod.app / "trajectory.json").write_text(json.dumps(trajectory))
    pod.trial["agent"] |= {"kind": "command", "name": "command", "command": "cp trajectory.json $LOGS/agent/; echo Hello > hello.txt"}
    pod.trial["scoring"] = ScoringInput(metrics=list(metrics), metadata={"reference": "done"}, reward_key="reward")


EXACT = MetricInput(type="exact-match", config={"reference": "{{item.reference}}"})


@pytest.mark.conforms("N-83")
def test_metrics_see_what_the_agent_said_and_did(pod: Pod) -> None:
    count = MetricInput(type="tool_call_count", config={"tool": "bash"})
    rewarded = MetricInput(type="number-check", config={"left": "{{trial.metadata.reward}}", "operation": "==", "right": "1"})
    told = MetricInput(type="string-check", config={"left": "{{task.intent}}", "operation": "contains", "right": "no such words"})
    with_metrics(pod, EXACT, count, rewarded, told)
    outcome = pod.run()
    found = {
        "exact-match": {"exact-match": 1.0},
        "tool_call_count": {"count": 1},
        "number-check": {"number-check": 1.0},
        "string-check": {"string-check": 0.0},
    }
    assert outcome.result is not None
    assert (outcome.verdict.measures, outcome.result["seatrial"]["measures"]) == (found, found)
    assert list(outcome.verdict.measures) == sorted(found)
    assert outcome.verdict.rewards == {"reward": 1.0}


def test_a_metric_that_fails_says_why_and_costs_nothing_else(pod: Pod) -> None:
    wrong = MetricInput(type="f1", config={"reference": "{{item.nothing}}"})
    foreign = MetricInput(type="of-a-later-version", config={})
    with_metrics(pod, wrong, foreign, EXACT, trajectory="no trajectory")
    outcome = pod.run()
    assert outcome.verdict.measures == {
        "f1": "'item.nothing' is not defined for this trial",
        "of-a-later-version": outcome.verdict.measures["of-a-later-version"],
        "exact-match": {"exact-match": 0.0},
    }
    assert "no built-in metric" in str(outcome.verdict.measures["of-a-later-version"])
    assert outcome.verdict.rewards == {"reward": 1.0}


def test_the_agents_container_sees_nothing_of_what_it_will_be_compared_with(pod: Pod) -> None:
    with_metrics(pod, EXACT)
    assert pod.stage() == 0
    agents = b"".join(path.read_bytes() for path in (pod.root / "task" / "agent").rglob("*") if path.is_file())
    assert b"exact-match" not in agents
    assert b"reference" not in agents
    assert b"exact-match" in (pod.root / "task" / "verifier" / "input.json").read_bytes()
