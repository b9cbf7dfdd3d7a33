"""The newest known body of each of our objects, fed by Kopf's events, by periodic LISTs and by the answers to our own writes.

Why three sources: Kopf never reports an object that vanished while its watch was broken, and its watcher may die without a word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Raw = Mapping[str, Any]


class Key(NamedTuple):
    """Names an object."""

    kind: str
    namespace: str
    name: str


class ObjectCache:
    """Bodies by key. ``changed`` is called with the key of everything that may need a pass."""

    def __init__(self, changed: Callable[[Key], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed, self._clock = changed, clock
        self._bodies: dict[Key, Raw] = {}
        self._at: dict[Key, float] = {}
        self._heard: dict[Key, tuple[str, int]] = {}
        self._missed: dict[Key, float] = {}

    def get(self, key: Key) -> Raw | None:
        return self._bodies.get(key)

    def all(self, kind: str) -> Iterable[tuple[Key, Raw]]:
        """Everything of one kind."""
        return tuple((key, body) for key, body in self._bodies.items() if key.kind == kind)

    def observe(self, event: str | None, kind: str, body: Raw) -> None:
        """An event of Kopf's watch; ``event`` is None in its first LIST."""
        key = _key(kind, body)
        if event == "DELETED":
            known = self._bodies.get(key)
            # A LIST may have brought the successor of the same name before the end of the old object is told.
            if known is None or _version(known)[0] == _version(body)[0]:
                self._drop(key)
            return
        self._heard[key] = _version(body)
        self._missed.pop(key, None)
        self._store(key, body)
        self._changed(key)

    def written(self, kind: str, body: Raw) -> None:
        """The answer to our own write: the next one needs its resourceVersion. Wakes nobody.

        The watch may have brought a user's later change, or a successor of the same name, before this answer arrived: then that stays.
        """
        key = _key(kind, body)
        known = self._bodies.get(key)
        if known is not None and _version(known)[0] == _version(body)[0] and not _is_older(body, known):
            self._store(key, body)

    def refresh(self, kind: str, namespace: str, name: str, body: Raw | None, *, began: float) -> None:
        """What a GET after a conflict found; ``began`` is when it was sent, on the cache's clock."""
        key = Key(kind, namespace, name)
        known = self._bodies.get(key)
        is_other = body is None or (known is not None and _version(known)[0] != _version(body)[0])
        if known is not None and is_other and self._at[key] > began:
            pass  # the watch has brought a successor since
        elif body is None:
            self._drop(key)
        elif known is None or not _is_older(body, known):
            self._store(key, body)
        self._changed(key)

    def merge(self, kind: str, bodies: Iterable[Raw], *, began: float, namespace: str | None) -> None:
        """A LIST that ran beside the watch: unknown or higher generation -> take it; of another UID or absent, and cached before the LIST
        began -> replace or remove.

        Args:
            began: on the cache's clock.
            namespace: where the LIST looked; None for everywhere.
        """
        found = {_key(kind, body): body for body in bodies}
        for key, body in found.items():
            known = self._bodies.get(key)
            is_other = known is not None and _version(known)[0] != _version(body)[0]
            if is_other and self._at[key] >= began:
                continue  # the LIST has the predecessor of what the watch brought meanwhile
            if known is None or is_other or _version(known)[1] < _version(body)[1]:
                self._store(key, body)
                self._changed(key)
            heard = self._heard.get(key)
            if heard is None or heard[0] != _version(body)[0] or heard[1] < _version(body)[1]:
                self._missed.setdefault(key, self._clock())
            else:
                self._missed.pop(key, None)
        for key in [key for key in self._bodies if key.kind == kind and namespace in (None, key.namespace)]:
            if key not in found and self._at[key] < began:
                self._drop(key)

    def missed_seconds(self) -> float:
        """How long a LIST has known something that no event brought; 0.0 when there is no such thing."""
        return self._clock() - min(self._missed.values()) if self._missed else 0.0

    def _store(self, key: Key, body: Raw) -> None:
        # Who wrote which field takes more than half of the memory of ten thousand Tasks, and nobody here asks.
        meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        self._bodies[key] = {**body, "metadata": meta}
        self._at[key] = self._clock()

    def _drop(self, key: Key) -> None:
        known = self._bodies.pop(key, None)
        self._at.pop(key, None)
        self._heard.pop(key, None)
        self._missed.pop(key, None)
        if known is not None:
            self._changed(key)


def _key(kind: str, body: Raw) -> Key:
    meta = body["metadata"]
    return Key(kind, meta["namespace"], meta["name"])


def _is_older(body: Raw, known: Raw) -> bool:
    """Whether ``known`` is a later state of the same object: resource versions of one kind can be compared as numbers (KEP-5504)."""
    if _version(body)[0] != _version(known)[0]:
        return False
    versions = [item["metadata"].get("resourceVersion", "") for item in (body, known)]
    if all(version.isdecimal() for version in versions):
        return int(versions[0]) < int(versions[1])
    return _version(body)[1] < _version(known)[1]


def _version(body: Raw) -> tuple[str, int]:
    meta = body["metadata"]
    return meta["uid"], int(meta.get("generation") or 0)
