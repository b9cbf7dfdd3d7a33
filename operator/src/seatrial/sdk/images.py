"""Build the images that tasks describe, once: what a registry already has under the key of its content is not built again.

Why the registry and not a local record: it is the one place that every machine and the operator look at.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from seatrial.api.credentials import credential_paths, is_masked_name
from seatrial.effects.registry import ImageFacts, Registry, parse_ref
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.sdk.builders import Build, Builder, BuildFailed, run_build
from seatrial.taskpkg.buildlog import explain
from seatrial.taskpkg.check import CheckedTask
from seatrial.taskpkg.imagekey import DEFAULT_PLATFORM, BuildContext, ContextError, image_key, read_context, read_dockerfile
from seatrial.taskpkg.verification import COMPOSE_FILE, DOCKERFILE, verifier_definition

Role = Literal["environment", "verifier"]
Outcome = Literal["built", "present", "missing", "failed"]
DEFAULT_REPOSITORY: Final = "seatrial/tasks"
_ARGUMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def default_log_dir() -> Path:
    """Where logs of builds are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial" / "build-logs"


@dataclass(frozen=True)
class ImageOptions:
    """Where images go and how they are made."""

    repository: str
    """``host/name`` without a tag."""
    args: Mapping[str, str] = field(default_factory=dict)
    platform: str = DEFAULT_PLATFORM
    insecure: bool = False
    """The registry speaks plain HTTP."""
    force: bool = False
    """Build where ``docker_image`` is set too, as Harbor's ``--force-build``."""
    parallel: int = 2
    log_dir: Path = field(default_factory=default_log_dir)
    dry_run: bool = False
    """Only ask the registry."""


class ImageBuild(NamedTuple):
    """Everything that ``build_images`` needs beside the tasks."""

    options: ImageOptions
    builder: Builder | None
    registry: Registry


class Wanted(NamedTuple):
    """One image that a task needs."""

    task: CheckedTask
    role: Role
    context: BuildContext
    key: str


@dataclass(frozen=True)
class TaskImage:
    """What became of one image of one task."""

    task: Path
    native_id: str
    role: Role
    key: str
    outcome: Outcome
    image: str = ""
    """``host/name@sha256:…``; empty unless it is in the registry."""
    facts: ImageFacts = field(default_factory=ImageFacts)
    log: Path | None = None
    message: str = ""

    @property
    def env(self) -> tuple[str, ...]:
        """The image's ENV as others may see it."""
        return tuple(_shown(variable) for variable in self.facts.env)

    def record(self, platform: str) -> dict[str, Any]:
        """As ``spec.images`` of a Task holds it; every field, because the server would add what is missing and the two would differ."""
        facts = self.facts
        return {
            "image": self.image,
            "key": self.key,
            "platform": platform,
            "user": facts.user,
            "workdir": facts.workdir,
            "entrypoint": list(facts.entrypoint),
            "env": list(self.env),
        }


