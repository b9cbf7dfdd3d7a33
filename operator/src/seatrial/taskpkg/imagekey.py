"""The key of an image by what decides its content: Dockerfile, context after ``.dockerignore``, build arguments, platform.

Equal keys mean that nothing has to be built. It is made in two halves, because the operator knows the files when it verifies an archive and
the arguments only when it plans a job: the key of the context, and from it the key of the image. Pure: no builder, no registry.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from seatrial.taskpkg.dockerignore import Dockerignore, DockerignoreError, parse_dockerignore
from seatrial.taskpkg.verification import DOCKERFILE

DEFAULT_PLATFORM: Final = "linux/amd64"
IGNORE_FILES: Final = (f"{DOCKERFILE}.dockerignore", ".dockerignore")
"""The first that exists counts, as with BuildKit."""
_CONTEXT_FORMAT: Final = b"seatrial build context 1\0"
_IMAGE_FORMAT: Final = b"seatrial image 1\0"
"""Raise these when the same input shall be built again."""
_IGNORE_BYTES: Final = 256 * 1024
_DOCKERFILE_BYTES: Final = 1024 * 1024
_BLOCK: Final = 1024 * 1024


class ContextError(ValueError):
    """The folder cannot be a build context; the message names the file."""


class BuildContext(NamedTuple):
    """What a build reads."""

    folder: Path
    dockerfile: str
    """Path below ``folder``."""
    key: str
    """64 hex digits of Dockerfile and files."""
    files: tuple[str, ...]
    """Files and links that the builder gets, relative, sorted."""


def read_context(folder: Path, *, dockerfile: str = DOCKERFILE) -> BuildContext:
    """The context in ``folder``. Links are content, never followed; owner and times do not count, the bit for execution does.

    Raises:
        ContextError: there is no Dockerfile, or something that no builder could read.
    """
    if not _is_file(folder / dockerfile):
        raise ContextError(f"{dockerfile} is missing in {folder.name}/ or is no regular file")
    rules = _rules(folder)
    digest = hashlib.sha256(_CONTEXT_FORMAT)
    # The Dockerfile counts even where .dockerignore names it: builders read it all the same.
    _add(digest, folder, dockerfile)
    files = []
    for path in _walk(folder, rules):
        if path != dockerfile and path not in IGNORE_FILES:
            _add(digest, folder, path)
        files.append(path)
    return BuildContext(folder, dockerfile, digest.hexdigest(), tuple(files))


def image_key(context_key: str, *, args: Mapping[str, str], platform: str = DEFAULT_PLATFORM) -> str:
    """Forty hex digits for the image that a context makes with these arguments; fits a tag and a label.

    Args:
        context_key: of ``read_context``.
        args: build arguments by name.
        platform: such as ``linux/amd64``.
    """
    digest = hashlib.sha256(_IMAGE_FORMAT)
    for text in (context_key, platform, *(f"{name}={value}" for name, value in sorted(args.items()))):
        digest.update(f"{len(text.encode())}:{text}\0".encode())
    return digest.hexdigest()[:40]


def read_dockerfile(context: BuildContext) -> str:
    """Its text; line ends as they are.

    Raises:
        ContextError: larger than any real one.
    """
    with (context.folder / context.dockerfile).open("rb") as stream:
        data = stream.read(_DOCKERFILE_BYTES + 1)
    if len(data) > _DOCKERFILE_BYTES:
        raise ContextError(f"{context.dockerfile} is larger than {_DOCKERFILE_BYTES} bytes")
    return data.decode("utf-8", errors="replace")


def _rules(folder: Path) -> Dockerignore:
    for name in IGNORE_FILES:
        if _is_file(folder / name):
            try:
                with (folder / name).open("rb") as stream:
                    data = stream.read(_IGNORE_BYTES + 1)
                if len(data) > _IGNORE_BYTES:
                    raise ContextError(f"{name} is larger than {_IGNORE_BYTES} bytes")
                return parse_dockerignore(data.decode("utf-8", errors="replace"))
            except DockerignoreError as error:
                raise ContextError(f"{name}: {error}") from error
    return Dockerignore(())


def _walk(folder: Path, rules: Dockerignore) -> Iterator[str]:
    found = []
    for parent, names, files in os.walk(folder):
        prefix = Path(parent).relative_to(folder).as_posix()
        prefix = "" if prefix == "." else f"{prefix}/"
        links = [name for name in names if (Path(parent) / name).is_symlink()]
        found += [path for name in (*files, *links) if not rules.excludes(path := prefix + name)]
        names[:] = [name for name in names if name not in links and (rules.has_exceptions or not rules.excludes(prefix + name))]
    return iter(sorted(found))


def _add(digest: hashlib._Hash, folder: Path, path: str) -> None:
    file = folder / path
    info = file.lstat()
    name = os.fsencode(path)
    if stat.S_ISLNK(info.st_mode):
        target = os.fsencode(os.readlink(file))
        digest.update(b"link\0%d:%b\0%d:%b\0" % (len(name), name, len(target), target))
        return
    if not stat.S_ISREG(info.st_mode):
        raise ContextError(f"{path} is neither a file nor a link: remove it from the build context, or list it in .dockerignore")
    kind = b"exec" if info.st_mode & 0o100 else b"file"
    digest.update(b"%b\0%d:%b\0%d:" % (kind, len(name), name, info.st_size))
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
