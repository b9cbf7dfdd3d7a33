"""Frozen, reduced copies of Pods.

Why: a Pod from the API is 15 KB of JSON and arrives about eight times per trial; a view has only what the decisions read, takes
microseconds to make and can be compared with ``==``. ``None`` means that the cluster did not say so; it is kept apart from empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from seatrial.api.names import LABEL_JOB, LABEL_RETRY, LABEL_ROLE, LABEL_TRIAL

# Verdicts need 1,024 bytes; waiting messages are cut to what a person reads.
MESSAGE_CHARS: Final = 1200

ContainerPhase = Literal["waiting", "running", "terminated"]


@dataclass(frozen=True, slots=True)
class ContainerView:
    name: str
    init: bool
    phase: ContainerPhase
    reason: str
    """Of waiting or terminated; empty while it runs."""
    message: str
    exit_code: int | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class PodView:
    name: str
    namespace: str
    uid: str
    owner_uid: str
    """UID of the controlling owner, or empty."""
    job_uid: str
    role: str
    trial: str
    retry: int
    phase: str
    """As the API says: Pending, Running, Succeeded, Failed, Unknown."""
    reason: str
    message: str
    deletion_due: datetime | None
    """When the Pod should be gone at the latest: its deletionTimestamp plus the grace period once more, as the API server's quota
    reckons. None while nobody deletes it."""
    created_at: datetime | None
    node: str
    scheduled_at: datetime | None
    """When PodScheduled became True; None while it is not."""
    unscheduled: str
    """Reason of PodScheduled=False (Unschedulable, SchedulingGated), or empty."""
    unscheduled_message: str
    disruption: str
    """Reason of the condition DisruptionTarget, or empty."""
    disruption_message: str
    containers: tuple[ContainerView, ...]

    def container(self, name: str) -> ContainerView | None:
        """By name, never by index."""
        # A loop: a pass over ten thousand live Pods asks sixty thousand times.
        for item in self.containers:
            if item.name == name:
                return item
        return None

    @property
    def deleting(self) -> bool:
        return self.deletion_due is not None

    @property
    def is_terminal(self) -> bool:
        """No container runs any more, so the Pod holds no resources."""
        return self.phase in ("Succeeded", "Failed")


def parse_pod(body: Mapping[str, Any]) -> PodView:
    """The view of one Pod as the API gives it. Never raises on odd content: the API server has checked types."""
    meta, status = body.get("metadata", {}), body.get("status", {})
    labels = meta.get("labels") or {}
    scheduled_at, unscheduled, unscheduled_message, disruption, disruption_message = None, "", "", "", ""
    for condition in status.get("conditions") or ():
        match condition.get("type"), condition.get("status"):
            case "PodScheduled", "True":
                scheduled_at = parse_time(condition.get("lastTransitionTime"))
            case "PodScheduled", "False":
                unscheduled = condition.get("reason", "")
                unscheduled_message = _cut(condition.get("message"))
            case "DisruptionTarget", "True":
                disruption = condition.get("reason", "") or "DisruptionTarget"
                disruption_message = _cut(condition.get("message"))
    containers = [_container(item, init=True) for item in status.get("initContainerStatuses") or ()]
    containers += [_container(item, init=False) for item in status.get("containerStatuses") or ()]
    owners = meta.get("ownerReferences") or ()
    retry = labels.get(LABEL_RETRY, "")
    return PodView(
        name=meta.get("name", ""),
        namespace=meta.get("namespace", ""),
        uid=meta.get("uid", ""),
        owner_uid=next((owner.get("uid", "") for owner in owners if owner.get("controller")), ""),
        job_uid=labels.get(LABEL_JOB, ""),
        role=labels.get(LABEL_ROLE, ""),
        trial=labels.get(LABEL_TRIAL, ""),
        retry=int(retry) if retry.isascii() and retry.isdigit() and len(retry) < 6 else -1,
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or "",
        message=_cut(status.get("message")),
        deletion_due=_deletion_due(meta),
        created_at=parse_time(meta.get("creationTimestamp")),
        node=(body.get("spec") or {}).get("nodeName") or "",
        scheduled_at=scheduled_at,
        unscheduled=unscheduled,
        unscheduled_message=unscheduled_message,
        disruption=disruption,
        disruption_message=disruption_message,
        containers=tuple(containers),
    )


def _deletion_due(meta: Mapping[str, Any]) -> datetime | None:
    at = parse_time(meta.get("deletionTimestamp"))
    return at + timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0) if at else None


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time of the API, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def format_time(value: datetime) -> str:
    """As the API writes times: UTC, whole seconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _container(item: Mapping[str, Any], *, init: bool) -> ContainerView:
    state = item.get("state") or {}
    phase: ContainerPhase = "terminated" if "terminated" in state else "running" if "running" in state else "waiting"
    detail = state.get(phase) or {}
    return ContainerView(
        name=item.get("name", ""),
        init=init,
        phase=phase,
        reason=detail.get("reason") or "",
        message=_cut(detail.get("message")),
        exit_code=detail.get("exitCode"),
        started_at=parse_time(detail.get("startedAt")),
        finished_at=parse_time(detail.get("finishedAt")),
    )


def _cut(text: str | None) -> str:
    return (text or "")[:MESSAGE_CHARS]
