"""Judge a trial from its Pod and its committed result.

Why one module: retries, status and metrics must never disagree about the same Pod. Order of judgement and reasons:
``spec/operator.md`` section 11.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from seatrial.api.reasons import Reason
from seatrial.contract import (
    AGENT,
    AGENT_IMAGE,
    CAUSES,
    ENVIRONMENT,
    ERROR_MESSAGE_CHARS,
    STAGE,
    VERIFIER,
    Cause,
    ContractBroken,
    ErrorInfo,
    StageExit,
    Verdict,
    read_error,
    read_measures,
    read_rewards,
    read_verdict,
    sum_usage,
)
from seatrial.core.observe import ContainerView, PodView
from seatrial.core.policy import POLICIES, Budget, is_valid_reward, verdict_budget
from seatrial.core.rows import TrialError
from seatrial.harbor_errors import error_policy

CANCELLED_ERROR: Final = "CancelledError"
INTERRUPTED: Final = "Interrupted"
"""Reason in a verdict that was written after SIGTERM."""


class Limits(NamedTuple):
    """How long a Pod may wait, in seconds."""

    pending: float = 1800.0
    """From creation until its containers run (``timeouts.pending``)."""
    image_grace: float = 120.0
    """A wrong image name may be a push that is a moment late."""
    image_wait: float = 900.0
    """A registry that throttles or is away; the kubelet tries again by itself."""
    config_grace: float = 60.0
    """Secrets and ConfigMaps may be applied a moment later."""
    never_grace: float = 30.0
    start: float = 600.0
    """Volumes, sandbox, network."""
    soon: float = 10.0
    """An environment that lives no longer may have ended before envd could connect, and then nobody in the Pod knows of it."""
    exited: float = 15.0
    """How long the verifier may still work after the end of such an environment."""
    evidence: float = 600.0
    """How long it may work after the end of any other: it knows, and saves what there is."""
    lost: float = 60.0
    """After a deleted Pod should be gone. A kubelet that restarts needs no longer; a node that is cut off never answers."""


class Found(NamedTuple):
    """What the object store holds for a retry whose Pod has no verdict."""

    verdict: Verdict | None
    """None: there is no valid ``result.json``."""
    note: str = ""
    """Why a result that is there does not count."""
    touched: bool = False
    """Some object of this retry exists, so a Pod of it did run."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one Pod of a trial ended."""

    rewards: Mapping[str, float] | None
    error: TrialError | None
    valid: bool
    """The rewards count as a score."""
    budget: Budget
    most: int | None = None
    verdict: Verdict | None = None
    is_handed_over: bool = False
    """Not the end: a separate verifier's Pod comes next."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The Pod exists, its containers do not all run yet."""

    reason: Reason
    message: str
    deadline: datetime | None = None
    """When the wait becomes a judgement, if the cluster does not change it before."""


