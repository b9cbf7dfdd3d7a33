"""How the agent's end is told: the lock, the record, and records that lie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.contract import AgentEnd, ContractBroken
from seatrial_runner.ends import AgentWatch, hold_lock, write_end

END = AgentEnd(
    error={"type": "AgentTimeoutError", "cause": "agent", "message": "too slow", "reason": "Slow"},
    spans={"agent_execution": {"started_at": "2026-01-01T00:00:00.000000Z", "finished_at": "2026-01-01T00:00:01.000000Z"}},
    exit_code=3,
    result={"cost_usd": None},
    envd="0" * 32,
)


def _watch(folder: Path) -> AgentWatch:
    return AgentWatch(str(folder / "agent.lock"), str(folder / "agent.end.json"))


def test_an_agent_is_absent_then_running_then_ended(tmp_path: Path) -> None:
    watch = _watch(tmp_path)
    seen: list[object] = [watch.look()]
    lock = hold_lock(str(tmp_path / "agent.lock"))
    seen.append(watch.look())
    write_end(str(tmp_path / "agent.end.json"), END)
    seen.append(watch.look())
    os.close(lock)
    assert seen == ["absent", "running", END]


def test_a_free_lock_without_a_record_is_a_death(tmp_path: Path) -> None:
    os.close(hold_lock(str(tmp_path / "agent.lock")))
    assert _watch(tmp_path).look() == "died"


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    program = (
        "import sys, time; from seatrial_runner.ends import hold_lock; hold_lock(sys.argv[1]); print('held', flush=True); time.sleep(9)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "agent.lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        seen: list[object] = [_watch(tmp_path).look()]
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=10)
    assert [*seen, _watch(tmp_path).look()] == ["running", "died"]


def test_the_record_can_be_read_by_the_verifiers_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_end(str(tmp_path / "agent.end.json"), END)
    finally:
        os.umask(before)
    assert (tmp_path / "agent.end.json").stat().st_mode & 0o777 == 0o644


def _write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.symlink_to("/etc/passwd"), id="link"),
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(lambda path: path.mkdir(), id="folder"),
        pytest.param(_write(""), id="empty"),
        pytest.param(_write("[]"), id="list"),
        pytest.param(_write('{"spans": []}'), id="spans-list"),
        pytest.param(_write('{"spans": {}, "exit_code": true}'), id="exit-code-boolean"),
        pytest.param(_write('{"spans": {}, "error": {"type": "X", "cause": "nobody"}}'), id="unknown-cause"),
        pytest.param(_write('{"spans": {}, "result": {"cost_usd": 1e999}}'), id="infinite-cost"),
        pytest.param(_write('{"spans": {"agent_setup": {"started_at": 1}}}'), id="span-without-times"),
        pytest.param(_write('{"spans": {}, "x": "' + "y" * 300_000 + '"}'), id="too-long"),
    ],
)
def test_a_record_that_is_none_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "agent.end.json")
    with pytest.raises(ContractBroken):
        _watch(tmp_path).look()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.lock").symlink_to("/etc/passwd")
    with pytest.raises(ContractBroken):
        _watch(tmp_path).look()
