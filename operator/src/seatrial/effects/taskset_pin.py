"""Pin the members of a Taskset to content digests and publish the set as a revision. Source: nemo.md section 10."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from seatrial.api.names import TASK
from seatrial.api.reasons import ConditionType, Reason
from seatrial.api.taskset import Taskset
from seatrial.core.frozen import PlanRefused
from seatrial.core.naming import archive_key
from seatrial.core.status import condition_of
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.references import LATEST, NotYet, Objects, Ref, check_namespace, parse_ref
from seatrial.effects.revisions import Revision, RevisionMismatch, Revisions, UnknownRevision
from seatrial.effects.settings import Settings
from seatrial.errors import AlreadyExists, NotFound

MANIFEST_BYTES: Final = 256 * 1024 * 1024
READS: Final = 16


class Member(NamedTuple):
    """One pinned task, as a line of the manifest."""

    ref: str
    """``namespace/name#digest``."""
    revision: int
    digest: str
    archive: str
    """Key of its archive."""
    sha256: str

    def line(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"))


class PinnedSet(NamedTuple):
    revision: Revision
    tags: Mapping[str, int]
    """``status.tags`` from now on."""
    members: tuple[Member, ...]
    manifest_key: str
    manifest_sha256: str


class Pinner:
    """Resolves references to Tasks."""

    def __init__(self, store: AsyncStore, revisions: Revisions, objects: Objects, settings: Settings) -> None:
        self._store, self._revisions, self._objects, self._settings = store, revisions, objects, settings

    async def pin(self, taskset: Taskset) -> PinnedSet:
        """All members, sorted by reference, as a manifest and a revision.

        Raises:
            NotYet: a member is missing or unverified, which may change by itself.
            PlanRefused: the set has to be changed.
            Unavailable, Forbidden, Conflict: the store or the API.
        """
        namespace, spec = taskset.metadata.namespace, taskset.spec
        if spec.tasks is not None:
            refs = [parse_ref(text, namespace=namespace) for text in spec.tasks]
            members = await self.resolve(refs, namespace=namespace)
        else:
            assert spec.manifest is not None  # the model holds "exactly one of"
            members = await self._read_manifest(spec.manifest.ref, spec.manifest.sha256, namespace=namespace)
        members = sorted(members)
        if not members:
            raise PlanRefused(Reason.EMPTY_TASKSET, "the set has no member: name at least one task")
        lines = "".join(f"{member.line()}\n" for member in members).encode()
        sha256 = hashlib.sha256(lines).hexdigest()
        key = f"filesets/{namespace}/tasksets/{taskset.metadata.name}/{sha256}.jsonl"
        try:
            await self._store.put_new(key, lines, content_type="application/x-ndjson")
        except AlreadyExists as error:
            raise PlanRefused(Reason.MANIFEST_INVALID, f"{key} holds other bytes than its name says: delete it") from error
        content = {
            "description": spec.description,
            "members": [member.ref for member in members],
            "metadata": spec.raw().get("metadata", {}),
            # Only where they are: the digests of sets without them stay.
            **{name: value for name in ("metricScript", "metrics") if (value := spec.raw().get(name))},
        }
        if spec.metric_script is not None:
            place = spec.metric_script.ref
            check_namespace(place.partition("/")[0], namespace=namespace, settings=self._settings, text=place)
        extra = {"manifest": {"key": key, "sha256": sha256}}
        revision = await self._revisions.publish(namespace, "taskset", taskset.metadata.name, content=content, extra=extra)
        try:
            tags = await self._revisions.tags("taskset", taskset, revision.number)
        except UnknownRevision as error:
            raise NotYet(Reason.REVISION_NOT_FOUND, str(error)) from error
        return PinnedSet(revision, tags, tuple(members), key, sha256)

    async def resolve(self, refs: Sequence[Ref], *, namespace: str) -> list[Member]:
        """Members in the order of ``refs``.

        Raises: as ``pin``.
        """
        seen: dict[tuple[str, str], Ref] = {}
        for ref in refs:
            check_namespace(ref.namespace, namespace=namespace, settings=self._settings, text=str(ref))
            if (other := seen.setdefault((ref.namespace, ref.name), ref)) is not ref:
                raise PlanRefused(Reason.DUPLICATE_MEMBER, f"{other} and {ref} name one Task: leave one out")
        tasks = await self._objects.get_many(TASK, seen)
        slots = asyncio.Semaphore(READS)

        async def one(ref: Ref) -> Member:
            body = tasks.get((ref.namespace, ref.name))
            if body is None:
                raise NotYet(Reason.TASK_NOT_FOUND, f"Task {ref.namespace}/{ref.name} does not exist: publish it, or correct the reference")
            async with slots:
                return await self._member(ref, body)

        return list(await asyncio.gather(*(one(ref) for ref in refs)))

    async def read_members(self, key: str, sha256: str) -> list[Member]:
        """The members of a manifest that was written by ``pin``.

        Raises:
            PlanRefused: it is gone or was changed.
        """
        try:
            data = await self._store.get(key, max_bytes=MANIFEST_BYTES)
        except NotFound as error:
            raise PlanRefused(Reason.MANIFEST_INVALID, f"{key} is not in the object store: publish the taskset again") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise PlanRefused(Reason.MANIFEST_INVALID, f"{key} does not have the sha256 that was stated: publish the taskset again")
        try:
            return [_read_member(json.loads(line)) for line in data.splitlines() if line.strip()]
        except (ValueError, KeyError, TypeError) as error:
            raise PlanRefused(Reason.MANIFEST_INVALID, f"{key} has a line that is no pinned member") from error

    async def _member(self, ref: Ref, body: Mapping[str, Any]) -> Member:
        status = body.get("status") or {}
        verified = condition_of(status, ConditionType.VERIFIED)
        current = status.get("observedGeneration") == body["metadata"].get("generation")
        if ref.fragment == LATEST and (verified is None or not current or verified["status"] != "True"):
            judged = verified is not None and current
            why = verified["message"] if verified is not None and current else "not verified yet"
            raise NotYet(Reason.MEMBER_NOT_VERIFIED, f"Task {ref.namespace}/{ref.name}: {why}", in_work=not judged)
        number = status.get("revision") if ref.fragment == LATEST else (status.get("tags") or {}).get(ref.fragment)
        try:
            if ref.is_digest:
                revision = await self._revisions.find(ref.namespace, "task", ref.name, ref.fragment)
            elif number is None:
                raise NotFound(f"has no revision tagged {ref.fragment!r}")
            else:
                revision = await self._revisions.read(ref.namespace, "task", ref.name, int(number))
        except (NotFound, RevisionMismatch) as error:
            raise NotYet(Reason.REVISION_NOT_FOUND, f"Task {ref.namespace}/{ref.name}: {error}") from error
        source = revision.document["content"]["source"]
        return Member(
            ref=f"{ref.namespace}/{ref.name}#{revision.digest}",
            revision=revision.number,
            digest=revision.digest,
            archive=archive_key(source["ref"]),
            sha256=source["sha256"],
        )

    async def _read_manifest(self, ref: str, sha256: str, *, namespace: str) -> list[Member]:
        check_namespace(ref.partition("/")[0], namespace=namespace, settings=self._settings, text=ref)
        members = await self.read_members(archive_key(ref), sha256)
        names: set[str] = set()
        for member in members:
            entity = member.ref.partition("#")[0]
            check_namespace(entity.partition("/")[0], namespace=namespace, settings=self._settings, text=member.ref)
            if entity in names:
                raise PlanRefused(Reason.DUPLICATE_MEMBER, f"{entity} is listed twice in the manifest: leave one out")
            names.add(entity)
        return members


def _read_member(body: Mapping[str, Any]) -> Member:
    member = Member(
        ref=str(body["ref"]),
        revision=int(body["revision"]),
        digest=str(body["digest"]),
        archive=str(body["archive"]),
        sha256=str(body["sha256"]),
    )
    entity, _, digest = member.ref.partition("#")
    if digest != member.digest or entity.count("/") != 1 or member.revision < 1:
        raise ValueError(member.ref)
    return member
