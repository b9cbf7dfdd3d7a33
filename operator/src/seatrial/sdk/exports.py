"""Results in the formats of other tools: JUnit XML, GitHub's job summary and annotations, Arrow and Parquet. Pure, Parquet files excepted.

What trials wrote is escaped for each format; numbers carry their denominators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from seatrial.errors import InvalidSpec

Raw = Mapping[str, Any]

PASSES_AT: Final = 1.0
ANNOTATIONS: Final = 10
"""GitHub shows no more of one kind."""
MISSING_EXTRA: Final = "needs pandas and pyarrow: pip install 'seatrial[results]'"

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(name: str, trials: Sequence[Raw], *, reward_key: str) -> str:
    """One test suite per task, one test case per trial.

    A reward below 1 is a failure, a trial without a valid reward an error, one that never ran is skipped.

    Args:
        trials: as ``TrialRecord.raw`` gives them.
    """
    tasks: dict[str, list[Raw]] = {}
    for trial in trials:
        tasks.setdefault(trial["task"], []).append(trial)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites name={_attribute(name)} {_totals(trials, reward_key)}>"]
    for task, members in tasks.items():
        lines.append(f"  <testsuite name={_attribute(task)} {_totals(members, reward_key)}>")
        lines += [_case(trial, reward_key) for trial in members]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"])


def _case(trial: Raw, reward_key: str) -> str:
    head = f"    <testcase classname={_attribute(trial['task'])} name={_attribute(trial['trial'])} time={_attribute(_seconds(trial))}"
    match _verdict(trial, reward_key):
        case "passed":
            return f"{head}/>"
        case "failed":
            value = (trial["rewards"] or {}).get(reward_key)
            text = f"{reward_key} is {value:g}" if value is not None else f"{reward_key} was not reported and counts as 0"
            return f"{head}><failure message={_attribute(text)}/></testcase>"
        case "skipped":
            return f"{head}><skipped message={_attribute(str(trial['state']))}/></testcase>"
        case _:
            error = trial["error"] or {}
            body = escape(_clean(str(error.get("message") or "")))
            kind = _attribute(str(error.get("type") or "unknown"))
            return f"{head}><error type={kind} message={_attribute(str(error.get('cause') or ''))}>{body}</error></testcase>"


def _verdict(trial: Raw, reward_key: str) -> str:
    if trial["state"] == "scored":
        return "passed" if (trial["rewards"] or {}).get(reward_key, 0.0) >= PASSES_AT else "failed"
    return "error" if trial["state"] == "errored" else "skipped"


def _totals(trials: Sequence[Raw], reward_key: str) -> str:
    verdicts = [_verdict(trial, reward_key) for trial in trials]
    seconds = f"{sum(float(_seconds(trial)) for trial in trials):.3f}"
    counts = {"tests": len(trials), **{f"{name}": verdicts.count(kind) for name, kind in _COUNTS}}
    return " ".join([*(f'{name}="{count}"' for name, count in counts.items()), f'time="{seconds}"'])


_COUNTS: Final = (("failures", "failed"), ("errors", "error"), ("skipped", "skipped"))


def _seconds(trial: Raw) -> str:
    return f"{sum((trial.get('seconds') or {}).values()):.3f}"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def github_summary(job: Raw, scores: Sequence[Raw], groups: Sequence[Raw]) -> str:
    """Markdown for a job summary: phase, scores with their denominators, gates with marks, failures with their counts.

    Args:
        job: the EvalJob.
        scores: ``[{name, value, count, missing}]``.
        groups: failure groups ``[{label, task, occurrences, explanation, severity}]``.
    """
    status = job.get("status", {})
    counts = status.get("trials", {})
    lines = [
        f"### {_markdown(job['metadata']['name'])}: {_markdown(str(status.get('phase') or 'Pending'))}",
        "",
        f"{counts.get('scored', 0)} of {counts.get('total', 0)} trials scored, {counts.get('errored', 0)} errored, "
        f"{counts.get('cancelled', 0)} cancelled.",
        "",
        "| score | value | of |",
        "|---|---:|---:|",
    ]
    for score in scores:
        value = "-" if score.get("value") is None else f"{float(score['value']):.3f}"
        lines.append(f"| {_markdown(score['name'])} | {value} | {score['count']} of {score['count'] + score['missing']} |")
    if gates := status.get("thresholds"):
        lines += ["", "| gate | value | at least | |", "|---|---:|---:|---|"]
        for gate in gates:
            mark = "✅" if gate.get("passed") else "❌"
            lines.append(f"| {_markdown(gate['score'])} | {gate.get('value') or 'not measured'} | {gate['atLeast']:g} | {mark} |")
    if groups:
        lines += ["", "| failure | task | count | severity | message |", "|---|---|---:|---|---|"]
        for group in groups[:20]:
            cells = (
                group["label"],
                group.get("task") or "-",
                group["occurrences"],
                group.get("severity") or "-",
                group["explanation"][:200],
            )
            lines.append("| " + " | ".join(_markdown(str(cell)) for cell in cells) + " |")
    return "\n".join(lines)


def github_annotations(job: Raw, groups: Sequence[Raw]) -> list[str]:
    """Workflow commands: an error for each missed gate, a warning for each group of failures, at most ten of both."""
    name = job["metadata"]["name"]
    found = []
    for gate in job.get("status", {}).get("thresholds") or []:
        if not gate.get("passed"):
            value = gate.get("value") or "not measured"
            found.append(_command("error", f"{name}: gate", f"{gate['score']} is {value}, at least {gate['atLeast']:g} was asked for"))
    warnings = [
        _command(
            "warning",
            f"{name}: {group['label']}",
            f"{group['occurrences']} x {group.get('task') or 'several tasks'}: {group['explanation']}",
        )
        for group in groups
    ]
    return found[:ANNOTATIONS] + warnings[:ANNOTATIONS]


def _command(kind: str, title: str, text: str) -> str:
    def data(value: str) -> str:
        return value[:500].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    return f"::{kind} title={data(title).replace(':', '%3A').replace(',', '%2C')}::{data(text)}"


def _markdown(text: str) -> str:
    """One table cell as text: no markup, no line break, no mention of anybody."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return re.sub(r"([\\`*_\[\]<>|~#@!])", r"\\\1", flat)


def to_arrow(records: Iterable[Raw]) -> Any:
    """An Arrow table whose columns are the union over all records; a column of mixed types becomes text.

    Raises:
        InvalidSpec: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise InvalidSpec("Arrow", MISSING_EXTRA) from error
    rows = list(records)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pyarrow.array(values)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            columns[name] = pyarrow.array([None if value is None else str(value) for value in values])
    return pyarrow.table(columns)


def write_parquet(records: Iterable[Raw], path: Path) -> None:
    """``records`` as a Parquet file.

    Raises:
        InvalidSpec: pyarrow is not installed.
    """
    table = to_arrow(records)
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)


def to_frame(records: Iterable[Raw]) -> Any:
    """``records`` as a pandas DataFrame.

    Raises:
        InvalidSpec: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InvalidSpec("to_pandas", MISSING_EXTRA) from error
    return pandas.DataFrame.from_records(list(records))
