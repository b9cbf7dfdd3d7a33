"""Immutable revisions of Tasks and Tasksets in the object store.

A publication freezes the whole content as the next number; publishing what the newest revision already holds cuts nothing. Source:
nemo.md 11.4 and 11.5.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from seatrial.api.task import Task
from seatrial.api.taskset import Taskset
from seatrial.core.naming import revision_key, revisions_prefix
from seatrial.effects.aiostore import AsyncStore
from seatrial.errors import AlreadyExists, Conflict, NotFound, SeatrialError

DOCUMENT_BYTES: Final = 64 * 1024 * 1024
TRIES: Final = 5
LATEST: Final = "latest"
MOST_TAGS: Final = 64

Kind = Literal["task", "taskset"]


class RevisionMismatch(SeatrialError):
    """A stored revision does not have the digest that it states: somebody changed it. It is never used."""


class UnknownRevision(NotFound):
    """A tag or digest that no revision has."""


class Revision(NamedTuple):
    number: int
    digest: str
    document: Mapping[str, Any]
    """``{schema, kind, namespace, name, revision, digest, content, …}``; ``content`` is what the digest covers."""


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON: sorted keys, no spaces; the order of lists counts, ``1`` and ``1.0`` differ."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()


class Revisions:
    """Reads and publishes revisions."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def publish(self, namespace: str, kind: Kind, name: str, *, content: Mapping[str, Any], extra: Mapping[str, Any]) -> Revision:
        """The newest revision if it has this content, else a new one with the next number.

        ``extra`` is stored beside the content and not covered by the digest.

        Raises:
            Conflict: other writers took five numbers in a row.
            Unavailable, Forbidden, DiskFull: the store.
        """
        digest = content_digest(content)
        numbers = await self.numbers(namespace, kind, name)
        newest = numbers[0] if numbers else 0
        if newest:
            revision = await self.read(namespace, kind, name, newest)
            if revision.digest == digest:
                return revision
        for number in range(newest + 1, newest + 1 + TRIES):
            document = {
                "schema": 1,
                "kind": kind,
                "namespace": namespace,
                "name": name,
                "revision": number,
                "digest": digest,
                "content": content,
                **extra,
            }
            try:
                await self._store.put_new(revision_key(namespace, kind, name, number), _bytes(document))
            except AlreadyExists:
                other = await self.read(namespace, kind, name, number)
                if other.digest == digest:
                    return other
                continue
            return Revision(number, digest, document)
        raise Conflict(f"revision numbers of {kind} {namespace}/{name} were taken {TRIES} times in a row: try again")

    async def numbers(self, namespace: str, kind: Kind, name: str) -> list[int]:
        """All revision numbers, newest first."""
        prefix = revisions_prefix(namespace, kind, name)
        keys = [entry.key.removeprefix(prefix) for entry in await self._store.list(prefix)]
        return sorted((int(match[1]) for key in keys if (match := re.fullmatch(r"([1-9]\d{0,8})\.json", key))), reverse=True)

    async def read(self, namespace: str, kind: Kind, name: str, number: int) -> Revision:
        """One revision, its digest checked.

        Raises:
            NotFound: there is none. RevisionMismatch: it was changed. Unavailable, Forbidden: the store.
        """
        key = revision_key(namespace, kind, name, number)
        data = await self._store.get(key, max_bytes=DOCUMENT_BYTES)
        try:
            document = json.loads(data)
            content, digest = document["content"], document["digest"]
            good = content_digest(content) == digest and document["revision"] == number
        except (ValueError, KeyError, TypeError):
            good = False
        if not good:
            raise RevisionMismatch(f"{key} does not have the digest that it states: publish {kind} {namespace}/{name} again")
        return Revision(number, digest, document)

    async def find(self, namespace: str, kind: Kind, name: str, digest: str) -> Revision:
        """The newest revision with this digest.

        Raises:
            UnknownRevision: there is none. RevisionMismatch, Unavailable, Forbidden: as ``read``.
        """
        for number in await self.numbers(namespace, kind, name):
            revision = await self.read(namespace, kind, name, number)
            if revision.digest == digest:
                return revision
        raise UnknownRevision(f"{namespace}/{name} has no revision with digest {digest}")

    async def tags(self, kind: Kind, item: Task | Taskset, revision: int) -> dict[str, int]:
        """``status.tags`` once ``revision`` is the newest one.

        Raises:
            UnknownRevision: ``spec.tagPointers`` names none of the revisions.
        """
        meta, spec = item.metadata, item.spec
        tags = merge_tags(item.status.tags, spec.tags, revision)
        pointers = {}
        for tag, target in spec.tag_pointers.items():
            if re.fullmatch(r"[0-9a-f]{64}", target):
                pointers[tag] = (await self.find(meta.namespace, kind, meta.name, target)).number
            elif target in tags:
                pointers[tag] = tags[target]
            else:
                known = ", ".join(tags)
                raise UnknownRevision(f"spec.tagPointers.{tag}: no revision is tagged {target!r} (known tags: {known})")
        return merge_tags(item.status.tags, spec.tags, revision, pointers)


def merge_tags(
    previous: Mapping[str, int], tags: Iterable[str], revision: int, pointers: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """``status.tags`` after a publication: the spec's tags and ``latest`` point to it, pointers where they say, others stay.

    ``latest`` never goes back, whatever a late or repeated pass says.
    """
    latest = max(revision, previous.get(LATEST, 0))
    wanted = {**dict.fromkeys(tags, revision), **pointers, LATEST: latest}
    others = [tag for tag in sorted(previous) if tag not in wanted]
    kept = others[max(0, len(others) + len(wanted) - MOST_TAGS) :]
    return dict(sorted({**{tag: previous[tag] for tag in kept}, **wanted}.items()))


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
