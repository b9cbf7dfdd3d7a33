"""Errors that seatrial raises on purpose; anything else is a bug and keeps its traceback."""


class SeatrialError(Exception):
    """Base. The message says what happened, whose fault it is and the next step."""


class InvalidSpec(SeatrialError):
    """The user must change ``path``. Becomes a False condition; not retried until the generation changes."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class Unavailable(SeatrialError):
    """The API server or the object store did not answer. Nothing is known about the outcome; repeat after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Forbidden(SeatrialError):
    """Credentials or rights are missing; a person must act."""


class NotFound(SeatrialError):
    """The named object or key does not exist."""


class Conflict(SeatrialError):
    """Somebody else changed the object first: read again, decide again."""


class AlreadyExists(SeatrialError):
    """An object of that name or key exists; the caller compares before it calls this success."""


class DiskFull(SeatrialError):
    """The store or the volume has no room; a person must act, a repetition may work afterwards."""
