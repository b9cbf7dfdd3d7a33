"""The agent's container: prepare the environment, drive the agent in it, leave an end record.

Why the record and nothing else: the verifier waits for it, and the operator never has to. Life cycle: harbor.md 4.3; oracle and nop: 5.4.

A ``command`` agent is a shell command that runs in the environment as the agent's user. It finds the instruction on its standard input, in
the file named by ``INSTRUCTION_FILE`` (``/logs/agent/instruction.md``, kept with the logs) and, up to 100 KiB, in ``INSTRUCTION``; the
model's name in ``MODEL``; where there are any, MCP servers as JSON in ``MCP_SERVERS`` and the folder of the task's skills in
``SKILLS_DIR``; and the job's agent variables. Its output goes to ``/logs/agent/agent.txt``. A class of the user (``importPath``) lives in
a process of its own: ``hosted``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

from seatrial.contract import (
    INSTRUCTION_FILE,
    SOLUTION_TAR,
    VAR_REDACT_PREFIX,
    AgentAbout,
    AgentEnd,
    Cause,
    McpServerInput,
    Span,
    TrialInput,
)
from seatrial_runner.channel import Channel, ChannelError, ConnectTimeout, EnvdError, ExitStatus, Listener
from seatrial_runner.clock import Deadline, Timer
from seatrial_runner.connect import Connection, channel_fault
from seatrial_runner.ends import hold_lock, write_end
from seatrial_runner.faults import Fault, interrupted, print_traceback, runner_crashed
from seatrial_runner.live import LiveLog
from seatrial_runner.paths import Paths
from seatrial_runner.prepare import begin_step, chunks, has_member, prepare, read_bytes, set_up_step, wait_healthy, workdir_of
from seatrial_runner.redact import Redactor, send_secrets
from seatrial_runner.steps import step_path, wait_for_answer
from seatrial_runner.stop import Stop
from seatrial_runner.variables import resolve_all, secret_values, template_sources, values_of
from seatrial_runner.watch import TimedOut, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seatrial_runner.hosted import HostedAgent

# An environment string may have 128 KiB.
INSTRUCTION_BYTES: Final = 100 * 1024
# All containers of a Pod start together, but the verifier's image may still be on its way.
_HANDOVER_SECONDS: Final = 120.0
_OUTPUT_BYTES: Final = 16 << 20
_TAIL_BYTES: Final = 64 << 10
_LOOK_SECONDS: Final = 0.1

NO_RESULT: Final = {
    "n_input_tokens": None,
    "n_cache_tokens": None,
    "n_output_tokens": None,
    "cost_usd": None,
    "model_usage": None,
    "rollout_details": None,
    "metadata": None,
}
"""Harbor's ``agent_result`` of an agent that reports nothing."""


class Run(NamedTuple):
    """What an agent is given for one execution phase: of the trial, or of one step."""

    watcher: Watcher
    trial: TrialInput
    paths: Paths
    env: dict[str, str]
    """The agent's own variables."""
    sources: dict[str, str]
    """Of the solution's templates."""
    user: str | int | None
    instruction: str
    """Local path of the instruction."""
    solution: str
    """Local path of the solution's tar."""
    hidden: tuple[str, ...]
    """Values that no output may show."""
    result: dict[str, Any]
    """Harbor's ``agent_result``, to be filled in."""

    @property
    def channel(self) -> Channel:
        return self.watcher.channel

    def shell(self, command: str, env: Mapping[str, str]) -> ExitStatus:
        """Run ``command`` in the environment as the agent's user."""
        return self.watcher.run(command, env=env, cwd=self.trial["environment"]["workdir"], user=self.user)


def run(paths: Paths, environ: Mapping[str, str], *, stop: Stop | None = None) -> int:
    """Play the agent's part of a trial; always 0 once the end record is written."""
    stop = stop or Stop.on_sigterm()
    listener = Channel.listen(paths.agent_socket)
    lock = hold_lock(paths.agent_lock)
    end = AgentEnd(error=None, spans={}, exit_code=None, result=None)
    redactor = Redactor(secret_values(environ))
    try:
        _run(paths, environ, stop, listener, end)
    except Fault as fault:
        end["error"] = fault.info()
    except Exception as error:  # noqa: BLE001 - the border: the verifier must learn of a bug here from the record
        print_traceback()
        end["error"] = runner_crashed("agent runner", f"{type(error).__name__}: {error}").info()
    finally:
        listener.close()
    if end["error"] is not None:
        end["error"]["message"] = redactor.text(end["error"]["message"])
    write_end(paths.agent_end, end)
    os.close(lock)
    return 0


