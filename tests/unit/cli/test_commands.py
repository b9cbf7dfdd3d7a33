"""Commands against a real S3 server and a small Kubernetes API: what they print, send, and answer."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from seatrial.cli.main import app
from seatrial.core.naming import job_prefix, logs_key, plan_key, result_key
from seatrial.core.rows import Row, TrialError, to_lines
from seatrial.effects.store import Store, StoreSettings
from seatrial.errors import AlreadyExists, Conflict, DiskFull, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

if TYPE_CHECKING:
    from .conftest import Ran

MakeTask = Callable[..., Path]


# --- a job as the operator leaves it ----------------------------------------------------------------------------------------------------


def finish_jobs(store: Store, *, phase: str = "Completed") -> Callable[[str, dict[str, Any]], None]:
    """An operator that ends every job at once: two trials, one of them errored."""

    def react(plural: str, item: dict[str, Any]) -> None:
        if plural != "evaljobs":
            return
        metadata = item["metadata"]
        write_results(store, metadata["name"], metadata["uid"])
        item["status"] = {
            "observedGeneration": 1,
            "phase": phase,
            "progress": "2/2",
            "mean": "1.000",
            "plan": {"key": "k", "sha256": "0" * 64, "tasks": 2, "trials": 2},
            "trials": {"total": 2, "pending": 0, "running": 0, "scored": 1, "errored": 1, "cancelled": 0, "retried": 0, "cached": 0},
            "scores": [{"name": "reward.mean", "value": "1", "count": 1, "missing": 1}],
            "results": {"prefix": "s3://bucket/jobs/x/"},
            "conditions": [],
        }

    return react


def write_results(store: Store, name: str, uid: str) -> str:
    prefix = job_prefix("evals", name, uid)
    plan = {
        "tasks": [{"id": "bench/one"}, {"id": "bench/two"}],
        "trials": [
            {"name": "one__1234567", "task": 0, "agent": "oracle", "attempt": 1},
            {"name": "two__1234567", "task": 1, "agent": "oracle", "attempt": 1},
        ],
    }
    store.put(plan_key(prefix), json.dumps(plan).encode())
    rows = (
        Row("one__1234567", 0, "scored", "2026-01-01T00:00:00Z", rewards={"reward": 1.0}, stored=True, seconds={"agent": 1.5}),
        Row(
            "two__1234567",
            1,
            "errored",
            "2026-01-01T00:00:01Z",
            error=TrialError("RewardMissing", "RewardFileNotFoundError", "verifier", "none"),
        ),
    )
    store.put(f"{prefix}trials.jsonl", to_lines(rows))
    store.put(result_key(prefix, "one__1234567", 0), b'{"id": "r"}')
    store.put(
        logs_key(prefix, "one__1234567", 0),
        archive({"verifier/test-stdout.txt": b"all \x1b[31mred\x1b[0m\n", "agent/oracle.txt": b"hello\n"}),
    )
    return prefix


def archive(files: dict[str, bytes], *, links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w|") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()


@pytest.fixture
def done_job(kube: Any, store: Store) -> str:
    """Name of a job that has ended."""
    body = {"kind": "EvalJob", "metadata": {"name": "smoke-oracle", "namespace": "evals"}, "spec": {"taskset": "smoke"}}
    item = kube.put("evaljobs", body)
    finish_jobs(store)("evaljobs", item)
    kube.put("evaljobs", item)
    return "smoke-oracle"


def half_done(kube: Any, store: Store, name: str) -> dict[str, str]:
    """Make the job one that runs and has ended its first trial only; the labels of the other one's Pod."""
    job = kube.get("evaljobs", name)
    prefix = job_prefix("evals", name, job["metadata"]["uid"])
    rows = store.get(f"{prefix}trials.jsonl", max_bytes=10_000).splitlines(keepends=True)
    store.delete(f"{prefix}trials.jsonl")
    store.put(f"{prefix}rows/00000000.jsonl", rows[0])
    kube.put("evaljobs", {**job, "status": {**job["status"], "phase": "Running"}})
    return {"seatrial.dev/job": job["metadata"]["uid"], "seatrial.dev/trial": "two__1234567"}


