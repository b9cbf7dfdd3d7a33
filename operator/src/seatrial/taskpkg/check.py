"""All that is right and wrong with a task folder or a suite, at once. Nothing is changed and nothing is asked of the network.

Three layers: Harbor's own rules (``native``), what can be packed (``capture``), and what surely is not meant (``advice``).
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seatrial.taskpkg.advice import advise
from seatrial.taskpkg.capture import Inventory, PackageError, scan
from seatrial.taskpkg.digest import content_digest, file_sha256
from seatrial.taskpkg.ignore import IgnoreError
from seatrial.taskpkg.instruction import record_instruction
from seatrial.taskpkg.limits import DEFAULT, Limits
from seatrial.taskpkg.model import TaskConfig
from seatrial.taskpkg.names import name_collisions
from seatrial.taskpkg.native import CONFIG_FILE, INSTRUCTION_FILE, check_native
from seatrial.taskpkg.parse import Problem
from seatrial.taskpkg.paths import is_safe_path
from seatrial.taskpkg.verification import DOCKERFILE, has_image_definition

_CHUNK: Final = 16
"""Tasks handed to a process at a time."""


@dataclass(frozen=True)
class CheckedTask:
    path: Path
    """Absolute folder of the task."""
    native_id: str
    """``[task].name``, else the folder's name; also the folder's name where task.toml cannot be read."""
    valid: bool
    """No problem is an error: Harbor accepts the task and it can be packed."""
    digest: str | None
    """Harbor's content digest, 64 hex; None where it cannot be computed."""
    config: TaskConfig | None
    problems: tuple[Problem, ...]
    """Errors first, then by file and line."""
    entries: int = 0
    payload_bytes: int = 0


def check_task(path: Path, *, default_image: str | None = None, limits: Limits = DEFAULT) -> CheckedTask:
    """Check one folder, whatever it holds; faults are problems, never exceptions.

    ``default_image`` is the image that publishing supplies for tasks that name none and build none.
    """
    path = Path(os.path.abspath(path))
    try:
        listed, faults = scan(path, limits=limits)
    except OSError as error:
        return _unreadable(path, error)
    problems = [_package_problem(fault, path.name) for fault in faults]
    text, metadata_problems = _read_metadata(path, listed, limits)
    problems += metadata_problems
    if text is None:
        return _checked(path, None, None, problems, listed)
    native = check_native(path, text=text)
    refused_links = {problem.file for problem in problems if problem.rule == "archive-link"}  # one link, one problem
    problems += [problem for problem in native.problems if problem.rule != "link" or problem.file not in refused_links]
    if default_image:
        problems = [problem for problem in problems if problem.rule != "environment"]
    config = native.config
    if config is None:
        return _checked(path, None, None, problems, listed)
    try:
        problems += _config_problems(path, config, default_image=default_image, limits=limits)
        problems += advise(path, config, listed)
        digest = content_digest(path)
    except (UnicodeEncodeError, IgnoreError):
        digest = None  # a name that is not Unicode, or unusable ignore rules: refused above
    except (OSError, ValueError) as error:
        problems.append(_error("unreadable", CONFIG_FILE, f"The content digest cannot be computed: {error}", "make every file readable"))
        digest = None
    return _checked(path, config, digest, problems, listed)


def check_tasks(paths: Sequence[Path], *, default_image: str | None = None, processes: int = 1) -> Iterator[CheckedTask]:
    """Check many folders; results come in the order of ``paths``, as soon as they are there.

    With more than one process the caller's main module must be importable without side effects.
    """
    check = functools.partial(check_task, default_image=default_image)
    if processes <= 1 or len(paths) <= _CHUNK:
        yield from map(check, paths)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(check, paths, chunksize=_CHUNK)


def check_suite(tasks: Iterable[CheckedTask]) -> tuple[Problem, ...]:
    """Problems between tasks: one identity or one object name for two tasks, one image for different Dockerfiles.

    ``file`` is the folder of the (second) task.
    """
    tasks = tuple(tasks)
    return (*_duplicate_ids(tasks), *_name_collisions(tasks), *_shared_images(tasks))


