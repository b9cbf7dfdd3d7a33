"""Running other programs and saying what is going on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from localcluster.settings import ClusterError

OUTPUT_TAIL_LINES = 15


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float = 900,
) -> str:
    """Run a program to its end and return what it printed on stdout.

    Raises:
        ClusterError: it is missing, failed or took too long; the message carries the end of what it printed.
    """
    words = [os.fspath(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=timeout_seconds,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]}: not found; install it or mend the PATH") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words[:4])}: no end after {timeout_seconds:.0f} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-OUTPUT_TAIL_LINES:])
        raise ClusterError(f"{' '.join(words[:6])}: exit code {done.returncode}\n{tail}")
    return done.stdout


def succeeds(argv: Sequence[str | os.PathLike[str]], *, timeout_seconds: float = 30) -> bool:
    """Whether a program exists and ends with exit code 0."""
    try:
        run(argv, timeout_seconds=timeout_seconds)
    except ClusterError:
        return False
    return True


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file whole or not at all, with ``mode`` from its first moment, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; a second holder waits and says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that holds {path}")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is done and, at its end, how long it took."""
    started = time.monotonic()
    yield
    say(f"{time.monotonic() - started:7.1f} s  {what}")


def wait_until(what: str, check: Callable[[], str | None], *, timeout_seconds: float, every_seconds: float = 0.1) -> None:
    """Wait until ``check`` returns None; a string says why not yet.

    Raises:
        ClusterError: the time is over; the message carries the last reason.
    """
    end = time.monotonic() + timeout_seconds
    while (reason := check()) is not None:
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not after {timeout_seconds:.0f} s: {reason}")
        time.sleep(every_seconds)
