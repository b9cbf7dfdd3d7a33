"""Publish a suite: check all, then archives, then Task objects, then the Taskset. Running it again continues and changes nothing.

Why the order: an object that exists names bytes that exist, and a Taskset names tasks that are verified. Nothing is rolled back: what a
failed run stored is found by the next one, because archives are named by their digest. Source: nemo.md section 7.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from seatrial.api.names import ANNOTATION_AGAIN, API_VERSION, GROUP, TASK, TASKSET
from seatrial.api.taskset import MAX_TASKS
from seatrial.core.naming import label_value
from seatrial.effects.store import Store, StoreSettings
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.sdk.cluster import Cluster, Raw
from seatrial.sdk.images import ImageBuild, TaskImage, build_images
from seatrial.sdk.metric_packages import PLATFORM, pack_script
from seatrial.sdk.metric_script import MetricScriptError
from seatrial.sdk.pack_store import Destination, Stored, key_of, pack_and_store
from seatrial.taskpkg.check import CheckedTask, check_suite, check_tasks
from seatrial.taskpkg.dataset import METRIC_FILE, check_dataset, metric_script
from seatrial.taskpkg.discover import Discovery, discover, select_names
from seatrial.taskpkg.names import object_name
from seatrial.taskpkg.pack import FORMAT
from seatrial.taskpkg.parse import Problem
from seatrial.taskpkg.paths import is_safe_path

DEFAULT_FILESET: Final = "harbor-tasks"
ANNOTATION_GIT_ORIGIN: Final = f"{GROUP}/git-origin"
ANNOTATION_GIT_COMMIT: Final = f"{GROUP}/git-commit"
# Values of [metadata] that also become labels, so that `kubectl get tasks -l` can choose by them.
LABELLED: Final = ("difficulty", "category")
# Below this, starting processes costs more than they save.
_TASKS_FOR_PROCESSES: Final = 24
_APPLY_THREADS: Final = 8
HEAL_SECONDS: Final = 30.0
"""How long a task that was refused before may take to be verified after all."""
# Tasks handed to a process at a time.
_CHUNK: Final = 8

Outcome = Literal["created", "revised", "unchanged", "failed"]
Stage = Literal["check", "build", "pack", "upload", "register", "verify", "taskset"]


class Progress(NamedTuple):
    """How far a stage is."""

    stage: Stage
    done: int
    total: int
    name: str = ""


@dataclass(frozen=True)
class PublishOptions:
    """What to publish, and where to."""

    taskset: str | None = None
    """None: tasks only."""
    fileset: str | None = None
    """``namespace/fileset`` or ``fileset``; None: ``harbor-tasks`` of the namespace."""
    prefix: str = ""
    """Folder inside the fileset; never taken from the suite's own name."""
    tags: Sequence[str] = ()
    description: str = ""
    recursive: bool = False
    lenient: bool = False
    """Skip what is no valid task, as Harbor does, instead of refusing the suite."""
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    limit: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Only tasks whose ``[metadata]`` has these values, such as ``{"difficulty": "easy"}``."""
    default_image: str | None = None
    create: bool = False
    """Fail where a Task exists already."""
    partial: bool = False
    """Publish what is good although something is bad, and write the Taskset of that."""
    name_template: str = "{name}"
    """Object name of a task; ``{name}`` is the one made from the native id, ``{dir}`` that of the folder."""
    metric_script: bool = True
    """Publish the suite's ``metric.py``, so that jobs run it."""
    metric_platform: str = PLATFORM
    """Of the nodes that run it, as uv names platforms: for packages of the script that are compiled."""
    metrics: Sequence[str] = ()
    """Aggregates that every job on the Taskset computes, such as those of a registry's dataset."""
    dry_run: bool = False
    timeout_seconds: float = 300
    """For verification of all tasks together."""
    processes: int = field(default_factory=lambda: min(4, os.cpu_count() or 1))
    build: ImageBuild | None = None
    """Build what the tasks' Dockerfiles describe before anything is stored, and record the digests with the Tasks."""


