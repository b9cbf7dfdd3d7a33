"""``seatrial artifacts``: everything a job or a trial saved, as files."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seatrial.cli.options import ClusterOptions, Session, StoreFlags, expand

if TYPE_CHECKING:
    from seatrial.sdk.results import JobFiles


class Layout(enum.StrEnum):
    """How the files lie."""

    SEATRIAL = "seatrial"
    HARBOR = "harbor"


@expand
def artifacts(
    *,
    job: Annotated[str, typer.Argument(help="Name of the EvalJob.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    directory: Annotated[Path, typer.Option("--directory", "-d", help="New or empty folder.")],
    trial: Annotated[str | None, typer.Argument(help="Only this trial.", show_default=False)] = None,
    layout: Annotated[
        Layout, typer.Option("--layout", help="seatrial, or harbor for a job directory that Harbor reads.")
    ] = Layout.SEATRIAL,
) -> None:
    """Save the logs, artifacts and results of a job below a folder, one folder a trial.

    Links and device files of a trial are left out, paths are checked, and nothing is overwritten.

    \b
    Examples:
      seatrial artifacts smoke-oracle -d ./out
      seatrial artifacts smoke-oracle -d ./jobs --layout harbor
    """
    import json

    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import note, show
    from seatrial.cli.logs import find_trial
    from seatrial.errors import InvalidSpec, NotFound
    from seatrial.sdk.results import save_members

    session = Session(cluster, store)
    raw = session.cluster.get(EVALJOB, job)
    files = session.files(raw)
    if layout is Layout.HARBOR:
        from seatrial.sdk.harbor_export import export_job

        if trial is not None:
            raise InvalidSpec("--layout", "harbor writes whole jobs: leave the trial out")
        show(str(export_job(files, raw, directory, note=note)))
        return
    trials = files.trials()
    if trial is not None:
        trials = (find_trial(trials, trial, job),)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise InvalidSpec("-d", f"{directory} is not empty: give a new folder")
    saved = 0
    for record in trials:
        target = directory / record.name
        target.mkdir()
        try:
            (target / "result.json").write_text(json.dumps(files.result(record), indent=2, sort_keys=True) + "\n")
            saved += 1
        except NotFound:
            note(f"trial {record.name} ({record.state}) stored no result")
        try:
            saved += save_members(files.members(record), target / "files")
        except NotFound:
            note(f"trial {record.name} ({record.state}) stored no logs")
    if trial is None:
        (directory / "trials.jsonl").write_text("".join(json.dumps(record.raw(), sort_keys=True) + "\n" for record in trials))
        if (summary := files.summary()) is not None:
            (directory / "summary.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
            _write_report(files, raw, directory)
    show(f"{saved} files of {len(trials)} trials in {directory}")


def _write_report(files: JobFiles, raw: dict[str, Any], directory: Path) -> None:
    """report.html with links into this folder; a job whose plan is not readable any more gets none."""
    from seatrial.errors import SeatrialError
    from seatrial.scoring.report import build_report
    from seatrial.sdk.results import read_bundle

    try:
        bundle = read_bundle(files.bundle(raw))
    except SeatrialError:
        return
    (directory / "report.html").write_bytes(build_report(bundle.metadata, bundle.summary, bundle.trials, layout="folder"))
