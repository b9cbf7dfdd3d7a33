"""The node's own mount, network and process namespaces, and processes inside them.

Why namespaces: two clusters on one machine then share no port, no iptables chain and no mount, and ending the first process of
the node ends every other one with it, whatever state they are in. The kernel cleans up, not a list of things to remember.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from localcluster import shell
from localcluster.settings import ClusterError

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """A process that outlives us, told from a later one with the same pid by its start."""

    pid: int
    started: int
    """Clock ticks since boot, field 22 of /proc/PID/stat."""
    boot: str
    """The machine's boot id."""

    def is_alive(self) -> bool:
        return observe(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send a signal; False if the process is gone."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, what: str, *, grace_seconds: float = 10) -> None:
        """SIGTERM, SIGKILL after the grace, and wait until it is gone."""
        if self.signal(signal.SIGTERM):
            try:
                shell.wait_until(what, self._still_there, timeout_seconds=grace_seconds)
            except ClusterError:
                self.signal(signal.SIGKILL)
        shell.wait_until(what, self._still_there, timeout_seconds=60)

    def _still_there(self) -> str | None:
        return f"process {self.pid} has not ended" if self.is_alive() else None


def observe(pid: int) -> Process | None:
    """The process that has this pid now; None if there is none or it only waits to be reaped."""
    try:
        # The command's name stands in parentheses and may hold spaces and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in {"Z", "X"}:
        return None
    return Process(pid=pid, started=int(fields[19]), boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())


def remember(path: Path, process: Process) -> None:
    """Record a process in a file."""
    shell.write(path, json.dumps(asdict(process)) + "\n")


def recall(path: Path) -> Process | None:
    """The recorded process, if it still runs."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        process = Process(pid=int(record["pid"]), started=int(record["started"]), boot=str(record["boot"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path}: not a record of a process ({error}); delete it") from error
    return process if process.is_alive() else None


def has_namespaces(process: Process) -> bool:
    """False for a process that has been killed and waits for those that it takes with it."""
    try:
        os.readlink(f"/proc/{process.pid}/ns/net")
    except OSError:
        return False
    return True


def spawn_init(argv: Sequence[str], *, log: Path) -> Process:
    """Start the first process of new mount, network and process namespaces."""
    return _spawn(argv, log=log, environ=os.environ, join=None)


def spawn_inside(init: Process, argv: Sequence[str], *, log: Path, environ: Mapping[str, str]) -> Process:
    """Start a process in the namespaces of ``init``, in a session of its own; ``init`` becomes its parent."""
    return _spawn(argv, log=log, environ=environ, join=init)


def run_inside(init: Process, argv: Sequence[str], *, stdin: str | None = None) -> str:
    """Run a program inside to its end and return its stdout."""
    return shell.run(["nsenter", f"--target={init.pid}", "--mount", "--net", "--pid", "--", *argv], stdin=stdin)


def _spawn(argv: Sequence[str], *, log: Path, environ: Mapping[str, str], join: Process | None) -> Process:
    log.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    # The pipe carries the pid, then an error text if the program could not be started; a successful exec closes it.
    reader, writer = os.pipe2(os.O_CLOEXEC)
    middle = os.fork()
    if middle == 0:
        _enter_and_exec(argv, output=output, writer=writer, environ=environ, join=join)
    os.close(writer)
    os.close(output)
    with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as stream:
        report = stream.read()
    os.waitpid(middle, 0)
    first, _, fault = (part.strip() for part in report.partition("\n"))
    process = observe(int(first)) if first.isdecimal() else None
    if fault or process is None:
        raise ClusterError(f"{argv[0]} did not start: {fault or report or 'it ended at once'}; see {log}")
    return process


def _enter_and_exec(argv: Sequence[str], *, output: int, writer: int, environ: Mapping[str, str], join: Process | None) -> NoReturn:
    """The child's part of ``_spawn``. A process cannot change its own process namespace, only that of its children: hence two forks."""
    try:
        os.setsid()
        if join is None:
            _check(_libc.unshare(ALL_NAMESPACES), "unshare")
        else:
            namespaces = [
                (os.open(f"/proc/{join.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag)
                for name, flag in (("net", CLONE_NEWNET), ("pid", CLONE_NEWPID), ("mnt", CLONE_NEWNS))
            ]
            for descriptor, flag in namespaces:
                _check(_libc.setns(descriptor, flag), "setns")
        inner = os.fork()
        if inner:
            os.write(writer, f"{inner}\n".encode())
            os._exit(0)
        os.setsid()
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.execvpe(argv[0], list(argv), dict(environ))
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the caller's code
        os.write(writer, f"\n{error}".encode())
    os._exit(127)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