class FoundSuite(NamedTuple):
    """A suite as it lies on the disk, checked and filtered."""

    root: Path
    tasks: tuple[CheckedTask, ...]
    problems: tuple[Problem, ...]
    """Of the suite as a whole; those of a task are with the task."""

    @property
    def bad(self) -> tuple[CheckedTask, ...]:
        return tuple(task for task in self.tasks if not task.valid)

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")


@dataclass(frozen=True)
class PublishedTask:
    """What became of one task."""

    name: str
    """Of the object."""
    native_id: str
    folder: Path
    outcome: Outcome
    stored: bool = False
    """The archive is in the store."""
    ref: str = ""
    sha256: str = ""
    size_bytes: int = 0
    revision: int | None = None
    digest: str | None = None
    message: str = ""


@dataclass(frozen=True)
class PublishedTaskset:
    """What became of the Taskset."""

    name: str
    outcome: Outcome
    members: int = 0
    revision: int | None = None
    digest: str | None = None
    message: str = ""


@dataclass(frozen=True)
class PublishReport:
    """Everything that a publication did."""

    namespace: str
    tasks: tuple[PublishedTask, ...]
    taskset: PublishedTaskset | None
    dry_run: bool = False
    metric_script: Mapping[str, str] | None = None
    """``{ref, sha256}`` of the suite's ``metric.py``, or of the archive that it is in with its packages."""
    metric_script_note: str = ""
    """Why its packages did not come along; empty where they did, or it needs none."""
    skipped_taskset: bool = False
    """A Taskset was asked for and not written, because a task failed."""
    warnings: int = 0
    """What ``seatrial check`` warns of in these tasks."""

    @property
    def failed(self) -> tuple[PublishedTask, ...]:
        return tuple(task for task in self.tasks if task.outcome == "failed")

    @property
    def succeeded(self) -> bool:
        taskset_failed = self.taskset is not None and self.taskset.outcome == "failed"
        return not self.failed and not taskset_failed and not self.skipped_taskset


class SuiteRefused(SeatrialError):
    """The suite has faults; nothing was stored. ``suite`` has them all."""

    def __init__(self, suite: FoundSuite) -> None:
        self.suite = suite
        parts = []
        if suite.bad:
            parts.append(
                f"{len(suite.bad)} of {len(suite.tasks)} tasks cannot be published: {', '.join(task.path.name for task in suite.bad)}"
            )
        parts += [problem.message for problem in suite.errors[:3]]
        super().__init__(
            f"{'; '.join(parts)}. Nothing was stored. seatrial check {suite.root} names every fault; --partial publishes the rest"
        )


def find_suite(path: Path, options: PublishOptions, *, progress: Callable[[Progress], None] = lambda _: None) -> FoundSuite:
    """Discover, filter and check. Nothing is written and nobody is asked.

    Raises:
        InvalidSpec: no task is left by the filters.
    """
    found = discover(path, recursive=options.recursive, lenient=options.lenient)
    folders = _filtered(found, options)
    checked = []
    for task in check_tasks(folders, default_image=options.default_image, processes=options.processes):
        checked.append(task)
        progress(Progress("check", len(checked), len(folders), task.native_id))
    if options.metadata:
        checked = [task for task in checked if _matches(task, options.metadata)]
        if not checked:
            raise InvalidSpec("filter", f"no task has {', '.join(f'{name} {value}' for name, value in options.metadata.items())}")
    problems = (*found.problems, *check_suite(checked), *(() if found.kind == "task" else check_dataset(found.root, checked)))
    return FoundSuite(found.root, tuple(checked), tuple(dict.fromkeys(problems)))


