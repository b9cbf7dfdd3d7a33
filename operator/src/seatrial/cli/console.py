"""Where text goes: results to standard output, progress and remarks to standard error. Bars only on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from seatrial.sdk.publish import Progress

# Lines of a log that nobody watches: at most one in so many seconds.
_LINE_SECONDS: Final = 5.0
# An operator that watches the namespace has answered by then.
_ANSWER_SECONDS: Final = 20.0


def show(text: str) -> None:
    """A result. Nothing is written for empty text."""
    if text:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def note(text: str) -> None:
    """A remark or a step."""
    if text:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def is_terminal() -> bool:
    """Whether progress may use carriage returns and colours; Rich itself obeys ``NO_COLOR``."""
    return sys.stderr.isatty()


_WORDS: Final = {
    "check": "checked",
    "build": "images",
    "pack": "packed",
    "upload": "stored",
    "register": "registered",
    "verify": "verified",
    "taskset": "taskset",
}


class Answer:
    """Waiting for the operator's first answer; says what may be wrong when it takes long."""

    def __init__(self, namespace: str) -> None:
        text = f"no answer for {_ANSWER_SECONDS:g} s: does the operator run, and does it watch namespace {namespace}?"
        self._timer = threading.Timer(_ANSWER_SECONDS, note, (f"{text} seatrial doctor -n {namespace}",))
        self._timer.daemon = True

    def expect(self) -> None:
        """From now on; called once."""
        self._timer.start()

    def arrived(self) -> None:
        """It is there, or nobody waits any more."""
        self._timer.cancel()


@contextmanager
def publish_progress(namespace: str) -> Iterator[Callable[[Progress], None]]:
    """Shows a publication: one bar a stage on a terminal, else a line at the end of a stage and every few seconds."""
    answer = Answer(namespace)

    def advance(step: Progress) -> None:
        display(step)
        if step.stage == "register" and step.done == step.total:
            answer.expect()
        elif step.stage in ("verify", "taskset"):
            answer.arrived()

    with _stages() as display:
        try:
            yield advance
        finally:
            answer.arrived()


@contextmanager
def _stages() -> Iterator[Callable[[Progress], None]]:
    if is_terminal():
        with _bars() as bars:
            tasks: dict[str, Any] = {}

            def advance(step: Progress) -> None:
                if step.stage not in tasks:
                    tasks[step.stage] = bars.add_task(_WORDS[step.stage], total=step.total)
                bars.update(tasks[step.stage], completed=step.done, total=step.total)

            yield advance
        return
    last = time.monotonic()

    def line(step: Progress) -> None:
        nonlocal last
        if step.done == step.total or time.monotonic() - last > _LINE_SECONDS:
            last = time.monotonic()
            note(f"{_WORDS[step.stage]} {step.done}/{step.total}")

    yield line


@contextmanager
def job_progress(namespace: str) -> Iterator[Callable[[Any], None]]:
    """Shows a job: one bar on a terminal, else a line whenever its state changed."""
    answer = Answer(namespace)

    def advance(job: Any) -> None:
        display(job)
        if job.get("status", {}).get("phase"):
            answer.arrived()

    with _states() as display:
        answer.expect()
        try:
            yield advance
        finally:
            answer.arrived()


@contextmanager
def _states() -> Iterator[Callable[[Any], None]]:
    from seatrial.cli.output import progress_line

    if is_terminal():
        with _bars() as bars:
            bar = bars.add_task("Pending", total=None)

            def advance(job: Any) -> None:
                counts = job.get("status", {}).get("trials", {})
                done = sum(counts.get(state, 0) for state in ("scored", "errored", "cancelled"))
                bars.update(bar, description=progress_line(job), completed=done, total=counts.get("total") or None)

            yield advance
        return
    shown = ""

    def line(job: Any) -> None:
        nonlocal shown
        text = progress_line(job)
        if text != shown:
            shown = text
            note(f"{job['metadata']['name']}  {text}")

    yield line


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    )
