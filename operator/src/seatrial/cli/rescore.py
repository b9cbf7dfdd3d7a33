"""``seatrial rescore``: score the trials of an ended job again, without agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import ClusterOptions, DryRun, Output, OutputOption, Session, StoreFlags, expand


@expand
def rescore(
    *,
    job: Annotated[str, typer.Argument(help="Name of an ended EvalJob.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    name: Annotated[str | None, typer.Option("--job-name", help="Name of the new EvalJob.", show_default=False)] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="mean, sum, min or max, also with :zero; repeatable.", show_default=False)
    ] = None,
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", help="SCORE=NUMBER, such as reward.mean=0.8; repeatable.", show_default=False)
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option("--script", help="Run this metric.py here over the job's rewards and print its values.", show_default=False),
    ] = None,
    allow_network: Annotated[bool, typer.Option("--allow-network", help="The script may use the network.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only compare: would the saved files come out the same, byte for byte?")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Submit, print the job's name, and do not wait.")] = False,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Score the saved trials of a job again, with other metrics or gates if given. No agent, verifier or trial Pod runs.

    \b
    Examples:
      seatrial rescore nightly-41 --metric max --threshold reward.max=1
      seatrial rescore nightly-41 --script metric.py
      seatrial rescore nightly-41 --check
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import show
    from seatrial.cli.run import send_body
    from seatrial.sdk.request import parse_thresholds
    from seatrial.sdk.results import JobFiles
    from seatrial.sdk.reuse import rescore_body

    session = Session(cluster, store)
    raw = session.cluster.get(EVALJOB, job)
    if script is not None:
        from seatrial.cli.output import SCORE_COLUMNS, dump
        from seatrial.sdk.metric_script import run_script
        from seatrial.sdk.results import reward_rows

        rows = reward_rows(JobFiles.of(session.store, raw).trials())
        values = run_script(script, rows, allow_network=allow_network)
        shown = [{"name": f"script.{key}", "value": value, "count": len(rows), "missing": 0} for key, value in values.items()]
        show(dump(shown, output, columns=SCORE_COLUMNS))
        return
    if check:
        changed = JobFiles.of(session.store, raw).check_bundle(raw)
        show("\n".join(f"{file}: {'differs' if file in changed.different else 'identical'}" for file in changed.files))
        if changed.different:
            raise typer.Exit(Exit.FAILED)
        return
    body = rescore_body(raw, name=name, metrics=metric or (), thresholds=parse_thresholds(threshold or (), option="--threshold"))
    send_body(session, body, dry_run=dry_run, detach=detach, limits=(None, None), output=output)
