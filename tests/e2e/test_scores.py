"""Scores of a real job: the same numbers everywhere, scored again, reused, compared."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.wheels import probe_wheel

from .harness import REPOSITORY, Cluster, unique, wait_until

pytestmark = pytest.mark.cluster
NAMESPACE = "scores"


@pytest.fixture(scope="module")
def scored(cluster: Cluster) -> Cluster:
    """The operator watching a namespace of these tests, with the smoke suite in it."""
    cluster.install(NAMESPACE)
    cluster.seatrial("publish", "examples/suites/smoke", "--taskset", "smoke", "--namespace", NAMESPACE)
    return cluster


def run(cluster: Cluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    """A job by ``seatrial run``; the finished EvalJob."""
    name = unique("job")
    ran = cluster.seatrial("run", *arguments, "--job-name", name, "--namespace", NAMESPACE, check=False)
    assert ran.code == code, ran.err[-2000:]
    return cluster.job(name, NAMESPACE)


@pytest.fixture(scope="module")
def finished(scored: Cluster) -> dict[str, Any]:
    return run(scored, "-d", "smoke", "-a", "oracle", "-k", "2", "-n", "10")


def file(cluster: Cluster, job: dict[str, Any], name: str) -> bytes:
    return cluster.store().get(f"{cluster.prefix(job['metadata']['name'], NAMESPACE)}{name}", max_bytes=64 * 1024 * 1024)


@pytest.mark.conforms("H-139", "N-132", "N-133", "N-211")
def test_status_summary_and_commands_say_the_same(scored: Cluster, finished: dict[str, Any]) -> None:
    name, status = finished["metadata"]["name"], finished["status"]
    shown = {
        item["name"]: (item.get("value") and round(float(item["value"]), 9), item["count"], item["missing"]) for item in status["scores"]
    }
    assert {key: shown[key] for key in ("reward.mean", "reward.mean.zero", "reward.pass@1", "reward.pass@2")} == {
        "reward.mean": (0.6875, 8, 2),
        "reward.mean.zero": (0.55, 10, 0),
        "reward.pass@1": (0.5, 4, 1),
        "reward.pass@2": (0.5, 4, 1),
    }
    summary = json.loads(file(scored, finished, "summary.json"))
    assert {
        item["name"]: (item["value"] and round(item["value"], 9), item["count"], item["missing"]) for item in summary["aggregates"]
    } == shown
    ranges = {item["name"]: (item["mean"], item["count"], item["nan_count"]) for item in summary["scores"]}
    assert ranges["harbor_reward.reward"] == (0.6875, 8, 2)
    assert scored.seatrial("results", name, "-n", NAMESPACE, "-o", "json").json() == summary
    page = scored.seatrial("results", name, "-n", NAMESPACE, "-o", "html").out
    assert "reward.mean 0.688 (8 of 10); reward.mean.zero 0.550 (10, missing as 0)" in page
    assert page.encode().strip() == file(scored, finished, "report.html").strip()


@pytest.mark.conforms("N-209")
def test_the_saved_files_follow_from_the_rows_byte_for_byte(scored: Cluster, finished: dict[str, Any]) -> None:
    ran = scored.seatrial("rescore", finished["metadata"]["name"], "--check", "-n", NAMESPACE)
    assert [line.rpartition(" ")[2] for line in ran.out.splitlines()] == ["identical"] * 6


@pytest.mark.conforms("N-88", "N-90")
def test_rescoring_starts_no_pod_and_can_ask_for_more(scored: Cluster, finished: dict[str, Any]) -> None:
    old, name = finished["metadata"]["name"], unique("again")
    ran = scored.seatrial(
        "rescore", old, "--metric", "max", "--threshold", "reward.max=2", "--job-name", name, "-n", NAMESPACE, check=False
    )
    assert ran.code == 1, ran.err[-2000:]
    again = scored.job(name, NAMESPACE)
    assert again["status"]["trials"]["cached"] == 10
    assert again["status"]["scores"][0] == {"name": "reward.max", "value": "1", "count": 8, "missing": 2}
    assert again["status"]["thresholds"] == [{"score": "reward.max", "atLeast": 2, "value": "1", "passed": False}]
    assert scored.trial_pods(NAMESPACE, name) == []
    events = scored.items("events.events.k8s.io", "-n", NAMESPACE)
    assert not [event for event in events if event["regarding"]["kind"] == "Pod" and event["regarding"]["name"].startswith(f"{name}-")]
    trials = scored.seatrial("results", name, "-n", NAMESPACE, "--view", "trials", "-o", "json").json()
    assert {trial["state"] for trial in trials} == {"scored", "errored"}


@pytest.mark.conforms("N-89", "N-90", "N-98")
def test_a_harbor_job_directory_is_scored_again_in_the_cluster(scored: Cluster, finished: dict[str, Any], tmp_path: Path) -> None:
    old, name = finished["metadata"]["name"], unique("imported")
    folder = scored.seatrial("artifacts", old, "-d", str(tmp_path), "--layout", "harbor", "-n", NAMESPACE).out.strip()
    ran = scored.seatrial("rescore", "--harbor-job", folder, "--taskset", "smoke", "--job-name", name, "-n", NAMESPACE, check=False)
    assert ran.code == 0, ran.err[-2000:]
    again = scored.job(name, NAMESPACE)["status"]
    assert {item["name"]: (item.get("value"), item["count"], item["missing"]) for item in again["scores"]} == {
        item["name"]: (item.get("value"), item["count"], item["missing"]) for item in finished["status"]["scores"]
    }
    assert scored.trial_pods(NAMESPACE, name) == []
    # The evidence is where the trials were stored, and is compared with the new rows on the way out.
    logged = next(row["id"] for row in scored.rows(name, NAMESPACE) if "logs" in row["evidence"])
    assert "verifier/test-stdout.txt" in scored.seatrial("logs", name, logged, "--list", "-n", NAMESPACE).out


@pytest.mark.conforms("N-140", "N-142", "N-145")
def test_results_are_reused_and_only_what_is_missing_runs(scored: Cluster, finished: dict[str, Any]) -> None:
    old, name = finished["metadata"]["name"], unique("more")
    scored.seatrial(
        "run", "--from", old, "-k", "3", "--rerun-errors", "OOMKilled", "--job-name", name, "--namespace", NAMESPACE, check=False
    )
    counts = scored.job(name, NAMESPACE)["status"]["trials"]
    assert (counts["total"], counts["cached"], counts["scored"], counts["errored"]) == (15, 10, 12, 3)
    trial = next(item for item in scored.rows(name, NAMESPACE) if item.get("origin") and item.get("logsSha256"))
    origin = trial["origin"]
    data = scored.store().get(f"{origin['folder']}trials/{origin['trial']}/{origin['retry']}/logs.tar.gz", max_bytes=10**8)
    assert hashlib.sha256(data).hexdigest() == trial["logsSha256"]


# --- metric.py ---------------------------------------------------------------------------------------------------------------------------

MEAN = """
import json, sys
rows = [json.loads(line) for line in open(sys.argv[2])]
values = [row["reward"] if row else 0.0 for row in rows]
json.dump({"mean": sum(values) / len(values), "nulls": rows.count(None)}, open(sys.argv[4], "w"))
"""
BAD = {
    "MetricScriptTimeout": "while True: pass",
    "MetricScriptOutOfMemory": "bytearray(8 << 30)",
    "MetricScriptOutputTooLong": "for _ in range(1024): print('x' * (1 << 20))",
    "MetricScriptFailed": "import socket; socket.create_connection(('kubernetes.default.svc', 443), 5)",
}


@pytest.mark.conforms("N-160", "N-162", "N-165", "H-140")
def test_the_metric_script_of_a_suite_is_published_and_run_unasked(scored: Cluster, tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    shutil.copytree(REPOSITORY / "examples/suites/smoke/hello-pass", suite / "hello-pass")
    # Its package comes with it: the Pod has no network.
    head = f'# /// script\n# dependencies = ["seatrial-probe @ {probe_wheel(tmp_path).as_uri()}"]\n# ///\n'
    (suite / "metric.py").write_text(f"{head}{MEAN}".replace('"nulls":', '"answer": __import__("seatrial_probe").ANSWER, "nulls":'))
    scored.seatrial("publish", str(suite), "--taskset", "with-script", "--namespace", NAMESPACE)
    job = run(scored, "-d", "with-script", "-a", "oracle", "-k", "2")
    values = {item["name"]: item["value"] for item in job["status"]["scores"] if item["name"].startswith("script.")}
    assert values == {"script.mean": "1", "script.nulls": "0", "script.answer": "42"}
    name = job["metadata"]["name"]
    assert "script.mean" in scored.seatrial("results", name, "-n", NAMESPACE).out
    checked = scored.seatrial("rescore", name, "--check", "-n", NAMESPACE)
    assert [line.rpartition(" ")[2] for line in checked.out.splitlines()] == ["identical"] * 6
    assert scored.items("pods", "-n", NAMESPACE, "-l", f"seatrial.dev/job-name={name}") == []


def test_scripts_that_loop_allocate_print_or_try_the_network_are_named_and_cost_no_result(
    scored: Cluster, finished: dict[str, Any]
) -> None:
    scripts = []
    for text in (*BAD.values(), MEAN):
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        scored.store().put_new(f"filesets/{NAMESPACE}/harbor-tasks/metrics/{sha256}/metric.py", text.encode())
        scripts.append({"ref": f"{NAMESPACE}/harbor-tasks#metrics/{sha256}/metric.py", "sha256": sha256})
    name = unique("scripts")
    scored.apply(
        {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "EvalJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "rescore": {"job": finished["metadata"]["name"]},
                "metrics": [{"type": "script", "script": script} for script in scripts],
                "scoring": {"scriptTimeout": "10s"},
                "concurrency": 5,
            },
        }
    )
    job = scored.finished(name, NAMESPACE)
    status = job["status"]
    assert {(item["type"], item["cause"], item["count"]) for item in status["errors"] if item["type"] in BAD} == {
        (reason, "user", 1) for reason in BAD
    }
    messages = {item["type"]: item["message"] for item in status["errors"]}
    assert "Network is unreachable" in messages["MetricScriptFailed"] or "gaierror" in messages["MetricScriptFailed"]
    found = {item["name"]: (item["value"], item["count"]) for item in status["scores"]}
    # Ten trials, two of them errored: null rows for the scripts, no zeros in the mean.
    assert (found["reward.mean"], found["script.mean"], found["script.nulls"]) == (("0.6875", 8), ("0.55", 10), ("2", 10))
    assert status["phase"] == "Completed"
    summary = json.loads(file(scored, job, "summary.json"))
    assert [item["error"] and item["error"]["type"] for item in summary["scripts"]] == [*BAD, None]


@pytest.mark.deep
def test_a_script_may_work_for_longer_than_its_pod_may_be_pending(scored: Cluster, finished: dict[str, Any]) -> None:
    text = f"import time\ntime.sleep(45)\n{MEAN}"
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    scored.store().put_new(f"filesets/{NAMESPACE}/harbor-tasks/metrics/{sha256}/metric.py", text.encode())
    name = unique("slow-script")
    script = {"ref": f"{NAMESPACE}/harbor-tasks#metrics/{sha256}/metric.py", "sha256": sha256}
    spec = {
        "rescore": {"job": finished["metadata"]["name"]},
        "metrics": [{"type": "script", "script": script}],
        "timeouts": {"pending": "30s"},
    }
    meta = {"name": name, "namespace": NAMESPACE}
    scored.apply({"apiVersion": "seatrial.dev/v1alpha1", "kind": "EvalJob", "metadata": meta, "spec": spec})
    status = scored.finished(name, NAMESPACE)["status"]
    assert [item["type"] for item in status["errors"] if item["type"].startswith("MetricScript")] == []
    assert {item["name"]: item["value"] for item in status["scores"]}["script.mean"] == "0.55"


# --- metrics of a Task -------------------------------------------------------------------------------------------------------------------

SAID = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "mine", "version": "1"},
    "steps": [{"step_id": 1, "source": "user", "message": "Do it."}, {"step_id": 2, "source": "agent", "message": "Done."}],
}
QUALITY = {
    "reducer": "mean",
    "signals": [{"metric": "harbor_reward", "output": "reward"}, {"metric": "exact-match", "output": "exact-match"}],
}


@pytest.mark.conforms("N-83", "N-84", "N-86")
def test_metrics_and_views_of_a_task_are_scores_of_the_job(scored: Cluster) -> None:
    task = next(item for item in scored.items("tasks", "-n", NAMESPACE) if item["status"]["nativeTaskId"].endswith("/hello-pass"))
    name, plain = task["metadata"]["name"], task["status"]["digest"]
    spec = {"metrics": [{"type": "exact-match", "config": {"reference": "done"}}], "views": {"quality": QUALITY}}
    scored.kubectl("patch", "task", name, "-n", NAMESPACE, "--type", "merge", "-p", json.dumps({"spec": spec}))
    wait_until(
        lambda: scored.get("task", name, "-n", NAMESPACE)["status"],
        lambda status: status.get("digest") not in (None, plain),
        timeout=60,
        what="the revision with metrics",
    )
    jobs = {}
    for digest in (f"#{plain}", ""):
        job = unique("metrics")
        # The agent does nothing but tell that it did.
        command = f"printf %s {shlex.quote(json.dumps(SAID))} > /logs/agent/trajectory.json"
        scored.apply(
            {
                "apiVersion": "seatrial.dev/v1alpha1",
                "kind": "EvalJob",
                "metadata": {"name": job, "namespace": NAMESPACE},
                "spec": {"tasks": [f"{name}{digest}"], "agent": {"command": command}},
            }
        )
        jobs[digest] = job
    plain_scores, scores = (
        {item["name"]: item["value"] for item in scored.finished(job, NAMESPACE)["status"]["scores"]} for job in jobs.values()
    )
    assert plain_scores == {"reward.mean": "0", "reward.mean.zero": "0", "reward.pass@1": "0"}
    assert {name: value for name, value in scores.items() if "reward" not in name} == {
        "exact-match.exact-match.mean": "1",
        "exact-match.exact-match.pass@1": "1",
        "view.quality.mean": "0.5",
    }


def test_compare_finds_no_difference_in_the_same_work_and_a_planted_regression(scored: Cluster, finished: dict[str, Any]) -> None:
    name = finished["metadata"]["name"]
    worse = run(scored, "-d", "smoke", "-a", "nop", "-n", "10")["metadata"]["name"]
    same = scored.seatrial("compare", name, name, "-n", NAMESPACE, "-o", "json").json()
    assert (same["verdict"], same["p_value"]) == ("same", 1.0)
    found = scored.seatrial("compare", name, worse, "-n", NAMESPACE, "-o", "json").json()
    assert found["tasks"][0]["difference"] == -1.0
    assert found["mean_difference"] < 0
