"""``seatrial doctor``: whether the installation works, and what to do if not."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, StoreFlags, expand


@expand
def doctor(
    cluster: ClusterOptions,
    store: StoreFlags,
    network: Annotated[bool, typer.Option("--network", help="Start a Pod to see whether NetworkPolicies are enforced.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check cluster, custom resources, operator and object store. Exit code 3 if a step fails.

    The object store is tried with one small object below .seatrial-ping/, which is deleted again.

    \b
    Example:
      seatrial doctor
      seatrial doctor --namespace evals --network
    """
    from seatrial.cli.console import show
    from seatrial.cli.output import Column, dump
    from seatrial.sdk.diagnose import diagnose
    from seatrial.sdk.storage import StoreOptions

    session = Session(cluster, store)
    options = StoreOptions(endpoint=store.s3_endpoint, bucket=store.s3_bucket, region=store.s3_region)
    findings = list(diagnose(lambda: session.cluster, options, network=network))
    columns = [
        Column("STEP", lambda item: item["step"]),
        Column("OK", lambda item: item["good"]),
        Column("DETAIL", lambda item: item["detail"]),
    ]
    show(dump([finding._asdict() for finding in findings], output, columns=columns))
    raise typer.Exit(Exit.GOOD if all(finding.good for finding in findings) else Exit.UNREACHABLE)
