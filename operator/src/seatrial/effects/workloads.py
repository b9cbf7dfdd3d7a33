"""Asks Kueue for EvalJobs that name a queue: makes their Workloads, reads the answer, gives quota back.

Why by asking every few seconds and not by a watch: only jobs that name a queue are asked for, and their answer changes seldom. A job stays
in the queue as long as its Workload is there: taking the label away neither frees it nor leaves quota behind.
"""

from __future__ import annotations

import asyncio
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
    is_of,
    largest_requests,
    mended_spec,
    pod_count,
    queue_of,
    read_admission,
    started,
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
        self._requests: dict[str, Mapping[str, str]] = {}
        """By UID of the job; neither its tasks nor what they get ever change."""
        self._free: set[str] = set()
        """UIDs of jobs that were found to have no Workload, and name no queue."""
        self._done: dict[tuple[str, str], str] = {}
        """UIDs of ended jobs whose Workloads say so, by namespace and name."""

    async def ask(self, job: EvalJob, plan: FrozenPlan) -> Admission | None:
        """What the queue says, at most ``ask_seconds`` old; None for a job that needs nobody's leave.

        Raises:
            Unavailable, Forbidden: the API.
        """
        uid, queue = job.metadata.uid, queue_of(job)
        if not self._enabled or (queue is None and uid in self._free) or not pod_count(job, plan):
            return None
        now = self._clock.monotonic()
        asked, answer = self._known.get(uid, (now, None))
        if answer is None or now - asked >= self._ask_seconds:
            answer = await self._ask(job, plan, queue)
            if answer is None:
                self._free.add(uid)
                return None
            self._known[uid] = (now, answer)
        return answer

    async def start(self, job: EvalJob) -> None:
        """Trials of the job run.

        Raises:
            Unavailable, Forbidden: the API.
        """
        workload = await self._own(job)
        if workload is not None and read_admission(workload).is_admitted:
            await self._write(workload, started(workload, self._clock.now()))
            self._known.pop(job.metadata.uid, None)

    async def give_back(self, job: EvalJob) -> None:
        """The Pods of an evicted job are gone: let Kueue count without them.

        Raises:
            Unavailable, Forbidden: the API.
        """
        workload = await self._own(job)
        if workload is not None and read_admission(workload).holds_quota:
            await self._write(workload, given_back(workload, self._clock.now()))
            self._known.pop(job.metadata.uid, None)

    async def finish(self, job: EvalJob, *, is_good: bool, message: str) -> bool:
        """The job has ended, and its Pods are gone. False: somebody else wrote the Workload at the same time; come again.

        Raises:
            Unavailable, Forbidden: the API.
        """
        meta = job.metadata
        if not self._enabled or self._done.get((meta.namespace, meta.name)) == meta.uid:
            return True
        workload = await self._own(job)
        status = finished(workload, self._clock.now(), is_good=is_good, message=message) if workload is not None else None
        if workload is not None and status is not None and not await self._write(workload, status):
            return False
        self._done[meta.namespace, meta.name] = meta.uid
        return True

    def forget(self, uid: str) -> None:
        """The job no longer exists, or ended."""
        self._known.pop(uid, None)
        self._requests.pop(uid, None)
        self._free.discard(uid)

    def vanished(self, namespace: str, name: str) -> None:
        """The job no longer exists."""
        self._done.pop((namespace, name), None)

    async def _ask(self, job: EvalJob, plan: FrozenPlan, queue: str | None) -> Admission | None:
        namespace, name = job.metadata.namespace, workload_name(job)
        workload = await self._get(namespace, name)
        if workload is None and queue is None:
            return None
        if workload is not None and not is_of(workload, job):
            return Admission(False, 0, f"Workload {name} is not of this job: delete it", False)
        queue = queue or (workload["spec"]["queueName"] if workload is not None else "")
        if (requests := self._requests.get(job.metadata.uid)) is None:
            requests = self._requests[job.metadata.uid] = await asyncio.to_thread(largest_requests, job.spec, plan, self._pods)
        wanted = build_workload(job, plan, requests, queue=queue, priority=await self._priority(job) if workload is None else None)
        if workload is None:
            try:
                workload = await self._kube.request("POST", group_path(GROUP, VERSION, "workloads", namespace=namespace), body=wanted)
            except NotFound:
                return Admission(False, 0, f"queue {queue}: this cluster has no Kueue", False)
            except (AlreadyExists, Rejected) as error:
                return Admission(False, 0, f"queue {queue}: {error}", False)
            log.info("workload created", extra={"job": str(job.key), "queue": queue})
        elif changes := mended_spec(workload, wanted):
            try:
                workload = await self._patch(workload, "", {"spec": changes})
            except (Conflict, NotFound, Rejected) as error:
                return Admission(False, 0, f"queue {queue}: {error}", False)
            log.info("workload changed", extra={"job": str(job.key), "queue": queue})
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

    async def _own(self, job: EvalJob) -> dict[str, Any] | None:
        workload = await self._get(job.metadata.namespace, workload_name(job))
        return workload if workload is not None and is_of(workload, job) else None

    async def _write(self, workload: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Whether the status was written; False if somebody was faster, and then the next pass sees what."""
        try:
            await self._patch(workload, "/status", {"status": status})
        except Conflict:
            return False
        except NotFound:
            pass
        return True

    async def _patch(self, workload: Mapping[str, Any], subresource: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Only of what was read: somebody else's change since then is a conflict."""
        meta = workload["metadata"]
        path = group_path(GROUP, VERSION, "workloads", namespace=meta["namespace"], name=meta["name"])
        patch = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, **changes}
        return await self._kube.request("PATCH", f"{path}{subresource}", body=patch, content_type=MERGE_PATCH)
