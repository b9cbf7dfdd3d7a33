"""``seatrial init``: a new task or dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.options import DryRun, expand


@expand
def init(
    *,
    name: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Native name; its second part names the folder.")],
    task: Annotated[bool, typer.Option("--task", "-t", help="A task; the default.")] = False,
    dataset: Annotated[bool, typer.Option("--dataset", "-d", help="A dataset.")] = False,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Where the new folder is made.")] = Path(),
    description: Annotated[str, typer.Option("--description", help="One line.", show_default=False)] = "",
    author: Annotated[str | None, typer.Option("--author", help="Name of the author.", show_default=False)] = None,
    steps: Annotated[int, typer.Option("--steps", min=0, help="Make a task of so many steps.", show_default=False)] = 0,
    no_solution: Annotated[bool, typer.Option("--no-solution", help="Without solution scripts.")] = False,
    with_metric: Annotated[bool, typer.Option("--with-metric", help="Dataset: with a metric.py.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make a new task (or dataset) that passes check, and say which files to complete.

    A task beside a dataset.toml is listed there.

    \b
    Examples:
      seatrial init my-org/my-task
      seatrial init my-org/my-task --steps 3
      seatrial init my-org/my-suite --dataset --with-metric
    """
    from seatrial.cli.console import note, show
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.scaffold import add_to_dataset, dataset_files, task_files, write_files

    if task and dataset:
        raise InvalidSpec("init", "give --task or --dataset, not both")
    if dataset and (steps or no_solution):
        raise InvalidSpec("init", "--steps and --no-solution go with a task")
    if with_metric and not dataset:
        raise InvalidSpec("--with-metric", "goes with --dataset")
    if dataset:
        files = dataset_files(name, description=description, author=author, metric=with_metric)
    else:
        files = task_files(name, description=description, author=author, steps=steps, solution=not no_solution)
    target = output_dir / name.rpartition("/")[2]
    if not dry_run:
        write_files(target, files)
    show("\n".join(str(target / file.path) for file in files))
    if dry_run:
        return
    if not dataset and add_to_dataset(target.resolve(), name):
        note(f"listed in {target.parent / 'dataset.toml'}; its digest changes with every edit: seatrial check tells")
    note(f"complete these files, then: seatrial check {target}" if not dataset else f"add tasks: seatrial init ORG/NAME -o {target}")
