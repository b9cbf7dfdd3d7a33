"""``seatrial get``: list jobs, tasks, tasksets and trials."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, StoreFlags, expand


class Kind(enum.StrEnum):
    """What can be listed, in singular and plural."""

    JOBS = "jobs"
    JOB = "job"
    TASKS = "tasks"
    TASK = "task"
    TASKSETS = "tasksets"
    TASKSET = "taskset"
    TRIALS = "trials"


@expand
def get(
    *,
    kind: Annotated[Kind, typer.Argument(help="jobs, tasks, tasksets or trials.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    name: Annotated[str | None, typer.Argument(help="One object; for trials: the job.", show_default=False)] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")] = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Label selector.", show_default=False)] = "",
    state: Annotated[list[str] | None, typer.Option("--state", help="Only trials in this state; repeatable.", show_default=False)] = None,
    revisions: Annotated[bool, typer.Option("--revisions", help="The published revisions of one task or taskset.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs, tasks, tasksets, or the trials of a job.

    \b
    Examples:
      seatrial get jobs -n evals
      seatrial get trials smoke-oracle --state errored
      seatrial get task hello-world --revisions
    """
    from seatrial.errors import InvalidSpec

    session = Session(cluster, store)
    match kind:
        case Kind.TRIALS:
            if name is None:
                raise InvalidSpec("get trials", "name the job: seatrial get trials JOB")
            _trials(session, name, frozenset(state or ()), output)
        case Kind.TASK | Kind.TASKS | Kind.TASKSET | Kind.TASKSETS if revisions:
            if name is None:
                raise InvalidSpec("--revisions", "name the object whose revisions shall be listed")
            _revisions(session, "taskset" if kind in (Kind.TASKSET, Kind.TASKSETS) else "task", name, output)
        case _:
            _objects(session, kind, name, all_namespaces=all_namespaces, selector=selector, output=output)


def _objects(session: Session, kind: Kind, name: str | None, *, all_namespaces: bool, selector: str, output: Output) -> None:
    import datetime

    from seatrial.api.names import EVALJOB, TASK, TASKSET
    from seatrial.cli.console import note, show
    from seatrial.cli.output import (
        Column,
        as_list,
        bad_objects,
        dump,
        field,
        job_columns,
        problems_of_job,
        table,
        task_columns,
        taskset_columns,
    )

    plural = kind.value if kind.value.endswith("s") else f"{kind.value}s"
    resource = {"jobs": EVALJOB, "tasks": TASK, "tasksets": TASKSET}[plural]
    if name is not None:
        items = [session.cluster.get(resource, name)]
    else:
        items = list(session.cluster.list(resource, selector=selector, all_namespaces=all_namespaces))
    now = datetime.datetime.now(datetime.UTC)
    columns = {"jobs": job_columns, "tasks": task_columns, "tasksets": taskset_columns}[plural](now)
    if all_namespaces:
        columns.insert(0, Column("NAMESPACE", lambda item: field(item, "metadata.namespace")))
    if output in (Output.JSON, Output.YAML):
        show(dump(items if name is not None else [as_list(items)], output, columns=columns, one=True))
        return
    if output is not Output.TABLE:
        show(dump(items, output, columns=columns))
        return
    if not items:
        note(f"No {plural} found in {'any namespace' if all_namespaces else f'namespace {session.cluster.namespace}'}.")
        return
    if plural == "jobs" and name is not None:
        problems = problems_of_job(items[0])
        show(table(job_columns(now, named=False), items) + (f"\n\n{problems}" if problems else ""))
        return
    problems = "" if plural == "jobs" else bad_objects(items, "Verified" if plural == "tasks" else "Pinned")
    show(dump(items, output, columns=columns) + (f"\n\n{problems}" if problems else ""))


def _trials(session: Session, name: str, states: frozenset[str], output: Output) -> None:
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import note, show
    from seatrial.cli.output import dump, reward_key, trial_columns
    from seatrial.sdk.jobs import is_finished, running_trials

    job = session.cluster.get(EVALJOB, name)
    running = () if is_finished(job) else running_trials(session.cluster, job)
    trials = [trial.raw() for trial in session.files(job).trials(running=running) if not states or trial.state in states]
    if not trials and output is Output.TABLE:
        note(f"No trials found in job {name}.")
        return
    show(dump(trials, output, columns=trial_columns(reward_key(job))))


def _revisions(session: Session, kind: str, name: str, output: Output) -> None:
    from seatrial.api.names import TASK, TASKSET
    from seatrial.cli.console import note, show
    from seatrial.cli.output import REVISION_COLUMNS, dump
    from seatrial.sdk.revisions import list_revisions

    item = session.cluster.get(TASK if kind == "task" else TASKSET, name)
    found = list_revisions(session.store, item)
    if not found and output is Output.TABLE:
        note(f"{kind} {name} has no published revision yet.")
        return
    show(dump([revision.raw() for revision in found], output, columns=REVISION_COLUMNS))