def publish(
    path: Path,
    options: PublishOptions,
    *,
    cluster: Cluster,
    settings: StoreSettings,
    progress: Callable[[Progress], None] = lambda _: None,
) -> PublishReport:
    """Publish the task or suite at ``path``.

    Returns:
        What became of every task. Failures of single tasks are in it, not raised.

    Raises:
        SuiteRefused: something is wrong with the suite and ``options.partial`` is not set; nothing was stored.
        InvalidSpec: an option does not fit.
    """
    suite = find_suite(path, options, progress=progress)
    if (suite.bad or suite.errors) and not options.partial:
        raise SuiteRefused(suite)
    good = tuple(task for task in suite.tasks if task.valid)
    destination = parse_destination(options, cluster.namespace)
    names = {task.path: task_object_name(task, options) for task in good}
    images = _images(good, options, progress)
    collisions = _collisions(names)
    existing = _existing(cluster, TASK, set(names.values()))
    if not options.dry_run:
        # One clear error instead of one a task.
        Store(settings).ping()
    stored = {
        item.folder: item
        for item in _store_all([task for task in good if task.path not in collisions], options, destination, settings, progress)
    }
    drafts = [
        _draft(
            task,
            names[task.path],
            options,
            stored=stored.get(str(task.path)),
            existing=existing.get(names[task.path]),
            collision=collisions.get(task.path),
            images=images.get(task.path, ()),
        )
        for task in good
    ]
    refused = tuple(
        PublishedTask(object_name(task.native_id), task.native_id, task.path, "failed", message=_first_error(task)) for task in suite.bad
    )
    if options.dry_run:
        done = tuple(draft.result for draft in drafts)
    else:
        annotations = git_annotations(suite.root)
        registered = _register(drafts, cluster=cluster, options=options, annotations=annotations, progress=progress)
        # What these were judged before is what is seen until they are judged again.
        healing = {draft.result.name for draft in drafts if draft.again}
        for _ in wait_for(cluster, TASK, healing, "Verified", timeout_seconds=min(HEAL_SECONDS, options.timeout_seconds), only_true=True):
            pass
        done = _verified(registered, cluster=cluster, options=options, progress=progress)
    tasks = tuple(sorted((*done, *refused), key=lambda task: str(task.folder)))
    script, note = _store_script(suite, options, destination, settings)
    taskset = None
    failed = any(task.outcome == "failed" for task in tasks)
    write = options.taskset is not None and (not failed or options.partial)
    if write:
        taskset = _publish_taskset(
            tasks, cluster=cluster, options=options, settings=settings, root=suite.root, script=script, progress=progress
        )
    return PublishReport(
        cluster.namespace,
        tasks,
        taskset,
        options.dry_run,
        metric_script=script,
        metric_script_note=note,
        skipped_taskset=options.taskset is not None and not write,
        warnings=sum(
            item.severity == "warning" for problems in (suite.problems, *(task.problems for task in suite.tasks)) for item in problems
        ),
    )


def parse_destination(options: PublishOptions, namespace: str) -> Destination:
    """Where archives go.

    Raises:
        InvalidSpec: a part is not allowed in a reference.
    """
    text = options.fileset or DEFAULT_FILESET
    place, _, fileset = text.rpartition("/")
    parts = {"--fileset": [place or namespace, fileset], "--prefix": options.prefix.split("/") if options.prefix else []}
    for option, values in parts.items():
        if not all(is_safe_path(value) and "/" not in value for value in values):
            raise InvalidSpec(
                option, f"{text if option == '--fileset' else options.prefix!r} is not usable: use NS/NAME or NAME of plain characters"
            )
    return Destination(place or namespace, fileset, options.prefix)


def task_object_name(task: CheckedTask, options: PublishOptions) -> str:
    """Name of the task's object.

    Raises:
        InvalidSpec: the template has other fields than ``{name}`` and ``{dir}``.
    """
    try:
        text = options.name_template.format(name=object_name(task.native_id), dir=task.path.name)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise InvalidSpec("--name-template", f"{options.name_template!r} may only use {{name}} and {{dir}}") from error
    return object_name(text)


def task_metadata(task: CheckedTask) -> Raw:
    """``[metadata]`` of task.toml as JSON; dates become text."""
    if task.config is None or not task.config.metadata:
        return {}
    return dict(json.loads(json.dumps(task.config.metadata, default=str)))


