"""What ends a phase early: one exception type that carries Harbor's error name, our reason and whose fault it is.

Why two names: ``result.json`` needs a type of Harbor's table, because Harbor takes an unknown name for a valid score; our reason says
more exactly what happened. Reasons and their types: ``spec/operator.md`` section 11.
"""

from __future__ import annotations

from typing import Final

from seatrial.contract import ERROR_MESSAGE_CHARS, Cause, ErrorInfo

LOST_POD: Final = "GKEPodNotFoundError"
STORAGE_LIMIT: Final = "RuntimeRequestError"
OUT_OF_MEMORY: Final = "SandboxLikelyOutOfMemoryError"


class Fault(Exception):
    """The trial cannot go on as planned. ``type`` is Harbor's name, ``reason`` ours where it differs."""

    def __init__(self, type: str, cause: Cause, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.cause = cause
        self.message = message
        self.reason = reason

    def info(self) -> ErrorInfo:
        info = ErrorInfo(type=self.type, cause=self.cause, message=self.message[:ERROR_MESSAGE_CHARS])
        if self.reason is not None:
            info["reason"] = self.reason
        return info


def environment_exited(doing: str) -> Fault:
    return Fault(LOST_POD, "environment", f"the environment exited while {doing}", reason="EnvironmentExited")


def envd_misbehaved(doing: str, error: Exception) -> Fault:
    message = f"the environment's connection broke its protocol while {doing}: {error}"
    return Fault(LOST_POD, "environment", message, reason="EnvironmentMisbehaved")


def runner_crashed(who: str, message: str) -> Fault:
    return Fault(LOST_POD, "infrastructure", f"{who}: {message}", reason="RunnerCrashed")


def interrupted(doing: str) -> Fault:
    return Fault(
        LOST_POD, "infrastructure", f"the Pod was told to stop (deadline, eviction or deletion) while {doing}", reason="Interrupted"
    )


def storage_limit(path: str, used: int, limit: int, cause: Cause) -> Fault:
    return Fault(
        STORAGE_LIMIT,
        cause,
        f"{path} holds {used} bytes of {limit}: the phase was ended before an eviction would lose the evidence",
        reason="StorageLimitExceeded",
    )


def storage_unmeasured(path: str, entries: int, cause: Cause) -> Fault:
    return Fault(
        STORAGE_LIMIT,
        cause,
        f"{path} holds more than can be counted ({entries} entries seen, or folders too deep): the phase was ended before an eviction "
        "would lose the evidence; pack small files into an archive",
        reason="StorageLimitExceeded",
    )


def print_traceback() -> None:
    """A bug's traceback for the container's log. Loaded on need: the module costs 3 ms at start."""
    import traceback

    traceback.print_exc()
