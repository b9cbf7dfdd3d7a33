"""Run a ``metric.py``: reward rows in, numbers out, without a network and within limits. Source: nemo.md 30.2, harbor.md 8.4.

The script is somebody's code: it gets a folder of its own, an empty environment, no network unless allowed, and bounds on time, memory and
output. Whatever it does, the results of the job are saved already; a failure is an error with a name and the last lines it wrote.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import tomli

from seatrial.errors import SeatrialError

RewardRow = Mapping[str, float] | None

OUTPUT_BYTES: Final = 16 * 1024
TAIL_BYTES: Final = 4 * 1024
FILE_BYTES: Final = 64 * 1024 * 1024
INSTALL_SECONDS: Final = 300.0

_BLOCK: Final = re.compile(r"(?m)^# /// script\s*$\n(?P<body>(^#(| .*)$\n)+?)^# ///\s*$")
# Limits are set in the child before it becomes the script; nothing of ours runs between fork and exec.
_LIMIT: Final = """
import os, resource, sys
memory, seconds, size = map(int, sys.argv[1:4])
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.execv(sys.argv[4], sys.argv[4:])
"""


class ScriptLimits(NamedTuple):
    """Bounds of one run."""

    seconds: float = 300.0
    memory_bytes: int = 2 * 1024**3


DEFAULT_LIMITS: Final = ScriptLimits()


class MetricScriptError(SeatrialError):
    """The script gave no numbers; ``reason`` says which way it failed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"metric script: {message}")
        self.reason = reason


def run_script(
    script: Path, rows: Sequence[RewardRow], *, limits: ScriptLimits = DEFAULT_LIMITS, allow_network: bool = False
) -> dict[str, float]:
    """The values that ``script`` computes from the rows, one per trial; an errored trial is None.

    Raises:
        MetricScriptError: ScriptFailed, ScriptTimeout, ScriptOutputInvalid, ScriptOutputTooLong, ScriptDependencies, ScriptIsolation.
    """
    with tempfile.TemporaryDirectory(prefix="seatrial-metric-") as scratch:
        folder = Path(scratch)
        copy, given, written = folder / "metric.py", folder / "rewards.jsonl", folder / "metric.json"
        shutil.copyfile(script, copy)
        given.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        modules = _install(dependencies(copy.read_text("utf-8")), folder / "modules")
        command = [
            *([] if allow_network else _without_network()),
            *(sys.executable, "-I", "-c", _LIMIT),
            *(str(limits.memory_bytes), str(math.ceil(limits.seconds) + 1), str(FILE_BYTES)),
            *(sys.executable, str(copy), "-i", str(given), "-o", str(written)),
        ]
        environment = {"PATH": os.defpath, "HOME": scratch, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        code, tail = _run(command, folder, {**environment, **({"PYTHONPATH": str(modules)} if modules else {})}, limits.seconds)
        if code != 0:
            ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise MetricScriptError("ScriptFailed", f"{ended}; it wrote: {tail or 'nothing'}")
        return read_values(written)


def read_values(path: Path) -> dict[str, float]:
    """One JSON object of names and finite numbers, at most 16 KiB.

    Raises:
        MetricScriptError: ScriptOutputInvalid or ScriptOutputTooLong.
    """
    if path.is_symlink() or not path.is_file():
        raise MetricScriptError("ScriptOutputInvalid", "wrote no output file: it must write one JSON object to the path given with -o")
    with path.open("rb") as file:
        data = file.read(OUTPUT_BYTES + 1)
    if len(data) > OUTPUT_BYTES:
        raise MetricScriptError("ScriptOutputTooLong", f"wrote more than {OUTPUT_BYTES} bytes: write a few numbers")
    try:
        body: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetricScriptError("ScriptOutputInvalid", f"wrote no JSON: {error}") from error
    if not isinstance(body, dict):
        raise MetricScriptError("ScriptOutputInvalid", "must write one JSON object of names and numbers")
    values = {}
    for name, value in body.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max or math.isnan(value):
            raise MetricScriptError("ScriptOutputInvalid", f"value of {name[:60]!r} is no finite number")
        values[name] = float(value)
    return values


def dependencies(text: str) -> list[str]:
    """Requirements of the inline ``# /// script`` block; none without a block.

    Raises:
        MetricScriptError: ScriptDependencies, the block cannot be read.
    """
    match = _BLOCK.search(text if text.endswith("\n") else f"{text}\n")
    if match is None:
        return []
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in match["body"].splitlines())
    try:
        found = tomli.loads("\n".join(lines)).get("dependencies", [])
    except tomli.TOMLDecodeError as error:
        raise MetricScriptError("ScriptDependencies", f"its inline metadata is not TOML: {error}") from error
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise MetricScriptError("ScriptDependencies", "its inline dependencies are not a list of requirements")
    return found


def _install(requirements: Sequence[str], target: Path) -> Path | None:
    """Wheels of the requirements below ``target``. Only wheels: building one would run foreign code before any limit holds."""
    if not requirements:
        return None
    beside = Path(sys.executable).with_name("uv")
    tool = str(beside) if beside.exists() else shutil.which("uv")
    if tool is None:
        raise MetricScriptError("ScriptDependencies", f"needs {', '.join(requirements)}: install uv, which fetches them")
    command = [
        tool,
        "pip",
        "install",
        "--quiet",
        "--only-binary",
        ":all:",
        "--python",
        sys.executable,
        "--target",
        str(target),
        "--",
        *requirements,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise MetricScriptError("ScriptDependencies", f"its dependencies were not there after {INSTALL_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise MetricScriptError("ScriptDependencies", f"its dependencies cannot be installed: {done.stderr[-TAIL_BYTES:].strip()}")
    return target


def _without_network() -> list[str]:
    """A command that gives its child a network namespace without interfaces.

    Raises:
        MetricScriptError: ScriptIsolation, this machine cannot make one.
    """
    tool = shutil.which("unshare")
    if tool is not None:
        prefix = [tool, "--net"] if os.geteuid() == 0 else [tool, "--net", "--map-root-user"]
        if subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False).returncode == 0:
            return [*prefix, "--"]
    raise MetricScriptError("ScriptIsolation", "cannot be kept from the network on this machine: allow it the network, or run it elsewhere")


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Exit code and the last lines of standard error; everything it started is gone afterwards."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    tail = _Tail(process.stderr)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise MetricScriptError("ScriptTimeout", f"did not end within {seconds:g} s; it wrote: {tail.text() or 'nothing'}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        tail.join()
    return code, tail.text()


class _Tail:
    """Reads a pipe to its end and keeps the last 4 KiB, so that a script that writes gigabytes neither fills memory nor blocks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while block := self._stream.read1(65536):  # type: ignore[attr-defined]
                self._kept = (self._kept + block)[-TAIL_BYTES:]

    def join(self) -> None:
        self._thread.join(5)

    def text(self) -> str:
        """Printable text of what was kept."""
        return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in self._kept.decode(errors="replace")).strip()