# --- run --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-152", "H-153")
def test_run_publishes_a_folder_submits_pinned_tasks_and_reports(
    seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any, store: Store
) -> None:
    good = kube.react
    ends = finish_jobs(store)
    kube.react = lambda plural, item: (good(plural, item), ends(plural, item))
    make_task("one")
    suite = make_task("two").parent
    ran = seatrial("run", "-p", str(suite), "-a", "oracle", "-k", "2", "-n", "8", "-r", "1", "--job-name", "j", "--timeout-multiplier", "2")
    tasks = [f"{name}#{kube.get('tasks', name)['status']['digest']}" for name in ("bench-one", "bench-two")]
    assert kube.get("evaljobs", "j")["spec"] == {
        "tasks": tasks,
        "agent": {"name": "oracle"},
        "attempts": 2,
        "concurrency": 8,
        "retry": {"max": 1},
        "timeouts": {"multiplier": 2.0},
    }
    assert (ran.code, ran.out) == (
        0,
        "TASK        TRIALS   SCORED   ERRORED   MEAN    ERRORS\n"
        "bench/one   1        1        0         1.000   -\n"
        "bench/two   1        0        1         -       RewardFileNotFoundError\n"
        "\n"
        "SCORE         VALUE   COUNT   MISSING\n"
        "reward.mean   1.000   1       1\n",
    )
    assert "evaljob/j submitted" in ran.err
    assert "evaljob/j Completed; results: s3://bucket/jobs/x/" in ran.err


@pytest.mark.conforms("H-153")
def test_run_of_a_single_task_has_one_task_and_an_invalid_one_is_reported(
    seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any
) -> None:
    good = seatrial("run", str(make_task("one")), "--dry-run")
    bad = seatrial("run", str(make_task("two", test=False)), "--dry-run")
    assert (good.code, yaml.safe_load(good.out)["spec"]["tasks"]) == (0, ["bench-one"])
    assert (bad.code, bad.out, "two" in bad.err, "1 of 1 tasks cannot be published" in bad.err) == (1, "", True, True)
    assert kube.writes() == []


@pytest.mark.conforms("H-152")
def test_run_takes_harbors_options_for_published_tasks(seatrial: Callable[..., Ran]) -> None:
    ran = seatrial(
        "run", "-d", "smoke@stable", "-a", "nop", "-m", "acme/model", "-i", "a*", "-x", "b*", "-l", "3", "--ae", "MODE=fast",
        "--ak", "retries=3", "--ak", "style=plain", "--ve", "CHECK=1", "--agent-timeout-multiplier", "3",
        "--verifier-timeout-multiplier", "4", "--agent-setup-timeout-multiplier", "5", "--environment-build-timeout-multiplier", "6",
        "--threshold", "reward.mean=0.8", "--retry-include", "OomError", "--artifact", "/app/out", "--dry-run",
    )  # fmt: skip
    assert (ran.code, yaml.safe_load(ran.out)) == (
        0,
        {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "EvalJob",
            "metadata": {"generateName": "smoke-nop-", "namespace": "evals"},
            "spec": {
                "taskset": "smoke#stable",
                "select": {"include": ["a*"], "exclude": ["b*"], "limit": 3},
                "agent": {"name": "nop", "model": "acme/model", "kwargs": {"retries": 3, "style": "plain"}, "env": {"MODE": "fast"}},
                "verifier": {"env": {"CHECK": "1"}},
                "attempts": 1,
                "concurrency": 4,
                "retry": {"include": ["OomError"]},
                "timeouts": {"agent": 3.0, "agentSetup": 5.0, "verifier": 4.0, "build": 6.0},
                "thresholds": [{"score": "reward.mean", "atLeast": 0.8}],
                "artifacts": [{"source": "/app/out"}],
            },
        },
    )


def test_run_detached_prints_the_jobs_name_alone(seatrial: Callable[..., Ran], kube: Any) -> None:
    ran = seatrial("run", "-t", "hello", "-a", "oracle", "--job-name", "j", "--detach")
    assert (ran.code, ran.out, kube.get("evaljobs", "j")["spec"]["tasks"]) == (0, "evaljob/j\n", ["hello"])


def test_run_ends_with_1_when_the_job_failed(seatrial: Callable[..., Ran], kube: Any, store: Store) -> None:
    kube.react = finish_jobs(store, phase="Failed")
    assert seatrial("run", "-d", "smoke").code == 1


@pytest.mark.parametrize("arguments", [(), ("-d", "smoke", "-t", "hello"), ("-i", "a*")])
def test_run_wants_exactly_one_source(seatrial: Callable[..., Ran], arguments: tuple[str, ...]) -> None:
    ran = seatrial("run", *arguments)
    assert (ran.code, "give exactly one of DIR, -p, -t and -d" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ae", "MODE"), "--agent-env: 'MODE' is not of the form NAME=VALUE"),
        (("--agent-env-secret", "KEY=secret"), "--agent-env-secret: KEY is not of the form NAME=SECRET:KEY"),
        (("--threshold", "reward.mean=high"), "--threshold: reward.mean=high is not of the form SCORE=NUMBER"),
        (("-a", "No Such"), "spec.agent.name"),
        (("--job-name", "Bad_Name"), "metadata.name"),
    ],
)
def test_a_bad_option_is_named_before_anything_is_sent(
    seatrial: Callable[..., Ran], kube: Any, arguments: tuple[str, ...], words: str
) -> None:
    ran = seatrial("run", "-d", "smoke", *arguments)
    assert (ran.code, ran.out, words in ran.err, kube.writes()) == (2, "", True, [])


