"""Kubernetes Events of our objects: few, bounded, never in the way of a pass.

Why rate limited by (object, reason): 10,000 trials with one fault must not become 10,000 Events in etcd.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
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


class EventPoster:
    """Posts to events.k8s.io/v1; repeats within ten seconds are dropped, later ones go into the series of the first."""

    def __init__(self, kube: Kube, *, clock: Clock, metrics: Metrics, instance: str) -> None:
        self._kube, self._clock, self._metrics, self._instance = kube, clock, metrics, instance[:128]
        self._last: dict[tuple[str, str], tuple[float, str, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, kind: str, metadata: Mapping[str, Any], notice: Notice) -> None:
        """Post in the background; failures are counted only."""
        key = (str(metadata["uid"]), notice.reason)
        moment = self._clock.monotonic()
        last = self._last.get(key)
        if (last is not None and moment - last[0] < INTERVAL_SECONDS) or len(self._tasks) >= PENDING:
            self._metrics.events_posted.labels("dropped").inc()
            return
        if len(self._last) >= REMEMBERED:
            self._last.pop(next(iter(self._last)))
        now = self._clock.now()
        digest = hashlib.sha256("/".join((*key, now.isoformat())).encode()).hexdigest()[:16]
        name, count = (last[1], last[2] + 1) if last else (f"{metadata['name'][:200]}.{digest}", 1)
        self._last[key] = (moment, name, count)
        coroutine = self._repeat(metadata, name, count, now) if last else self._create(kind, metadata, name, notice, now)
        task = asyncio.create_task(coroutine, name="event")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait for what is on its way."""
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

    async def _repeat(self, metadata: Mapping[str, Any], name: str, count: int, now: datetime) -> None:
        await self._send("PATCH", metadata["namespace"], name, {"series": {"count": count, "lastObservedTime": _micro(now)}})

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