@dataclass(frozen=True, slots=True)
class Running:
    """The containers run, or end in these moments."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """The Pod ended or is gone without a verdict: the store has to be asked before this is believed."""

    fallback: Judgement


State = Judgement | Waiting | Running | Unclear


def derive(
    trial: str,
    retry: int,
    *,
    pod: PodView,
    gone: bool,
    found: Found | None,
    now: datetime,
    limits: Limits,
    overrides: Mapping[str, Mapping[str, bool]],
) -> State:
    """Where one Pod of a trial is. First match wins:

    1. a verdict, from the verifier's termination message or a signed ``result.json`` -> Judgement from it
    2. the stage container failed -> Judgement by its exit code
    3. the Pod as a whole ended: evicted, preempted, refused by the node, deadline -> by its reason
    4. a container could not start, or waits past its grace -> by its reason
    5. the environment ended and the verifier goes on past its time -> environment exited
    6. the verifier ended, or the Pod is gone or lost, without a verdict -> by the containers, the disruption, else missing
    7. waiting -> Waiting; otherwise Running

    Args:
        pod: the newest view, or the last one if the Pod is ``gone``.
        gone: the Pod was seen and is no longer there.
        found: what the store holds; None if it was not asked.
        overrides: the job's error policy.

    In 3 (once containers could run), 5 and 6, and for whatever is gone, the answer is Unclear until ``found`` is given.
    A Pod that its node does not take away is as good as gone (``is_lost``).
    """
    lost = not gone and is_lost(pod, now=now, limits=limits)
    verdict, note = _verdict(pod, trial=trial, retry=retry)
    if verdict is None and found is not None:
        verdict, note = found.verdict, note or found.note
    if verdict is not None and verdict.rewards_elsewhere and verdict.rewards is None:
        # The rewards did not fit into the message; the result that the store holds has them.
        missing = failure(Reason.VERDICT_MISSING, "the rewards were moved to result.json, and it cannot be read")
        if found is None:
            return Unclear(missing)
        return judge(found.verdict, overrides) if found.verdict is not None else missing
    if verdict is not None and not _is_stopped(verdict):
        return judge(_with_ends(verdict, pod), overrides)

    state: Judgement | Waiting | None = _stage_failure(pod, limits) or _pod_failure(pod, gone=gone or lost) or _start_failure(pod)
    if state is None:
        state = (_waiting(pod, now=now, limits=limits) or _environment_exited(pod, now=now, limits=limits)) if not (gone or lost) else None
    if state is None and lost:
        text = f"node {pod.node} did not end Pod {pod.name} in its time: it does not answer, and what it runs may go on until it is back"
        state = failure(Reason.NODE_LOST, text)
    if state is None:
        state = _end_without_verdict(pod, gone=gone, note=note, stopped=verdict)
    if isinstance(state, Judgement) and found is None and (gone or lost or _verifier_ran(pod)):
        # The last view of a Pod that is gone may be older than its result.
        return Unclear(state)
    return state or Running()


def lost_at(pod: PodView, limits: Limits) -> datetime | None:
    """When a Pod that is being deleted counts as lost with its node; None for one that nobody deletes."""
    return pod.deletion_due + timedelta(seconds=limits.lost) if pod.deletion_due is not None else None


def is_lost(pod: PodView, *, now: datetime, limits: Limits) -> bool:
    """Whether the Pod's node has not ended it although it had to: nobody will, and nothing may wait for it.

    The same risk as with a Pod that the taint manager removed (``spec/operator.md`` 11.2, NodeLost): the agent may still run on a node
    that is cut off. Its result, if it comes, has a key of its own, and the first row of the trial wins.
    """
    at = lost_at(pod, limits)
    return at is not None and now >= at


def judge(verdict: Verdict, overrides: Mapping[str, Mapping[str, bool]]) -> Judgement:
    """A verdict read with Harbor's table: rewards beside an invalid error are kept and do not count."""
    rewards, error = verdict.rewards, verdict.error
    if verdict.is_handed_over:
        if not verdict.stored or verdict.logs_sha256 is None:
            return failure(Reason.OBJECT_STORE_UNAVAILABLE, "the agent's work could not be stored for the separate verifier")
        handed = failure(Reason.HANDED_OVER, "the agent is done; its work is verified in a Pod of its own", verdict=verdict)
        return replace(handed, is_handed_over=True)
    if error is None and not rewards and verdict.is_disabled:
        # Nothing was to be measured: the trial is done, without a reward and without an error.
        return Judgement(rewards=None, error=None, valid=True, budget=Budget.NONE, verdict=verdict)
    if error is None and not rewards:
        return failure(Reason.REWARD_MISSING, "the verifier reported neither a reward nor an error", verdict=verdict)
    if error is None:
        return Judgement(rewards=rewards, error=None, valid=True, budget=Budget.NONE, verdict=verdict)
    valid = bool(rewards) and is_valid_reward(error["type"], overrides)
    return Judgement(
        rewards=rewards,
        error=TrialError(type=error.get("reason", error["type"]), harbor=error["type"], cause=error["cause"], message=error["message"]),
        valid=valid,
        # A valid result is never run again, whatever the table says about its error.
        budget=Budget.NONE if valid else verdict_budget(error["type"], overrides),
        verdict=verdict,
    )


