"""Bad input is refused or named; it never becomes a score."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import NAMESPACE
from .harness import Cluster, condition, evaljob, unique, wait_until, write_task

pytestmark = pytest.mark.cluster
IMAGE = "seatrial.local/smoke/hello-pass:dev"


def errors(job: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(error["type"], error["cause"], error["count"]) for error in job["status"].get("errors", [])]


@pytest.mark.conforms("H-84", "N-211")
def test_trials_that_cannot_start_fail_alone_with_their_reasons(installed: Cluster, suite: Path) -> None:
    write_task(suite, "good", image=IMAGE)
    write_task(suite, "bad-name", image="Not A Valid Image")
    write_task(suite, "needs-variable", image=IMAGE, config='[environment.env]\nTOKEN_OF_NOBODY = "${TOKEN_OF_NOBODY}"\n')
    tag = unique("bad")
    installed.seatrial("publish", str(suite), "--taskset", tag, "--namespace", NAMESPACE)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag))
    job = installed.finished(tag, NAMESPACE, timeout=120)
    assert sorted(errors(job)) == [("InvalidImageName", "user", 1), ("ValueError", "user", 1)]
    assert (job["status"]["mean"], job["status"]["trials"]["scored"], job["status"]["trials"]["errored"]) == ("1.000", 1, 2)
    messages = {row["error"]["type"]: row["error"]["message"] for row in installed.rows(tag, NAMESPACE) if row.get("error")}
    assert "TOKEN_OF_NOBODY" in messages["ValueError"]


def test_a_missing_secret_is_named_and_never_scored(installed: Cluster, smoke: str) -> None:
    name = unique("secret")
    agent = {"command": "true", "envSecrets": {"OPENAI_API_KEY": {"name": "no-such-secret", "key": "token"}}}
    installed.apply(evaljob(name, NAMESPACE, taskset=smoke, select={"include": ["smoke/hello-pass"]}, agent=agent))
    job = installed.finished(name, NAMESPACE, timeout=200)
    assert errors(job) == [("ContainerConfigError", "user", 1)]
    assert "no-such-secret" in installed.rows(name, NAMESPACE)[0]["error"]["message"]
    assert (job["status"]["phase"], condition(job, "Failed")["reason"]) == ("Failed", "NothingScored")
    assert not job["status"].get("mean")


def test_an_unknown_taskset_is_a_condition_with_the_next_step(installed: Cluster) -> None:
    name = unique("missing")
    installed.apply(evaljob(name, NAMESPACE, taskset="no-such-taskset"))
    job = wait_until(
        lambda: installed.job(name, NAMESPACE),
        lambda job: condition(job, "PlanReady").get("status") == "False",
        timeout=60,
        what="a refused plan",
    )
    assert condition(job, "PlanReady")["reason"] == "TasksetNotFound"
    assert "no-such-taskset" in condition(job, "PlanReady")["message"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param({"taskset": "smoke", "agent": {"name": "oracle", "command": "true"}}, "exactly one", id="two-agents"),
        pytest.param({"taskset": "smoke", "tasks": ["a"]}, "exactly one", id="two-sources"),
        pytest.param({"taskset": "smoke", "concurency": 3}, "concurency", id="misspelt-field"),
        pytest.param({"taskset": "smoke", "attempts": 0}, "attempts", id="no-attempts"),
    ],
)
def test_the_api_server_refuses_a_wrong_spec(installed: Cluster, spec: dict[str, Any], text: str) -> None:
    done = installed.run(
        installed.env["kubectl"], "create", "-f", "-", given=yaml.safe_dump(evaljob(unique("wrong"), NAMESPACE, **spec)), check=False
    )
    assert done.code != 0
    assert text in done.err


@pytest.mark.conforms("N-44")
def test_bytes_replaced_after_publishing_never_yield_a_score(installed: Cluster, suite: Path) -> None:
    write_task(suite, "swapped", image=IMAGE)
    tag = unique("swap")
    installed.seatrial("publish", str(suite), "--taskset", tag, "--namespace", NAMESPACE)
    task = next(item for item in installed.items("tasks.seatrial.dev", "-n", NAMESPACE) if item["spec"]["nativeTaskId"] == "e2e/swapped")
    reference = task["spec"]["source"]["ref"]
    key = "filesets/" + reference.replace("#", "/", 1)
    store = installed.store()
    original = store.get(key, max_bytes=10_000_000)
    store.put(key, os.urandom(len(original)))
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag))
    job = installed.finished(tag, NAMESPACE, timeout=200)
    store.put(key, original)
    assert errors(job) == [("TaskArchiveCorrupt", "infrastructure", 1)]
    assert not job["status"].get("mean")


@pytest.mark.conforms("H-110", "H-111", "H-108")
def test_a_verifier_that_writes_nonsense_is_errored_not_zero(installed: Cluster, suite: Path) -> None:
    texts = {
        "words": "echo pass > /logs/verifier/reward.txt",
        "empty": ": > /logs/verifier/reward.txt",
        "nothing": "true",
        "not-finite": "echo nan > /logs/verifier/reward.txt",
        "bad-json-good-text": "echo '{' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt",
        "bare-number": "echo 0.5 > /logs/verifier/reward.json",
        "no-keys": "echo '{}' > /logs/verifier/reward.json",
        "a-link": "echo 1 > /tmp/r; ln -s /tmp/r /logs/verifier/reward.txt",
    }
    for name, test in texts.items():
        write_task(suite, name, image=IMAGE, test=test)
    tag = unique("nonsense")
    installed.seatrial("publish", str(suite), "--taskset", tag, "--namespace", NAMESPACE)
    installed.apply(evaljob(tag, NAMESPACE, taskset=tag, concurrency=4))
    job = installed.finished(tag, NAMESPACE, timeout=240)
    trials = job["status"]["trials"]
    assert (trials["scored"], trials["errored"], job["status"]["phase"]) == (0, 8, "Failed")
    assert not job["status"].get("mean")
    assert all(row["outcome"] == "errored" for row in installed.rows(tag, NAMESPACE))
