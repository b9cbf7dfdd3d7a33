"""Publishing on a real cluster: what is cut, what stays, what is refused, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seatrial.sdk.pack_store import key_of

from .conftest import NAMESPACE
from .harness import Cluster, condition, evaljob, unique, wait_until, write_task

pytestmark = pytest.mark.cluster
IMAGE = "seatrial.local/smoke/hello-pass:dev"


def published(cluster: Cluster, suite: Path, *options: str, code: int = 0) -> dict[str, str]:
    """What ``seatrial publish`` says of each task of the suite."""
    done = cluster.seatrial("publish", str(suite), "--namespace", NAMESPACE, "-o", "jsonl", *options, check=False)
    assert done.code == code, done.err
    return {line["name"]: line["outcome"] for line in map(json.loads, done.out.splitlines())}


def status(cluster: Cluster, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get(kind, name, "-n", NAMESPACE)["status"]
    return found


@pytest.mark.conforms("N-53", "N-56", "N-70", "N-75")
def test_publishing_twice_is_a_no_op_one_edit_cuts_one_revision_and_a_running_job_is_not_touched(installed: Cluster, suite: Path) -> None:
    stem = unique("pub")
    names = [f"{stem}-a", f"{stem}-b"]
    gate = "until [ -e /tmp/go ]; do sleep 0.2; done"
    for name in names:
        write_task(suite, name, image=IMAGE, solve=gate if name == names[0] else "true")
    objects = [f"e2e-{name}" for name in names]
    assert published(installed, suite, "--taskset", stem) == dict.fromkeys(objects, "created")
    before = [installed.get(kind, name, "-n", NAMESPACE) for kind, name in (*(("task", name) for name in objects), ("taskset", stem))]

    assert published(installed, suite, "--taskset", stem) == dict.fromkeys(objects, "unchanged")
    after = [installed.get(kind, name, "-n", NAMESPACE) for kind, name in (*(("task", name) for name in objects), ("taskset", stem))]
    assert [one["metadata"]["resourceVersion"] for one in after] == [one["metadata"]["resourceVersion"] for one in before]

    installed.apply(evaljob(stem, NAMESPACE, taskset=stem))
    wait_until(
        lambda: [pod for pod in installed.trial_pods(NAMESPACE, stem) if pod["status"]["phase"] == "Running"],
        lambda pods: len(pods) >= 1,
        timeout=60,
        what="running trials",
    )
    running = next(
        pod for pod in installed.trial_pods(NAMESPACE, stem) if pod["metadata"]["labels"]["seatrial.dev/trial"].startswith(names[0])
    )
    plan = installed.job(stem, NAMESPACE)["status"]["plan"]
    (suite / names[0] / "instruction.md").write_text("Something else.\n")
    assert published(installed, suite, "--taskset", stem) == {objects[0]: "revised", objects[1]: "unchanged"}
    assert [status(installed, "task", name)["revision"] for name in objects] == [2, 1]
    assert (status(installed, "taskset", stem)["revision"], status(installed, "taskset", stem)["members"]) == (2, 2)

    same = installed.get("pod", running["metadata"]["name"], "-n", NAMESPACE)
    assert same["metadata"]["uid"] == running["metadata"]["uid"]
    assert installed.job(stem, NAMESPACE)["status"]["plan"] == plan
    installed.kubectl("exec", "-n", NAMESPACE, running["metadata"]["name"], "-c", "environment", "--", "touch", "/tmp/go")
    job = installed.finished(stem, NAMESPACE, timeout=90)
    assert (job["status"]["phase"], job["status"]["trials"]["scored"], job["status"]["mean"]) == ("Completed", 2, "1.000")


def test_three_bad_tasks_of_five_are_listed_and_nothing_is_stored(installed: Cluster, suite: Path) -> None:
    stem = unique("bad")
    for name in "abcde":
        write_task(suite, f"{stem}-{name}", image=IMAGE)
    (suite / f"{stem}-b" / "tests" / "test.sh").unlink()
    (suite / f"{stem}-c" / "task.toml").write_text("[agent]\ntimeout_sec = 'never'\n")
    (suite / f"{stem}-e" / "instruction.md").unlink()
    done = installed.seatrial("publish", str(suite), "--taskset", stem, "--namespace", NAMESPACE, check=False)
    assert done.code != 0
    assert f"3 of 5 tasks cannot be published: {stem}-b, {stem}-c, {stem}-e" in done.err
    assert [item for item in installed.items("tasks", "-n", NAMESPACE) if stem in item["metadata"]["name"]] == []
    checked = installed.seatrial("check", str(suite), "-o", "jsonl", check=False)
    assert [json.loads(line)["valid"] for line in checked.out.splitlines()] == [True, False, False, True, False]


@pytest.mark.conforms("N-59", "N-65")
def test_an_archive_that_somebody_replaced_is_refused_by_name_heals_and_crashes_nothing(installed: Cluster, suite: Path) -> None:
    name = unique("hostile")
    write_task(suite, name, image=IMAGE)
    published(installed, suite)
    task = f"e2e-{name}"
    body = installed.get("task", task, "-n", NAMESPACE)
    key = key_of(body["spec"]["source"]["ref"])
    store = installed.store()
    good = store.get(key, max_bytes=1_000_000)
    before = [one["status"]["containerStatuses"][0]["restartCount"] for one in _operator(installed)]

    store.put(key, b"\x1f\x8b" + bytes(1000))
    clean = {"name": f"{task}-copy", "namespace": NAMESPACE}
    installed.apply({"apiVersion": body["apiVersion"], "kind": "Task", "metadata": clean, "spec": body["spec"]})
    seen = wait_until(
        lambda: condition(installed.get("task", clean["name"], "-n", NAMESPACE), "Verified"),
        lambda found: found.get("status") == "False",
        timeout=30,
        what="a refused task",
    )
    assert (seen["reason"], key in seen["message"]) == ("TaskArchiveCorrupt", True)

    store.put(key, good)
    installed.kubectl("annotate", "task", clean["name"], "-n", NAMESPACE, "seatrial.dev/verify-again=1")
    wait_until(
        lambda: condition(installed.get("task", clean["name"], "-n", NAMESPACE), "Verified"),
        lambda found: found.get("status") == "True",
        timeout=30,
        what="a healed task",
    )
    assert [one["status"]["containerStatuses"][0]["restartCount"] for one in _operator(installed)] == before
    assert installed.seatrial("publish", str(suite), "--namespace", NAMESPACE).code == 0


@pytest.mark.conforms("N-200")
def test_a_tag_moves_back_to_an_old_revision(installed: Cluster, suite: Path) -> None:
    name = unique("tagged")
    write_task(suite, name, image=IMAGE)
    published(installed, suite, "--tag", "first")
    (suite / name / "instruction.md").write_text("Something else.\n")
    published(installed, suite, "--tag", "stable")
    task = f"e2e-{name}"
    assert status(installed, "task", task)["tags"] == {"first": 1, "latest": 2, "stable": 2}
    installed.seatrial("tag", "task", task, "stable", "--revision", "first", "--namespace", NAMESPACE)
    tags = wait_until(
        lambda: status(installed, "task", task)["tags"], lambda found: found["stable"] == 1, timeout=30, what="the tag at revision 1"
    )
    assert tags == {"first": 1, "latest": 2, "stable": 1}


def _operator(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.items("pods", "-n", "seatrial-system", "-l", "app.kubernetes.io/name=seatrial")
