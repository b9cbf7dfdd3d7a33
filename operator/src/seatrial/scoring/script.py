"""Run a ``metric.py``: reward rows in, numbers out, without a network and within limits. Source: nemo.md 30.2, harbor.md 8.4.

The script is somebody's code: it gets a folder of its own, an empty environment, no socket unless the network is allowed, and bounds on
time, memory and output. Whatever it does, the results of the job are saved already; a failure is an error with a name and the last lines
it wrote. Standard library only: the Pod of role ``score`` runs this, and so does the SDK on the user's machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from seatrial.scoring import confine

RewardRow = Mapping[str, float] | None

FAILED: Final = "MetricScriptFailed"
TIMEOUT: Final = "MetricScriptTimeout"
OUT_OF_MEMORY: Final = "MetricScriptOutOfMemory"
OUTPUT_INVALID: Final = "MetricScriptOutputInvalid"
OUTPUT_TOO_LONG: Final = "MetricScriptOutputTooLong"
DEPENDENCIES: Final = "MetricScriptDependencies"
ISOLATION: Final = "MetricScriptIsolation"

OUTPUT_BYTES: Final = 16 * 1024
PRINTED_BYTES: Final = 64 * 1024 * 1024
"""Of standard output and standard error together; nobody reads more than the last lines."""
TAIL_BYTES: Final = 4 * 1024
FILE_BYTES: Final = 64 * 1024 * 1024
NAME_CHARS: Final = 100
VALUES: Final = 100

_BLOCK: Final = re.compile(r"(?m)^# /// script\s*$\n(?P<body>(^#(| .*)$\n)+?)^# ///\s*$")
END_SECONDS: Final = 20.0
"""What the keeper of a script may take to end what is left of it."""


class ScriptLimits(NamedTuple):
    """Bounds of one run."""

    seconds: float = 300.0
    memory_bytes: int = 2 * 1024**3


DEFAULT_LIMITS: Final = ScriptLimits()


class ScriptFault(Exception):
    """The script gave no numbers; ``reason`` is one of the names above."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def rewards_text(rows: Sequence[RewardRow]) -> str:
    """What a script reads: one JSON object or ``null`` a line."""
    return "".join(f"{json.dumps(row, sort_keys=True)}\n" for row in rows)


def dependencies(text: str) -> list[str]:
    """Requirements of the inline ``# /// script`` block; none without a block.

    Raises:
        ScriptFault: MetricScriptDependencies, the block cannot be read.
    """
    match = _BLOCK.search(text if text.endswith("\n") else f"{text}\n")
    if match is None:
        return []
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in match["body"].splitlines())
    try:
        found = tomllib.loads("\n".join(lines)).get("dependencies", [])
    except tomllib.TOMLDecodeError as error:
        raise ScriptFault(DEPENDENCIES, f"its inline metadata is not TOML: {error}") from error
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ScriptFault(DEPENDENCIES, "its inline dependencies are not a list of requirements")
    return found


def compute(
    script: Path, given: Path, *, scratch: Path, limits: ScriptLimits, modules: Path | None = None, allow_network: bool = False
) -> dict[str, float]:
    """The values that ``script`` computes from the rows in ``given``.

    Args:
        scratch: a folder of this run alone, where the script works and writes.
        modules: folder with its dependencies.

    Raises:
        ScriptFault: whatever it did.
    """
    if not allow_network and not confine.can_forbid_network():
        message = "cannot be kept from the network on this machine: allow it the network, or run it elsewhere"
        raise ScriptFault(ISOLATION, message)
    written = scratch / "metric.json"
    command = [
        *(sys.executable, "-I", confine.__file__),
        *map(str, (int(allow_network), limits.memory_bytes, math.ceil(limits.seconds) + 1, FILE_BYTES)),
        *(sys.executable, str(script), "-i", str(given), "-o", str(written)),
    ]
    environment = {"PATH": os.defpath, "HOME": str(scratch), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    code, said = _run(command, scratch, {**environment, **({"PYTHONPATH": str(modules)} if modules else {})}, limits.seconds)
    if code != 0:
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        is_memory = re.search(r"^MemoryError\b", said, re.MULTILINE) is not None
        message = f"{ended}; it wrote: {said or 'nothing'}"
        if is_memory:
            raise ScriptFault(OUT_OF_MEMORY, f"needs more than {limits.memory_bytes // 1024**2} MiB: it {message}")
        raise ScriptFault(ISOLATION if said.startswith(confine.NO_FILTER) else FAILED, message)
    return read_values(written)


def read_values(path: Path) -> dict[str, float]:
    """One JSON object of names and finite numbers, at most 16 KiB.

    Raises:
        ScriptFault: MetricScriptOutputInvalid or MetricScriptOutputTooLong.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            data = file.read(OUTPUT_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        data = None
    if data is None:
        raise ScriptFault(OUTPUT_INVALID, "wrote no output file: it must write one JSON object to the path given with -o")
    if len(data) > OUTPUT_BYTES:
        raise ScriptFault(OUTPUT_TOO_LONG, f"wrote more than {OUTPUT_BYTES} bytes: write a few numbers")
    try:
        body: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ScriptFault(OUTPUT_INVALID, f"wrote no JSON: {error}") from error
    return check_values(body)


def check_values(body: object) -> dict[str, float]:
    """``body`` as names and finite numbers.

    Raises:
        ScriptFault: MetricScriptOutputInvalid or MetricScriptOutputTooLong.
    """
    if not isinstance(body, dict):
        raise ScriptFault(OUTPUT_INVALID, "must write one JSON object of names and numbers")
    if len(body) > VALUES:
        raise ScriptFault(OUTPUT_TOO_LONG, f"gives {len(body)} values, more than {VALUES}: write a few numbers")
    values = {}
    for name, value in body.items():
        if not name or len(name) > NAME_CHARS or not name.isprintable():
            raise ScriptFault(OUTPUT_INVALID, f"the name {name[:60]!r} is empty, longer than {NAME_CHARS} characters or not printable")
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise ScriptFault(OUTPUT_INVALID, f"value of {name[:60]!r} is no finite number")
        values[name] = float(value)
    return values


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Exit code and the last lines of standard error; everything it started is gone afterwards."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    printed = _Printed(process)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise ScriptFault(TIMEOUT, f"did not end within {seconds:g} s; it wrote: {printed.text() or 'nothing'}") from None
    finally:
        _end(process)
        printed.join()
    if printed.is_too_long:
        raise ScriptFault(OUTPUT_TOO_LONG, f"printed more than {PRINTED_BYTES // 1024**2} MiB: write a few numbers to the file of -o")
    return code, printed.text()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its keeper ends the script and whatever the script has started; one that does not answer is ended itself."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _Printed:
    """Reads what a process prints, keeps the last 4 KiB of standard error, and ends a process that prints without end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._kept, self._count, self._lock = process, b"", 0, threading.Lock()
        self.is_too_long = False
        streams = ((process.stdout, False), (process.stderr, True))
        self._threads = [threading.Thread(target=self._read, args=(stream, kept), daemon=True) for stream, kept in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: IO[bytes], is_kept: bool) -> None:
        with stream:
            while block := os.read(stream.fileno(), 65536):
                with self._lock:
                    self._count += len(block)
                    if is_kept:
                        self._kept = (self._kept + block)[-TAIL_BYTES:]
                    if self._count > PRINTED_BYTES and not self.is_too_long:
                        self.is_too_long = True
                        self._process.terminate()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(5)

    def text(self) -> str:
        """Printable text of what was kept."""
        return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in self._kept.decode(errors="replace")).strip()
