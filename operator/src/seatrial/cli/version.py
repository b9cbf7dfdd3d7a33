"""``seatrial version``: of this program, the cluster and the operator."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Session, expand


@expand
def version(
    *,
    cluster: ClusterOptions,
    client: Annotated[bool, typer.Option("--client", help="Only this program; nobody is asked.")] = False,
) -> None:
    """Print the versions of this program, the cluster and the operator.

    \b
    Example:
      seatrial version --client
    """
    from seatrial import __version__
    from seatrial.cli.console import show

    show(f"Client Version: v{__version__}")
    if client:
        return
    session = Session(cluster)
    show(f"Server Version: {session.cluster.version()}")
    from seatrial.errors import SeatrialError
    from seatrial.sdk.diagnose import operator_images

    try:
        images = operator_images(session.cluster)
    except SeatrialError:
        images = ()
    show(f"Operator: {', '.join(images) or 'not found'}")
