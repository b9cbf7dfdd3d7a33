"""What a reason means for a trial: whether it may run again, on whose account, whose fault it is, and what Harbor calls it.

Why one table: retries, scores, status and metrics read the same lines. Source: ``spec/operator.md`` section 11 and, for errors that a
verdict reports, Harbor's own table (``seatrial.harbor_errors``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from seatrial.api.reasons import Reason
from seatrial.contract import Cause
from seatrial.harbor_errors import error_policy

POD_CAP: Final = 10
"""Pods per trial, whatever the reasons: free retries must end too. Pods taken away for a suspension do not count."""


class Budget(Enum):
    """Who pays for a further Pod of the trial."""

    FREE = "free"
    COUNTED = "counted"
    NONE = "none"


class Policy(NamedTuple):
    budget: Budget
    cause: Cause
    harbor: str
    """``exception_type`` in Harbor's terms: a name that Harbor knows, because an unknown one would count as a valid score there."""
    most: int | None = None
    """Retries for this reason within one trial; None means no limit of its own."""


_START: Final = "EnvironmentStartTimeoutError"
_IMAGE: Final = "SandboxBuildFailedError"
_OOM: Final = "SandboxLikelyOutOfMemoryError"
_LOST: Final = "GKEPodNotFoundError"
_REQUEST: Final = "RuntimeRequestError"

POLICIES: Final[Mapping[Reason, Policy]] = {
    # before the agent ran
    Reason.UNSCHEDULABLE: Policy(Budget.NONE, "infrastructure", _START),
    Reason.QUEUED: Policy(Budget.NONE, "infrastructure", _START),
    Reason.POD_REJECTED: Policy(Budget.NONE, "user", _START),
    Reason.NAME_CONFLICT: Policy(Budget.NONE, "user", _START),
    Reason.NODE_REJECTED_POD: Policy(Budget.FREE, "infrastructure", _START),
    Reason.IMAGE_BUILDING: Policy(Budget.NONE, "infrastructure", _IMAGE),
    Reason.IMAGE_BUILD_FAILED: Policy(Budget.NONE, "user", _IMAGE),
    Reason.IMAGE_BUILD_TIMEOUT: Policy(Budget.NONE, "user", _IMAGE),
    Reason.IMAGE_NOT_FOUND: Policy(Budget.NONE, "user", _IMAGE),
    Reason.IMAGE_AUTH_FAILED: Policy(Budget.NONE, "user", _IMAGE),
    Reason.IMAGE_ARCH_MISMATCH: Policy(Budget.NONE, "user", _IMAGE),
    Reason.IMAGE_RATE_LIMITED: Policy(Budget.COUNTED, "infrastructure", _IMAGE),
    Reason.REGISTRY_UNAVAILABLE: Policy(Budget.COUNTED, "infrastructure", _IMAGE),
    Reason.IMAGE_NO_SPACE: Policy(Budget.COUNTED, "infrastructure", _IMAGE),
    Reason.IMAGE_NOT_PRESENT: Policy(Budget.NONE, "user", _IMAGE),
    Reason.INVALID_IMAGE_NAME: Policy(Budget.NONE, "user", _IMAGE),
    Reason.CONTAINER_CONFIG_ERROR: Policy(Budget.NONE, "user", _START),
    Reason.CONTAINER_START_ERROR: Policy(Budget.COUNTED, "environment", _START),
    Reason.POD_START_TIMEOUT: Policy(Budget.COUNTED, "infrastructure", _START, most=1),
    Reason.TASK_ARCHIVE_MISSING: Policy(Budget.NONE, "user", _REQUEST),
    Reason.TASK_ARCHIVE_CORRUPT: Policy(Budget.FREE, "infrastructure", _REQUEST, most=2),
    Reason.TASK_ARCHIVE_UNSAFE: Policy(Budget.NONE, "user", _REQUEST),
    Reason.OBJECT_STORE_UNAVAILABLE: Policy(Budget.FREE, "infrastructure", _REQUEST),
    Reason.OBJECT_STORE_REFUSED: Policy(Budget.COUNTED, "infrastructure", _REQUEST),
    Reason.UNSUPPORTED_TASK: Policy(Budget.NONE, "user", "ServiceOperationsUnsupportedError"),
    Reason.DISK_FULL: Policy(Budget.COUNTED, "infrastructure", _REQUEST),
    Reason.SUSPENDED: Policy(Budget.FREE, "infrastructure", "CancelledError"),
    Reason.HANDED_OVER: Policy(Budget.FREE, "user", "CancelledError"),
    Reason.VALUE_ERROR: Policy(Budget.NONE, "user", "ValueError"),
    # while it ran
    Reason.EVICTED: Policy(Budget.FREE, "infrastructure", _LOST),
    Reason.STORAGE_LIMIT_EXCEEDED: Policy(Budget.COUNTED, "environment", _REQUEST, most=1),
    Reason.PREEMPTED: Policy(Budget.FREE, "infrastructure", _LOST),
    Reason.DRAINED: Policy(Budget.FREE, "infrastructure", _LOST),
    Reason.NODE_LOST: Policy(Budget.FREE, "infrastructure", _LOST),
    Reason.NODE_SHUTDOWN: Policy(Budget.FREE, "infrastructure", _LOST),
    Reason.ENVIRONMENT_EXITED: Policy(Budget.COUNTED, "environment", _LOST),
    Reason.OOM_KILLED: Policy(Budget.COUNTED, "environment", _OOM),
    Reason.DEADLINE_EXCEEDED: Policy(Budget.NONE, "environment", "VerifierTimeoutError"),
    Reason.POD_DELETED: Policy(Budget.COUNTED, "infrastructure", _LOST),
    Reason.CONTAINER_KILLED: Policy(Budget.COUNTED, "infrastructure", _LOST),
    Reason.VERDICT_MISSING: Policy(Budget.NONE, "verifier", "RewardFileNotFoundError"),
    Reason.RUNNER_CRASHED: Policy(Budget.COUNTED, "infrastructure", _REQUEST),
    Reason.REWARD_MISSING: Policy(Budget.NONE, "verifier", "RewardFileNotFoundError"),
    Reason.CANCELLED: Policy(Budget.NONE, "user", "CancelledError"),
}
"""Every reason a Pod can end with has exactly one line; a test holds that."""


