"""Tokens, cost and trajectories that agents leave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from seatrial_runner.atif import InvalidTrajectory, check_trajectory, usage

if TYPE_CHECKING:
    from .conftest import Pod


def make_trajectory(**changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "mine", "version": "1", "model_name": "m-1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Say hello."},
            {
                "step_id": 2,
                "source": "agent",
                "timestamp": "2026-11-29T19:20:45.630927Z",
                "message": [{"type": "text", "text": "ok"}, {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}],
                "tool_calls": [{"tool_call_id": "c1", "function_name": "run", "arguments": {"command": "ls"}}],
                "observation": {"results": [{"source_call_id": "c1", "content": "hello.txt"}]},
                "metrics": {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4, "cost_usd": 0.25},
            },
            {"step_id": 3, "source": "agent", "model_name": "m-2", "message": "", "metrics": {"prompt_tokens": 1, "completion_tokens": 1}},
        ],
        **changes,
    }


def with_step(**changes: Any) -> dict[str, Any]:
    body = make_trajectory()
    body["steps"][1] = {**body["steps"][1], **changes}
    return body


@pytest.mark.conforms("H-98")
@pytest.mark.parametrize("minor", range(9))
def test_trajectories_of_all_versions_are_valid(minor: int) -> None:
    check_trajectory(make_trajectory(schema_version=f"ATIF-v1.{minor}"))


@pytest.mark.conforms("H-98")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param([], "is not an object", id="list"),
        pytest.param(make_trajectory(schema_version="ATIF-v2.0"), "schema_version", id="version"),
        pytest.param(make_trajectory(steps=[]), "no step", id="no steps"),
        pytest.param(make_trajectory(more=1), "unknown key 'more'", id="unknown key"),
        pytest.param(make_trajectory(agent={"name": "x"}), "no version", id="agent without version"),
        pytest.param(with_step(step_id=3), "step_id is not 2", id="gap"),
        pytest.param(with_step(source="robot"), "source", id="source"),
        pytest.param(with_step(source="user"), "agent's step only", id="metrics of a user"),
        pytest.param(with_step(timestamp="yesterday"), "ISO 8601", id="timestamp"),
        pytest.param(with_step(llm_call_count=0), "without model calls", id="metrics without calls"),
        pytest.param(with_step(llm_call_count=-1), "not a count", id="negative count"),
        pytest.param(with_step(observation={"results": [{"source_call_id": "c9"}]}), "no tool call", id="foreign call"),
        pytest.param(with_step(tool_calls=[{"tool_call_id": "c1", "function_name": "f", "arguments": "x"}]), "arguments", id="arguments"),
        pytest.param(with_step(message=[{"type": "video"}]), "type", id="part"),
        pytest.param(with_step(message=[{"type": "image", "source": {"media_type": "image/bmp", "path": "x"}}]), "media_type", id="bitmap"),
        pytest.param(with_step(metrics={"prompt_tokens": -1}), "plausible", id="negative tokens"),
        pytest.param(with_step(metrics={"cost_usd": float("inf")}), "plausible", id="infinite cost"),
        pytest.param(make_trajectory(subagent_trajectories=[make_trajectory()]), "trajectory_id", id="sub-agent without id"),
    ],
)
def test_what_breaks_a_rule_is_named(body: object, words: str) -> None:
    with pytest.raises(InvalidTrajectory, match=words):
        check_trajectory(body)


def test_figures_are_summed_per_model_and_an_unknown_cost_is_none() -> None:
    assert usage(make_trajectory()) == {
        "n_input_tokens": 11,
        "n_cache_tokens": 4,
        "n_output_tokens": 6,
        "cost_usd": 0.25,
        "model_usage": {
            "m-1": {"n_input_tokens": 10, "n_cache_tokens": 4, "n_output_tokens": 5, "cost_usd": 0.25},
            "m-2": {"n_input_tokens": 1, "n_cache_tokens": None, "n_output_tokens": 1, "cost_usd": None},
        },
    }
    stated = {"total_prompt_tokens": 100, "total_cost_usd": 2.5}
    assert (usage(make_trajectory(final_metrics=stated))["n_input_tokens"], usage(make_trajectory(final_metrics=stated))["cost_usd"]) == (
        100,
        2.5,
    )


def run_command(pod: Pod, files: dict[str, object]) -> dict[str, Any]:
    """A command agent that leaves these files in its logs; returns the result."""
    for name, body in files.items():
        (pod.app / name).write_text(body if isinstance(body, str) else json.dumps(body))
    names = " ".join(files)
    pod.trial["agent"] |= {"kind": "command", "name": "command", "command": f"cp {names} $LOGS/agent/; echo Hello > hello.txt"}
    result = pod.run().result
    assert result is not None
    return result


def test_an_agents_own_figures_win_over_its_trajectory(pod: Pod) -> None:
    result = run_command(
        pod, {"trajectory.json": make_trajectory(), "result.json": {"n_input_tokens": 7, "cost_usd": 1.5, "metadata": {"a": 1}}}
    )
    figures = result["agent_result"]
    assert (figures["n_input_tokens"], figures["n_output_tokens"], figures["cost_usd"], figures["metadata"]) == (7, 6, 1.5, {"a": 1})
    assert set(figures["model_usage"]) == {"m-1", "m-2"}
    assert result["seatrial"]["trajectory"] == "valid"


@pytest.mark.parametrize(
    "changes",
    [{"steps": [[]]}, {"subagent_trajectories": 7}, {"agent": [1]}, {"final_metrics": "x"}, {"steps": [{"step_id": 1, "source": []}]}],
    ids=str,
)
def test_a_trajectory_of_an_odd_shape_is_named_and_fails_nothing(pod: Pod, changes: dict[str, Any]) -> None:
    result = run_command(pod, {"trajectory.json": make_trajectory(**changes)})
    assert result["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert result["seatrial"]["trajectory"] not in (None, "valid")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "NaN", '{"cost_usd": 1e999, "n_input_tokens": true}', "\udcff".encode(errors="replace").decode()]
)
def test_nonsense_in_the_files_costs_nothing_but_the_figures(pod: Pod, text: str) -> None:
    result = run_command(pod, {"trajectory.json": text, "result.json": text})
    assert result["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert set(result["agent_result"].values()) == {None}


@pytest.mark.conforms("H-93", "H-94")
def test_the_oracle_has_no_figures_whatever_lies_in_its_logs(pod: Pod) -> None:
    pod.files["solution/solve.sh"] += 'echo \'{"cost_usd": 1}\' > "$LOGS/agent/result.json"\n'
    result = pod.run().result
    assert result is not None
    assert set(result["agent_result"].values()) == {None}
