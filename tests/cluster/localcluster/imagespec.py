"""Which images there are, what goes into each and the key that says whether one must be built again. Reads files, changes none."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.settings import ClusterError

LOCAL_PREFIX = "seatrial.local/"
BASE_IMAGE = f"{LOCAL_PREFIX}base:12"
RUNNER_IMAGE = f"{LOCAL_PREFIX}runner:dev"
OPERATOR_IMAGE = f"{LOCAL_PREFIX}operator:dev"

SUITE_PATTERNS = ("examples/suites/*/*/task.toml", "tests/**/suites/*/*/task.toml")
IGNORED_NAMES = frozenset({"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


@dataclass(frozen=True)
class Image:
    """One image to build."""

    name: str
    """With its tag."""
    dockerfile: str
    """Path below the context."""
    sources: tuple[Path, ...]
    """Files and folders of the checkout that make the context, at the same paths in it; one folder alone *is* the context."""
    own_context: bool = False
    """The only source is a folder that is the context itself, as for a task's environment."""
    binaries: tuple[str, ...] = ()
    """Go binaries that the context holds as build/NAME."""
    needs_packages: bool = False
    """Its RUN steps reach the package index, with the machine's configuration for it."""


def own_images(checkout: Path) -> tuple[Image, ...]:
    """The images of the product."""
    return (
        Image(
            RUNNER_IMAGE,
            "runner-image/Dockerfile",
            tuple(checkout / name for name in ("runner-image/Dockerfile", "runner-image/src", "operator/src", "requirements/operator.txt")),
            binaries=("envd",),
            needs_packages=True,
        ),
        Image(
            OPERATOR_IMAGE,
            "operator/Dockerfile",
            tuple(
                checkout / name
                for name in (
                    "operator/Dockerfile",
                    "operator/src",
                    "runner-image/src",
                    "pyproject.toml",
                    "README.md",
                    "LICENSE",
                    "requirements/operator.txt",
                )
            ),
            needs_packages=True,
        ),
    )


def task_images(checkout: Path) -> tuple[Image, ...]:
    """The images that tasks of the checkout name and that their own ``environment/Dockerfile`` makes, by name.

    Raises:
        ClusterError: two different folders claim one name.
    """
    found: dict[str, Image] = {}
    for pattern in SUITE_PATTERNS:
        for path in sorted(checkout.glob(pattern)):
            folder = path.parent / "environment"
            name = _docker_image(path)
            if name is None or not name.startswith(LOCAL_PREFIX) or not (folder / "Dockerfile").is_file():
                continue
            image = Image(name, "Dockerfile", (folder,), own_context=True)
            if name in found and tree_key([folder], root=folder) != tree_key(found[name].sources, root=found[name].sources[0]):
                raise ClusterError(
                    f"{path}: image {name} is also that of {found[name].sources[0].parent}, with other content; name one of them anew"
                )
            found.setdefault(name, image)
    return tuple(found[name] for name in sorted(found))


def select(checkout: Path, names: Sequence[str]) -> list[Image]:
    """All the images of the checkout, or those named, in full or without ``seatrial.local/`` and tag.

    Raises:
        ClusterError: a name that no image has.
    """
    images = [*own_images(checkout), *task_images(checkout)]
    known = {image.name: image for image in images}
    short = {name.removeprefix(LOCAL_PREFIX).partition(":")[0]: name for name in known}
    unknown = [name for name in names if name not in known and name not in short]
    if unknown:
        raise ClusterError(f"no image {', '.join(unknown)}; there are {', '.join(sorted(short))}")
    return [known[short.get(name, name)] for name in names] if names else images


def _docker_image(path: Path) -> str | None:
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8")).get("environment", {}).get("docker_image")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError):
        # A suite of broken tasks is there to be refused by the product, not by us.
        return None
    return value if isinstance(value, str) else None


def files_of(sources: Sequence[Path]) -> Iterator[Path]:
    """All files and links below the sources, in a fixed order, caches apart."""
    for source in sorted(sources):
        if source.is_dir() and not source.is_symlink():
            for folder, names, files in os.walk(source):
                names[:] = sorted(name for name in names if name not in IGNORED_NAMES)
                # A link to a folder is listed as a folder, but is content like a file.
                links = [name for name in names if (Path(folder) / name).is_symlink()]
                yield from (Path(folder) / name for name in sorted([*files, *links]) if not name.endswith(".pyc"))
        elif source.exists() or source.is_symlink():
            yield source
        else:
            raise ClusterError(f"{source}: missing; an image needs it")


def tree_key(sources: Sequence[Path], *, root: Path, facts: Mapping[str, str] | None = None) -> str:
    """Sixteen hexadecimal digits for names, modes and content of the files and for ``facts``."""
    digest = hashlib.sha256()
    for name, value in sorted((facts or {}).items()):
        digest.update(f"{name}={value}\0".encode())
    for path in files_of(sources):
        linked = path.is_symlink()
        content = os.fsencode(path.readlink()) if linked else path.read_bytes()
        kind = "link" if linked else "x" if path.stat().st_mode & 0o100 else "-"
        digest.update(f"{path.relative_to(root)}\0{kind}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Context:
    """An image with the key of all that decides its content."""

    image: Image
    root: Path
    """Sources are placed in the context relative to this folder."""
    key: str
    binaries: Mapping[str, Path] = field(default_factory=dict)


def context_of(image: Image, *, checkout: Path, base_key: str, binaries: Mapping[str, Path]) -> Context:
    """Bind an image to its files.

    Args:
        image: the image.
        checkout: root of the repository.
        base_key: key of the base image.
        binaries: the built Go binaries that the image names.
    """
    root = image.sources[0] if image.own_context else checkout
    facts = {"base": base_key, "name": image.name, "dockerfile": image.dockerfile}
    facts |= {f"binary {name}": path.parent.name for name, path in binaries.items()}
    return Context(image, root, tree_key(image.sources, root=root, facts=facts), binaries)
