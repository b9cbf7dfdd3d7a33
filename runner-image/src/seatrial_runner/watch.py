"""Run one command of a phase and end it for any of four reasons: time, SIGTERM, a volume that is nearly full, or its own end.

Why volumes are watched: the kubelet evicts a Pod over a volume's limit within about 85 s and without grace, and the evidence is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from seatrial.contract import Cause
from seatrial_runner.channel import Channel, ChannelError, EnvdError, EnvironmentExited, ExitStatus, RunningExec
from seatrial_runner.clock import Deadline, Timer
from seatrial_runner.faults import interrupted, storage_limit, storage_unmeasured
from seatrial_runner.stop import Stop

FULL: Final = 0.8
_LOOK_SECONDS: Final = 0.25
_VOLUME_SECONDS: Final = 5.0
# Counting a full volume of small files costs up to a second; it must not take the environment's CPU from the task.
_VOLUME_SHARE: Final = 0.05
# What is not empty takes a block. Beside a volume full of the smallest files, so many empty ones are allowed.
_BLOCK_BYTES: Final = 4096
_EMPTY_ENTRIES: Final = 100_000
# envd ends the command itself; this is for an envd that does not.
_OVERTIME_SECONDS: Final = 10.0


class TimedOut(Exception):
    """The deadline of the phase passed; the command's process group has been ended."""


class Watcher:
    """The limits of one phase, for all its commands."""

    def __init__(self, channel: Channel, *, deadline: Deadline, stop: Stop, volumes: Mapping[str, int], cause: Cause, doing: str) -> None:
        self.channel = channel
        self.deadline = deadline
        self.stop = stop
        self._volumes = dict(volumes)
        self._cause: Cause = cause
        self._doing = doing
        self._volumes_seen = Timer()
        self._pause_seconds = _VOLUME_SECONDS

    def check(self) -> None:
        """To be called between steps.

        Raises:
            TimedOut: the deadline passed.
            Fault: SIGTERM came.
        """
        if self.stop.requested:
            raise interrupted(self._doing)
        if self.deadline.passed:
            raise TimedOut

    def look(self) -> None:
        """To be called while something runs that is not ours.

        Raises:
            TimedOut, Fault: as from ``check``; a volume is nearly full. ChannelError: the environment failed.
        """
        self.check()
        if self.channel.closed:
            raise EnvironmentExited("the environment exited")
        self._check_volumes()

    def run(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        limit_seconds: float | None = None,
    ) -> ExitStatus:
        """Run a shell command; its output is thrown away. ``limit_seconds`` is the command's own limit: beyond it the status says so.

        Raises:
            TimedOut: the phase's deadline passed, also while the command ran.
            Fault: SIGTERM came, or a volume is nearly full.
            CommandFailed, EnvironmentExited, ProtocolViolation, EnvdError: from the channel.
        """
        self.check()
        left = self.deadline.remaining()
        is_own_limit = limit_seconds is not None and (left is None or limit_seconds < left)
        own = Deadline(limit_seconds if is_own_limit else left)
        running = self.channel.start(command, env=env, cwd=cwd, user=user, timeout_seconds=own.remaining())
        overtime: Deadline | None = None
        try:
            while (status := running.wait(_LOOK_SECONDS)) is None:
                if self.stop.requested:
                    raise interrupted(self._doing)
                self._check_volumes()
                if own.passed:
                    overtime = overtime or Deadline(_OVERTIME_SECONDS)
                    if overtime.passed:
                        raise TimedOut
        except BaseException:
            _end(running)
            raise
        if status.timed_out and not is_own_limit:
            raise TimedOut
        return status

    def _check_volumes(self) -> None:
        if not self._volumes or self._volumes_seen.seconds() < self._pause_seconds:
            return
        began = Timer()
        for path, limit in self._volumes.items():
            try:
                used = self.channel.usage(path, max_entries=_EMPTY_ENTRIES + limit // _BLOCK_BYTES)
            except EnvdError:
                continue  # the path is gone or unreadable: the kubelet's own limit stays
            if used.size_bytes >= FULL * limit:
                raise storage_limit(path, used.size_bytes, limit, self._cause)
            if used.truncated:
                # Whatever lies beyond could fill the volume unseen.
                raise storage_unmeasured(path, used.entries, self._cause)
        self._pause_seconds = max(_VOLUME_SECONDS, began.seconds() / _VOLUME_SHARE)
        self._volumes_seen = Timer()


def _end(running: RunningExec) -> None:
    try:
        running.kill()
    except ChannelError:
        return  # the environment is gone, and the command with it
