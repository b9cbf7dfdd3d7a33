"""Whole trials with the real envd: what the operator is told and what is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from seatrial import contract
from seatrial_runner import grade, programs
from seatrial_runner.channel import Channel
from seatrial_runner.clock import STAMP_LAG_NS
from seatrial_runner.ends import write_end

if TYPE_CHECKING:
    from .conftest import Pod

from .conftest import wait_until

REWARD_1 = '#!/bin/bash\necho 1 > "$LOGS/verifier/reward.txt"\n'
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="switching users needs root")


def make_command_agent(pod: Pod, command: str) -> None:
    pod.trial["agent"] |= {"kind": "command", "name": "command", "command": command}


# --- the good case -------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-88", "H-93", "H-107", "N-119", "N-168")
def test_oracle_passes_a_good_task_and_everything_is_kept(pod: Pod) -> None:
    outcome = pod.run()

    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.stored) == ({"reward": 1.0}, None, True)
    assert outcome.logs["agent/oracle.txt"] == b"solved\n"
    assert outcome.logs["verifier/test-stdout.txt"] == b"tested\n"
    assert outcome.logs["verifier/reward.txt"] == b"1\n"
    assert outcome.result is not None
    assert outcome.result["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert outcome.result["reward_valid"] is True
    assert outcome.result["exception_info"] is None
    assert set(outcome.result["agent_result"].values()) == {None}


@pytest.mark.conforms("H-92")
def test_nop_leaves_everything_untouched_and_is_graded(pod: Pod) -> None:
    pod.trial["agent"] |= {"kind": "nop", "name": "nop"}
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 0.0}, None)
    assert list(pod.app.iterdir()) == []


@pytest.mark.conforms("H-120")
def test_the_result_has_every_field_of_harbors_trial_result(pod: Pod) -> None:
    pod.trial["agent"]["model"] = "anthropic/claude-x"
    result = pod.run().result
    assert result is not None
    assert set(result) == {
        *("schema_version", "id", "task_name", "trial_name", "trial_uri", "task_id", "source", "task_checksum", "config", "agent_info"),
        *("agent_result", "verifier_result", "verifier_environment_mode", "exception_info", "started_at", "finished_at"),
        *("environment_setup", "agent_setup", "agent_execution", "verifier", "step_results", "reward_valid", "seatrial"),
    }
    model = {"name": "claude-x", "provider": "anthropic"}
    assert result["agent_info"] == {"name": "oracle", "version": "1.0.0", "model_info": model}
    assert result["task_id"] == {"path": "bench/hello"}
    for phase in ("environment_setup", "agent_setup", "agent_execution", "verifier"):
        assert result["started_at"][:4] <= result[phase]["started_at"] <= result[phase]["finished_at"] <= result["finished_at"]
    logs = pod.outcome().verdict.logs_sha256
    assert (result["seatrial"]["logs_sha256"], result["seatrial"]["retry"], result["seatrial"]["tampered"]) == (logs, 0, False)


# --- rewards -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-107")
def test_the_exit_code_of_the_test_script_is_ignored(pod: Pod) -> None:
    pod.files["tests/test.sh"] = REWARD_1 + "exit 7\n"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, None)


@pytest.mark.conforms("H-109", "N-170")
def test_a_script_that_dies_before_the_reward_is_an_error_and_no_score(pod: Pod) -> None:
    pod.files["tests/test.sh"] = "#!/bin/bash\nset -e\necho before\nfalse\n" + REWARD_1
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, "RewardFileNotFoundError")
    assert outcome.message.endswith("the test script ended with exit code 1")
    assert outcome.logs["verifier/test-stdout.txt"] == b"before\n"
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is False


def test_crlf_line_ends_are_named(pod: Pod) -> None:
    pod.files["tests/test.sh"] = REWARD_1.replace("\n", "\r\n")
    outcome = pod.run()
    assert outcome.error == "RewardFileNotFoundError"
    assert "CRLF" in outcome.message


def test_a_missing_interpreter_is_named(pod: Pod) -> None:
    pod.files["tests/test.sh"] = "#!/opt/none/python9\nprint()\n"
    outcome = pod.run()
    assert outcome.error == "RewardFileNotFoundError"
    assert "/opt/none/python9" in outcome.message


@pytest.mark.conforms("N-175")
def test_a_script_that_starts_with_a_line_break_is_run_by_the_shell(pod: Pod) -> None:
    pod.files["tests/test.sh"] = "\n    " + REWARD_1
    assert pod.run().verdict.rewards == {"reward": 1.0}


@pytest.mark.conforms("H-108")
def test_json_beats_text_and_a_bad_one_does_not_fall_back(pod: Pod) -> None:
    pod.files["tests/test.sh"] = REWARD_1 + 'echo \'{"reward": "none"}\' > $LOGS/verifier/reward.json\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.error and outcome.verdict.error["cause"]) == (
        None,
        "VerifierOutputParseError",
        "verifier",
    )


@pytest.mark.conforms("H-111")
def test_an_empty_object_is_no_error_and_no_valid_reward(pod: Pod) -> None:
    pod.files["tests/test.sh"] = "#!/bin/bash\necho '{}' > $LOGS/verifier/reward.json\n"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({}, None)
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is False


def test_components_are_kept_in_the_result(pod: Pod) -> None:
    reward = '{"reward": 0.5, "components": [{"name": "a", "score": 1}]}'
    pod.files["tests/test.sh"] = f"#!/bin/bash\necho '{reward}' > $LOGS/verifier/reward.json\n"
    outcome = pod.run()
    assert outcome.verdict.rewards == {"reward": 0.5}
    assert outcome.result is not None
    assert outcome.result["seatrial"]["reward_components"] == [{"name": "a", "score": 1}]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        pytest.param("ln -s /etc/hostname $LOGS/verifier/reward.txt", "no regular file", id="link"),
        pytest.param("mkfifo $LOGS/verifier/reward.txt", "no regular file", id="pipe"),
        pytest.param("mkdir $LOGS/verifier/reward.json", "no regular file", id="folder"),
        pytest.param("head -c 1100000 /dev/zero > $LOGS/verifier/reward.txt", "1100000 bytes", id="oversize"),
        pytest.param("truncate -s 100G $LOGS/verifier/reward.json", "107374182400 bytes", id="sparse"),
    ],
)
def test_a_reward_that_is_no_small_regular_file_is_refused_unread(pod: Pod, command: str, words: str) -> None:
    pod.files["tests/test.sh"] = f"#!/bin/bash\n{command}\n"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, "VerifierOutputParseError")
    assert words in outcome.message


# --- cheating ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-106")
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param("echo 1 > $LOGS/verifier/reward.txt", id="text"),
        pytest.param("echo '{\"reward\": 1}' > $LOGS/verifier/reward.json", id="json"),
        pytest.param("echo 1 > $APP/mine; ln -s $APP/mine $LOGS/verifier/reward.txt", id="link"),
        pytest.param("mkdir -p $LOGS/verifier/reward.json/x", id="folder"),
    ],
)
def test_a_planted_reward_is_removed_and_flagged(pod: Pod, plant: str) -> None:
    pod.files["solution/solve.sh"] = f"#!/bin/bash\n{plant}\n"
    pod.files["tests/test.sh"] = '#!/bin/bash\necho 0 > "$LOGS/verifier/reward.txt"\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.tampered, outcome.error) == ({"reward": 0.0}, True, None)


def test_a_planted_reward_alone_is_no_score(pod: Pod) -> None:
    pod.files["solution/solve.sh"] = "#!/bin/bash\necho 1 > $LOGS/verifier/reward.txt\n"
    pod.files["tests/test.sh"] = "#!/bin/bash\nexit 0\n"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.tampered) == (None, "RewardFileNotFoundError", True)


def test_planted_tests_and_pipes_are_replaced(pod: Pod) -> None:
    pod.files["solution/solve.sh"] = (
        "#!/bin/bash\nmkdir -p $TESTS; echo 'echo 1 > $LOGS/verifier/reward.txt' > $TESTS/test.sh; touch $TESTS/conftest.py\n"
        "mkfifo $LOGS/verifier/test-stdout.txt\n"
    )
    pod.files["tests/test.sh"] = '#!/bin/bash\nls "$TESTS"\necho 0 > "$LOGS/verifier/reward.txt"\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 0.0}, None)
    assert outcome.logs["verifier/test-stdout.txt"] == b"test.sh\n"


def test_planted_tests_behind_a_link_do_not_lead_outside(pod: Pod) -> None:
    pod.files["solution/solve.sh"] = '#!/bin/bash\necho keep > "$APP/precious"; ln -s "$APP" "$TESTS"\n'
    pod.files["tests/test.sh"] = REWARD_1
    outcome = pod.run()
    assert outcome.verdict.rewards == {"reward": 1.0}
    assert (pod.app / "precious").read_text() == "keep\n"
    assert not (pod.app / "test.sh").exists()


@pytest.mark.parametrize(
    "link",
    [
        pytest.param("ln -s $TESTS/expected answer", id="file"),
        pytest.param("ln -s $TESTS x; ln -s x/expected answer", id="chain"),
        pytest.param("mkdir d; ln -s ../../tests/expected d/answer; ln -s d/answer answer", id="relative"),
        pytest.param("ln -s /proc/self/root/$TESTS/expected answer", id="through the root of a process"),
        pytest.param("ln -s /proc/self/cwd/../tests/expected answer", id="through the working directory of a process"),
        pytest.param("ln -s //proc/./self/cwd/../tests/expected answer", id="through a working directory, spelt otherwise"),
        pytest.param("ln -s /proc x; ln -s x/self y; ln -s y/cwd/../tests/expected answer", id="a working directory, in parts"),
        pytest.param("ln -s /proc/self/fd/3 answer", id="a file that the reader has open"),
        pytest.param("ln -s /dev/fd/3 answer", id="a file that the reader has open, by its other name"),
        pytest.param("ln -s made-later/../../tests/expected answer", id="through a folder that the tests make"),
    ],
)
def test_a_link_to_the_tests_that_are_to_come_shows_nothing_of_them(pod: Pod, link: str) -> None:
    pod.files["solution/solve.sh"] = f"#!/bin/bash\ncd $APP; {link}; ln -s own good\n"
    pod.files["tests/expected"] = "42\n"
    pod.files["tests/test.sh"] = (
        '#!/bin/bash\ncd "$APP"; ls good; mkdir -p made-later\n'
        'if cmp "$TESTS/expected" answer; then echo 1; else echo 0; fi > "$LOGS/verifier/reward.txt"\n'
    )
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.tampered, outcome.error) == ({"reward": 0.0}, True, None)
    assert outcome.logs["verifier/test-stdout.txt"].startswith(b"good\n")


@pytest.mark.parametrize("link", ["/dev/stdout", "/proc/self/mounts", "own", "nothing"])
def test_a_link_to_an_output_or_to_nothing_of_the_tests_stays(pod: Pod, link: str) -> None:
    pod.files["solution/solve.sh"] = f"#!/bin/bash\nln -s {link} $APP/log\n"
    pod.files["tests/test.sh"] = '#!/bin/bash\ntest -L "$APP/log" && echo 1 > "$LOGS/verifier/reward.txt"\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.tampered, outcome.verdict.changed_tools) == ({"reward": 1.0}, False, 0)


def test_links_that_cannot_be_looked_for_among_many_files_are_flagged(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade, "_LINK_ENTRIES", 20)
    pod.files["solution/solve.sh"] = "#!/bin/bash\ncd $APP; touch $(seq 20); ln -s $TESTS/expected answer\n"
    pod.files["tests/test.sh"] = REWARD_1
    outcome = pod.run()
    assert outcome.result is not None
    named = ["unknown: not all links could be looked at, and one may lead to the tests"]
    assert (outcome.verdict.changed_tools, outcome.result["seatrial"]["changed_names"]) == (1, named)


def test_links_that_envd_refuses_to_look_for_are_flagged(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade, "_LINK_ENTRIES", 0)
    pod.files["solution/solve.sh"] = "#!/bin/bash\n"
    pod.files["tests/test.sh"] = REWARD_1
    outcome = pod.run()
    assert outcome.result is not None
    named = ["unknown: links to the tests could not be looked for"]
    assert (outcome.verdict.rewards, outcome.result["seatrial"]["changed_names"]) == ({"reward": 1.0}, named)


@pytest.mark.conforms("H-37")
def test_tests_and_solution_are_absent_while_another_agent_works(pod: Pod) -> None:
    make_command_agent(pod, 'ls -d "$TESTS" "$SOLUTION"; true')
    outcome = pod.run()
    assert outcome.logs["agent/agent.txt"].count(b"cannot access") == 2


@pytest.mark.conforms("H-86")
def test_a_detached_server_answers_the_tests_and_is_counted(pod: Pod) -> None:
    program = (
        "import http.server as h, os; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
        "open(os.environ['APP'] + '/port', 'w').write(f'{s.server_port} {os.getpid()}'); s.serve_forever()"
    )
    pod.files["solution/solve.sh"] = (
        f'#!/bin/bash\nnohup setsid "{sys.executable}" -c "{program}" &\nuntil [ -s "$APP/port" ]; do sleep 0.02; done\n'
    )
    pod.files["tests/test.sh"] = (
        '#!/bin/bash\nread port pid < "$APP/port"\n'
        'if exec 3<>/dev/tcp/127.0.0.1/$port; then echo 1; else echo 0; fi > "$LOGS/verifier/reward.txt"\n'
    )
    try:
        outcome = pod.run()
    finally:
        _kill(int((pod.app / "port").read_text().split()[1]))
    assert (outcome.verdict.rewards, outcome.verdict.leftover_processes) == ({"reward": 1.0}, 1)


@pytest.mark.parametrize(
    ("left", "tampered"), [("", False), ("nohup setsid sleep 60 & echo $! > $APP/pid", True)], ids=["nobody", "a process"]
)
def test_two_reward_files_beside_what_the_agent_left_running_are_named(pod: Pod, left: str, tampered: bool) -> None:
    pod.files["solution/solve.sh"] = f"#!/bin/bash\n{left}\n"
    pod.files["tests/test.sh"] = REWARD_1 + "echo '{\"reward\": 1}' > $LOGS/verifier/reward.json\n"
    try:
        outcome = pod.run()
    finally:
        if (file := pod.app / "pid").exists():
            _kill(int(file.read_text()))
    assert (outcome.verdict.rewards, outcome.verdict.tampered) == ({"reward": 1.0}, tampered)


@pytest.mark.parametrize("mode", ["shared", "separate"])
def test_a_program_that_changed_while_the_agent_ran_is_counted_and_named(pod: Pod, mode: Literal["shared", "separate"]) -> None:
    for name in ("kept", "replaced"):
        (pod.root / "env/bin" / name).write_text("#!/bin/sh\n")
    time.sleep(2 * STAMP_LAG_NS / 1e9)
    pod.files["solution/solve.sh"] = "#!/bin/bash\ncd $APP/../bin && cp kept new && mv new replaced && touch -r kept replaced\n"
    pod.files["tests/test.sh"] = REWARD_1
    pod.trial["verifier"]["mode"] = mode
    outcome = pod.run()
    assert outcome.result is not None
    expected = (1, [str(pod.root / "env/bin/replaced")]) if mode == "shared" else (0, [])
    assert (outcome.verdict.changed_tools, outcome.result["seatrial"]["changed_names"]) == expected


def test_programs_that_cannot_be_looked_at_are_flagged_all_the_same(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_ENTRIES", 2)
    for name in "abc":
        (pod.root / "env/bin" / name).touch()
    time.sleep(2 * STAMP_LAG_NS / 1e9)
    outcome = pod.run()
    assert outcome.result is not None
    named = ["unknown: there are more programs than can be looked at"]
    assert (outcome.verdict.changed_tools, outcome.result["seatrial"]["changed_names"]) == (1, named)


def test_a_leftover_process_whose_first_thread_has_ended_is_counted(pod: Pod) -> None:
    program = (
        "import ctypes, os, threading, time; open(os.environ['APP'] + '/pid', 'w').write(str(os.getpid())); "
        "threading.Thread(target=time.sleep, args=(60,)).start(); ctypes.CDLL(None).pthread_exit(None)"
    )
    pod.files["solution/solve.sh"] = (
        f'#!/bin/bash\nnohup setsid "{sys.executable}" -c "{program}" &\n'
        'until [ -s "$APP/pid" ] && grep -q "State:.Z" "/proc/$(cat "$APP/pid")/status"; do sleep 0.02; done\n'
    )
    pod.files["tests/test.sh"] = REWARD_1
    try:
        outcome = pod.run()
    finally:
        _kill(int((pod.app / "pid").read_text()))
    assert (outcome.verdict.rewards, outcome.verdict.leftover_processes) == ({"reward": 1.0}, 1)


def test_a_trajectory_that_would_fill_the_verifiers_memory_is_not_read(pod: Pod) -> None:
    make_command_agent(pod, f"\"{sys.executable}\" -c \"print('[[]' + ',[]' * 5_000_000 + ']')\" > \"$LOGS/agent/trajectory.json\"")
    outcome = pod.run()
    assert outcome.result is not None
    assert outcome.error is None
    assert outcome.result["seatrial"]["trajectory"] == "its values need more than 201326592 bytes of memory: not read"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# --- the agent's errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-89")
def test_a_failing_solution_is_no_error(pod: Pod) -> None:
    pod.files["solution/solve.sh"] += "exit 3\n"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, None)
    assert outcome.logs["agent/exit-code.txt"] == b"3"


@pytest.mark.conforms("H-90")
def test_a_task_without_a_solution_is_graded(pod: Pod) -> None:
    del pod.files["solution/solve.sh"]
    pod.files["tests/test.sh"] = REWARD_1
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "FileNotFoundError")
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is True


@pytest.mark.conforms("H-65")
def test_an_agent_timeout_is_graded_and_its_processes_end(pod: Pod) -> None:
    pod.trial["timeouts"]["agent"] = 0.6
    pod.files["solution/solve.sh"] = '#!/bin/bash\necho begun\necho $$ > "$APP/pid"\necho Hello > "$APP/hello.txt"\nsleep 60\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == (
        {"reward": 1.0},
        "AgentTimeoutError",
        "Agent execution timed out after 0.6 seconds",
    )
    assert outcome.logs["agent/oracle.txt"] == b"begun\n"
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is True
    with pytest.raises(ProcessLookupError):
        os.kill(int((pod.app / "pid").read_text()), 0)


@pytest.mark.conforms("H-66")
def test_a_command_agent_that_fails_is_graded(pod: Pod) -> None:
    make_command_agent(pod, 'echo Hello > "$APP/hello.txt"; echo "no such model" >&2; exit 4')
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "NonZeroAgentExitCodeError")
    assert outcome.message == "the agent's command ended with exit code 4: no such model"


@pytest.mark.conforms("H-97")
def test_a_command_agent_that_says_why_it_failed_is_graded_and_no_score(pod: Pod) -> None:
    make_command_agent(pod, 'echo Hello > "$APP/hello.txt"; echo "Invalid API key"; echo "API Error: rate limit reached"; exit 1')
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "ApiRateLimitError")
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is False


def test_a_command_agent_gets_instruction_model_and_its_variables(pod: Pod) -> None:
    make_command_agent(pod, 'printf "%s|%s|%s|%s|%s" "$(cat)" "$(cat "$INSTRUCTION_FILE")" "$INSTRUCTION" "$MODEL" "$MODE" # a comment')
    pod.files["instruction.md"] = "<!-- canary 1 -->\n\nSay hello.\r\n"
    pod.trial["agent"] |= {"model": "openai/gpt", "env_names": ["MODE", "ABSENT"]}
    pod.agent_env = {"MODE": "fast", "OTHER": "hidden"}
    outcome = pod.run()
    assert outcome.logs["agent/agent.txt"] == b"Say hello.|Say hello.|Say hello.\n|openai/gpt|fast"
    assert outcome.logs["agent/instruction.md"] == b"Say hello.\n"


@pytest.mark.conforms("H-40", "H-42", "N-118")
def test_layers_of_variables(pod: Pod) -> None:
    show = 'echo "$DEBIAN_FRONTEND $A $B $C"'
    pod.files["solution/solve.sh"] = f"#!/bin/bash\n{show}\n"
    pod.files["tests/test.sh"] = REWARD_1 + show + "\n"
    pod.trial["agent"]["env_names"] = ["A", "B"]
    pod.trial["solution_env"] = {"B": "${FROM_JOB}", "C": "solution"}
    pod.trial["variables"] = {"FROM_JOB": "job"}
    pod.trial["verifier"]["env"] = {"C": "${FROM_CONFIG:-default}"}
    pod.agent_env = {"A": "agent", "B": "agent"}
    pod.verifier_env = {"SEATRIAL_VAR_FROM_CONFIG": "verifier"}
    outcome = pod.run()
    assert outcome.logs["agent/oracle.txt"] == b"noninteractive agent job solution\n"
    assert outcome.logs["verifier/test-stdout.txt"] == b"   verifier\n"


@pytest.mark.conforms("H-44")
def test_a_missing_variable_of_the_verifier_fails_the_trial_by_name(pod: Pod) -> None:
    pod.trial["verifier"]["env"] = {"JUDGE_KEY": "${JUDGE_KEY}"}
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.reason) == (None, "ValueError", "VariableMissing")
    assert "'JUDGE_KEY'" in outcome.message


@needs_root
@pytest.mark.conforms("H-46")
def test_agent_and_test_script_run_as_the_users_of_the_task(pod: Pod) -> None:
    # Script and shell must be able to reach the folder.
    for folder in (pod.root, pod.root / "env", pod.app):
        folder.chmod(0o777)
    pod.files["solution/solve.sh"] = "#!/bin/bash\nid -u\n"
    pod.files["tests/test.sh"] = REWARD_1 + "id -u\n"
    pod.trial["agent"]["user"] = "nobody"
    pod.trial["verifier"]["user"] = 12345
    outcome = pod.run()
    assert (outcome.logs["agent/oracle.txt"], outcome.logs["verifier/test-stdout.txt"]) == (b"65534\n", b"12345\n")


def test_an_unknown_user_is_the_tasks_fault_and_not_a_score(pod: Pod) -> None:
    pod.trial["agent"]["user"] = "no-such-user"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.reason) == (None, "CommandNotStarted")
    assert outcome.result is not None
    assert outcome.result["seatrial"]["graded"] is False


def test_an_agent_of_an_unknown_kind_is_refused_before_anything_runs(pod: Pod) -> None:
    pod.trial["agent"] |= {"kind": "telepathy", "name": "custom"}  # type: ignore[typeddict-item]
    outcome = pod.run()
    assert (outcome.error, outcome.reason, outcome.verdict.error and outcome.verdict.error["cause"]) == (
        "ValueError",
        "AgentUnknown",
        "user",
    )
    assert outcome.result is not None
    assert outcome.result["verifier"] is None


# --- preparation ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-36")
def test_log_folders_exist_for_everybody_before_the_healthcheck(pod: Pod) -> None:
    pod.trial["environment"]["healthcheck"] = _healthcheck('stat -c %a $LOGS/agent $LOGS/verifier $LOGS/artifacts > "$APP/modes"')
    pod.run()
    assert (pod.app / "modes").read_text() == "777\n777\n777\n"


@pytest.mark.conforms("H-49", "H-67")
def test_a_healthcheck_that_keeps_failing_ends_the_trial_before_the_agent(pod: Pod) -> None:
    pod.trial["environment"]["healthcheck"] = _healthcheck('echo x >> "$APP/tries"; exit 1', retries=3)
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, "HealthcheckError")
    assert (pod.app / "tries").read_text() == "x\n" * 3
    assert outcome.result is not None
    assert (outcome.result["agent_execution"], outcome.result["verifier"]) == (None, None)


@pytest.mark.conforms("H-49")
def test_failures_of_the_start_period_do_not_count_and_the_first_success_ends_it(pod: Pod) -> None:
    count = 'echo x >> "$APP/tries"; [ $(wc -l < "$APP/tries") -ge 3 ]'
    pod.trial["environment"]["healthcheck"] = _healthcheck(count, retries=1, start_period=20.0)
    outcome = pod.run()
    assert (outcome.error, (pod.app / "tries").read_text()) == (None, "x\n" * 3)


@pytest.mark.conforms("H-49")
def test_zero_retries_is_one_try(pod: Pod) -> None:
    pod.trial["environment"]["healthcheck"] = _healthcheck('echo x >> "$APP/tries"; exit 1', retries=0)
    assert pod.run().error == "HealthcheckError"
    assert (pod.app / "tries").read_text() == "x\n"


def _healthcheck(command: str, *, retries: int = 3, start_period: float = 0.0) -> contract.HealthcheckInput:
    return contract.HealthcheckInput(
        command=command,
        interval_sec=0.01,
        timeout_sec=10.0,
        start_period_sec=start_period,
        start_interval_sec=0.01,
        retries=retries,
    )


@pytest.mark.conforms("H-34")
def test_a_healthcheck_may_take_longer_than_the_environments_start(pod: Pod) -> None:
    pod.trial["timeouts"]["environment"] = 1.0
    pod.trial["environment"]["healthcheck"] = _healthcheck(f"sleep 1.5; touch {pod.app}/healthy")
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, None)
    assert (pod.app / "healthy").exists()


def test_loose_files_arrive_in_the_working_directory(pod: Pod) -> None:
    del pod.files["environment/Dockerfile"]
    pod.files["environment/data/input.txt"] = "loose\n"
    pod.trial["environment"]["loose_files"] = True
    pod.files["solution/solve.sh"] = "#!/bin/bash\ncat data/input.txt\n"
    assert pod.run().logs["agent/oracle.txt"] == b"loose\n"


def test_an_environment_that_never_dials_is_a_start_timeout(pod: Pod) -> None:
    pod.trial["timeouts"]["environment"] = 0.4
    assert pod.stage() == 0
    thread = pod.start_agent()
    pod.verify()
    thread.join(timeout=10)
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.stored) == (None, "EnvironmentStartTimeoutError", True)
    assert outcome.message.startswith("Environment start timed out after 0.4 seconds")


# --- what dies in the middle ---------------------------------------------------------------------------------------------------------


def test_an_environment_that_exits_while_the_agent_runs_is_no_score_and_leaves_logs(pod: Pod) -> None:
    pod.files["solution/solve.sh"] = '#!/bin/bash\necho half\ntouch "$APP/begun"\nsleep 60\n'
    assert pod.stage() == 0
    envd = pod.start_envd()
    thread = pod.start_agent()
    verifier = threading.Thread(target=pod.verify, daemon=True)
    verifier.start()
    wait_until((pod.app / "begun").exists)
    envd.kill()
    verifier.join(timeout=15)
    thread.join(timeout=5)
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.error, outcome.reason) == (None, "GKEPodNotFoundError", "EnvironmentExited")
    assert outcome.verdict.error is not None
    assert outcome.verdict.error["cause"] == "environment"
    # Read from the verifier's own mounts, since nobody serves them any more.
    assert outcome.logs["agent/oracle.txt"] == b"half\n"


def test_an_agent_container_that_is_killed_is_noticed_at_once_and_not_graded(pod: Pod) -> None:
    pod.files["solution/solve.sh"] = '#!/bin/bash\ntouch "$APP/begun"\nsleep 60\n'
    assert pod.stage() == 0
    pod.start_envd()
    program = (
        "import json, sys; from seatrial_runner import agent; from seatrial_runner.paths import Paths; "
        "agent.run(Paths(**json.loads(sys.argv[1])), {})"
    )
    process = subprocess.Popen([sys.executable, "-c", program, json.dumps(pod.paths("agent")._asdict())])
    pod.processes.append(process)
    verifier = threading.Thread(target=pod.verify, daemon=True)
    verifier.start()
    wait_until((pod.app / "begun").exists)
    process.send_signal(signal.SIGKILL)
    verifier.join(timeout=15)
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.error, outcome.reason) == (None, "GKEPodNotFoundError", "RunnerCrashed")
    assert outcome.result is not None
    assert outcome.result["seatrial"]["graded"] is False


def test_an_agent_container_that_never_starts_is_given_up(pod: Pod) -> None:
    pod.trial["timeouts"]["environment"] = 0.3
    assert pod.stage() == 0
    pod.verify()
    outcome = pod.outcome()
    assert (outcome.error, outcome.reason) == ("EnvironmentStartTimeoutError", "AgentNotStarted")


def test_a_forged_end_record_is_no_crash(pod: Pod) -> None:
    assert pod.stage() == 0
    Path(pod.paths("").agent_end).write_text('{"spans": 1}')
    pod.verify()
    assert pod.outcome().reason == "RunnerCrashed"


@pytest.mark.parametrize("instance", ["f" * 32, None], ids=["another", "unnamed"])
def test_another_program_behind_the_verifiers_socket_is_seen(pod: Pod, instance: str | None) -> None:
    assert pod.stage() == 0
    end = contract.AgentEnd(
        error=None,
        spans={"agent_execution": {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:01Z"}},
        exit_code=0,
        result=None,
    )
    if instance is not None:
        end["envd"] = instance
    write_end(pod.paths("agent").agent_end, end)
    with Channel.listen(pod.paths("agent").agent_socket):
        pod.start_envd()
        pod.verify()
    assert pod.outcome().reason == "EnvironmentMisbehaved"


def test_a_verifier_that_cannot_work_still_leaves_a_verdict(pod: Pod) -> None:
    assert pod.stage() == 0
    Path(pod.paths("verifier").secrets_socket).mkdir()
    pod.verify()
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.verdict.stored, outcome.reason) == (None, False, "RunnerCrashed")


# --- the verifier's errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-115", "H-116")
def test_a_verifier_timeout_is_errored_not_zero_and_keeps_the_output(pod: Pod) -> None:
    pod.trial["timeouts"]["verifier"] = 0.6
    pod.files["tests/test.sh"] = "#!/bin/bash\necho begun\nsleep 60\n" + REWARD_1
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == (
        None,
        "VerifierTimeoutError",
        "Verifier execution timed out after 0.6 seconds",
    )
    assert outcome.logs["verifier/test-stdout.txt"] == b"begun\n"


@pytest.mark.conforms("H-68")
def test_the_first_error_wins(pod: Pod) -> None:
    pod.trial["timeouts"]["agent"] = 0.5
    pod.files["solution/solve.sh"] = "#!/bin/bash\nsleep 60\n"
    pod.files["tests/test.sh"] = "#!/bin/bash\ntrue\n"
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, "AgentTimeoutError")


@pytest.mark.conforms("H-118")
def test_a_disabled_verifier_gives_neither_reward_nor_error(pod: Pod) -> None:
    pod.trial["verifier"]["disable"] = True
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, None)
    assert outcome.result is not None
    assert (outcome.result["verifier_result"], outcome.result["reward_valid"]) == (None, False)


def test_a_task_without_a_test_script_is_named(pod: Pod) -> None:
    pod.files["tests/readme.txt"] = pod.files.pop("tests/test.sh")
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, "FileNotFoundError")


def test_an_error_policy_of_the_job_decides_about_grading(pod: Pod) -> None:
    pod.trial["error_policy"] = {"NonZeroAgentExitCodeError": {"grade": False}}
    make_command_agent(pod, "exit 1")
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == (None, "NonZeroAgentExitCodeError")
    assert outcome.result is not None
    assert outcome.result["exception_info"]["policy_override"] == {"should_grade": False}


# --- volumes, SIGTERM ----------------------------------------------------------------------------------------------------------------


def test_a_volume_at_80_percent_ends_the_phase_with_its_evidence(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial_runner.watch._VOLUME_SECONDS", 0.1)
    pod.trial["limits"] = {str(pod.logs / "agent"): 1_000_000}
    pod.files["solution/solve.sh"] = '#!/bin/bash\nhead -c 850000 /dev/zero > "$LOGS/agent/big"; sleep 60\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.reason) == (None, "RuntimeRequestError", "StorageLimitExceeded")
    assert outcome.verdict.error is not None
    assert outcome.verdict.error["cause"] == "agent"
    assert "agent/big" in outcome.logs


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        pytest.param("for i in $(seq 250); do echo x > $i; done", " bytes of 1000000: ", id="small"),
        pytest.param("seq 300 | xargs touch", "more than can be counted", id="empty"),
        pytest.param("for i in $(seq 130); do mkdir d; cd d; done", "more than can be counted", id="deep"),
    ],
)
def test_a_volume_of_many_files_ends_the_phase(pod: Pod, monkeypatch: pytest.MonkeyPatch, fill: str, message: str) -> None:
    monkeypatch.setattr("seatrial_runner.watch._VOLUME_SECONDS", 0.1)
    monkeypatch.setattr("seatrial_runner.watch._EMPTY_ENTRIES", 20)
    pod.trial["limits"] = {str(pod.logs / "agent"): 1_000_000}
    pod.files["solution/solve.sh"] = f'#!/bin/bash\ncd "$LOGS/agent"\n{fill}\nsleep 60\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error, outcome.reason) == (None, "RuntimeRequestError", "StorageLimitExceeded")
    assert outcome.verdict.error is not None
    assert message in outcome.verdict.error["message"]


def test_sigterm_while_the_agent_runs_saves_what_there_is(pod: Pod) -> None:
    pod.files["solution/solve.sh"] = '#!/bin/bash\necho half\ntouch "$APP/begun"\nsleep 60\n'
    assert pod.stage() == 0
    pod.start_envd()
    thread = pod.start_agent()
    verifier = threading.Thread(target=pod.verify, daemon=True)
    verifier.start()
    wait_until((pod.app / "begun").exists)
    pod.stop.request()
    verifier.join(timeout=15)
    thread.join(timeout=5)
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.reason, outcome.verdict.stored) == (None, "Interrupted", True)
    assert outcome.logs["agent/oracle.txt"] == b"half\n"


def test_sigterm_while_the_tests_run_is_no_score(pod: Pod) -> None:
    pod.files["tests/test.sh"] = REWARD_1 + 'touch "$APP/testing"; sleep 60\n'
    assert pod.stage() == 0
    pod.start_envd()
    thread = pod.start_agent()
    verifier = threading.Thread(target=pod.verify, daemon=True)
    verifier.start()
    wait_until((pod.app / "testing").exists)
    pod.stop.request()
    verifier.join(timeout=15)
    thread.join(timeout=5)
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.reason) == (None, "Interrupted")
    assert "verifier/test-stdout.txt" in outcome.logs


# --- the report ----------------------------------------------------------------------------------------------------------------------


def test_a_store_that_is_down_leaves_the_rewards_in_the_verdict(pod: Pod) -> None:
    pod.patiences = pod.patiences._replace(logs=0.3, result=0.3)
    pod.store.fail("logs.tar.gz", *[503] * 1000)
    pod.store.fail("result.json", *[503] * 1000)
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.stored, outcome.verdict.result_sha256, outcome.verdict.logs_sha256) == (
        {"reward": 1.0},
        False,
        None,
        None,
    )


def test_refused_logs_do_not_cost_the_result(pod: Pod) -> None:
    pod.store.fail("logs.tar.gz", 403)
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.stored, outcome.verdict.logs_sha256) == ({"reward": 1.0}, True, None)
    assert outcome.result is not None
    assert "403 AccessDenied" in outcome.result["seatrial"]["logs_error"]


def test_a_committed_result_of_somebody_else_is_kept_and_ours_is_not_stored(pod: Pod) -> None:
    pod.store.put("result.json", b"committed")
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.stored) == ({"reward": 1.0}, False)
    assert pod.store.get("result.json") == b"committed"


def test_a_lost_answer_of_the_result_is_our_own_success(pod: Pod) -> None:
    pod.store.fail("result.json", "store-and-drop")
    outcome = pod.run()
    assert outcome.verdict.stored
    assert outcome.result is not None


def test_logs_come_before_the_result(pod: Pod) -> None:
    pod.run()
    puts = [path for method, path in pod.store.requests if method == "PUT"]
    assert puts == ["/bucket/logs.tar.gz", "/bucket/result.json"]


def test_the_environment_is_told_to_end(pod: Pod) -> None:
    pod.run()
    assert pod.processes[0].wait(timeout=10) == 0


def test_many_long_rewards_move_out_of_the_verdict(pod: Pod) -> None:
    rewards = {f"key-{number:03}-{'x' * 40}": number for number in range(100)}
    pod.files["tests/reward.json"] = json.dumps(rewards)
    pod.files["tests/test.sh"] = '#!/bin/bash\ncp "$TESTS/reward.json" "$LOGS/verifier/"\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.verdict.rewards_elsewhere) == (None, True)
    assert outcome.result is not None
    assert outcome.result["verifier_result"] == {"rewards": rewards}


@pytest.mark.conforms("H-101", "H-129")
def test_secrets_of_agent_and_verifier_are_in_nothing_that_is_kept(pod: Pod) -> None:
    make_command_agent(pod, 'echo "key $API_KEY" | tee "$LOGS/artifacts/a.txt"; echo "last $API_KEY" >&2; exit 1')
    pod.trial["agent"]["env_names"] = ["API_KEY"]
    pod.agent_env = {"API_KEY": "sk-canary-agent"}
    pod.trial["verifier"]["env"] = {"JUDGE_TOKEN": "${JUDGE_TOKEN}"}
    pod.verifier_env = {"SEATRIAL_VAR_JUDGE_TOKEN": "sk-canary-judge"}
    pod.files["tests/test.sh"] = REWARD_1 + 'echo "judge $JUDGE_TOKEN"\n'
    outcome = pod.run()
    assert outcome.logs["agent/agent.txt"] == b"key [REDACTED]\nlast [REDACTED]\n"
    assert outcome.logs["artifacts" + str(pod.logs / "artifacts/a.txt")] == b"key [REDACTED]\n"
    assert outcome.logs["verifier/test-stdout.txt"] == b"judge [REDACTED]\n"
    assert outcome.message.endswith("last [REDACTED]")
    kept = b"".join([*outcome.logs.values(), pod.store.get("result.json") or b"", (pod.root / "termination-verifier").read_bytes()])
    assert b"sk-canary" not in kept


# --- artifacts -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-71")
def test_artifacts_and_their_manifest(pod: Pod) -> None:
    pod.files["solution/solve.sh"] += (
        'mkdir -p out/sub; echo a > out/a.txt; echo b > out/sub/b.log; echo r > report.md; echo c > "$LOGS/artifacts/c"\n'
    )
    app = str(pod.app)
    pod.trial["artifacts"] = [
        {"source": f"{app}/out", "destination": "out", "exclude": ["*.log"], "service": None},
        {"source": "report.md", "destination": None, "exclude": [], "service": "main"},
        {"source": f"{app}/out/a.txt", "destination": "out/a.txt", "exclude": [], "service": None},
        {"source": f"{app}/missing", "destination": "missing", "exclude": [], "service": None},
        {"source": "/data", "destination": None, "exclude": [], "service": "db"},
    ]
    outcome = pod.run()
    conventional = str(pod.logs / "artifacts")
    rows = [(row["source"], row["destination"], row["type"], row["status"], row["service"], row["exclude"]) for row in outcome.manifest]
    assert rows == [
        (conventional, f"artifacts{conventional}", "directory", "ok", None, []),
        (f"{app}/out", "artifacts/out", "directory", "ok", None, ["*.log"]),
        ("report.md", "artifacts/report.md", "file", "ok", None, []),
        (f"{app}/out/a.txt", "artifacts/out/a.txt", "file", "skipped", None, []),
        (f"{app}/missing", "artifacts/missing", "file", "failed", None, []),
        ("/data", "artifacts/data", "file", "failed", "db", []),
    ]
    kept = {name: data for name, data in outcome.logs.items() if name.startswith("artifacts/") and not name.endswith("manifest.json")}
    assert kept == {f"artifacts{conventional}/c": b"c\n", "artifacts/out/a.txt": b"a\n", "artifacts/report.md": b"r\n"}


@pytest.mark.conforms("H-63", "H-71")
def test_artifacts_are_those_of_the_agent_and_not_of_the_tests(pod: Pod) -> None:
    pod.files["solution/solve.sh"] += 'echo agent > "$LOGS/artifacts/made"\n'
    pod.files["tests/test.sh"] = (
        REWARD_1 + 'echo tests > "$LOGS/artifacts/made"; echo x > "$LOGS/artifacts/more"; rm "$LOGS/agent/oracle.txt"\n'
    )
    outcome = pod.run()
    artifacts = {name: data for name, data in outcome.logs.items() if name.startswith(f"artifacts{pod.logs}")}
    assert artifacts == {f"artifacts{pod.logs}/artifacts/made": b"agent\n"}
    assert outcome.logs["agent/oracle.txt"] == b"solved\n"


@pytest.mark.conforms("H-72")
def test_collect_hooks_run_before_grading_and_their_failure_is_only_logged(pod: Pod) -> None:
    pod.trial["verifier"]["collect"] = [
        {"command": "exit 1", "service": "main", "timeout_sec": 10.0, "user": None},
        {"command": 'echo state > "$LOGS/artifacts/state"', "service": "main", "timeout_sec": 10.0, "user": None},
    ]
    pod.files["tests/test.sh"] = '#!/bin/bash\n[ -e "$LOGS/artifacts/state" ] && echo 1 > "$LOGS/verifier/reward.txt"\n'
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, None)


@pytest.mark.conforms("H-61", "H-64")
def test_hard_files_of_the_logs_are_kept_bounded_and_links_stay_inside(pod: Pod) -> None:
    pod.files["solution/solve.sh"] += (
        'cd "$LOGS/agent"\nprintf "\\x00\\xff" > binary\nmkdir empty sub\nln -s ../binary sub/link\nln -s /etc/passwd outside\n'
        'mkfifo pipe\nhead -c 12000000 /dev/zero | tr "\\0" x > huge.txt\n: > "$(printf "odd\\nname\\377")"\n'
    )
    pod.files["tests/test.sh"] = '#!/bin/bash\n[ -e "$LOGS/agent/oracle.txt" ] && echo 1 > "$LOGS/verifier/reward.txt"\n'
    outcome = pod.run()
    assert outcome.verdict.rewards == {"reward": 1.0}
    assert outcome.logs["agent/binary"] == b"\x00\xff"
    assert outcome.links == {"agent/sub/link": "../binary"}
    assert "agent/pipe" not in outcome.logs
    huge = outcome.logs["agent/huge.txt"]
    assert huge.startswith(b"xxx")
    assert huge.endswith(b"xxx")
    assert b"\n[... 1514240 bytes left out ...]\n" in huge
    assert outcome.result is not None
    assert outcome.result["seatrial"]["truncated"] == ["agent/huge.txt: cut from 12000000 bytes"]


def test_a_result_that_would_be_too_long_is_stored_without_what_the_agent_reported(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "RESULT_BYTES", 8000)
    assert pod.stage() == 0
    result = {"n_input_tokens": 1, "metadata": {"notes": "x" * 20_000}}
    span = contract.Span(started_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T00:00:01Z")
    write_end(pod.paths("agent").agent_end, contract.AgentEnd(error=None, spans={"agent_setup": span}, exit_code=0, result=result))
    pod.verify()
    outcome = pod.outcome()
    assert outcome.verdict.stored
    assert outcome.result is not None
    assert outcome.result["agent_result"] is None


def test_secrets_are_redacted_whatever_their_variables_are_called(pod: Pod) -> None:
    pod.trial["agent"] = {**pod.trial["agent"], "env_names": ["PLAIN"]}
    pod.trial["secret_names"] = ["PLAIN", "JUDGE"]
    pod.agent_env = {"PLAIN": "canary-of-the-agent"}
    pod.verifier_env = {"SEATRIAL_VAR_JUDGE": "canary-of-the-judge", "SEATRIAL_REDACT_DATABASE": "canary-of-the-environment"}
    pod.files["tests/test.sh"] = REWARD_1 + "echo canary-of-the-agent canary-of-the-judge canary-of-the-environment > $LOGS/verifier/said\n"
    assert pod.run().logs["verifier/said"] == b"[REDACTED] [REDACTED] [REDACTED]\n"
