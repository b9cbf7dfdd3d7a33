"""Resolve what an EvalJob names and freeze it: references -> revisions -> ``plan.json``.

Nothing of a Task or Taskset is read again afterwards. The decision itself is ``core.frozen.build_plan``, which needs no cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from seatrial import __version__
from seatrial.api.evaljob import EvalJob
from seatrial.api.meta import StoredFile
from seatrial.api.names import EVALJOB, TASKSET
from seatrial.api.reasons import ConditionType, Reason
from seatrial.core import naming, rows
from seatrial.core.frozen import (
    FrozenPlan,
    PlannedTask,
    PlanRefused,
    Submission,
    build_plan,
    check_task_scoring,
    decode_plan,
    encode_plan,
    frozen_spec,
    measured_names,
    refuse_unsupported,
    task_labels,
)
from seatrial.core.manifests import url_seconds
from seatrial.core.measures import MetricUnsupported, read_scoring
from seatrial.core.naming import archive_key
from seatrial.core.reuse import Source, Tasks, adopt_cached, adopt_job, final_rows, identity, rescore_plan, saved_plan
from seatrial.core.rows import Row
from seatrial.core.saved import SavedTrial, SavedTrialsRefused, parse_saved
from seatrial.core.scores import MetricRule
from seatrial.core.scripts import Script
from seatrial.core.status import Frozen, condition_of, is_terminal
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.image_pins import ImagePins
from seatrial.effects.references import LATEST, NotYet, Objects, Ref, check_namespace, parse_ref
from seatrial.effects.revisions import Revision, RevisionMismatch, Revisions
from seatrial.effects.rows import find_cached
from seatrial.effects.settings import Settings
from seatrial.effects.store import MAX_EXPIRES_SECONDS
from seatrial.effects.taskset_pin import Member, Pinner
from seatrial.errors import AlreadyExists, InvalidSpec, NotFound
from seatrial.taskpkg.imagekey import image_key
from seatrial.taskpkg.model import TaskConfig

PLAN_BYTES: Final = 512 * 1024 * 1024
SAVED_BYTES: Final = 64 * 1024 * 1024
"""Of a file of saved trials: somebody else's text, which takes several times its size while it is read."""
READS: Final = 16


class Resolved(NamedTuple):
    """What a job evaluates."""

    members: Sequence[Member]
    taskset: str | None
    """``namespace/name#digest``; None for a job of single tasks."""
    content: Mapping[str, Any]
    """Of the Taskset's revision; empty for a job of single tasks."""


class Loaded(NamedTuple):
    plan: FrozenPlan
    frozen: Frozen


