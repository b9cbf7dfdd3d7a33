"""One active replica, elected with a Lease.

Why our own 100 lines: the electors of the Python clients go on leading after they lost the API server. Losing the Lease ends the process
at once, because a process that stalled must not send what it had in flight. Safety against two writers comes from preconditions on every
write, not from here. Source: ``spec/operator.md`` section 8.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from seatrial.effects.clock import boot_seconds
from seatrial.effects.kube import Kube, group_path
from seatrial.errors import AlreadyExists, Conflict, NotFound, SeatrialError

log = logging.getLogger(__name__)

TRY_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    namespace: str
    name: str
    identity: str
    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


def end_process() -> None:
    """Without unwinding: writes in flight must not run on."""
    os._exit(1)


class Elector:
    """Acquires, renews and releases one Lease."""

    def __init__(
        self,
        kube: Kube,
        settings: LeaseSettings,
        *,
        lost: Callable[[], None] = end_process,
        clock: Callable[[], float] = boot_seconds,
        changed: Callable[[bool], None] | None = None,
    ) -> None:
        self._kube, self._settings, self._lost, self._clock, self._changed = kube, settings, lost, clock, changed
        self._path = group_path("coordination.k8s.io", "v1", "leases", namespace=settings.namespace)
        self._object = f"{self._path}/{settings.name}"
        self._seen: tuple[str, str] | None = None
        self._seen_at = self._until = 0.0
        self.is_leader = False

    def holds(self) -> bool:
        """Whether nobody else can lead yet, by the last renewal: a process that was paused must not write when it wakes."""
        return self.is_leader and self._clock() < self._until

    async def acquire(self) -> None:
        """Return when we hold the Lease."""
        while True:
            begun = self._clock()
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    if await self._try_acquire():
                        break
            except (SeatrialError, TimeoutError) as error:
                log.warning("lease not acquired", extra={"reason": type(error).__name__, "error": str(error)})
            await asyncio.sleep(self._settings.retry_seconds * random.uniform(0.8, 1.2))
        self._until = begun + self._settings.renew_deadline_seconds
        self._set(True)
        log.info("elected", extra={"identity": self._settings.identity})

    async def run(self) -> None:
        """Renew for ever; ``lost`` is called when that fails for too long or somebody else holds the Lease."""
        while True:
            await asyncio.sleep(self._settings.retry_seconds)
            begun = self._clock()
            try:
                async with asyncio.timeout(max(0.0, min(self._until - begun, TRY_SECONDS))):
                    held = await self._renew()
                # From before the request: others count from when the API server had it, which is later.
                self._until = begun + self._settings.renew_deadline_seconds
            except (SeatrialError, TimeoutError) as error:
                log.warning("lease not renewed", extra={"reason": type(error).__name__, "error": str(error)})
                held = self._clock() < self._until
            if not held:
                log.error("lease lost, ending the process", extra={"identity": self._settings.identity})
                self._set(False)
                self._lost()
                return

    async def release(self) -> None:
        """Give the Lease back, so that the other replica need not wait; errors only cost that wait."""
        self._set(False)
        try:
            async with asyncio.timeout(TRY_SECONDS):
                body = await self._kube.get(self._object, channel="lease")
                if body["spec"].get("holderIdentity") != self._settings.identity:
                    return
                body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._kube.request("PUT", self._object, body=body, channel="lease")
                log.info("lease released")
        except (SeatrialError, TimeoutError) as error:
            log.warning("lease not released", extra={"reason": type(error).__name__, "error": str(error)})

    async def _try_acquire(self) -> bool:
        try:
            body = await self._kube.get(self._object, channel="lease")
        except NotFound:
            return await self._create()
        spec = body.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        # NB: renewTime is only compared for a change, on our own clock: the clocks of two machines differ.
        pair = (holder, spec.get("renewTime") or "")
        if pair != self._seen:
            self._seen, self._seen_at = pair, self._clock()
        silent = self._clock() - self._seen_at
        if holder not in ("", self._settings.identity) and silent < float(spec.get("leaseDurationSeconds") or 0):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        body["spec"] = self._spec(transitions=transitions, acquired=_now())
        try:
            await self._kube.request("PUT", self._object, body=body, channel="lease")
        except Conflict:
            return False
        return True

    async def _create(self) -> bool:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            "spec": self._spec(transitions=0, acquired=_now()),
        }
        try:
            await self._kube.request("POST", self._path, body=body, channel="lease")
        except AlreadyExists:
            return False
        return True

    async def _renew(self) -> bool:
        """False when somebody else holds the Lease; a lost race with our own earlier write is only a failed try."""
        body = await self._kube.get(self._object, channel="lease")
        if (body.get("spec") or {}).get("holderIdentity") != self._settings.identity:
            return False
        body["spec"]["renewTime"] = _now()
        await self._kube.request("PUT", self._object, body=body, channel="lease")
        return True

    def _spec(self, *, transitions: int, acquired: str) -> dict[str, Any]:
        return {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": max(1, round(self._settings.duration_seconds)),
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }

    def _set(self, leading: bool) -> None:
        self.is_leader = leading
        if self._changed is not None:
            self._changed(leading)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
