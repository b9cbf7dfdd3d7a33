"""Tasks with steps: one environment, each step prepared, run, kept and graded for itself. Rules: harbor.md 4.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from seatrial.contract import ErrorInfo, HealthcheckInput, StepInput
from seatrial_runner.report import Report
from seatrial_runner.result import Evidence, build_result
from seatrial_runner.rewards import Rewards
from seatrial_runner.steps import is_below, trial_rewards
from seatrial_runner.verifier import deciding_error

if TYPE_CHECKING:
    from .conftest import Outcome, Pod

REWARD = '#!/bin/bash\necho {} > "$LOGS/verifier/reward.txt"\n'


def said(error: str | None) -> ErrorInfo | None:
    return None if error is None else {"type": error, "cause": "agent", "message": "x"}


@pytest.mark.conforms("H-125")
@pytest.mark.parametrize(
    ("rewards", "error", "step_errors", "valid"),
    [
        pytest.param({"reward": 1.0}, None, (), True, id="a reward"),
        pytest.param({"reward": 0.0}, None, (), True, id="a reward of 0"),
        pytest.param(None, None, (), False, id="no reward"),
        pytest.param({}, None, (), False, id="an empty mapping"),
        pytest.param({"reward": 1.0}, "AgentTimeoutError", (), True, id="an error that allows it"),
        pytest.param({"reward": 1.0}, "SomethingElse", (), True, id="an unknown error"),
        pytest.param({"reward": 1.0}, "ApiRateLimitError", (), False, id="an error that does not"),
        pytest.param({"reward": 1.0}, None, (None, "RuntimeError"), True, id="a step's unknown error"),
        pytest.param({"reward": 1.0}, None, (None, "RewardFileNotFoundError"), False, id="a step without a reward file"),
        pytest.param({"reward": 1.0}, "AgentTimeoutError", ("AgentTimeoutError", "ApiError", None), False, id="one of several"),
        pytest.param(None, "AgentTimeoutError", (), False, id="an error that allows it without a reward"),
    ],
)
def test_a_reward_is_valid_where_there_is_one_and_every_error_of_trial_and_steps_allows_it(
    pod: Pod, rewards: dict[str, float] | None, error: str | None, step_errors: tuple[str | None, ...], valid: bool
) -> None:
    report, steps = Report(), [Report(f"step-{number}") for number in range(len(step_errors))]
    report.rewards, report.error = None if rewards is None else Rewards(rewards), said(error)
    for step, name in zip(steps, step_errors, strict=True):
        step.error = said(name)
    deciding = deciding_error(pod.trial, report, steps)
    assert build_result(pod.trial, report, steps, Evidence((), None, None), deciding)["reward_valid"] is valid


def make_step(name: str, **fields: Any) -> StepInput:
    step = StepInput(
        name=name,
        agent_user=None,
        verifier_user=None,
        verifier_env={},
        agent_timeout=20.0,
        verifier_timeout=20.0,
        healthcheck=None,
        collect=[],
        artifacts=[],
        min_reward=None,
    )
    step.update(fields)  # type: ignore[typeddict-item]
    return step


def make_steps(pod: Pod, *steps: StepInput, strategy: str = "mean") -> None:
    """A task whose root tests give 1 and whose solution does nothing; a step's files override them."""
    pod.files = {"task.toml": 'version = "1.0"\n', "environment/Dockerfile": "FROM scratch\n"}
    pod.files["solution/solve.sh"] = "#!/bin/bash\ntrue\n"
    pod.files["tests/test.sh"] = REWARD.format(1)
    for step in steps:
        pod.files[f"steps/{step['name']}/instruction.md"] = f"Do {step['name']}.\n"
    pod.trial["steps"] = list(steps)
    pod.trial["reward_strategy"] = strategy  # type: ignore[typeddict-item]


def steps_of(outcome: Outcome) -> list[tuple[str, Any, str | None]]:
    """Name, rewards and error of every executed step."""
    assert outcome.result is not None
    return [
        (
            step["step_name"],
            step["verifier_result"] and step["verifier_result"]["rewards"],
            step["exception_info"] and step["exception_info"]["exception_type"],
        )
        for step in outcome.result["step_results"]
    ]