def parse_build_args(values: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` pairs; a NAME alone takes the value of the environment.

    Raises:
        InvalidSpec: one is neither.
    """
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not _ARGUMENT.fullmatch(name) or (not equals and name not in os.environ):
            raise InvalidSpec("--build-arg", f"{name!r} is not usable: give NAME=VALUE, or the NAME of a variable that is set")
        found[name] = text if equals else os.environ[name]
    return found


def wanted_images(task: CheckedTask, options: ImageOptions) -> Iterator[Wanted]:
    """The images that the task's own files describe and that it does not name ready-made. Source: harbor.md 3.1, 6.2.

    Raises:
        ContextError: a folder cannot be a build context.
    """
    config = task.config
    if config is None:
        return
    if (not config.environment.docker_image or options.force) and _has_dockerfile(task.path / "environment"):
        yield _want(task, "environment", task.path / "environment", options)
    if config.is_multi_step:
        return
    verifier = verifier_definition(config, task.path)
    if verifier is not None and verifier.is_bundled and verifier.environment.docker_image is None and _has_dockerfile(verifier.folder):
        yield _want(task, "verifier", verifier.folder, options)


def build_images(
    tasks: Sequence[CheckedTask],
    options: ImageOptions,
    *,
    builder: Builder | None,
    registry: Registry,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> tuple[TaskImage, ...]:
    """Build and push what the registry lacks; equal contents are built once.

    Args:
        builder: None: never build; what is missing has the outcome ``missing``.
        progress: called with images done, images in all, and the task that was just done.

    Returns:
        One entry for each image of each task, in the order of ``tasks``. Failures are entries, not exceptions.

    Raises:
        InvalidSpec: the repository is no reference. Unavailable, Forbidden: the registry, when it is asked at the start.
    """
    host = parse_ref(options.repository).host
    wanted: list[Wanted] = []
    results: dict[tuple[Path, Role], TaskImage] = {}
    for task in tasks:
        try:
            wanted += wanted_images(task, options)
        except (ContextError, OSError) as error:
            results[task.path, "environment"] = TaskImage(
                task.path, task.native_id, "environment", "", "failed", message=f"environment/: {error}"
            )
    groups: dict[str, list[Wanted]] = {}
    for want in wanted:
        groups.setdefault(want.key, []).append(want)
    if groups:
        # One clear error instead of one a task.
        registry.digest(f"{options.repository}:{next(iter(groups))}")
    insecure = options.insecure and bool(host)
    done = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, options.parallel)) as pool:
        started = {
            pool.submit(_provide, group, options, builder=builder, registry=registry, insecure=insecure): group for group in groups.values()
        }
        for future in concurrent.futures.as_completed(started):
            for item in future.result():
                results[item.task, item.role] = item
                done += 1
                progress(done, len(wanted), item.task.name)
    roles: tuple[Role, ...] = ("environment", "verifier")
    return tuple(results[task.path, role] for task in tasks for role in roles if (task.path, role) in results)


# --- private ----------------------------------------------------------------------------------------------------------------------------


def _shown(variable: str) -> str:
    """``NAME=VALUE`` of an image; what looks like a credential has no value in an object that many may read."""
    name, _, value = variable.partition("=")
    is_secret = is_masked_name(name) or any(credential_paths(value, name))
    return f"{name}=" if is_secret else variable


def _has_dockerfile(folder: Path) -> bool:
    return (folder / DOCKERFILE).is_file() and not (folder / COMPOSE_FILE).is_file()


def _want(task: CheckedTask, role: Role, folder: Path, options: ImageOptions) -> Wanted:
    context = read_context(folder)
    return Wanted(task, role, context, image_key(context.key, args=options.args, platform=options.platform))


def _provide(
    group: Sequence[Wanted], options: ImageOptions, *, builder: Builder | None, registry: Registry, insecure: bool
) -> tuple[TaskImage, ...]:
    first = group[0]
    target = f"{options.repository}:{first.key}"
    log: Path | None = None
    facts, image, message = ImageFacts(), "", ""
    outcome: Outcome = "present"
    try:
        digest = registry.digest(target)
        if digest is None and (builder is None or options.dry_run):
            outcome = "missing"
        elif digest is None and builder is not None:
            outcome, log = "built", options.log_dir / f"{first.task.path.name}-{first.role}-{first.key[:12]}.log"
            config = first.task.config
            timeout = config.environment.build_timeout_sec if config is not None else None
            build = Build(first.context, target, options.args, options.platform, insecure)
            digest = run_build(builder, build, log=log, timeout_seconds=timeout)
        if digest is not None:
            image = f"{options.repository}@{digest}"
            facts = registry.facts(image, platform=options.platform)
    except BuildFailed as error:
        outcome = "failed"
        fault = explain(read_dockerfile(first.context), error.log) if error.log else None
        # A build that was ended from outside has no fault of its own; its last step says where it was.
        reason = str(error) if fault is None or "did not end within" in str(error) else fault.message
        where = f"{_folder(first)}/Dockerfile"
        if fault is not None and fault.line is not None:
            where += f" line {fault.line} ({fault.instruction})"
        message = f"{where}: {reason}. Log: {log}"
    except (SeatrialError, OSError, ValueError) as error:
        outcome, message = "failed", str(error)
    return tuple(TaskImage(want.task.path, want.task.native_id, want.role, want.key, outcome, image, facts, log, message) for want in group)


def _folder(want: Wanted) -> str:
    return want.context.folder.relative_to(want.task.path).as_posix()
