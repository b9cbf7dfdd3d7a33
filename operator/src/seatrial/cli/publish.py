"""``seatrial publish``: archives to the object store, Task and Taskset objects to the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.images import BuildFlags
from seatrial.cli.options import ClusterOptions, DryRun, Output, OutputOption, Session, StoreFlags, expand

if TYPE_CHECKING:
    from seatrial.sdk.publish import PublishReport


@expand
def publish(
    *,
    path: Annotated[Path | None, typer.Argument(help="A task, or a folder of tasks.", show_default=False)] = None,
    cluster: ClusterOptions,
    store: StoreFlags,
    registry: Annotated[
        Path | None, typer.Option("--registry", help="A registry.json instead: each task at its git commit.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME[@VERSION]", help="Dataset of the registry.", show_default=False)
    ] = None,
    images: BuildFlags,
    taskset: Annotated[str | None, typer.Option("--taskset", help="Group the tasks into this Taskset.", show_default=False)] = None,
    fileset: Annotated[
        str | None, typer.Option("--fileset", help="NS/NAME or NAME of the archives; else NAMESPACE/harbor-tasks.", show_default=False)
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Folder inside the fileset, such as release-1.", show_default=False)] = "",
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Tag of the published revisions; repeatable.", show_default=False)] = None,
    description: Annotated[str, typer.Option("--description", help="Description of the Taskset.", show_default=False)] = "",
    include: Annotated[
        list[str] | None, typer.Option("--include-task-name", "-i", help="Only folders that match.", show_default=False)
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude-task-name", "-x", help="Not folders that match.", show_default=False)
    ] = None,
    limit: Annotated[int | None, typer.Option("--n-tasks", "-l", min=1, help="The first N of them.", show_default=False)] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="KEY=VALUE", help="Only tasks with this in [metadata], such as difficulty=easy.", show_default=False
        ),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into category folders.")] = False,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip what is no valid task, as Harbor does.")] = False,
    default_image: Annotated[
        str | None, typer.Option("--default-image", help="Image for tasks that name none and build none.", show_default=False)
    ] = None,
    name_template: Annotated[str, typer.Option("--name-template", help="Object names; fields {name} and {dir}.")] = "{name}",
    create: Annotated[bool, typer.Option("--create", help="Refuse tasks that exist already.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Publish what is good although something is bad.")] = False,
    no_metric_script: Annotated[bool, typer.Option("--no-metric-script", help="Leave the suite's metric.py out.")] = False,
    metric_platform: Annotated[
        str | None,
        typer.Option(
            "--metric-platform",
            metavar="PLATFORM",
            help="Of the nodes, for compiled packages of metric.py, such as aarch64-manylinux_2_28; x86_64 without this.",
            show_default=False,
        ),
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="First build and push what Dockerfiles describe and the registry lacks.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for verification.")] = 300,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a suite, store its archives, register its tasks and wait until they are verified.

    Running it again continues where it ended and changes nothing that is there already.

    \b
    Examples:
      seatrial publish ./suite --taskset smoke -n evals
      seatrial publish --registry registry.json --dataset bench@1.0 --taskset bench
    """
    from dataclasses import replace

    from seatrial.cli.console import note, publish_progress
    from seatrial.cli.images import image_build
    from seatrial.sdk.metric_packages import PLATFORM
    from seatrial.sdk.publish import PublishOptions, SuiteRefused
    from seatrial.sdk.publish import publish as run_publish
    from seatrial.sdk.request import parse_pairs

    options = PublishOptions(
        taskset=taskset,
        fileset=fileset,
        prefix=prefix,
        tags=tags or (),
        description=description,
        recursive=recursive,
        lenient=lenient,
        include=include or (),
        exclude=exclude or (),
        limit=limit,
        metadata=parse_pairs(where or (), option="--where"),
        default_image=default_image,
        create=create,
        partial=partial,
        name_template=name_template,
        metric_script=not no_metric_script,
        metric_platform=metric_platform or PLATFORM,
        dry_run=dry_run,
        timeout_seconds=timeout,
    )
    session = Session(cluster, store)
    if build:
        options = replace(options, build=image_build(images, session, dry_run=dry_run))
    try:
        with _suite(path, registry, dataset) as found, publish_progress(session.cluster.namespace) as progress:
            options = replace(options, metrics=found.metrics)
            report = run_publish(found.folder, options, cluster=session.cluster, settings=session.settings, progress=progress)
    except SuiteRefused as error:
        note(refusal(error))
        raise
    print_report(report, output)
    raise typer.Exit(Exit.GOOD if report.succeeded else Exit.FAILED)


