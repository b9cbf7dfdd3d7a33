"""What a metric sees of a trial: its task, its saved facts, and what its agent said and did. Source: nemo.md 21.1.

Standard library only, so that the same row is made wherever metrics run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.scoring.builtin import Row


def build_row(*, task: Mapping[str, Any], trial: Mapping[str, Any], output: Any = None, trajectory: Mapping[str, Any] | None = None) -> Row:
    """The row of one trial.

    Args:
        task: ``{id, intent, inputs, metadata}``; a ``reference`` in its metadata stands under that name, too.
        trial: a line of trials.jsonl: ``{id, task_id, status, error, evidence, measurements, metadata, …}``.
        output: what the trial saved as its output; None: what the agent said last.
        trajectory: the agent's ATIF document; None: it left none.
    """
    metadata = task.get("metadata") or {}
    text = output if isinstance(output, str) else None
    sample = {
        "output_text": text if text is not None else last_message(trajectory),
        "response": output,
        "trajectory": trajectory,
        "evidence": trial.get("evidence") or {},
        "metadata": trial.get("metadata") or {},
    }
    about = {name: trial.get(name) for name in ("id", "task_id", "status", "error", "measurements", "metadata")}
    return {
        "task": {"id": task.get("id"), "intent": task.get("intent"), "metadata": metadata},
        "inputs": task.get("inputs") or {},
        "reference": metadata.get("reference"),
        "trial": about,
        "sample": sample,
        "item": {**(task.get("inputs") or {}), **metadata},
    }


def last_message(trajectory: Mapping[str, Any] | None) -> str:
    """The last thing that the agent said; empty where it said nothing."""
    steps = trajectory.get("steps") if trajectory is not None else None
    for step in reversed(steps if isinstance(steps, list) else []):
        if isinstance(step, Mapping) and step.get("source") == "agent" and isinstance(message := step.get("message"), str) and message:
            return message
    return ""
