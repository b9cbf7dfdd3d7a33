"""The three containers under their own users, as in a Pod: who may read and reach what."""

from __future__ import annotations

import hashlib  # noqa: F401 - loaded before the users change: they may not be able to read the interpreter's files
import os
import stat
import traceback
from collections.abc import Callable
from datetime import datetime  # noqa: F401
from typing import TYPE_CHECKING

import pytest

import seatrial_runner.diagnose
import seatrial_runner.evidence
import seatrial_runner.presigned
import seatrial_runner.result  # noqa: F401
from seatrial import contract
from seatrial_runner import agent, stage

from .conftest import QUICK

if TYPE_CHECKING:
    from .conftest import Pod

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root"),
    # The child of the fork only runs this file's functions and ends.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def start_as(uid: int, part: Callable[[], object]) -> int:
    """Run ``part`` in a child process of this user; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(0o022)
        part()
        os._exit(0)
    except PermissionError:
        os._exit(13)
    except BaseException:  # noqa: BLE001 - a child must never return into the test session
        traceback.print_exc()
        os._exit(1)


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def open_volumes(pod: Pod) -> None:
    """Modes as the kubelet makes them."""
    for name in ("", "env"):
        (pod.root / name).chmod(0o755)
    for name in ("bin", "net", "ctl/agent", "ctl/verifier", "run/agent", "run/verifier", "task/agent", "task/verifier", "tmp", "env/logs"):
        (pod.root / name).chmod(0o777)
    for who in ("agent", "verifier", "stage"):
        message = pod.root / f"termination-{who}"
        message.touch()
        message.chmod(0o666)


def stage_as_its_user(pod: Pod) -> int:
    (pod.root / "tools/envd").write_bytes(pod.envd.read_bytes())
    environ = {
        contract.VAR_INPUT: contract.encode_input(pod.trial),
        contract.VAR_ARCHIVE_URL: pod.store.url("archive"),
        contract.VAR_ARCHIVE_SHA256: pod.publish(),
    }

    def run_stage() -> None:
        assert stage.run(pod.paths(""), environ, patience=QUICK) == 0

    return end_of(start_as(contract.STAGE_UID, run_stage))


def test_a_trial_passes_with_the_users_of_a_pod(pod: Pod) -> None:
    open_volumes(pod)
    pod.trial["agent"]["env_names"] = ["API_KEY"]
    pod.agent_env = {"API_KEY": "sk-canary-1"}
    pod.files["solution/solve.sh"] += 'echo "$API_KEY"\n'
    assert stage_as_its_user(pod) == 0
    pod.start_envd()
    agent_pid = start_as(contract.AGENT_UID, lambda: agent.run(pod.paths("agent"), pod.agent_env, stop=pod.stop))
    verifier_pid = start_as(contract.VERIFIER_UID, pod.verify)
    assert (end_of(agent_pid), end_of(verifier_pid)) == (0, 0)
    outcome = pod.outcome()
    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.stored) == ({"reward": 1.0}, None, True)
    assert outcome.logs["agent/oracle.txt"] == b"solved\n[REDACTED]\n"


def test_the_agents_user_reads_its_own_folder_and_never_the_tests(pod: Pod) -> None:
    open_volumes(pod)
    assert stage_as_its_user(pod) == 0
    readable = {
        name: end_of(start_as(contract.AGENT_UID, (pod.root / "task" / name).read_bytes))
        for name in ("agent/solution.tar", "agent/input.json", "verifier/tests.tar", "verifier/input.json")
    }
    assert readable == {"agent/solution.tar": 0, "agent/input.json": 0, "verifier/tests.tar": 13, "verifier/input.json": 13}


def test_the_setuid_envd_is_no_client_that_writes_as_root(pod: Pod) -> None:
    open_volumes(pod)
    program, private = pod.root / "bin/envd", pod.root / "private"
    program.write_bytes(pod.envd.read_bytes())
    program.chmod(0o4755)
    private.mkdir(mode=0o700)

    def call() -> None:
        os.execve(program, ["seatrial-env", "hold"], {"SEATRIAL_DESK": str(private)})

    assert end_of(start_as(contract.AGENT_UID, call)) == 2
    assert list(private.iterdir()) == []


@pytest.mark.conforms("H-47")
def test_stage_as_root_makes_envd_setuid_and_touches_the_archive_as_another_user(pod: Pod) -> None:
    open_volumes(pod)
    (pod.root / "tools/envd").write_bytes(pod.envd.read_bytes())
    environ = {
        contract.VAR_INPUT: contract.encode_input(pod.trial),
        contract.VAR_ARCHIVE_URL: pod.store.url("archive"),
        contract.VAR_ARCHIVE_SHA256: pod.publish(),
    }

    def run_stage() -> None:
        assert stage.run(pod.paths(""), environ, patience=QUICK, become=contract.STAGE_UID) == 0
        assert os.getresuid() == (contract.STAGE_UID,) * 3
        assert os.getresgid() == (contract.STAGE_UID,) * 3

    assert end_of(start_as(0, run_stage)) == 0
    envd = (pod.root / "bin/envd").stat()
    assert (envd.st_uid, stat.S_IMODE(envd.st_mode)) == (0, 0o4755)
    owners = {path.stat().st_uid for path in (pod.root / "task").glob("*/*")}
    assert owners == {contract.STAGE_UID}
