"""Dashboards, rules and their pages: made from code, complete, and loadable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import __main__ as generator
from dashboards import boards, panels, rules

from seatrial.effects.metrics import Metrics

from .conftest import REPOSITORY, Helm
from .test_chart import one, values

RUNBOOKS = REPOSITORY / "docs" / "runbooks"
SECTIONS = ["## What it means", "## What it costs", "## Find the cause", "## Mend it"]


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program of the distribution's package ``prometheus``; installed if it is missing."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import debian

    debian.install({"prometheus": "/usr/bin/promtool"})
    return "/usr/bin/promtool"


def test_generated_files_are_those_of_the_code() -> None:
    assert {path: path.read_text() for path in generator.wanted()} == dict(generator.wanted())
    assert sorted((generator.FILES / "dashboards").iterdir()) == sorted(path for path in generator.wanted() if path.suffix == ".json")


@pytest.fixture(scope="session")
def grafana() -> str:
    """A reader of dashboards, built with Grafana's own schema."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import gobuild, settings

    return str(gobuild.build(settings.load(os.environ, checkout=REPOSITORY), "grafana"))


def read(grafana: str, *files: Path) -> tuple[int, list[str]]:
    """Exit status, and what Grafana's schema does not take."""
    done = subprocess.run([grafana, *map(str, files)], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, [line.partition(": ")[2] for line in done.stdout.splitlines()]


def test_grafanas_own_schema_takes_every_dashboard(grafana: str) -> None:
    files = sorted((generator.FILES / "dashboards").glob("*.json"))
    assert (len(files), read(grafana, *files)) == (len(boards.ALL), (0, []))


def test_a_dashboard_with_a_wrong_field_would_be_found(grafana: str, tmp_path: Path) -> None:
    board = {**panels.grafana(boards.JOB), "editabel": True}
    board["panels"][0]["fieldConfig"]["defaults"]["min"] = "none"
    (tmp_path / "bad.json").write_text(json.dumps(board))
    code, faults = read(grafana, tmp_path / "bad.json")
    assert (code, sorted(fault.rpartition(" ")[2] for fault in faults)) == (1, ["'editabel'", "float64"])


def expressions() -> list[str]:
    queries = [query.expr for board in boards.ALL for panel in board.panels for query in panel.queries]
    return [*queries, *(item.expr for item in rules.RECORDS), *(item.expr for item in rules.ALERTS)]


def test_expressions_ask_only_for_metrics_that_exist() -> None:
    known = {sample for metric in Metrics().registry.collect() for sample in (metric.name, *(item.name for item in metric.samples))}
    known |= {f"{name}{suffix}" for name in known for suffix in ("_total", "_bucket", "_sum", "_count")}
    known |= {item.name for item in rules.RECORDS}
    asked = {name for text in expressions() for name in re.findall(r"\b(?:seatrial|process)[_:][a-z0-9_:]+", text)}
    assert asked - known == set()
    assert len(asked) > 30


def test_every_metric_is_on_a_dashboard_or_in_a_rule() -> None:
    text = "\n".join(expressions())
    metrics = [metric.name for metric in Metrics().registry.collect() if metric.name.startswith("seatrial_")]
    assert [name for name in metrics if not re.search(rf"\b{name}(_total|_bucket|_sum|_count)?\b", text)] == []


@pytest.mark.parametrize("board", boards.ALL, ids=lambda board: board.uid)
def test_panels_lie_beside_each_other(board: panels.Dashboard) -> None:
    found: dict[str, Any] = panels.grafana(board)
    cells = [
        (x, y)
        for panel in found["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < panels.COLUMNS
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


def test_the_chart_carries_dashboards_and_rules(helm: Helm) -> None:
    url = "https://wiki.example.com/"
    objects = helm.objects(values(metrics={"dashboards": {"enabled": True}, "rules": {"enabled": True, "runbookUrl": url}}))
    carried = [item for item in objects if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    assert sorted(json.loads(text)["uid"] for item in carried for text in item["data"].values()) == sorted(
        board.uid for board in boards.ALL
    )
    rule = one(objects, "PrometheusRule", "seatrial")["spec"]
    assert rule == yaml.safe_load(rules.text().replace(rules.RUNBOOKS, url))


def test_prometheus_takes_the_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(generator.FILES / "rules.yaml")], capture_output=True, text=True, check=False)
    assert (done.returncode, f"SUCCESS: {len(rules.RECORDS) + len(rules.ALERTS)} rules found" in done.stdout) == (0, True), done.stderr


# --- alerts -----------------------------------------------------------------------------------------------------------------------------


def replica(metric: str, data: str, pod: str = "a", **labels: str) -> tuple[str, str]:
    """One series as Prometheus stores it for a replica."""
    given = {"namespace": "seatrial-system", "job": "seatrial", "pod": pod, "instance": f"{pod}:8080", **labels}
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in given.items()) + "}", data


HEALTHY = (
    replica("seatrial_build_info", "1x200", version="1"),
    replica("seatrial_build_info", "1x200", pod="b", version="1"),
    replica("seatrial_leader", "1x200"),
    replica("seatrial_leader", "0x200", pod="b"),
    replica("seatrial_loop_lag_seconds", "0.01x200"),
    replica("seatrial_informer_age_seconds", "20x200"),
    # The one that stands by follows no Pods and never hears of any.
    replica("seatrial_informer_age_seconds", "0+60x200", pod="b"),
    replica("seatrial_informer_pods", "5x200"),
    replica("seatrial_informer_pods", "0x200", pod="b"),
    replica("seatrial_informer_differences_total", "0x200"),
    replica("seatrial_queue_oldest_seconds", "1x200"),
    replica("seatrial_pass_seconds_count", "0+100x200", kind="EvalJob", outcome="done"),
    replica("seatrial_pass_seconds_count", "0+1x200", kind="EvalJob", outcome="failed"),
    replica("seatrial_api_requests_total", "0+100x200", verb="GET", resource="pods", code="200"),
    # A quota is no missing right.
    replica("seatrial_api_requests_total", "0+1x200", verb="POST", resource="pods", code="403"),
    replica("seatrial_api_requests_total", "0+1x200", verb="PATCH", resource="evaljobs/status", code="500"),
    replica("seatrial_store_requests_total", "0+100x200", operation="get", outcome="ok"),
    replica("seatrial_store_requests_total", "0+50x200", operation="put_new", outcome="AlreadyExists"),
    replica("seatrial_concurrency", "4x200"),
    replica("seatrial_trials", "4x200", state="running"),
    replica("seatrial_trials", "9x200", state="pending"),
    replica("seatrial_trials_ended_total", "0+10x200", outcome="scored", reason="", cause=""),
    replica("seatrial_trials_ended_total", "0+3x200", outcome="errored", reason="AgentTimeoutError", cause="agent"),
    replica("seatrial_trials_ended_total", "0+3x200", outcome="retried", reason="Evicted", cause="infrastructure"),
    replica("seatrial_jobs_ended_total", "0+1x200", phase="Completed", reason="AllScored"),
    replica("seatrial_jobs_ended_total", "0+1x200", phase="Failed", reason="ThresholdNotMet"),
    replica("seatrial_trials_tampered_total", "0x200"),
)

FAULTS: dict[str, tuple[tuple[str, str], ...]] = {
    "SeatrialNoLeader": (replica("seatrial_leader", "0x200"),),
    "SeatrialTwoLeaders": (replica("seatrial_leader", "1x200", pod="b"),),
    "SeatrialEventLoopStalls": (replica("seatrial_loop_lag_seconds", "2x200"),),
    "SeatrialInformerStale": (replica("seatrial_informer_age_seconds", "0+60x200"),),
    "SeatrialEventsLost": (replica("seatrial_informer_differences_total", "0x130 3x70"),),
    "SeatrialQueueStuck": (replica("seatrial_queue_oldest_seconds", "0+60x200"),),
    "SeatrialPassesFail": (replica("seatrial_pass_seconds_count", "0+80x200", kind="EvalJob", outcome="failed"),),
    "SeatrialApiErrors": (replica("seatrial_api_requests_total", "0+40x200", verb="PATCH", resource="evaljobs/status", code="500"),),
    "SeatrialApiForbidden": (replica("seatrial_api_requests_total", "0+1x200", verb="DELETE", resource="pods", code="403"),),
    "SeatrialStoreUnavailable": (replica("seatrial_store_requests_total", "0+50x200", operation="get", outcome="Unavailable"),),
    "SeatrialNothingRuns": (replica("seatrial_trials", "0x200", state="running"),),
    "SeatrialInfrastructureErrors": (
        replica("seatrial_trials_ended_total", "0+3x200", outcome="errored", reason="NodeLost", cause="infrastructure"),
    ),
    "SeatrialJobsSpoilt": (replica("seatrial_jobs_ended_total", "0+1x200", phase="Failed", reason="NothingScored"),),
    "SeatrialTampering": (replica("seatrial_trials_tampered_total", "0x130 1x70"),),
}


def fired(promtool: str, folder: Path, series: tuple[tuple[str, str], ...], *, minutes: int = 150) -> set[str]:
    """Names of the alerts that fire after ``minutes`` of these series: promtool is told that none does and its answer is read."""
    cases = [{"eval_time": f"{minutes}m", "alertname": item.name, "exp_alerts": []} for item in rules.ALERTS]
    tests = {
        "rule_files": [str(generator.FILES / "rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {"interval": "1m", "input_series": [{"series": name, "values": data} for name, data in series], "alert_rule_test": cases}
        ],
    }
    path = folder / "alerts.yaml"
    path.write_text(yaml.safe_dump(tests))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    found = set(re.findall(r"alertname: ?(\w+)", done.stdout + done.stderr))
    assert (done.returncode == 0) == (found == set()), done.stdout + done.stderr
    return found


def test_a_healthy_installation_pages_nobody(promtool: str, tmp_path: Path) -> None:
    assert fired(promtool, tmp_path, HEALTHY) == set()


@pytest.mark.parametrize("alert", FAULTS)
def test_each_fault_fires_its_alert_and_no_other(promtool: str, tmp_path: Path, alert: str) -> None:
    changed = dict(FAULTS[alert])
    series = tuple({**dict(HEALTHY), **changed}.items())
    assert fired(promtool, tmp_path, series) == {alert}


def test_an_operator_that_is_gone_fires(promtool: str, tmp_path: Path) -> None:
    assert fired(promtool, tmp_path, (("other", "1x200"),)) == {"SeatrialOperatorDown"}


def test_every_alert_has_a_fault_in_these_tests() -> None:
    assert {item.name for item in rules.ALERTS} == {*FAULTS, "SeatrialOperatorDown"}


def test_every_alert_has_a_runbook_with_the_same_sections() -> None:
    pages = {path.stem: [line for line in path.read_text().splitlines() if line.startswith("## ")] for path in RUNBOOKS.glob("*.md")}
    assert pages == {item.name: SECTIONS for item in rules.ALERTS}
