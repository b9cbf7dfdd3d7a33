"""Harbor's digests of tasks, environments and datasets, byte for byte. Source: harbor.md 2.8.

They say whether two people evaluated the same thing. They are not the digest of our archive: that is ``pack.Packed.sha256``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from seatrial.taskpkg.ignore import GitIgnore, HarborIgnore

_ROOT_FILES: Final = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_ROOT_FOLDERS: Final = ("environment", "tests", "solution", "steps")
_NOT_ENVIRONMENT: Final = frozenset({".DS_Store", ".git", "__pycache__"})
_ENVIRONMENT_CHARS: Final = 32
_READ_BYTES: Final = 1024 * 1024


def content_digest(task_dir: Path) -> str:
    """Harbor's content digest of a task, 64 hex digits (Harbor writes ``sha256:`` before it).

    Raises:
        OSError: a file cannot be read.
        ValueError: a ``.harborignore`` is not usable, or a name is not Unicode.
    """
    outer = hashlib.sha256()
    for relative, file in content_files(task_dir):
        outer.update(f"{relative}\0{file_sha256(file)}\n".encode())
    return outer.hexdigest()


def content_files(task_dir: Path) -> list[tuple[str, Path]]:
    """The files that count for the digest and that Harbor's own package holds, by POSIX path in their order."""
    task_dir = task_dir.resolve()
    harborignore = HarborIgnore(task_dir)
    gitignore = GitIgnore(task_dir)
    found = [(name, task_dir / name) for name in _ROOT_FILES if (task_dir / name).exists()]
    for name in _ROOT_FOLDERS:
        if (task_dir / name).exists():
            found += _files_below(task_dir / name, name, harborignore)
    return sorted((relative, file) for relative, file in found if not gitignore.matches(relative))


def environment_id(task_dir: Path, *, docker_image: str | None = None) -> str:
    """Harbor's hash of ``environment/``, 32 hex digits; ``docker_image`` counts only where the folder holds no file."""
    folder = task_dir / "environment"
    files = sorted(_environment_files(folder))
    if not files:
        return hashlib.sha256((docker_image or folder.name).encode()).hexdigest()[:_ENVIRONMENT_CHARS]
    sizes = [file.stat().st_size for _, file in files]
    digest = hashlib.sha256()
    size_bytes = 4
    if any(size >= 2**32 for size in sizes):
        digest.update(b"\x01")
        size_bytes = 8
    for (relative, file), size in zip(files, sizes, strict=True):
        name = relative.encode()
        digest.update(len(name).to_bytes(4, "big") + name + size.to_bytes(size_bytes, "big"))
        for piece in _pieces(file):
            digest.update(piece)
    return digest.hexdigest()[:_ENVIRONMENT_CHARS]


def dataset_digest(task_digests: Iterable[str], files: Mapping[str, str] | None = None) -> str:
    """Harbor's hash of a dataset from the digests of its tasks and of its files by name; a prefix ``sha256:`` is dropped."""
    text = ",".join(sorted(digest.removeprefix("sha256:") for digest in task_digests))
    if files:
        text += ";" + ",".join(sorted(f"{name}:{digest.removeprefix('sha256:')}" for name, digest in files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(file: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(file):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as stream:
        while piece := stream.read(_READ_BYTES):
            yield piece


def _files_below(folder: Path, name: str, harborignore: HarborIgnore) -> Iterator[tuple[str, Path]]:
    """Regular files, also where a link names them; linked folders are not entered, except ``folder`` itself."""
    if harborignore.is_excluded(folder):
        return
    waiting = [(folder, name)]
    while waiting:
        directory, path = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                file = Path(entry.path)
                if harborignore.is_excluded(file):
                    continue
                relative = f"{path}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((file, relative))
                elif entry.is_file():
                    yield relative, file


def _environment_files(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        return
    waiting = [(folder, "")]
    while waiting:
        directory, path = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name in _NOT_ENVIRONMENT:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), f"{path}{entry.name}/"))
                elif entry.is_file(follow_symlinks=False):
                    yield f"{path}{entry.name}", Path(entry.path)
