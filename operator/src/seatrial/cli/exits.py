"""Exit codes, the same for every command."""

from __future__ import annotations

import enum

from seatrial.errors import AlreadyExists, Conflict, DiskFull, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable


class Exit(enum.IntEnum):
    """What scripts may rely on."""

    GOOD = 0
    FAILED = 1
    """The evaluation failed (thresholds, nothing scored, cancelled), a check found faults, or a publication is not complete."""
    USAGE = 2
    """The command or an object it names is wrong; nothing was reached that could help."""
    UNREACHABLE = 3
    """The cluster or the object store cannot be reached, or does not let us in."""


def exit_of(error: SeatrialError) -> Exit:
    """The code for an error that ended a command."""
    match error:
        case Unavailable() | Forbidden() | DiskFull():
            return Exit.UNREACHABLE
        case InvalidSpec() | NotFound() | AlreadyExists() | Conflict():
            return Exit.USAGE
        case _:
            return Exit.FAILED
