"""``seatrial plot``: a chart of a job as SVG."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Session, StoreFlags, expand


class Chart(enum.StrEnum):
    """What to draw."""

    TASKS = "tasks"
    PASS_AT_K = "pass-at-k"
    DURATIONS = "durations"
    COST = "cost"


@expand
def plot(
    *,
    job: Annotated[str, typer.Argument(help="Name of the EvalJob.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    chart: Annotated[Chart, typer.Option("--kind", "-k", help="tasks, pass-at-k, durations or cost.")] = Chart.TASKS,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Write here instead of to standard output.", show_default=False)] = None,
) -> None:
    """Draw scores by task, the pass@k curve, durations, or cost against score, as SVG.

    \b
    Example:
      seatrial plot smoke-oracle --kind pass-at-k -f curve.svg
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import note, show
    from seatrial.cli.output import reward_key
    from seatrial.errors import NotFound
    from seatrial.scoring.plots import scatter
    from seatrial.scoring.report import plots
    from seatrial.sdk.results import cost_points, read_bundle

    session = Session(cluster, store)
    raw = session.cluster.get(EVALJOB, job)
    files = session.files(raw)
    if chart is Chart.COST:
        svg = scatter(cost_points(files, reward_key(raw)))
    else:
        bundle = read_bundle(files.bundle(raw))
        found = plots(bundle.summary, bundle.trials)
        if chart.value not in found:
            raise NotFound(f"job {job} has no {chart.value} to draw: it needs tasks with several scored attempts")
        svg = found[chart.value]
    if file is None:
        show(svg.rstrip("\n"))
    else:
        file.write_text(svg, "utf-8")
        note(f"{file} written")
