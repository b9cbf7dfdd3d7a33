"""``seatrial gc``: archives and metric scripts that nothing refers to any more."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, StoreFlags, expand


@expand
def gc(
    *,
    cluster: ClusterOptions,
    store: StoreFlags,
    older_than: Annotated[float, typer.Option("--older-than", metavar="HOURS", help="Leave younger files alone.")] = 24,
    delete: Annotated[bool, typer.Option("--delete", help="Remove them; without this they are only listed.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the archives and metric scripts of a namespace that no task, taskset, revision or job refers to; with --delete, remove them.

    Deleting a Task or a Taskset never deletes what it names: others may share it.

    \b
    Example:
      seatrial gc -n evals
    """
    import datetime

    from seatrial.cli.console import note, show
    from seatrial.cli.output import Column, dump
    from seatrial.sdk.garbage import unreferenced_files

    session = Session(cluster, store)
    now = datetime.datetime.now(datetime.UTC)
    found = list(
        unreferenced_files(
            session.cluster,
            session.store,
            namespaces=(session.cluster.namespace,),
            older_than=datetime.timedelta(hours=older_than),
            now=now,
        )
    )
    columns = [Column("FILE", lambda item: item["key"]), Column("BYTES", lambda item: item["size"])]
    records = [{"key": entry.key, "size": entry.size} for entry in found]
    if records or output is not Output.TABLE:
        show(dump(records, output, columns=columns))
    if delete:
        for entry in found:
            session.store.delete(entry.key)
    verb = "removed" if delete else "unreferenced; --delete removes them"
    note(f"{len(found)} files, {sum(entry.size for entry in found)} bytes {verb}")
