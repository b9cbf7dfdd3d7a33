"""Asks Kueue for EvalJobs that name a queue: makes their Workloads, reads the answer, gives quota back.

Why by asking every few seconds and not by a watch: only jobs that name a queue are asked for, and their answer changes seldom.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from seatrial.api.evaljob import EvalJob
from seatrial.core.frozen import FrozenPlan
from seatrial.core.manifests import PodSettings
from seatrial.core.workload import (
    GROUP,
    PRIORITY_LABEL,
    VERSION,
    Admission,
    Priority,
    build_workload,
    finished,
    given_back,
    queue_of,
    read_admission,
    workload_name,
)
from seatrial.effects.clock import Clock
from seatrial.effects.kube import MERGE_PATCH, Kube, Rejected, group_path
from seatrial.errors import AlreadyExists, Conflict, NotFound

log = logging.getLogger(__name__)


class Workloads:
    """One Workload for each EvalJob with a queue; without Kueue it does nothing."""

    def __init__(self, kube: Kube, *, enabled: bool, pods: PodSettings, clock: Clock, ask_seconds: float) -> None:
        self._kube, self._enabled, self._pods, self._clock, self._ask_seconds = kube, enabled, pods, clock, ask_seconds
        self._known: dict[str, tuple[float, Admission]] = {}
        """By UID of the job: when it was asked for, and the answer."""
        self._done: set[str] = set()

    async def ask(self, job: EvalJob, plan: FrozenPlan) -> Admission | None:
        """What the queue says, at most ``ask_seconds`` old; None for a job that needs nobody's leave.

        Raises:
            Unavailable, Forbidden: the API.
        """
        queue = queue_of(job) if self._enabled else None
        if queue is None:
            return None
        uid, now = job.metadata.uid, self._clock.monotonic()
        asked, answer = self._known.get(uid, (now, None))
        if answer is None or now - asked >= self._ask_seconds:
            answer = await self._ask(job, plan, queue)
            self._known[uid] = (now, answer)
        return answer

    async def give_back(self, job: EvalJob) -> None:
        """The Pods of an evicted job are gone: let Kueue count without them.

        Raises:
            Unavailable, Forbidden: the API.
        """
        workload = await self._get(job.metadata.namespace, workload_name(job))
        if workload is not None and read_admission(workload).holds_quota:
            await self._write(workload, given_back(workload, self._clock.now()))
            self._known.pop(job.metadata.uid, None)

    async def finish(self, job: EvalJob, *, is_good: bool, message: str) -> None:
        """The job has ended, and its Pods are gone.

        Raises:
            Unavailable, Forbidden: the API.
        """
        uid = job.metadata.uid
        if not self._enabled or queue_of(job) is None or uid in self._done:
            return
        workload = await self._get(job.metadata.namespace, workload_name(job))
        status = finished(workload, self._clock.now(), is_good=is_good, message=message) if workload is not None else None
        if workload is None or status is None or await self._write(workload, status):
            self._done.add(uid)

    def forget(self, uid: str) -> None:
        """The job no longer exists, or ended."""
        self._known.pop(uid, None)

    async def _ask(self, job: EvalJob, plan: FrozenPlan, queue: str) -> Admission:
        namespace = job.metadata.namespace
        workload = await self._get(namespace, workload_name(job))
        if workload is None:
            wanted = build_workload(job, plan, self._pods, queue=queue, priority=await self._priority(job))
            try:
                workload = await self._kube.request("POST", group_path(GROUP, VERSION, "workloads", namespace=namespace), body=wanted)
            except NotFound:
                return Admission(False, 0, f"queue {queue}: this cluster has no Kueue", False)
            except (AlreadyExists, Rejected) as error:
                return Admission(False, 0, f"queue {queue}: {error}", False)
            log.info("workload created", extra={"job": str(job.key), "queue": queue})
        elif workload["spec"].get("active", True) == job.spec.suspend:
            path = group_path(GROUP, VERSION, "workloads", namespace=namespace, name=workload["metadata"]["name"])
            patch = {"metadata": {"uid": workload["metadata"]["uid"]}, "spec": {"active": not job.spec.suspend}}
            workload = await self._kube.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        return read_admission(workload)

    async def _priority(self, job: EvalJob) -> Priority | None:
        name = job.metadata.labels.get(PRIORITY_LABEL)
        if name is None:
            return None
        try:
            found = await self._kube.get(group_path(GROUP, VERSION, "workloadpriorityclasses", name=name))
        except NotFound:
            log.warning("no such priority class", extra={"job": str(job.key), "priority": name})
            return None
        return Priority(name, int(found["value"]))

    async def _get(self, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return await self._kube.get(group_path(GROUP, VERSION, "workloads", namespace=namespace, name=name))
        except NotFound:
            return None

    async def _write(self, workload: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Whether the status was written; False if somebody was faster, and then the next pass sees what."""
        meta = workload["metadata"]
        path = group_path(GROUP, VERSION, "workloads", namespace=meta["namespace"], name=meta["name"])
        patch = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": status}
        try:
            await self._kube.request("PATCH", f"{path}/status", body=patch, content_type=MERGE_PATCH)
        except (Conflict, NotFound):
            return False
        return True
