"""Which folders of a suite are its tasks.

Strict (the default, nemo.md 4.3): whatever is neither a task nor clearly something else is an error, so that nothing is lost without a
word. ``recursive`` walks category folders (D20). ``lenient`` is Harbor's rule (harbor.md 2.2 and 2.3): valid children count, hidden
ones included, and the rest is skipped; here with a warning that names it (H-32).
"""

from __future__ import annotations

import fnmatch
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from seatrial.errors import SeatrialError
from seatrial.taskpkg.limits import DEFAULT, RESERVED_ROOT
from seatrial.taskpkg.native import CONFIG_FILE, check_native
from seatrial.taskpkg.parse import Problem

_MAX_DEPTH: Final = 16
"""Category folders within each other; deeper is a mistake such as a checkout of something else."""


class DiscoveryError(SeatrialError):
    """The suite cannot be used as it is; ``problems`` are all reasons."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        first = self.problems[0]
        super().__init__(f"{first.message}{more}. {first.fix}.")


@dataclass(frozen=True)
class Discovery:
    root: Path
    """Absolute."""
    kind: Literal["task", "dataset"]
    tasks: tuple[Path, ...]
    """All candidates in sorted order, also where there are problems."""
    problems: tuple[Problem, ...]
    """``file`` is relative to ``root``."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")

    def require(self) -> tuple[Path, ...]:
        """The tasks, all or nothing. Raises ``DiscoveryError``."""
        if self.errors:
            raise DiscoveryError(self.errors)
        return self.tasks


def discover(path: Path, *, recursive: bool = False, lenient: bool = False) -> Discovery:
    """Find the tasks at or below ``path``. Their content is not judged here, except in ``lenient`` mode."""
    root = Path(os.path.abspath(path))
    if root.is_symlink() or not root.is_dir():
        fix = "name an existing folder, not a link to one" if root.is_symlink() else "name the folder of a task, or of tasks"
        absent = "" if os.path.lexists(root) else ", which does not exist"
        problem = _error("dataset-root", ".", f"Dataset must be a real directory: {root}{absent}", fix)
        return Discovery(root, "dataset", (), (problem,))
    if lenient:
        return _discover_leniently(root)
    if (root / CONFIG_FILE).is_file():
        return Discovery(root, "task", (root,), ())
    tasks: list[Path] = []
    problems = list(_walk(root, root, tasks, depth=_MAX_DEPTH if recursive else 0))
    problems += _duplicates(root, tasks)
    if not tasks and not any(problem.severity == "error" for problem in problems):
        problems.append(_no_tasks(root))
    return Discovery(root, "dataset", tuple(tasks), tuple(problems))


def select_names(
    names: Iterable[str],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limit: int | None = None,
) -> tuple[str, ...]:
    """Filter names as Harbor does: those that match any include pattern (or all), less the excluded ones, then the first ``limit``.

    Raises:
        ValueError: there are include patterns and none of them matches.
    """
    chosen = tuple(names)
    if include:
        available = chosen
        chosen = tuple(name for name in available if any(fnmatch.fnmatch(name, pattern) for pattern in include))
        if not chosen:
            raise ValueError(f"No tasks matched the filter {', '.join(include)}; there are {len(available)} tasks, such as {available[:3]}")
    chosen = tuple(name for name in chosen if not any(fnmatch.fnmatch(name, pattern) for pattern in exclude))
    return chosen if limit is None else chosen[:limit]


def _walk(root: Path, folder: Path, tasks: list[Path], *, depth: int) -> Iterator[Problem]:
    for name in sorted(os.listdir(folder)):
        entry = folder / name
        relative = entry.relative_to(root).as_posix()
        mode = os.lstat(entry).st_mode
        if stat.S_ISLNK(mode):
            yield _error("symlinked-entry", relative, f"Symlinked dataset entry: {entry}", "replace the link by what it names")
        elif stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and name.startswith(".")):
            continue
        elif not stat.S_ISDIR(mode):
            yield _error("unhandled-entry", relative, f"Unhandled dataset entry: {entry}", "remove it: it is neither a file nor a folder")
        elif name == RESERVED_ROOT:
            yield Problem("warning", "template-excluded", relative, None, None, f"Excluded template directory: {entry}", "nothing to do")
        elif os.path.lexists(entry / CONFIG_FILE):
            tasks.append(entry)
        elif depth > 0:
            before = len(tasks)
            inner = list(_walk(root, entry, tasks, depth=depth - 1))
            yield from inner
            if len(tasks) == before and not any(problem.severity == "error" for problem in inner):
                message = f"Unhandled dataset entry: {entry} holds no task"
                yield _error("unhandled-entry", relative, message, "add a task.toml, or move it out of the dataset")
        else:
            fix = "add a task.toml, hide it with a leading dot, or search category folders with --recursive"
            yield _error("unhandled-entry", relative, f"Unhandled dataset entry: {entry} has no task.toml", fix)


def _discover_leniently(root: Path) -> Discovery:
    if check_native(root).is_valid:
        return Discovery(root, "task", (root,), ())
    tasks: list[Path] = []
    problems: list[Problem] = []
    for name in sorted(os.listdir(root)):
        folder = root / name
        if not folder.is_dir():
            continue
        native = check_native(folder)
        if native.is_valid:
            tasks.append(folder)
            continue
        reason = next(problem for problem in native.problems if problem.severity == "error")
        message = f"{name} is skipped, it is not a valid task: {reason.message}"
        problems.append(Problem("warning", "skipped-entry", name, None, None, message, reason.fix))
    if not tasks:
        problems.append(_no_tasks(root))
    return Discovery(root, "dataset", tuple(tasks), tuple(problems))


def _duplicates(root: Path, tasks: Sequence[Path]) -> Iterator[Problem]:
    first: dict[str, Path] = {}
    for task in tasks:
        native_id = quick_native_id(task)
        other = first.setdefault(native_id.casefold(), task)
        if other is not task:
            message = f"Duplicate native task identity: {native_id!r} in {other.relative_to(root)} and {task.relative_to(root)}"
            fix = "give one of them another [task].name"
            yield _error("duplicate-id", task.relative_to(root).as_posix(), message, fix, key="task.name")


def quick_native_id(task_dir: Path) -> str:
    """The native id without validating anything else; the folder's name where ``task.toml`` does not give one."""
    try:
        with (task_dir / CONFIG_FILE).open("rb") as stream:
            section = tomllib.loads(stream.read(DEFAULT.task_toml_bytes).decode()).get("task")
    except (OSError, ValueError, RecursionError):
        return task_dir.name
    name = section.get("name") if isinstance(section, dict) else None
    return name if isinstance(name, str) else task_dir.name


def _no_tasks(root: Path) -> Problem:
    return _error("no-tasks", ".", f"Dataset has no tasks: {root}", "name a folder with a task.toml, or a folder of such folders")


def _error(rule: str, file: str, message: str, fix: str, *, key: str | None = None) -> Problem:
    return Problem("error", rule, file, key, None, message, fix)
