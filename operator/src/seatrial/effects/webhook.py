"""One CloudEvent for each EvalJob that ends, posted to an address of the site: for chat, dashboards, pipelines.

Why at most once and in the background: it must never delay a pass. Whoever needs every end watches the EvalJobs.
Source: CloudEvents 1.0, HTTP protocol binding, structured content mode.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from seatrial.api.names import API_VERSION, GROUP
from seatrial.effects.clock import Clock
from seatrial.effects.credentials import Headers
from seatrial.effects.metrics import Metrics
from seatrial.effects.post import post

log = logging.getLogger(__name__)

EVENT_TYPE: Final = f"{GROUP.partition('.')[2]}.{GROUP.partition('.')[0]}.evaljob.ended"
CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
PENDING: Final = 100
"""Posts at a time; more are dropped."""


class Webhook:
    """Posts ends of jobs; without an address it does nothing."""

    def __init__(self, url: str, *, headers: Headers, clock: Clock, metrics: Metrics, first_pause_seconds: float = 1.0) -> None:
        """``first_pause_seconds``: doubled with each further try."""
        self._url, self._headers, self._clock, self._metrics, self._pause = url, headers, clock, metrics, first_pause_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def job_ended(self, body: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Post in the background; failures are logged and counted only."""
        if not self._url:
            return
        if len(self._tasks) >= PENDING:
            self._metrics.webhooks.labels("dropped").inc()
            return
        task = asyncio.create_task(self._post(event(body, status, now=self._clock.now().isoformat())), name="webhook")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait for what is on its way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _post(self, content: Mapping[str, Any]) -> None:
        fault = await post(
            self._url,
            json.dumps(content).encode(),
            content_type=CONTENT_TYPE,
            headers=self._headers,
            may_retry=_may_retry,
            first_pause_seconds=self._pause,
        )
        self._metrics.webhooks.labels("failed" if fault else "posted").inc()
        if fault:
            log.warning("webhook not posted", extra={"job": content["subject"], "reason": fault})


def _may_retry(status: int) -> bool:
    return status >= 500 or status in (408, 429)


def event(body: Mapping[str, Any], status: Mapping[str, Any], *, now: str) -> dict[str, Any]:
    """The CloudEvent of a job that has ended."""
    meta = body["metadata"]
    finished: Mapping[str, Any] = next((item for item in status.get("conditions", ()) if item["type"] == "Finished"), {})
    return {
        "specversion": "1.0",
        "id": f"{meta['uid']}-ended",
        "source": f"/apis/{API_VERSION}/namespaces/{quote(meta['namespace'])}/evaljobs/{quote(meta['name'])}",
        "type": EVENT_TYPE,
        "subject": f"{meta['namespace']}/{meta['name']}",
        "time": now,
        "datacontenttype": "application/json",
        "data": {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "phase": status["phase"],
            "reason": finished.get("reason", ""),
            "message": finished.get("message", ""),
            **{
                name: status.get(name)
                for name in ("mean", "trials", "scores", "thresholds", "errors", "results", "startTime", "completionTime")
            },
        },
    }