def _run(paths: Paths, environ: Mapping[str, str], stop: Stop, listener: Listener, end: AgentEnd) -> None:
    trial: TrialInput = json.loads(read_bytes(paths.input))
    execute = _execution_of(trial)
    env = {name: environ[name] for name in trial["agent"]["env_names"] if name in environ}
    sources = template_sources(environ, trial["variables"])
    with ExitStack() as stack:
        hosted = None
        if trial["agent"]["kind"] == "importPath":
            from seatrial_runner.hosted import HostedAgent

            # Before the environment is looked at: a class that cannot be used costs no more than its import.
            hosted = stack.enter_context(closing(HostedAgent(paths, trial, environ, env)))
            hosted.load(stop)
            end["agent"] = AgentAbout(name=hosted.name, version=hosted.version)
            execute = hosted.run
        with _Span("environment_setup", end["spans"]):
            channel = stack.enter_context(_prepared_environment(paths, trial, stop, listener, end))
        with _Span("agent_setup", end["spans"]):
            # oracle, nop and command have nothing to set up; the phase exists for Harbor's result.
            hidden = _secrets_of(env, sources, trial.get("secret_names", []))
            _hand_over_secrets(paths, hidden)
            # The verifier has these itself.
            hidden += (value for name, value in environ.items() if name.startswith(VAR_REDACT_PREFIX))
            if hosted is not None:
                _set_up(hosted, channel, trial, stop)
        player = _Player(channel, trial, paths, stop, execute, env, sources, tuple(hidden))
        if trial.get("steps"):
            player.run_steps(end)
        else:
            player.run(end)


class _Player(NamedTuple):
    """Drives one agent in a prepared environment."""

    channel: Channel
    trial: TrialInput
    paths: Paths
    stop: Stop
    execute: Callable[[Run], int | None]
    env: dict[str, str]
    sources: dict[str, str]
    hidden: tuple[str, ...]

    def run(self, end: AgentEnd) -> None:
        """A task without steps.

        Raises:
            Fault: how the agent failed.
        """
        task, trial = self.paths.task, self.trial
        instruction, solution = f"{task}/{INSTRUCTION_FILE}", f"{task}/{SOLUTION_TAR}"
        given = self._given(trial["timeouts"]["agent"], trial["agent"]["user"], instruction, solution)
        _execute(self.execute, given, end)

    def run_steps(self, end: AgentEnd) -> None:
        """Step by step, each with a record of its own, until the verifier's answer is to stop.

        Raises:
            Fault: of the trial; a fault of a step is in its record.
        """
        was_verified = False
        for index in range(len(self.trial.get("steps", []))):
            watcher = _watcher(self.channel, self.trial, self.stop, None, "a step was prepared", cause="environment")
            try:
                begin_step(watcher, self.trial, self.paths, index, was_verified=was_verified)
            except ChannelError as error:
                raise channel_fault(error, "a step was laid out") from error
            step_end = AgentEnd(
                error=None, spans=dict(end["spans"]), exit_code=None, result=None, envd=self.channel.hello.instance, step=index
            )
            try:
                self._run_step(watcher, index, step_end)
            except Fault as fault:
                info = fault.info()
                step_end["error"] = {**info, "message": Redactor(self.hidden).text(info["message"])}
            write_end(self.paths.step_end(index), step_end)
            answer = wait_for_answer(self.paths.step_answer(index), self.stop)
            if answer is None:
                raise interrupted("a step was graded")
            if not answer["go_on"]:
                return
            was_verified = answer["verified"]

    def _run_step(self, watcher: Watcher, index: int, end: AgentEnd) -> None:
        task, step = self.paths.task, self.trial.get("steps", [])[index]
        try:
            set_up_step(watcher, self.trial, self.paths, index)
        except ChannelError as error:
            raise channel_fault(error, "a step was prepared") from error
        own_solution = step_path(task, index, SOLUTION_TAR)
        solution = own_solution if os.path.exists(own_solution) else f"{task}/{SOLUTION_TAR}"
        given = self._given(step["agent_timeout"], step["agent_user"], step_path(task, index, INSTRUCTION_FILE), solution)
        _execute(self.execute, given, end)

    def _given(self, limit: float | None, user: str | int | None, instruction: str, solution: str) -> Run:
        watcher = _watcher(self.channel, self.trial, self.stop, limit, "the agent ran")
        return Run(watcher, self.trial, self.paths, self.env, self.sources, user, instruction, solution, self.hidden, dict(NO_RESULT))