def metadata_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Labels for the values that tasks are often chosen by."""
    found = {f"{GROUP}/{name}": label_value(value) for name in LABELLED if isinstance(value := metadata.get(name), str)}
    return {name: value for name, value in found.items() if value}


def git_annotations(root: Path) -> dict[str, str]:
    """Origin and commit of the checkout that ``root`` lies in; empty where there is none. Credentials in the address are removed."""
    commit, origin = _git(root, "rev-parse", "HEAD"), _git(root, "config", "--get", "remote.origin.url")
    if commit and _git(root, "status", "--porcelain", "--", "."):
        commit += "-dirty"
    found = {ANNOTATION_GIT_COMMIT: commit, ANNOTATION_GIT_ORIGIN: _without_credentials(origin)}
    return {name: value for name, value in found.items() if value}


# --- private ----------------------------------------------------------------------------------------------------------------------------


class _Draft(NamedTuple):
    """A task on its way: the object to send, if one has to be sent, and what the outcome will be if all goes well."""

    result: PublishedTask
    body: Raw | None
    again: bool = False
    """The operator refused exactly this object, for its archive; now that the archive is stored it has to look again."""


def _filtered(found: Discovery, options: PublishOptions) -> Sequence[Path]:
    if found.kind == "task" or not (options.include or options.exclude or options.limit is not None):
        return found.tasks
    by_name = {task.name: task for task in found.tasks}
    try:
        chosen = select_names(by_name, include=options.include, exclude=options.exclude, limit=options.limit)
    except ValueError as error:
        raise InvalidSpec("--include-task-name", str(error)) from error
    if not chosen:
        raise InvalidSpec("--exclude-task-name", f"the filters leave none of {len(by_name)} tasks")
    return [by_name[name] for name in chosen]


def _matches(task: CheckedTask, wanted: Mapping[str, str]) -> bool:
    metadata = task_metadata(task)
    for name, value in wanted.items():
        found = metadata.get(name)
        if value not in [str(item) for item in (found if isinstance(found, list) else [found])]:
            return False
    return True


def _collisions(names: Mapping[Path, str]) -> dict[Path, str]:
    """Tasks whose object name another task of this publication has, with a message that names both."""
    users: dict[str, list[Path]] = {}
    for path, name in names.items():
        users.setdefault(name, []).append(path)
    return {
        path: f"{' and '.join(str(other.name) for other in paths)} would both become Task {name}: rename one, or use --name-template"
        for name, paths in users.items()
        if len(paths) > 1
        for path in paths
    }


def _existing(cluster: Cluster, kind: str, names: set[str]) -> dict[str, Raw]:
    return {item["metadata"]["name"]: item for item in cluster.list(kind) if item["metadata"]["name"] in names}


def _store_all(
    tasks: Sequence[CheckedTask],
    options: PublishOptions,
    destination: Destination,
    settings: StoreSettings,
    progress: Callable[[Progress], None],
) -> Iterator[Stored]:
    folders = [str(task.path) for task in tasks]
    with tempfile.TemporaryDirectory(prefix="seatrial-publish-") as scratch, _pool(options, len(folders)) as pool:
        work = functools.partial(
            pack_and_store,
            settings=None if options.dry_run else settings,
            destination=destination,
            default_image=options.default_image,
            scratch=scratch,
            # The operator reads, checks and extracts each archive before the task is verified, and that is waited for.
            read_back=False,
        )
        for done, item in enumerate(pool.map(work, folders, chunksize=_CHUNK), 1):
            progress(Progress("pack" if options.dry_run else "upload", done, len(folders), Path(item.folder).name))
            yield item


def _pool(options: PublishOptions, tasks: int) -> concurrent.futures.Executor:
    if options.processes <= 1 or tasks < _TASKS_FOR_PROCESSES:
        return concurrent.futures.ThreadPoolExecutor(max(2, options.processes))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["seatrial.sdk.pack_store"])
    return concurrent.futures.ProcessPoolExecutor(options.processes, mp_context=context)


def _draft(
    task: CheckedTask,
    name: str,
    options: PublishOptions,
    *,
    stored: Stored | None,
    existing: Raw | None,
    collision: str | None,
    images: Sequence[TaskImage] = (),
) -> _Draft:
    result = PublishedTask(name, task.native_id, task.path, "failed")
    if collision is not None:
        return _Draft(replace(result, message=collision), None)
    if broken := [image for image in images if image.outcome == "failed"]:
        return _Draft(replace(result, message=broken[0].message), None)
    if stored is None or stored.outcome == "failed":
        return _Draft(replace(result, message=stored.message if stored else "was not packed"), None)
    result = replace(result, stored=stored.outcome != "packed", ref=stored.ref, sha256=stored.sha256, size_bytes=stored.size_bytes)
    if existing is not None and options.create:
        return _Draft(replace(result, message=f"Task {name} exists: leave --create out to replace it"), None)
    spec: Raw = {
        "source": {"ref": stored.ref, "sha256": stored.sha256, "format": FORMAT},
        "nativeTaskId": task.native_id,
        **({"metadata": metadata} if (metadata := task_metadata(task)) else {}),
        **({"images": recorded} if (recorded := _recorded(images, options)) else {}),
        **({"tags": list(options.tags)} if options.tags else {}),
    }
    if existing is None:
        return _Draft(replace(result, outcome="created"), spec)
    status = existing.get("status", {})
    if _has(existing["spec"], spec):
        judged = settled_condition(existing, "Verified")
        again = judged is not None and judged["status"] == "False"
        return _Draft(replace(result, outcome="unchanged", revision=status.get("revision"), digest=status.get("digest")), None, again)
    return _Draft(replace(result, outcome="revised"), spec)


def _images(
    tasks: Sequence[CheckedTask], options: PublishOptions, progress: Callable[[Progress], None]
) -> dict[Path, tuple[TaskImage, ...]]:
    """The images of each task, built where they were missing."""
    build = options.build
    if build is None:
        return {}
    found: dict[Path, tuple[TaskImage, ...]] = {}
    for image in build_images(
        tasks,
        replace(build.options, dry_run=build.options.dry_run or options.dry_run),
        builder=build.builder,
        registry=build.registry,
        progress=lambda done, total, name: progress(Progress("build", done, total, name)),
    ):
        found[image.task] = (*found.get(image.task, ()), image)
    return found


def _recorded(images: Sequence[TaskImage], options: PublishOptions) -> Raw:
    """``spec.images`` of the Task."""
    platform = options.build.options.platform if options.build is not None else ""
    return {image.role: image.record(platform) for image in images if image.image}


def _has(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether every field of ``wanted`` has that value already; of ``tags`` it is enough that they are among those there."""
    return all(set(value) <= set(present.get(name, ())) if name == "tags" else present.get(name) == value for name, value in wanted.items())


