"""The user's own agent container: the client ``seatrial-env`` as a real process, against a real runner and a real envd."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tests.processes import alive

from seatrial.contract import DESK_MARK
from seatrial_runner import desk
from seatrial_runner.channel import Channel
from seatrial_runner.desk import LOCK, Desk, has_ended, is_alive
from seatrial_runner.frames import frame

from .conftest import wait_until

if TYPE_CHECKING:
    from .conftest import Outcome, Pod


class Image:
    """The user's container: it holds its lock until its part is over."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.client = pod.root / "bin/seatrial-env"

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "SEATRIAL_DESK": str(self.pod.root / "desk")}
        command = [str(self.client), *arguments]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]

    def __call__(self, *arguments: str, given: bytes | None = None) -> tuple[int, bytes, bytes]:
        """Exit code, output and errors of one call."""
        process = self.start(*arguments, stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL)
        out, err = process.communicate(given, timeout=20)
        return process.returncode, out, err


def run_with(pod: Pod, part: Callable[[Image], None]) -> Outcome:
    pod.trial["agent"] |= {"kind": "image", "name": "registry/agent:1"}
    failures: list[BaseException] = []

    def live() -> None:
        with open(pod.root / "desk" / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                wait_until(lambda: os.access(pod.root / "bin/seatrial-env", os.X_OK))
                part(Image(pod))
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                failures.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    outcome = pod.run()
    thread.join(20)
    if failures:
        raise failures[0]
    return outcome


def test_commands_and_files_go_through_the_desk_and_the_work_is_graded(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "up/sub").mkdir(parents=True)
    (tmp_path / "up/sub/tool.sh").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "up/sub/tool.sh").chmod(0o755)
    (tmp_path / "up/link").symlink_to("sub/tool.sh")

    def work(env: Image) -> None:
        assert env("wait") == (0, b"", b"")
        assert env("exec", "--", "sh", "-c", "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")
        assert env("exec", "-e", "A=1 2", "-w", "/", "-c", 'echo "$A $PWD"') == (0, b"1 2 /\n", b"")
        assert env("exec", "-i", "--", "tr", "a-z", "A-Z", given=b"x" * 300_000) == (0, b"X" * 300_000, b"")
        assert env("put", str(tmp_path / "up"), "tools") == (0, b"", b"")
        assert env("exec", "-c", "tools/link") == (0, b"tool\n", b"")
        assert env("put", str(tmp_path / "up/sub/tool.sh"), f"{pod.app}/renamed")[0] == 0
        assert env("get", "tools", str(tmp_path / "down")) == (0, b"", b"")
        assert env("get", f"{pod.app}/renamed", str(tmp_path / "one")) == (0, b"", b"")
        assert env("exec", "-t", "0.2", "--", "sleep", "30")[0] == 124
        assert env("exec", "--", "no-such-program")[0] == 125
        assert env("get", "/no/such/file", str(tmp_path / "none"))[0] == 125
        assert env("exec", "-c", f"echo Hello > {pod.app}/hello.txt")[0] == 0

    outcome = run_with(pod, work)
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, None)
    assert outcome.logs["agent/instruction.md"] == b"Say hello.\n"
    assert (tmp_path / "down/sub/tool.sh").stat().st_mode & 0o111
    assert os.readlink(tmp_path / "down/link") == "sub/tool.sh"
    assert (tmp_path / "one").read_text() == "#!/bin/sh\necho tool\n"


def test_a_client_that_is_killed_takes_its_command_along(pod: Pod) -> None:
    def work(env: Image) -> None:
        process = env.start("exec", "-c", f"echo $$ > {pod.app}/pid; exec sleep 300")
        wait_until(lambda: (pod.app / "pid").exists() and (pod.app / "pid").read_text().strip())
        pid = int((pod.app / "pid").read_text())
        process.kill()
        process.communicate()
        wait_until(lambda: not alive(pid))

    run_with(pod, work)


@pytest.mark.conforms("H-65")
def test_an_agent_image_that_works_too_long_is_timed_out_and_graded(pod: Pod) -> None:
    pod.trial["timeouts"]["agent"] = 1.0
    codes: list[int] = []

    def work(env: Image) -> None:
        env("exec", "-c", f"echo Hello > {pod.app}/hello.txt")
        codes.append(env("exec", "--", "sleep", "300")[0])

    outcome = run_with(pod, work)
    assert (outcome.verdict.rewards, outcome.error, codes) == ({"reward": 1.0}, "AgentTimeoutError", [125])


def make_mark(pod: Pod, *, age: float) -> None:
    mark = pod.root / "desk" / DESK_MARK
    mark.mkdir()
    os.utime(mark, (time.time() - age,) * 2)


def test_an_agent_image_that_ended_before_its_hook_ran_is_over_and_graded(pod: Pod) -> None:
    pod.trial["agent"] |= {"kind": "image", "name": "registry/agent:1"}
    make_mark(pod, age=60)
    outcome = pod.run()
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 0.0}, None)


