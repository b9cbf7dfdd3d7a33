"""Make the environment ready for the agent, in Harbor's order: log folders, loose files, healthcheck. Source: harbor.md 4.3, 3.9."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from seatrial.contract import LOOSE_FILES_TAR, HealthcheckInput, TrialInput
from seatrial_runner.channel import Channel, CommandFailed
from seatrial_runner.clock import Timer
from seatrial_runner.faults import Fault
from seatrial_runner.paths import Paths
from seatrial_runner.watch import TimedOut, Watcher

_LOG_MODE: Final = 0o777
_BLOCK_BYTES: Final = 256 * 1024


def prepare(watcher: Watcher, trial: TrialInput, paths: Paths) -> None:
    """All of it, under the watcher's deadline.

    Raises:
        TimedOut: the deadline passed.
        Fault: HealthcheckError, or what the watcher raises.
        EnvironmentExited, ProtocolViolation, EnvdError: from the channel.
    """
    make_log_folders(watcher.channel, paths)
    loose_files = f"{paths.task}/{LOOSE_FILES_TAR}"
    if trial["environment"]["loose_files"] and os.path.exists(loose_files):
        watcher.check()
        watcher.channel.put(chunks(loose_files), trial["environment"]["workdir"] or watcher.channel.hello.cwd)
    healthcheck = trial["environment"]["healthcheck"]
    if healthcheck is not None:
        wait_healthy(watcher, healthcheck, cwd=trial["environment"]["workdir"])


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


def wait_healthy(watcher: Watcher, check: HealthcheckInput, *, cwd: str | None) -> None:
    """Repeat the command until it succeeds. Failures within the start period do not count; a time-out is a failure.

    Raises:
        Fault: HealthcheckError after ``retries`` failures in a row (at least one try).
        TimedOut: the watcher's deadline passed first.
    """
    since_first = Timer()
    failures = 0
    while True:
        try:
            status = watcher.run(check["command"], cwd=cwd, limit_seconds=check["timeout_sec"] or None)
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
