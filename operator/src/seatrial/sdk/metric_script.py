"""Run a ``metric.py`` on this machine, with its inline dependencies; what it may do is in ``scoring.script``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from seatrial.errors import SeatrialError
from seatrial.scoring.script import (
    DEFAULT_LIMITS,
    DEPENDENCIES,
    TAIL_BYTES,
    RewardRow,
    ScriptFault,
    ScriptLimits,
    compute,
    dependencies,
    rewards_text,
)

INSTALL_SECONDS: Final = 300.0


class MetricScriptError(SeatrialError):
    """The script gave no numbers; ``reason`` says which way it failed."""

    def __init__(self, fault: ScriptFault) -> None:
        super().__init__(f"metric script: {fault}")
        self.reason = fault.reason


def run_script(
    script: Path, rows: Sequence[RewardRow], *, limits: ScriptLimits = DEFAULT_LIMITS, allow_network: bool = False
) -> dict[str, float]:
    """The values that ``script`` computes from the rows, one per trial; an errored trial is None.

    Raises:
        MetricScriptError: the reasons are in ``scoring.script``.
    """
    with tempfile.TemporaryDirectory(prefix="seatrial-metric-") as scratch:
        folder = Path(scratch)
        copy, given = folder / "metric.py", folder / "rewards.jsonl"
        shutil.copyfile(script, copy)
        given.write_text(rewards_text(rows), "utf-8")
        try:
            requirements, modules = dependencies(copy.read_text("utf-8", errors="replace")), None
            if requirements:
                install(requirements, modules := folder / "modules")
            return compute(copy, given, scratch=folder, limits=limits, modules=modules, allow_network=allow_network)
        except ScriptFault as fault:
            raise MetricScriptError(fault) from fault


def install(requirements: Sequence[str], target: Path, *options: str) -> None:
    """Wheels of the requirements below ``target``. Only wheels: building one would run foreign code before any limit holds.

    Args:
        options: further ones of ``uv pip install``.

    Raises:
        ScriptFault: MetricScriptDependencies.
    """
    beside = Path(sys.executable).with_name("uv")
    tool = str(beside) if beside.exists() else shutil.which("uv")
    if tool is None:
        raise ScriptFault(DEPENDENCIES, f"needs {', '.join(requirements)}: install uv, which fetches them")
    fixed = ("--quiet", "--only-binary", ":all:", "--python", sys.executable, "--target", str(target))
    command = [tool, "pip", "install", *fixed, *options, "--", *requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ScriptFault(DEPENDENCIES, f"its dependencies were not there after {INSTALL_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise ScriptFault(DEPENDENCIES, f"its dependencies cannot be installed: {done.stderr[-TAIL_BYTES:].strip()}")
