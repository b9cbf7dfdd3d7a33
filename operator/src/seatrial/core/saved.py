"""Saved trials: the lines of a ``trials.jsonl``, read again to be scored again.

The file may come from a job's bundle, from an old Harbor job directory, or from somebody's editor, so each line is checked and unknown
fields are refused. Where evidence lies is decided by where the file lies, never by what it says: a line cannot point into another job's
folder. Source: nemo.md 20 and 25.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from seatrial.api.evaljob import MAX_TRIALS
from seatrial.api.reasons import Reason
from seatrial.contract import CAUSES, ContractBroken, Measures, error_name, read_measures
from seatrial.core import rows
from seatrial.core.frozen import PlanRefused
from seatrial.core.observe import format_time, parse_time
from seatrial.core.rows import Origin, Row, TrialError
from seatrial.harbor_errors import error_policy
from seatrial.scoring.rewards import key_rejection, parse_rewards

PRIMARY_KEY: Final = "harbor_primary_reward_key"
MOST_REWARDS: Final = 1000
MOST_AMOUNT: Final = 1e12
"""Of seconds, tokens and dollars."""
STATUSES: Final = ("COMPLETED", "PARTIAL", "FAILED")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_FIELDS: Final = frozenset({"id", "task_id", "status", "output", "evidence", "error", "measurements", "metadata"})
_ROW_FIELDS: Final = frozenset(
    {"task", "agent", "attempt", "trial", "retry", "outcome", "endedAt", "rewards", "budget", "pod", "startedAt", "stored"}
    | {"resultSha256", "logsSha256", "seconds", "tampered", "leftoverProcesses", "changedTools", "usage", "measures", "origin"}
    | {"result", "retries"}
)


class SavedTrialsRefused(PlanRefused):
    """The saved trials cannot be scored as they stand; the message names the first one that is at fault."""


@dataclass(frozen=True)
class SavedTrial:
    """One trial as a bundle keeps it."""

    id: str
    task_id: str
    status: str
    output: Any = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Name -> ``{ref, sha256?}``; the reference is relative to the bundle."""
    error: Mapping[str, Any] | None = None
    measurements: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    """The operator's fields, where a job of ours wrote the line."""

    @property
    def primary_key(self) -> str | None:
        """The reward key that the trial was scored under; None where it does not say."""
        found = self.metadata.get(PRIMARY_KEY)
        return found if isinstance(found, str) else None

    @property
    def rewards(self) -> dict[str, float]:
        """The saved rewards; the saved primary value stands under its key whatever the details say."""
        details = self.metadata.get("reward_details")
        found = parse_rewards(details).values if isinstance(details, Mapping) else {}
        key, value = self.primary_key, parse_rewards({"reward": self.metadata.get("reward")}).values
        return {**found, **({key: value["reward"]} if key is not None and value else {})}

    def raw(self) -> dict[str, Any]:
        """As a line of trials.jsonl."""
        body = {name: getattr(self, name) for name in sorted(_FIELDS) if name != "error"}
        return {**body, **({"error": self.error} if self.error is not None else {}), **self.row}


