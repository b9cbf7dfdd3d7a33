"""The first real evaluation: publish, apply, wait, read, delete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import NAMESPACE
from .harness import REPOSITORY, Cluster, condition, evaljob, rewards_by_task, unique, wait_until, write_task

pytestmark = pytest.mark.cluster
GOLDEN = Path(__file__).with_name("golden")
SMOKE = {
    "smoke/csv-partial": 0.75,
    "smoke/hello-pass": 1.0,
    "smoke/server-answers": 1.0,
    "smoke/sum-fail": 0.0,
    "smoke/verifier-dies": "RewardFileNotFoundError",
}


def plain(text: str) -> str:
    """``text`` without what differs from run to run: ages, times, ids, versions."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>", text)
    text = re.sub(r"__[0-9a-f]{7}\b", "__<id>", text)
    text = re.sub(r"(Resource Version:\s+)\d+", r"\1<version>", text)
    text = re.sub(r"(?m)^( *)(\d+m)?\d+s( ago)?\s*$", r"\1<age>", text)
    return re.sub(r"[ \t]+(?=\n)", "", text)


@pytest.fixture(scope="module")
def finished(installed: Cluster, smoke: str) -> str:
    """The example job, as ``examples/evaljob.yaml`` has it but in the tests' namespace, run to its end."""
    text = (REPOSITORY / "examples" / "evaljob.yaml").read_text().replace("namespace: evals", f"namespace: {NAMESPACE}")
    installed.kubectl("delete", "evaljob", "smoke-oracle", "-n", NAMESPACE, "--ignore-not-found")
    installed.kubectl("apply", "-f", "-", given=text)
    installed.kubectl("wait", "--for=condition=Finished", "evaljob/smoke-oracle", "-n", NAMESPACE, "--timeout=300s", timeout=310)
    return "smoke-oracle"


@pytest.mark.conforms("H-88", "H-109", "H-112", "N-33", "N-100")
def test_every_task_of_the_smoke_suite_has_its_verdict(installed: Cluster, finished: str) -> None:
    assert rewards_by_task(installed.rows(finished, NAMESPACE)) == SMOKE


def test_status_counts_errored_trials_apart_and_averages_the_rest(installed: Cluster, finished: str) -> None:
    status = installed.job(finished, NAMESPACE)["status"]
    counted = {name: status["trials"][name] for name in ("total", "pending", "running", "scored", "errored", "cancelled")}
    assert counted == {"total": 5, "pending": 0, "running": 0, "scored": 4, "errored": 1, "cancelled": 0}
    assert (status["phase"], status["progress"], status["mean"]) == ("Completed", "5/5", "0.688")
    assert [(error["type"], error["count"]) for error in status["errors"]] == [("RewardFileNotFoundError", 1)]
    assert len(json.dumps(status)) < 64 * 1024


def test_kubectl_get_prints_the_golden_columns(installed: Cluster, finished: str) -> None:
    shown = plain(installed.kubectl("get", "evaljobs", finished, "-n", NAMESPACE))
    lines = [re.sub(r" {2,}", "  ", re.sub(r"\s+(\d+m)?\d+s$", "  <age>", line)) for line in shown.splitlines()]
    assert "\n".join(lines) + "\n" == (GOLDEN / "get-evaljobs.txt").read_text()


def test_kubectl_describe_equals_the_golden_text(installed: Cluster, finished: str) -> None:
    shown = plain(installed.kubectl("describe", "evaljob", finished, "-n", NAMESPACE))
    shown = shown.split("\nEvents:")[0] + "\n"
    assert re.sub(r"(?m)^.*kubectl.kubernetes.io.*\n", "", shown) == (GOLDEN / "describe-evaljob.txt").read_text()


def test_events_tell_the_job_in_order_without_a_flood(installed: Cluster, finished: str) -> None:
    events = [event for event in installed.items("events.events.k8s.io", "-n", NAMESPACE) if event["regarding"].get("name") == finished]
    reasons = {event["reason"] for event in events}
    assert {"Planned", "SomeErrored"} <= reasons
    assert len(events) < 15