def test_a_credential_given_as_a_literal_is_refused_and_never_shown(seatrial: Callable[..., Ran], kube: Any) -> None:
    ran = seatrial("run", "-d", "smoke", "--ae", "OPENAI_API_KEY=sk-0123456789abcdef0123")
    assert (ran.code, "env.OPENAI_API_KEY" in ran.err, "sk-0123" in ran.err + ran.out, kube.writes()) == (2, True, False, [])


# --- publish and check ------------------------------------------------------------------------------------------------------------------


def test_publish_prints_a_line_a_task_and_says_what_was_stored(seatrial: Callable[..., Ran], make_task: MakeTask) -> None:
    make_task("one")
    suite = make_task("two").parent
    first = seatrial("publish", str(suite), "--taskset", "smoke")
    again = seatrial("publish", str(suite), "--taskset", "smoke", "-o", "jsonl")
    lines = [line.split() for line in first.out.splitlines()]
    assert [line[:4] for line in lines] == [
        ["TASK", "NATIVE", "ID", "OUTCOME"],
        ["bench-one", "bench/one", "created", "1"],
        ["bench-two", "bench/two", "created", "1"],
    ]
    assert first.err.splitlines()[-2:] == ["2 tasks: 2 created; 2 archives in the store", "taskset smoke: created, 2 members, revision 1"]
    assert [json.loads(line)["outcome"] for line in again.out.splitlines()] == ["unchanged", "unchanged"]


def test_publish_says_that_the_check_warns(seatrial: Callable[..., Ran], make_task: MakeTask) -> None:
    task = make_task("one")
    (task / "tests" / "test.sh").write_bytes(b"#!/bin/sh\r\necho 1 > /logs/verifier/reward.txt\r\n")
    checked = seatrial("check", str(task)).err.splitlines()[-1]
    told = seatrial("publish", str(task)).err.splitlines()[-2:]
    assert (checked, told) == (
        "1 tasks, 1 valid, 0 errors, 1 warnings",
        ["1 tasks: 1 created; 1 archives in the store", "1 warnings: seatrial check of the folder says what may go wrong"],
    )


def test_publish_lists_every_bad_task_and_ends_with_1(seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any) -> None:
    make_task("good")
    make_task("no-test", test=False)
    suite = make_task("no-image", image=False).parent
    ran = seatrial("publish", str(suite))
    errors = [line.split(":")[1].strip() for line in ran.err.splitlines() if line.startswith("error: no-")]
    assert (ran.code, ran.out, errors, kube.writes()) == (1, "", ["no-image/environment", "no-test/tests/test.sh"], [])


def test_check_names_file_rule_and_remedy(seatrial: Callable[..., Ran], make_task: MakeTask) -> None:
    suite = make_task("one", test=False, toml="[agent]\ntimeout = 5\n").parent
    ran = seatrial("check", str(suite))
    lines = [json.loads(line) for line in seatrial("check", str(suite), "-o", "jsonl").out.splitlines()]
    assert ran.code == 1
    assert ran.err == "1 tasks, 0 valid, 1 errors, 1 warnings\n"
    assert [(line["path"], line["name"], line["valid"], [item["rule"] for item in line["problems"]]) for line in lines] == [
        ("one", "bench/one", False, ["test-script", "unknown-key"])
    ]
    assert {"severity", "rule", "file", "key", "line", "message", "fix"} == set(lines[0]["problems"][0])
    assert f"error: {suite}/one/tests/test.sh: " in ran.out
    assert f"warning: {suite}/one/task.toml:4: agent.timeout is not a key of task.toml" in ran.out


