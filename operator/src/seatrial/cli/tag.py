"""``seatrial tag``: name the current revision of a task or taskset."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, DryRun, Session, expand


class Kind(enum.StrEnum):
    """What has revisions."""

    TASK = "task"
    TASKSET = "taskset"


@expand
def tag(
    *,
    kind: Annotated[Kind, typer.Argument(help="task or taskset.")],
    name: Annotated[str, typer.Argument(help="Name of the object.")],
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="Tags, such as stable.")],
    cluster: ClusterOptions,
    dry_run: DryRun = False,
) -> None:
    """Give the current revision of a task or taskset a tag; a tag that another revision has moves. latest moves by itself.

    \b
    Example:
      seatrial tag task hello-world stable -n evals
    """
    import json

    from seatrial.api.names import TASK, TASKSET
    from seatrial.cli.console import show
    from seatrial.errors import InvalidSpec

    if "latest" in tags:
        raise InvalidSpec("TAG", "latest is moved by every publication and by nothing else")
    resource = TASK if kind is Kind.TASK else TASKSET
    session = Session(cluster)
    item = session.cluster.get(resource, name)
    wanted = list(dict.fromkeys([*item["spec"].get("tags", []), *tags]))
    if dry_run:
        show(json.dumps({"spec": {"tags": wanted}}))
        return
    session.cluster.merge(resource, name, {"spec": {"tags": wanted}})
    revision = item.get("status", {}).get("revision")
    show(f"{kind.value}/{name} revision {revision or '(not published yet)'} tagged {', '.join(tags)}")
