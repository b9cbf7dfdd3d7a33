"""The ``metric.py`` scripts of a job: which Pods run them, what the end of such a Pod means, and what came out.

They run when every trial is final and before the results are saved, each in a Pod of its own without network. What a script did is an
outcome like a row: committed once, read again after a restart. A script that fails costs its own values and nothing else. Source: nemo.md
30.2, harbor.md 8.1 and 8.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from seatrial import contract
from seatrial.api.reasons import Reason
from seatrial.contract import Cause, ContractBroken, StageExit
from seatrial.core.naming import script_pod_name
from seatrial.core.observe import ContainerView, PodView
from seatrial.core.trial import Limits, is_lost, lost_at, stage_message
from seatrial.scoring.script import ScriptFault, check_values

RETRIES: Final = 3
"""Further Pods of a script that the infrastructure ended."""
RESYNC_SECONDS: Final = 60.0
_DELETED: Final = "it was deleted"


class Script(NamedTuple):
    """One script of a job; the taskset's own comes first."""

    key: str
    """In the object store."""
    sha256: str
    is_taskset: bool = False
    """It was published with the taskset; the others are named by the job."""


class ScriptError(NamedTuple):
    type: str
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """What one script gave; without an error it has values, maybe none."""

    sha256: str
    """Of the script."""
    values: Mapping[str, float] = field(default_factory=dict)
    error: ScriptError | None = None


class ScriptRun(NamedTuple):
    """One Pod of one script."""

    script: int
    retry: int


@dataclass(frozen=True, slots=True)
class ObservedScripts:
    """Everything that the next step of the scripts follows from."""

    job: str
    job_uid: str
    scripts: tuple[Script, ...]
    pods: Mapping[str, PodView]
    """Pods of the job by name."""
    gone: Mapping[str, PodView]
    """Last views of Pods that are gone, by name."""
    starting: frozenset[ScriptRun]
    """Created by us and not yet shown."""
    found: Mapping[ScriptRun, ScriptOutcome | None]
    """What the store answered; None: it holds no result."""
    refused: Mapping[int, ScriptOutcome]
    """By script: its Pod could not be created, for good."""
    limits: Limits
    """How long a Pod may wait for its first container, and how long one that is deleted may take."""
    seconds: float
    """What a script may take."""


@dataclass(frozen=True, slots=True)
class ScriptsPlan:
    outcomes: tuple[ScriptOutcome, ...] | None
    """Of all scripts, in order; None while one is missing."""
    finds: tuple[ScriptRun, ...] = ()
    creates: tuple[ScriptRun, ...] = ()
    requeue_seconds: float = RESYNC_SECONDS


def plan_scripts(observed: ObservedScripts, now: datetime) -> ScriptsPlan:
    """What to do next: ask the store first, then create, then judge; the same observation gives the same plan."""
    finds: list[ScriptRun] = []
    creates: list[ScriptRun] = []
    outcomes: list[ScriptOutcome] = []
    wake = now + timedelta(seconds=RESYNC_SECONDS)
    for number in range(len(observed.scripts)):
        match _next(observed, number, now):
            case ScriptOutcome() as outcome:
                outcomes.append(outcome)
            case _Find(run):
                finds.append(run)
            case _Create(run):
                creates.append(run)
            case _Wait(until):
                wake = min(wake, until or wake)
    complete = len(outcomes) == len(observed.scripts)
    return ScriptsPlan(tuple(outcomes) if complete else None, tuple(finds), tuple(creates), max(0.1, (wake - now).total_seconds()))


class _Find(NamedTuple):
    run: ScriptRun


class _Create(NamedTuple):
    run: ScriptRun


class _Wait(NamedTuple):
    until: datetime | None


