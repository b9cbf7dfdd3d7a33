"""``seatrial check``: what is right and wrong with a task or a suite, without a cluster."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import expand

if TYPE_CHECKING:
    from seatrial.sdk.publish import FoundSuite
    from seatrial.taskpkg.check import CheckedTask
    from seatrial.taskpkg.parse import Problem


class CheckOutput(enum.StrEnum):
    """Formats of ``check``."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    GITHUB = "github"
    """Annotations of GitHub Actions."""
    SARIF = "sarif"
    """Static Analysis Results Interchange Format 2.1.0, as code scanning reads it."""


@expand
def check(
    *,
    path: Annotated[Path, typer.Argument(help="A task, or a folder of tasks.")],
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into category folders.")] = False,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip what is no valid task, as Harbor does.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    default_image: Annotated[
        str | None, typer.Option("--default-image", help="Image that publishing will supply.", show_default=False)
    ] = None,
    processes: Annotated[int | None, typer.Option("--processes", min=1, help="Else one a core, at most 4.", show_default=False)] = None,
    output: Annotated[CheckOutput, typer.Option("--output", "-o", help="table, json, jsonl, github or sarif.")] = CheckOutput.TABLE,
) -> None:
    """Say what is right and wrong with a task or a suite. Exit code 1 if something is wrong.

    \b
    Examples:
      seatrial check ./suite
      seatrial check ./suite --recursive --strict -o github
    """
    from seatrial.cli.console import note, show
    from seatrial.sdk.publish import PublishOptions, find_suite

    options = PublishOptions(recursive=recursive, lenient=lenient, default_image=default_image)
    if processes is not None:
        options = PublishOptions(recursive=recursive, lenient=lenient, default_image=default_image, processes=processes)
    suite = find_suite(path, options)
    match output:
        case CheckOutput.TABLE:
            show(check_table(suite))
            note(verdict(suite))
        case CheckOutput.JSON:
            import json

            report = {"path": str(suite.root), "problems": [_problem(item) for item in suite.problems], "tasks": task_records(suite)}
            show(json.dumps(report, indent=2, sort_keys=True))
        case CheckOutput.JSONL:
            import json

            show("\n".join(json.dumps(record, sort_keys=True) for record in task_records(suite)))
            for problem in suite.errors:
                note(problem_line(problem, _place(suite.root)))
        case CheckOutput.GITHUB:
            show("\n".join(workflow_commands(suite)))
        case CheckOutput.SARIF:
            import json

            show(json.dumps(sarif(suite), indent=2, sort_keys=True))
    bad = suite.bad or suite.errors
    warned = suite.problems or any(task.problems for task in suite.tasks)
    raise typer.Exit(Exit.FAILED if bad or (strict and warned) else Exit.GOOD)


def task_records(suite: FoundSuite) -> list[dict[str, Any]]:
    """One documented object a task: ``path, name, valid, digest, entries, bytes, problems``.

    A name that two tasks share makes the second one invalid.
    """
    return [
        {
            "path": _relative(task, suite.root),
            "name": task.native_id,
            "valid": task.valid and not _own(task, suite, "error"),
            "digest": task.digest,
            "entries": task.entries,
            "bytes": task.payload_bytes,
            "problems": [_problem(problem) for problem in (*task.problems, *_own(task, suite, "error"), *_own(task, suite, "warning"))],
        }
        for task in suite.tasks
    ]


def check_table(suite: FoundSuite) -> str:
    """One line a task, then every problem."""
    from seatrial.cli.output import Column, table

    columns = [
        Column("TASK", lambda item: item["name"]),
        Column("PATH", lambda item: item["path"]),
        Column("VALID", lambda item: item["valid"]),
        Column("FILES", lambda item: item["entries"]),
        Column("BYTES", lambda item: item["bytes"]),
    ]
    parts = [table(columns, task_records(suite))] if suite.tasks else []
    lines = [problem_line(problem, _place(folder)) for folder, problem in _located(suite)]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def verdict(suite: FoundSuite) -> str:
    """The result in one line."""
    problems = [*suite.problems, *(problem for task in suite.tasks for problem in task.problems)]
    errors = sum(problem.severity == "error" for problem in problems)
    good = sum(record["valid"] for record in task_records(suite))
    return f"{len(suite.tasks)} tasks, {good} valid, {errors} errors, {len(problems) - errors} warnings"


def problem_line(problem: Problem, folder: str) -> str:
    """``severity: place: message; fix [rule]``; the place is below ``folder``."""
    from seatrial.cli.output import printable

    place = os.path.normpath(os.path.join(folder, problem.file))
    line = f":{problem.line}" if problem.line is not None else ""
    key = f" ({problem.key})" if problem.key and problem.key not in problem.message else ""
    fix = f"; {problem.fix}" if problem.fix else ""
    return printable(f"{problem.severity}: {place}{line}{key}: {problem.message}{fix} [{problem.rule}]")


def workflow_commands(suite: FoundSuite) -> Iterator[str]:
    """Workflow commands of GitHub Actions: ``::error file=…,line=…::message``."""
    for folder, problem in _located(suite):
        file = os.path.relpath(folder / problem.file)
        line = f",line={problem.line}" if problem.line is not None else ""
        title = _escaped(problem.rule, ":,")
        yield f"::{problem.severity} file={_escaped(file, ':,')}{line},title={title}::{_escaped(f'{problem.message}. {problem.fix}', '')}"


def sarif(suite: FoundSuite) -> dict[str, Any]:
    """The problems as a SARIF log: one run, one result a problem, paths relative to the working folder."""
    from urllib.parse import quote

    from seatrial import __version__

    results = []
    for folder, problem in _located(suite):
        location: dict[str, Any] = {"artifactLocation": {"uri": quote(Path(os.path.relpath(folder / problem.file)).as_posix())}}
        if problem.line is not None:
            location["region"] = {"startLine": problem.line}
        text = f"{problem.key}: {problem.message}" if problem.key and problem.key not in problem.message else problem.message
        results.append(
            {
                "ruleId": problem.rule,
                "level": problem.severity,
                "message": {"text": f"{text}. {problem.fix}" if problem.fix else text},
                "locations": [{"physicalLocation": location}],
            }
        )
    rules = [{"id": rule} for rule in sorted({problem.rule for _, problem in _located(suite)})]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "seatrial check", "version": __version__, "rules": rules}}, "results": results}],
    }


def _located(suite: FoundSuite) -> list[tuple[Path, Problem]]:
    """Every problem with the folder that its file is relative to."""
    return [
        *((task.path, problem) for task in suite.tasks for problem in task.problems),
        *((suite.root, problem) for problem in suite.problems),
    ]


def _escaped(value: str, also: str) -> str:
    value = value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    for char in also:
        value = value.replace(char, f"%{ord(char):02X}")
    return value


def _own(task: CheckedTask, suite: FoundSuite, severity: str) -> list[Problem]:
    """Problems of the suite that name this task."""
    names = {_relative(task, suite.root), task.path.name}
    return [problem for problem in suite.problems if problem.severity == severity and problem.file in names]


def _place(folder: Path) -> str:
    """A path that an editor opens: relative where it is below the working folder."""
    relative = os.path.relpath(folder)
    return str(folder) if relative.startswith("..") else relative


def _relative(task: CheckedTask, root: Path) -> str:
    return task.path.relative_to(root).as_posix() if task.path != root else "."


def _problem(problem: Problem) -> dict[str, Any]:
    return dict(problem._asdict())
