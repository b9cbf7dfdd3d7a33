"""Metrics, dashboards and alerts against a real Prometheus that scrapes the operator during a real run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dashboards import boards, rules

from seatrial.core.rows import Row, TrialError
from seatrial.effects.metrics import CONTENT_TYPE, Metrics
from tests.serving import end, serve

from . import prometheus
from .harness import condition, evaljob, unique, wait_until, write_task
from .ops import DEPLOYMENT, NAMESPACE, S3_SECRET, TRIALS, Release
from .prometheus import Prometheus

pytestmark = [pytest.mark.cluster, pytest.mark.deep]

IMAGE = "seatrial.local/smoke/hello-pass:dev"
JOB = unique("observed")
VARIABLES = {"$__rate_interval": "2m", "$__range": "10m", "$evaljob_namespace": TRIALS, "$evaljob": JOB}


def impatient(document: dict[str, Any]) -> dict[str, Any]:
    """The rules, with alerts that wait for nothing: what a fault does is seen within the test's time."""
    changed = copy.deepcopy(document)
    for group in changed["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["for"] = "0s"
    return changed


class Played(ThreadingHTTPServer):
    """Two replicas that only have metrics, the operator's own class; absent until ``is_on``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PlayedAnswer)
        self.replicas = {"/a": Metrics(), "/b": Metrics()}
        self.is_on = False
        self.scrapes = 0

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class PlayedAnswer(BaseHTTPRequestHandler):
    server: Played

    def do_GET(self) -> None:
        body = self.server.replicas[self.path].render() if self.server.is_on else b""
        self.send_response(200 if self.server.is_on else 503)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.scrapes += int(self.server.is_on)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    server = Played()
    serve(server)
    yield server
    end(server)


@pytest.fixture(scope="module")
def server(ops: Release, played: Played, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, scraping before anything runs."""
    folder = tmp_path_factory.mktemp("prometheus")
    found = prometheus.start(
        folder, kubeconfig=Path(ops.cluster.env["kubeconfig"]), rules=impatient(rules.document()), planted=played.place
    )
    try:
        wait_until(lambda: found.values("sum(seatrial_leader)"), lambda values: values == [1.0], timeout=120, what="scraped leader")
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def run(ops: Release, server: Prometheus) -> str:
    """A job over the smoke suite, some time after its end; two at a time, so that rates have something to rise over."""
    ops.seatrial("publish", "examples/suites/smoke", "--taskset", "smoke", "--namespace", TRIALS)
    spec = {"taskset": "smoke", "agent": {"name": "oracle"}, "attempts": 2, "concurrency": 2}
    ops.cluster.apply(evaljob(JOB, TRIALS, **spec))
    # An agent that tells what it spent, at two times that a rate can tell apart.
    usage = '{"n_input_tokens": 1000, "n_cache_tokens": 400, "n_output_tokens": 50, "cost_usd": 0.02}'
    spending = {"select": {"include": ["*hello-pass*"]}, "agent": {"command": f"echo '{usage}' > /logs/agent/result.json"}}
    ops.cluster.apply(evaljob(unique("spending"), TRIALS, taskset="smoke", attempts=3, concurrency=1, **spending))
    job = ops.cluster.finished(JOB, TRIALS, timeout=240)
    assert job["status"]["trials"]["total"] == 10
    ended = 'sum(seatrial_trials_ended_total{outcome=~"scored|errored"})'
    wait_until(lambda: server.values(ended), lambda values: bool(values) and values[0] >= 13, timeout=60, what="scraped end of both jobs")
    wait_until(lambda: server.values("sum(seatrial_trial_cost_usd_total)"), lambda values: values == [0.06], timeout=120, what="cost")
    wait_until(lambda: server.values("seatrial:jobs_spoilt:ratio_rate1d"), bool, timeout=30, what="recorded share of spoilt jobs")
    return JOB


def queries() -> list[tuple[str, str, str]]:
    return [(board.uid, panel.title, query.expr) for board in boards.ALL for panel in board.panels for query in panel.queries]


def test_no_panel_of_any_dashboard_is_empty(server: Prometheus, run: str) -> None:
    def filled(expr: str) -> str:
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        return expr

    assert len(queries()) > 50
    empty = [(uid, title, expr) for uid, title, expr in queries() if not server.values(filled(expr))]
    assert empty == []


def test_choices_of_the_dashboards_variables_are_there(server: Prometheus, run: str) -> None:
    assert run in server.ask("label/evaljob/values", **{"match[]": "seatrial_job_trials"})
    assert server.ask("label/evaljob_namespace/values", **{"match[]": "seatrial_job_trials"}) == [TRIALS]


def test_metrics_tell_what_the_job_tells(ops: Release, server: Prometheus, run: str) -> None:
    status = ops.cluster.job(run, TRIALS)["status"]
    shown = {state: server.values(f'sum(seatrial_job_trials{{evaljob="{run}",state="{state}"}})') for state in ("scored", "errored")}
    assert shown == {state: [float(status["trials"][state])] for state in ("scored", "errored")} == {"scored": [8.0], "errored": [2.0]}
    assert server.values(f'max(seatrial_job_mean{{evaljob="{run}"}})') == [float(status["scores"][0]["value"])]


def test_every_phase_of_a_trial_was_measured(server: Prometheus, run: str) -> None:
    found = server.ask("query", query="sum by (phase) (seatrial_trial_phase_seconds_count) > 0")["result"]
    assert {item["metric"]["phase"] for item in found} == {
        *("scheduling", "sandbox", "stage", "pull", "start"),
        *("environment_setup", "agent_setup", "agent_execution", "verifier", "logs", "total"),
    }


def test_a_run_without_faults_pages_nobody(server: Prometheus, run: str) -> None:
    # Without their waiting times, two alerts speak at once of what is normal for seconds.
    assert server.firing() - {"SeatrialNothingRuns"} == set()


# --- deliberate faults ------------------------------------------------------------------------------------------------------------------


def fires(server: Prometheus, *alerts: str, timeout: float = 90) -> None:
    wait_until(server.firing, lambda found: set(alerts) <= found, timeout=timeout, what=f"alert {', '.join(alerts)}")


def test_a_planted_reward_file_fires(ops: Release, server: Prometheus, run: str, suite: Path) -> None:
    name = unique("tampered")
    write_task(suite, name, image=IMAGE, solve="echo 1 > /logs/verifier/reward.txt")
    ops.seatrial("publish", str(suite), "--taskset", name, "--namespace", TRIALS)
    ops.cluster.apply(evaljob(name, TRIALS, taskset=name, agent={"name": "oracle"}))
    ops.cluster.finished(name, TRIALS)
    fires(server, "SeatrialTampering")


def test_a_job_in_which_nothing_could_be_scored_fires(ops: Release, server: Prometheus, run: str) -> None:
    name = unique("spoilt")
    spec = {"taskset": "smoke", "select": {"include": ["*verifier-dies*"]}, "agent": {"name": "oracle"}}
    ops.cluster.apply(evaljob(name, TRIALS, **spec))
    assert ops.cluster.finished(name, TRIALS)["status"]["phase"] == "Failed"
    fires(server, "SeatrialJobsSpoilt")


def test_a_quota_that_leaves_no_room_fires_and_mends_itself(ops: Release, server: Prometheus, run: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-pods", "namespace": TRIALS},
        "spec": {"hard": {"pods": "0"}},
    }
    ops.cluster.apply(quota)
    name = unique("quota")
    ops.cluster.apply(evaljob(name, TRIALS, taskset="smoke", select={"include": ["*hello-pass*"]}, agent={"name": "oracle"}))
    try:
        fires(server, "SeatrialNothingRuns")
        assert "SeatrialApiForbidden" not in server.firing()
    finally:
        ops.cluster.kubectl("delete", "resourcequota", "no-pods", "--namespace", TRIALS)
    assert ops.cluster.finished(name, TRIALS, timeout=120)["status"]["phase"] == "Completed"


def test_a_withdrawn_key_of_the_store_degrades_a_job_and_a_new_one_is_taken_without_a_restart(ops: Release, run: str) -> None:
    """The kubelet brings a changed Secret within about a minute and a half."""
    pods, name = ops.pods(), unique("rotated")
    spec = {"taskset": "smoke", "select": {"include": ["*hello-pass*"]}, "agent": {"name": "oracle"}}
    wrong = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": S3_SECRET, "namespace": NAMESPACE}}
    ops.cluster.apply({**wrong, "stringData": {"accessKey": "withdrawn", "secretKey": "withdrawn"}})
    try:
        wait_until(
            lambda: ops.cluster.kubectl("exec", pods[0], "--namespace", NAMESPACE, "--", "cat", "/etc/seatrial/s3/accessKey"),
            lambda text: text == "withdrawn",
            timeout=180,
            what="changed Secret in the Pod",
        )
        ops.cluster.apply(evaljob(name, TRIALS, **spec))
        wait_until(
            lambda: condition(ops.cluster.job(name, TRIALS), "Degraded"),
            lambda state: (state.get("status"), state.get("reason")) == ("True", "ObjectStoreUnavailable"),
            timeout=90,
            what="degraded job",
        )
    finally:
        ops.namespaces()
    assert ops.cluster.finished(name, TRIALS, timeout=240)["status"]["phase"] == "Completed"
    assert ops.pods() == pods


def break_down(replica: Metrics) -> None:
    """The API server and the store fail, and so does a pass, and a trial loses its node."""
    replica.observe_request("GET", "pods", "500", 0.1)
    replica.store_requests.labels("get", "Forbidden").inc()
    replica.pass_seconds.labels("EvalJob", "failed").observe(0.1)
    lost = TrialError("NodeLost", "SandboxLikelyOutOfMemoryError", "infrastructure", "the node is gone")
    replica.observe_row(Row("t__1", 0, "errored", "", error=lost), None, namespace="evals")


def test_what_a_sound_cluster_does_not_show_fires_from_the_operators_own_metrics(server: Prometheus, played: Played, run: str) -> None:
    """Faults that would take minutes, or a broken API server, as a replica would tell them."""
    sick, other = played.replicas.values()
    sick.observe_leader(True)
    other.observe_leader(True)
    sick.loop_lag.set(2)
    sick.queue_age.set(400)
    sick.informer_pods.set(3)
    sick.informer_age.set(500)
    sick.observe_relist(0)
    break_down(sick)
    played.is_on = True
    try:
        # Counters rise between two scrapes.
        wait_until(lambda: played.scrapes, lambda count: count >= 4, timeout=60, what="scrapes of the played replicas")
        sick.observe_relist(2)
        for _ in range(20):
            break_down(sick)
        fires(
            server,
            "SeatrialTwoLeaders",
            "SeatrialEventLoopStalls",
            "SeatrialQueueStuck",
            "SeatrialInformerStale",
            "SeatrialEventsLost",
            "SeatrialApiErrors",
            "SeatrialStoreUnavailable",
            "SeatrialPassesFail",
            "SeatrialInfrastructureErrors",
        )
    finally:
        played.is_on = False


def test_a_missing_right_to_lead_fires(ops: Release, server: Prometheus, run: str) -> None:
    ops.cluster.kubectl("delete", "rolebinding", f"{DEPLOYMENT}-lease", "--namespace", NAMESPACE)
    try:
        fires(server, "SeatrialNoLeader", "SeatrialApiForbidden", timeout=120)
    finally:
        ops.install(ops.values())
        ops.ready()


def test_an_operator_that_is_away_fires(ops: Release, server: Prometheus, run: str) -> None:
    ops.cluster.kubectl("scale", f"deployment/{DEPLOYMENT}", "--replicas=0", "--namespace", NAMESPACE)
    try:
        fires(server, "SeatrialOperatorDown")
    finally:
        ops.cluster.kubectl("scale", f"deployment/{DEPLOYMENT}", "--replicas=1", "--namespace", NAMESPACE)
        ops.ready()
