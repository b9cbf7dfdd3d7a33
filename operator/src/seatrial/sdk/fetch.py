"""Published tasks back as folders; every byte is checked before it is unpacked."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from seatrial.api.names import TASK, TASKSET
from seatrial.effects.store import Store
from seatrial.errors import InvalidSpec, NotFound, SeatrialError
from seatrial.sdk.cluster import Cluster
from seatrial.sdk.pack_store import key_of
from seatrial.sdk.revisions import find_revision
from seatrial.taskpkg.collection import PlainTask
from seatrial.taskpkg.extract import extract_archive

MANIFEST_BYTES: Final = 256 * 1024 * 1024


class Archive(NamedTuple):
    """A stored task."""

    name: str
    key: str
    sha256: str


def task_archives(cluster: Cluster, store: Store, reference: str, *, taskset: bool) -> tuple[Archive, ...]:
    """What a reference ``name[#tag or digest]`` (also ``ns/name``) stands for.

    Raises:
        NotFound: no such object or revision.
    """
    entity, _, fragment = reference.replace("@", "#", 1).partition("#")
    namespace, _, name = entity.rpartition("/")
    item = cluster.get(TASKSET if taskset else TASK, name, namespace=namespace or None)
    if not taskset:
        source = find_revision(store, item, fragment)["content"]["source"] if fragment else item["spec"]["source"]
        return (Archive(name, key_of(source["ref"]), source["sha256"]),)
    if fragment:
        manifest = find_revision(store, item, fragment)["manifest"]
        key, sha256 = manifest["key"], manifest["sha256"]
    else:
        manifest = item.get("status", {}).get("manifest")
        if manifest is None:
            raise NotFound(f"Taskset {name} is not pinned yet: seatrial get taskset {name}")
        key, sha256 = manifest["ref"], manifest["sha256"]
    data = store.get(key, max_bytes=MANIFEST_BYTES)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SeatrialError(f"{key} does not have the sha256 that the Taskset states: publish it again")
    members = [json.loads(line) for line in data.splitlines() if line]
    return tuple(Archive(member["ref"].partition("#")[0].rpartition("/")[2], member["archive"], member["sha256"]) for member in members)


def member_tasks(cluster: Cluster, store: Store, taskset: str) -> tuple[PlainTask, ...]:
    """The tasks of a Taskset by their native ids, without their folders.

    Raises:
        NotFound: no such Taskset or revision.
    """
    names = {archive.name for archive in task_archives(cluster, store, taskset, taskset=True)}
    namespace = taskset.partition("#")[0].rpartition("/")[0] or None
    found = ((item["metadata"]["name"], item.get("status", {}).get("nativeTaskId")) for item in cluster.list(TASK, namespace=namespace))
    return tuple(PlainTask(native, native, {}) for name, native in found if name in names and native)


def fetch_archive(store: Store, archive: Archive, directory: Path) -> Path:
    """Unpack an archive below ``directory``; returns the task's folder.

    Raises:
        InvalidSpec: the folder exists.
        ArchiveError: the bytes are not what the Task says, or unsafe.
    """
    # Unpacked beside the target and moved, so that a refused archive leaves nothing.
    with tempfile.TemporaryDirectory(prefix=".seatrial-", dir=directory) as scratch:
        with store.open(archive.key) as stream:
            extracted = extract_archive(cast(BinaryIO, stream), Path(scratch) / "task", sha256=archive.sha256)
        inner = Path(scratch) / "task"
        source = inner / extracted.root_name if (inner / extracted.root_name).is_dir() else inner
        target = directory / extracted.root_name
        if target.exists() or target.is_symlink():
            raise InvalidSpec(str(target), "exists already: choose another -d")
        source.rename(target)
    return target
