"""Kopf's part: login, settings, and one event handler per kind whose body cannot fail.

Why so little: with ``on.event`` alone Kopf writes nothing to any object: no finalizer, no annotation. Everything else is the queue's work.
Settings and their reasons: ``spec/operator.md`` section 3.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import kopf

from seatrial.api.names import EVALJOB, GROUP, PLURALS, TASK, TASKSET, VERSION
from seatrial.effects.kube import Access
from seatrial.handlers.cache import ObjectCache

TOKEN_LIFETIME: Final = timedelta(minutes=10)
"""The kubelet rotates tokens; Kopf asks for a new login when this has passed."""


class RetryForever:
    """Iterable without an end: Kopf retries API errors for ever instead of ending the process."""

    def __iter__(self) -> Iterator[float]:
        yield from (1, 1, 2, 3, 5, 8)
        while True:
            yield random.uniform(8.0, 15.0)


class GenerationDiffBase(kopf.AnnotationsDiffBaseStorage):
    """Remember only the generation, so that the stored essence cannot grow with the spec."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> Any:
        return {"spec": {"generation": body.metadata.get("generation")}}


class LeanProgress(kopf.AnnotationsProgressStorage):
    """Our essence holds no annotations: nothing to copy, nothing to clear."""

    def clear(self, *, essence: Any) -> Any:
        return essence


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf's settings for an operator that only listens."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.inactivity_timeout = 70
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 630
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    settings.watching.reconnect_backoff = 1
    settings.queueing.idle_timeout = 1
    settings.queueing.exit_timeout = 5
    settings.queueing.error_delays = (1, 2, 5, 10, 30)
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = RetryForever()
    settings.execution.default_backoff = 10
    settings.posting.enabled = False
    settings.posting.loggers = False
    # No object ever gets it; a name that is recognised makes a leak obvious.
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.persistence.diffbase_storage = GenerationDiffBase(prefix=GROUP, key="last-handled", v1=False)
    settings.persistence.progress_storage = LeanProgress(prefix=GROUP, v1=False)
    settings.background.instant_exit_timeout = 0.1
    settings.process.ultimate_exiting_timeout = 25
    return settings


def register(*, registry: kopf.OperatorRegistry, access: Access, cache: ObjectCache) -> None:
    """Wire Kopf's events to the cache, which fills the queue."""

    @kopf.on.login(registry=registry, id="login")
    def login(**_: object) -> kopf.ConnectionInfo:
        return connection(access)

    for kind in (TASK, TASKSET, EVALJOB):
        _listen(registry, cache, kind)


def _listen(registry: kopf.OperatorRegistry, cache: ObjectCache, kind: str) -> None:
    @kopf.on.event(GROUP, VERSION, PLURALS[kind], registry=registry, id=f"{kind.lower()}-changed")
    async def changed(type: str | None, event: Mapping[str, Any], **_: object) -> None:
        cache.observe(type, kind, event["object"])


def connection(access: Access) -> kopf.ConnectionInfo:
    """Our own access in Kopf's words."""
    token = access.token
    if access.token_file is not None:
        token = access.token_file.read_text().strip()
    expiration = datetime.now(UTC).replace(tzinfo=None) + TOKEN_LIFETIME if access.token_file is not None else None
    material = access.material
    return kopf.ConnectionInfo(
        server=access.server,
        token=token,
        ca_data=_encoded(material.authority),
        insecure=material.insecure,
        certificate_data=_encoded(material.certificate),
        private_key_data=_encoded(material.key),
        expiration=expiration,
    )


def _encoded(data: bytes | None) -> str | None:
    return base64.b64encode(data).decode() if data else None
