"""report.html: its numbers, its safety, and what a real browser makes of it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest

from seatrial.core.bundle import build_tables
from seatrial.core.rows import Row, TrialError
from seatrial.scoring.plots import MAX_BARS, Bar, Point, curves, histogram, scatter, score_by_task
from seatrial.scoring.report import build_report, headline
from tests.builders import make_job, make_row, make_task

HOSTILE: Final = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>@@DATA@@\x1b[31m"
SWITCHES: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def bundle(tasks: int = 10, attempts: int = 1, *, errored: int = 3) -> dict[str, bytes]:
    """A job of which ``errored`` tasks ended with an error that carries markup."""
    job = (
        make_job()
        .tasks(*(make_task(f"bench/task-{number:05d}", labels={"category": "math"}) for number in range(tasks)))
        .spec(attempts=attempts)
    )
    plan, rng = job.plan(), random.Random(1)
    error = TrialError("NodeLost", "RuntimeError", "infrastructure", HOSTILE)
    rows: dict[str, tuple[Row, ...]] = {}
    for trial in plan.trials:
        if trial.task < errored:
            rows[trial.name] = (make_row(trial.name, outcome="errored", error=error),)
        else:
            rewards = {"reward": float(rng.random() < 0.8)}
            rows[trial.name] = (
                make_row(trial.name, rewards=rewards, stored=True, logs_sha256="a" * 64, seconds={"agent_execution": rng.random() * 60}),
            )
    return build_tables(plan, job.spec(thresholds=[{"score": "reward.mean", "atLeast": 2.0}]).job_spec(), rows)


def parts(tables: Mapping[str, bytes]) -> tuple[Any, Any, list[Any]]:
    return (
        json.loads(tables["metadata.json"]),
        json.loads(tables["summary.json"]),
        [json.loads(line) for line in tables["trials.jsonl"].splitlines()],
    )


def embedded(page: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_headline_names_its_denominator_and_the_zero_filled_mean() -> None:
    _, summary, _ = parts(bundle())
    mean, zero = (
        next(item["value"] for item in summary["aggregates"] if item["name"] == name) for name in ("reward.mean", "reward.mean.zero")
    )
    assert headline(summary) == f"reward.mean {mean:.3f} (7 of 10); reward.mean.zero {zero:.3f} (10, missing as 0)"
    assert zero == pytest.approx(mean * 0.7)


def test_nothing_scored_is_said_in_words() -> None:
    _, summary, _ = parts(bundle(tasks=2, errored=2))
    assert headline(summary) == "nothing measured"


def test_text_of_trials_never_becomes_markup() -> None:
    page = bundle()["report.html"].decode()
    assert "<script>document.title" not in page
    assert "<img" not in page
    data = embedded(page)
    assert data["trials"][0][9].startswith("</script><script>document.title='owned'</script>")


def test_the_page_asks_for_nothing() -> None:
    page = bundle()["report.html"].decode()
    assert "default-src 'none'" in page
    outside = {match for match in re.findall(r"(?:https?:)?//[\w.]+", page) if "www.w3.org" not in match}
    assert outside == set()


def test_every_trial_links_to_its_evidence() -> None:
    tables = bundle()
    metadata, summary, trials = parts(tables)
    name = trials[3]["trial"]
    assert embedded(tables["report.html"].decode())["trials"][3][10] == [
        ["logs", f"trials/{name}/0/logs.tar.gz"],
        ["result", f"trials/{name}/0/result.json"],
    ]
    folder = embedded(build_report(metadata, summary, trials, layout="folder").decode())
    assert folder["trials"][3][10][2] == ["trajectory", f"{name}/files/agent/trajectory.json"]


def test_a_missed_gate_is_in_the_page() -> None:
    data = embedded(bundle()["report.html"].decode())
    assert [(gate["score"], gate["atLeast"], gate["passed"]) for gate in data["gates"]] == [("reward.mean", 2.0, False)]


@pytest.mark.parametrize(
    "svg",
    [
        score_by_task([Bar(HOSTILE, 0.5), Bar("b", None, "(0 of 2)"), Bar("c", -1.0)]),
        score_by_task([]),
        curves([("pass@k", [Point(1, 0.5), Point(2, 0.75)])], title=HOSTILE, x_name="k", y_name="rate"),
        curves([], title="t", x_name="k", y_name="rate"),
        histogram([1.0, 2.0, 2.5, 100.0]),
        histogram([]),
        histogram([3.0]),
        scatter([Point(0.0, 1.0, HOSTILE), Point(2.0, -1.0)]),
        scatter([]),
    ],
    ids=str,
)
def test_plots_are_well_formed_xml_without_scripts(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"svg", "title", "rect", "text", "path", "polyline", "circle"}


def test_a_plot_of_many_tasks_shows_the_lowest_and_counts_the_rest() -> None:
    svg = score_by_task([Bar(f"t{number}", number / 100) for number in range(100)])
    assert svg.count('height="13"') == MAX_BARS
    assert "and 40 more tasks with higher scores" in svg


# --- in a real browser ------------------------------------------------------------------------------------------------------------------

PROBE: Final = """<script>
const seen = () => [...document.querySelectorAll("#trials tbody tr")].map((row) => row.cells[0].textContent);
const result = {title: document.title, rows: seen().length, place: document.getElementById("place").textContent,
  loaded: performance.now(), images: document.images.length, headline: document.querySelector(".headline").textContent};