class Planner:
    """Makes and loads frozen plans."""

    def __init__(
        self, store: AsyncStore, revisions: Revisions, objects: Objects, pinner: Pinner, settings: Settings, *, images: ImagePins | None
    ) -> None:
        """``images``: None: images run as tasks name them."""
        self._store, self._revisions, self._objects, self._pinner, self._settings = store, revisions, objects, pinner, settings
        self._images = images

    async def freeze(self, job: EvalJob) -> Loaded:
        """Plan a job; if a plan of it is stored already, that one is the job's plan.

        Raises:
            NotYet: a reference may come to resolve by itself.
            PlanRefused: the spec has to be changed.
            Unavailable, Forbidden, DiskFull: the store or the API.
        """
        meta = job.metadata
        key = naming.plan_key(naming.job_prefix(meta.namespace, meta.name, meta.uid))
        try:
            # A crash between the plan and the status that names it: the Tasks may have changed since.
            return await self._read(key)
        except NotFound:
            pass
        plan = await self._rescored(job) if job.spec.rescore is not None else await self._planned(job)
        data, frozen = await asyncio.to_thread(_encoded, key, plan)
        try:
            await self._store.put_new(key, data)
        except AlreadyExists:
            return await self._read(key)
        return Loaded(plan, frozen)

    async def _planned(self, job: EvalJob) -> FrozenPlan:
        """A plan from references, with the results that are reused."""
        meta, spec = job.metadata, job.spec
        if (source := spec.agent.source) is not None:
            check_namespace(source.ref.partition("/")[0], namespace=meta.namespace, settings=self._settings, text="spec.agent.source.ref")
        resolved = await self._members(job)
        tasks = await self._tasks(resolved.members)
        plan = await asyncio.to_thread(
            build_plan,
            Submission(namespace=meta.namespace, job=meta.name, uid=meta.uid, created_at=meta.creation_timestamp),
            job.spec,
            members=tasks,
            taskset=resolved.taskset,
            scripts=self._scripts(job, resolved.content),
            metrics=set_metrics(resolved.content),
            max_trials=self._settings.max_trials,
        )
        await asyncio.to_thread(self._check_lifetimes, plan, job)
        if self._images is not None:
            plan = await self._images.pin(plan)
        if spec.cache.job is not None:
            taken = await self._source(job, spec.cache.job)
            return await asyncio.to_thread(adopt_job, plan, taken, rerun_errors=spec.cache.rerun_errors or ())
        if spec.cache.policy == "none":
            return plan
        plan = replace(plan, identity=identity(spec, runner_image=self._settings.runner_image, version=__version__))
        if spec.cache.policy == "refresh":
            return plan
        return await asyncio.to_thread(adopt_cached, plan, await find_cached(self._store, plan))

    async def _rescored(self, job: EvalJob) -> FrozenPlan:
        """A plan that takes all trials of an ended job, or of a file, with its own tasks or those of a Taskset."""
        meta, spec, asked = job.metadata, job.spec, job.spec.rescore
        assert asked is not None
        submission = Submission(namespace=meta.namespace, job=meta.name, uid=meta.uid, created_at=meta.creation_timestamp)
        tasks, scripts, metrics = None, self._scripts(job, {}), tuple[MetricRule, ...]()
        if asked.taskset is not None:
            resolved = await self._taskset(job, asked.taskset, "spec.rescore.taskset")
            tasks = Tasks(await self._tasks(resolved.members), resolved.taskset)
            scripts, metrics = self._scripts(job, resolved.content), set_metrics(resolved.content)
        if asked.job is not None:
            source = await self._source(job, asked.job)
            plan = await asyncio.to_thread(rescore_plan, submission, spec, source, spec_raw=frozen_spec(spec), tasks=tasks)
            if tasks is None:
                own = tuple(script for script in source.plan.scripts if script.is_taskset)
                scripts = (*own, *(script for script in scripts if script.sha256 not in {item.sha256 for item in own}))
                metrics = source.plan.metrics
        else:
            assert asked.trials is not None
            assert tasks is not None
            trials, folder = await self._saved(job, asked.trials)
            plan = await asyncio.to_thread(saved_plan, submission, spec, trials, tasks, folder=folder, spec_raw=frozen_spec(spec))
        await asyncio.to_thread(check_task_scoring, plan.tasks, spec)
        refuse_unsupported(spec, scripts, metrics, measured=await asyncio.to_thread(measured_names, plan.tasks))
        return replace(plan, scripts=scripts, metrics=metrics)

    async def _saved(self, job: EvalJob, file: StoredFile) -> tuple[tuple[SavedTrial, ...], str]:
        """The trials of a file, and the key prefix of its folder.

        Raises:
            PlanRefused: SavedTrialsInvalid, CrossNamespaceReference.
        """
        where = file.ref.partition("#")[0].rpartition("/")[0]
        check_namespace(where, namespace=job.metadata.namespace, settings=self._settings, text=file.ref)
        key = archive_key(file.ref)
        try:
            data = await self._store.get(key, max_bytes=SAVED_BYTES)
        except NotFound as error:
            raise SavedTrialsRefused(Reason.SAVED_TRIALS_INVALID, f"spec.rescore.trials: {file.ref} does not exist: store it") from error
        except InvalidSpec as error:
            raise SavedTrialsRefused(Reason.SAVED_TRIALS_INVALID, f"spec.rescore.trials: {error}: split the trials") from error
        if await asyncio.to_thread(_sha256, data) != file.sha256:
            raise SavedTrialsRefused(Reason.SAVED_TRIALS_INVALID, f"spec.rescore.trials: {file.ref} has another sha256: it was changed")
        return await asyncio.to_thread(parse_saved, data), f"{key.rpartition('/')[0]}/"

    async def _source(self, job: EvalJob, name: str) -> Source:
        """An ended job of the same namespace with its plan and rows.

        Raises:
            PlanRefused: RescoreSource, with what is wrong with it.
        """
        namespace = job.metadata.namespace
        body = await self._objects.get(EVALJOB, namespace, name)
        if body is None:
            raise PlanRefused(Reason.RESCORE_SOURCE, f"EvalJob {namespace}/{name} does not exist: name an ended job of this namespace")
        if not is_terminal(body.get("status") or {}):
            raise PlanRefused(Reason.RESCORE_SOURCE, f"EvalJob {namespace}/{name} has not ended: wait for its end and submit again")
        folder = naming.job_prefix(namespace, name, body["metadata"]["uid"])
        try:
            plan, data = await asyncio.gather(
                self._read(naming.plan_key(folder)), self._store.get(f"{folder}trials.jsonl", max_bytes=PLAN_BYTES)
            )
        except NotFound as error:
            message = f"EvalJob {namespace}/{name} left no results in the object store: take another job"
            raise PlanRefused(Reason.RESCORE_SOURCE, message) from error
        return Source(folder, plan.plan, await asyncio.to_thread(_final_rows, data))

    async def load(self, frozen: Frozen) -> Loaded:
        """The plan that the status names.

        Raises:
            PlanRefused: PlanCorrupt, it is gone or another one.
            Unavailable, Forbidden: the store.
        """
        try:
            loaded = await self._read(frozen.key)
        except NotFound as error:
            raise PlanRefused(Reason.PLAN_CORRUPT, f"{frozen.key} is not in the object store any more: submit the job again") from error
        if loaded.frozen.sha256 != frozen.sha256:
            raise PlanRefused(Reason.PLAN_CORRUPT, f"{frozen.key} does not have the sha256 in status.plan: submit the job again")
        return loaded

    async def _read(self, key: str) -> Loaded:
        return await asyncio.to_thread(_decoded, key, await self._store.get(key, max_bytes=PLAN_BYTES))

    def _scripts(self, job: EvalJob, content: Mapping[str, Any]) -> tuple[Script, ...]:
        """Every metric.py of a job in Harbor's order, each once: the taskset's own, then those that the job names (H-134)."""
        namespace = job.metadata.namespace
        found: dict[str, Script] = {}
        if (own := content.get("metricScript")) is not None:
            found[own["sha256"]] = Script(archive_key(own["ref"]), own["sha256"], is_taskset=True)
        for metric in job.spec.metrics:
            if (named := metric.script) is not None:
                check_namespace(named.ref.partition("/")[0], namespace=namespace, settings=self._settings, text=named.ref)
                found.setdefault(named.sha256, Script(archive_key(named.ref), named.sha256))
        return tuple(found.values())

    async def _members(self, job: EvalJob) -> Resolved:
        namespace, spec = job.metadata.namespace, job.spec
        if spec.tasks is not None:
            refs = [parse_ref(text, namespace=namespace) for text in spec.tasks]
            return Resolved(await self._pinner.resolve(refs, namespace=namespace), None, {})
        if spec.taskset is None:
            raise PlanRefused(Reason.UNSUPPORTED, "the job names no task: name a taskset or tasks")
        return await self._taskset(job, spec.taskset, "spec.taskset")

    async def _taskset(self, job: EvalJob, text: str, field: str) -> Resolved:
        """The pinned members of a Taskset."""
        namespace = job.metadata.namespace
        ref = parse_ref(text, namespace=namespace)
        check_namespace(ref.namespace, namespace=namespace, settings=self._settings, text=text)
        body = await self._objects.get(TASKSET, ref.namespace, ref.name)
        if body is None:
            message = f"Taskset {ref.namespace}/{ref.name} does not exist: publish it, or correct {field}"
            raise NotYet(Reason.TASKSET_NOT_FOUND, message)
        revision = await self._revision(ref, body)
        manifest = revision.document["manifest"]
        members = await self._pinner.read_members(manifest["key"], manifest["sha256"])
        return Resolved(members, f"{ref.namespace}/{ref.name}#{revision.digest}", revision.document["content"])

    async def _revision(self, ref: Ref, body: Mapping[str, Any]) -> Revision:
        """The revision of a Taskset that a reference names."""
        status = body.get("status") or {}
        if ref.fragment == LATEST:
            pinned = condition_of(status, ConditionType.PINNED)
            current = status.get("observedGeneration") == body["metadata"].get("generation")
            if pinned is None or not current or pinned["status"] != "True":
                judged = pinned is not None and current
                why = f"{pinned['reason']}: {pinned['message']}" if pinned is not None and current else "not pinned yet"
                raise NotYet(Reason.TASKSET_NOT_PINNED, f"Taskset {ref.namespace}/{ref.name}: {why}", in_work=not judged)
            number = status["revision"]
        elif ref.fragment == status.get("digest"):
            number = status["revision"]
        else:
            number = (status.get("tags") or {}).get(ref.fragment)
        try:
            if number is not None:
                return await self._revisions.read(ref.namespace, "taskset", ref.name, int(number))
            if ref.is_digest:
                return await self._revisions.find(ref.namespace, "taskset", ref.name, ref.fragment)
            known = ", ".join(sorted(status.get("tags") or {})) or "none"
            raise NotFound(f"has no revision tagged {ref.fragment!r} (known tags: {known})")
        except (NotFound, RevisionMismatch) as error:
            raise NotYet(Reason.REVISION_NOT_FOUND, f"Taskset {ref.namespace}/{ref.name}: {error}") from error

    async def _tasks(self, members: Sequence[Member]) -> list[PlannedTask]:
        slots = asyncio.Semaphore(READS)

        async def one(member: Member) -> PlannedTask:
            async with slots:
                return await self._task(member)

        return list(await asyncio.gather(*(one(member) for member in members)))

    async def _task(self, member: Member) -> PlannedTask:
        namespace, _, name = member.ref.partition("#")[0].partition("/")
        try:
            revision = await self._revisions.read(namespace, "task", name, member.revision)
        except (NotFound, RevisionMismatch) as error:
            raise PlanRefused(Reason.REVISION_NOT_FOUND, f"member {member.ref}: {error}; publish it again") from error
        if revision.digest != member.digest:
            raise PlanRefused(Reason.REVISION_NOT_FOUND, f"member {member.ref}: revision {member.revision} has another digest")
        content, facts = revision.document["content"], revision.document["facts"]
        config = TaskConfig.model_validate(revision.document["config"])
        recorded = content.get("images") or {}
        try:
            scoring = read_scoring(content["metrics"], content["views"], content["metadata"])
        except MetricUnsupported as error:
            raise PlanRefused(Reason.UNSUPPORTED_METRIC, f"task {content['nativeTaskId']}: {error}") from error
        image, verifier_image = ((recorded.get(role) or {}).get("image") for role in ("environment", "verifier"))
        return PlannedTask(
            id=content["nativeTaskId"],
            ref=member.ref,
            revision=revision.number,
            archive_key=facts["archive"],
            archive_sha256=content["source"]["sha256"],
            checksum=content["harborHash"],
            config=config,
            image=image,
            build=None if image or config.environment.docker_image else self._build_key(facts.get("buildContext")),
            bundled_verifier=facts.get("bundledVerifier", False),
            verifier_image=verifier_image,
            verifier_build=None if verifier_image else self._build_key(facts.get("verifierContext")),
            loose_files=facts["looseFiles"],
            compose=facts["compose"],
            scoring=scoring,
            labels=task_labels({**(revision.document["config"].get("metadata") or {}), **content["metadata"]}),
        )

    def _build_key(self, context_key: str | None) -> str | None:
        """Key of the image that the cluster builds; None where the archive has no context, or the operator no registry to push to."""
        builds = self._settings.builds()
        if context_key is None or not builds.repository:
            return None
        return image_key(context_key, args=builds.args, platform=builds.platform)

    def _check_lifetimes(self, plan: FrozenPlan, job: EvalJob) -> None:
        """Presigned URLs end after seven days; a trial that may run longer would lose its result."""
        pods = self._settings.pods()
        for task in plan.tasks:
            if task.refusal is None and (seconds := url_seconds(task, job.spec, pods)) > MAX_EXPIRES_SECONDS:
                hours = seconds // 3600
                message = (
                    f"a trial of task {task.id} may take {hours} hours, presigned URLs live for 168: lower spec.timeouts or task.toml's"
                )
                raise PlanRefused(Reason.URL_LIFETIME_TOO_SHORT, message)


def set_metrics(content: Mapping[str, Any]) -> tuple[MetricRule, ...]:
    """Aggregates that a Taskset asks for, of its revision's content."""
    return tuple(MetricRule(item["type"], item.get("missing") == "zero") for item in content.get("metrics", ()))


# Work that grows with the number of trials: called in a thread, so that the loop serves everybody else's jobs meanwhile.


def _encoded(key: str, plan: FrozenPlan) -> tuple[bytes, Frozen]:
    data = encode_plan(plan)
    return data, _frozen(key, data, plan)


def _decoded(key: str, data: bytes) -> Loaded:
    plan = decode_plan(data)
    return Loaded(plan, _frozen(key, data, plan))


def _final_rows(data: bytes) -> dict[str, Row]:
    return final_rows(rows.from_lines(data))


def _frozen(key: str, data: bytes, plan: FrozenPlan) -> Frozen:
    return Frozen(key=key, sha256=_sha256(data), tasks=len(plan.tasks), trials=len(plan.trials))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
