from __future__ import annotations

from typing import Any

import pytest

from seatrial.api.evaljob import KeyRef
from seatrial.contract import decode_input, encode_input
from seatrial.core.trial_input import (
    MissingVariable,
    SecretSource,
    build_input,
    environment_env,
    escape,
    needed_refs,
    timeouts,
    verifier_env,
    verifier_sources,
)
from tests.builders import JobBuilder, make_job, make_task


def job_with(toml: dict[str, Any], **spec: Any) -> JobBuilder:
    return make_job().tasks(make_task(toml=toml)).spec(**spec)


@pytest.mark.conforms("H-69")
@pytest.mark.parametrize(
    ("toml", "factors", "expected"),
    [
        pytest.param({}, {}, {"environment": 600, "agent_setup": 360, "agent": None, "verifier": 600}, id="defaults"),
        pytest.param(
            {"agent": {"timeout_sec": 10}, "verifier": {"timeout_sec": 20}, "environment": {"build_timeout_sec": 30}},
            {"multiplier": 2},
            {"environment": 60, "agent_setup": 720, "agent": 20, "verifier": 40},
            id="one factor for all",
        ),
        pytest.param(
            {"agent": {"timeout_sec": 10}},
            {"multiplier": 2, "agent": 3, "agentSetup": 0.5, "verifier": 4, "build": 5},
            {"environment": 3000, "agent_setup": 180, "agent": 30, "verifier": 2400},
            id="an own factor replaces the general one",
        ),
        pytest.param(
            {"agent": {"timeout_sec": 0}}, {}, {"environment": 600, "agent_setup": 360, "agent": 0, "verifier": 600}, id="zero is honoured"
        ),
    ],
)
def test_timeouts_follow_harbors_formula(toml: dict[str, Any], factors: dict[str, float], expected: dict[str, float | None]) -> None:
    job = job_with(toml, timeouts=factors)
    assert timeouts(job.plan().tasks[0], job.job_spec()) == expected


@pytest.mark.conforms("H-43", "H-45")
def test_templates_of_the_environment_become_values_or_references() -> None:
    toml = {
        "environment": {
            "env": {
                "LITERAL": "x",
                "FROM_JOB": "${MODE}",
                "DEFAULT": "${UNSET:-fallback}",
                "EMPTY": "${BLANK:-fallback}",
                "SECRET": "${TOKEN}",
                "CONFIG": "${SETTING}",
                "NOT_A_TEMPLATE": "a${MODE}",
            }
        }
    }
    environment = {
        "env": {"MODE": "fast", "BLANK": ""},
        "envSecrets": {"TOKEN": {"name": "s", "key": "k"}},
        "envConfigMaps": {"SETTING": {"name": "c", "key": "k"}},
    }
    job = job_with(toml, environment=environment)
    assert environment_env(job.plan().tasks[0], job.job_spec()) == [
        {"name": "LITERAL", "value": "x"},
        {"name": "FROM_JOB", "value": "fast"},
        {"name": "DEFAULT", "value": "fallback"},
        {"name": "EMPTY", "value": ""},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "NOT_A_TEMPLATE", "value": "a${MODE}"},
    ]


def test_a_variable_that_no_task_asks_for_goes_nowhere() -> None:
    job = job_with({}, environment={"env": {"MODE": "fast"}, "envSecrets": {"TOKEN": {"name": "s", "key": "k"}}})
    assert environment_env(job.plan().tasks[0], job.job_spec()) == []


@pytest.mark.conforms("H-44")
def test_a_variable_that_nobody_gives_is_a_fault_of_this_trial() -> None:
    job = job_with({"environment": {"env": {"A": "${NOBODY}"}}})
    with pytest.raises(MissingVariable, match=r"'NOBODY' of \[environment.env\] of task bench/task-0 is not given"):
        environment_env(job.plan().tasks[0], job.job_spec())
    job = job_with({"verifier": {"env": {"A": "${NOBODY}"}}})
    with pytest.raises(MissingVariable, match=r"\[verifier.env\]"):
        build_input(job.plan(), job.job_spec(), job.plan().trials[0], retry=0, agent_version="1", limits_bytes={})


def test_only_the_oracle_needs_the_solutions_variables() -> None:
    toml = {"solution": {"env": {"A": "${NOBODY}"}}}
    job = job_with(toml)
    with pytest.raises(MissingVariable, match=r"\[solution.env\]"):
        build_input(job.plan(), job.job_spec(), job.plan().trials[0], retry=0, agent_version="1", limits_bytes={})
    job = job_with(toml, agent={"name": "nop"})
    given = build_input(job.plan(), job.job_spec(), job.plan().trials[0], retry=0, agent_version="1", limits_bytes={})
    assert given["solution_env"] == {}


@pytest.mark.conforms("H-41")
def test_the_jobs_verifier_variables_win_and_its_secrets_are_templates() -> None:
    toml = {"verifier": {"env": {"A": "task", "B": "${B_SOURCE:-b}"}}}
    job = job_with(toml, verifier={"env": {"A": "job"}, "envSecrets": {"JUDGE": {"name": "s", "key": "k"}}})
    env = verifier_env(job.plan().tasks[0], job.job_spec())
    assert env == {"A": "job", "B": "${B_SOURCE:-b}", "JUDGE": "${JUDGE}"}
    needed = needed_refs(env, verifier_sources(job.job_spec()), where="x")
    assert needed == {"JUDGE": SecretSource("secretKeyRef", KeyRef(name="s", key="k"))}


def test_kubernetes_expands_nothing_in_a_value() -> None:
    assert escape("a$(HOST)b$$(X)") == "a$$(HOST)b$$$(X)"


def test_the_input_says_what_the_runner_needs_and_survives_its_encoding() -> None:
    toml = {
        "agent": {"timeout_sec": 30, "user": "agent"},
        "verifier": {"user": 1000},
        "environment": {"workdir": "/w", "healthcheck": {"command": "true"}},
        "artifacts": ["/out"],
    }
    job = job_with(
        toml,
        agent={"command": "run", "model": "p/m", "env": {"MODE": "x"}, "envSecrets": {"OPENAI": {"name": "s", "key": "k"}}},
        artifacts=[{"source": "/more"}],
        errorPolicy={"AgentTimeoutError": {"valid": False}},
    )
    plan = job.plan()
    given = build_input(plan, job.job_spec(), plan.trials[0], retry=2, agent_version="1.0", limits_bytes={"/logs/agent": 5})
    assert decode_input(encode_input(given)) == given
    assert (given["trial"], given["attempt"], given["retry"]) == (plan.trials[0].name, 1, 2)
    assert given["task"] == {"name": "bench/task-0", "checksum": "c" * 64, "source": "suite"}
    assert given["agent"] == {
        "kind": "command",
        "name": "command",
        "version": "1.0",
        "command": "run",
        "model": "p/m",
        "kwargs": {},
        "env_names": ["MODE", "OPENAI"],
        "user": "agent",
    }
    assert given["environment"]["workdir"] == "/w"
    assert given["environment"]["healthcheck"] is not None
    assert [artifact["source"] for artifact in given["artifacts"]] == ["/out", "/more"]
    assert given["error_policy"] == {"AgentTimeoutError": {"valid": False}}
    assert given.get("limits") == {"/logs/agent": 5}
