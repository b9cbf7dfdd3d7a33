"""``report.html``: one file for people that opens from disk without a network. The same bundle gives the same bytes.

Everything that trials wrote is shown as text: data sits in a JSON block in which ``<`` is escaped, the page sets text only, and its content
security policy allows no request at all.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal

from seatrial.scoring.headline import UNMEASURED
from seatrial.scoring.headline import headline as headline_of
from seatrial.scoring.plots import Bar, Point, curves, histogram, score_by_task
from seatrial.scoring.rewards import REWARD_METRIC

Raw = Mapping[str, Any]
Layout = Literal["store", "folder"]
"""Where links lead: beside the bundle in the store, or into a folder that ``seatrial artifacts`` wrote."""

MESSAGE_CHARS: Final = 300
COLUMNS: Final = ("trial", "task", "attempt", "retry", "state", "reward", "seconds", "error", "cause", "message", "links")


def build_report(metadata: Raw, summary: Raw, trials: Sequence[Raw], *, layout: Layout = "store") -> bytes:
    """The page.

    Args:
        metadata: of metadata.json.
        summary: of summary.json.
        trials: lines of trials.jsonl.
    """
    primary = summary["primary"]
    data = {
        "columns": COLUMNS,
        "trials": [_row(trial, primary, layout) for trial in trials],
        "scores": [[score["name"], score["value"], score["count"], score["missing"]] for score in summary["aggregates"]],
        "gates": summary.get("thresholds", []),
        "groups": summary["failure_groups"],
        "coverage": summary["coverage"],
        "confidence": summary["confidence"],
        "breakdown": _breakdown(summary["groups"]),
    }
    page = files("seatrial.scoring").joinpath("report.html").read_text("utf-8")
    counts = summary["trials"]
    job = summary["job"]
    fields = {
        "TITLE": html.escape(f"{job['namespace']}/{job['name']}"),
        "AGENT": html.escape(str(metadata["target"]["name"])),
        "WHEN": html.escape(f"{metadata['started_at'] or '-'} to {metadata['finished_at'] or '-'}"),
        "HEADLINE": html.escape(headline(summary)),
        "COUNTS": html.escape(
            f"{counts['total']} trials: {counts['scored']} scored, {counts['errored']} errored, {counts['cancelled']} cancelled"
        ),
        "PLOTS": "\n".join(f"<figure>{plot}</figure>" for plot in plots(summary, trials).values()),
        "DATA": json.dumps(data, sort_keys=True, separators=(",", ":")).replace("<", "\\u003c"),
    }
    # One pass, so that text which looks like a placeholder stays text.
    parts = page.split("@@")
    return "".join(fields[part] if index % 2 else part for index, part in enumerate(parts)).encode()


def headline(summary: Raw) -> str:
    """The sentence about the job; see ``scoring.headline``."""
    found = headline_of(summary["aggregates"]) if summary["primary"] is not None else None
    return UNMEASURED if found is None else found.text()


def plots(summary: Raw, trials: Sequence[Raw]) -> dict[str, str]:
    """name -> SVG: ``tasks``, ``pass-at-k`` where a task has several attempts, ``durations``."""
    primary = f"{REWARD_METRIC}.{summary['primary']}"
    found = {"tasks": score_by_task(task_bars(summary, trials))}
    if curve := pass_curves(summary, primary):
        found["pass-at-k"] = curves(curve, title="Passes within k attempts", x_name="k", y_name="rate")
    found["durations"] = histogram(duration for trial in trials if (duration := seconds_of(trial)) is not None)
    return found


def task_bars(summary: Raw, trials: Sequence[Raw]) -> list[Bar]:
    """Mean reward of each task over its scored trials, with the denominator."""
    primary = summary["primary"]
    groups: dict[str, list[Raw]] = {}
    for trial in trials:
        groups.setdefault(trial["task"], []).append(trial)
    bars = []
    for task, members in groups.items():
        values = [float((trial["rewards"] or {}).get(primary, 0.0)) for trial in members if trial["outcome"] == "scored"]
        mean = sum(values) / len(values) if values and primary is not None else None
        bars.append(Bar(task, mean, f"({len(values)} of {len(members)})"))
    return bars


def pass_curves(summary: Raw, output: str) -> list[tuple[str, list[Point]]]:
    """pass@k and pass^k of an output; empty unless some task has several attempts."""
    lines = []
    for name, sign, scores in (("pass@k", "@", summary["scores"]), ("pass^k", "^", summary["pass_all"])):
        prefix = f"{output}.pass{sign}"
        found = ((score["name"].removeprefix(prefix), score["mean"]) for score in scores if score["name"].startswith(prefix))
        points = [Point(float(k), mean) for k, mean in found if mean is not None and k.isdigit()]
        lines.append((name, points))
    return lines if any(len(points) > 1 for _, points in lines) else []


def seconds_of(trial: Raw) -> float | None:
    """Sum of the phases of a trial that were timed, in seconds."""
    seconds = trial.get("seconds")
    return float(sum(seconds.values())) if seconds else None


def _row(trial: Raw, primary: str | None, layout: Layout) -> list[Any]:
    error = trial.get("error") or {}
    scored = trial["outcome"] == "scored"
    reward = (trial["rewards"] or {}).get(primary, 0.0) if scored and primary is not None else None
    duration = seconds_of(trial)
    return [
        trial["trial"],
        trial["task"],
        trial["attempt"],
        trial["retry"],
        trial["outcome"],
        reward,
        None if duration is None else round(duration, 3),
        error.get("type"),
        error.get("cause"),
        (error.get("message") or "")[:MESSAGE_CHARS],
        _links(trial, layout),
    ]


def _links(trial: Raw, layout: Layout) -> list[list[str]]:
    if layout == "folder":
        folder = trial["trial"]
        return [
            ["result", f"{folder}/result.json"],
            ["logs", f"{folder}/files/"],
            ["trajectory", f"{folder}/files/agent/trajectory.json"],
        ]
    return [[name, item["ref"]] for name, item in sorted(trial.get("evidence", {}).items())]


def _breakdown(groups: Raw) -> list[list[Any]]:
    return [
        [f"{label} = {value}", output.removeprefix(f"{REWARD_METRIC}."), item["mean"], item["count"], item["missing"]]
        for label, values in sorted(groups.items())
        for value, outputs in sorted(values.items())
        for output, item in sorted(outputs.items())
    ]
