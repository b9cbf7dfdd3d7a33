"""Is a folder a task for Harbor? The same answer as Harbor's own check, with all reasons instead of one bit.

Source: harbor.md 1.6 and nemo.md 5.4. Links are followed here as Harbor follows them; ``capture`` judges what may be packed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from seatrial.taskpkg.ignore import HarborIgnore, IgnoreError
from seatrial.taskpkg.model import StepSection, TaskConfig, TaskOS
from seatrial.taskpkg.parse import Problem, parse_task_toml
from seatrial.taskpkg.verification import verifier_definition

CONFIG_FILE = "task.toml"
INSTRUCTION_FILE = "instruction.md"
# A few links to folders that hold links to folders make endlessly many paths.
_MAX_VISITS = 1_000_000


class NativeCheck(NamedTuple):
    config: TaskConfig | None
    problems: tuple[Problem, ...]

    @property
    def is_valid(self) -> bool:
        return self.config is not None and all(problem.severity == "warning" for problem in self.problems)


def check_native(task_dir: Path, *, verification: bool = True, text: bytes | None = None) -> NativeCheck:
    """Harbor's rules. ``verification=False`` is a run without verifier: test scripts are not asked for.

    ``text`` is the content of ``task.toml`` where the caller has read it already.
    """
    if text is None:
        try:
            text = (task_dir / CONFIG_FILE).read_bytes()
        except OSError as error:
            problem = _problem("task-toml", CONFIG_FILE, f"task.toml cannot be read: {error.strerror}", "add a task.toml; it may be empty")
            return NativeCheck(None, (problem,))
    config, problems = parse_task_toml(text)
    if config is None:
        return NativeCheck(None, problems)
    return NativeCheck(config, (*problems, *_file_problems(task_dir.resolve(), config, verification=verification)))


def script_name(stem: str, os: TaskOS) -> str:
    """``test`` or ``solve`` with the only extension that counts for the system."""
    return f"{stem}.bat" if os is TaskOS.WINDOWS else f"{stem}.sh"


def _file_problems(task_dir: Path, config: TaskConfig, *, verification: bool) -> Iterator[Problem]:
    if not config.environment.docker_image and not (task_dir / "environment").is_dir():
        fix = "add environment/Dockerfile, or set [environment].docker_image"
        yield _problem("environment", "environment", "There is neither environment/ nor [environment].docker_image", fix)
    try:
        ignore = HarborIgnore(task_dir)
        yield from _containment_problems(task_dir, config, ignore)
        if config.steps:
            for index, step in enumerate(config.steps):
                yield from _step_problems(task_dir, config, step, index, ignore, verification=verification)
            return
        if not (task_dir / INSTRUCTION_FILE).exists():
            yield _problem("instruction", INSTRUCTION_FILE, "instruction.md is missing", "write what the agent shall do")
        if verification:
            yield from _test_problems(task_dir, config, None, ignore)
    except IgnoreError as error:
        yield _problem("harborignore", error.path, str(error), "make it a regular text file with gitignore rules")
    except OSError as error:
        name = os.path.relpath(os.fsdecode(error.filename), task_dir) if error.filename else "."
        yield _problem("unreadable", name, f"cannot be read: {error.strerror}", "make it readable")


def _step_problems(
    task_dir: Path,
    config: TaskConfig,
    step: StepSection,
    index: int,
    ignore: HarborIgnore,
    *,
    verification: bool,
) -> Iterator[Problem]:
    folder = f"steps/{step.name}"
    key = f"steps[{index}].name"
    if not (task_dir / folder).exists():
        yield _problem("step-folder", folder, f"The folder of step {step.name!r} is missing", "create it, or remove the step", key=key)
    elif not (task_dir / folder / INSTRUCTION_FILE).exists():
        file = f"{folder}/{INSTRUCTION_FILE}"
        yield _problem("instruction", file, f"The instruction of step {step.name!r} is missing", f"write {file}", key=key)
    if verification:
        yield from _test_problems(task_dir, config, step, ignore)


def _test_problems(task_dir: Path, config: TaskConfig, step: StepSection | None, ignore: HarborIgnore) -> Iterator[Problem]:
    definition = verifier_definition(config, task_dir, step)
    if definition is not None:
        # A build context may not hold any link that leaves the task, ignored or not.
        yield from _tree_problems(definition.folder, task_dir, None)
        if definition.is_bundled:
            return
    script = script_name("test", definition.environment.os if definition is not None else config.environment.os)
    places = [f"tests/{script}"]
    if step is not None:
        places.insert(0, f"steps/{step.name}/tests/{script}")
    found = next((place for place in places if (task_dir / place).exists()), None)
    if found is None:
        where = " and no ".join(places)
        yield _problem("test-script", places[0], f"There is no {where}", "add the script, or give the verifier an image of its own")
    elif ignore.is_excluded(task_dir / found):
        yield _problem("harborignore", found, "The test script is excluded by .harborignore", "add a rule such as !test.sh")


def _containment_problems(task_dir: Path, config: TaskConfig, ignore: HarborIgnore) -> Iterator[Problem]:
    folders = ["tests", "solution"]
    for step in config.steps or ():
        folders.append(f"steps/{step.name}")
    for folder in folders:
        yield from _tree_problems(task_dir / folder, task_dir, ignore)


class _Folder(NamedTuple):
    """A folder on the way down: how it was reached, what it really is, and the names in it that are still to be looked at."""

    path: str
    real: str
    names: list[tuple[str, bool]]
    """With whether the entry is a link."""


def _tree_problems(top: Path, task_dir: Path, ignore: HarborIgnore | None) -> Iterator[Problem]:
    """Paths below ``top`` (links followed) that leave the task, and links to a folder that holds them.

    Only links are resolved: resolving every path of a deep tree would take a step for each of its parts, each time.
    """
    above: list[_Folder] = []
    checked: set[str] = set()
    visits = 0
    waiting: tuple[str, str, bool] | None = (str(top), os.path.join(os.path.realpath(top.parent), top.name), os.path.islink(top))
    while waiting is not None or above:
        if waiting is None:
            folder = above[-1]
            if not folder.names:
                above.pop()
                continue
            name, is_link = folder.names.pop()
            waiting = (f"{folder.path}/{name}", f"{folder.real}/{name}", is_link)
        path, real, is_link = waiting
        waiting = None
        visits += 1
        if visits > _MAX_VISITS:
            yield _link_problem(path, task_dir, "is one of too many paths that links make")
            return
        if ignore is not None and ignore.is_excluded(Path(path)):
            continue
        if is_link:
            try:
                real = str(Path(path).resolve())
            except RuntimeError:  # a link to itself, or a chain beyond all bounds
                yield _link_problem(path, task_dir, "is a link to itself")
                continue
        if (is_link or not above) and not Path(real).is_relative_to(task_dir):
            yield _link_problem(path, task_dir, "leads out of the task")
        elif not os.path.isdir(path):
            continue
        elif is_link and any(folder.real == real for folder in above):
            yield _link_problem(path, task_dir, "is a link to a folder that holds it")
        # With rules, another path to the same folder may leave out less, so it is looked at again.
        elif real not in checked or (ignore is not None and not ignore.is_empty):
            checked.add(real)
            with os.scandir(path) as entries:
                above.append(_Folder(path, real, [(entry.name, entry.is_symlink()) for entry in entries]))


def _link_problem(path: str, task_dir: Path, what: str) -> Problem:
    relative = os.path.relpath(path, task_dir)
    return _problem("link", relative, f"{relative} {what}", "copy what it names into the task")


def _problem(rule: str, file: str, message: str, fix: str, *, key: str | None = None) -> Problem:
    return Problem("error", rule, file, key, None, message, fix)
