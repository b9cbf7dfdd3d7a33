"""``seatrial tag``: name a revision of a task or taskset."""

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
    revision: Annotated[
        str | None, typer.Option("--revision", help="Digest or tag of a published revision. [default: the current one]", show_default=False)
    ] = None,
    cluster: ClusterOptions,
    dry_run: DryRun = False,
) -> None:
    """Give a revision of a task or taskset a tag; a tag that another revision has moves. latest moves by itself.

    \b
    Examples:
      seatrial tag task hello-world stable -n evals
      seatrial tag task hello-world good --revision stable
    """
    import json

    from seatrial.api.names import TASK, TASKSET
    from seatrial.cli.console import show
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.tasks import tag_patch

    if "latest" in tags:
        raise InvalidSpec("TAG", "latest is moved by every publication and by nothing else")
    resource = TASK if kind is Kind.TASK else TASKSET
    session = Session(cluster)
    item = session.cluster.get(resource, name)
    patch = tag_patch(item, tags, revision)
    if dry_run:
        show(json.dumps(patch))
        return
    session.cluster.merge(resource, name, patch)
    named = revision or item.get("status", {}).get("revision") or "(not published yet)"
    show(f"{kind.value}/{name} revision {named} tagged {', '.join(tags)}")
