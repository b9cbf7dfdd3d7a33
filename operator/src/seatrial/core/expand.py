"""From tasks to trials: selection by glob and the cross product, in a fixed order."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from seatrial.core.naming import TrialKey, trial_name


class Trial(NamedTuple):
    """One attempt of one agent at one task."""

    name: str
    """Harbor's trial name, unique in the job."""
    task: int
    """Index into the plan's tasks."""
    key: TrialKey


def select(names: Sequence[str], *, include: Sequence[str], exclude: Sequence[str], limit: int | None) -> tuple[int, ...]:
    """Indices of the names that a glob of ``include`` matches and none of ``exclude`` does; the first ``limit`` of them, in order.

    An empty ``include`` means everything. Globs are case-sensitive; ``*`` also matches ``/``.
    """
    chosen = (index for index, name in enumerate(names) if (not include or _matches(name, include)) and not _matches(name, exclude))
    return tuple(itertools.islice(chosen, limit))


def expand(job_uid: str, tasks: Sequence[str], *, agents: Sequence[str], attempts: int) -> tuple[Trial, ...]:
    """All trials: for each attempt, for each task, for each agent.

    Args:
        job_uid: part of every name, so that a job of the same name never meets the trials of an earlier one.
        tasks: native ids, unique.
        agents: agent names, unique.
        attempts: at least 1.

    Source: Harbor's order of submission (H-123).
    """
    trials: list[Trial] = []
    taken: set[str] = set()
    for attempt, (index, task), agent in itertools.product(range(1, attempts + 1), enumerate(tasks), agents):
        key = TrialKey(task=task, agent=agent, attempt=attempt)
        name = next(name for salt in itertools.count() if (name := trial_name(job_uid, key, salt=salt)) not in taken)
        taken.add(name)
        trials.append(Trial(name=name, task=index, key=key))
    return tuple(trials)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
