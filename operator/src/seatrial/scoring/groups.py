"""Failures grouped by what they have in common, without a model: same input, same groups.

Errors are one failure when type, task and message agree after numbers, ids and paths are masked; failing labels of a metric are one per
(metric, label). Source: nemo.md 32.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

Severity = Literal["low", "medium", "high", "critical"]
SEVERITIES: Final = ("low", "medium", "high", "critical")
EXAMPLES: Final = 3

_MASKS: Final = (
    (re.compile(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b[\w.-]+__[0-9a-f]{7}\b"), "<trial>"),
    (re.compile(r"(?<![\w/])/[\w.@%+=~-]+(/[\w.@%+=~-]*)*"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b"), "<id>"),
    (re.compile(r"\d+(\.\d+)?"), "<n>"),
)


class FailureGroup(NamedTuple):
    label: str
    task: str | None
    """None: over several tasks."""
    occurrences: int
    examples: tuple[str, ...]
    """Up to three trial names."""
    explanation: str
    """The masked message."""
    severity: Severity | None = None
    """None: nobody judged it."""

    def raw(self) -> dict[str, Any]:
        """As written to summary.json."""
        return {**self._asdict(), "examples": list(self.examples)}


def mask(message: str) -> str:
    """``message`` with numbers, ids and paths replaced, so that the same failure reads the same in every trial."""
    for pattern, name in _MASKS:
        message = pattern.sub(name, message)
    return " ".join(message.split())


def group_failures(failures: Iterable[tuple[str, str, str, str]]) -> tuple[FailureGroup, ...]:
    """Groups of ``(error type, message, task, trial)``, the most frequent first, then by label and task."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for label, message, task, trial in failures:
        groups.setdefault((label, mask(message), task), []).append(trial)
    found = [FailureGroup(label, task, len(trials), tuple(trials[:EXAMPLES]), text) for (label, text, task), trials in groups.items()]
    return tuple(sorted(found, key=lambda group: (-group.occurrences, group.label, group.task or "", group.explanation)))


def group_labels(failures: Iterable[tuple[str, str, str, Severity | None]]) -> tuple[FailureGroup, ...]:
    """Groups of failing labels ``(metric, label, trial, severity)``."""
    groups: dict[tuple[str, str], tuple[list[str], Severity | None]] = {}
    for metric, label, trial, severity in failures:
        members, _ = groups.setdefault((metric, label), ([], severity))
        members.append(trial)
    found = [
        FailureGroup(f"{metric}: {label}", None, len(trials), tuple(dict.fromkeys(trials))[:EXAMPLES], label, severity)
        for (metric, label), (trials, severity) in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: (-group.occurrences, group.label)))


def reaches(groups: Iterable[FailureGroup], gate: Severity) -> tuple[FailureGroup, ...]:
    """Groups at or above a severity; those that nobody judged are not counted."""
    floor = SEVERITIES.index(gate)
    return tuple(group for group in groups if group.severity is not None and SEVERITIES.index(group.severity) >= floor)
