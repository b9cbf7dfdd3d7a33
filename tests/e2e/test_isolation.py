"""What a trial Pod may not have: rights, tokens, credentials, a way to the reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import NAMESPACE
from .harness import SYSTEM, Cluster, evaljob, unique, wait_until, write_task

pytestmark = pytest.mark.cluster
IMAGE = "seatrial.local/smoke/hello-pass:dev"


def strings(value: Any) -> Iterator[str]:
    """Every text inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


@pytest.fixture(scope="module")
def probed(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """A trial whose agent tries what it should not be able to do: (its Pod, its row)."""
    suite = tmp_path_factory.mktemp("probe")
    write_task(
        suite,
        "probe",
        image=IMAGE,
        solve="""
exec > /logs/agent/probe.txt 2>&1
ls -la /tests && echo TESTS-VISIBLE
ls /var/run/secrets/kubernetes.io/serviceaccount && echo TOKEN-VISIBLE
env | grep -E 'SEATRIAL|X-Amz' && echo VARIABLES-VISIBLE
tr '\\0' '\\n' < /proc/1/environ | grep -E 'SEATRIAL|X-Amz' && echo PID1-VARIABLES-VISIBLE
for part in agent verifier; do touch /seatrial/ctl/$part/x && echo CTL-WRITABLE; done
touch /seatrial/bin/x && echo BIN-WRITABLE
ls /seatrial/run /seatrial/task && echo RUNNER-FILES-VISIBLE
python3 -c 'import socket; socket.create_connection(("kubernetes.default.svc.cluster.local", 443), 3)' && echo API-REACHABLE
mkdir -p /tests && echo 'exit 0' > /tests/conftest.py
echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json
sleep 4
""",
        test="ls /tests > /logs/verifier/tests.txt; echo 0 > /logs/verifier/reward.txt",
    )
    installed.seatrial("publish", str(suite), "--taskset", "probe", "--namespace", NAMESPACE)
    name = unique("probe")
    installed.apply(evaljob(name, NAMESPACE, taskset="probe"))
    pod = wait_until(lambda: installed.trial_pods(NAMESPACE, name), lambda pods: len(pods) == 1, timeout=60, what="the trial's Pod")[0]
    installed.finished(name, NAMESPACE)
    return pod, {**installed.rows(name, NAMESPACE)[0], "job": name}


@pytest.mark.conforms("H-37", "H-62")
def test_the_agent_sees_no_tests_no_token_no_urls_and_cannot_write_our_volumes(
    installed: Cluster, probed: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    _, row = probed
    shown = installed.seatrial("logs", row["job"], row["trial"], "--namespace", NAMESPACE).out
    assert "/tests" in shown, "the probe ran"
    found = [line for line in shown.splitlines() if line.endswith(("-VISIBLE", "-WRITABLE", "-REACHABLE"))]
    assert found == []


@pytest.mark.conforms("H-106", "H-86")
def test_planted_rewards_are_removed_and_the_trial_is_marked(probed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    _, row = probed
    assert (row["rewards"], row["tampered"]) == ({"reward": 0.0}, True)


def test_trial_pods_hold_no_token_and_no_store_credential(installed: Cluster, probed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    pod, _ = probed
    credentials = json.loads(Path(installed.env["s3"]["credentialsFile"]).read_text())
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert [volume for volume in pod["spec"]["volumes"] if "emptyDir" not in volume] == []
    texts = list(strings(pod))
    assert not any(credentials["secretKey"] in text for text in texts)
    environment = next(one for one in pod["spec"]["containers"] if one["name"] == "environment")
    agent = next(one for one in pod["spec"]["containers"] if one["name"] == "agent")
    assert not any("X-Amz-Signature" in text for text in [*strings(environment), *strings(agent)])


def test_only_the_operator_holds_the_store_credential(installed: Cluster) -> None:
    for pod in installed.items("pods", "-A"):
        spec = json.dumps(pod["spec"])
        if '"seatrial-s3"' in spec and "secretKeyRef" in spec:
            labels = pod["metadata"].get("labels", {})
            assert pod["metadata"]["namespace"] == "seatrial-s3" or labels.get("app.kubernetes.io/name") == "seatrial"


def test_no_right_in_the_cluster_lets_the_operator_exec_or_read_secrets(installed: Cluster) -> None:
    account = next(
        pod["spec"]["serviceAccountName"] for pod in installed.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=seatrial")
    )
    who = f"system:serviceaccount:{SYSTEM}:{account}"
    questions = (
        "create pods --subresource=exec",
        "get pods --subresource=log",
        "get secrets",
        "list secrets",
        "create pods",
        "delete pods",
    )
    answers = {
        question: installed.kubectl("auth", "can-i", *question.split(), "-n", NAMESPACE, f"--as={who}", check=False).strip()
        for question in questions
    }
    assert answers == {
        "create pods --subresource=exec": "no",
        "get pods --subresource=log": "no",
        "get secrets": "no",
        "list secrets": "no",
        "create pods": "yes",
        "delete pods": "yes",
    }


def test_agent_and_verifier_meet_the_restricted_level(probed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    pod, _ = probed
    ours = {one["name"]: one["securityContext"] for one in pod["spec"]["containers"] if one["name"] != "environment"}
    restricted = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {name: {key: context.get(key) for key in restricted} for name, context in ours.items()} == {
        "agent": restricted,
        "verifier": restricted,
    }
    assert all(one["resources"]["requests"] for one in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]])


def test_stage_is_root_for_the_setuid_envd_only(probed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    pod, _ = probed
    (context,) = [one["securityContext"] for one in pod["spec"]["initContainers"] if one["name"] == "stage"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SETGID", "SETUID"]}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