def _register(
    drafts: Sequence[_Draft],
    *,
    cluster: Cluster,
    options: PublishOptions,
    annotations: Mapping[str, str],
    progress: Callable[[Progress], None],
) -> list[PublishedTask]:
    def send(draft: _Draft) -> PublishedTask:
        if draft.body is None:
            if draft.again:
                patch = {"metadata": {"annotations": {ANNOTATION_AGAIN: f"{time.time():.3f}"}}}
                return _attempted(draft.result, lambda: cluster.merge(TASK, draft.result.name, patch))
            return draft.result
        body = {
            "apiVersion": API_VERSION,
            "kind": TASK,
            "metadata": {
                "name": draft.result.name,
                "namespace": cluster.namespace,
                "annotations": dict(annotations),
                "labels": metadata_labels(draft.body.get("metadata", {})),
            },
            "spec": draft.body,
        }
        return _attempted(draft.result, lambda: cluster.create(TASK, body) if options.create else cluster.apply(TASK, body))

    done = []
    with concurrent.futures.ThreadPoolExecutor(_APPLY_THREADS) as pool:
        for result in pool.map(send, drafts):
            done.append(result)
            progress(Progress("register", len(done), len(drafts), result.name))
    return done


def _attempted(result: PublishedTask, send: Callable[[], object]) -> PublishedTask:
    try:
        send()
    except SeatrialError as error:
        return replace(result, outcome="failed", message=str(error))
    return result


