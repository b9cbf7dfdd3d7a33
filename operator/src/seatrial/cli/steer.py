"""``seatrial cancel``, ``suspend`` and ``resume``: the three changes to a job that is under way."""

from __future__ import annotations

from typing import Annotated

import typer

from seatrial.cli.options import ClusterOptions, DryRun, Session, expand

JobName = Annotated[str, typer.Argument(help="Name of the EvalJob.")]


@expand
def cancel(job: JobName, cluster: ClusterOptions, dry_run: DryRun = False) -> None:
    """End a job. What is scored stays; it cannot be continued.

    \b
    Example:
      seatrial cancel smoke-oracle -n evals
    """
    _change(cluster, job, "cancelled", dry_run=dry_run, cancel=True)


@expand
def suspend(job: JobName, cluster: ClusterOptions, dry_run: DryRun = False) -> None:
    """Stop a job for now. Running trials are deleted and start again after resume.

    \b
    Example:
      seatrial suspend smoke-oracle -n evals
    """
    _change(cluster, job, "suspended", dry_run=dry_run, suspend=True)


@expand
def resume(job: JobName, cluster: ClusterOptions, dry_run: DryRun = False) -> None:
    """Let a suspended job go on.

    \b
    Example:
      seatrial resume smoke-oracle -n evals
    """
    _change(cluster, job, "resumed", dry_run=dry_run, suspend=False)


def _change(options: ClusterOptions, job: str, word: str, *, dry_run: bool, **spec: bool) -> None:
    import json

    from seatrial.cli.console import show
    from seatrial.sdk.jobs import change, is_finished, phase_of

    if dry_run:
        show(json.dumps({"spec": spec}))
        return
    changed = change(Session(options).cluster, job, **spec)
    show(f"evaljob/{job} had ended already: {phase_of(changed)}" if is_finished(changed) else f"evaljob/{job} {word}")