@pytest.mark.conforms("H-73", "H-75", "H-91")
def test_steps_share_an_environment_and_each_has_its_own_files_tests_and_solution(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two, with space"))
    pod.files |= {
        "solution/solve.sh": '#!/bin/bash\necho root >> "$APP/who"\n',
        "tests/test.sh": '#!/bin/bash\ncat "$TESTS/value" > "$LOGS/verifier/reward.txt"; ls "$TESTS"; cat "$APP/who"\n',
        "tests/value": "0.25",
        "steps/one/workdir/data.txt": "data of one",
        "steps/one/workdir/setup.sh": 'echo "set up in $PWD" > setup.log\n',
        "steps/two, with space/solution/solve.sh": '#!/bin/bash\n[ -e "$APP/data.txt" ] && echo two >> "$APP/who"\n',
        "steps/two, with space/tests/value": "0.75",
    }
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 0.5}, None)
    assert steps_of(outcome) == [("one", {"reward": 0.25}, None), ("two, with space", {"reward": 0.75}, None)]
    assert outcome.logs["steps/one/verifier/test-stdout.txt"] == b"test.sh\nvalue\nroot\n"
    assert outcome.logs["steps/two, with space/verifier/test-stdout.txt"] == b"test.sh\nvalue\nroot\ntwo\n"
    assert (pod.app / "setup.log").read_text() == f"set up in {pod.app}\n"
    assert outcome.result is not None
    nothing = ("agent_result", "agent_execution", "verifier", "verifier_environment_mode", "exception_info")
    assert [outcome.result[name] for name in nothing] == [None] * 5
    assert outcome.result["reward_valid"] is True
    assert all(step["agent_execution"] and step["verifier"] for step in outcome.result["step_results"])
    assert outcome.result["environment_setup"] is not None


@pytest.mark.conforms("H-75", "H-76")
def test_what_a_step_leaves_in_its_log_folders_is_gone_and_the_rest_stays(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two"))
    pod.files |= {
        "steps/one/solution/solve.sh": '#!/bin/bash\ncd "$LOGS"; touch agent/mine artifacts/mine "$SOLUTION/x"\n',
        "steps/one/tests/extra": "",
        "steps/one/tests/test.sh": '#!/bin/bash\necho 1 > "$LOGS/verifier/extra"\necho 1 > "$LOGS/verifier/reward.txt"\n',
        "steps/two/solution/solve.sh": '#!/bin/bash\nls "$LOGS/agent" "$LOGS/verifier" "$LOGS/artifacts" "$SOLUTION"; ls "$TESTS"\n',
    }
    outcome = pod.run()
    seen = outcome.logs["steps/two/agent/oracle.txt"].decode().replace(str(pod.logs), "LOGS").replace(str(pod.root / "env"), "")
    assert seen == "LOGS/agent:\noracle.txt\n\nLOGS/artifacts:\nmine\n\nLOGS/verifier:\n\n/solution:\nsolve.sh\nx\n"
    assert "steps/one/agent/mine" in outcome.logs
    assert "steps/one/verifier/extra" in outcome.logs
    assert "steps/two/verifier/extra" not in outcome.logs
    assert f"steps/two/artifacts{pod.logs}/artifacts/mine" in outcome.logs


@pytest.mark.conforms("H-74", "H-79")
def test_a_failed_setup_stops_the_trial_and_the_earlier_reward_stays_valid(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two"), make_step("three"))
    pod.files["steps/two/workdir/setup.sh"] = "exit 1\n"
    outcome = pod.run()
    assert steps_of(outcome) == [("one", {"reward": 1.0}, None), ("two", None, "RuntimeError")]
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "RuntimeError")
    assert outcome.result is not None
    assert (outcome.result["reward_valid"], outcome.result["exception_info"]) == (True, None)


@pytest.mark.conforms("H-79")
def test_a_step_without_a_reward_makes_the_trials_reward_invalid(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two"), make_step("three"))
    pod.files["steps/two/tests/test.sh"] = "#!/bin/bash\ntrue\n"
    outcome = pod.run()
    assert steps_of(outcome) == [("one", {"reward": 1.0}, None), ("two", None, "RewardFileNotFoundError")]
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "RewardFileNotFoundError")
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is False


@pytest.mark.conforms("H-73")
def test_a_step_that_never_gets_healthy_is_an_error_of_the_step(pod: Pod) -> None:
    check = HealthcheckInput(command="false", interval_sec=0.01, timeout_sec=5.0, start_period_sec=0.0, start_interval_sec=0.01, retries=2)
    make_steps(pod, make_step("one", healthcheck=check), make_step("two"))
    outcome = pod.run()
    assert steps_of(outcome) == [("one", None, "HealthcheckError")]
    assert (outcome.verdict.rewards, outcome.error) == (None, "HealthcheckError")


@pytest.mark.conforms("H-77")
@pytest.mark.parametrize(
    ("minimum", "executed"),
    [
        pytest.param(0.4, ["one", "two"], id="number met"),
        pytest.param(0.6, ["one"], id="number missed"),
        pytest.param({"reward": 0.5, "style": 0.1}, ["one"], id="key missing"),
        pytest.param({}, ["one", "two"], id="empty table"),
    ],
)
def test_min_reward_decides_whether_the_next_step_runs(pod: Pod, minimum: float | dict[str, float], executed: list[str]) -> None:
    make_steps(pod, make_step("one", min_reward=minimum), make_step("two"))
    pod.files["steps/one/tests/test.sh"] = REWARD.format("0.5")
    outcome = pod.run()
    assert [name for name, _, _ in steps_of(outcome)] == executed
    assert outcome.error is None


@pytest.mark.conforms("H-77", "H-118")
def test_min_reward_does_not_count_where_verification_is_disabled(pod: Pod) -> None:
    make_steps(pod, make_step("one", min_reward=1.0), make_step("two"))
    pod.trial["verifier"]["disable"] = True
    outcome = pod.run()
    assert steps_of(outcome) == [("one", None, None), ("two", None, None)]
    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.is_disabled) == (None, None, True)


