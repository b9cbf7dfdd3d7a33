"""What is legal in a task folder but surely not meant, as warnings. Harbor runs such tasks; they then fail or score wrongly."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from seatrial.taskpkg.capture import Entry, Inventory
from seatrial.taskpkg.dockerfile import Instruction, instructions
from seatrial.taskpkg.model import TaskConfig
from seatrial.taskpkg.parse import Problem
from seatrial.taskpkg.verification import verifier_definition

_TEXT_BYTES: Final = 256 * 1024
"""How much of a script is looked at; those that matter are far shorter."""
_GITMODULES_BYTES: Final = 256 * 1024
_DATA_FOLDERS: Final = ("environment", "tests", "solution", "steps")
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_IMAGE_NAME: Final = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[a-z0-9+._-]+:[0-9a-f]{{32,}})?"
)
"""The grammar of the OCI distribution specification, with the registry's host before it."""


def advise(task_dir: Path, config: TaskConfig, listed: Inventory) -> Iterator[Problem]:
    """Warnings about the files of one task, in the order of their paths within each rule."""
    inner = [(entry.path.partition("/")[2], entry) for entry in listed.entries]
    files = {path: entry for path, entry in inner if entry.kind == "file"}
    yield from _compose_names(files)
    yield from _line_ends(task_dir, files)
    yield from _nested_tasks(files)
    yield from _rewards(task_dir, config, files)
    yield from _submodules(task_dir, listed, inner)
    yield from _dockerfiles(task_dir, files, frozenset(path for path, _ in inner))
    yield from _named_images(config)


def _compose_names(files: dict[str, Entry]) -> Iterator[Problem]:
    for path in files:
        folder, _, name = path.rpartition("/")
        if name in ("docker-compose.yml", "compose.yaml", "compose.yml") and folder.split("/")[-1] in ("environment", "tests"):
            fix = f"rename it to {folder}/docker-compose.yaml if it shall define the environment"
            yield _warning("compose-name", path, f"{name} is data, not a compose file", fix)


def _line_ends(task_dir: Path, files: dict[str, Entry]) -> Iterator[Problem]:
    for path in files:
        name = path.rpartition("/")[2]
        if (name == "Dockerfile" or name.endswith(".sh")) and b"\r\n" in _head(task_dir / path):
            yield _warning("crlf", path, "Lines end in CRLF; a shell takes the CR for a part of the command", "save it with LF line ends")


def _nested_tasks(files: dict[str, Entry]) -> Iterator[Problem]:
    for path in files:
        folder, _, name = path.rpartition("/")
        if name == "task.toml" and folder and folder.split("/")[0] not in _DATA_FOLDERS:
            yield _warning("nested-task", path, f"{folder} looks like a task but is a part of this one", "move it beside this task")


def _rewards(task_dir: Path, config: TaskConfig, files: dict[str, Entry]) -> Iterator[Problem]:
    """A verifier that nowhere names the reward file gives no score."""
    if config.steps:
        return
    definition = verifier_definition(config, task_dir)
    if definition is not None and definition.is_bundled:
        return
    tests = [path for path in files if path.startswith("tests/")]
    if tests and not any(b"reward" in _head(task_dir / path) for path in tests):
        fix = "write a number to /logs/verifier/reward.txt, or an object of numbers to /logs/verifier/reward.json"
        yield _warning("no-reward", "tests", "No file in tests/ mentions a reward", fix)


def _submodules(task_dir: Path, listed: Inventory, inner: list[tuple[str, Entry]]) -> Iterator[Problem]:
    """Git leaves an empty folder where a submodule was not fetched."""
    parents = {entry.path.rpartition("/")[0] for entry in listed.entries}
    empty = [path for path, entry in inner if entry.kind == "directory" and path and entry.path not in parents]
    if not empty:
        return
    modules = _submodule_folders(task_dir)
    for path in empty:
        if (task_dir / path).resolve() in modules:
            fix = "run 'git submodule update --init --recursive' and check again"
            yield _warning("empty-submodule", path, "The folder is a git submodule that was not fetched", fix)