class RetryRules(NamedTuple):
    """What the job says about further Pods."""

    most: int
    """Counted retries per trial."""
    include: Sequence[str]
    """Names that may be retried; empty means all."""
    exclude: Sequence[str]
    """Names that may not; beats ``include``."""
    overrides: Mapping[str, Mapping[str, bool]]
    """By error name: any of retry, grade, valid."""
    min_seconds: float
    max_seconds: float


class Past(NamedTuple):
    """What an earlier Pod of the trial ended with."""

    error: str
    budget: Budget


def may_retry(rules: RetryRules, *, error: str, harbor: str, budget: Budget, most: int | None, past: Sequence[Past]) -> bool:
    """Whether a trial that ended with ``error`` gets a further Pod.

    Args:
        rules: the job's.
        error: our name of the error; ``harbor`` is Harbor's name, and lists of the job may use either.
        budget: whose account the retry would be on.
        most: retries for this error in one trial, or None.
        past: the earlier Pods of the trial, without this one and without those of a suspension.
    """
    if budget is Budget.NONE or len(past) + 1 >= POD_CAP:
        return False
    names = {error, harbor}
    if names & set(rules.exclude) or (rules.include and not names & set(rules.include)):
        return False
    if any(rules.overrides.get(name, {}).get("retry") is False for name in names):
        return False
    if most is not None and sum(item.error == error for item in past) >= most:
        return False
    return budget is Budget.FREE or sum(item.budget is Budget.COUNTED for item in past) < rules.most


def verdict_budget(error: str, overrides: Mapping[str, Mapping[str, bool]]) -> Budget:
    """Budget for an error that the verdict reports: Harbor's table says whether a retry makes sense."""
    return Budget.COUNTED if error_policy(error, overrides).retry else Budget.NONE


def is_valid_reward(error: str | None, overrides: Mapping[str, Mapping[str, bool]]) -> bool:
    """Whether rewards beside this error count as a score."""
    return error is None or error_policy(error, overrides).valid


def backoff_seconds(rules: RetryRules, *, failures: int, seed: str) -> float:
    """Pause before the next Pod after ``failures`` (at least 1) failed ones: doubling, bounded, with jitter that ``seed`` fixes.

    The jitter is a function of the input, so that every pass computes the same time.
    """
    limit = min(rules.max_seconds, rules.min_seconds * 2.0 ** min(failures - 1, 30))
    share = hashlib.sha256(f"{seed}/{failures}".encode()).digest()[0] / 255
    return limit * (0.5 + 0.5 * share)