def parse_saved(data: bytes) -> tuple[SavedTrial, ...]:
    """The trials of a JSONL file; blank lines are ignored.

    Raises:
        SavedTrialsRefused: SavedTrialsInvalid, with the number of the line.
    """
    trials: list[SavedTrial] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        if len(trials) == MAX_TRIALS:
            raise _invalid(f"more than {MAX_TRIALS} trials")
        try:
            trials.append(saved_trial(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise _invalid(f"line {number}: {error}") from None
    if twice := [name for name, count in Counter(trial.id for trial in trials).items() if count > 1]:
        raise _invalid(f"trial {twice[0]} is there twice")
    return tuple(trials)


def saved_trial(body: object) -> SavedTrial:
    """One line, checked.

    Raises:
        ValueError: with the field that is at fault.
    """
    if not isinstance(body, dict):
        raise ValueError("is no JSON object")
    for rewards in (_mapping(body.get("metadata")).get("reward_details"), body.get("rewards")):
        if rewards is not None and (not isinstance(rewards, dict) or len(rewards) > MOST_REWARDS):
            raise ValueError(f"its rewards are no JSON object of at most {MOST_REWARDS}")
    if unknown := sorted(set(body) - _FIELDS - _ROW_FIELDS):
        raise ValueError(f"unknown field {unknown[0][:60]!r}")
    for name in ("id", "task_id", "status"):
        if not isinstance(body.get(name), str):
            raise ValueError(f"{name} is no text")
    if not _ID.fullmatch(body["id"]):
        raise ValueError(f"id {body['id'][:60]!r} is no name of a trial")
    if body["status"].upper() not in STATUSES:
        raise ValueError(f"status {body['status'][:60]!r} is none of {', '.join(STATUSES)}")
    for name in ("evidence", "measurements", "metadata"):
        if not isinstance(body.get(name, {}), dict):
            raise ValueError(f"{name} is no JSON object")
    error = body.get("error")
    if error is not None and not (isinstance(error, dict) and isinstance(error.get("type"), str)):
        raise ValueError("error is no JSON object with a type")
    row = {name: value for name, value in body.items() if name in _ROW_FIELDS}
    trial = SavedTrial(**{**{name: body[name] for name in _FIELDS & set(body)}, "status": body["status"].upper()}, row=row)
    if row:
        _own_row(trial)
    return trial


def recorded_key(trials: Sequence[SavedTrial]) -> str:
    """The one reward key of all trials.

    Raises:
        SavedTrialsRefused: RewardKeyMissing or RewardKeyInconsistent.
    """
    keys: dict[str, str] = {}
    for trial in trials:
        key = trial.primary_key
        if key is None or key_rejection(key) is not None:
            raise SavedTrialsRefused(Reason.REWARD_KEY_MISSING, f"Harbor trial {trial.id!r} requires {PRIMARY_KEY} metadata")
        keys.setdefault(key, trial.id)
    if len(keys) != 1:
        found = ", ".join(f"{key} ({name})" for key, name in sorted(keys.items())[:4]) or "no trial"
        message = f"Saved Harbor trials must contain one consistent primary reward_key: found {found}"
        raise SavedTrialsRefused(Reason.REWARD_KEY_INCONSISTENT, message)
    return next(iter(keys))


def check_tasks(trials: Iterable[tuple[str, str]], tasks: Iterable[str]) -> None:
    """Every trial, given as ``(name, task)``, is of one of the tasks, and every task has a trial.

    Raises:
        SavedTrialsRefused: UnknownTrialTask or TaskWithoutTrials.
    """
    known = dict.fromkeys(tasks, 0)
    for name, task in trials:
        if task not in known:
            raise SavedTrialsRefused(Reason.UNKNOWN_TRIAL_TASK, f"trial {name!r} references unknown task {task!r}")
        known[task] += 1
    if without := [task for task, count in known.items() if count == 0]:
        raise SavedTrialsRefused(Reason.TASK_WITHOUT_TRIALS, f"no trials produced for tasks: {', '.join(without[:10])}")


def saved_row(trial: SavedTrial, folder: str) -> Row:
    """The final row of a saved trial, its evidence in ``folder`` (a key prefix; empty: it has none here)."""
    row = _own_row(trial) if trial.row else _foreign_row(trial)
    if not folder:
        return replace(row, stored=False, result_sha256=None, logs_sha256=None)
    return replace(row, origin=Origin(folder, trial.id, row.retry))


def attempts(trials: Sequence[SavedTrial]) -> list[int]:
    """Attempt of each trial: what its line says, else the next free number of its task."""
    taken: dict[str, set[int]] = {}
    free: dict[str, int] = {}
    result = []
    for trial in trials:
        used = taken.setdefault(trial.task_id, set())
        said = trial.row.get("attempt")
        is_one = isinstance(said, int) and not isinstance(said, bool) and 0 < said <= MAX_TRIALS
        number = said if is_one and said not in used else None
        if number is None:
            number = free.get(trial.task_id, 1)
            while number in used:
                number += 1
            free[trial.task_id] = number + 1
        used.add(number)
        result.append(number)
    return result


def _own_row(trial: SavedTrial) -> Row:
    """The operator's row in the line, as far as it is one: every value is checked, because the file may be anybody's.

    Raises:
        ValueError: it is none.
    """
    is_scored = trial.row.get("outcome") == "scored"
    rewards = trial.rewards if is_scored else parse_rewards(_mapping(trial.row.get("rewards"))).values or None
    return read_row(trial.id, trial.row, rewards=rewards, error=trial.error)


def read_row(trial: str, body: Mapping[str, Any], *, rewards: Mapping[str, float] | None, error: Mapping[str, Any] | None) -> Row:
    """A final row from JSON that anybody may have written: each value is checked, what is no number or no digest is left out.

    Args:
        rewards: checked.

    Raises:
        ValueError: it is none.
    """
    retry, outcome = body.get("retry"), body.get("outcome")
    if outcome not in ("scored", "errored", "cancelled"):
        raise ValueError(f"outcome {str(outcome)[:40]!r} is not that of an ended trial")
    if not isinstance(retry, int) or isinstance(retry, bool) or not 0 <= retry < 10_000:
        raise ValueError("retry is no number of a Pod")
    said = None
    if error is not None:
        kind, name, cause, message = (error.get(field) for field in ("type", "exceptionType", "cause", "message"))
        if not isinstance(name, str) or cause not in CAUSES or not isinstance(message, str):
            raise ValueError("error has no exceptionType, cause or message")
        said = TrialError(error_name(str(kind)), error_name(name), cause, message[: rows.MESSAGE_CHARS])
    if outcome == "scored" and not rewards:
        raise ValueError("its outcome is scored and it has no reward")
    return Row(
        trial=trial,
        retry=retry,
        outcome=outcome,
        ended_at=_time(body.get("endedAt")) or "",
        rewards=rewards,
        error=said,
        started_at=_time(body.get("startedAt")),
        stored=body.get("stored") is True,
        result_sha256=_hex(body.get("resultSha256")),
        logs_sha256=_hex(body.get("logsSha256")),
        seconds=_amounts(body.get("seconds")),
        tampered=body.get("tampered") is True,
        leftover_processes=_count(body.get("leftoverProcesses")),
        changed_tools=_count(body.get("changedTools")),
        usage=_amounts(body.get("usage")),
        measures=_measures(body.get("measures")),
    )


def _amounts(value: object) -> dict[str, float]:
    """Named numbers of something that there can only be more of; what no trial can have taken is left out."""
    return {name[:100]: number for name, number in parse_rewards(_mapping(value)).values.items() if 0 <= number <= MOST_AMOUNT}


def _measures(value: object) -> Measures:
    """What the task's own metrics found; nothing where that cannot be read."""
    try:
        return read_measures({} if value is None else value)
    except ContractBroken:
        return {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else 0


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _time(value: object) -> str | None:
    """A time as the operator writes it; None for what is none."""
    try:
        found = parse_time(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
    return None if found is None else format_time(found)


def _foreign_row(trial: SavedTrial) -> Row:
    """A row for a trial that no job of ours ran: scored with valid rewards, unless its error makes them invalid."""
    rewards = trial.rewards
    name = error_name(str(trial.error["type"])) if trial.error is not None else None
    error = None if name is None else TrialError(name, name, "agent", str((trial.error or {}).get("message") or "")[: rows.MESSAGE_CHARS])
    valid = bool(rewards) and trial.status != "FAILED" and (name is None or error_policy(name).valid)
    if not valid and error is None:
        message = "the saved trial has no valid reward"
        error = TrialError(Reason.REWARD_MISSING, "RewardFileNotFoundError", "verifier", message)
    result, logs = (_digest(trial.evidence.get(name)) for name in ("result", "logs"))
    outcome: Literal["scored", "errored"] = "scored" if valid else "errored"
    return Row(
        trial.id, 0, outcome, "", rewards=rewards or None, error=error, stored=result is not None, result_sha256=result, logs_sha256=logs
    )


def _digest(evidence: object) -> str | None:
    """The sha256 that a line states of a stored file."""
    return _hex(_mapping(evidence).get("sha256"))


def _hex(value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) else None


def _invalid(message: str) -> SavedTrialsRefused:
    return SavedTrialsRefused(Reason.SAVED_TRIALS_INVALID, f"saved trials: {message}")
