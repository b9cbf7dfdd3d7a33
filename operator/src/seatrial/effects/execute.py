"""Run the actions of a plan; each is idempotent or preconditioned, so that a crash or a second writer does no harm."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from seatrial import __version__
from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.names import EVALJOB, GROUP, LABEL_RETRY, LABEL_TRIAL, PLURALS, VERSION
from seatrial.api.reasons import Reason
from seatrial.contract import encode_input
from seatrial.core import naming
from seatrial.core.actions import CreatePod, DeletePod
from seatrial.core.frozen import FrozenPlan, ImageRole, with_images
from seatrial.core.manifests import (
    AgentsWork,
    ResourceModeWithoutValue,
    Urls,
    build_secret,
    build_trial_pod,
    build_verify_pod,
    url_seconds,
    volume_limits,
)
from seatrial.core.observe import PodView, parse_pod
from seatrial.core.plan import Hold
from seatrial.core.trial import Judgement, failure
from seatrial.core.trial_input import MissingVariable, build_input
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.clock import Clock
from seatrial.effects.kube import ApiUnavailable, Kube, MissingRight, QuotaExceeded, Rejected, core_path, group_path
from seatrial.effects.metrics import Metrics
from seatrial.effects.settings import Settings
from seatrial.effects.store import MAX_EXPIRES_SECONDS
from seatrial.errors import AlreadyExists, Conflict, NotFound

HOLD_SECONDS: Final = 30.0
STRICT: Final = {"fieldValidation": "Strict"}


@dataclass(frozen=True, slots=True)
class Created:
    """The Pod exists and is ours."""

    pod: PodView


@dataclass(frozen=True, slots=True)
class Leaving:
    """A Pod of that name is ours and is being deleted: wait for its end."""

    pod: PodView


@dataclass(frozen=True, slots=True)
class Refused:
    """This trial gets no Pod; its siblings may."""

    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Held:
    """Nobody of this job gets a Pod for a while."""

    hold: Hold


Outcome = Created | Leaving | Refused | Held


class Executor:
    """Does what plans ask for."""

    def __init__(self, kube: Kube, store: AsyncStore, *, settings: Settings, clock: Clock, metrics: Metrics) -> None:
        self._kube, self._store, self._settings, self._clock, self._metrics = kube, store, settings, clock, metrics
        self._secrets: set[str] = set()

    async def ensure_secret(self, plan: FrozenPlan) -> Held | None:
        """The job's Secret exists afterwards. Its name holds the job's UID and only we create it: a 409 is our own.

        Raises:
            NamespaceGone: the job goes away. Unavailable: try again.
        """
        if plan.uid in self._secrets:
            return None
        body = build_secret(
            namespace=plan.namespace,
            name=naming.secret_name(plan.job, plan.uid),
            job=plan.job,
            job_uid=plan.uid,
            key_base64=base64.b64encode(self._settings.job_key(plan.uid)).decode(),
        )
        try:
            await self._kube.request("POST", core_path("secrets", namespace=plan.namespace), params=STRICT, body=body)
        except AlreadyExists:
            pass
        except (QuotaExceeded, MissingRight) as error:
            return self.held(error)
        self._secrets.add(plan.uid)
        return None

    def forget(self, job_uid: str) -> None:
        self._secrets.discard(job_uid)

    async def create(self, plan: FrozenPlan, spec: EvalJobSpec, action: CreatePod, *, images: Mapping[ImageRole, str]) -> Outcome:
        """Create the Pod of one retry; ``images`` are those that the cluster has built for the task.

        Raises:
            NamespaceGone: the job goes away. Unavailable: the outcome is unknown; the same action may be repeated.
        """
        try:
            body = self._manifest(plan, spec, action, images)
        except (MissingVariable, ResourceModeWithoutValue) as error:
            return Refused(failure(Reason.VALUE_ERROR, str(error)))
        except ValueError as error:  # the encoded input is too long
            return Refused(failure(Reason.UNSUPPORTED_TASK, str(error)))
        try:
            created = await self._kube.request("POST", core_path("pods", namespace=plan.namespace), params=STRICT, body=body)
        except AlreadyExists:
            return await self._compare(plan, action)
        except (QuotaExceeded, MissingRight) as error:
            return self.held(error)
        except Rejected as error:
            return Refused(failure(Reason.POD_REJECTED, str(error)))
        self._metrics.pods_created.inc()
        return Created(parse_pod(created))

    async def delete(self, namespace: str, action: DeletePod) -> None:
        """Delete exactly the Pod that was seen; one that is gone, or another one of that name, is success.

        Raises:
            Unavailable, Forbidden: try again.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "gracePeriodSeconds": action.grace_seconds,
            "preconditions": {"uid": action.uid},
        }
        try:
            await self._kube.request("DELETE", core_path("pods", namespace=namespace, name=action.pod), body=body)
        except (NotFound, Conflict):
            return
        self._metrics.pods_deleted.inc()

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """Delete an EvalJob whose time to live is over."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        path = group_path(GROUP, VERSION, PLURALS[EVALJOB], namespace=namespace, name=name)
        try:
            await self._kube.request("DELETE", path, body=body)
        except (NotFound, Conflict):
            return

    async def newest_warning(self, namespace: str, pod: str) -> str:
        """Text of the newest Warning about a Pod: volume, sandbox and network faults are visible only there. Empty without one."""
        params = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={pod},type=Warning", "limit": "50"}
        try:
            page = await self._kube.get(core_path("events", namespace=namespace), params)
        except (MissingRight, NotFound, Rejected):
            return ""
        items = sorted(page.get("items") or (), key=lambda item: str(item.get("lastTimestamp") or item.get("eventTime") or ""))
        return f"{items[-1].get('reason', '')}: {items[-1].get('message', '')}"[:500] if items else ""

    def held(self, error: QuotaExceeded | MissingRight) -> Held:
        """Nobody of the job gets a Pod for a while."""
        reason = Reason.QUOTA_EXCEEDED if isinstance(error, QuotaExceeded) else Reason.FORBIDDEN
        return Held(Hold(reason, str(error), self._clock.now() + timedelta(seconds=HOLD_SECONDS)))

    def _manifest(self, plan: FrozenPlan, spec: EvalJobSpec, action: CreatePod, images: Mapping[ImageRole, str]) -> dict[str, Any]:
        trial, retry, pods = action.trial, action.retry, self._settings.pods()
        plan = with_images(plan, trial.task, images)
        task = plan.tasks[trial.task]
        seconds = min(url_seconds(task, spec, pods), MAX_EXPIRES_SECONDS)
        prefix = naming.job_prefix(plan.namespace, plan.job, plan.uid)
        work = None
        if (agent_row := action.verifies) is not None:
            work = AgentsWork(
                logs=self._store.presign_get(naming.logs_key(prefix, trial.name, agent_row.retry), expires_seconds=seconds),
                logs_sha256=agent_row.logs_sha256 or "",
                result=self._store.presign_get(naming.result_key(prefix, trial.name, agent_row.retry), expires_seconds=seconds),
            )
        source = None
        if spec.agent.source is not None and action.verifies is None:
            source = self._store.presign_get(naming.archive_key(spec.agent.source.ref), expires_seconds=seconds)
        urls = Urls(
            work=work,
            source=source,
            archive=self._store.presign_get(task.archive_key, expires_seconds=seconds),
            logs=self._store.presign_put(naming.logs_key(prefix, trial.name, retry), expires_seconds=seconds),
            result=self._store.presign_put(naming.result_key(prefix, trial.name, retry), expires_seconds=seconds),
        )
        verifies = None if action.verifies is None else action.verifies.retry
        given = build_input(plan, spec, trial, retry=retry, agent_version=__version__, limits_bytes=volume_limits(pods), verifies=verifies)
        build = build_trial_pod if verifies is None else build_verify_pod
        return build(
            plan,
            spec,
            trial,
            retry=retry,
            urls=urls,
            encoded_input=encode_input(given),
            secret=naming.secret_name(plan.job, plan.uid),
            settings=pods,
        )

    async def _compare(self, plan: FrozenPlan, action: CreatePod) -> Outcome:
        """A Pod of our name exists: ours from an earlier try, or somebody else's, which is never touched."""
        try:
            body: Mapping[str, Any] = await self._kube.get(core_path("pods", namespace=plan.namespace, name=action.pod))
        except NotFound as error:
            raise ApiUnavailable(f"Pod {action.pod} existed and is gone: try again", retry_after=1.0) from error
        pod = parse_pod(body)
        labels = (body.get("metadata") or {}).get("labels") or {}
        ours = pod.owner_uid == plan.uid and (labels.get(LABEL_TRIAL), labels.get(LABEL_RETRY)) == (action.trial.name, str(action.retry))
        if not ours:
            message = f"Pod {action.pod} exists in namespace {plan.namespace} and does not belong to this job: remove it"
            return Refused(failure(Reason.NAME_CONFLICT, message))
        return Leaving(pod) if pod.deleting else Created(pod)
