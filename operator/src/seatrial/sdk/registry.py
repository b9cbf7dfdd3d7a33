"""Datasets of a ``registry.json``: each task at its git commit, gathered as an ordinary suite. Source: harbor.md 2.4."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from seatrial.errors import InvalidSpec, NotFound, Unavailable
from seatrial.taskpkg.dataset import METRIC_FILE, RegistryDataset, RegistryTask, choose_version, parse_registry
from seatrial.taskpkg.materialise import materialise_links

GIT_SECONDS: Final = 600


def find_dataset(file: Path, reference: str | None) -> RegistryDataset:
    """The dataset ``name[@version]`` of a registry; without a reference its only one.

    Raises:
        InvalidSpec: the file is no registry.
        NotFound: no such dataset or version.
    """
    try:
        datasets, problems = parse_registry(file.read_bytes(), file=file.name)
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from error
    if problems:
        raise InvalidSpec(str(file), problems[0].message)
    name, _, version = (reference or "").partition("@")
    names = sorted({dataset.name for dataset in datasets})
    if not name:
        if len(names) != 1:
            raise NotFound(f"{file} has {len(names)} datasets: choose one with --dataset NAME[@VERSION]")
        name = names[0]
    versions = {dataset.version: dataset for dataset in datasets if dataset.name == name}
    if not versions:
        raise NotFound(f"{file} has no dataset {name!r}; known: {', '.join(names[:10])}")
    chosen = version or choose_version(list(versions))
    if chosen not in versions:
        raise NotFound(f"dataset {name} has no version {chosen!r}; known: {', '.join(sorted(versions))}")
    return versions[chosen]


def gather(dataset: RegistryDataset, *, registry: Path, target: Path) -> Path:
    """Fetch every task of the dataset below the new folder ``target``; links become copies.

    Raises:
        InvalidSpec: a path leaves its repository, or two tasks have one folder name.
        Unavailable: git cannot fetch.
        PackageError: a link that is refused.
    """
    checkouts: dict[tuple[str, str], Path] = {}
    wanted: dict[tuple[str, str], list[str]] = {}
    for task in dataset.tasks:
        wanted.setdefault(_origin(task), []).append(task.path)
    suite = target / "suite"
    suite.mkdir(parents=True)
    for task in dataset.tasks:
        root = registry.parent if task.git_url is None else _checkout(task, target, checkouts, wanted[_origin(task)])
        source = _inside(root, task.path)
        folder = suite / source.name
        if folder.exists():
            raise InvalidSpec(task.name, f"two tasks of {dataset.name} lie in folders called {source.name}: publish them apart")
        shutil.copytree(source, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        if task.git_url is not None:
            materialise_links(folder)
    for metric in dataset.metrics:
        if metric.type == "uv-script":
            shutil.copyfile(_script(metric.kwargs.get("script_path"), registry), suite / METRIC_FILE)
    return suite


def _script(path: object, registry: Path) -> Path:
    """The file that a registry's script metric names, beside the registry or absolute, as in Harbor.

    Raises:
        NotFound: there is none.
    """
    file = registry.parent / str(path)
    if not isinstance(path, str) or not file.is_file():
        raise NotFound(f"{registry.name}: metrics: script_path {path!r} is no file")
    return file


def _origin(task: RegistryTask) -> tuple[str, str]:
    return task.git_url or "", task.git_commit_id or "HEAD"


def _checkout(task: RegistryTask, target: Path, known: dict[tuple[str, str], Path], paths: Sequence[str]) -> Path:
    """One commit without history, and of it only the folders ``paths``: datasets share large repositories."""
    url, commit = _origin(task)
    if url.startswith("-") or commit.startswith("-"):
        raise InvalidSpec(task.name, "git_url and git_commit_id must not start with a hyphen")
    if (url, commit) not in known:
        folder = target / f"checkout-{len(known)}"
        _git("init", "--quiet", str(folder))
        _git("-C", str(folder), "remote", "add", "origin", url)
        _git("-C", str(folder), "sparse-checkout", "set", "--cone", "--", *paths)
        _git("-C", str(folder), "fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", commit)
        _git("-C", str(folder), "-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD")
        known[url, commit] = folder
    return known[url, commit]


def _git(*arguments: str) -> None:
    # No question may be asked, and the user's hooks and filters have nothing to do with somebody else's repository.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"git cannot run: {error}") from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise Unavailable(f"git {arguments[2] if arguments[0] == '-C' else arguments[0]} failed: {last[0][:200]}")


def _inside(root: Path, path: str) -> Path:
    """The folder ``path`` below ``root``, reached without links.

    Raises:
        InvalidSpec: it leaves the root, is a link, or does not exist.
    """
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or not parts:
        raise InvalidSpec("path", f"{path!r} leaves the repository")
    folder = root
    for part in parts:
        folder = folder / part
        if folder.is_symlink():
            raise InvalidSpec("path", f"{path!r} leads through a link")
    if not folder.is_dir():
        raise InvalidSpec("path", f"{path!r} is not a folder of the repository")
    return folder
