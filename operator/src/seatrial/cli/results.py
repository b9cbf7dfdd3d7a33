"""``seatrial results``: scores and trials of a job."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, StoreFlags, expand


class View(enum.StrEnum):
    """What to show."""

    REPORT = "report"
    """Tasks, scores and problems together; for people."""
    AGGREGATE = "aggregate"
    TASKS = "tasks"
    TRIALS = "trials"
    ROWS = "rows"
    """One flat record a trial."""


@expand
def results(
    *,
    job: Annotated[str, typer.Argument(help="Name of the EvalJob.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    view: Annotated[View | None, typer.Option("--view", help="report, aggregate, tasks, trials or rows.", show_default="report")] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="KEY", help="Group by a value of the tasks' [metadata], such as difficulty.", show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the scores and trials of a job, also while it runs.

    \b
    Examples:
      seatrial results smoke-oracle -n evals
      seatrial results smoke-oracle --view rows -o csv
      seatrial results smoke-oracle --by difficulty
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import show
    from seatrial.cli.output import SCORE_COLUMNS, TASK_SUMMARY_COLUMNS, Column, by_task, dump, job_report, reward_key, trial_columns
    from seatrial.sdk.jobs import flatten, is_finished, running_trials
    from seatrial.sdk.results import JobFiles, Summary, task_groups

    session = Session(cluster, store)
    raw = session.cluster.get(EVALJOB, job)
    files = JobFiles.of(session.store, raw)
    running = () if is_finished(raw) else running_trials(session.cluster, raw)
    view = view or (View.REPORT if output is Output.TABLE else View.AGGREGATE)
    if view is View.AGGREGATE:
        summary = (files.summary() if is_finished(raw) else None) or raw.get("status", {})
        if output in (Output.JSON, Output.YAML):
            show(dump([summary], output, columns=[], one=True))
        else:
            show(dump(Summary(summary).scores, output, columns=SCORE_COLUMNS))
        return
    if by is not None:
        groups = task_groups(session.cluster, files.plan(), by)
        raws = [{**trial.raw(), "task": groups[trial.task]} for trial in files.trials(running=running)]
        summaries = [item._asdict() for item in by_task(raws, reward_key(raw))]
        show(dump(summaries, output, columns=[TASK_SUMMARY_COLUMNS[0]._replace(title=by.upper()), *TASK_SUMMARY_COLUMNS[1:]]))
        return
    trials = files.trials(running=running)
    raws = [trial.raw() for trial in trials]
    match view:
        case View.REPORT:
            show(job_report(raw, raws) if output is Output.TABLE else dump(raws, output, columns=trial_columns(reward_key(raw))))
        case View.TASKS:
            show(dump([item._asdict() for item in by_task(raws, reward_key(raw))], output, columns=TASK_SUMMARY_COLUMNS))
        case View.TRIALS:
            show(dump(raws, output, columns=trial_columns(reward_key(raw))))
        case View.ROWS:
            records = [flatten(trial) for trial in trials]
            names = list(dict.fromkeys(name for record in records for name in record))
            show(dump(records, output, columns=[Column(name, lambda record, name=name: record.get(name)) for name in names]))  # type: ignore[misc]