document.querySelectorAll("#trials th button")[6].click();
result.fastest = Number(document.querySelector("#trials tbody tr").cells[6].textContent);
document.querySelectorAll("#trials th button")[6].click();
result.slowest = Number(document.querySelector("#trials tbody tr").cells[6].textContent);
const state = document.getElementById("state");
state.value = "errored"; state.dispatchEvent(new Event("change"));
result.errored = document.getElementById("place").textContent;
const filter = document.getElementById("filter");
state.value = ""; filter.value = "task-00007"; filter.dispatchEvent(new Event("input"));
result.filtered = seen().length;
result.link = document.querySelector("#trials tbody a")?.getAttribute("href");
document.documentElement.dataset.probe = JSON.stringify(result);
</script></body>"""


def browser() -> str:
    """Any Chromium; on a Debian without one, its smallest is installed.

    Raises:
        ClusterError: there is none to be had.
    """
    found = next((path for name in ("chromium", "chromium-headless-shell", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cluster"))
        from localcluster import debian

        found = "/usr/bin/chromium-headless-shell"
        debian.install({"chromium-headless-shell": found})
    return found


def open_page(page: bytes, folder: Path) -> tuple[dict[str, Any], float]:
    """What the probe saw in the page, opened from disk in a network namespace without any interface where we may make one."""
    file = folder / "report.html"
    file.write_bytes(page.replace(b"</body>", PROBE.encode()))
    command = [browser(), *SWITCHES, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()]
    if os.geteuid() == 0 and shutil.which("unshare"):
        command = ["unshare", "--net", *command]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    seconds = time.monotonic() - started
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(found[1].replace("&quot;", '"'))
    return seen, seconds


def test_a_browser_shows_sorts_and_filters_the_trials_without_a_network(tmp_path: Path) -> None:
    tables = bundle()
    seen, _ = open_page(tables["report.html"], tmp_path)
    _, summary, trials = parts(tables)
    seconds = [round(trial["seconds"]["agent_execution"], 3) for trial in trials if trial.get("seconds")]
    assert (seen["title"], seen["rows"], seen["place"]) == ("evals/job", 10, "1 to 10 of 10")
    assert seen["headline"] == headline(summary)
    assert (seen["fastest"], seen["slowest"]) == (min(seconds), max(seconds))
    assert (seen["errored"], seen["filtered"], seen["images"]) == ("1 to 3 of 3", 1, 0)
    assert seen["link"] == f"./trials/{trials[7]['trial']}/0/logs.tar.gz"


def test_ten_thousand_trials_open_in_less_than_two_seconds(tmp_path: Path) -> None:
    page = bundle(tasks=1000, attempts=10, errored=300)["report.html"]
    seen, _ = open_page(page, tmp_path)
    assert (seen["place"], seen["errored"]) == ("1 to 100 of 10000", "1 to 100 of 3000")
    assert seen["loaded"] < 2000
    assert len(page) < 8 * 1024 * 1024