def difficulty_balance(tasks: Iterable[CheckedTask]) -> dict[str, int]:
    """How many tasks of each ``[metadata].difficulty`` there are, in alphabetical order; tasks without one are not counted."""
    found: dict[str, int] = {}
    for task in tasks:
        difficulty = task.config.metadata.get("difficulty") if task.config is not None else None
        if isinstance(difficulty, str):
            found[difficulty] = found.get(difficulty, 0) + 1
    return dict(sorted(found.items()))


def _config_problems(path: Path, config: TaskConfig, *, default_image: str | None, limits: Limits) -> Iterator[Problem]:
    if not default_image and (path / "environment").is_dir() and not has_image_definition(path, config):
        message = "environment/ holds neither a Dockerfile nor docker-compose.yaml, and there is no [environment].docker_image"
        yield _error("no-image", "environment", message, "add one of them, or publish with --default-image IMAGE")
    steps = config.steps or ()
    if len(steps) > limits.steps:
        yield _error("steps", CONFIG_FILE, f"Invalid or excessive Harbor steps: {len(steps)} of at most {limits.steps}", "split the task")
    for step in steps:
        if not is_safe_path(step.name):
            message = f"Unsafe or ambiguous archive path: {step.name!r} as the name of a step"
            yield _error("archive-path", CONFIG_FILE, message, "rename the step without \\ % ? # : or control characters")
        if (path / "steps" / step.name).is_symlink():
            yield _error("step-folder", f"steps/{step.name}", "Missing packaged step directory: it is a link", "make it a real folder")
    for folder in [f"steps/{step.name}/" for step in steps] or [""]:
        yield from _instruction_problems(path, f"{folder}{INSTRUCTION_FILE}", config.native_name(path.name))


def _instruction_problems(path: Path, file: str, native_id: str) -> Iterator[Problem]:
    if not (path / file).is_file():
        return  # reported by ``native``
    try:
        text = (path / file).read_text("utf-8")
    except UnicodeDecodeError:
        yield _error("encoding", file, "The file is not UTF-8", "save the file as UTF-8")
        return
    if not record_instruction(text):
        message = f"Harbor task {native_id!r} instruction is empty after removing SPDX comments and whitespace"
        yield _error("instruction", file, message, "write what the agent shall do")


