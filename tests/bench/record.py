"""Figures: appended to ``build/bench.json``, shown in ``docs/benchmarks.md``.

Each has a baseline from the same run: machines are shared and noisy, ratios hold and absolute times do not.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH_JSON = REPOSITORY / "build" / "bench.json"
DOCUMENT = REPOSITORY / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    commit: str
    cluster: str
    command: str = ""
    note: str = ""


def figure(name: str, value: float, unit: str, *, baseline: float | None = None, command: str, note: str = "") -> Figure:
    """A figure of this commit on this machine; ``ratio`` is value / baseline."""
    return Figure(
        name=name,
        value=round(value, 4),
        unit=unit,
        baseline=None if baseline is None else round(baseline, 4),
        ratio=None if not baseline else round(value / baseline, 3),
        commit=_commit(),
        cluster=f"local, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}",
        command=command,
        note=note,
    )


def load_average() -> str:
    """How busy the machine was in the last minute, the benchmark included: for a figure's note."""
    return f"load average {os.getloadavg()[0]:.1f}"


def _commit() -> str:
    shown = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def record(figures: list[Figure]) -> None:
    """Append to the JSON file and rewrite the document with the newest figure of each name."""
    BENCH_JSON.parent.mkdir(exist_ok=True)
    known = json.loads(BENCH_JSON.read_text()) if BENCH_JSON.exists() else []
    BENCH_JSON.write_text(json.dumps(known + [asdict(one) for one in figures], indent=1) + "\n")
    rows = _document_rows() | {one.name: one for one in figures}
    DOCUMENT.write_text(_render(list(rows.values())))


_HEAD = """# Benchmarks

Every figure comes from a run of its command; the baseline was measured in the same run. Machines are shared and noisy: compare ratios.

Packing keeps gzip level 9: the bytes of an archive are its identity, and the same folder must give the same bytes everywhere. Beside tar at
that level packing takes the same time; beside `tar czf`, which uses level 6, it takes longer on text.

Where the control loop misses a target, or barely meets it (parts from `python -m tests.perf --trials 100 --profile FILE`):

- CPU a trial at 100 trials, 10 to 12 ms: nothing dominates. Plans are a fifth, creating Pods (manifest, presigned URLs, request) a sixth,
  reading the watch of Pods an eighth, and so is `/metrics`, which the harness reads every five seconds. What is done once a job weighs less
  in larger ones: the target of 10 ms is meant for 10,000 trials.
- Status writes of a job that lasts 15 s, 0.53 a second: the first and the last do not wait for the two seconds between writes.
- Hand-over after SIGTERM, 3 to 6 s on a busy machine: the Lease is given back after the passes under way (0.02 to 1.3 s), the other replica
  looks at it every two seconds, and its first LISTs and its first pass take the rest.
- Wall time of 100 trials beside Harbor and a bare Job, where 0.85 and 1.15 are wanted, moves with the machine: single rounds of one
  evening gave 0.81 to 0.88 beside Harbor. The two cores are busy all the time. Of ours a sixth is three starts of Python, a quarter the
  container runtime, an eighth the local cluster's policy engine.
- Start of the informer over 10,000 live Pods, 5.8 s where 5 are wanted: the API server makes the pages on the cores where they are read.

| figure | value | unit | baseline | ratio | commit | machine | command | note |
|---|---|---|---|---|---|---|---|---|
"""


def _render(figures: list[Figure]) -> str:
    lines = [
        f"| {one.name} | {one.value:g} | {one.unit} | {'-' if one.baseline is None else format(one.baseline, 'g')} "
        f"| {'-' if one.ratio is None else one.ratio} | {one.commit} | {one.cluster} | `{one.command}` | {one.note} |"
        for one in sorted(figures, key=lambda one: one.name)
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _document_rows() -> dict[str, Figure]:
    """Figures that the document already shows, so that one benchmark alone can be repeated."""
    if not DOCUMENT.exists():
        return {}
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if len(cells) == 9 and cells[0] != "figure":
            name, value, unit, baseline, ratio, commit, cluster, command, note = cells
            found[name] = Figure(
                name,
                float(value),
                unit,
                None if baseline == "-" else float(baseline),
                None if ratio == "-" else float(ratio),
                commit,
                cluster,
                command.strip("`"),
                note,
            )
    return found
