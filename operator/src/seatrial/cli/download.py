"""``seatrial download``: published tasks back as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Session, StoreFlags, expand


@expand
def download(
    *,
    reference: Annotated[str, typer.Argument(help="A Task or Taskset: name, optionally with #tag or #digest.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where the folders are made.")] = Path(),
    taskset: Annotated[bool, typer.Option("--taskset", help="The reference is a Taskset.")] = False,
) -> None:
    """Download a published task, or all tasks of a taskset. Digests are checked, and nothing is overwritten.

    \b
    Examples:
      seatrial download hello-world -d ./out
      seatrial download smoke --taskset -d ./out
    """
    from seatrial.cli.console import note, show
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.fetch import fetch_archive, task_archives

    session = Session(cluster, store)
    archives = task_archives(session.cluster, session.store, reference, taskset=taskset)
    directory.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        folder = fetch_archive(session.store, archive, directory)
        show(str(folder))
    if not archives:
        raise InvalidSpec(reference, "has no task")
    note(f"{len(archives)} tasks")