def failure(reason: Reason, message: str, *, budget: Budget | None = None, verdict: Verdict | None = None) -> Judgement:
    """A Judgement for one of our own reasons; flags and cause come from the policy table."""
    policy = POLICIES[reason]
    return Judgement(
        rewards=verdict.rewards if verdict is not None else None,
        error=TrialError(type=reason.value, harbor=policy.harbor, cause=policy.cause, message=message),
        valid=False,
        budget=policy.budget if budget is None else budget,
        most=policy.most,
        verdict=verdict,
    )


def read_result(body: Mapping[str, Any], *, trial: str, retry: int, sha256: str) -> Verdict:
    """A verdict from a ``result.json`` whose signature was checked.

    Raises:
        ContractBroken: it belongs to another trial or retry, or has no readable rewards.
    """
    extra = body.get("seatrial")
    extra = extra if isinstance(extra, dict) else {}
    if body.get("trial_name") != trial or extra.get("retry", retry) != retry:
        raise ContractBroken("the result belongs to another trial or retry")
    verifier_result = body.get("verifier_result")
    raw = verifier_result.get("rewards") if isinstance(verifier_result, dict) else None
    rewards = None if raw is None else read_rewards(raw)
    exception, error = body.get("exception_info"), None  # type: Any, ErrorInfo | None
    if isinstance(exception, dict):
        name = str(exception.get("exception_type", "UnknownException"))[:100]
        cause = extra.get("cause")
        error = ErrorInfo(
            type=name,
            cause=cause if cause in CAUSES else _cause_of(name),
            message=str(exception.get("exception_message", ""))[:ERROR_MESSAGE_CHARS],
        )
        if isinstance(extra.get("reason"), str):
            error["reason"] = extra["reason"][:100]
    elif extra.get("error") is not None:
        # An error of a step is not the trial's in Harbor's terms, and decides whether the rewards count all the same.
        error = read_error(extra["error"])
    return Verdict(
        trial=trial,
        retry=retry,
        rewards=rewards,
        rewards_elsewhere=False,
        error=error,
        stored=True,
        result_sha256=sha256,
        logs_sha256=logs if isinstance(logs := extra.get("logs_sha256"), str) and re.fullmatch(r"[0-9a-f]{64}", logs) else None,
        seconds={},
        tampered=extra.get("tampered") is True,
        leftover_processes=_count(extra, "leftover_processes"),
        changed_tools=_count(extra, "changed_tools"),
        is_disabled=extra.get("verification_disabled") is True,
        is_handed_over=extra.get("handed_over") is True,
        measures=read_measures(extra.get("measures") or {}),
        usage=_usage(body) if extra.get("verifies") is None else {},
    )


def _usage(body: Mapping[str, Any]) -> Mapping[str, float]:
    """Tokens and cost of a trial, or of its steps together."""
    steps = body.get("step_results")
    parts = [item for item in steps if isinstance(item, dict)] if isinstance(steps, list) else []
    return sum_usage([body.get("agent_result"), *(item.get("agent_result") for item in parts)])


def _count(extra: Mapping[str, Any], name: str) -> int:
    value = extra.get(name)
    return value if type(value) is int else 0


def _cause_of(error: str) -> Cause:
    policy = error_policy(error)
    if policy.grade and policy.valid:
        return "agent"
    return "infrastructure" if policy.retry else "verifier"


# --- 1: verdict ----------------------------------------------------------------------------------------------------------------------


def _verdict(pod: PodView, *, trial: str, retry: int) -> tuple[Verdict | None, str]:
    verifier = pod.container(VERIFIER)
    if verifier is None or verifier.phase != "terminated" or not verifier.message:
        return None, ""
    try:
        verdict = read_verdict(verifier.message)
    except ContractBroken as error:
        return None, f"the verifier's message is no verdict: {error}"
    if (verdict.trial, verdict.retry) != (trial, retry):
        return None, "the verdict belongs to another trial or retry"
    return verdict, ""


