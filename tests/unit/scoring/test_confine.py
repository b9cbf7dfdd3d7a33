"""What the keeper of a metric script does: nothing of the script outlives it, and neither of the two has a socket."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A process that has left the script's session and lost its parent; it holds a lock for as long as it lives.
LEAVE = """
import fcntl, os, sys, time
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        lock = open(sys.argv[1], "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(tell, b"x")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(ready, 1)
print("left", flush=True)
"""
KEPT = pytest.mark.parametrize("namespace", [pytest.param(True, id="where namespaces are"), pytest.param(False, id="where they are not")])


def confined(code: str, *arguments: str, namespace: bool = True, interpreter: str = sys.executable) -> subprocess.Popen[str]:
    """``code`` under a keeper; without ``namespace`` as on a machine that permits none."""
    forbid = "" if namespace else "confine.own_namespace = lambda: False; "
    program = f"import sys; from seatrial.scoring import confine; {forbid}sys.exit(confine.main(sys.argv[1:]))"
    limits = ("0", str(1 << 30), "60", str(1 << 20))
    command = [sys.executable, "-c", program, *limits, interpreter, "-I", "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@KEPT
def test_a_process_that_left_the_session_ends_with_the_script(tmp_path: Path, namespace: bool) -> None:
    lock = tmp_path / "lock"
    keeper = confined(LEAVE, str(lock), namespace=namespace)
    said, _ = keeper.communicate(timeout=60)
    assert (keeper.returncode, said, is_free(lock)) == (0, "left\n", True)


@KEPT
def test_a_process_that_left_the_session_ends_when_the_keeper_is_told_to(tmp_path: Path, namespace: bool) -> None:
    lock = tmp_path / "lock"
    keeper = confined(
        f"{LEAVE}\nsignal = __import__('signal'); signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
        str(lock),
        namespace=namespace,
    )
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == "left\n"
    assert not is_free(lock)
    keeper.terminate()
    keeper.communicate(timeout=60)
    assert is_free(lock)


@KEPT
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_the_keeper_ends_as_the_script_does(code: str, end: int, namespace: bool) -> None:
    keeper = confined(code, namespace=namespace)
    keeper.communicate(timeout=60)
    assert keeper.returncode == end


@KEPT
def test_a_command_that_cannot_be_run_is_said(namespace: bool) -> None:
    keeper = confined("pass", namespace=namespace, interpreter="/no/such/python")
    said, _ = keeper.communicate(timeout=60)
    assert (keeper.returncode, said) == (1, "seatrial: FileNotFoundError: [Errno 2] No such file or directory\n")


@KEPT
def test_the_scripts_parent_has_no_socket_either(namespace: bool) -> None:
    code = """
def status(process, name):
    return next(line.split()[1] for line in open(f"/proc/{process}/status") if line.startswith(name))
print([status(process, "Seccomp:") for process in ("self", status("self", "PPid:"))])
"""
    said, _ = confined(code, namespace=namespace).communicate(timeout=60)
    assert said == "['2', '2']\n"
