"""The tasks of a suite as objects: found, checked, and ready to be run or published. Source: nemo.md 4.2 to 4.5."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, overload

from seatrial.errors import InvalidSpec
from seatrial.taskpkg.check import CheckedTask, check_suite, check_tasks
from seatrial.taskpkg.discover import DiscoveryError, discover
from seatrial.taskpkg.instruction import record_instruction
from seatrial.taskpkg.native import INSTRUCTION_FILE

# Where a task came from; never stored with the published task.
METADATA_DATASET: Final = "harbor_dataset_path"
METADATA_TASK: Final = "harbor_task_dir"


@dataclass(frozen=True)
class HarborRewardMetric:
    """The verifier's rewards as a metric. The one that discovery attaches is a placeholder: a run names its output after the reward key."""

    output_name: str = "reward"
    """Counts only where saved trials are scored without a runner."""
    description: str = ""
    labels: tuple[str, ...] = ()
    type: str = "harbor_reward"


def _reward_only() -> list[Any]:
    return [HarborRewardMetric()]


@dataclass(frozen=True)
class PlainTask:
    """A task without its folder, such as one read back from the results of an evaluation."""

    id: str
    intent: str
    inputs: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    metrics: list[Any] = field(default_factory=_reward_only, compare=False)
    """The reward metric first; append others, or replace the list."""
    views: dict[str, Any] = field(default_factory=dict, compare=False)
    """Name -> view over outputs of the metrics."""


@dataclass(frozen=True)
class HarborTask:
    """One task of a suite. Nothing is copied: the folder must stay as it is until the task has been published or run."""

    id: str
    """The native id."""
    intent: str
    inputs: Mapping[str, str]
    """``instruction``: the normalised text; the id where a multi-step task has no instruction of its own."""
    source_dir: Path
    """Absolute."""
    metadata: Mapping[str, str]
    checked: CheckedTask = field(compare=False, repr=False)
    metrics: list[Any] = field(default_factory=_reward_only, compare=False)
    """The reward metric first; append others, or replace the list."""
    views: dict[str, Any] = field(default_factory=dict, compare=False)
    """Name -> view over outputs of the metrics."""


class HarborTaskCollection(Sequence[HarborTask]):
    """An immutable sequence of tasks; a slice is a collection again, ``list(tasks)`` is a list."""

    def __init__(self, tasks: Sequence[HarborTask]) -> None:
        self._tasks = tuple(tasks)

    @overload
    def __getitem__(self, index: int) -> HarborTask: ...

    @overload
    def __getitem__(self, index: slice) -> HarborTaskCollection: ...

    def __getitem__(self, index: int | slice) -> HarborTask | HarborTaskCollection:
        if isinstance(index, slice):
            return HarborTaskCollection(self._tasks[index])
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[HarborTask]:
        return iter(self._tasks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HarborTaskCollection) and self._tasks == other._tasks

    def __hash__(self) -> int:
        return hash(tuple(task.source_dir for task in self._tasks))

    def __repr__(self) -> str:
        return f"HarborTaskCollection({[task.id for task in self._tasks]})"


def discover_harbor_tasks(
    path: Path | str,
    *,
    recursive: bool = False,
    default_image: str | None = None,
    processes: int = 1,
) -> HarborTaskCollection:
    """All tasks at or below ``path``, in sorted order, or none: one bad task fails the discovery.

    Raises:
        DiscoveryError: with every error of every task; ``problems[].file`` starts with the task's folder.
    """
    found = discover(Path(path), recursive=recursive)
    checked = tuple(check_tasks(found.tasks, default_image=default_image, processes=processes))
    errors = list(found.errors)
    for task in checked:
        folder = task.path.relative_to(found.root).as_posix()
        for problem in task.problems:
            if problem.severity == "error":
                message = f"malformed Harbor task config at {task.path}: {problem.message}"
                errors.append(problem._replace(file=f"{folder}/{problem.file}", message=message))
    errors += [problem for problem in check_suite(checked) if problem.severity == "error" and problem.rule != "duplicate-id"]
    if errors:
        raise DiscoveryError(errors)
    return HarborTaskCollection([_task(found.root, task) for task in checked])


def reload_tasks(tasks: Iterable[HarborTask | PlainTask], dataset_path: Path | str, *, recursive: bool = False) -> HarborTaskCollection:
    """Plain tasks, such as those of a saved result, with their folders again, in their order; found by id in the dataset.

    Raises:
        InvalidSpec: plain and discovered tasks are mixed, or the dataset has no task of an id.
        DiscoveryError: as ``discover_harbor_tasks``.
    """
    given = list(tasks)
    plain = [task.id for task in given if isinstance(task, PlainTask)]
    if plain and len(plain) < len(given):
        raise InvalidSpec("tasks", f"discovered and plain tasks cannot be combined in one run; plain: {', '.join(plain)}")
    found = {task.id: task for task in discover_harbor_tasks(dataset_path, recursive=recursive)}
    if missing := [name for name in plain if name not in found]:
        raise InvalidSpec("dataset_path", f"{dataset_path} has no task {', '.join(missing)}")
    return HarborTaskCollection([found[task.id] if isinstance(task, PlainTask) else task for task in given])


def as_base_task(task: HarborTask | PlainTask) -> PlainTask:
    """The task without its folder; a plain task is returned as it is."""
    if isinstance(task, PlainTask):
        return task
    return PlainTask(id=task.id, intent=task.intent, inputs=task.inputs, metadata=task.metadata, metrics=task.metrics, views=task.views)


def _task(root: Path, checked: CheckedTask) -> HarborTask:
    file = checked.path / INSTRUCTION_FILE
    text = record_instruction(file.read_text("utf-8")) if file.is_file() else ""
    return HarborTask(
        id=checked.native_id,
        intent=checked.native_id,
        inputs=MappingProxyType({"instruction": text or checked.native_id}),
        source_dir=checked.path,
        metadata=MappingProxyType({METADATA_DATASET: str(root), METADATA_TASK: str(checked.path)}),
        checked=checked,
    )
