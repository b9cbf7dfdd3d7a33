"""The task's own metrics, after the tests: built-in ones over what the trial left. Source: nemo.md 21.

They run in the verifier's container, never in the environment. What the agent said is untrusted input to templates and comparisons: a
metric that cannot cope says so in its own place and fails nothing else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Final

from seatrial.contract import INSTRUCTION_FILE, MEASURE_CHARS, Measures, TrialInput
from seatrial.scoring.builtin import MetricRefused, built_in
from seatrial.scoring.evaluate import compute
from seatrial.scoring.sample import build_row
from seatrial_runner.paths import Paths
from seatrial_runner.report import Report

TEXT_CHARS: Final = 1_000_000
"""Longest text that metrics compare."""


def measure(trial: TrialInput, report: Report, paths: Paths, *, trajectory: Mapping[str, Any] | None) -> Measures:
    """What each metric found, in the task's order; empty for a task that names none."""
    given = trial.get("scoring")
    if given is None:
        return {}
    row = build_row(
        task={"id": trial["task"]["name"], "intent": _instruction(paths), "metadata": given["metadata"]},
        trial=_facts(trial, report, given["reward_key"], trajectory),
        trajectory=trajectory,
    )
    found: dict[str, Mapping[str, float | bool | str] | str] = {}
    for item in given["metrics"]:
        name = item["type"]
        if len(str(row["sample"]["output_text"])) > TEXT_CHARS:
            found[name] = f"what the agent said last is longer than {TEXT_CHARS} characters"
            continue
        try:
            score = compute(built_in(name, item["config"]), row, task=trial["task"]["name"], trial=trial["trial"])
        except MetricRefused as error:
            # Another version of ours has planned the job.
            found[name] = str(error)[:MEASURE_CHARS]
            continue
        if score.values is None:
            found[name] = (score.message or "failed")[:MEASURE_CHARS]
        else:
            found[name] = {output: _plain(value) for output, value in score.values.items() if value is not None}
    return found


def _facts(trial: TrialInput, report: Report, reward_key: str, trajectory: Mapping[str, Any] | None) -> dict[str, Any]:
    """The trial as it will stand in trials.jsonl, as far as it is known."""
    values = dict(report.values or {})
    evidence: dict[str, Any] = {"result": {}, "logs": {}, **({"trajectory": {}} if trajectory is not None else {})}
    return {
        "id": trial["trial"],
        "task_id": trial["task"]["name"],
        "status": "COMPLETED" if report.error is None and reward_key in values else "PARTIAL",
        "error": None if report.error is None else report.error["type"],
        "evidence": evidence,
        "measurements": {},
        "metadata": {"harbor_primary_reward_key": reward_key, "reward": values.get(reward_key), "reward_details": values},
    }


def _instruction(paths: Paths) -> str:
    """Of a task without steps; each step has one of its own."""
    try:
        with open(os.path.join(paths.task, INSTRUCTION_FILE), encoding="utf-8") as file:
            return file.read(TEXT_CHARS)
    except OSError:
        return ""


def _plain(value: float | bool | str) -> float | bool | str:
    """JSON has no NaN and no infinity: they are text."""
    if isinstance(value, str):
        return value[:MEASURE_CHARS]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