@pytest.mark.parametrize(
    ("age", "began_ago", "expected"),
    [
        pytest.param(None, 100, False, id="not created yet"),
        pytest.param(60, 50, True, id="created before us, no hook"),
        pytest.param(2, 1, False, id="both start just now"),
        pytest.param(60, 70, False, id="created after us, the hook may come"),
        pytest.param(180, 200, True, id="created after us, no hook"),
    ],
)
def test_a_container_without_a_lock_is_over_once_its_hook_is_past(pod: Pod, age: float | None, began_ago: float, expected: bool) -> None:
    if age is not None:
        make_mark(pod, age=age)
    assert has_ended(str(pod.root / "desk"), began=time.time() - began_ago) is expected


def test_a_container_that_holds_its_lock_is_not_over_however_old_its_mark_is(pod: Pod) -> None:
    make_mark(pod, age=9999)
    with open(pod.root / "desk" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not has_ended(str(pod.root / "desk"), began=time.time())
    assert has_ended(str(pod.root / "desk"), began=time.time())


def test_what_an_environment_sends_lands_below_the_folder_that_was_asked_for(pod: Pod, tmp_path: Path) -> None:
    def work(env: Image) -> None:
        env("exec", "-c", f"mkdir -p {pod.app}/evil/dir; echo x > {pod.app}/evil/dir/escaped")
        (tmp_path / "got").mkdir()
        (tmp_path / "got/dir").symlink_to(tmp_path)
        assert env("get", f"{pod.app}/evil", str(tmp_path / "got"))[0] == 125

    run_with(pod, work)
    assert not (tmp_path / "escaped").exists()


def test_what_an_environment_sends_shows_no_file_of_the_agents_container(pod: Pod, tmp_path: Path) -> None:
    links = {"absolute": "/proc/self/environ", "up": "../secret", "far": "here/here/../../secret", "here": ".", "d/inside": "../own"}

    def work(env: Image) -> None:
        env("exec", "-c", f"mkdir -p {pod.app}/evil/d; cd {pod.app}/evil; touch own; " + "; ".join(f"ln -s {links[x]} {x}" for x in links))
        assert env("get", f"{pod.app}/evil", str(tmp_path / "got"))[0] == 0
        code, _, error = env("get", f"{pod.app}/evil/absolute", str(tmp_path / "one"))
        assert (code, error) == (125, b"seatrial-env: one is a link; get what it leads to\n")

    run_with(pod, work)
    found = {str(path.relative_to(tmp_path / "got")): os.readlink(path) for path in (tmp_path / "got").rglob("*") if path.is_symlink()}
    assert found == {"here": ".", "d/inside": "../own"}
    assert not (tmp_path / "one").is_symlink()


def test_more_connections_than_can_be_served_wait_for_their_turn(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_CONNECTIONS", 2)
    before = threading.enumerate()
    desk_of_nothing = Desk(str(pod.root / "desk"), cast(Channel, None), workdir="/", user=None)
    with ExitStack() as stack:
        silent, asking = ([stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)] for _ in range(2))
        for connection in (*silent, *asking):
            connection.connect(str(pod.root / "desk/env.sock"))
        for connection in asking:
            connection.sendall(frame(b"r", b'{"op": "wait"}'))
        wait_until(lambda: [thread.name for thread in threading.enumerate() if thread not in before] == ["desk", "request", "request"])
        assert select.select(asking, [], [], 0.2)[0] == []
        for connection in silent:
            connection.close()
        for connection in asking:
            connection.settimeout(10)
            assert connection.recv(1) == b"x"
    desk_of_nothing.close()


@pytest.mark.parametrize("request_", [b"[]", b"[" * 100_000, b'{"op": "exec", "argv": ["true"], "env": [1]}', b'{"op": ["exec"]}'])
def test_a_request_that_is_none_is_answered_as_such(pod: Pod, request_: bytes) -> None:
    desk_of_nothing = Desk(str(pod.root / "desk"), cast(Channel, None), workdir="/", user=None)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(pod.root / "desk/env.sock"))
        connection.sendall(frame(b"r", request_))
        connection.settimeout(10)
        assert connection.recv(1) == b"x"
    desk_of_nothing.close()


def test_the_lock_lives_and_dies_with_the_container(pod: Pod) -> None:
    folder, client = pod.root / "desk", pod.root / "seatrial-env"
    client.write_bytes(pod.envd.read_bytes())
    client.chmod(0o755)
    assert is_alive(str(folder)) is None
    script = f"{client} hold && exec sleep 300"
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    container = subprocess.Popen(command, env={**os.environ, "SEATRIAL_DESK": str(folder)})
    try:
        wait_until(lambda: is_alive(str(folder)) is True)
    finally:
        container.send_signal(signal.SIGKILL)
        container.wait(10)
    wait_until(lambda: is_alive(str(folder)) is False)
