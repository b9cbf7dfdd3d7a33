"""Make the environment ready for the agent, in Harbor's order: log folders, loose files, healthcheck; then each step for itself.

Source: harbor.md 3.9, 4.3 and 4.8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from seatrial.contract import LOOSE_FILES_TAR, WORKDIR_TAR, HealthcheckInput, TrialInput
from seatrial_runner.channel import Channel, CommandFailed, EnvdError
from seatrial_runner.clock import Timer
from seatrial_runner.faults import Fault
from seatrial_runner.paths import Paths
from seatrial_runner.steps import step_path
from seatrial_runner.watch import TimedOut, Watcher

SETUP_SCRIPT: Final = "setup.sh"
_LOG_MODE: Final = 0o777
_BLOCK_BYTES: Final = 256 * 1024


def prepare(watcher: Watcher, trial: TrialInput, paths: Paths) -> None:
    """What Harbor counts to the start of the environment, under the watcher's deadline; ``wait_healthy`` comes after.

    Raises:
        TimedOut: the deadline passed.
        Fault: what the watcher raises.
        EnvironmentExited, ProtocolViolation, EnvdError: from the channel.
    """
    make_log_folders(watcher.channel, paths)
    loose_files = f"{paths.task}/{LOOSE_FILES_TAR}"
    if trial["environment"]["loose_files"] and os.path.exists(loose_files):
        watcher.check()
        watcher.channel.put(chunks(loose_files), workdir_of(watcher.channel, trial))


def make_log_folders(channel: Channel, paths: Paths) -> None:
    """``/logs/agent``, ``/logs/verifier`` and ``/logs/artifacts``, writable by everybody."""
    for path in (paths.logs_agent, paths.logs_verifier, paths.logs_artifacts):
        make_log_folder(channel, path)


def make_log_folder(channel: Channel, path: str) -> None:
    """One folder that everybody may write to; a link in its place is refused."""
    found = channel.stat(path)
    # An envd without root cannot change the mode of a mounted volume, and need not: the kubelet makes it so.
    if found is None or found.kind != "dir" or found.mode != _LOG_MODE:
        channel.mkdir(path, mode=_LOG_MODE)


def workdir_of(channel: Channel, trial: TrialInput) -> str:
    """Where commands of the task run: ``workdir``, else the image's."""
    return trial["environment"]["workdir"] or channel.hello.cwd


def begin_step(watcher: Watcher, trial: TrialInput, paths: Paths, index: int, *, was_verified: bool) -> None:
    """Clear what an earlier step left and put the step's files into the working directory.

    Args:
        watcher: without a deadline, Harbor sets none here.
        was_verified: the step before ran its tests.

    Raises:
        Fault: RuntimeError; it belongs to the trial, not to the step.
        EnvironmentExited, ProtocolViolation: from the channel.
    """
    channel = watcher.channel
    watcher.check()
    try:
        if index:
            channel.empty(paths.logs_agent)
        if was_verified:
            channel.empty(paths.logs_verifier)
            channel.empty(paths.tests)
        files = step_path(paths.task, index, WORKDIR_TAR)
        if os.path.exists(files):
            channel.put(chunks(files), workdir_of(channel, trial))
    except EnvdError as error:
        raise Fault("RuntimeError", "environment", f"step {index + 1} cannot be laid out in the environment: {error}") from error


def set_up_step(watcher: Watcher, trial: TrialInput, paths: Paths, index: int) -> None:
    """Run the step's ``setup.sh``, if it brings one, and its healthcheck, as the step's agent user.

    Raises:
        Fault: RuntimeError or HealthcheckError of the step, or what the watcher raises.
        EnvironmentExited, ProtocolViolation, EnvdError: from the channel.
    """
    step, cwd = trial.get("steps", [])[index], trial["environment"]["workdir"]
    if has_member(step_path(paths.task, index, WORKDIR_TAR), SETUP_SCRIPT):
        script = f"{workdir_of(watcher.channel, trial).rstrip('/')}/{SETUP_SCRIPT}"
        shell = "bash" if (watcher.channel.hello.shell or "").endswith("bash") else "sh"
        try:
            status = watcher.run(f"{shell} {quoted(script)}", cwd=cwd, user=step["agent_user"])
        except CommandFailed as error:
            raise Fault("RuntimeError", "environment", f"setup.sh of step {step['name']} cannot be started: {error}") from error
        if not status.ok:
            message = f"setup.sh of step {step['name']} ended with exit code {status.returncode}"
            raise Fault("RuntimeError", "environment", message, reason="StepSetupFailed")
    if step["healthcheck"] is not None:
        wait_healthy(watcher, step["healthcheck"], cwd=cwd, user=step["agent_user"])


def wait_healthy(watcher: Watcher, check: HealthcheckInput, *, cwd: str | None, user: str | int | None = None) -> None:
    """Repeat the command until it succeeds. Failures within the start period do not count; a time-out is a failure.

    Raises:
        Fault: HealthcheckError after ``retries`` failures in a row (at least one try).
        TimedOut: the watcher's deadline passed first.
    """
    since_first = Timer()
    failures = 0
    while True:
        try:
            status = watcher.run(check["command"], cwd=cwd, user=user, limit_seconds=check["timeout_sec"] or None)
        except CommandFailed as error:
            raise Fault("HealthcheckError", "environment", f"the healthcheck cannot be started: {error}") from error
        if status.ok:
            return
        pause = check["start_interval_sec"]
        if since_first.seconds() >= check["start_period_sec"]:
            failures += 1
            pause = check["interval_sec"]
            if failures >= check["retries"]:
                how = "timed out" if status.timed_out else f"exit code {status.returncode}"
                message = f"Healthcheck failed {failures} times in a row ({how}): {check['command'][:80]}"
                raise Fault("HealthcheckError", "environment", message)
        if watcher.stop.sleep(watcher.deadline.cap(pause)) or watcher.deadline.passed:
            watcher.check()
            raise TimedOut


def read_bytes(path: str) -> bytes:
    """A local file. Not ``pathlib``: it costs 3 ms at start."""
    with open(path, "rb") as file:
        return file.read()


def chunks(path: str) -> Iterator[bytes]:
    """A local file in pieces."""
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def has_member(tar: str, name: str) -> bool:
    """Whether a tar file of ours holds ``name``; False without the file."""
    if not os.path.exists(tar):
        return False
    import tarfile

    with tarfile.open(tar) as file:
        return name in file.getnames()


def quoted(text: str) -> str:
    """``text`` as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"
