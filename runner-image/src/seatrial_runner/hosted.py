"""An agent class of the user, run in a process of its own that this end starts, tells what to do and ends. Its end: ``agent_host``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from seatrial import contract
from seatrial.contract import SOURCE_DIR, TrialInput
from seatrial_runner.desk import Desk
from seatrial_runner.faults import Fault, interrupted
from seatrial_runner.live import LiveLog
from seatrial_runner.paths import Paths
from seatrial_runner.prepare import read_bytes, workdir_of
from seatrial_runner.redact import Redactor
from seatrial_runner.stop import Stop
from seatrial_runner.usage import stated_figures
from seatrial_runner.watch import TimedOut, Watcher

if TYPE_CHECKING:
    from seatrial_runner.agent import Run

OUTPUT_FILE: Final = "agent.txt"
PYTHON = sys.executable
LOAD_SECONDS: Final = 120.0
"""For the import of the class, before the environment is looked at."""
_ANSWER_BYTES: Final = 8 * 1024 * 1024
_LOOK_SECONDS: Final = 0.1
_LAST_WORDS_SECONDS: Final = 2.0
_TAKE_SECONDS: Final = 30.0
"""For a request that the process does not read."""
_BOOT: Final = "import sys; sys.path[:0] = sys.argv[2:]; from seatrial_runner.agent_host import main; sys.exit(main(sys.argv[1:2]))"


class HostedAgent:
    """The process; ``close`` ends it and everything it started."""

    def __init__(self, paths: Paths, trial: TrialInput, environ: Mapping[str, str], env: Mapping[str, str]) -> None:
        self.name, self.version = trial["agent"]["name"], trial["agent"]["version"]
        self._paths, self._trial, self._env = paths, trial, env
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(_TAKE_SECONDS)
        self._buffer = b""
        with theirs:
            self._process = subprocess.Popen(
                # Isolated, but with site packages: a runner image of the user brings its libraries there.
                [PYTHON, "-I", "-u", "-c", _BOOT, str(theirs.fileno()), *_import_paths()],
                stdin=subprocess.DEVNULL,
                stdout=(output := _open_output(paths)),
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in environ.items() if not name.startswith("SEATRIAL_")} | {"HOME": paths.scratch},
                start_new_session=True,
            )
        os.close(output)

    def load(self, stop: Stop) -> None:
        """Import the class and construct the agent.

        Raises:
            Fault: it cannot be, or is not given what the job and the task want to give it.
        """
        agent, source = self._trial["agent"], f"{self._paths.task}/{SOURCE_DIR}"
        answer = self._ask(
            {
                "op": "load",
                "import_path": agent["name"],
                "source": source if os.path.isdir(source) else None,
                "desk": self._paths.scratch,
                "logs_dir": self._paths.logs_agent,
                "model": agent["model"],
                "kwargs": agent["kwargs"],
                "extra_env": dict(self._env),
                "mcp_servers": agent.get("mcp_servers", []),
                "skills": agent.get("skills", []),
                "skills_dir": agent.get("skills_dir"),
            },
            _Patience(stop),
            phase="load",
        )
        self.name, self.version = str(answer["name"])[:200], str(answer["version"] or "unknown")[:200]

    def set_up(self, watcher: Watcher) -> None:
        """The agent's own ``setup``.

        Raises:
            Fault: how it failed. TimedOut, ChannelError: from the watcher.
        """
        user = self._trial["agent"]["user"]
        desk = self._desk(watcher, user)
        try:
            self._ask({"op": "setup", "user": user}, watcher, phase="setup")
        finally:
            desk.close()

    def run(self, given: Run) -> int | None:
        """One execution phase; what the agent reports goes into ``given.result``.

        Raises:
            Fault: how it failed. TimedOut, ChannelError: from the watcher.
        """
        desk = self._desk(given.watcher, given.user)
        request = {"op": "run", "user": given.user, "instruction": read_bytes(given.instruction).decode(), "output": _output(self._paths)}
        try:
            with LiveLog(_output(self._paths), sys.stdout.buffer, Redactor(given.hidden)):
                answer = self._ask(request, given.watcher, phase="run", result=given.result)
        finally:
            desk.close()
        _take_context(answer, given.result)
        return 0

    def close(self) -> None:
        self._ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _desk(self, watcher: Watcher, user: str | int | None) -> Desk:
        return Desk(self._paths.scratch, watcher.channel, workdir=workdir_of(watcher.channel, self._trial), user=user)

    def _ask(
        self,
        request: Mapping[str, Any],
        watcher: Watcher | _Patience,
        *,
        phase: Literal["load", "setup", "run"],
        result: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            self._ours.sendall(json.dumps(request).encode() + b"\n")
            while (answer := self._answer(_LOOK_SECONDS)) is None:
                watcher.look()
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(phase) from None
        except TimeoutError:
            raise Fault("RuntimeError", "agent", "the agent's process takes nothing of what it is told to do") from None
        except TimedOut:
            self._last_words(result)
            raise
        if (error := answer.get("error")) is not None:
            _take_context(answer, result)
            raise _fault(error, phase)
        return answer

    def _last_words(self, result: dict[str, Any] | None) -> None:
        """Have the agent cancelled, and take what it has reported so far."""
        try:
            self._ours.sendall(b'{"op": "stop"}\n')
            answer = self._answer(_LAST_WORDS_SECONDS)
        except (OSError, Fault):
            return
        if answer is not None:
            _take_context(answer, result)

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """The next answer, or None if there is none within ``seconds``."""
        while b"\n" not in self._buffer:
            if not select.select([self._ours], [], [], seconds)[0]:
                return None
            data = self._ours.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            self._buffer += data
            if len(self._buffer) > _ANSWER_BYTES:
                raise Fault("ValueError", "agent", f"the agent reported more than {_ANSWER_BYTES} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Fault("ValueError", "agent", "the agent's process sent no valid answer")
        return answer

    def _died(self, phase: str) -> Fault:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        doing = {"load": "its class was loaded", "setup": "it set up", "run": "it ran"}[phase]
        return Fault("NonZeroAgentExitCodeError", "agent", f"the agent's process {how} while {doing}; see its output in {OUTPUT_FILE}")


class _Patience:
    """Waits for a class to load: no environment is looked at yet."""

    def __init__(self, stop: Stop) -> None:
        from seatrial_runner.clock import Deadline

        self._stop, self._deadline = stop, Deadline(LOAD_SECONDS)

    def look(self) -> None:
        if self._stop.requested:
            raise interrupted("the agent was loaded")
        if self._deadline.passed:
            raise Fault("AgentSetupTimeoutError", "agent", f"the agent's class was not loaded within {LOAD_SECONDS:.0f} seconds")


def _fault(error: Any, phase: str) -> Fault:
    if not isinstance(error, dict):
        error = {}
    kind, message = str(error.get("type", "RuntimeError")), str(error.get("message", ""))
    if error.get("user") is True:
        return Fault(kind, "user", message, reason="AgentNotLoaded")
    return Fault(kind, "agent", f"the agent failed: {message}" if phase == "run" else f"Agent setup failed: {message}")


def _take_context(answer: Mapping[str, Any], result: dict[str, Any] | None) -> None:
    context = answer.get("context")
    if result is not None and isinstance(context, dict):
        result |= stated_figures(context)


def _open_output(paths: Paths) -> int:
    """What the class prints goes to the agent's logs. Not through a link: the environment can make one there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    os.makedirs(paths.logs_agent, exist_ok=True)
    return os.open(_output(paths), flags, 0o644)


def _output(paths: Paths) -> str:
    return f"{paths.logs_agent}/{OUTPUT_FILE}"


def _import_paths() -> list[str]:
    """Where this package and ``seatrial`` come from."""
    return list(dict.fromkeys(os.path.dirname(os.path.dirname(os.path.abspath(file))) for file in (__file__, contract.__file__)))