def test_results_are_in_the_store_when_the_job_is_finished(installed: Cluster, finished: str) -> None:
    prefix = installed.prefix(finished, NAMESPACE)
    names = {item.key.removeprefix(prefix).split("/")[0] for item in installed.store().list(prefix)}
    assert {"plan.json", "metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "summary.json", "trials"} <= names


def test_trial_pods_are_gone_after_their_rows_are_stored(installed: Cluster, finished: str) -> None:
    wait_until(lambda: installed.trial_pods(NAMESPACE, finished), lambda pods: pods == [], timeout=90, what="end of the trial Pods")


@pytest.mark.conforms("N-53")
def test_publishing_the_same_suite_again_changes_nothing(installed: Cluster, smoke: str) -> None:
    before = {item["metadata"]["name"]: item["status"]["revision"] for item in installed.items("tasks", "-n", NAMESPACE)}
    versions = {item["metadata"]["name"]: item["metadata"]["generation"] for item in installed.items("tasks", "-n", NAMESPACE)}
    installed.seatrial("publish", "examples/suites/smoke", "--taskset", smoke, "--namespace", NAMESPACE)
    assert {item["metadata"]["name"]: item["status"]["revision"] for item in installed.items("tasks", "-n", NAMESPACE)} == before
    assert {item["metadata"]["name"]: item["metadata"]["generation"] for item in installed.items("tasks", "-n", NAMESPACE)} == versions


@pytest.mark.conforms("H-87", "H-152")
def test_run_does_the_whole_flow_in_one_command(installed: Cluster) -> None:
    name = unique("run")
    done = installed.seatrial(
        "run", "examples/suites/smoke", "-a", "oracle", "-k", "2", "-n", "8", "-i", "hello-pass", "-i", "sum-fail",
        "--job-name", name, "--namespace", NAMESPACE,
    )  # fmt: skip
    assert done.code == 0
    rows = installed.rows(name, NAMESPACE)
    assert sorted((row["task"], row["rewards"]["reward"]) for row in rows) == [
        ("smoke/hello-pass", 1.0),
        ("smoke/hello-pass", 1.0),
        ("smoke/sum-fail", 0.0),
        ("smoke/sum-fail", 0.0),
    ]
    assert "0.500" in done.out


def test_run_exits_1_when_nothing_could_be_scored(installed: Cluster) -> None:
    done = installed.seatrial(
        "run", "examples/suites/smoke", "-i", "verifier-dies", "--job-name", unique("none"), "--namespace", NAMESPACE, check=False
    )
    assert done.code == 1
    assert "NothingScored" in done.out + done.err


@pytest.mark.conforms("H-107")
def test_logs_of_a_trial_show_what_its_tests_printed(installed: Cluster, finished: str) -> None:
    trial = next(row["trial"] for row in installed.rows(finished, NAMESPACE) if row["task"] == "smoke/verifier-dies")
    shown = installed.seatrial("logs", finished, trial, "--namespace", NAMESPACE).out
    assert "about to read a file that does not exist" in shown
    assert "/tests/expected.txt: No such file or directory" in shown


def test_the_command_is_found_as_a_kubectl_plugin(installed: Cluster) -> None:
    assert installed.kubectl("seatrial", "version") == installed.seatrial("version").out


# --- every ending ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-154")
@pytest.mark.parametrize(
    ("spec", "phase", "reason"),
    [
        pytest.param({"select": {"include": ["smoke/hello-pass"]}}, "Completed", "AllScored", id="completed"),
        pytest.param({"select": {"include": ["smoke/verifier-dies"]}}, "Failed", "NothingScored", id="nothing-scored"),
        pytest.param(
            {"select": {"include": ["smoke/sum-fail"]}, "thresholds": [{"score": "reward.mean", "atLeast": 0.5}]},
            "Failed",
            "ThresholdNotMet",
            id="threshold",
        ),
        pytest.param({"cancel": True}, "Cancelled", "Cancelled", id="cancelled"),
        pytest.param({"select": {"include": ["no/such-task"]}}, "Failed", "NothingSelected", id="invalid"),
    ],
)
def test_waiting_for_finished_returns_in_every_ending(
    installed: Cluster, smoke: str, spec: dict[str, object], phase: str, reason: str
) -> None:
    name = unique("ending")
    installed.apply(evaljob(name, NAMESPACE, taskset=smoke, **spec))
    installed.kubectl("wait", "--for=condition=Finished", f"evaljob/{name}", "-n", NAMESPACE, "--timeout=120s", timeout=130)
    job = installed.job(name, NAMESPACE)
    assert (job["status"]["phase"], condition(job, "Finished")["reason"]) == (phase, reason)


@pytest.mark.conforms("H-155")
def test_deleting_a_running_job_leaves_nothing_in_the_cluster(installed: Cluster, suite: Path) -> None:
    write_task(suite, "long", image="seatrial.local/smoke/hello-pass:dev", solve="sleep 300")
    kinds = "pods,secrets,configmaps,persistentvolumeclaims,evaljobs.seatrial.dev,jobs.batch"
    installed.seatrial("publish", str(suite), "--taskset", "long", "--namespace", NAMESPACE)
    before = set(installed.kubectl("get", kinds, "-n", NAMESPACE, "-o", "name").split())
    name = unique("deleted")
    installed.apply(evaljob(name, NAMESPACE, taskset="long", attempts=2))
    wait_until(
        lambda: [pod["status"].get("phase") for pod in installed.trial_pods(NAMESPACE, name)],
        lambda phases: phases.count("Running") == 2,
        timeout=90,
        what="two running trials",
    )
    installed.kubectl("delete", "evaljob", name, "-n", NAMESPACE, "--timeout=60s")
    # Pods of an earlier test may still be going; nothing that came since may stay.
    wait_until(
        lambda: set(installed.kubectl("get", kinds, "-n", NAMESPACE, "-o", "name").split()) - before,
        lambda left: left == set(),
        timeout=100,
        what="end of all that the job brought",
    )
