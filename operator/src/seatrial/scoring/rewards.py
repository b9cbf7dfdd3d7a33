"""From a trial's reward mapping to metric outputs: key rules, the primary reward, the secondaries of each task, and diagnostics.

Source: nemo.md 19. The primary is chosen by its name alone; a secondary that is missing is left out, never invented.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from seatrial.scoring.observations import Observation, Output

DEFAULT_REWARD: Final = "reward"
REWARD_METRIC: Final = "harbor_reward"
KEY_CHARS: Final = 255

State = Literal["scored", "errored", "cancelled"]
Rejection = Literal["invalid_key", "reserved_key", "boolean", "non_numeric", "non_finite"]

_RESERVED: Final = re.compile(r"\.pass[@^]\d+\Z")
# Lone surrogates too: no file and no API object can hold them.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Trial:
    """An ended trial as far as scores need it."""

    name: str
    task: str
    state: State
    rewards: Mapping[str, float] | None = None
    """As reported; they count only where the state is scored."""
    error: str | None = None
    attempt: int = 1
    is_narrowed: bool = False
    """Some of its rewards were left out: it stays scoreable without the others."""

    @property
    def is_scoreable(self) -> bool:
        """The verifier returned rewards and no recorded error makes them invalid."""
        return self.state == "scored" and (bool(self.rewards) or self.is_narrowed)


class Diagnostic(NamedTuple):
    """What was not measured, and why."""

    trial: str
    message: str
    details: Mapping[str, Any]


def key_rejection(key: object) -> Rejection | None:
    """Why a key cannot name a reward, or None."""
    if not isinstance(key, str) or not key or len(key) > KEY_CHARS or _CONTROL.search(key):
        return "invalid_key"
    return "reserved_key" if _RESERVED.search(key) else None


class Parsed(NamedTuple):
    values: dict[str, float]
    rejected: dict[str, Rejection]
    """Entries with a usable key and an unusable value."""
    bad_keys: tuple[Rejection, ...]


def parse_rewards(mapping: Mapping[Any, Any]) -> Parsed:
    """The second layer of checks: the mapping of a stored result, each entry on its own."""
    values: dict[str, float] = {}
    rejected: dict[str, Rejection] = {}
    bad_keys: list[Rejection] = []
    for key, value in mapping.items():
        if (reason := key_rejection(key)) is not None:
            bad_keys.append(reason)
        elif isinstance(number := _number(value), float):
            values[key] = number
        else:
            rejected[key] = number
    return Parsed(values, rejected, tuple(bad_keys))


def _number(value: object) -> float | Rejection:
    if isinstance(value, bool):
        return "boolean"
    if not isinstance(value, int | float | str):
        return "non_numeric"
    try:
        number = float(value)
    except OverflowError:
        return "non_finite"
    except ValueError:
        return "non_numeric"
    return number if math.isfinite(number) else "non_finite"


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of all trials as outputs of one metric."""

    primary: str | None
    """The key that counts; None where nothing was measured under it."""
    outputs: tuple[Output, ...]
    """The primary first, then by name."""
    diagnostics: tuple[Diagnostic, ...] = field(default=())


def choose_primary(trials: Sequence[Trial], reward_key: str | None) -> str | None:
    """The key that counts, or None.

    A key that the user named always counts. The default key counts as soon as one valid trial reports it. Rewards under one other name
    only are unambiguous: Harbor takes a trial's only value whatever it is called. A key that cannot name a reward is never one of them.
    """
    reported = {key for trial in trials if trial.is_scoreable for key in trial.rewards or ()}
    if not reported:
        return None
    if reward_key is not None:
        return reward_key
    keys = {key for key in reported if key_rejection(key) is None}
    if DEFAULT_REWARD in keys:
        return DEFAULT_REWARD
    return next(iter(keys)) if len(keys) == 1 else None


def narrowed(trials: Sequence[Trial], reward_key: str | None, *, most: int, named: Collection[str]) -> list[Trial]:
    """The trials with the primary reward, those of ``named`` and the first ``most`` by name; all of them where there are no more.

    Why: verifiers may report a thousand names each, and what is shown has bounds.
    """
    reported: set[str] = set()
    for trial in trials:
        if trial.is_scoreable:
            reported.update(trial.rewards or ())
    if len(reported) <= most:
        return list(trials)
    primary = choose_primary(trials, reward_key)
    wanted = {*heapq.nsmallest(most, (key for key in reported if key_rejection(key) is None)), *(reported & {primary, *named})}
    return [
        trial
        if not trial.is_scoreable
        else replace(trial, rewards={key: value for key, value in (trial.rewards or {}).items() if key in wanted}, is_narrowed=True)
        for trial in trials
    ]


def reward_outputs(trials: Sequence[Trial], reward_key: str | None) -> Rewards:
    """Every reward of a job as observations: one per trial that should have it.

    The primary concerns all trials: a scoreable trial without it counts as 0.0 and is named in a diagnostic. A secondary concerns the
    tasks of which a valid trial reported it. A trial that was never scoreable has no value anywhere.
    """
    scoreable = [trial for trial in trials if trial.is_scoreable]
    if not scoreable:
        return Rewards(None, ())
    primary = choose_primary(trials, reward_key)
    parsed = {trial.name: parse_rewards(trial.rewards or {}) for trial in scoreable}
    by_task: dict[str, list[Trial]] = {}
    for trial in trials:
        by_task.setdefault(trial.task, []).append(trial)
    keys_of: dict[str, set[str]] = {}
    for trial in scoreable:
        found = parsed[trial.name]
        keys_of.setdefault(trial.task, set()).update(found.values, found.rejected)
    keys = sorted(set().union(*keys_of.values()) - {primary})
    diagnostics: list[Diagnostic] = []
    outputs: list[Output] = []
    for key in ([primary] if primary is not None else []) + keys:
        observations: list[Observation] = []
        for task, members in by_task.items():
            if key != primary and key not in keys_of.get(task, ()):
                continue
            for trial in members:
                found_rewards = parsed.get(trial.name)
                if found_rewards is None:
                    observations.append(Observation(task, trial.name, "unscored", None))
                    continue
                value = found_rewards.values.get(key)
                if value is None:
                    details = {"output": key, "reason": found_rewards.rejected.get(key, "absent")}
                    diagnostics.append(Diagnostic(trial.name, f"Harbor reward {key!r} was not measured", details))
                if value is None and key != primary:
                    observations.append(Observation(task, trial.name, "missing", None))
                else:
                    observations.append(Observation(task, trial.name, "observed", 0.0 if value is None else value))
        outputs.append(Output(REWARD_METRIC, key, "continuous", tuple(observations)))
    for trial in scoreable:
        for reason in parsed[trial.name].bad_keys:
            diagnostics.append(Diagnostic(trial.name, "Harbor reward entry was rejected", {"output": None, "reason": reason}))
    return Rewards(primary, tuple(outputs), tuple(diagnostics))
