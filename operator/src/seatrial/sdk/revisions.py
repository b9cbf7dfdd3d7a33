"""Read the published revisions of tasks and tasksets."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from seatrial.core.naming import revision_key, revisions_prefix
from seatrial.effects.store import Store
from seatrial.errors import NotFound, SeatrialError

Raw = dict[str, Any]
DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class RevisionMismatch(SeatrialError):
    """A stored revision does not have the digest that it states."""


class Revision(NamedTuple):
    """One published state of an object."""

    number: int
    digest: str
    tags: tuple[str, ...]
    time: datetime.datetime | None
    document: Raw

    def raw(self) -> Raw:
        """As documented JSON."""
        time = self.time.isoformat().replace("+00:00", "Z") if self.time else None
        return {"revision": self.number, "digest": self.digest, "tags": list(self.tags), "time": time, "content": self.document["content"]}


def list_revisions(store: Store, item: Mapping[str, Any]) -> tuple[Revision, ...]:
    """All revisions of a Task or Taskset object, newest first."""
    namespace, kind, name = _identity(item)
    prefix = revisions_prefix(namespace, kind, name)
    tags = _tags(item)
    found = []
    for entry in store.list(prefix):
        if (match := re.fullmatch(r"([1-9]\d{0,8})\.json", entry.key.removeprefix(prefix))) is None:
            continue
        number = int(match[1])
        document = read_revision(store, namespace=namespace, kind=kind, name=name, number=number)
        found.append(Revision(number, document["digest"], tags.get(number, ()), entry.modified, document))
    return tuple(sorted(found, key=lambda revision: -revision.number))


def find_revision(store: Store, item: Mapping[str, Any], fragment: str) -> Raw:
    """The document that ``fragment`` names: a tag, ``latest``, a number, or a digest (its newest match).

    Raises:
        NotFound: the object has no such revision.
    """
    namespace, kind, name = _identity(item)
    status = item.get("status", {})
    if not _DIGEST.fullmatch(fragment):
        tags = status.get("tags", {})
        number = tags.get(fragment) or (status.get("revision") if fragment in ("", "latest") else None)
        if number is None and fragment.isdigit():
            number = int(fragment)
        if number is None:
            known = ", ".join(sorted(tags)) or "none"
            raise NotFound(f"{kind} {name} has no revision tagged {fragment!r} (known tags: {known})")
        return read_revision(store, namespace=namespace, kind=kind, name=name, number=int(number))
    for revision in list_revisions(store, item):
        if revision.digest == fragment:
            return revision.document
    raise NotFound(f"{kind} {name} has no revision with digest {fragment}")


def read_revision(store: Store, *, namespace: str, kind: str, name: str, number: int) -> Raw:
    """One document, its digest checked.

    Raises:
        NotFound: it does not exist.
        RevisionMismatch: somebody changed it.
    """
    key = revision_key(namespace, kind, name, number)
    document = cast(Raw, json.loads(store.get(key, max_bytes=DOCUMENT_BYTES)))
    content = json.dumps(document.get("content"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if hashlib.sha256(content.encode()).hexdigest() != document.get("digest"):
        raise RevisionMismatch(f"{key} does not have the digest that it states: publish {kind} {name} again")
    return document


def _identity(item: Mapping[str, Any]) -> tuple[str, str, str]:
    return item["metadata"]["namespace"], item["kind"].lower(), item["metadata"]["name"]


def _tags(item: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for tag, number in sorted(item.get("status", {}).get("tags", {}).items()):
        found[number] = (*found.get(number, ()), tag)
    return found
