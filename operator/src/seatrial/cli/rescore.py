"""``seatrial rescore``: score saved trials again, without agents: in the cluster, or here with further metrics and judges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import ClusterOptions, DryRun, Output, OutputOption, Session, StoreFlags, expand

if TYPE_CHECKING:
    from seatrial.core.saved import SavedTrial
    from seatrial.sdk.results import JobFiles
    from seatrial.sdk.saved_trials import Evidence
    from seatrial.taskpkg.collection import PlainTask


@expand
def rescore(
    *,
    job: Annotated[str | None, typer.Argument(help="Name of an ended EvalJob.", show_default=False)] = None,
    cluster: ClusterOptions,
    store: StoreFlags,
    name: Annotated[str | None, typer.Option("--job-name", help="Name of the new EvalJob.", show_default=False)] = None,
    taskset: Annotated[
        str | None, typer.Option("--taskset", help="The tasks as of now, with their metrics; else those of the job.", show_default=False)
    ] = None,
    harbor_job: Annotated[
        Path | None, typer.Option("--harbor-job", help="Score the trials of a Harbor job directory instead.", show_default=False)
    ] = None,
    trials: Annotated[
        Path | None, typer.Option("--trials", help="Score the trials of this trials.jsonl instead.", show_default=False)
    ] = None,
    reward_key: Annotated[str, typer.Option("--reward-key", help="With --harbor-job: the reward that counted then.")] = "reward",
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="mean, sum, min or max, also with :zero; repeatable.", show_default=False)
    ] = None,
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", help="SCORE=NUMBER, such as reward.mean=0.8; repeatable.", show_default=False)
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option("--metrics", help="Score here with the metrics and the judge that this file lists.", show_default=False)
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="With --metrics: write the bundle into this new folder.", show_default=False)
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
    """Score saved trials again, with other metrics or gates if given. No agent, verifier or trial Pod runs.

    \b
    Examples:
      seatrial rescore nightly-41 --metric max --threshold reward.max=1
      seatrial rescore nightly-41 --metrics judges.yaml -d ./scored
      seatrial rescore --harbor-job ./jobs/old --taskset smoke
      seatrial rescore nightly-41 --script metric.py
      seatrial rescore nightly-41 --check
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import show
    from seatrial.cli.run import send_body
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.request import parse_thresholds
    from seatrial.sdk.reuse import rescore_body, saved_body

    if [job, harbor_job, trials].count(None) != 2:
        raise InvalidSpec("rescore", "give exactly one of JOB, --harbor-job and --trials")
    gates = parse_thresholds(threshold or (), option="--threshold")
    if metrics is not None and job is None:
        _score_here(_on_disk(harbor_job, trials, reward_key), metrics, directory, gates, output)
        return
    session = Session(cluster, store)
    if job is None:
        if taskset is None:
            raise InvalidSpec("--taskset", "saved trials need the Taskset that they are of")
        file, key = _stored(session, taskset, harbor_job, trials, reward_key, dry_run=dry_run)
        options: dict[str, Any] = {"name": name, "metrics": metric or (), "thresholds": gates}
        body = saved_body(file, namespace=session.cluster.namespace, taskset=taskset, reward_key=key, **options)
        send_body(session, body, dry_run=dry_run, detach=detach, limits=(None, None), output=output)
        return
    raw = session.cluster.get(EVALJOB, job)
    files = session.files(raw)
    if metrics is not None:
        _score_here(_of_job(files, raw), metrics, directory, gates, output)
    elif script is not None:
        from seatrial.cli.output import SCORE_COLUMNS, dump
        from seatrial.sdk.metric_script import run_script
        from seatrial.sdk.results import reward_rows

        rows = reward_rows(files.trials())
        values = run_script(script, rows, allow_network=allow_network)
        shown = [{"name": f"script.{key}", "value": value, "count": len(rows), "missing": 0} for key, value in values.items()]
        show(dump(shown, output, columns=SCORE_COLUMNS))
    elif check:
        changed = files.check_bundle(raw)
        show("\n".join(f"{file}: {'differs' if file in changed.different else 'identical'}" for file in changed.files))
        if changed.different:
            raise typer.Exit(Exit.FAILED)
    else:
        body = rescore_body(raw, name=name, taskset=taskset, metrics=metric or (), thresholds=gates)
        send_body(session, body, dry_run=dry_run, detach=detach, limits=(None, None), output=output)


