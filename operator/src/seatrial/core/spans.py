"""The phases of a trial's Pod as spans in time: what traces show, and where durations of the Pod's own phases come from.

The Pod tells times in whole seconds. The verdict tells durations; its phases follow each other, so they are laid end to end from the moment
the runner started, which is exact but for what lies between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from seatrial.contract import ENVIRONMENT, VERIFIER
from seatrial.core.observe import PodView, parse_time
from seatrial.core.rows import Row

POD_PHASES: Final = ("scheduling", "sandbox", "stage", "pull", "start")
"""What the Pod tells, in whole seconds: until it has a node; until its first container runs, with volumes, network and the runner's image;
download and unpacking; until the environment runs, with the pull of the task's image and of an agent image; until all containers run."""
VERDICT_PHASES: Final = ("environment_setup", "agent_setup", "agent_execution", "verifier", "logs")
"""What a verdict tells, in their order; ``logs`` is the saving and upload of the evidence."""
TOTAL: Final = "total"
"""In a verdict: from the runner's start to the verdict."""
ROOT: Final = "trial"

Value = str | int | float | bool


class Span(NamedTuple):
    name: str
    begin: datetime
    end: datetime
    attributes: Mapping[str, Value] = {}


class Trace(NamedTuple):
    """One Pod of a trial. All Pods of a trial share the identity of their trace."""

    trace_id: bytes
    """Sixteen bytes."""
    root: Span
    phases: tuple[Span, ...]
    error: str
    """Type and message, or empty."""
    retry: int

    def span_id(self, name: str) -> bytes:
        """Eight bytes; the same whenever the same row is told again, so that nothing appears twice."""
        return hashlib.sha256(self.trace_id + f"{self.retry}/{name}".encode()).digest()[:8]


def pod_spans(pod: PodView) -> Iterator[Span]:
    """The phases that the Pod went through. Times of the API are whole seconds of two clocks: an end is never before its begin.

    The kubelet starts containers one after another and pulls the image of each before that; of the pull alone it tells only in Events.
    """
    staged, environment = pod.container("stage"), pod.container(ENVIRONMENT)
    begun, unpacked = (staged.started_at, staged.finished_at) if staged else (None, None)
    runs = environment.started_at if environment else None
    starts = [item.started_at for item in pod.containers if not item.init]
    moments = {
        "scheduling": (pod.created_at, pod.scheduled_at),
        "sandbox": (pod.scheduled_at, begun),
        "stage": (begun, unpacked),
        "pull": (unpacked, runs),
        "start": (runs, max((at for at in starts if at), default=None) if all(starts) else None),
    }
    for phase in POD_PHASES:
        begin, end = moments[phase]
        if begin is not None and end is not None:
            yield Span(phase, begin, max(begin, end))


def trace_of(row: Row, pod: PodView | None, *, namespace: str, job: str, uid: str) -> Trace | None:
    """The trace of an ended Pod; ``pod`` is its last view, if there is one. None where no Pod ran.

    Args:
        job, uid: of the EvalJob.
    """
    begin = (pod.created_at if pod is not None else None) or parse_time(row.started_at)
    if not row.pod or begin is None:
        return None
    verifier = pod.container(VERIFIER) if pod is not None else None
    end = max(begin, (verifier.finished_at if verifier is not None else None) or parse_time(row.ended_at) or begin)
    phases = [*(pod_spans(pod) if pod is not None else ()), *_verdict_spans(row.seconds, begin=begin, end=end)]
    reward = (row.rewards or {}).get("reward")
    optional: dict[str, Value | None] = {
        "seatrial.reward": float(reward) if reward is not None else None,
        "seatrial.cause": row.error.cause if row.error is not None else None,
        "error.type": row.error.type if row.error is not None else None,
        "seatrial.tampered": True if row.tampered else None,
        "k8s.node.name": pod.node or None if pod is not None else None,
        **{f"seatrial.usage.{name}": amount for name, amount in row.usage.items()},
    }
    attributes: dict[str, Value] = {
        "k8s.namespace.name": namespace,
        "k8s.pod.name": row.pod,
        "seatrial.job": job,
        "seatrial.job.uid": uid,
        "seatrial.trial": row.trial,
        "seatrial.retry": row.retry,
        "seatrial.outcome": row.outcome,
    }
    attributes |= {name: value for name, value in optional.items() if value is not None}
    return Trace(
        trace_id=hashlib.sha256(f"{uid}/{row.trial}".encode()).digest()[:16],
        root=Span(ROOT, begin, end, attributes),
        phases=tuple(phases),
        error=f"{row.error.type}: {row.error.message}" if row.error is not None and row.outcome != "scored" else "",
        retry=row.retry,
    )


def _verdict_spans(seconds: Mapping[str, float], *, begin: datetime, end: datetime) -> Iterator[Span]:
    """Durations of a Pod that may claim any: nothing lies outside the Pod's own time."""
    room = (end - begin).total_seconds()
    at = end - timedelta(seconds=min(seconds.get(TOTAL, sum(seconds.get(name, 0.0) for name in VERDICT_PHASES)), room))
    for name in VERDICT_PHASES:
        if name in seconds:
            after = min(end, at + timedelta(seconds=min(seconds[name], room)))
            yield Span(name, at, after)
            at = after
