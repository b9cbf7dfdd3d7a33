from __future__ import annotations

from typing import Any

import pytest

from seatrial.api.evaljob import KeyRef
from seatrial.contract import decode_input, encode_input
from seatrial.core.trial_input import (
    STEP_SECONDS,
    MissingVariable,
    SecretSource,
    build_input,
    environment_env,
    escape,
    grading_refs,
    longest_seconds,
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
        {"name": "NOT_A_TEMPLATE", "value": "a$${MODE}"},
        {"name": "MODE", "value": "fast"},
        {"name": "BLANK", "value": ""},
    ]


def test_a_secret_that_no_task_asks_for_goes_nowhere() -> None:
    job = job_with({}, environment={"envSecrets": {"TOKEN": {"name": "s", "key": "k"}}})
    assert environment_env(job.plan().tasks[0], job.job_spec()) == []


@pytest.mark.conforms("H-39", "H-45")
def test_the_jobs_variables_win_over_the_tasks_and_their_templates_are_resolved() -> None:
    job = job_with(
        {"environment": {"env": {"MODE": "slow", "TASK": "task"}}},
        environment={"env": {"MODE": "fast", "KEY": "${TOKEN}"}, "envSecrets": {"TOKEN": {"name": "s", "key": "k"}}},
    )
    assert environment_env(job.plan().tasks[0], job.job_spec()) == [
        {"name": "MODE", "value": "fast"},
        {"name": "TASK", "value": "task"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]


@pytest.mark.conforms("N-208")
def test_traces_are_collected_first_and_announced_to_the_tests() -> None:
    job = job_with({"artifacts": ["/app/out"]}, traceDir="/app/traces", verifier={"env": {"JUDGE": "x"}})
    given = build_input(job.plan(), job.job_spec(), job.plan().trials[0], retry=0, agent_version="1", limits_bytes={})
    assert [(item["source"], item["destination"]) for item in given["artifacts"]] == [("/app/traces", "traces"), ("/app/out", None)]
    assert given["verifier"]["env"] == {"TRACE_DIR": "/app/traces", "JUDGE": "x"}


@pytest.mark.conforms("H-94")
def test_mcp_servers_of_the_job_replace_the_tasks_and_the_oracle_gets_none() -> None:
    toml = {
        "environment": {
            "skills_dir": "/skills",
            "mcp_servers": [{"name": "a", "url": "http://task"}, {"name": "b", "transport": "stdio", "command": "serve"}],
        }
    }
    own = {"name": "a", "url": "http://job", "headers": {"X-Key": "${KEY}"}}
    job = job_with(toml, agent={"command": "work", "mcpServers": [own]})
    given = build_input(job.plan(), job.job_spec(), job.plan().trials[0], retry=0, agent_version="1", limits_bytes={})["agent"]
    assert given.get("skills_dir") == "/skills"
    assert given.get("mcp_servers") == [
        {"name": "a", "transport": "sse", "url": "http://job", "command": None, "args": [], "headers": {"X-Key": "${KEY}"}},
        {"name": "b", "transport": "stdio", "url": None, "command": "serve", "args": [], "headers": {}},
    ]
    job = job_with(toml)
    oracle = build_input(job.plan(), job.job_spec(), job.plan().trials[0], retry=0, agent_version="1", limits_bytes={})["agent"]
    assert {"skills_dir", "mcp_servers", "skills"} & set(oracle) == set()


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
    assert escape("a$(HOST)b$$(X)$HOME") == "a$$(HOST)b$$$$(X)$$HOME"


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


STEPS: dict[str, Any] = {
    "agent": {"timeout_sec": 100.0, "user": "dev"},
    "verifier": {"timeout_sec": 50.0, "env": {"A": "task", "B": "task", "C": "task"}, "collect": [{"command": "save"}]},
    "artifacts": ["/task"],
    "multi_step_reward_strategy": "final",
    "steps": [
        {"name": "one"},
        {
            "name": "two",
            "agent": {"timeout_sec": 7.0, "user": 1234},
            "verifier": {"timeout_sec": 3.0, "user": "judge", "env": {"B": "step", "C": "step"}, "collect": [{"command": "more"}]},
            "min_reward": {"reward": 0.5},
            "healthcheck": {"command": "true"},
            "artifacts": ["/step"],
        },
    ],
}


@pytest.mark.conforms("H-41", "H-46", "H-70")
def test_a_step_has_its_own_values_first_and_never_the_tasks_verifier_limit() -> None:
    job = make_job().tasks(make_task(toml=STEPS)).spec(
        timeouts={"multiplier": 2}, verifier={"env": {"C": "job"}}, artifacts=[{"source": "/job"}]
    )  # fmt: skip
    plan = job.plan()
    given = build_input(plan, job.job_spec(), plan.trials[0], retry=0, agent_version="1", limits_bytes={})
    one, two = given["steps"]
    assert (one["agent_timeout"], one["verifier_timeout"], one["agent_user"], one["verifier_user"]) == (200.0, 1200.0, "dev", None)
    assert (two["agent_timeout"], two["verifier_timeout"], two["agent_user"], two["verifier_user"]) == (14.0, 6.0, 1234, "judge")
    assert (one["verifier_env"], two["verifier_env"]) == (
        {"A": "task", "B": "task", "C": "job"},
        {"A": "task", "B": "step", "C": "job"},
    )
    assert [[hook["command"] for hook in step["collect"]] for step in (one, two)] == [["save"], ["save", "more"]]
    assert [[item["source"] for item in step["artifacts"]] for step in (one, two)] == [["/task", "/job"], ["/task", "/job", "/step"]]
    assert (one["min_reward"], two["min_reward"], given["reward_strategy"]) == (None, {"reward": 0.5}, "final")
    assert one["healthcheck"] is None
    assert two["healthcheck"] is not None
    assert two["healthcheck"]["command"] == "true"


def test_the_pods_deadline_has_room_for_all_steps_and_healthchecks() -> None:
    plain = make_job().tasks(make_task(toml={"agent": {"timeout_sec": 10.0}}))
    checked = make_job().tasks(
        make_task(toml={"agent": {"timeout_sec": 10.0}, "environment": {"healthcheck": {"command": "true", "start_period_sec": 60.0}}})
    )
    stepped = make_job().tasks(make_task(toml=STEPS))
    unlimited = make_job().tasks(make_task(toml={"steps": [{"name": "one"}]}))
    seconds = [longest_seconds(job.plan().tasks[0], job.job_spec()) for job in (plain, checked, stepped, unlimited)]
    base = 600.0 + 360.0
    # Three tries of 30 s and their pauses, one more that began in the start period.
    check = 4 * 35.0
    assert seconds == [base + 610.0, base + 610.0 + 60.0 + check, base + check + 120.0 + 2 * STEP_SECONDS + 100.0 + 600.0 + 7.0 + 3.0, None]


@pytest.mark.conforms("H-44")
def test_a_variable_that_only_a_step_names_is_missed_before_the_start() -> None:
    task = make_task(toml={"steps": [{"name": "one", "verifier": {"env": {"KEY": "${JUDGE_KEY}"}}}]})
    job = make_job().tasks(task)
    with pytest.raises(MissingVariable, match=r"'JUDGE_KEY' of \[verifier.env\] of step one"):
        grading_refs(task, job.job_spec())
    given = job.spec(verifier={"envSecrets": {"JUDGE_KEY": {"name": "judge", "key": "token"}}})
    assert list(grading_refs(task, given.job_spec())) == ["JUDGE_KEY"]
