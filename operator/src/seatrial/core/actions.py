"""What a plan asks for, as values: what is done with them is decided in ``effects/execute.py``."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.core.expand import Trial
from seatrial.core.rows import Row


@dataclass(frozen=True, slots=True)
class CreatePod:
    """A Pod for one retry of a trial. The manifest is built when it is executed: signing URLs needs a key and a clock."""

    trial: Trial
    retry: int
    pod: str
    """Its name."""
    verifies: Row | None = None
    """The row of the Pod whose work this one grades, where the task has a separate verifier."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete by name and UID: a Pod that took the name over is never hit."""

    pod: str
    uid: str
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class CommitRow:
    """Append to the job's rows. Done before the Pod is deleted."""

    row: Row


@dataclass(frozen=True, slots=True)
class FindResult:
    """Ask the store for the result of a retry whose Pod has no verdict."""

    trial: str
    retry: int


@dataclass(frozen=True, slots=True)
class SaveResults:
    """All trials are final: write the tables and the summary, before the job's phase says that it ended."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """``spec.ttlSecondsAfterFinished`` passed: delete the object; its results stay."""


Action = CreatePod | DeletePod | CommitRow | FindResult | SaveResults | DeleteJob
