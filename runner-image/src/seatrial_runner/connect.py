"""Wait for envd without ceasing to look around, and say what a lost or refusing environment means for the trial.

Why a thread: envd dials when the image's start-up is done, and meanwhile SIGTERM and the agent's end must be seen.
"""

from __future__ import annotations

import threading

from seatrial_runner.channel import (
    Channel,
    ChannelError,
    CommandFailed,
    ConnectTimeout,
    EnvironmentExited,
    Listener,
    NoAnswer,
    ProtocolViolation,
)
from seatrial_runner.clock import Deadline
from seatrial_runner.faults import Fault, envd_misbehaved, environment_exited, interrupted
from seatrial_runner.stop import Stop

_LOOK_SECONDS = 0.25


class Connection:
    """Accepts the one connection of a listener in the background."""

    def __init__(self, listener: Listener, timeout_seconds: float) -> None:
        self._listener = listener
        self._timeout_seconds = timeout_seconds
        self._channel: Channel | None = None
        self._error: ChannelError | None = None
        self._done = threading.Event()
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def _accept(self) -> None:
        try:
            self._channel = self._listener.accept(self._timeout_seconds)
        except ChannelError as error:
            self._error = error
        except OSError as error:  # the listener was closed under us
            self._error = ConnectTimeout(str(error))
        finally:
            self._done.set()

    @property
    def channel(self) -> Channel | None:
        """The channel, once there is one."""
        return self._channel

    def wait(self, deadline: Deadline, stop: Stop, *, doing: str) -> Channel:
        """The channel.

        Raises:
            ConnectTimeout, ProtocolViolation: from ``accept``, or the deadline passed first.
            Fault: SIGTERM came first.
        """
        while not self._done.wait(deadline.cap(_LOOK_SECONDS)):
            if stop.requested:
                raise interrupted(doing)
            if deadline.passed:
                raise ConnectTimeout("envd did not dial")
        if self._channel is None:
            raise self._error or ConnectTimeout("envd did not dial")
        return self._channel


def channel_fault(error: ChannelError, doing: str) -> Fault:
    """What an error of the channel means for the trial. None of these is graded."""
    match error:
        case ConnectTimeout():
            message = f"the environment did not connect while {doing}: {error}"
            return Fault("EnvironmentStartTimeoutError", "environment", message)
        case EnvironmentExited():
            return environment_exited(doing)
        case ProtocolViolation():
            return envd_misbehaved(doing, error)
        case NoAnswer():
            message = f"the environment did not answer while {doing}: {error}"
            return Fault("RuntimeRequestError", "environment", message, reason="EnvironmentStuck")
        case CommandFailed():
            message = f"a command could not be started while {doing}: {error}"
            return Fault("ServiceOperationsUnsupportedError", "user", message, reason="CommandNotStarted")
        case _:
            return Fault("RuntimeRequestError", "environment", f"the environment refused a request while {doing}: {error}")
