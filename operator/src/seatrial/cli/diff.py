"""``seatrial diff``: two revisions of a task or taskset."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Session, StoreFlags, expand
from seatrial.cli.tag import Kind


@expand
def diff(
    *,
    kind: Annotated[Kind, typer.Argument(help="task or taskset.")],
    name: Annotated[str, typer.Argument(help="Name of the object.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    old: Annotated[str, typer.Argument(help="Revision number, tag or digest.")],
    new: Annotated[str, typer.Argument(help="The other one.")] = "latest",
) -> None:
    """Show what changed between two revisions: settings and files, or members. Nothing is printed when nothing did.

    \b
    Examples:
      seatrial diff task hello-world 1
      seatrial diff taskset smoke stable latest
    """
    from seatrial.api.names import TASK, TASKSET
    from seatrial.cli.console import show
    from seatrial.cli.output import printable
    from seatrial.sdk.difference import diff_tasks, diff_tasksets
    from seatrial.sdk.revisions import find_revision

    session = Session(cluster, store)
    resource = TASK if kind is Kind.TASK else TASKSET
    item = {"kind": resource, **session.cluster.get(resource, name)}
    documents = [find_revision(session.store, item, fragment) for fragment in (old, new)]
    lines = diff_tasks(session.store, *documents) if kind is Kind.TASK else diff_tasksets(*documents)
    for line in lines:
        show(printable(line))