def _watcher(channel: Channel, trial: TrialInput, stop: Stop, limit: float | None, doing: str, *, cause: Cause = "agent") -> Watcher:
    return Watcher(channel, deadline=Deadline(limit), stop=stop, volumes=trial.get("limits", {}), cause=cause, doing=doing)


def _execute(execute: Callable[[Run], int | None], given: Run, end: AgentEnd) -> None:
    """The agent's execution phase, timed into ``end``.

    Raises:
        Fault: how it failed.
    """
    limit = given.watcher.deadline.seconds
    end["result"] = given.result
    with _Span("agent_execution", end["spans"]):
        try:
            end["exit_code"] = execute(given)
        except TimedOut as error:
            raise Fault("AgentTimeoutError", "agent", f"Agent execution timed out after {limit} seconds") from error
        except _ExitCode as error:
            end["exit_code"] = error.code
            raise
        except ChannelError as error:
            raise channel_fault(error, "the agent ran") from error


def _prepared_environment(paths: Paths, trial: TrialInput, stop: Stop, listener: Listener, end: AgentEnd) -> Channel:
    limit = trial["timeouts"]["environment"]
    deadline = Deadline(limit)
    too_late = Fault("EnvironmentStartTimeoutError", "environment", f"Environment start timed out after {float(limit)} seconds")
    try:
        channel = Connection(listener, limit).wait(deadline, stop, doing="the environment started")
    except ConnectTimeout as error:
        too_late.message += f": {error}"
        raise too_late from error
    except ChannelError as error:
        raise channel_fault(error, "it started") from error
    end["envd"] = channel.hello.instance
    doing, check = "the environment was prepared", trial["environment"]["healthcheck"]
    watcher = Watcher(channel, deadline=deadline, stop=stop, volumes=trial.get("limits", {}), cause="environment", doing=doing)
    try:
        prepare(watcher, trial, paths)
        if check is not None:
            # Not under the environment's limit: a healthcheck ends by its own numbers.
            wait_healthy(_watcher(channel, trial, stop, None, doing, cause="environment"), check, cwd=trial["environment"]["workdir"])
    except TimedOut as error:
        raise too_late from error
    except ChannelError as error:
        raise channel_fault(error, "it was prepared") from error
    return channel


def _set_up(hosted: HostedAgent, channel: Channel, trial: TrialInput, stop: Stop) -> None:
    limit = trial["timeouts"]["agent_setup"]
    try:
        hosted.set_up(_watcher(channel, trial, stop, limit, "the agent was set up"))
    except TimedOut as error:
        raise Fault("AgentSetupTimeoutError", "agent", f"Agent setup timed out after {float(limit)} seconds") from error
    except ChannelError as error:
        raise channel_fault(error, "the agent was set up") from error


