"""References to Tasks and Tasksets: ``name``, ``ns/name``, each with ``#tag`` or ``#digest``; and reading the objects behind them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from seatrial.api.names import GROUP, PLURALS, VERSION
from seatrial.api.reasons import Reason
from seatrial.core.frozen import PlanRefused
from seatrial.effects.kube import Kube, group_path
from seatrial.effects.settings import Settings
from seatrial.errors import NotFound

LATEST: Final = "latest"
GETS: Final = 20
"""More objects than this are read by one LIST of their namespace."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Ref(NamedTuple):
    namespace: str
    name: str
    fragment: str
    """Tag or digest; ``latest`` where the reference has none."""

    @property
    def is_digest(self) -> bool:
        return _DIGEST.fullmatch(self.fragment) is not None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}#{self.fragment}"


class NotYet(PlanRefused):
    """The reference may come to resolve without a change of the spec: wait before this is final.

    ``in_work``: what it names is being judged; only then the wait has no end.
    """

    def __init__(self, reason: Reason, message: str, *, in_work: bool = False) -> None:
        super().__init__(reason, message)
        self.in_work = in_work


def parse_ref(text: str, *, namespace: str) -> Ref:
    """A reference of an object in ``namespace``; its form was checked by the schema."""
    entity, _, fragment = text.partition("#")
    other, _, name = entity.rpartition("/")
    return Ref(other or namespace, name, fragment or LATEST)


def check_namespace(ref_namespace: str, *, namespace: str, settings: Settings, text: str) -> None:
    """Refuse a reference into a namespace that is not shared.

    Raises:
        PlanRefused: CrossNamespaceReference.
    """
    if not settings.may_refer(namespace, ref_namespace):
        message = f"{text} is in namespace {ref_namespace}, and the operator's configuration does not share it with {namespace}"
        raise PlanRefused(Reason.CROSS_NAMESPACE, message)


class Objects:
    """Fresh reads of our own objects: what is pinned must not come from a cache that lags."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def get(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """One object, or None."""
        try:
            return await self._kube.get(group_path(GROUP, VERSION, PLURALS[kind], namespace=namespace, name=name))
        except NotFound:
            return None

    async def get_many(self, kind: str, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Objects by (namespace, name); those that do not exist are missing in the answer."""
        wanted: dict[str, set[str]] = {}
        for namespace, name in keys:
            wanted.setdefault(namespace, set()).add(name)
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for namespace, names in sorted(wanted.items()):
            if len(names) <= GETS:
                bodies = await asyncio.gather(*(self.get(kind, namespace, name) for name in sorted(names)))
                found |= {(namespace, body["metadata"]["name"]): body for body in bodies if body is not None}
            else:
                bodies_all = await list_objects(self._kube, kind, namespace)
                found |= {(namespace, body["metadata"]["name"]): body for body in bodies_all if body["metadata"]["name"] in names}
        return found


async def list_objects(kube: Kube, kind: str, namespace: str | None) -> list[dict[str, Any]]:
    """All objects of a kind, in pages of 500."""
    path, params = group_path(GROUP, VERSION, PLURALS[kind], namespace=namespace), {"limit": "500"}
    items: list[dict[str, Any]] = []
    while True:
        page = await kube.get(path, params)
        items += page.get("items") or ()
        token = page["metadata"].get("continue")
        if not token:
            return items
        params["continue"] = token
