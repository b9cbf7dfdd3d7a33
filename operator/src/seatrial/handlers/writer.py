"""Status writes: a merge patch of the difference, with the version it was computed from, and Events afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from seatrial.api.names import GROUP, PLURALS, VERSION
from seatrial.core.status import merge_difference, notices
from seatrial.effects.events import EventPoster
from seatrial.effects.execute import STRICT
from seatrial.effects.kube import MERGE_PATCH, Kube, group_path
from seatrial.effects.metrics import Metrics
from seatrial.errors import Conflict, NotFound, SeatrialError
from seatrial.handlers.cache import Key, ObjectCache, Raw

log = logging.getLogger(__name__)


class StatusWriter:
    """The one writer of statuses."""

    def __init__(self, kube: Kube, cache: ObjectCache, events: EventPoster, metrics: Metrics) -> None:
        self._kube, self._cache, self._events, self._metrics = kube, cache, events, metrics

    async def write(self, kind: str, body: Raw, status: Mapping[str, Any]) -> bool:
        """Patch the difference between the body's status and ``status``; nothing is sent when there is none.

        Returns:
            False if somebody changed the object first: the cache has the new one, and the key is queued again.

        Raises:
            Unavailable, Forbidden, Rejected: the API.
        """
        meta = body["metadata"]
        previous = body.get("status") or {}
        difference = merge_difference(previous, status)
        if not difference:
            return True
        namespace, name = meta["namespace"], meta["name"]
        path = group_path(GROUP, VERSION, PLURALS[kind], namespace=namespace, name=name)
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}, "status": difference}
        try:
            answer = await self._kube.request("PATCH", f"{path}/status", params=STRICT, body=patch, content_type=MERGE_PATCH)
        except NotFound:
            self._metrics.status_writes.labels(kind, "gone").inc()
            return True
        except Conflict:
            self._metrics.status_writes.labels(kind, "conflict").inc()
            await self._reread(kind, path, namespace, name)
            return False
        self._metrics.status_writes.labels(kind, "written").inc()
        self._cache.written(kind, answer)
        for notice in notices(previous, status):
            self._events.post(kind, meta, notice)
        return True

    def newest(self, kind: str, body: Raw) -> Raw:
        """The cached body of the same object, which may be newer than ``body``."""
        meta = body["metadata"]
        cached = self._cache.get(Key(kind, meta["namespace"], meta["name"]))
        return cached if cached is not None and cached["metadata"]["uid"] == meta["uid"] else body

    async def _reread(self, kind: str, path: str, namespace: str, name: str) -> None:
        began = time.monotonic()
        try:
            body: Raw | None = await self._kube.get(path)
        except NotFound:
            body = None
        except SeatrialError as error:
            log.warning("object not read after a conflict", extra={"object": f"{namespace}/{name}", "reason": type(error).__name__})
            raise
        self._cache.refresh(kind, namespace, name, body, began=began)