def _verified(
    tasks: Sequence[PublishedTask], *, cluster: Cluster, options: PublishOptions, progress: Callable[[Progress], None]
) -> tuple[PublishedTask, ...]:
    """The tasks with revision and digest, once the operator has judged each of them."""
    results = {task.name: task for task in tasks if task.outcome != "failed"}
    waiting, total = set(results), len(results)
    for item in wait_for(cluster, TASK, waiting, "Verified", timeout_seconds=options.timeout_seconds):
        name = item["metadata"]["name"]
        results[name] = _judged(results[name], item)
        progress(Progress("verify", total - len(waiting), total, name))
    for name in waiting:
        message = f"the operator did not verify it within {options.timeout_seconds:.0f} s: is it running? (seatrial doctor) Then repeat"
        results[name] = replace(results[name], outcome="failed", message=message)
    return tuple(results.get(task.name, task) if task.outcome != "failed" else task for task in tasks)


def _judged(task: PublishedTask, item: Raw) -> PublishedTask:
    condition = settled_condition(item, "Verified")
    if condition is None or condition["status"] != "True":
        return replace(task, outcome="failed", message=f"{(condition or {}).get('reason')}: {(condition or {}).get('message')}")
    status = item["status"]
    return replace(task, revision=status.get("revision"), digest=status.get("digest"))


def wait_for(
    cluster: Cluster, kind: str, names: set[str], condition: str, *, timeout_seconds: float, only_true: bool = False
) -> Iterator[Raw]:
    """Objects as soon as their condition is decided; each is removed from ``names``. Ends when none is left or the time is over."""
    if not names:
        return
    end = time.monotonic() + timeout_seconds
    single = next(iter(names)) if len(names) == 1 else None
    for event in cluster.follow(kind, name=single, tick_seconds=timeout_seconds):
        if event is not None and event.type != "DELETED":
            name = event.object["metadata"]["name"]
            judged = settled_condition(event.object, condition) if name in names else None
            if judged is not None and (judged["status"] == "True" or not only_true):
                names.discard(name)
                yield event.object
        if not names or time.monotonic() > end:
            return


def settled_condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition, if it is True or False and belongs to the object's present generation."""
    generation = item["metadata"].get("generation", 0)
    for condition in item.get("status", {}).get("conditions", []):
        if condition["type"] == kind and condition["status"] in ("True", "False"):
            observed = condition.get("observedGeneration") or item["status"].get("observedGeneration", 0)
            # A store that does not answer is tried again by the operator.
            passing = condition["status"] == "False" and condition.get("reason") in _PASSING
            return condition if observed >= generation and not passing else None
    return None


_PASSING: Final = frozenset({"ObjectStoreUnavailable", "Pending"})


def _publish_taskset(
    tasks: Sequence[PublishedTask],
    *,
    cluster: Cluster,
    options: PublishOptions,
    settings: StoreSettings,
    root: Path,
    script: Mapping[str, str] | None,
    progress: Callable[[Progress], None],
) -> PublishedTaskset:
    name = options.taskset or ""
    members = sorted((task for task in tasks if task.outcome != "failed"), key=lambda task: task.name)
    progress(Progress("taskset", 0, 1, name))
    existing = next((item for item in cluster.list(TASKSET) if item["metadata"]["name"] == name), None)
    result = PublishedTaskset(name, "created" if existing is None else "revised", len(members))
    if not members:
        return replace(result, outcome="failed", message="no task is left")
    if options.dry_run:
        same = existing is not None and all(task.outcome == "unchanged" for task in tasks)
        return replace(result, outcome="unchanged" if same else result.outcome)
    try:
        spec = _members_spec(members, cluster=cluster, options=options, settings=settings)
        if options.tags:
            spec["tags"] = list(options.tags)
        if options.description:
            spec["description"] = options.description
        if script is not None:
            spec["metricScript"] = dict(script)
        if options.metrics:
            spec["metrics"] = [{"type": kind} for kind in options.metrics]
        # What jobs compute must go when the suite has it no longer.
        same = existing is not None and all(_bare(existing["spec"], name) == _bare(spec, name) for name in ("metricScript", "metrics"))
        if existing is not None and same and _has(existing["spec"], spec):
            result = replace(result, outcome="unchanged")
        else:
            metadata = {"name": name, "namespace": cluster.namespace, "annotations": git_annotations(root)}
            cluster.apply(TASKSET, {"apiVersion": API_VERSION, "kind": TASKSET, "metadata": metadata, "spec": spec})
    except SeatrialError as error:
        return replace(result, outcome="failed", message=str(error))
    waiting = {name}
    for item in wait_for(cluster, TASKSET, waiting, "Pinned", timeout_seconds=options.timeout_seconds):
        progress(Progress("taskset", 1, 1, name))
        condition = settled_condition(item, "Pinned")
        if condition is None or condition["status"] != "True":
            return replace(result, outcome="failed", message=f"{(condition or {}).get('reason')}: {(condition or {}).get('message')}")
        return replace(result, revision=item["status"].get("revision"), digest=item["status"].get("digest"))
    return replace(
        result, outcome="failed", message=f"the operator did not pin it within {options.timeout_seconds:.0f} s (seatrial doctor)"
    )