def _read_metadata(path: Path, listed: Inventory, limits: Limits) -> tuple[bytes | None, list[Problem]]:
    """The bytes of task.toml and what is wrong with the metadata files as files."""
    problems: list[Problem] = []
    total = 0
    for entry in listed.entries:
        inner = entry.path.partition("/")[2]
        limit = _metadata_limit(inner, limits)
        if limit is None:
            continue
        total += entry.size
        if entry.kind != "file":
            problems.append(_error("metadata", inner, f"Metadata must be a regular file: {inner}", "replace it by a regular file"))
        elif entry.size > limit:
            problems.append(_error("metadata", inner, f"Metadata exceeds byte limit: {inner}", f"keep it below {limit} bytes"))
    if total > limits.metadata_bytes:
        fix = f"keep task.toml and all instructions together below {limits.metadata_bytes} bytes"
        problems.append(_error("metadata", ".", "Task metadata exceeds aggregate byte limit", fix))
    if any(problem.file == CONFIG_FILE for problem in problems):
        return None, problems
    try:
        descriptor = os.open(path / CONFIG_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(limits.task_toml_bytes + 1), problems
    except OSError as error:
        message = f"Missing or unreadable metadata: {CONFIG_FILE} ({error.strerror})"
        problems.append(_error("task-toml", CONFIG_FILE, message, "add a task.toml; it may be empty"))
        return None, problems


def _metadata_limit(inner: str, limits: Limits) -> int | None:
    """The limit of a metadata file by its path in the task; None for any other file."""
    parts = inner.split("/")
    if inner == CONFIG_FILE:
        return limits.task_toml_bytes
    if inner == ".gitignore":
        return limits.gitignore_bytes
    is_instruction = parts[-1] == INSTRUCTION_FILE and (len(parts) == 1 or (len(parts) == 3 and parts[0] == "steps"))
    return limits.instruction_bytes if is_instruction else None


def _package_problem(fault: PackageError, root_name: str) -> Problem:
    message = str(fault)
    rule, fix = next((rule, fix) for start, rule, fix in _PACKAGE_RULES if message.startswith(start))
    inner = fault.path.partition("/")[2] if fault.path.startswith(f"{root_name}/") else "."
    return _error(rule, inner or ".", message, fix)


_PACKAGE_RULES: Final = (
    (
        "Unsafe or ambiguous archive path",
        "archive-path",
        "rename it: no \\ % ? # : or control characters, no space or dot at the end of a name, Unicode in form NFC",
    ),
    ("Task root must be a real", "archive-root", "use a real folder with a plain name other than task_template"),
    ("Symlink escapes task root", "archive-link", "link to something inside the task by a relative path, or copy it"),
    ("Duplicate case-folded", "archive-case", "rename one of the two: their names differ only in case"),
    ("Unsupported task entry", "archive-entry", "remove it: only files, folders and links can be packed"),
    ("Task payload exceeds", "archive-size", "keep files below 4 GiB and the task below 16 GiB; put large data into the image"),
    ("Directories nested too deeply", "archive-size", "flatten the folders"),
    ("Too many task entries", "archive-size", "keep the task below 100,000 entries; put large trees into the image"),
    ("", "archive-link", "remove links until they can be resolved"),
)


def _duplicate_ids(tasks: Sequence[CheckedTask]) -> Iterator[Problem]:
    first: dict[str, CheckedTask] = {}
    for task in tasks:
        other = first.setdefault(task.native_id.casefold(), task)
        if other is not task:
            message = f"Duplicate native task identity: {task.native_id!r} is also {other.path.name}"
            yield _error("duplicate-id", task.path.name, message, "give one of them another [task].name", key="task.name")


def _name_collisions(tasks: Sequence[CheckedTask]) -> Iterator[Problem]:
    by_id = {task.native_id: task for task in tasks}
    folded = {native_id.casefold(): native_id for native_id in by_id}  # same id in another case: reported already
    for name, ids in name_collisions(folded.values()).items():
        message = f"{', '.join(repr(native_id) for native_id in ids)} would all become the object {name!r}"
        yield _error("object-name", by_id[ids[-1]].path.name, message, "rename one, or publish with --name-template", key="task.name")


def _shared_images(tasks: Sequence[CheckedTask]) -> Iterator[Problem]:
    """Whoever sets docker_image runs that image; different Dockerfiles beside it suggest that some are out of date."""
    users: dict[str, list[tuple[CheckedTask, str]]] = {}
    for task in tasks:
        image = task.config.environment.docker_image if task.config is not None else None
        dockerfile = task.path / "environment" / DOCKERFILE
        if image and dockerfile.is_file():
            users.setdefault(image, []).append((task, file_sha256(dockerfile)))
    for image, used in users.items():
        for task, content in used[1:]:
            if content != used[0][1]:
                message = f"The image {image} is shared with {used[0][0].path.name}, whose Dockerfile is different"
                fix = "build one image for each Dockerfile, or remove docker_image"
                yield Problem("warning", "shared-image", task.path.name, "environment.docker_image", None, message, fix)


def _checked(path: Path, config: TaskConfig | None, digest: str | None, problems: list[Problem], listed: Inventory) -> CheckedTask:
    problems.sort(key=lambda problem: (problem.severity, problem.file, problem.line or 0))
    return CheckedTask(
        path=path,
        native_id=path.name if config is None else config.native_name(path.name),
        valid=config is not None and all(problem.severity == "warning" for problem in problems),
        digest=digest,
        config=config,
        problems=tuple(problems),
        entries=len(listed.entries),
        payload_bytes=listed.payload_bytes,
    )


def _unreadable(path: Path, error: OSError) -> CheckedTask:
    name = os.path.relpath(os.fsdecode(error.filename), path) if error.filename else "."
    problem = _error("unreadable", name, f"cannot be read: {error.strerror}", "make it readable, or name an existing folder")
    return _checked(path, None, None, [problem], Inventory(path, (), 0))


def _error(rule: str, file: str, message: str, fix: str, *, key: str | None = None) -> Problem:
    return Problem("error", rule, file, key, None, message, fix)
