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


def _tree_problems(top: Path, task_dir: Path, ignore: HarborIgnore | None) -> Iterator[Problem]:
    """Paths below ``top`` (links followed) that leave the task, and links to a folder that holds them."""
    waiting: list[tuple[Path, frozenset[Path]]] = [(top, frozenset())]
    checked: set[Path] = set()
    visits = 0
    while waiting:
        path, above = waiting.pop()
        visits += 1
        if visits > _MAX_VISITS:
            yield _link_problem(path, task_dir, "is one of too many paths that links make")
            return
        if ignore is not None and ignore.is_excluded(path):
            continue
        try:
            resolved = path.resolve()
        except RuntimeError:  # a link to itself
            yield _link_problem(path, task_dir, "is a link to itself")
            continue
        if not resolved.is_relative_to(task_dir):
            yield _link_problem(path, task_dir, "leads out of the task")
            continue
        if not path.is_dir():
            continue
        if resolved in above:
            yield _link_problem(path, task_dir, "is a link to a folder that holds it")
            continue
        # With rules, another path to the same folder may leave out less, so it is looked at again.
        if resolved in checked and (ignore is None or ignore.is_empty):
            continue
        checked.add(resolved)
        with os.scandir(path) as entries:
            waiting.extend((Path(entry.path), above | {resolved}) for entry in entries)


def _link_problem(path: Path, task_dir: Path, what: str) -> Problem:
    relative = os.path.relpath(path, task_dir)
    return _problem("link", relative, f"{relative} {what}", "copy what it names into the task")


def _problem(rule: str, file: str, message: str, fix: str, *, key: str | None = None) -> Problem:
    return Problem("error", rule, file, key, None, message, fix)
