"""Archives and metric scripts that nothing refers to any more. They are only ever found here; who removes them says so.

What keeps an archive: a Task, a stored revision of a Task that exists, a Taskset's pinned members (of any of its revisions), and the
plan of an EvalJob that exists. What keeps a script: a Taskset that exists, any of its revisions, and an EvalJob that exists or its plan.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from seatrial.api.names import EVALJOB, TASK, TASKSET
from seatrial.core.naming import revisions_prefix
from seatrial.effects.store import Entry, Store
from seatrial.errors import NotFound
from seatrial.scoring.script_archive import ARCHIVE_FILE
from seatrial.sdk.cluster import Cluster
from seatrial.sdk.fetch import MANIFEST_BYTES
from seatrial.sdk.pack_store import ARCHIVE_NAME, key_of
from seatrial.sdk.results import PLAN_BYTES, JobFiles
from seatrial.sdk.revisions import DOCUMENT_BYTES
from seatrial.taskpkg.dataset import METRIC_FILE

_FILE: Final = re.compile(
    rf"filesets/.+/(?:[0-9a-f]{{64}}/{ARCHIVE_NAME}|metrics/[0-9a-f]{{64}}/(?:{re.escape(METRIC_FILE)}|{re.escape(ARCHIVE_FILE)}))"
)
_REVISION: Final = re.compile(r"[1-9]\d{0,8}\.json")


def unreferenced_files(
    cluster: Cluster, store: Store, *, namespaces: tuple[str, ...], older_than: datetime.timedelta, now: datetime.datetime
) -> Iterator[Entry]:
    """Archives and scripts in the filesets of ``namespaces`` that nothing in the whole cluster refers to.

    Those younger than ``older_than`` are left out: a publication stores files before it writes the objects that name them.

    Raises:
        Forbidden: we may not list everywhere, so nothing can be known.
    """
    kept = referenced_keys(cluster, store)
    for namespace in namespaces:
        for entry in store.list(f"filesets/{namespace}/"):
            young = entry.modified is None or now - entry.modified < older_than
            if _FILE.fullmatch(entry.key) and entry.key not in kept and not young:
                yield entry


def referenced_keys(cluster: Cluster, store: Store) -> frozenset[str]:
    """Keys of all archives and scripts that something refers to."""
    keys: set[str] = set()
    for item in cluster.list(TASK, all_namespaces=True):
        keys.add(key_of(item["spec"]["source"]["ref"]))
        for document in _documents(store, item["metadata"]["namespace"], "task", item["metadata"]["name"]):
            keys.add(key_of(document["content"]["source"]["ref"]))
    for item in cluster.list(TASKSET, all_namespaces=True):
        for document in _documents(store, item["metadata"]["namespace"], "taskset", item["metadata"]["name"]):
            keys |= _members(store, document["manifest"]["key"])
            keys |= _keys([document["content"].get("metricScript")])
        keys |= _keys([item["spec"].get("metricScript")])
        if (given := item["spec"].get("manifest")) is not None:
            keys |= _members(store, key_of(given["ref"]))
    for item in cluster.list(EVALJOB, all_namespaces=True):
        # The job may not be planned yet.
        keys |= _keys(metric.get("script") for metric in item["spec"].get("metrics") or ())
        try:
            plan = json.loads(store.get(f"{JobFiles.of(store, item).prefix}plan.json", max_bytes=PLAN_BYTES))
        except NotFound:
            continue
        keys |= {task["archive"] for task in plan["tasks"]} | {script["key"] for script in plan.get("scripts", ())}
    return frozenset(keys)


def _keys(files: Iterable[Mapping[str, Any] | None]) -> set[str]:
    """Keys of stored files ``{ref, sha256}``."""
    return {key_of(file["ref"]) for file in files if file is not None}


def _documents(store: Store, namespace: str, kind: str, name: str) -> Iterator[dict[str, Any]]:
    prefix = revisions_prefix(namespace, kind, name)
    for entry in store.list(prefix):
        if _REVISION.fullmatch(entry.key.removeprefix(prefix)):
            yield json.loads(store.get(entry.key, max_bytes=DOCUMENT_BYTES))


def _members(store: Store, key: str) -> set[str]:
    try:
        data = store.get(key, max_bytes=MANIFEST_BYTES)
    except NotFound:
        return set()
    return {json.loads(line)["archive"] for line in data.splitlines() if line}