def _dockerfiles(task_dir: Path, files: dict[str, Entry], paths: frozenset[str]) -> Iterator[Problem]:
    """Sources of COPY that are not there, base images that no other machine has, and tests that the agent would see."""
    for file in files:
        folder, _, name = file.rpartition("/")
        if name != "Dockerfile" or folder.split("/")[-1] not in ("environment", "tests"):
            continue
        for item in instructions(_head(task_dir / file).decode("utf-8", errors="replace")):
            if item.name == "FROM":
                base = next((word for word in item.text.split() if not word.startswith("--")), "")
                if _is_local_image(base):
                    fix = "push the base image to a registry that the builder reaches, and name it there"
                    yield _warning("local-base", file, f"The base image {base} exists only on one machine", fix, line=item.line)
            elif item.name in ("COPY", "ADD") and folder.split("/")[-1] == "environment" and (seen := _hidden(item, folder, paths)):
                message = f"{item.name} puts {seen} into the environment's image, where the agent can read it"
                yield _warning("tests-in-image", file, message, _HIDE, line=item.line)
            if item.name == "COPY":
                for source in _plain_sources(item.text):
                    if source and f"{folder}/{source}" not in paths:
                        fix = f"add {folder}/{source}, or correct the line; paths are relative to {folder}/"
                        yield _warning("copy-source", file, f"COPY {source}: there is no such file in {folder}/", fix, line=item.line)


def _named_images(config: TaskConfig) -> Iterator[Problem]:
    own = config.verifier.environment
    named = {"environment": config.environment.docker_image, "verifier.environment": own.docker_image if own is not None else None}
    for section, image in named.items():
        if image and not _IMAGE_NAME.fullmatch(image):
            fix = "write REGISTRY/NAME:TAG in lower case, without spaces or a scheme; only the tag may have capitals"
            yield Problem("warning", "image-name", "task.toml", f"{section}.docker_image", None, f"{image!r} is no name of an image", fix)
        elif image and _is_local_image(image):
            fix = "push the image to a registry that the cluster reaches, and name it there"
            message = f"The image {image} exists only on one machine"
            yield Problem("warning", "local-image", "task.toml", f"{section}.docker_image", None, message, fix)


def _is_local_image(name: str) -> bool:
    """Whether the image's registry is the machine itself, so that no other machine finds it."""
    host, slash, _ = name.partition("/")
    host = host.partition(":")[0]
    return bool(slash) and (host in ("localhost", "127.0.0.1", "0.0.0.0", "host.docker.internal") or host.endswith(".localhost"))


_HIDE: Final = "leave it out: tests and solution are put into the environment when they are needed"
_HIDDEN: Final = ("tests", "solution")


def _hidden(item: Instruction, folder: str, paths: frozenset[str]) -> str:
    """Which of tests and solution an instruction copies, by its source or by where it puts it; empty for neither."""
    if "--from=" in item.text or "<<" in item.text:
        return ""
    words = [word.strip('[]",') for word in item.text.split() if not word.startswith("--")]
    if len(words) < 2:
        return ""
    target, sources = posixpath.normpath(words[-1]), [posixpath.normpath(word).lstrip("/") for word in words[:-1]]
    for name in _HIDDEN:
        if f"{target}/".startswith(f"/{name}/") or any(source.removeprefix("../").partition("/")[0] == name for source in sources):
            return name
        if "." in sources and f"{folder}/{name}" in paths:
            return f"{folder}/{name}"
    return ""


def _plain_sources(text: str) -> tuple[str, ...]:
    """Sources of a COPY that name one path each: no patterns, no variables, not from another stage."""
    if text.startswith(("[", "--from")) or "<<" in text or "--from=" in text:
        return ()
    words = [word for word in text.split() if not word.startswith("--")]
    return tuple(
        posixpath.normpath(word.strip('"')).lstrip("/")
        for word in words[:-1]
        if not set(word) & set("*?[]$\\") and word not in (".", "./", "/")
    )


def _submodule_folders(task_dir: Path) -> frozenset[Path]:
    """Folders of submodules by the nearest ``.gitmodules`` above the task, or in it."""
    for folder in (task_dir.resolve(), *task_dir.resolve().parents):
        file = folder / ".gitmodules"
        if file.is_file() and file.stat().st_size <= _GITMODULES_BYTES:
            pairs = (line.partition("=") for line in file.read_text("utf-8", "replace").splitlines())
            return frozenset((folder / value.strip()).resolve() for key, _, value in pairs if key.strip() == "path" and value.strip())
        if (folder / ".git").exists():
            break
    return frozenset()


def _head(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(_TEXT_BYTES)


def _warning(rule: str, file: str, message: str, fix: str, *, line: int | None = None) -> Problem:
    return Problem("warning", rule, file, None, line, message, fix)
