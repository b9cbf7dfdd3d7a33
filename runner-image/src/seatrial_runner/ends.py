"""How the verifier learns that the agent has ended: a lock that dies with its holder, and an end record.

Why both: a record alone never comes when the agent's container is killed, and a lock alone does not say how it went. The lock file
appears already locked (made under another name, then renamed), so a free lock always means that its holder is gone.

The volume ``run`` is shared with an agent image that may be the user's own: the record is bounded, checked, and read through no link.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from typing import Literal

from seatrial.contract import AGENT_END_BYTES, AgentEnd, ContractBroken, read_agent_end
from seatrial_runner.clock import Timer


def hold_lock(path: str) -> int:
    """Take the lock at ``path`` for as long as the returned descriptor is open, in practice until the process ends."""
    new = f"{path}.{os.getpid()}"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(new, path)
    return descriptor


def write_end(path: str, end: AgentEnd) -> None:
    """Write the record and rename it into place, readable by the verifier's user."""
    new = f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o644)
        json.dump(end, file)
    os.rename(new, path)


class AgentWatch:
    """Looks at the agent's lock and record without waiting."""

    def __init__(self, lock: str, record: str, *, final: str | None = None) -> None:
        """
        Args:
            record: what is waited for.
            final: the record of the agent's end, where ``record`` is that of a step: it may come instead.
        """
        self._lock = lock
        self._records = (record,) if final is None or final == record else (record, final)
        self.waited = Timer()

    def look(self) -> AgentEnd | Literal["absent", "running", "died"]:
        """The end record; or whether the agent has not started, holds its lock, or is gone without a record.

        Raises:
            ContractBroken: there is a record, and it is not one.
        """
        end = self._read()
        if end is not None:
            return end
        state = self._lock_state()
        if state != "died":
            return state
        # The record is written before the lock is freed, and it may have come between the two looks.
        return self._read() or "died"

    @property
    def pause_seconds(self) -> float:
        """Until the next look: 1 % of the time waited, so that neither a short nor a long trial pays for it."""
        return min(0.2, max(0.01, self.waited.seconds() / 100))

    def _lock_state(self) -> Literal["absent", "running", "died"]:
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return "absent"
        except OSError as error:
            raise ContractBroken(f"the agent's lock cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
        else:
            return "died"
        finally:
            os.close(descriptor)

    def _read(self) -> AgentEnd | None:
        return next((end for record in self._records if (end := _read_record(record)) is not None), None)


def _read_record(path: str) -> AgentEnd | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ContractBroken(f"the agent's end record cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ContractBroken("the agent's end record is not a regular file")
    with open(descriptor, "rb") as file:
        return read_agent_end(file.read(AGENT_END_BYTES + 1))
