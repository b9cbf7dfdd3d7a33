"""Kubernetes Events of our objects: few, bounded, never in the way of a pass, and no warning lost among them.

Why rate limited by (object, reason): 10,000 trials with one fault must not become 10,000 Events in etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from seatrial.api.meta import StatusText
from seatrial.api.names import API_VERSION
from seatrial.core.status import Notice
from seatrial.effects.clock import Clock
from seatrial.effects.kube import MERGE_PATCH, Kube, group_path
from seatrial.effects.metrics import Metrics
from seatrial.errors import AlreadyExists, SeatrialError

log = logging.getLogger(__name__)

NOTE_BYTES: Final = 1024
INTERVAL_SECONDS: Final = 10.0
REMEMBERED: Final = 10_000
PENDING: Final = 200
"""Posts at a time; more are dropped."""


@dataclass(slots=True)
class _Series:
    """One Event and its repeats."""

    name: str
    count: int
    posted_at: float
    held: bool = False
    """Warnings came too soon after the last post; one for all of them is on its way."""


class EventPoster:
    """Posts to events.k8s.io/v1. A repeat goes into the series of the first Event, at most once in ten seconds: an earlier one is dropped,
    unless it is a warning, which is counted in the next post."""

    def __init__(self, kube: Kube, *, clock: Clock, metrics: Metrics, instance: str, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._kube, self._clock, self._metrics, self._instance = kube, clock, metrics, instance[:128]
        self._interval = interval_seconds
        self._series: dict[tuple[str, str], _Series] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing = asyncio.Event()

    def post(self, kind: str, metadata: Mapping[str, Any], notice: Notice) -> None:
        """Post in the background; failures are counted only."""
        key = (str(metadata["uid"]), notice.reason)
        moment = self._clock.monotonic()
        series = self._series.get(key)
        is_soon = series is not None and moment - series.posted_at < self._interval
        if is_soon and not notice.warning:
            self._metrics.events_posted.labels("dropped").inc()
            return
        if series is not None and is_soon:
            series.count += 1
            if not series.held:
                series.held = True
                self._start(self._repeat_later(metadata, series))
            return
        if len(self._tasks) >= PENDING:
            self._metrics.events_posted.labels("dropped").inc()
            if notice.warning:
                log.warning("event dropped", extra={"object": metadata["name"], "reason": notice.reason})
            return
        now = self._clock.now()
        if series is not None:
            series.count, series.posted_at = series.count + 1, moment
            self._start(self._repeat(metadata, series))
            return
        if len(self._series) >= REMEMBERED:
            self._series.pop(next(iter(self._series)))
        digest = hashlib.sha256("/".join((*key, now.isoformat())).encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200]}.{digest}"
        self._series[key] = _Series(name, 1, moment)
        self._start(self._create(kind, metadata, name, notice, now))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="event")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait for what is on its way; what is held goes at once."""
        self._flushing.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _create(self, kind: str, metadata: Mapping[str, Any], name: str, notice: Notice, now: datetime) -> None:
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": _micro(now),
            "reportingController": "seatrial.dev/operator",
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "reason": notice.reason,
            "type": "Warning" if notice.warning else "Normal",
            "note": StatusText.cut(notice.note, NOTE_BYTES) or notice.reason,
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": kind,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        await self._send("POST", metadata["namespace"], None, body)

    async def _repeat_later(self, metadata: Mapping[str, Any], series: _Series) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._flushing.wait(), series.posted_at + self._interval - self._clock.monotonic())
        series.held, series.posted_at = False, self._clock.monotonic()
        await self._repeat(metadata, series)

    async def _repeat(self, metadata: Mapping[str, Any], series: _Series) -> None:
        body = {"series": {"count": series.count, "lastObservedTime": _micro(self._clock.now())}}
        await self._send("PATCH", metadata["namespace"], series.name, body)

    async def _send(self, method: str, namespace: str, name: str | None, body: Mapping[str, Any]) -> None:
        path = group_path("events.k8s.io", "v1", "events", namespace=namespace, name=name)
        content_type = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            await self._kube.request(method, path, body=body, content_type=content_type)
            self._metrics.events_posted.labels("posted").inc()
        except AlreadyExists:
            self._metrics.events_posted.labels("posted").inc()
        except SeatrialError as error:
            self._metrics.events_posted.labels("failed").inc()
            log.debug("event not posted", extra={"reason": type(error).__name__})


def _micro(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