class _Saved(NamedTuple):
    """Saved trials with what scoring them needs."""

    trials: Sequence[SavedTrial]
    tasks: Sequence[PlainTask]
    evidence: Evidence
    run_id: str | None = None


def _on_disk(harbor_job: Path | None, trials: Path | None, reward_key: str) -> _Saved:
    from seatrial.sdk.saved_trials import FolderEvidence, build_trials_from_job_dir, read_trials, tasks_of, tasks_of_job_dir

    if harbor_job is not None:
        tasks = tasks_of_job_dir(harbor_job)
        return _Saved(build_trials_from_job_dir(harbor_job, tasks, reward_key=reward_key), tasks, FolderEvidence(harbor_job))
    assert trials is not None
    found = read_trials(trials)
    return _Saved(found, tasks_of(found), FolderEvidence(trials if trials.is_dir() else trials.parent))


def _of_job(files: JobFiles, raw: dict[str, Any]) -> _Saved:
    import json

    from seatrial.core.saved import parse_saved
    from seatrial.sdk.saved_trials import JobEvidence, tasks_of

    tables = files.bundle(raw)
    found = parse_saved(tables["trials.jsonl"])
    labels = {task["id"]: task["labels"] for task in map(json.loads, tables["tasks.jsonl"].splitlines())}
    return _Saved(found, tasks_of(found, labels), JobEvidence(files), f"{json.loads(tables['metadata.json'])['run_id']}-rescored")


def _stored(
    session: Session, taskset: str, harbor_job: Path | None, trials: Path | None, reward_key: str, *, dry_run: bool
) -> tuple[dict[str, str], str]:
    """The trials as a file in the object store, and their reward key; with ``dry_run`` nothing is stored."""
    from seatrial.core.saved import recorded_key
    from seatrial.sdk.fetch import member_tasks
    from seatrial.sdk.saved_trials import FolderEvidence, build_trials_from_job_dir, read_trials, store_trials

    if harbor_job is not None:
        tasks = member_tasks(session.cluster, session.store, taskset)
        found = build_trials_from_job_dir(harbor_job, tasks, reward_key=reward_key)
    else:
        assert trials is not None
        found = read_trials(trials)
    key = recorded_key(found)
    if dry_run:
        return {"ref": f"{session.cluster.namespace}/saved-trials#dry-run/trials.jsonl", "sha256": "0" * 64}, key
    evidence = FolderEvidence(harbor_job) if harbor_job is not None else None
    return store_trials(session.store, session.cluster.namespace, found, evidence=evidence), key


def _score_here(saved: _Saved, metrics: Path, directory: Path | None, gates: dict[str, float], output: Output) -> None:
    """Score on this machine, write the bundle if asked to, print the scores; exit code 1 where a gate is missed."""
    from seatrial.cli.console import note, show
    from seatrial.cli.output import LOCAL_SCORE_COLUMNS, dump, local_report
    from seatrial.sdk.local import report
    from seatrial.sdk.metric_set import load_metric_set

    result = load_metric_set(metrics).score(saved.trials, saved.tasks, saved.evidence, run_id=saved.run_id, thresholds=gates)
    if directory is not None:
        note(f"bundle written to {result.persist(directory)}")
    match output:
        case Output.TABLE:
            show(local_report(result))
        case Output.JSON:
            show(report(result))
        case _:
            show(dump(list(result.summary.scores), output, columns=LOCAL_SCORE_COLUMNS))
    if result.problems:
        raise typer.Exit(Exit.FAILED)
