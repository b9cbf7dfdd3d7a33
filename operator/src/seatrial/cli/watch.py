"""``seatrial watch``: follow an EvalJob to its end."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, StoreFlags, expand


@expand
def watch(
    *,
    job: Annotated[str, typer.Argument(help="Name of the EvalJob.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    pending_timeout: Annotated[
        float | None, typer.Option("--pending-timeout", help="Seconds to wait for the first trial.", show_default=False)
    ] = None,
    job_timeout: Annotated[float | None, typer.Option("--job-timeout", help="Seconds to wait for the end.", show_default=False)] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow a job and show its scores at its end. Exit code 1 if it did not end well.

    \b
    Example:
      seatrial watch smoke-oracle -n evals
    """
    raise typer.Exit(watch_job(Session(cluster, store), job, limits=(pending_timeout, job_timeout), output=output))


def watch_job(session: Session, name: str, *, limits: tuple[float | None, float | None], output: Output) -> Exit:
    """Show progress until the job has ended, then the report."""
    from seatrial.cli.console import job_progress, note, show
    from seatrial.cli.output import SCORE_COLUMNS, dump, field, job_report
    from seatrial.errors import SeatrialError
    from seatrial.sdk.jobs import SUCCESS, Limits, follow, phase_of
    from seatrial.sdk.results import JobFiles

    last = {}
    with job_progress(session.cluster.namespace) as progress:
        for last in follow(session.cluster, name, limits=Limits(*limits)):
            progress(last)
    if output is Output.TABLE:
        try:
            trials = [trial.raw() for trial in JobFiles.of(session.store, last).trials()]
        except SeatrialError as error:
            # The scores are in the status; a job that could not be planned has no trials at all.
            trials = []
            if field(last, "status.plan"):
                note(f"the trials cannot be shown: {error}")
        show(job_report(last, trials))
        note(f"evaljob/{name} {phase_of(last)}; results: {field(last, 'status.results.prefix') or 'none'}")
    elif output in (Output.JSONL, Output.CSV):
        show(dump(field(last, "status.scores") or [], output, columns=SCORE_COLUMNS))
    else:
        show(dump([last], output, columns=[], one=True))
    return Exit.GOOD if phase_of(last) == SUCCESS else Exit.FAILED