def _secrets_of(env: Mapping[str, str], sources: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [value for given in (env, sources) for value in (*secret_values(given), *values_of(given, names))]


def _hand_over_secrets(paths: Paths, values: Sequence[str]) -> None:
    if not send_secrets(paths.secrets_socket, values, wait_seconds=_HANDOVER_SECONDS):
        raise runner_crashed("agent runner", "the verifier's container did not start, so nobody would redact the agent's secrets")


class _Span:
    """Times a phase into the end record, also when it fails."""

    def __init__(self, name: str, spans: dict[str, Span]) -> None:
        self._name = name
        self._spans = spans

    def __enter__(self) -> None:
        self._timer = Timer()

    def __exit__(self, *args: object) -> None:
        self._spans[self._name] = self._timer.span()


# --- agents --------------------------------------------------------------------------------------------------------------------------


def run_nop(given: Run) -> int | None:
    """Leave everything as it is."""
    return None


def run_oracle(given: Run) -> int | None:
    """Upload the solution and run its script. A non-zero exit code is noted in ``exit-code.txt`` and is no error."""
    channel, paths = given.channel, given.paths
    if not has_member(given.solution, "solve.sh"):
        raise _no_solution()
    # The script's x bits were set when the solution was packed.
    channel.put(chunks(given.solution), paths.solution)
    if channel.stat(f"{paths.solution}/solve.sh") is None:
        raise _no_solution()
    env = {
        "DEBIAN_FRONTEND": "noninteractive",
        **given.env,
        **resolve_all(given.trial["solution_env"], given.sources, where="[solution.env]"),
    }
    # Never by direct exec: a script without a first line, or with bytes before it, is run by the shell.
    with _heard(given, "oracle.txt"):
        status = given.shell(f"({paths.solution}/solve.sh) > {paths.logs_agent}/oracle.txt 2>&1", env)
    if status.returncode:
        channel.put_bytes(str(status.returncode).encode(), f"{paths.logs_agent}/exit-code.txt")
    return status.returncode


def _no_solution() -> Fault:
    return Fault("FileNotFoundError", "agent", "the task has no solution/solve.sh for the oracle agent")


def run_command(given: Run) -> int | None:
    """Run the job's command line; a non-zero exit code is ``NonZeroAgentExitCodeError``, which is graded."""
    agent, paths = given.trial["agent"], given.paths
    instruction = read_bytes(given.instruction)
    instruction_file = f"{paths.logs_agent}/{INSTRUCTION_FILE}"
    given.channel.put_bytes(instruction, instruction_file)
    env = {"INSTRUCTION_FILE": instruction_file}
    if len(instruction) <= INSTRUCTION_BYTES:
        env["INSTRUCTION"] = instruction.decode()
    if agent["model"] is not None:
        env["MODEL"] = agent["model"]
    if agent.get("skills_dir"):
        env["SKILLS_DIR"] = str(agent.get("skills_dir"))
    if servers := agent.get("mcp_servers"):
        env["MCP_SERVERS"] = json.dumps(_resolved(servers, given.env))
    with _heard(given, "agent.txt"):
        status = given.shell(f"(\n{agent['command']}\n) < {instruction_file} > {paths.logs_agent}/agent.txt 2>&1", {**env, **given.env})
    if status.returncode:
        from seatrial_runner.error_patterns import classify

        why = ", a process was killed for memory" if status.oom_killed else ""
        output = _end_of(given.channel, f"{paths.logs_agent}/agent.txt", Redactor(given.hidden))
        message = f"the agent's command ended with exit code {status.returncode}{why}: {_last_line(output)}"
        raise _ExitCode(status.returncode, message, classify(output))
    return 0


def _heard(given: Run, name: str) -> LiveLog:
    """What the agent prints into its file, in this container's own log while it runs."""
    return LiveLog(f"{given.paths.logs_agent}/{name}", sys.stdout.buffer, Redactor(given.hidden))


def _resolved(servers: Sequence[McpServerInput], env: Mapping[str, str]) -> list[dict[str, Any]]:
    from seatrial_runner.mcp import MissingHeaderVariable, resolve_headers

    try:
        return resolve_headers(servers, env)
    except MissingHeaderVariable as error:
        raise Fault("ValueError", "user", str(error), reason="VariableMissing") from error


def run_image(given: Run) -> int | None:
    """Serve the client of the user's own container until that ends; its exit code is the operator's to see."""
    from seatrial_runner.desk import Desk, has_ended

    trial, paths, channel = given.trial, given.paths, given.channel
    channel.put_bytes(read_bytes(given.instruction), f"{paths.logs_agent}/{INSTRUCTION_FILE}")
    began = os.stat(paths.agent_lock).st_mtime
    desk = Desk(paths.desk, channel, workdir=workdir_of(channel, trial), user=given.user)
    try:
        while not has_ended(paths.desk, began=began):
            given.watcher.look()
            given.watcher.stop.sleep(_LOOK_SECONDS)
    finally:
        desk.close()
    return None


class _ExitCode(Fault):
    def __init__(self, code: int, message: str, name: str | None = None) -> None:
        super().__init__(name or "NonZeroAgentExitCodeError", "agent", message)
        self.code = code


def _end_of(channel: Channel, path: str, redactor: Redactor) -> str:
    """The end of an output file; empty where it is too long to be read."""
    try:
        data = channel.read_file(path, max_bytes=_OUTPUT_BYTES)
    except EnvdError:
        return ""
    return redactor.text(data[-_TAIL_BYTES:].decode(errors="replace")) if isinstance(data, bytes) else ""


def _last_line(output: str) -> str:
    """For a message."""
    return next((line.strip() for line in reversed(output.split("\n")) if line.strip()), "see its output")[-120:]


def _execution_of(trial: TrialInput) -> Callable[[Run], int | None]:
    agent = trial["agent"]
    # The one of ``importPath`` comes into being with its process.
    execution = run_nop if agent["kind"] == "importPath" else _EXECUTIONS.get(agent["kind"])
    if execution is None or (execution is run_command and not agent["command"]):
        message = f"this runner has no agent of kind {agent['kind']!r} named {agent['name']!r}"
        raise Fault("ValueError", "user", message, reason="AgentUnknown")
    return execution


_EXECUTIONS: Final[Mapping[str, Callable[[Run], int | None]]] = {
    "oracle": run_oracle,
    "nop": run_nop,
    "command": run_command,
    "image": run_image,
}