def _next(observed: ObservedScripts, number: int, now: datetime) -> ScriptOutcome | _Find | _Create | _Wait:
    """At most one Pod of a script lives: a further one is made only when every earlier one has ended, is gone, or is lost with its node."""
    sha256 = observed.scripts[number].sha256
    if (refused := observed.refused.get(number)) is not None:
        return refused
    lost, newest = "", _newest(observed, number)
    for retry in range(RETRIES + 1):
        run = ScriptRun(number, retry)
        name = script_pod_name(observed.job, observed.job_uid, number, retry)
        pod = observed.pods.get(name)
        is_late = False
        if pod is not None and is_live(pod, now=now, limits=observed.limits):
            until = _waits_until(pod, observed.limits)
            is_late = until is not None and now >= until and not pod.deleting
            if not is_late:
                return _Wait(lost_at(pod, observed.limits) or until)
        if run in observed.starting:
            return _Wait(None)
        if run not in observed.found:
            return _Find(run)
        if (outcome := observed.found[run]) is not None:
            return outcome
        if pod is not None and is_late:
            return _failed(sha256, Reason.METRIC_SCRIPT_LOST, f"its Pod {name} did not start in time: {_waits_for(pod)}")
        pod = pod or observed.gone.get(name)
        if pod is None and retry >= newest:
            return _Create(run)
        end = _DELETED if pod is None else judge_end(pod, observed.seconds)
        if isinstance(end, ScriptError):
            return ScriptOutcome(sha256, error=end)
        lost = end
    return _failed(sha256, Reason.METRIC_SCRIPT_LOST, f"{RETRIES + 1} Pods of it ended without a result; the last one: {lost}")


def _newest(observed: ObservedScripts, number: int) -> int:
    """The newest retry of which anything was seen: whatever came before it was given up, by an earlier process maybe."""
    seen = (
        retry
        for retry in range(RETRIES + 1)
        if ScriptRun(number, retry) in observed.starting
        or (name := script_pod_name(observed.job, observed.job_uid, number, retry)) in observed.pods
        or name in observed.gone
    )
    return max(seen, default=0)


def is_live(pod: PodView, *, now: datetime, limits: Limits) -> bool:
    """Whether something of the Pod may still run where a cluster that works can end it."""
    return not pod.is_terminal and not is_lost(pod, now=now, limits=limits)


def has_started(pod: PodView) -> bool:
    """Whether a container of the Pod was started. Not by its phase: that is Pending while init containers run, the script's too."""
    return pod.phase != "Pending" or any(item.phase != "waiting" or item.started_at is not None for item in pod.containers)


def _waits_until(pod: PodView, limits: Limits) -> datetime | None:
    """When a Pod of which nothing has started is given up; None: its own deadline ends it, or a queue holds it for as long as it likes."""
    if has_started(pod) or pod.created_at is None or pod.unscheduled == "SchedulingGated":
        return None
    return pod.created_at + timedelta(seconds=limits.pending)


def judge_end(pod: PodView, seconds: float) -> ScriptError | str:
    """What the end of a Pod without a stored result says: an error of the script, or why it was lost, which is worth another Pod.

    Args:
        seconds: what the script may take.
    """
    script, fetch, score = (pod.container(name) for name in (contract.SCRIPT, contract.FETCH, contract.SCORE))
    why = f"{pod.reason} {pod.message}".strip()
    if script is not None and script.reason == "OOMKilled":
        return _error(Reason.METRIC_SCRIPT_OUT_OF_MEMORY, "its container was killed for memory: read the rows one by one, or keep less")
    if pod.reason == "DeadlineExceeded":
        return _deadline_exceeded(pod, script, seconds)
    if "ephemeral" in why or "emptyDir" in why:
        return _error(Reason.METRIC_SCRIPT_OUTPUT_TOO_LONG, f"it fills the disk ({why[:200]}): write a few numbers")
    code = fetch.exit_code if fetch is not None else None
    if code in (StageExit.ARCHIVE_MISSING, StageExit.ARCHIVE_CORRUPT):
        return _error(Reason.METRIC_SCRIPT_MISSING, f"{_said(fetch)}; publish the taskset again")
    if not pod.disruption and script is not None and script.phase == "terminated" and script.exit_code and not pod.reason:
        return _error(Reason.METRIC_SCRIPT_FAILED, f"it ended its own container with code {script.exit_code}")
    if pod.deleting and not pod.is_terminal:
        return f"it was deleted, and node {pod.node or 'none'} did not end it in its time ({why or 'no reason given'})"
    return why or _said(score) or _said(fetch) or _DELETED


