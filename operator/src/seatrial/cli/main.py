"""The entry point of ``seatrial`` and ``kubectl-seatrial``.

Why every command imports its parts when it runs: ``seatrial --help`` must not pay for a Kubernetes client.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import typer

from seatrial.cli import (
    adapter,
    artifacts,
    check,
    compare,
    diff,
    doctor,
    download,
    gc,
    get,
    images,
    init,
    logs,
    plot,
    publish,
    rescore,
    results,
    run,
    steer,
    tag,
    version,
    watch,
)
from seatrial.cli.exits import exit_of
from seatrial.errors import SeatrialError

EPILOG: Final = """\b
Exit codes: 0 good, 1 evaluation failed or faults found, 2 usage, 3 cluster or object store not reachable.
--debug (anywhere) or SEATRIAL_DEBUG=1 adds the traceback to an error. NO_COLOR turns colours off."""

app = typer.Typer(
    name="seatrial",
    help="Harbor-format agent evaluations as native Kubernetes jobs.\n\n\b\nExample:\n  seatrial run ./suite -a oracle -k 2 -n 8",
    epilog=EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
for name, command, summary in (
    ("run", run.run, "Evaluate an agent: publish, run, show the scores."),
    ("init", init.init, "Make a new task or dataset."),
    ("check", check.check, "Say what is right and wrong with a task or a suite."),
    ("images", images.images, "Build and push the images that tasks describe."),
    ("publish", publish.publish, "Put a task or a suite into the cluster."),
    ("watch", watch.watch, "Follow a job to its end."),
    ("get", get.get, "List jobs, tasks, tasksets, or the trials of a job."),
    ("results", results.results, "Show the scores and trials of a job."),
    ("rescore", rescore.rescore, "Score the trials of a job again, without agents."),
    ("compare", compare.compare, "Compare jobs, regressions first."),
    ("plot", plot.plot, "Draw a chart of a job."),
    ("logs", logs.logs, "Print the logs of a trial."),
    ("artifacts", artifacts.artifacts, "Save everything that a job or a trial left."),
    ("download", download.download, "Download a published task or taskset."),
    ("cancel", steer.cancel, "End a job; what is scored stays."),
    ("suspend", steer.suspend, "Stop a job for now."),
    ("resume", steer.resume, "Let a suspended job go on."),
    ("tag", tag.tag, "Tag the current revision of a task or taskset."),
    ("diff", diff.diff, "Show what changed between two revisions."),
    ("gc", gc.gc, "Find archives that nothing refers to."),
    ("doctor", doctor.doctor, "Check the installation, step by step."),
    ("version", version.version, "Print versions."),
):
    app.command(name, short_help=summary)(command)

adapters = typer.Typer(
    help="Turn another benchmark into Harbor tasks.\n\n\b\nExample:\n  seatrial adapter init my-bench",
    rich_markup_mode=None,
    no_args_is_help=True,
)
adapters.command("init", short_help="Make a new adapter.")(adapter.init)
adapters.command("run", short_help="Generate the tasks of a benchmark.")(adapter.run)
app.add_typer(adapters, name="adapter", short_help="Turn another benchmark into Harbor tasks.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error of ours is one line on standard error, anything else is a bug and keeps its traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("SEATRIAL_DEBUG"))
    given = [argument for argument in given if argument != "--debug"]
    program = "kubectl seatrial" if PurePath(sys.argv[0]).name == "kubectl-seatrial" else "seatrial"
    try:
        app(args=given, prog_name=program)
    except SeatrialError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201 the one place for errors
        return int(exit_of(error))
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0
