"""Pure formatting: values in, text out. No I/O, no clock.

Much of what is shown was written by trials and archives, so control characters never reach a terminal.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from seatrial.cli.options import Output

if TYPE_CHECKING:
    from seatrial.scoring.compare import Comparison
    from seatrial.sdk.local import EvaluationResult

Raw = Mapping[str, Any]
NONE: Final = "-"
GAP: Final = "   "


class Column(NamedTuple):
    """A title, and how a record gives the cell. None means "no value", which is shown as ``-``, never as 0."""

    title: str
    cell: Callable[[Raw], object]


def table(columns: Sequence[Column], records: Iterable[Raw]) -> str:
    """Columns as in ``kubectl get``: padded, three spaces between, no lines."""
    rows = [[column.title for column in columns], *([text(column.cell(record)) for column in columns] for record in records)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    return "\n".join(GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def text(value: object) -> str:
    """One cell: ``-`` for None and empty, numbers unadorned, one line, no control characters."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return printable(str(value))


def printable(value: str) -> str:
    """``value`` without control characters; line breaks become spaces."""
    return "".join(char if char.isprintable() else " " if char in "\r\n\t" else "\ufffd" for char in value)


def csv_cell(value: object) -> str:
    """One cell for machines: full precision, empty for None, ``true`` and ``false``."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def number(value: float) -> str:
    """A mean or reward: three decimals."""
    return f"{value:.3f}"


def dump(records: Sequence[Raw], output: Output, *, columns: Sequence[Column], one: bool = False) -> str:
    """``records`` in a format for machines (or as a table). ``one``: the only record stands alone instead of in a list."""
    match output:
        case Output.TABLE:
            return table(columns, records)
        case Output.JSON:
            return json.dumps(records[0] if one else list(records), indent=2, sort_keys=True)
        case Output.YAML:
            import yaml

            return str(yaml.safe_dump(records[0] if one else list(records), sort_keys=True, allow_unicode=True)).rstrip("\n")
        case Output.JSONL:
            return "\n".join(json.dumps(record, sort_keys=True) for record in records)
        case Output.CSV:
            out = io.StringIO()
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow([column.title.lower() if column.title.isupper() else column.title for column in columns])
            writer.writerows([csv_cell(column.cell(record)) for column in columns] for record in records)
            return out.getvalue().rstrip("\n")


def as_list(items: Sequence[Raw]) -> Raw:
    """Objects as ``kubectl get -o json`` gives them."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def age(since: str | None, now: datetime.datetime) -> str | None:
    """Time since an RFC 3339 time, as kubectl writes it: ``45s``, ``5m12s``, ``12m``, ``3h5m``, ``2d``."""
    if not since:
        return None
    seconds = max(0, int((now - datetime.datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"


# --- objects --------------------------------------------------------------------------------------------------------------------------


def field(record: Raw, path: str) -> Any:
    """The value at a dotted path, None where anything is missing."""
    value: Any = record
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def condition_status(record: Raw, kind: str) -> str | None:
    """Status of a condition."""
    return next((item["status"] for item in field(record, "status.conditions") or [] if item.get("type") == kind), None)


_NAME: Final = Column("NAME", lambda item: field(item, "metadata.name"))


def _age_column(now: datetime.datetime) -> Column:
    return Column("AGE", lambda item: age(field(item, "metadata.creationTimestamp"), now))


def job_columns(now: datetime.datetime, *, named: bool = True) -> list[Column]:
    """The printer columns of EvalJob."""
    columns = [
        Column("PHASE", lambda job: field(job, "status.phase") or "Pending"),
        Column("DONE", lambda job: field(job, "status.progress")),
        Column("ERRORED", lambda job: field(job, "status.trials.errored")),
        Column("MEAN", lambda job: field(job, "status.mean")),
        _age_column(now),
    ]
    return [_NAME, *columns] if named else columns


def task_columns(now: datetime.datetime) -> list[Column]:
    """The printer columns of Task, with Harbor's name."""
    return [
        _NAME,
        Column("VERIFIED", lambda task: condition_status(task, "Verified")),
        Column("REVISION", lambda task: field(task, "status.revision")),
        Column("TASK", lambda task: field(task, "status.nativeTaskId")),
        _age_column(now),
    ]


def taskset_columns(now: datetime.datetime) -> list[Column]:
    """The printer columns of Taskset."""
    return [
        _NAME,
        Column("PINNED", lambda item: condition_status(item, "Pinned")),
        Column("MEMBERS", lambda item: field(item, "status.members")),
        Column("REVISION", lambda item: field(item, "status.revision")),
        _age_column(now),
    ]


def trial_columns(reward_key: str) -> list[Column]:
    """One line a trial; the reward only where it counts."""

    def reward(trial: Raw) -> object:
        found = (trial["rewards"] or {}).get(reward_key) if trial["state"] == "scored" else None
        return None if found is None else float(found)

    return [
        Column("TRIAL", lambda trial: trial["trial"]),
        Column("TASK", lambda trial: trial["task"]),
        Column("ATTEMPT", lambda trial: trial["attempt"]),
        Column("RETRY", lambda trial: trial["retry"]),
        Column("STATE", lambda trial: trial["state"]),
        Column("REWARD", reward),
        Column("ERROR", lambda trial: field(trial, "error.type")),
    ]


REVISION_COLUMNS: Final = [
    Column("REVISION", lambda item: item["revision"]),
    Column("DIGEST", lambda item: item["digest"]),
    Column("TAGS", lambda item: ",".join(item["tags"])),
    Column("TIME", lambda item: item["time"]),
]

SCORE_COLUMNS: Final = [
    Column("SCORE", lambda score: score["name"]),
    Column("VALUE", lambda score: None if score.get("value") is None else float(score["value"])),
    Column("COUNT", lambda score: score.get("count")),
    Column("MISSING", lambda score: score.get("missing")),
]


LOCAL_SCORE_COLUMNS: Final = [*SCORE_COLUMNS, Column("GATE", lambda score: score.get("gate"))]
GROUP_COLUMNS: Final = [
    Column("FAILURE", lambda group: group["label"]),
    Column("SEVERITY", lambda group: group["severity"]),
    Column("COUNT", lambda group: group["occurrences"]),
    Column("TRIALS", lambda group: ", ".join(group["examples"])),
]


def local_report(result: EvaluationResult) -> str:
    """Scores with the marks of their gates, groups of failures, what the judge was asked, and what was missed; for people."""
    gates = {gate["score"]: "passed" if gate["passed"] else "missed" for gate in result.summary.raw["thresholds"]}
    parts = [table(LOCAL_SCORE_COLUMNS, [{**score, "gate": gates.get(score["name"])} for score in result.summary.scores])]
    if result.failure_groups:
        parts.append(table(GROUP_COLUMNS, result.failure_groups))
    if (judge := result.summary.raw.get("judge")) is not None and "requests" in judge:
        cost = "cost not known" if judge["cost_usd"] is None else f"{judge['cost_usd']:.4f} USD"
        failures = "".join(f", {count} x {printable(reason)}" for reason, count in judge["failures"].items())
        text = f"{judge['requests']} requests, {judge['prompt_tokens']} + {judge['completion_tokens']} tokens, {cost}{failures}"
        parts.append(f"Judge    {printable(judge['model'])}: {text}")
    parts += [f"Missed   {printable(problem)}" for problem in result.problems]
    return "\n\n".join(parts)


def reward_key(job: Raw) -> str:
    """The reward that counts in a job: the one it names, else the one its first score is made of."""
    named = field(job, "spec.rewardKey")
    scores = field(job, "status.scores") or []
    return str(named or (scores[0]["name"].rpartition(".")[0] if scores else "") or "reward")


def problems_of_job(job: Raw) -> str:
    """Errors by name with their samples, missed thresholds, what it waits for and why it ended; empty when all is well.

    A trial with an error may be scored all the same.
    """
    blocks = []
    for error in field(job, "status.errors") or []:
        head = (
            f"Error     {printable(error['type'])}{GAP}{error['count']}{GAP}{', '.join(map(printable, error.get('sample', [])))}".rstrip()
        )
        blocks.append(head + (f"\n          {printable(error['message'])}" if error.get("message") else ""))
    for gate in field(job, "status.thresholds") or []:
        if not gate.get("passed"):
            value = "not measured" if gate.get("value") is None else number(float(gate["value"]))
            blocks.append(f"Missed    {printable(gate['score'])}{GAP}{value}, at least {number(float(gate['atLeast']))} was asked for")
    if (wait := waits_for(job)) is not None:
        blocks.append(f"Waits:    {wait['reason']}: {printable(wait['message'])}")
    said = set()
    for kind, status in (("Failed", "True"), ("PlanReady", "False"), ("Degraded", "True")):
        for item in field(job, "status.conditions") or []:
            if item.get("type") == kind and item.get("status") == status and item.get("reason") != "Pending":
                text = f"{item.get('reason', '')}: {printable(item.get('message', ''))}".rstrip(": ")
                if text not in said:
                    blocks.append(f"{kind + ':':<9} {text}")
                said.add(text)
    return "\n".join(blocks)


_ORDINARY: Final = frozenset({"ImagePulling", "Suspended", "SuspendedByUser"})
"""Reasons with a message that every job meets on its way, or that its phase says already."""


def waits_for(job: Raw) -> Raw | None:
    """The condition that says why trials do not start although the job has not ended."""
    for item in field(job, "status.conditions") or []:
        if item.get("type") == "Progressing" and item.get("message") and item.get("reason") not in _ORDINARY:
            return cast(Raw, item)
    return None


def why_unplanned(job: Raw) -> str:
    """Why the job has no trials to show; empty where it has a plan."""
    name, namespace = field(job, "metadata.name"), field(job, "metadata.namespace")
    if field(job, "status.plan"):
        return ""
    for item in field(job, "status.conditions") or []:
        if item.get("type") == "PlanReady" and item.get("status") == "False" and item.get("message"):
            return f"job {name} has no trials: {item['reason']}: {printable(item['message'])}"
    return f"job {name} is not planned yet. If that lasts, no operator watches namespace {namespace}: seatrial doctor -n {namespace}"


def bad_objects(items: Iterable[Raw], kind: str) -> str:
    """One block for each object whose condition is False: reason and message."""
    blocks = []
    for item in items:
        for condition in field(item, "status.conditions") or []:
            if condition.get("type") == kind and condition.get("status") == "False" and condition.get("reason") != "Pending":
                blocks.append(f"{field(item, 'metadata.name')}: {condition.get('reason')}: {printable(condition.get('message', ''))}")
    return "\n".join(blocks)


class TaskSummary(NamedTuple):
    """The trials of one task, added up."""

    task: str
    trials: int
    scored: int
    errored: int
    mean: float | None
    """Over the scored trials."""
    errors: tuple[str, ...]


def by_task(trials: Iterable[Raw], key: str) -> tuple[TaskSummary, ...]:
    """One line a task, in the order of the plan."""
    groups: dict[str, list[Raw]] = {}
    for trial in trials:
        groups.setdefault(trial["task"], []).append(trial)
    result = []
    for task, members in groups.items():
        rewards = [trial["rewards"][key] for trial in members if trial["state"] == "scored" and key in (trial["rewards"] or {})]
        errors = dict.fromkeys(trial["error"]["type"] for trial in members if trial["state"] == "errored" and trial["error"])
        result.append(
            TaskSummary(
                task,
                len(members),
                sum(trial["state"] == "scored" for trial in members),
                sum(trial["state"] == "errored" for trial in members),
                sum(rewards) / len(rewards) if rewards else None,
                tuple(errors),
            )
        )
    return tuple(result)


def comparison_columns() -> list[Column]:
    """One line a task of a comparison; values are ``TaskDifference`` as a mapping with the two jobs' names beside it."""
    return [
        Column("TASK", lambda item: item["task"]),
        Column("OLD", lambda item: item["old"]),
        Column("NEW", lambda item: item["new"]),
        Column("DIFFERENCE", lambda item: item["difference"]),
        Column("ATTEMPTS", lambda item: "/".join(map(str, item["attempts"]))),
        Column("P", lambda item: item["p_value"]),
        Column("", lambda item: "significant" if item["significant"] else " "),
    ]


def comparison_rows(comparison: Comparison, *, show_all: bool = True) -> list[Raw]:
    """The tasks of a comparison as records, regressions first."""
    chosen = [task for task in comparison.tasks if show_all or task.difference]
    names = {"baseline_job": comparison.baseline, "candidate_job": comparison.candidate}
    return [
        {**names, "task": task.task, "old": task.baseline, "new": task.candidate, **dict(zip(task._fields[3:], task[3:], strict=True))}
        for task in chosen
    ]


def comparison_report(comparison: Comparison, *, show_all: bool) -> str:
    """What changed from one job to another, for people."""
    head = f"{printable(comparison.candidate)} against {printable(comparison.baseline)}: "
    if comparison.mean_difference is None or comparison.p_value is None:
        head += "no task was scored by both"
    else:
        words = {"better": "better", "worse": "WORSE", "same": "no significant difference"}[comparison.verdict]
        head += f"{words}; mean difference {comparison.mean_difference:+.3f} over {len(comparison.tasks)} tasks"
        if comparison.interval is not None:
            head += f", 95 % interval {comparison.interval.low:+.3f} to {comparison.interval.high:+.3f}"
        head += f", p = {comparison.p_value:.3g} ({comparison.method})"
    parts = [head]
    if rows := comparison_rows(comparison, show_all=show_all):
        parts.append(table(comparison_columns(), rows))
    for words, tasks in (("Scored only by the baseline", comparison.lost), ("Scored only by the new job", comparison.gained)):
        if tasks:
            parts.append(f"{words}: {', '.join(map(printable, tasks))}")
    return "\n\n".join(parts)


TASK_SUMMARY_COLUMNS: Final = [
    Column("TASK", lambda item: item["task"]),
    Column("TRIALS", lambda item: item["trials"]),
    Column("SCORED", lambda item: item["scored"]),
    Column("ERRORED", lambda item: item["errored"]),
    Column("MEAN", lambda item: item["mean"]),
    Column("ERRORS", lambda item: ", ".join(item["errors"])),
]


def job_report(job: Raw, trials: Sequence[Raw]) -> str:
    """What a finished run shows: tasks, scores, problems, where the results are."""
    key = reward_key(job)
    parts = []
    if trials:
        parts.append(table(TASK_SUMMARY_COLUMNS, [item._asdict() for item in by_task(trials, key)]))
    if scores := field(job, "status.scores"):
        parts.append(table(SCORE_COLUMNS, scores))
        if field(job, "status.phase") in ("Running", "Suspended"):
            parts.append(f"Partial   {field(job, 'status.progress') or 'some'} trials have ended")
    if problems := problems_of_job(job):
        parts.append(problems)
    return "\n\n".join(parts)


def progress_line(job: Raw) -> str:
    """The state of a job in one line."""
    counts = field(job, "status.trials") or {}
    parts = [str(field(job, "status.phase") or "Pending"), str(field(job, "status.progress") or "0/?")]
    if (wait := waits_for(job)) is not None:
        parts.append(wait["reason"])
    if counts.get("running"):
        parts.append(f"{counts['running']} running")
    if counts.get("errored"):
        parts.append(f"{counts['errored']} errored")
    if counts.get("retried"):
        parts.append(f"{counts['retried']} retried")
    if mean := field(job, "status.mean"):
        parts.append(f"mean {mean}")
    return "  ".join(parts)


# --- publish --------------------------------------------------------------------------------------------------------------------------

IMAGE_COLUMNS: Final = [
    Column("TASK", lambda item: item["task"]),
    Column("ROLE", lambda item: item["role"]),
    Column("OUTCOME", lambda item: item["outcome"]),
    Column("USER", lambda item: item["user"]),
    Column("IMAGE", lambda item: item["image"]),
]

PUBLISHED_COLUMNS: Final = [
    Column("TASK", lambda item: item["name"]),
    Column("NATIVE ID", lambda item: item["nativeTaskId"]),
    Column("OUTCOME", lambda item: item["outcome"]),
    Column("REVISION", lambda item: item["revision"]),
    Column("BYTES", lambda item: item["sizeBytes"] or None),
]