def _deadline_exceeded(pod: PodView, script: ContainerView | None, seconds: float) -> ScriptError | str:
    """The deadline of the Pod also has the time that its image, the rewards and the result need: who spent it is at fault."""
    started, finished = (script.started_at, script.finished_at) if script is not None else (None, None)
    if script is None or script.phase == "waiting" or started is None:
        return f"its Pod did not end in time, and the script had not begun: {_waits_for(pod)}"
    if finished is not None and (ran := (finished - started).total_seconds()) < seconds:
        return f"its Pod did not end in time, of which the script had {ran:.0f} s: the rest went into its start and its result"
    return _error(Reason.METRIC_SCRIPT_TIMEOUT, f"its Pod did not end in time, and the script still ran after its {seconds:g} s")


def read_result(body: Mapping[str, Any], *, job_uid: str, run: ScriptRun, script: Script) -> ScriptOutcome:
    """A stored result whose signature was checked.

    Raises:
        ContractBroken: of another run, or malformed.
    """
    expected = (job_uid, run.script, run.retry, script.sha256)
    if (body.get("job_uid"), body.get("script"), body.get("retry"), body.get("script_sha256")) != expected:
        raise ContractBroken("result of another script")
    error = body.get("error")
    if error is None:
        try:
            return ScriptOutcome(script.sha256, values=check_values(body.get("values")))
        except ScriptFault as fault:
            raise ContractBroken(str(fault)) from fault
    if not isinstance(error, dict) or not isinstance(error.get("type"), str) or not isinstance(error.get("message"), str):
        raise ContractBroken("error without type and message")
    kind, message = contract.error_name(error["type"]), error["message"][: contract.SCRIPT_ERROR_CHARS]
    return ScriptOutcome(script.sha256, error=ScriptError(kind, "user", message))


def refused_outcome(script: Script, message: str) -> ScriptOutcome:
    """The API server does not take the Pod."""
    return _failed(script.sha256, Reason.POD_REJECTED, message)


def to_lines(outcomes: Iterable[ScriptOutcome]) -> bytes:
    """``scripts.jsonl``: one outcome a line, in the order of the scripts."""
    lines = []
    for item in outcomes:
        error = item.error._asdict() if item.error is not None else None
        body = {"sha256": item.sha256, "values": dict(item.values), "error": error}
        lines.append(json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n")
    return "".join(lines).encode()


def from_lines(data: bytes) -> tuple[ScriptOutcome, ...]:
    """Inverse of ``to_lines``; the text is our own."""
    return tuple(
        ScriptOutcome(body["sha256"], body["values"], ScriptError(**body["error"]) if body["error"] else None)
        for body in map(json.loads, data.splitlines())
    )


def merged_values(outcomes: Sequence[ScriptOutcome]) -> dict[str, float]:
    """Values of all scripts by name; the first script that gives a name has it."""
    values: dict[str, float] = {}
    for outcome in outcomes:
        for name, value in outcome.values.items():
            values.setdefault(name, value)
    return values


def _failed(sha256: str, reason: Reason, message: str) -> ScriptOutcome:
    return ScriptOutcome(sha256, error=_error(reason, message))


def _error(reason: Reason, message: str) -> ScriptError:
    cause: Cause = "infrastructure" if reason is Reason.METRIC_SCRIPT_LOST else "user"
    return ScriptError(reason.value, cause, message[: contract.SCRIPT_ERROR_CHARS])


def _said(item: ContainerView | None) -> str:
    return "" if item is None or not item.message else stage_message(item.message)


def _waits_for(pod: PodView) -> str:
    waiting = next((item for item in pod.containers if item.phase == "waiting" and item.reason), None)
    if waiting is not None:
        return f"{waiting.name}: {waiting.reason} {waiting.message}"[:300]
    return f"{pod.unscheduled} {pod.unscheduled_message}".strip()[:300] or ("nothing says why" if pod.node else "not scheduled")
