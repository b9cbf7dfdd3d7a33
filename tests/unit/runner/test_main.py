"""The entry point, and what its start costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial
import seatrial_runner
from seatrial_runner import main
from seatrial_runner.result import model_info

# Everything above the standard library's own start that the parts may load before they listen or download.
SLOW = {
    "asyncio",
    "http.client",
    "ssl",
    "tarfile",
    "tempfile",
    "random",
    "datetime",
    "uuid",
    "logging",
    "email",
    "urllib.request",
    "pathspec",
}


def test_a_wrong_call_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["nonsense"]) == 2
    assert capsys.readouterr().err == "usage: seatrial-runner stage|agent|verifier|context|fetch|script|score\n"


def modules_after(imports: str) -> set[str]:
    """What a bare interpreter has loaded after ``import imports``."""
    folders = [str(Path(package.__path__[0]).parent) for package in (seatrial, seatrial_runner)]
    program = f"import sys; sys.path[:0] = {folders!r}; import json, {imports}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-I", "-S", "-c", program])))


@pytest.mark.parametrize("part", ["agent", "verifier"])
def test_waiting_parts_load_nothing_slow_before_they_listen(part: str) -> None:
    assert modules_after(f"seatrial_runner.{part}") & SLOW == set()


def test_the_runner_needs_the_standard_library_only() -> None:
    parts = ("main", "stage", "agent", "verifier", "evidence", "presigned", "result", "diagnose")
    roots = {name.partition(".")[0] for name in modules_after(", ".join(f"seatrial_runner.{part}" for part in parts))}
    assert roots - set(sys.stdlib_module_names) - {"__main__"} == {"seatrial", "seatrial_runner"}


@pytest.mark.conforms("H-99")
@pytest.mark.parametrize(
    ("model", "info"),
    [
        ("anthropic/claude-x", {"name": "claude-x", "provider": "anthropic"}),
        ("openrouter/anthropic/claude-x", {"name": "anthropic/claude-x", "provider": "openrouter"}),
        ("foo/bar", {"name": "foo/bar", "provider": None}),
        ("gpt", {"name": "gpt", "provider": None}),
        (None, None),
    ],
)
def test_known_providers_only_are_split_off_a_model(model: str | None, info: dict[str, str | None] | None) -> None:
    assert model_info(model) == info