def test_check_names_files_so_that_an_editor_opens_them(
    seatrial: Callable[..., Ran], make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task("one", test=False)
    monkeypatch.chdir(task.parent)
    fault = "tests/test.sh: There is no tests/test.sh; add the script, or give the verifier an image of its own [test-script]"
    assert [line for line in seatrial("check", "one").out.splitlines() if ": " in line] == [f"error: one/{fault}"]
    monkeypatch.chdir(task)
    assert [line for line in seatrial("check", ".").out.splitlines() if ": " in line] == [f"error: {fault}"]


def test_check_is_good_with_warnings_unless_strict(seatrial: Callable[..., Ran], make_task: MakeTask) -> None:
    suite = make_task("one", toml="[agent]\ntimeout = 5\n").parent
    assert [seatrial("check", str(suite)).code, seatrial("check", str(suite), "--strict").code] == [0, 1]


def test_check_writes_annotations_for_github(seatrial: Callable[..., Ran], make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = make_task("one", toml="[agent]\ntimeout = 5\n").parent
    monkeypatch.chdir(suite.parent)
    ran = seatrial("check", "suite", "-o", "github")
    assert ran.out.startswith("::warning file=suite/one/task.toml,line=4,title=unknown-key::agent.timeout is not a key of task.toml")


def test_check_writes_sarif_for_code_scanning(seatrial: Callable[..., Ran], make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = make_task("one", toml="[agent]\ntimeout = 5\n").parent
    make_task("two ü", native="bench/two", test=False)
    monkeypatch.chdir(suite.parent)
    ran = seatrial("check", "suite", "-o", "sarif")
    log = json.loads(ran.out)
    (run,) = log["runs"]
    assert (ran.code, log["version"], run["tool"]["driver"]["name"]) == (1, "2.1.0", "seatrial check")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["test-script", "unknown-key"]
    first, second = run["results"]
    assert first == {
        "ruleId": "unknown-key",
        "level": "warning",
        "message": {"text": "agent.timeout is not a key of task.toml and is ignored. write timeout_sec"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": "suite/one/task.toml"}, "region": {"startLine": 4}}}],
    }
    assert (second["ruleId"], second["level"]) == ("test-script", "error")
    assert second["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": "suite/two%20%C3%BC/tests/test.sh"}}}]


def test_check_needs_no_cluster(seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any) -> None:
    assert (seatrial("check", str(make_task("one"))).code, kube.requests) == (0, [])


def test_check_looks_into_category_folders_when_asked(seatrial: Callable[..., Ran], make_task: MakeTask, suite: Path) -> None:
    make_task("one", folder=suite / "easy")
    assert [seatrial("check", str(suite)).code, seatrial("check", str(suite), "--recursive").code] == [1, 0]


# --- get, results, watch ----------------------------------------------------------------------------------------------------------------


def test_get_lists_jobs_and_one_job_with_its_problems(seatrial: Callable[..., Ran], done_job: str, kube: Any) -> None:
    listed, one = seatrial("get", "jobs"), seatrial("get", "job", done_job, "-o", "json")
    assert [line.split()[:5] for line in listed.out.splitlines()] == [
        ["NAME", "PHASE", "DONE", "ERRORED", "MEAN"],
        ["smoke-oracle", "Completed", "2/2", "1", "1.000"],
    ]
    assert json.loads(one.out) == kube.get("evaljobs", done_job)


def test_get_trials_merges_plan_and_rows(seatrial: Callable[..., Ran], done_job: str) -> None:
    assert seatrial("get", "trials", done_job).out == (
        "TRIAL          TASK        ATTEMPT   RETRY   STATE     REWARD   ERROR\n"
        "one__1234567   bench/one   1         0       scored    1.000    -\n"
        "two__1234567   bench/two   1         1       errored   -        RewardFileNotFoundError\n"
    )
    errored = [json.loads(line) for line in seatrial("get", "trials", done_job, "--state", "errored", "-o", "jsonl").out.splitlines()]
    assert errored == [
        {
            "trial": "two__1234567",
            "task": "bench/two",
            "agent": "oracle",
            "attempt": 1,
            "retry": 1,
            "state": "errored",
            "rewards": None,
            "error": {"type": "RewardFileNotFoundError", "reason": "RewardMissing", "cause": "verifier", "message": "none"},
            "startedAt": None,
            "endedAt": "2026-01-01T00:00:01Z",
            "seconds": {},
            "tampered": False,
            "leftoverProcesses": 0,
            "changedTools": 0,
        }
    ]


def test_trials_of_a_running_job_come_from_its_shards_and_its_pods(
    seatrial: Callable[..., Ran], done_job: str, kube: Any, store: Store
) -> None:
    labels = half_done(kube, store, done_job)
    kube.put("pods", {"metadata": {"name": "p", "namespace": "evals", "labels": labels}, "status": {"phase": "Running"}})
    states = [json.loads(line)["state"] for line in seatrial("get", "trials", done_job, "-o", "jsonl").out.splitlines()]
    assert states == ["scored", "running"]


def test_get_says_when_there_is_nothing_and_what_does_not_exist(seatrial: Callable[..., Ran]) -> None:
    empty, missing, nameless = seatrial("get", "tasks"), seatrial("get", "job", "nope"), seatrial("get", "trials")
    assert (empty.code, empty.out, empty.err) == (0, "", "No tasks found in namespace evals.\n")
    assert (missing.code, missing.out, missing.err.startswith('error: evaljobs "nope" not found')) == (2, "", True)
    assert (nameless.code, "seatrial get trials JOB" in nameless.err) == (2, True)


def test_results_show_scores_and_flat_rows(seatrial: Callable[..., Ran], done_job: str) -> None:
    rows = seatrial("results", done_job, "--view", "rows", "-o", "csv").out.splitlines()
    scores = json.loads(seatrial("results", done_job, "-o", "json").out)["scores"]
    assert rows[0].split(",")[:7] == ["trial", "task", "agent", "attempt", "retry", "state", "startedAt"]
    assert rows[1].startswith("one__1234567,bench/one,oracle,1,0,scored,")
    assert scores == [{"name": "reward.mean", "value": "1", "count": 1, "missing": 1}]


def test_watch_ends_with_the_report_of_an_ended_job(seatrial: Callable[..., Ran], done_job: str) -> None:
    ran = seatrial("watch", done_job)
    assert (ran.code, "bench/two   1        0        1         -       RewardFileNotFoundError" in ran.out) == (0, True)
    assert ran.err.splitlines() == [
        "smoke-oracle  Completed  2/2  1 errored  mean 1.000",
        "evaljob/smoke-oracle Completed; results: s3://bucket/jobs/x/",
    ]


def test_watch_gives_up_after_its_limit_and_the_job_goes_on(seatrial: Callable[..., Ran], kube: Any) -> None:
    kube.put("evaljobs", {"metadata": {"name": "slow", "namespace": "evals"}, "spec": {"taskset": "smoke"}})
    ran = seatrial("watch", "slow", "--pending-timeout", "1")
    assert (ran.code, "it goes on: seatrial watch slow" in ran.err, kube.writes()) == (1, True, [])


NO_ANSWER = "no answer for 0.05 s: does the operator run, and does it watch namespace evals? seatrial doctor -n evals"


def test_watch_says_when_no_operator_answers(seatrial: Callable[..., Ran], kube: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.cli.console._ANSWER_SECONDS", 0.05)
    kube.put("evaljobs", {"metadata": {"name": "slow", "namespace": "evals"}, "spec": {"taskset": "smoke"}})
    ran = seatrial("watch", "slow", "--pending-timeout", "1")
    assert (ran.code, ran.err.splitlines()[:2]) == (1, ["slow  Pending  0/?", NO_ANSWER])


def test_publish_says_when_no_operator_answers(
    seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seatrial.cli.console._ANSWER_SECONDS", 0.05)
    kube.react = lambda plural, item: None
    ran = seatrial("publish", str(make_task("one")), "--timeout", "1")
    assert (ran.code, NO_ANSWER in ran.err.splitlines()) == (1, True)


@pytest.mark.parametrize(
    "arguments", [("results",), ("logs", "one__1234567"), ("get", "trials"), ("artifacts", "-d", "out"), ("results", "-o", "junit")]
)
def test_a_job_that_could_not_be_planned_says_why_it_has_no_trials(
    seatrial: Callable[..., Ran], kube: Any, arguments: tuple[str, ...]
) -> None:
    message = "Taskset evals/nosuch does not exist: publish it, or correct spec.taskset"
    condition = {"type": "PlanReady", "status": "False", "reason": "TasksetNotFound", "message": message}
    body = {"metadata": {"name": "j", "namespace": "evals"}, "spec": {"taskset": "nosuch"}}
    head, tail = (arguments[:2], arguments[2:]) if arguments[0] == "get" else (arguments[:1], arguments[1:])
    kube.put("evaljobs", body)
    unseen = seatrial(*head, "j", *tail)
    kube.put("evaljobs", {**body, "status": {"phase": "Failed", "conditions": [condition]}})
    refused = seatrial(*head, "j", *tail)
    assert [(ran.code, ran.out, ran.err) for ran in (unseen, refused)] == [
        (2, "", "error: job j is not planned yet. If that lasts, no operator watches namespace evals: seatrial doctor -n evals\n"),
        (2, "", f"error: job j has no trials: TasksetNotFound: {message}\n"),
    ]


def test_following_a_trial_that_has_not_started_says_what_it_waits_for(
    seatrial: Callable[..., Ran], done_job: str, kube: Any, store: Store
) -> None:
    labels = half_done(kube, store, done_job)
    meta = {"name": "p", "namespace": "evals", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waiting = {"name": "agent", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    said = []
    for status in ({"conditions": [scheduled]}, {"containerStatuses": [waiting]}):
        kube.put("pods", {"metadata": meta, "status": {"phase": "Pending", **status}})
        ran = seatrial("logs", done_job, "two__1234567", "-f")
        said.append((ran.code, ran.out, ran.err.splitlines()))
    last = "error: container agent of trial two__1234567 has not started: repeat the command when it has"
    assert said == [
        (2, "", ["trial two__1234567 waits: Unschedulable: 0/1 nodes", last]),
        (2, "", ["trial two__1234567 waits: container agent: ErrImagePull: not found", last]),
    ]


# --- logs and artifacts -----------------------------------------------------------------------------------------------------------------


def test_logs_print_the_saved_files_of_a_trial(seatrial: Callable[..., Ran], done_job: str) -> None:
    by_name, by_task = seatrial("logs", done_job, "one__1234567"), seatrial("logs", done_job, "one", "--file", "agent/*")
    assert by_name.out == "==> verifier/test-stdout.txt <==\nall \x1b[31mred\x1b[0m\n\n==> agent/oracle.txt <==\nhello\n"
    assert by_task.out == "==> agent/oracle.txt <==\nhello\n"
    assert seatrial("logs", done_job, "one", "--list").out == "          17   verifier/test-stdout.txt\n           6   agent/oracle.txt\n"


def test_logs_of_a_trial_without_any_say_so(seatrial: Callable[..., Ran], done_job: str) -> None:
    without, unknown = seatrial("logs", done_job, "two__1234567"), seatrial("logs", done_job, "three")
    assert (without.code, without.err) == (
        2,
        "trial two__1234567: RewardMissing: none\nerror: trial two__1234567 saved no logs\n",
    )
    assert (unknown.code, f"job {done_job} has no trial 'three': seatrial get trials {done_job}" in unknown.err) == (2, True)


def test_artifacts_are_saved_below_a_new_folder(seatrial: Callable[..., Ran], done_job: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = seatrial("artifacts", done_job, "-d", str(out))
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert (ran.code, files) == (
        0,
        ["one__1234567/files/agent/oracle.txt", "one__1234567/files/verifier/test-stdout.txt", "one__1234567/result.json", "trials.jsonl"],
    )
    assert seatrial("artifacts", done_job, "-d", str(out)).code == 2


@pytest.mark.parametrize("name", ["../escape", "/etc/escape", "a/../../escape", "a\\b", "bell\x07"])
def test_a_hostile_path_in_an_archive_is_refused_and_writes_nothing(
    seatrial: Callable[..., Ran], done_job: str, store: Store, tmp_path: Path, name: str
) -> None:
    key = next(entry.key for entry in store.list("jobs/") if entry.key.endswith("/one__1234567/0/logs.tar.gz"))
    store.put(key, archive({name: b"x"}))
    ran = seatrial("artifacts", done_job, "one", "-d", str(tmp_path / "out"))
    assert (ran.code, "has a path that is not written to disk" in ran.err) == (1, True)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and path.name != "kubeconfig") == ["result.json"]


@pytest.mark.parametrize("file", ["result.json", "logs.tar.gz"])
def test_evidence_that_was_changed_after_the_trial_is_refused_and_not_written(
    seatrial: Callable[..., Ran], done_job: str, store: Store, tmp_path: Path, file: str
) -> None:
    (prefix,) = {entry.key.partition("trials/")[0] for entry in store.list("jobs/") if "/trials/" in entry.key}
    place = f"{prefix}trials/one__1234567/0/"
    digests = {name: hashlib.sha256(store.get(f"{place}{name}", max_bytes=10_000)).hexdigest() for name in ("result.json", "logs.tar.gz")}
    row = Row("one__1234567", 0, "scored", "2026-01-01T00:00:00Z", rewards={"reward": 1.0}, stored=True)
    row = dataclasses.replace(row, result_sha256=digests["result.json"], logs_sha256=digests["logs.tar.gz"])
    store.put(f"{prefix}trials.jsonl", to_lines([row]))
    assert seatrial("artifacts", done_job, "one", "-d", str(tmp_path / "before")).code == 0
    store.put(f"{place}{file}", archive({"agent/oracle.txt": b"other\n"}) if file == "logs.tar.gz" else b'{"id": "other"}')
    ran = seatrial("artifacts", done_job, "one", "-d", str(tmp_path / "after"))
    assert (ran.code, f"trial one__1234567: {place}{file} does not have the sha256 of its row" in ran.err) == (1, True)
    saved = sorted(path.relative_to(tmp_path / "after").as_posix() for path in (tmp_path / "after").rglob("*") if path.is_file())
    assert saved == ([] if file == "result.json" else ["one__1234567/result.json"])


# --- steering ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "spec"),
    [("cancel", {"cancel": True}), ("suspend", {"suspend": True}), ("resume", {"suspend": False})],
)
def test_a_job_is_steered_by_its_spec(seatrial: Callable[..., Ran], done_job: str, kube: Any, command: str, spec: dict[str, bool]) -> None:
    word = {"cancel": "cancelled", "suspend": "suspended", "resume": "resumed"}[command]
    rehearsed = seatrial(command, done_job, "--dry-run")
    assert (json.loads(rehearsed.out), kube.writes()) == ({"spec": spec}, [])
    ended = seatrial(command, done_job)
    assert (ended.code, ended.out) == (0, f"evaljob/{done_job} had ended already: Completed\n")
    kube.put("evaljobs", {**kube.get("evaljobs", done_job), "spec": {"taskset": "smoke"}, "status": {"phase": "Running"}})
    ran = seatrial(command, done_job)
    assert (ran.code, ran.out, spec.items() <= kube.get("evaljobs", done_job)["spec"].items()) == (0, f"evaljob/{done_job} {word}\n", True)


def test_a_tag_is_added_to_the_spec_and_latest_is_refused(seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any) -> None:
    seatrial("publish", str(make_task("one")), "--tag", "a")
    ran, refused = seatrial("tag", "task", "bench-one", "stable"), seatrial("tag", "task", "bench-one", "latest")
    assert (ran.code, ran.out, kube.get("tasks", "bench-one")["spec"]["tags"]) == (
        0,
        "task/bench-one revision 1 tagged stable\n",
        ["a", "stable"],
    )
    assert (refused.code, "latest is moved by every publication" in refused.err) == (2, True)


# --- download, init, doctor, version ----------------------------------------------------------------------------------------------------


def test_a_published_task_comes_back_byte_for_byte(seatrial: Callable[..., Ran], make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task("one")
    seatrial("publish", str(task))
    out = tmp_path / "out"
    ran = seatrial("download", "bench-one", "-d", str(out))
    files = {path.relative_to(task): path.read_bytes() for path in task.rglob("*") if path.is_file()}
    assert (ran.code, {path.relative_to(out / "one"): path.read_bytes() for path in (out / "one").rglob("*") if path.is_file()}) == (
        0,
        files,
    )
    again = seatrial("download", "bench-one", "-d", str(out))
    assert (again.code, "exists already" in again.err) == (2, True)


def test_a_download_with_other_bytes_is_refused(
    seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any, store: Store, tmp_path: Path
) -> None:
    seatrial("publish", str(make_task("one")))
    ref = kube.get("tasks", "bench-one")["spec"]["source"]["ref"].replace("#", "/")
    store.put(f"filesets/{ref}", b"other")
    ran = seatrial("download", "bench-one", "-d", str(tmp_path / "out"))
    assert (ran.code, "checksum mismatch" in ran.err, list((tmp_path / "out").iterdir())) == (1, True, [])


@pytest.mark.parametrize("options", [(), ("--steps", "2"), ("--no-solution", "--author", "A. Author", "--description", "x")])
def test_what_init_writes_passes_check(seatrial: Callable[..., Ran], tmp_path: Path, options: tuple[str, ...]) -> None:
    made = seatrial("init", "my-org/my-task", "-o", str(tmp_path / "new"), *options)
    checked = seatrial("check", str(tmp_path / "new" / "my-task"), "--strict")
    assert (made.code, all(Path(line).is_file() for line in made.out.splitlines()), checked.code, checked.err) == (
        0,
        True,
        0,
        "1 tasks, 1 valid, 0 errors, 0 warnings\n",
    )


@pytest.mark.conforms("N-165")
def test_init_lists_a_task_in_the_dataset_beside_it(seatrial: Callable[..., Ran], tmp_path: Path) -> None:
    suite = tmp_path / "my-suite"
    assert seatrial("init", "my-org/my-suite", "--dataset", "--with-metric", "-o", str(tmp_path)).code == 0
    assert seatrial("init", "my-org/one", "-o", str(suite)).code == 0
    assert (sorted(path.name for path in suite.iterdir()), seatrial("check", str(suite), "--strict").code) == (
        ["dataset.toml", "metric.py", "one"],
        0,
    )
    assert '[[files]]\npath = "metric.py"' in (suite / "dataset.toml").read_text()


def test_init_overwrites_nothing_and_wants_a_full_name(seatrial: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "my-task").mkdir()
    (tmp_path / "my-task" / "notes").write_text("mine")
    taken, bare = seatrial("init", "my-org/my-task", "-o", str(tmp_path)), seatrial("init", "my-task", "-o", str(tmp_path))
    assert (taken.code, "exists and is not empty" in taken.err, bare.code, "not of the form ORG/NAME" in bare.err) == (2, True, 2, True)


def test_doctor_goes_step_by_step_and_names_what_is_missing(seatrial: Callable[..., Ran]) -> None:
    ran = seatrial("doctor", "-o", "jsonl")
    steps = {line["step"]: line["good"] for line in map(json.loads, ran.out.splitlines())}
    good = ("cluster", "custom resources", "S3 settings", "object store")
    missing = ("namespace", "your rights", "operator", "operator's rights", "client settings")
    assert (ran.code, steps) == (3, {**dict.fromkeys(good, True), **dict.fromkeys(missing, False)})


def test_version_of_the_client_asks_nobody(seatrial: Callable[..., Ran], kube: Any) -> None:
    assert (seatrial("version", "--client"), kube.requests) == ((0, "Client Version: v0.1.0\n", ""), [])


# --- settings, exit codes, help ---------------------------------------------------------------------------------------------------------


def test_s3_settings_come_from_the_charts_configmap_and_secret(
    seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any, store_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENDPOINT", "BUCKET", "ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.delenv(f"SEATRIAL_S3_{name}")
    data = {
        "endpoint": "http://inside:9000",
        "externalEndpoint": store_settings.endpoint,
        "bucket": store_settings.bucket,
        "region": "us-east-1",
    }
    place = {"name": "seatrial-client", "namespace": "seatrial-system"}
    kube.put("configmaps", {"metadata": place, "data": {**data, "credentialsSecret": "seatrial-s3"}})
    without = seatrial("publish", str(make_task("one")))
    keys = {"accessKey": store_settings.access_key, "secretKey": store_settings.secret_key}
    secret = {"metadata": {"name": "seatrial-s3", "namespace": "seatrial-system"}}
    kube.put("secrets", {**secret, "data": {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}})
    published = seatrial("publish", str(make_task("two")))
    assert (without.code, "Set SEATRIAL_S3_ACCESS_KEY and SEATRIAL_S3_SECRET_KEY" in without.err) == (2, True)
    assert (published.code, published.err.splitlines()[-1]) == (0, "1 tasks: 1 created; 1 archives in the store")


def test_an_unreachable_cluster_or_store_ends_with_3(
    seatrial: Callable[..., Ran], make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = str(make_task("one"))
    no_config = seatrial("get", "jobs", "--kubeconfig", str(tmp_path / "none"))
    monkeypatch.setenv("SEATRIAL_S3_SECRET_KEY", "wrong")
    no_store = seatrial("publish", task)
    assert (no_config.code, no_config.err.startswith("error: no usable kubeconfig")) == (3, True)
    assert (no_store.code, "does not accept the access key or secret" in no_store.err) == (3, True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("x"), 3),
        (Forbidden("x"), 3),
        (DiskFull("x"), 3),
        (InvalidSpec("a", "x"), 2),
        (NotFound("x"), 2),
        (AlreadyExists("x"), 2),
        (Conflict("x"), 2),
        (SeatrialError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_is_one_line(
    seatrial: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, error: SeatrialError, code: int
) -> None:
    monkeypatch.setattr("seatrial.sdk.cluster.Cluster.connect", lambda *_: (_ for _ in ()).throw(error))
    ran = seatrial("get", "jobs")
    assert ran == (code, "", f"error: {error}\n")
    debugged = seatrial("--debug", "get", "jobs")
    assert (debugged.code, debugged.err.startswith("Traceback"), debugged.err.endswith(f"error: {error}\n")) == (code, True, True)


@pytest.mark.parametrize("arguments", [("no-such-command",), ("get", "pods"), ("run", "-k", "0", "-d", "x"), ("logs", "job")])
def test_a_command_line_that_cannot_be_read_ends_with_2(seatrial: Callable[..., Ran], arguments: tuple[str, ...]) -> None:
    assert seatrial(*arguments).code == 2


@pytest.mark.parametrize("command", [item.name for item in app.registered_commands])
def test_every_command_has_help_with_an_example(seatrial: Callable[..., Ran], command: str) -> None:
    ran = seatrial(command, "--help")
    assert (ran.code, f"    seatrial {command} " in ran.out or f"    seatrial {command}\n" in ran.out) == (0, True)


def test_help_loads_no_kubernetes_client_and_starts_at_once() -> None:
    program = (
        "import sys; from seatrial.cli.main import main; main(['--help']); "
        "print([name for name in ('kubernetes', 'minio', 'pydantic', 'rich') if name in sys.modules])"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], time.monotonic() - started < 2) == ("[]", True)


def test_the_program_is_found_as_a_kubectl_plugin() -> None:
    plugin = Path(sys.executable).with_name("kubectl-seatrial")
    done = subprocess.run([plugin, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl seatrial ")


def test_a_pipe_that_is_closed_early_is_no_error(client_environment: StoreSettings) -> None:
    program = Path(sys.executable).with_name("seatrial")
    done = subprocess.run(f"{program} run --help | head -1", shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout.startswith("Usage: seatrial run"), done.stderr) == (True, "")
