"""Tasks and tasksets one by one: create, replace, prepare, retrieve, list, tag, delete. ``publish`` does it for whole suites.

Source: nemo.md sections 7, 9 to 12. Every write waits until the operator has judged it and raises when it says no.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from seatrial.api.names import API_VERSION, TASK, TASKSET
from seatrial.effects.store import Store
from seatrial.errors import AlreadyExists, InvalidSpec, NotFound, SeatrialError
from seatrial.sdk.cluster import Cluster, Raw
from seatrial.sdk.metric_bundle import Metrics
from seatrial.sdk.pack_store import Stored, pack_and_store
from seatrial.sdk.publish import PublishOptions, metadata_labels, parse_destination, settled_condition, task_metadata, wait_for
from seatrial.sdk.revisions import Revision, find_revision, list_revisions
from seatrial.sdk.task_metrics import Packager, metric_entries, view_entries
from seatrial.taskpkg.check import CheckedTask, check_task
from seatrial.taskpkg.collection import HarborTask, PlainTask
from seatrial.taskpkg.instruction import record_instruction
from seatrial.taskpkg.native import INSTRUCTION_FILE
from seatrial.taskpkg.pack import FORMAT

WAIT_SECONDS: Final = 300.0
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class FieldsDifferFromPackage(SeatrialError):
    """The folder changed after it was discovered."""


class NotVerified(SeatrialError):
    """The operator refused the object; ``reason`` is its word for it."""

    def __init__(self, kind: str, name: str, reason: str, message: str) -> None:
        super().__init__(f"{kind} {name}: {reason}: {message}")
        self.reason = reason


@dataclass(frozen=True)
class PreparedTask:
    """A task whose archive is in the store, so that only the object is missing; ``create`` and ``replace`` take it as it is."""

    native_id: str
    spec: Mapping[str, Any]
    metadata: Mapping[str, Any]


class TaskPublicationError(SeatrialError, RuntimeError):
    """The archive is stored, the object could not be written. ``replace(name, task=error.prepared_task)`` repeats only the latter."""

    def __init__(self, name: str, prepared_task: PreparedTask, cause: Exception) -> None:
        super().__init__(f"Task {name} could not be written, its archive is stored: {cause}")
        self.prepared_task = prepared_task


class StoredObject:
    """A Task or Taskset as the cluster has it."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    @property
    def id(self) -> str:
        """UID: names this object and not a later one of the same name."""
        return str(self.raw["metadata"]["uid"])

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def revision(self) -> int | None:
        found = self.raw.get("status", {}).get("revision")
        return None if found is None else int(found)

    @property
    def digest(self) -> str | None:
        found = self.raw.get("status", {}).get("digest")
        return None if found is None else str(found)

    @property
    def tags(self) -> Mapping[str, int]:
        return dict(self.raw.get("status", {}).get("tags", {}))

    @property
    def pinned(self) -> str:
        """``namespace/name#digest``."""
        return f"{self.namespace}/{self.name}#{self.digest}"

    def __repr__(self) -> str:
        return f"<{self.raw.get('kind', 'object')} {self.namespace}/{self.name} revision {self.revision}>"