def _with_ends(verdict: Verdict, pod: PodView) -> Verdict:
    """What nobody in the Pod can see of the other containers' ends.

    The exit code of the user's own agent: one other than 0 is the agent's error. Why the environment exited: memory has a name of its own.
    """
    environment = pod.container(ENVIRONMENT)
    if environment is not None and environment.reason == "OOMKilled" and verdict.error is not None:
        if verdict.error.get("reason") != Reason.ENVIRONMENT_EXITED:
            return verdict
        message = f"{_killed_for_memory(environment)} ({verdict.error['message']})"
        policy = POLICIES[Reason.OOM_KILLED]
        return verdict._replace(
            error=ErrorInfo(type=policy.harbor, cause=policy.cause, message=message[:ERROR_MESSAGE_CHARS], reason=Reason.OOM_KILLED.value)
        )
    image, verifier = pod.container(AGENT_IMAGE), pod.container(VERIFIER)
    if verdict.error is not None or image is None or image.phase != "terminated" or not image.exit_code:
        return verdict
    if image.finished_at and verifier is not None and verifier.finished_at and image.finished_at > verifier.finished_at:
        return verdict  # it was ended with the Pod
    message = f"the agent's container ended with exit code {image.exit_code}"
    return verdict._replace(error=ErrorInfo(type="NonZeroAgentExitCodeError", cause="agent", message=message))


def _is_stopped(verdict: Verdict) -> bool:
    """The runner was told to stop: it does not know why, the Pod does."""
    error = verdict.error
    return error is not None and (error["type"] == CANCELLED_ERROR or error.get("reason") == INTERRUPTED)


def _verifier_ran(pod: PodView) -> bool:
    """Only then can a result be in the store."""
    verifier = pod.container(VERIFIER)
    return verifier is not None and (verifier.phase != "waiting" or verifier.started_at is not None)


# --- 2: stage ------------------------------------------------------------------------------------------------------------------------

_STAGE: Final[Mapping[int, tuple[Reason, str]]] = {
    StageExit.ARCHIVE_MISSING: (Reason.TASK_ARCHIVE_MISSING, "the task's archive is not in the object store; publish the task again"),
    StageExit.ARCHIVE_CORRUPT: (Reason.TASK_ARCHIVE_CORRUPT, "the archive's bytes are not those of its sha256; publish the task again"),
    StageExit.ARCHIVE_UNSAFE: (Reason.TASK_ARCHIVE_UNSAFE, "the archive has a member that must not be extracted; repack the task"),
    StageExit.STORE_UNAVAILABLE: (Reason.OBJECT_STORE_UNAVAILABLE, "the object store does not answer from the trial Pod"),
    StageExit.STORE_REFUSED: (Reason.OBJECT_STORE_REFUSED, "the object store refused the presigned URL"),
    StageExit.TASK_UNSUPPORTED: (Reason.UNSUPPORTED_TASK, "the task cannot be run by this version"),
    StageExit.DISK_FULL: (Reason.DISK_FULL, "the task volume has no room"),
}


def _stage_failure(pod: PodView, limits: Limits) -> Judgement | None:
    stage = pod.container(STAGE)
    if stage is None or stage.phase != "terminated" or stage.exit_code == 0 or pod.disruption or _pod_reason(pod) is not None:
        return None
    if (start := _terminated_start_failure(stage)) is not None:
        return start
    if stage.reason == "OOMKilled":
        return failure(Reason.OOM_KILLED, "container stage was killed for memory")
    if stage.exit_code in (137, 143):
        return None if pod.deleting else failure(Reason.CONTAINER_KILLED, f"container stage was killed (exit {stage.exit_code})")
    reason, text = _STAGE.get(stage.exit_code or 0, (Reason.RUNNER_CRASHED, f"container stage failed with exit {stage.exit_code}"))
    detail = stage_message(stage.message)
    waited = (stage.started_at - pod.created_at).total_seconds() if stage.started_at is not None and pod.created_at is not None else 0.0
    # Its URLs were made at its creation and count on the pending time: beyond it a queue is to blame, and the next Pod gets new ones.
    budget = Budget.FREE if reason is Reason.OBJECT_STORE_REFUSED and waited > limits.pending else None
    return failure(reason, f"{detail} ({text})" if detail else text, budget=budget)


