"""Keep a stranger's command to itself: limits, no socket, and nothing of it is left when it ends.

``scoring.script`` starts this file as a program, ``confine.py NETWORK MEMORY SECONDS SIZE COMMAND…``; it ends as the command does. Why a
program of its own: what is set here holds for a process and all its children, and the SDK's process has to stay as it is. The keeper
is filtered like what it keeps, so that a command which takes it over has won nothing. Where a PID namespace is permitted the kernel ends
what is left; elsewhere orphans come to the keeper, who ends them. Standard library only, and nothing of ours is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NamedTuple, NoReturn

NO_FILTER: Final = "seatrial: no filter"
END_SECONDS: Final = 10.0
"""For processes that fork faster than they are ended."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000
_IO_URING_SETUP: Final = 425
_SOCKET_CALLS: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine -> its number in seccomp data, and the number of its system call ``socket``."""


class Limits(NamedTuple):
    """Of each process of the command."""

    memory_bytes: int
    cpu_seconds: int
    file_bytes: int


def can_forbid_network() -> bool:
    """Whether this machine can keep a process from opening sockets."""
    return sys.platform == "linux" and platform.machine() in _SOCKET_CALLS


def forbid_network() -> None:
    """From now on this thread and its children open no socket, and no other process may look into this one. It cannot be taken back.

    ``socket`` fails with ENETUNREACH, io_uring, which can open sockets too, with ENOSYS; calls of another architecture fail as a whole.

    Raises:
        OSError: the kernel does not take the filter.
        KeyError: no filter is known for this machine.
    """
    machine, call = _SOCKET_CALLS[platform.machine()]
    code = [
        (0x20, 0, 0, 4),
        (0x15, 0, 6, machine),
        (0x20, 0, 0, 0),
        (0x35, 4, 0, 0x40000000),
        (0x15, 2, 0, call),
        (0x15, 2, 0, _IO_URING_SETUP),
        (0x06, 0, 0, 0x7FFF0000),
        (0x06, 0, 0, 0x50000 | errno.ENETUNREACH),
        (0x06, 0, 0, 0x50000 | errno.ENOSYS),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    given = _Filter(len(code), ctypes.addressof(program))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(given))
    _prctl(_PR_SET_DUMPABLE, 0)


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def main(arguments: Sequence[str]) -> int:
    """Run the command and end as it does."""
    may_network, *numbers = (int(word) for word in arguments[:4])
    limits, command = Limits(*numbers), arguments[4:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, _stop)
    has_namespace = sys.platform == "linux" and own_namespace()
    try:
        if sys.platform == "linux":
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if not may_network:
            forbid_network()
    except OSError as error:
        sys.stderr.write(f"{NO_FILTER}: {error.strerror}\n")
        return 1
    status = _keep_in_namespace(command, limits) if has_namespace else _keep(command, limits)
    if os.WIFSIGNALED(status):
        if (number := os.WTERMSIG(status)) != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


def own_namespace() -> bool:
    """Whether the next child is the first process of a PID namespace; False where that is not permitted, and then nothing has changed."""

    def attempt() -> None:
        try:
            _enter_namespace()
        except OSError:
            os._exit(1)

    # In a child first: half of it may succeed.
    if os.waitstatus_to_exitcode(os.waitpid(_fork(attempt), 0)[1]) != 0:
        return False
    _enter_namespace()
    return True


def _enter_namespace() -> None:
    if _libc().unshare(_CLONE_NEWPID) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    _check(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWPID))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _keep_in_namespace(command: Sequence[str], limits: Limits) -> int:
    """Wait status of the command; its keeper is the namespace's first process, and when that ends the kernel has ended all others."""
    told, tell = os.pipe()

    def keep() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(tell, struct.pack("i", _wait_for(_fork(lambda: _become(command, limits)))))

    keeper = _fork(keep)
    os.close(tell)
    try:
        os.waitpid(keeper, 0)
    except BaseException:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        raise
    data = os.read(told, 4)
    return int(struct.unpack("i", data)[0]) if len(data) == 4 else signal.SIGKILL


def _keep(command: Sequence[str], limits: Limits) -> int:
    """Wait status of the command, once it and everything that it started have ended."""
    child = _fork(lambda: _become(command, limits))
    try:
        return _wait_for(child)
    finally:
        _end_all(child)


def _wait_for(child: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == child:
            return status


def _become(command: Sequence[str], limits: Limits) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    os.execv(command[0], list(command))


def _end_all(session: int) -> None:
    """End every process that the command started; one whose parent ended has become a child of ours."""
    _kill(os.killpg, session)
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            _kill(os.kill, child)
        time.sleep(0.005)


def _children() -> list[int]:
    """Processes whose parent is this one; none where there is no ``/proc``."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of a program may hold anything; what follows its last bracket is state and parent.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


def _kill(send: Callable[[int, int], None], process: int) -> None:
    # Gone meanwhile, or of another user by its own doing: nobody to end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(process, signal.SIGKILL)


def _fork(work: Callable[[], object]) -> int:
    """Pid of a child that does ``work`` and ends with 0, or with 1 and what is wrong on standard error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except Exception as error:  # noqa: BLE001 - the border of the process: what it cannot do is said, whatever it is
        os.write(2, f"seatrial: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(code)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int, more: int = 0) -> None:
    _check(_libc().prctl(option, *map(ctypes.c_ulong, (value, more, 0, 0))))


def _check(answer: int) -> None:
    """Raises OSError: a call of the C library failed."""
    if answer:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
