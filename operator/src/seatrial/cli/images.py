"""``seatrial images``: build and push what tasks describe by Dockerfiles, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, expand

if TYPE_CHECKING:
    from seatrial.sdk.images import ImageBuild, TaskImage


@dataclass(frozen=True)
class BuildFlags:
    """How images are built, for ``images`` and ``publish --build``."""

    repository: Annotated[
        str | None,
        typer.Option(
            "--repository", help="HOST/NAME to push to, or SEATRIAL_IMAGE_REPOSITORY; else as the chart says.", show_default=False
        ),
    ] = None
    builder: Annotated[
        str | None,
        typer.Option(
            "--builder",
            help="docker, buildah, or an address of BuildKit such as tcp://HOST:1234; else what is installed.",
            show_default=False,
        ),
    ] = None
    build_arg: Annotated[
        list[str] | None, typer.Option("--build-arg", metavar="NAME=VALUE", help="Build argument; repeatable.", show_default=False)
    ] = None
    build_option: Annotated[
        list[str] | None,
        typer.Option(
            "--build-option", metavar="OPTION", help="Further option of the builder's build command; repeatable.", show_default=False
        ),
    ] = None
    platform: Annotated[str, typer.Option("--platform", help="Platform to build for.")] = "linux/amd64"
    insecure: Annotated[bool, typer.Option("--insecure-registry", help="The registry speaks plain HTTP.")] = False
    force_build: Annotated[bool, typer.Option("--force-build", help="Build also where task.toml names an image.")] = False
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=16, help="Builds at a time.")] = 2
    log_dir: Annotated[
        Path | None, typer.Option("--log-dir", help="Folder of the logs; else below ~/.cache/seatrial.", show_default=False)
    ] = None


@expand
def images(
    *,
    path: Annotated[Path, typer.Argument(help="A task, or a folder of tasks.")],
    build: BuildFlags,
    cluster: ClusterOptions,
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into category folders.")] = False,
    check_only: Annotated[bool, typer.Option("--dry-run", help="Only say what is missing in the registry.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Build the images of a task or suite that the registry does not have yet, and push them.

    An image is found again by what decides its content: Dockerfile, build context, build arguments, platform.

    \b
    Example:
      seatrial images ./suite --repository registry.example.com/evals/tasks
    """
    from seatrial.cli.console import note, show
    from seatrial.cli.output import IMAGE_COLUMNS, dump
    from seatrial.sdk.images import build_images
    from seatrial.sdk.publish import PublishOptions, find_suite

    suite = find_suite(path, PublishOptions(recursive=recursive))
    plan = image_build(build, Session(cluster), dry_run=check_only)

    def progress(done: int, total: int, name: str) -> None:
        note(f"images {done}/{total}  {name}")

    found = build_images(
        [task for task in suite.tasks if task.config is not None],
        plan.options,
        builder=plan.builder,
        registry=plan.registry,
        progress=progress,
    )
    show(dump([record(item) for item in found], output, columns=IMAGE_COLUMNS))
    failed = [item for item in found if item.outcome == "failed"]
    for item in failed:
        note(f"failed: {item.task.name}: {item.message}")
    note(counts(found))
    raise typer.Exit(Exit.FAILED if failed or (check_only and any(item.outcome == "missing" for item in found)) else Exit.GOOD)


def image_build(flags: BuildFlags, session: Session, *, dry_run: bool = False) -> ImageBuild:
    """Options, builder and registry client from the flags, the environment and what the chart wrote.

    Raises:
        InvalidSpec: no repository is named anywhere, or there is no builder.
    """
    import os

    from seatrial.effects.registry import Registry, docker_auths, parse_ref
    from seatrial.errors import InvalidSpec, SeatrialError
    from seatrial.sdk.builders import choose_builder
    from seatrial.sdk.images import ImageBuild, ImageOptions, default_log_dir, parse_build_args
    from seatrial.sdk.storage import read_endpoints

    repository = flags.repository or os.environ.get("SEATRIAL_IMAGE_REPOSITORY") or ""
    insecure, args = flags.insecure, parse_build_args(flags.build_arg or ())
    if not repository:
        try:
            found = read_endpoints(session.cluster)
        except SeatrialError as error:
            raise InvalidSpec("--repository", f"names no registry to push to, and the cluster does not say one ({error})") from error
        repository, insecure = found.image_repository, insecure or found.image_insecure
        args = {**found.image_args, **args}
    if not repository:
        raise InvalidSpec("--repository", "names no registry to push to: give HOST/NAME, or set builds.repository of the chart")
    options = ImageOptions(
        repository=repository,
        args=args,
        platform=flags.platform,
        insecure=insecure,
        force=flags.force_build,
        parallel=flags.parallel,
        log_dir=flags.log_dir or default_log_dir(),
        dry_run=dry_run,
    )
    config = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    registry = Registry(insecure=(parse_ref(repository).host,) if insecure else (), auths=docker_auths(config))
    builder = None if dry_run else choose_builder(flags.builder, options=flags.build_option or ())
    return ImageBuild(options, builder, registry)


def record(item: TaskImage) -> dict[str, Any]:
    """One image as documented JSON."""
    return {
        "task": item.task.name,
        "nativeTaskId": item.native_id,
        "role": item.role,
        "key": item.key,
        "outcome": item.outcome,
        "image": item.image or None,
        "user": item.facts.user or None,
        "workdir": item.facts.workdir or None,
        "entrypoint": list(item.facts.entrypoint),
        "env": list(item.env),
        "log": str(item.log) if item.log else None,
        "message": item.message or None,
    }


def counts(found: Sequence[TaskImage]) -> str:
    """What was done, in one line."""
    numbers = {outcome: sum(item.outcome == outcome for item in found) for outcome in ("built", "present", "missing", "failed")}
    text = ", ".join(f"{number} {outcome}" for outcome, number in numbers.items() if number)
    return f"{len(found)} images: {text or 'no task describes one'}"
