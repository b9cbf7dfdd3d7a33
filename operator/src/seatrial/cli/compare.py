"""``seatrial compare``: jobs side by side, regressions first."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, Output, OutputOption, Session, StoreFlags, expand


@expand
def compare(
    *,
    jobs: Annotated[list[str], typer.Argument(help="Names of EvalJobs; the first is the baseline.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    key: Annotated[str | None, typer.Option("--reward-key", help="Reward to compare; else the job's own.", show_default=False)] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List the tasks without any difference, too.")] = False,
    fail_if_worse: Annotated[bool, typer.Option("--fail-if-worse", help="Exit code 1 when a job is significantly worse.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare jobs by the tasks that both scored: differences, the largest regression first, and whether chance explains them.

    \b
    Example:
      seatrial compare nightly-41 nightly-42 --fail-if-worse
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import show
    from seatrial.cli.exits import Exit
    from seatrial.cli.output import comparison_columns, comparison_report, comparison_rows, dump, reward_key
    from seatrial.errors import InvalidSpec
    from seatrial.scoring import compare as comparing
    from seatrial.sdk.results import task_values

    if len(jobs) < 2:
        raise InvalidSpec("compare", "name at least two jobs: seatrial compare BASELINE JOB")
    session = Session(cluster, store)
    sides = []
    for name in jobs:
        raw = session.cluster.get(EVALJOB, name)
        sides.append((name, task_values(session.files(raw).trials(), key or reward_key(raw))))
    found = [comparing.compare(sides[0], side) for side in sides[1:]]
    match output:
        case Output.TABLE:
            show("\n\n".join(comparison_report(item, show_all=show_all) for item in found))
        case Output.JSON | Output.YAML:
            show(dump([item.raw() for item in found], output, columns=[], one=len(found) == 1))
        case _:
            show(dump([row for item in found for row in comparison_rows(item)], output, columns=comparison_columns()))
    if fail_if_worse and any(item.verdict == "worse" for item in found):
        raise typer.Exit(Exit.FAILED)