def stage_message(text: str) -> str:
    """The text of ``{"message": …}``; anything else as it is, cut."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    message = body.get("message") if isinstance(body, dict) else None
    # Half of a surrogate pair is valid JSON and no text.
    return (message if isinstance(message, str) else text)[:400].encode(errors="replace").decode()


# --- 3: the Pod as a whole -----------------------------------------------------------------------------------------------------------

_DISRUPTIONS: Final[Mapping[str, Reason]] = {
    "PreemptionByScheduler": Reason.PREEMPTED,
    "EvictionByEvictionAPI": Reason.DRAINED,
    "DeletionByTaintManager": Reason.NODE_LOST,
    "DeletionByPodGC": Reason.NODE_LOST,
    "TerminationByKubelet": Reason.EVICTED,
}
_POD_REASONS: Final[Mapping[str, Reason]] = {
    "Preempting": Reason.PREEMPTED,
    "DeadlineExceeded": Reason.DEADLINE_EXCEEDED,
    "NodeLost": Reason.NODE_LOST,
    "Terminated": Reason.NODE_SHUTDOWN,
    "NodeShutdown": Reason.NODE_SHUTDOWN,
    "Shutdown": Reason.NODE_SHUTDOWN,
    "UnexpectedAdmissionError": Reason.NODE_REJECTED_POD,
    "NodeAffinity": Reason.NODE_REJECTED_POD,
    "TopologyAffinityError": Reason.NODE_REJECTED_POD,
    "PodOSNotSupported": Reason.NODE_REJECTED_POD,
}


def _pod_reason(pod: PodView) -> Reason | None:
    if pod.reason == "Evicted":
        # Node pressure marks its victims; a Pod over its own limits gets no mark and would fail again.
        return Reason.EVICTED if pod.disruption else Reason.STORAGE_LIMIT_EXCEEDED
    if pod.reason.startswith("OutOf"):
        return Reason.NODE_REJECTED_POD
    return _POD_REASONS.get(pod.reason)


def _pod_failure(pod: PodView, *, gone: bool) -> Judgement | None:
    if not (gone or pod.is_terminal):
        return None  # a disruption is announced before the Pod ends; its result may still come
    reason = _pod_reason(pod)
    if reason is None and pod.disruption:
        reason = _DISRUPTIONS.get(pod.disruption, Reason.EVICTED)
    if reason is None and any(item.reason == "ContainerStatusUnknown" for item in pod.containers if item.phase == "terminated"):
        reason = Reason.NODE_LOST
    if reason is None:
        return None
    text = pod.message or pod.disruption_message or f"the Pod ended with {pod.reason or pod.disruption or 'an unknown container status'}"
    return failure(reason, f"{text} (node {pod.node})" if pod.node else text)


# --- 4: start ------------------------------------------------------------------------------------------------------------------------

_NEVER_STARTS: Final = re.compile(r"not found|no such file|permission denied|exec format error|not a directory", re.IGNORECASE)

# NB: the order matters. A registry that cannot be reached says "no such host", one that wants a login also says "does not exist".
_PULL_TEXTS: Final[tuple[tuple[Reason, re.Pattern[str]], ...]] = (
    (Reason.IMAGE_RATE_LIMITED, re.compile(r"\b429\b|toomanyrequests|too many requests|rate limit", re.IGNORECASE)),
    (Reason.IMAGE_NO_SPACE, re.compile(r"no space left on device", re.IGNORECASE)),
    (
        Reason.REGISTRY_UNAVAILABLE,
        re.compile(
            r"no such host|dial tcp|i/o timeout|connection refused|connection reset|deadline exceeded|tls: |x509|server misbehaving"
            r"|\b50[0-4]\b|unexpected eof|network is unreachable|temporary failure",
            re.IGNORECASE,
        ),
    ),
    (Reason.IMAGE_ARCH_MISMATCH, re.compile(r"no match for platform|no matching manifest", re.IGNORECASE)),
    (Reason.IMAGE_AUTH_FAILED, re.compile(r"\b40[13]\b|unauthorized|denied|authentication required|insufficient_scope", re.IGNORECASE)),
    (Reason.IMAGE_NOT_FOUND, re.compile(r"not found|manifest unknown|name unknown|does not exist|\b404\b", re.IGNORECASE)),
)
_IMAGE_WAITS: Final = frozenset({Reason.IMAGE_RATE_LIMITED, Reason.REGISTRY_UNAVAILABLE, Reason.IMAGE_NO_SPACE})


def _start_failure(pod: PodView) -> Judgement | None:
    """A container that the runtime could not start; it is terminated at once and never runs."""
    return next((start for item in pod.containers if (start := _terminated_start_failure(item)) is not None), None)


def _terminated_start_failure(item: ContainerView) -> Judgement | None:
    if item.phase != "terminated" or item.reason not in ("StartError", "ContainerCannotRun"):
        return None
    return _container_start_error(item)


def _container_start_error(item: ContainerView) -> Judgement:
    budget = Budget.NONE if _NEVER_STARTS.search(item.message) else None
    return failure(Reason.CONTAINER_START_ERROR, f"container {item.name} could not start: {item.message or item.reason}", budget=budget)


def _waiting(pod: PodView, *, now: datetime, limits: Limits) -> Judgement | Waiting | None:
    """None when no container waits for anything but its turn."""
    if pod.is_terminal:
        return None
    if pod.scheduled_at is None and not pod.node:
        reason = Reason.QUEUED if pod.unscheduled == "SchedulingGated" else Reason.UNSCHEDULABLE
        message = pod.unscheduled_message or "the scheduler has not placed the Pod yet"
        # A queue controller decides by itself how long a Pod is held; that is not our pending time.
        since = pod.created_at if reason is Reason.UNSCHEDULABLE else None
        return _after(since, limits.pending, now=now, reason=reason, message=message, judgement=failure(reason, message))
    stage = pod.container(STAGE)
    if stage is not None and stage.phase == "running":
        return None  # the others wait for their turn
    worst: Judgement | Waiting | None = None
    for item in pod.containers:
        if item.phase != "waiting":
            continue
        state = _container_waiting(item, pod=pod, now=now, limits=limits)
        if isinstance(state, Judgement):
            return state
        worst = worst or state
    if not pod.containers:
        text = f"the kubelet of node {pod.node} has not reported on the Pod yet"
        judgement = failure(Reason.POD_START_TIMEOUT, text)
        worst = _after(pod.scheduled_at, limits.start, now=now, reason=Reason.POD_START_TIMEOUT, message=text, judgement=judgement)
    return worst


def _container_waiting(item: ContainerView, *, pod: PodView, now: datetime, limits: Limits) -> Judgement | Waiting:
    text = f"container {item.name}: {item.message or item.reason or 'starting'}"
    since = pod.scheduled_at or pod.created_at
    match item.reason:
        case "InvalidImageName":
            return failure(Reason.INVALID_IMAGE_NAME, text)
        case "ErrImageNeverPull":
            reason, seconds = Reason.IMAGE_NOT_PRESENT, limits.never_grace
        case "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "ImageInspectError" | "SignatureValidationFailed":
            reason = next((found for found, pattern in _PULL_TEXTS if pattern.search(item.message)), Reason.REGISTRY_UNAVAILABLE)
            seconds = min(limits.image_wait if reason in _IMAGE_WAITS else limits.image_grace, limits.pending)
        case "CreateContainerConfigError":
            reason, seconds = Reason.CONTAINER_CONFIG_ERROR, limits.config_grace
        case "CreateContainerError" | "RunContainerError":
            return _container_start_error(item)
        case _:  # ContainerCreating, PodInitializing
            if item.name != STAGE and (stage := pod.container(STAGE)) is not None and stage.phase != "waiting":
                # Pulling the other images is inside the Pod's deadline; stage has its own limits.
                started = stage.finished_at
                text = f"container {item.name} waits for its image, or for its start ({item.reason or 'not reported yet'})"
                seconds = max(limits.start, limits.image_wait)
                judgement = failure(Reason.POD_START_TIMEOUT, text)
                return _after(started, seconds, now=now, reason=Reason.IMAGE_PULLING, message=text, judgement=judgement)
            reason, seconds = Reason.POD_START_TIMEOUT, limits.start
    return _after(since, seconds, now=now, reason=reason, message=text, judgement=failure(reason, text))


def _after(
    since: datetime | None, seconds: float, *, now: datetime, reason: Reason, message: str, judgement: Judgement
) -> Judgement | Waiting:
    if since is None:
        return Waiting(reason, message)
    deadline = since.timestamp() + seconds
    if now.timestamp() >= deadline:
        return judgement
    return Waiting(reason, message, deadline=datetime.fromtimestamp(deadline, tz=now.tzinfo))


# --- 5: the environment is gone ------------------------------------------------------------------------------------------------------


def _environment_exited(pod: PodView, *, now: datetime, limits: Limits) -> Judgement | Waiting | None:
    """The environment's container ended while the verifier's runs. Where envd had connected the verifier knows, and ends soon."""
    environment, verifier = pod.container(ENVIRONMENT), pod.container(VERIFIER)
    if environment is None or environment.phase != "terminated" or verifier is None or verifier.phase != "running" or pod.deleting:
        return None
    started, finished = environment.started_at, environment.finished_at
    if environment.reason == "OOMKilled":
        reason, text = Reason.OOM_KILLED, _killed_for_memory(environment)
    else:
        reason = Reason.ENVIRONMENT_EXITED
        text = f"the environment exited with code {environment.exit_code}: its ENTRYPOINT must run its arguments or stay up"
    is_soon = started is None or finished is None or (finished - started).total_seconds() < limits.soon
    judgement = failure(reason, text)
    return _after(finished, limits.exited if is_soon else limits.evidence, now=now, reason=reason, message=text, judgement=judgement)


def _killed_for_memory(item: ContainerView) -> str:
    return f"container {item.name} was killed for memory (exit {item.exit_code}); raise its memory"


# --- 6: the end without a verdict ----------------------------------------------------------------------------------------------------


def _end_without_verdict(pod: PodView, *, gone: bool, note: str, stopped: Verdict | None) -> Judgement | None:
    verifier = pod.container(VERIFIER)
    ended = verifier is not None and verifier.phase == "terminated"
    if not (gone or pod.is_terminal or ended):
        return None
    if pod.deleting and not gone:
        return None  # somebody deletes the Pod: wait until it is gone, a result may come in its grace period
    for name in (ENVIRONMENT, AGENT, VERIFIER):
        item = pod.container(name)
        if item is not None and item.phase == "terminated" and item.reason == "OOMKilled":
            # NB: with cgroup v1 the reason comes with exit code 0, because only one process was killed.
            return failure(Reason.OOM_KILLED, _killed_for_memory(item))
    if stopped is not None and not (gone or pod.deleting or pod.is_terminal):
        return None  # SIGTERM reached the verifier first: the Pod's own end says why
    if verifier is not None and ended and stopped is None:
        if verifier.exit_code in (137, 143) and not pod.deleting:
            return failure(Reason.CONTAINER_KILLED, f"container verifier was killed (exit {verifier.exit_code})")
        if not pod.deleting:
            text = note or f"the verifier ended with exit {verifier.exit_code} and no verdict"
            return failure(Reason.VERDICT_MISSING, text)
    if gone or pod.deleting:
        return failure(Reason.POD_DELETED, f"Pod {pod.name} was deleted before its result was stored")
    if stopped is not None:
        return failure(Reason.CONTAINER_KILLED, "the containers were stopped from outside")
    return failure(Reason.VERDICT_MISSING, note or "the Pod ended without a verdict")
