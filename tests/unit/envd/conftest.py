"""The real envd binary against real channels, in a socket folder of its own; on request as PID 1 of a PID namespace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from seatrial_runner.channel import Channel, Listener

SOURCE = Path(__file__).parents[3] / "runner-image" / "envd"


def wait_until(predicate: Callable[[], object], timeout_seconds: float = 20) -> None:
    """Ask until the answer is truthy; say the last answer when the time is over."""
    end = time.monotonic() + timeout_seconds
    while not (last := predicate()):
        assert time.monotonic() < end, f"still {last!r} after {timeout_seconds} s"
        time.sleep(0.01)


class Environment:
    """The socket folder of a trial Pod, both runners, and the processes of its environment container."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary = binary
        self.folder = folder
        self.ctl = folder / "ctl"
        for name in ("agent", "verifier"):
            (self.ctl / name).mkdir(parents=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.cleanup = ExitStack()
        self.agent_listener: Listener
        self.verifier_listener: Listener

    def listen(self) -> None:
        """Both runners start to wait for envd."""
        self.agent_listener = self.cleanup.enter_context(Channel.listen(self.ctl / "agent/envd.sock"))
        self.verifier_listener = self.cleanup.enter_context(Channel.listen(self.ctl / "verifier/envd.sock"))

    def spawn(
        self,
        argv: Sequence[str | Path],
        *,
        user: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """A process of the container; its errors are kept in ``log()``."""
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(argv, user=user, group=user, extra_groups=None if user is None else [], env=env, cwd=cwd, stderr=log)
        self.processes.append(process)
        return process

    def envd(self, *options: str) -> list[str | Path]:
        """The command line of envd in this environment."""
        return [self.binary, f"--ctl={self.ctl}", *options]

    def as_pid1(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        """Run ``command`` as PID 1 of a PID namespace that dies with it."""
        return self.spawn(["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child", *command])

    def beside(self, pid1: subprocess.Popen[bytes], command: Sequence[str | Path]) -> list[str | Path]:
        """The command line that runs ``command`` in the PID namespace of ``as_pid1``, as the kubelet runs a startup probe."""
        child = Path(f"/proc/{pid1.pid}/task/{pid1.pid}/children")
        wait_until(lambda: child.read_text().split())
        return ["nsenter", "--target", child.read_text().split()[0], "--pid", "--mount", "--", *command]

    def accept(self) -> tuple[Channel, Channel]:
        """The agent's and the verifier's channel of the envd that dialled."""
        agent = self.cleanup.enter_context(self.agent_listener.accept(20))
        verifier = self.cleanup.enter_context(self.verifier_listener.accept(20))
        return agent, verifier

    def serve(
        self, *options: str, user: int | None = None, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> tuple[Channel, Channel]:
        """Runners and envd, connected."""
        self.listen()
        self.spawn(self.envd(*options), user=user, env=env, cwd=cwd)
        return self.accept()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        self.cleanup.close()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(20)


def build_envd(target: Path, *, default_ctl: Path | None = None) -> None:
    """Build as the image build does; ``default_ctl`` instead of a Pod's folder, which is the only one that a setuid envd takes."""
    flags = "-s -w" + (f" -X main.defaultCtl={default_ctl}" if default_ctl is not None else "")
    command = ["go", "build", "-trimpath", f"-ldflags={flags}", "-o", str(target), "."]
    subprocess.run(command, cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, check=True)


@pytest.fixture(scope="session")
def envd_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once and readable by any user."""
    target = tmp_path_factory.mktemp("envd") / "envd"
    build_envd(target)
    return target


@pytest.fixture
def environment(envd_binary: Path) -> Iterator[Environment]:
    # Not tmp_path: the path of a socket has at most 107 bytes, and other users must reach the folder.
    with tempfile.TemporaryDirectory(prefix="envd-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        binary = folder / "envd"
        shutil.copy(envd_binary, binary)
        environment = Environment(binary, folder)
        try:
            yield environment
        finally:
            environment.close()
            assert not re.search(r"panic|goroutine \d", environment.log() if (folder / "log").exists() else "")


@pytest.fixture
def channels(environment: Environment) -> tuple[Channel, Channel]:
    """An environment as most images are: root, with a shell. The agent's channel and the verifier's."""
    return environment.serve()


@pytest.fixture
def agent(channels: tuple[Channel, Channel]) -> Channel:
    return channels[0]


@pytest.fixture
def verifier(channels: tuple[Channel, Channel]) -> Channel:
    return channels[1]