@pytest.mark.conforms("H-65", "H-78")
def test_a_graded_timeout_of_a_step_does_not_stop_the_trial(pod: Pod) -> None:
    make_steps(pod, make_step("one", agent_timeout=0.3), make_step("two"), strategy="final")
    pod.files["steps/one/solution/solve.sh"] = "#!/bin/bash\nsleep 30\n"
    pod.files["steps/one/tests/test.sh"] = REWARD.format(0)
    outcome = pod.run()
    assert steps_of(outcome) == [("one", {"reward": 0.0}, "AgentTimeoutError"), ("two", {"reward": 1.0}, None)]
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "AgentTimeoutError")
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is True


def test_nineteen_steps_with_strategy_final(pod: Pod) -> None:
    make_steps(pod, *(make_step(f"s{number}") for number in range(19)), strategy="final")
    for number in range(19):
        pod.files[f"steps/s{number}/tests/test.sh"] = REWARD.format(number)
    outcome = pod.run()
    assert [rewards for _, rewards, _ in steps_of(outcome)] == [{"reward": float(number)} for number in range(19)]
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 18.0}, None)


def test_an_environment_that_dies_between_steps_is_an_error_without_a_reward(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two"))
    pod.files["steps/two/solution/solve.sh"] = "#!/bin/bash\nread -r _ _ _ envd _ < /proc/$PPID/stat\nkill -9 $envd\nsleep 5\n"
    outcome = pod.run()
    assert [step[:2] for step in steps_of(outcome)] == [("one", {"reward": 1.0}), ("two", None)]
    assert outcome.reason == "EnvironmentExited"
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is False


def test_a_planted_reward_of_one_step_is_flagged_and_not_counted(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two"))
    pod.files["steps/two/solution/solve.sh"] = REWARD.format(9)
    pod.files["steps/two/tests/test.sh"] = REWARD.format(0)
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.tampered) == ({"reward": 0.5}, True)


@pytest.mark.conforms("H-78")
@pytest.mark.parametrize(
    ("results", "strategy", "expected"),
    [
        pytest.param([{"reward": 1.0}, None], "mean", {"reward": 1.0}, id="a step without result is not in the divisor"),
        pytest.param([{"a": 1.0}, {"b": 1.0}], "mean", {"a": 0.5, "b": 0.5}, id="a missing key is 0"),
        pytest.param([{"a": 1.0}, {}], "mean", {"a": 0.5}, id="an empty result counts"),
        pytest.param([None, None], "mean", None, id="nothing"),
        pytest.param([{}, {}], "mean", None, id="no keys"),
        pytest.param([{"a": 1.0}, {"a": 0.0}], "final", {"a": 0.0}, id="final"),
        pytest.param([{"a": 1.0}, None], "final", None, id="final without result"),
    ],
)
def test_trial_rewards(results: list[dict[str, float] | None], strategy: Any, expected: dict[str, float] | None) -> None:
    assert trial_rewards(results, strategy) == expected


def test_a_missing_result_is_below_any_minimum() -> None:
    assert (is_below(-1e9, None), is_below(None, None), is_below(0.5, {"reward": 0.5})) == (True, False, False)


def test_a_link_of_an_earlier_step_to_a_later_ones_tests_is_cut(pod: Pod) -> None:
    make_steps(pod, make_step("one"), make_step("two"))
    pod.files["solution/solve.sh"] = '#!/bin/bash\n[ -e "$APP/made" ] || ln -s "$TESTS/expected" "$APP/answer"; touch "$APP/made"\n'
    pod.files["steps/two/tests/expected"] = "42\n"
    pod.files["steps/two/tests/test.sh"] = '#!/bin/bash\n[ -e "$APP/answer" ]; echo $((1 - $?)) > "$LOGS/verifier/reward.txt"\n'
    outcome = pod.run()
    assert [rewards for _, rewards, _ in steps_of(outcome)] == [{"reward": 1.0}, {"reward": 0.0}]
    assert outcome.verdict.tampered