class _Collection:
    """What Task and Taskset have in common."""

    kind: str
    condition: str

    def __init__(self, cluster: Cluster, store: Callable[[], Store], *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._cluster, self._store, self._wait_seconds = cluster, store, wait_seconds

    def retrieve(
        self, name: str, *, revision: str | int | None = None, tag: str | None = None, namespace: str | None = None
    ) -> StoredObject:
        """The object, or its content as of a revision (number or digest) or tag.

        Raises:
            NotFound: no such object or revision.
        """
        item = self._cluster.get(self.kind, name, namespace=namespace)
        item.setdefault("kind", self.kind)
        if revision is None and tag is None:
            return StoredObject(item)
        document = find_revision(self._store(), item, str(revision if revision is not None else tag))
        status = {**item.get("status", {}), "revision": document["revision"], "digest": document["digest"]}
        return StoredObject({**item, "spec": document["content"], "status": status})

    def list_revisions(self, name: str, *, namespace: str | None = None) -> tuple[Revision, ...]:
        """All published revisions, newest first.

        Raises:
            NotFound: no such object.
        """
        item = self._cluster.get(self.kind, name, namespace=namespace)
        item.setdefault("kind", self.kind)
        return list_revisions(self._store(), item)

    def tag(self, name: str, *, tag: str, revision: str | None = None, namespace: str | None = None) -> StoredObject:
        """Give a revision a tag; a tag that another revision has moves.

        Args:
            revision: digest or tag of a published revision; None: the current one.

        Raises:
            InvalidSpec: ``latest``, or a tag that looks like a digest.
            NotVerified: no such revision.
        """
        if tag == "latest" or _DIGEST.fullmatch(tag):
            raise InvalidSpec("tag", f"{tag[:20]!r} cannot be set by hand: latest moves by itself, and a tag must not look like a digest")
        item = self._cluster.get(self.kind, name, namespace=namespace)
        changed = self._cluster.merge(self.kind, name, tag_patch(item, [tag], revision), namespace=namespace)
        return self._settled(changed, namespace)

    def delete(self, name: str, *, namespace: str | None = None) -> None:
        """Remove the object. Archives and revisions stay.

        Raises:
            NotFound: it does not exist.
        """
        self._cluster.delete(self.kind, name, namespace=namespace)

    def _settled(self, item: Raw, namespace: str | None) -> StoredObject:
        """``item`` once the operator has judged its present generation.

        Raises:
            NotVerified: it says no, or nothing in time.
        """
        name, uid = item["metadata"]["name"], item["metadata"]["uid"]
        at = self._cluster.at(namespace) if namespace else self._cluster
        for seen in wait_for(at, self.kind, {name}, self.condition, timeout_seconds=self._wait_seconds):
            if seen["metadata"]["uid"] != uid:
                break
            judged = settled_condition(seen, self.condition)
            if judged is None or judged["status"] != "True":
                raise NotVerified(self.kind, name, (judged or {}).get("reason", ""), (judged or {}).get("message", ""))
            seen.setdefault("kind", self.kind)
            return StoredObject(seen)
        raise NotVerified(self.kind, name, "Pending", f"the operator did not judge it within {self._wait_seconds:.0f} s (seatrial doctor)")


class Tasks(_Collection):
    """``Evaluator.tasks``."""

    kind = TASK
    condition = "Verified"

    def prepare(
        self,
        task: HarborTask,
        *,
        namespace: str | None = None,
        fileset_ref: str | None = None,
        path_prefix: str = "",
        tags: Sequence[str] = (),
        metrics: Sequence[Mapping[str, Any]] = (),
        views: Mapping[str, Any] | None = None,
        default_image: str | None = None,
        metric_bundle_packager: Packager | None = None,
    ) -> PreparedTask:
        """Everything but the object: check again, pack, store, read back.

        Args:
            metrics: entries of ``spec.metrics`` beside those of ``task.metrics``; ``views`` likewise.
            metric_bundle_packager: makes a bundle of a metric class of one's own.

        Raises:
            FieldsDifferFromPackage: the folder is not what was discovered: rediscover.
            TaskMetricsRefused: the reward metric is missing, doubled or customised, or a class of one's own has no packager.
            InvalidSpec: a plain task, or a destination that no reference can name.
        """
        if isinstance(task, PlainTask):
            raise InvalidSpec("task", f"{task.id!r} is a plain task: archive options require a discovered Harbor task")
        place = namespace or self._cluster.namespace
        entries = metric_entries(task, packager=metric_bundle_packager, bundles=lambda: Metrics(self._store(), place))
        options = PublishOptions(fileset=fileset_ref, prefix=path_prefix)
        destination = parse_destination(options, place)
        checked = _same_package(task, default_image)
        with tempfile.TemporaryDirectory(prefix="seatrial-publish-") as scratch:
            stored = pack_and_store(
                str(task.source_dir),
                settings=self._store().settings,
                destination=destination,
                default_image=default_image,
                scratch=scratch,
            )
        _require_stored(stored)
        metadata = task_metadata(checked)
        spec = {
            "source": {"ref": stored.ref, "sha256": stored.sha256, "format": FORMAT},
            "nativeTaskId": task.id,
            "metadata": metadata,
            "tags": list(tags),
            "metrics": [*entries, *(dict(metric) for metric in metrics)],
            "views": {**view_entries(task.views), **(views or {})},
        }
        return PreparedTask(task.id, {name: value for name, value in spec.items() if value}, metadata)

    def create(self, name: str, *, task: HarborTask | PreparedTask, namespace: str | None = None, **options: Any) -> StoredObject:
        """Publish under a new name; ``options`` are those of ``prepare``.

        Raises:
            AlreadyExists: the name is taken.
            TaskPublicationError: the archive is stored, the object is not (or its answer was lost).
            NotVerified: the operator refused it.
        """
        return self._write(name, task, namespace, options, self._cluster.create)

    def replace(self, name: str, *, task: HarborTask | PreparedTask, namespace: str | None = None, **options: Any) -> StoredObject:
        """Publish under a name that may exist; identical content keeps its revision.

        Raises:
            TaskPublicationError, NotVerified: as ``create``.
        """
        return self._write(name, task, namespace, options, self._cluster.apply)

    def list(
        self,
        *,
        native_id: str | None = None,
        tag: str | None = None,
        metric: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        namespace: str | None = None,
    ) -> Iterator[StoredObject]:
        """Tasks that meet all of the given conditions."""
        for item in self._cluster.list(TASK, namespace=namespace):
            spec, status = item["spec"], item.get("status", {})
            if native_id is not None and native_id not in (status.get("nativeTaskId"), spec.get("nativeTaskId")):
                continue
            if tag is not None and tag not in status.get("tags", {}):
                continue
            if metric is not None and all(metric not in (entry.get("type"), entry.get("ref")) for entry in spec.get("metrics", [])):
                continue
            if metadata and not metadata.items() <= spec.get("metadata", {}).items():
                continue
            yield StoredObject({"kind": TASK, **item})

    def _write(
        self, name: str, task: HarborTask | PreparedTask, namespace: str | None, options: Mapping[str, Any], send: Callable[..., Raw]
    ) -> StoredObject:
        check_name(name)
        if isinstance(task, PreparedTask):
            if options:
                raise InvalidSpec(", ".join(options), "preparation options cannot be used with a prepared task")
            prepared = task
        else:
            prepared = self.prepare(task, namespace=namespace, **options)
        body = {
            "apiVersion": API_VERSION,
            "kind": TASK,
            "metadata": {
                "name": name,
                "namespace": namespace or self._cluster.namespace,
                "labels": metadata_labels(prepared.metadata),
            },
            "spec": dict(prepared.spec),
        }
        return self._settled(_sent(name, prepared, lambda: send(TASK, body, namespace=namespace)), namespace)


class Tasksets(_Collection):
    """``Evaluator.tasksets``."""

    kind = TASKSET
    condition = "Pinned"

    def create(self, name: str, *, tasks: Sequence[str | StoredObject], namespace: str | None = None, **spec: Any) -> StoredObject:
        """A new set of tasks, given as ids, references or stored tasks; each is pinned to its revision of this moment.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: an id or a name that no task has.
            NotVerified: the operator refused it.
        """
        body = self._body(name, tasks, namespace, spec)
        return self._settled(self._cluster.create(TASKSET, body, namespace=namespace), namespace)

    def replace(self, name: str, *, tasks: Sequence[str | StoredObject], namespace: str | None = None, **spec: Any) -> StoredObject:
        """As ``create``, for a name that may exist; the same members in any order keep the revision.

        Raises:
            NotFound, NotVerified: as ``create``.
        """
        body = self._body(name, tasks, namespace, spec)
        return self._settled(self._cluster.apply(TASKSET, body, namespace=namespace), namespace)

    def list(self, *, tag: str | None = None, namespace: str | None = None) -> Iterator[StoredObject]:
        """All tasksets, or those that have a tag."""
        for item in self._cluster.list(TASKSET, namespace=namespace):
            if tag is None or tag in item.get("status", {}).get("tags", {}):
                yield StoredObject({"kind": TASKSET, **item})

    def _body(self, name: str, tasks: Sequence[str | StoredObject], namespace: str | None, spec: Mapping[str, Any]) -> Raw:
        check_name(name)
        members = [self._pinned(task, namespace) for task in tasks]
        if twice := sorted({member for member in members if members.count(member) > 1}):
            raise InvalidSpec("tasks", f"duplicate task: {', '.join(twice)}")
        metadata = {"name": name, "namespace": namespace or self._cluster.namespace}
        return {"apiVersion": API_VERSION, "kind": TASKSET, "metadata": metadata, "spec": {"tasks": sorted(members), **spec}}

    def _pinned(self, task: str | StoredObject, namespace: str | None) -> str:
        """A reference with the digest of the current revision, where it names none."""
        if isinstance(task, StoredObject):
            return task.pinned
        if "#" in task:
            return task
        if _UID.fullmatch(task):
            for item in self._cluster.list(TASK, namespace=namespace):
                if item["metadata"]["uid"] == task:
                    return StoredObject(item).pinned
            raise NotFound(f"Task ID {task} does not identify an available published task")
        place, _, name = task.rpartition("/")
        found = StoredObject(self._cluster.get(TASK, name, namespace=place or namespace))
        if found.digest is None:
            raise NotVerified(TASK, found.name, "Pending", "it is not verified yet: publish it first")
        return found.pinned


def tag_patch(item: Raw, tags: Sequence[str], revision: str | None) -> Raw:
    """Merge patch that moves ``tags`` to ``revision``, a digest or tag; None: to the current revision."""
    spec = item["spec"]
    if revision is None:
        gone = dict.fromkeys(tag for tag in tags if tag in spec.get("tagPointers", {}))
        return {"spec": {"tags": list(dict.fromkeys([*spec.get("tags", []), *tags])), **({"tagPointers": gone} if gone else {})}}
    kept = [tag for tag in spec.get("tags", []) if tag not in tags]
    return {"spec": {**({"tags": kept} if "tags" in spec else {}), "tagPointers": dict.fromkeys(tags, revision)}}


def check_name(name: str) -> None:
    """Refuse what cannot be the name of an object.

    Raises:
        InvalidSpec: with the rule.
    """
    if not _NAME.fullmatch(name):
        raise InvalidSpec("name", f"invalid name {name[:80]!r}: up to 253 of a-z, 0-9, '-' and '.', with a letter or digit at both ends")


def _same_package(task: HarborTask, default_image: str | None) -> CheckedTask:
    checked = check_task(task.source_dir, default_image=default_image)
    file = Path(task.source_dir) / INSTRUCTION_FILE
    text = record_instruction(file.read_text("utf-8")) if checked.valid and file.is_file() else ""
    if not checked.valid or checked.native_id != task.id or (text or checked.native_id) != task.inputs["instruction"]:
        raise FieldsDifferFromPackage(f"Harbor task fields differ from the package at {task.source_dir}; rediscover before publication")
    return checked


def _require_stored(stored: Stored) -> None:
    if stored.outcome == "failed":
        raise SeatrialError(f"{stored.folder} could not be stored: {stored.message}")


def _sent(name: str, prepared: PreparedTask, send: Callable[[], Raw]) -> Raw:
    try:
        return send()
    except AlreadyExists:
        raise
    except SeatrialError as error:
        raise TaskPublicationError(name, prepared, error) from error