class _Suite(NamedTuple):
    folder: Path
    metrics: tuple[str, ...] = ()


@contextmanager
def _suite(path: Path | None, registry: Path | None, dataset: str | None) -> Iterator[_Suite]:
    """The folder to publish: the given one, or one gathered from a registry for as long as it is needed."""
    import tempfile

    from seatrial.cli.console import note
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.registry import find_dataset, gather

    if (path is None) == (registry is None) or (dataset is not None and registry is None):
        raise InvalidSpec("publish", "give either a folder, or --registry FILE with --dataset NAME[@VERSION]")
    if path is not None:
        yield _Suite(path)
        return
    assert registry is not None
    found = find_dataset(registry, dataset)
    with tempfile.TemporaryDirectory(prefix="seatrial-registry-") as scratch:
        note(f"fetching {len(found.tasks)} tasks of {found.name}@{found.version}")
        folder = gather(found, registry=registry.resolve(), target=Path(scratch))
        yield _Suite(folder, tuple(metric.type for metric in found.metrics if metric.type != "uv-script"))


def refusal(error: Any) -> str:
    """Every fault of a refused suite, a line each."""
    from seatrial.cli.check import problem_line

    suite = error.suite
    lines = [problem_line(problem, task.path.name) for task in suite.bad for problem in task.problems if problem.severity == "error"]
    return "\n".join([*lines, *(problem_line(problem, "") for problem in suite.errors)])


def print_report(report: PublishReport, output: Output) -> None:
    """The table of tasks to standard output; what failed and what was stored to standard error."""
    from seatrial.cli.console import note, show
    from seatrial.cli.output import PUBLISHED_COLUMNS, dump, printable

    records = [record(task) for task in report.tasks]
    if output is Output.TABLE:
        show(dump(records, output, columns=PUBLISHED_COLUMNS))
    else:
        show(dump(records if output in (Output.JSONL, Output.CSV) else [summary(report)], output, columns=PUBLISHED_COLUMNS, one=True))
    for task in report.failed:
        note(f"failed: {task.folder.name}: {printable(task.message)}")
    note(counts(report))
    if report.warnings:
        note(f"{report.warnings} warnings: seatrial check of the folder says what may go wrong")
    if report.metric_script is not None:
        note(f"metric.py {report.metric_script['sha256'][:12]} runs over the rewards of every job on this suite, as script.NAME")
    if report.metric_script_note:
        note(f"warning: {printable(report.metric_script_note)}; it is published without its packages, and its Pod cannot fetch them")
    if report.taskset is not None:
        taskset = report.taskset
        pinned = f", revision {taskset.revision}" if taskset.revision else ""
        message = f": {printable(taskset.message)}" if taskset.message else ""
        note(f"taskset {taskset.name}: {taskset.outcome}, {taskset.members} members{pinned}{message}")
    elif report.skipped_taskset:
        note("the Taskset was not written, because a task failed: correct it and repeat, or use --partial")


def counts(report: PublishReport) -> str:
    """What was done, in one line."""
    found = {outcome: sum(task.outcome == outcome for task in report.tasks) for outcome in ("created", "revised", "unchanged", "failed")}
    stored = sum(task.stored for task in report.tasks)
    text = ", ".join(f"{number} {outcome}" for outcome, number in found.items() if number)
    if report.dry_run:
        return f"{len(report.tasks)} tasks: {text}; nothing was sent (--dry-run)"
    return f"{len(report.tasks)} tasks: {text}; {stored} archives in the store"


def record(task: Any) -> dict[str, Any]:
    """A task of the report as documented JSON."""
    return {
        "name": task.name,
        "nativeTaskId": task.native_id,
        "path": str(task.folder),
        "outcome": task.outcome,
        "stored": task.stored,
        "ref": task.ref or None,
        "sha256": task.sha256 or None,
        "sizeBytes": task.size_bytes or None,
        "revision": task.revision,
        "digest": task.digest,
        "message": task.message or None,
    }


def summary(report: PublishReport) -> dict[str, Any]:
    """The whole report as documented JSON."""
    taskset = report.taskset
    return {
        "namespace": report.namespace,
        "dryRun": report.dry_run,
        "succeeded": report.succeeded,
        "tasks": [record(task) for task in report.tasks],
        "metricScript": report.metric_script,
        "taskset": None
        if taskset is None
        else {
            "name": taskset.name,
            "outcome": taskset.outcome,
            "members": taskset.members,
            "revision": taskset.revision,
            "digest": taskset.digest,
            "message": taskset.message or None,
        },
    }
