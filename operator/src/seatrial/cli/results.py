"""``seatrial results``: scores and trials of a job."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seatrial.cli.options import ClusterOptions, Output, Session, StoreFlags, expand

if TYPE_CHECKING:
    from seatrial.sdk.results import JobFiles, TrialRecord


class View(enum.StrEnum):
    """What to show."""

    REPORT = "report"
    """Tasks, scores and problems together; for people."""
    AGGREGATE = "aggregate"
    RANGES = "ranges"
    """Every score with all its statistics, under its original name."""
    TASKS = "tasks"
    TRIALS = "trials"
    ROWS = "rows"
    """One flat record a trial."""


class Format(enum.StrEnum):
    """Those of every listing, and those of other tools."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    """Needs --file and the extra ``results``."""
    JUNIT = "junit"
    GITHUB = "github"
    """Annotations; the summary goes to GITHUB_STEP_SUMMARY where that is set."""
    HTML = "html"


@expand
def results(
    *,
    job: Annotated[str, typer.Argument(help="Name of the EvalJob.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    view: Annotated[
        View | None, typer.Option("--view", help="report, aggregate, ranges, tasks, trials or rows.", show_default="report")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="KEY", help="Group by a value of the tasks' [metadata], such as difficulty.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Write here instead of to standard output.", show_default=False)] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml, jsonl, csv, parquet, junit, github or html.")
    ] = Format.TABLE,
) -> None:
    """Show the scores and trials of a job, also while it runs.

    \b
    Examples:
      seatrial results smoke-oracle -n evals
      seatrial results smoke-oracle --view rows -o csv
      seatrial results smoke-oracle --by difficulty
      seatrial results smoke-oracle -o junit -f results.xml
      seatrial results smoke-oracle -o html -f report.html
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import note, show
    from seatrial.cli.output import why_unplanned
    from seatrial.errors import InvalidSpec, NotFound
    from seatrial.sdk.jobs import is_finished, running_trials
    from seatrial.sdk.results import JobFiles

    session = Session(cluster, store)
    raw = session.cluster.get(EVALJOB, job)
    files = JobFiles.of(session.store, raw)
    running = () if is_finished(raw) else running_trials(session.cluster, raw)
    if output is Format.PARQUET:
        if file is None:
            raise InvalidSpec("-o parquet", "writes a file: give --file")
        from seatrial.sdk.exports import write_parquet

        write_parquet(_records(session, raw, files, files.trials(running=running), view or View.ROWS), file)
        note(f"{file} written")
        return
    try:
        text = _text(session, raw, files, running, view=view, by=by, output=output)
    except NotFound as error:
        raise NotFound(why_unplanned(raw) or str(error)) from error
    if file is None:
        show(text)
    else:
        file.write_text(text if text.endswith("\n") else f"{text}\n", "utf-8")
        note(f"{file} written")


def _text(
    session: Session, raw: dict[str, Any], files: JobFiles, running: Sequence[str], *, view: View | None, by: str | None, output: Format
) -> str:
    from seatrial.cli.output import SCORE_COLUMNS, TASK_SUMMARY_COLUMNS, by_task, dump, job_report, reward_key, trial_columns
    from seatrial.sdk.results import task_groups

    key = reward_key(raw)
    match output:
        case Format.JUNIT:
            from seatrial.sdk.exports import junit_xml

            return junit_xml(raw["metadata"]["name"], [trial.raw() for trial in files.trials(running=running)], reward_key=key)
        case Format.GITHUB:
            return _github(raw, files)
        case Format.HTML:
            return files.bundle(raw)["report.html"].decode()
    plain = Output(output.value)
    if by is not None:
        groups = task_groups(session.cluster, files.plan(), by)
        raws = [{**trial.raw(), "task": groups[trial.task]} for trial in files.trials(running=running)]
        summaries = [item._asdict() for item in by_task(raws, key)]
        return dump(summaries, plain, columns=[TASK_SUMMARY_COLUMNS[0]._replace(title=by.upper()), *TASK_SUMMARY_COLUMNS[1:]])
    view = view or (View.REPORT if plain is Output.TABLE else View.AGGREGATE)
    if view is View.AGGREGATE:
        summary = files.summary_of(raw)
        if plain in (Output.JSON, Output.YAML):
            return dump([summary.raw], plain, columns=[], one=True)
        return dump(list(summary.scores), plain, columns=SCORE_COLUMNS)
    trials = files.trials(running=running)
    raws = [trial.raw() for trial in trials]
    match view:
        case View.REPORT:
            return job_report(raw, raws) if plain is Output.TABLE else dump(raws, plain, columns=trial_columns(key))
        case View.TASKS:
            return dump([item._asdict() for item in by_task(raws, key)], plain, columns=TASK_SUMMARY_COLUMNS)
        case View.TRIALS:
            return dump(raws, plain, columns=trial_columns(key))
        case _:
            return _flat(_records(session, raw, files, trials, view), plain)


def _records(session: Session, raw: dict[str, Any], files: JobFiles, trials: Sequence[TrialRecord], view: View) -> list[Mapping[str, Any]]:
    """Flat records of a view."""
    from seatrial.sdk.jobs import flatten
    from seatrial.sdk.results import flat_range

    match view:
        case View.AGGREGATE:
            return list(files.summary_of(raw).scores)
        case View.RANGES:
            return [flat_range(item) for item in files.summary_of(raw, whole=True).ranges]
        case _:
            return [flatten(trial) for trial in trials]


def _flat(records: Sequence[Mapping[str, Any]], output: Output) -> str:
    from seatrial.cli.output import Column, dump

    names = list(dict.fromkeys(name for record in records for name in record))
    return dump(records, output, columns=[Column(name, lambda record, name=name: record.get(name)) for name in names])  # type: ignore[misc]


def _github(raw: dict[str, Any], files: JobFiles) -> str:
    import os

    from seatrial.sdk.exports import github_annotations, github_summary

    summary = files.summary_of(raw)
    groups = summary.raw.get("failure_groups", [])
    text, annotations = github_summary(raw, summary.scores, groups), github_annotations(raw, groups)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return "\n".join([text, *annotations])
    with open(target, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return "\n".join(annotations)