def _bare(spec: Mapping[str, Any], name: str) -> Any:
    """A field of a Taskset without what the API server fills in: defaults of items, and an empty list where none was given."""
    value = spec.get(name)
    return ([{"type": item["type"]} for item in value] or None) if isinstance(value, list) else value


def _store_script(
    suite: FoundSuite, options: PublishOptions, destination: Destination, settings: StoreSettings
) -> tuple[dict[str, str] | None, str]:
    """``{ref, sha256}`` of the suite's ``metric.py`` in the store, with its packages where they are to be had, and why they are not.

    None where there is none, or it is not wanted.

    Raises:
        InvalidSpec: it is too large.
    """
    if not options.metric_script or any(task.path == suite.root for task in suite.tasks):
        return None, ""
    try:
        found = metric_script(suite.root)
    except ValueError as error:
        raise InvalidSpec(METRIC_FILE, str(error)) from error
    if found is None:
        return None, ""
    content, sha256 = found
    name, note = METRIC_FILE, ""
    with tempfile.TemporaryDirectory(prefix="seatrial-metric-") as folder:
        stored: bytes | Path = content
        try:
            archive = pack_script(content, Path(folder), platform=options.metric_platform)
            if archive is not None:
                stored, name = archive, archive.name
                with archive.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except MetricScriptError as error:
            note = str(error)
        path = f"metrics/{sha256}/{name}"
        if not options.dry_run:
            Store(settings).put_new(
                destination.key(path), stored, content_type="text/x-python" if name == METRIC_FILE else "application/zip"
            )
    return {"ref": destination.ref(path), "sha256": sha256}, note


def _members_spec(members: Sequence[PublishedTask], *, cluster: Cluster, options: PublishOptions, settings: StoreSettings) -> Raw:
    """Pinned references in the object, or a manifest in the store for a set that is too large for one.

    Pinned, because a name alone would leave the spec unchanged when a member was revised, and nothing would be pinned again.
    """
    if len(members) <= MAX_TASKS:
        return {"tasks": [f"{task.name}#{task.digest}" for task in members]}
    body = manifest_lines(cluster.namespace, members)
    digest = hashlib.sha256(body).hexdigest()
    destination = replace(parse_destination(options, cluster.namespace), prefix="")
    path = f"tasksets/{options.taskset}/{digest}.jsonl"
    Store(settings).put_new(destination.key(path), body, content_type="application/jsonl")
    return {"manifest": {"ref": destination.ref(path), "sha256": digest}}


def manifest_lines(namespace: str, members: Iterable[PublishedTask]) -> bytes:
    """One pinned member a line, sorted by reference: ``{ref, revision, digest, archive, sha256}``; ``archive`` is the key in the store."""
    lines = sorted(
        (
            {
                "ref": f"{namespace}/{task.name}#{task.digest}",
                "revision": task.revision,
                "digest": task.digest,
                "archive": key_of(task.ref),
                "sha256": task.sha256,
            }
            for task in members
        ),
        key=lambda line: str(line["ref"]),
    )
    return b"".join(json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n" for line in lines)


def _first_error(task: CheckedTask) -> str:
    errors = [problem for problem in task.problems if problem.severity == "error"]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].file}: {errors[0].message}{more}" if errors else "is not valid"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root if root.is_dir() else root.parent), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme or "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
