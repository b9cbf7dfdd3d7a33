"""Rows: what is kept of each ended Pod of a trial. A trial's last row is final unless it says ``retried``.

Why rows instead of status: 10,000 of them take megabytes, and etcd is no place for that. Rows are appended in shards to the object
store, and everything in the status is computed from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from seatrial.api.reasons import Reason
from seatrial.contract import Cause, Measures
from seatrial.core.policy import Budget, Past

Outcome = Literal["scored", "errored", "cancelled", "retried"]

MESSAGE_CHARS: Final = 1024
_NO_FAILURES: Final = (Reason.SUSPENDED, Reason.HANDED_OVER)


@dataclass(frozen=True, slots=True)
class TrialError:
    type: str
    """Our reason, or the class name that a verdict carries."""
    harbor: str
    """The same in Harbor's terms."""
    cause: Cause
    message: str


class Origin(NamedTuple):
    """Where a reused result was made; its evidence stays there."""

    folder: str
    """Key prefix of that job, with a slash at its end."""
    trial: str
    retry: int


@dataclass(frozen=True, slots=True)
class Row:
    trial: str
    retry: int
    outcome: Outcome
    ended_at: str
    """When the operator committed it, RFC 3339 in UTC."""
    rewards: Mapping[str, float] | None = None
    """As the verifier reported them, valid or not; they count only if the outcome is scored."""
    error: TrialError | None = None
    budget: Budget = Budget.NONE
    """Of a retried row: on whose account the next Pod is."""
    pod: str = ""
    started_at: str | None = None
    stored: bool = False
    """``result.json`` of this retry is in the object store."""
    result_sha256: str | None = None
    logs_sha256: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    tampered: bool = False
    leftover_processes: int = 0
    """What the agent left running when the tests began."""
    changed_tools: int = 0
    """Programs of the environment that changed while the agent ran: the tests may have run one of them."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """Tokens and cost of this Pod's agent, in Harbor's words; only what it told."""
    measures: Measures = field(default_factory=dict)
    """What the task's own metrics found in the Pod that graded the trial."""
    origin: Origin | None = None
    """Of a row that was taken from another job: no Pod ran for it here."""

    @property
    def is_final(self) -> bool:
        return self.outcome != "retried"


def to_json(row: Row) -> dict[str, Any]:
    """As written to the store; fields without a value are left out, rewards excepted."""
    body: dict[str, Any] = {
        "trial": row.trial,
        "retry": row.retry,
        "outcome": row.outcome,
        "endedAt": row.ended_at,
        "rewards": dict(row.rewards) if row.rewards is not None else None,
    }
    if row.error is not None:
        body["error"] = {
            "type": row.error.type,
            "exceptionType": row.error.harbor,
            "cause": row.error.cause,
            "message": row.error.message[:MESSAGE_CHARS],
        }
    if row.outcome == "retried":
        body["budget"] = row.budget.value
    optional = {
        "pod": row.pod or None,
        "startedAt": row.started_at,
        "stored": row.stored or None,
        "resultSha256": row.result_sha256,
        "logsSha256": row.logs_sha256,
        "seconds": dict(row.seconds) or None,
        "tampered": row.tampered or None,
        "leftoverProcesses": row.leftover_processes or None,
        "usage": dict(row.usage) or None,
        "changedTools": row.changed_tools or None,
        "measures": {metric: found if isinstance(found, str) else dict(found) for metric, found in row.measures.items()} or None,
        "origin": row.origin._asdict() if row.origin is not None else None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def from_json(body: Mapping[str, Any]) -> Row:
    """Inverse of ``to_json``; the text is our own."""
    error = body.get("error")
    return Row(
        trial=body["trial"],
        retry=body["retry"],
        outcome=body["outcome"],
        ended_at=body["endedAt"],
        rewards=body.get("rewards"),
        error=TrialError(error["type"], error["exceptionType"], error["cause"], error["message"]) if error else None,
        budget=Budget(body.get("budget", Budget.NONE.value)),
        pod=body.get("pod", ""),
        started_at=body.get("startedAt"),
        stored=body.get("stored", False),
        result_sha256=body.get("resultSha256"),
        logs_sha256=body.get("logsSha256"),
        seconds=body.get("seconds", {}),
        tampered=body.get("tampered", False),
        leftover_processes=body.get("leftoverProcesses", 0),
        usage=body.get("usage", {}),
        changed_tools=body.get("changedTools", 0),
        measures=body.get("measures", {}),
        origin=Origin(**body["origin"]) if body.get("origin") else None,
    )


def to_lines(rows: Iterable[Row]) -> bytes:
    """One JSON object a line, with sorted keys, so that equal rows are equal bytes."""
    return b"".join(json.dumps(to_json(row), sort_keys=True, separators=(",", ":")).encode() + b"\n" for row in rows)


def from_lines(data: bytes) -> tuple[Row, ...]:
    return tuple(from_json(json.loads(line)) for line in data.splitlines() if line)


def by_trial(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    """Rows by trial in the order of retries; of two rows for one retry the first counts, and nothing after a final row does."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row.trial, {}).setdefault(row.retry, row)
    result: dict[str, tuple[Row, ...]] = {}
    for trial, retries in found.items():
        ordered = [retries[number] for number in sorted(retries)]
        final = next((index for index, row in enumerate(ordered) if row.is_final), len(ordered))
        result[trial] = tuple(ordered[: final + 1])
    return result


def past(rows: Sequence[Row]) -> tuple[Past, ...]:
    """The retried rows as the retry policy reads them; suspensions and hand-overs are nobody's failure and are left out."""
    return tuple(
        Past(error=row.error.type if row.error else "", budget=row.budget)
        for row in rows
        if not row.is_final and (row.error is None or row.error.type not in _NO_FAILURES)
    )


def handed_over(rows: Sequence[Row]) -> Row | None:
    """The row of the Pod whose work a separate verifier grades; None while the agent has not done it."""
    return next((row for row in reversed(rows) if row.error is not None and row.error.type == Reason.HANDED_OVER), None)
