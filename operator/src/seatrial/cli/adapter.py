"""``seatrial adapter init`` and ``run``: another benchmark as Harbor tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.options import DryRun, expand


@expand
def init(
    *,
    name: Annotated[str, typer.Argument(help="Name of the benchmark; also the folder.")],
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Where the new folder is made.")] = Path(),
    dry_run: DryRun = False,
) -> None:
    """Make a new adapter: a program and a template.

    \b
    Example:
      seatrial adapter init my-bench
    """
    from seatrial.cli.console import note, show
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.adapter import adapter_files
    from seatrial.sdk.scaffold import write_files
    from seatrial.taskpkg.model import is_task_name

    if not is_task_name(f"{name}/x"):
        raise InvalidSpec("NAME", f"{name!r} must be of letters, digits, '.', '_' and '-'")
    files = adapter_files(name)
    if not dry_run:
        write_files(output_dir / name, files)
    show("\n".join(str(output_dir / name / file.path) for file in files))
    note(f"complete these files, then: seatrial adapter run {output_dir / name}/adapter.py --source DATA --output TASKS")


@expand
def run(
    *,
    adapter: Annotated[str, typer.Argument(metavar="FILE[:CLASS]", help="The adapter; it is executed.")],
    source: Annotated[Path, typer.Option("--source", help="What the adapter reads.")],
    output: Annotated[Path, typer.Option("--output", help="New or empty folder for the tasks.")],
    default_image: Annotated[
        str | None, typer.Option("--default-image", help="Image for tasks that name none and build none.", show_default=False)
    ] = None,
) -> None:
    """Generate the tasks of a benchmark and print each id. The result is an ordinary suite.

    \b
    Example:
      seatrial adapter run my-bench/adapter.py --source problems.jsonl --output ./suite
    """
    from seatrial.cli.console import note, show
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.adapter import load_adapter, run_adapter
    from seatrial.sdk.default_image import needs_image, set_docker_image

    if output.exists() and any(output.iterdir()):
        raise InvalidSpec("--output", f"{output} is not empty: give a new folder")
    count = 0
    for identifier in run_adapter(load_adapter(adapter), source=source, output=output):
        if default_image is not None and needs_image(output / identifier):
            set_docker_image(output / identifier, default_image)
        show(identifier)
        count += 1
    note(f"{count} tasks in {output}; next: seatrial check {output}")
