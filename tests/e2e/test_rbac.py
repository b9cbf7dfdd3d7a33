"""Rights in practice: the API server's audit log of a whole run beside the chart's rules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests import rights

from . import kueue
from .harness import evaljob, unique, wait_until
from .ops import DEPLOYMENT, NAMESPACE, TRIALS, Release

pytestmark = pytest.mark.cluster

RARE = "Used on occasion only"


def test_every_call_of_the_operator_is_allowed_and_every_right_is_used(ops: Release) -> None:
    # From a start of the process on; earlier tests take rights away on purpose.
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    ops.cluster.kubectl("rollout", "restart", f"deployment/{DEPLOYMENT}", "--namespace", NAMESPACE)
    ops.ready()
    ops.seatrial("publish", "examples/suites/smoke", "--taskset", "smoke", "--namespace", TRIALS)
    name = unique("rights")
    ops.cluster.apply(evaljob(name, TRIALS, taskset="smoke", agent={"name": "oracle"}, concurrency=5, ttlSecondsAfterFinished=0))
    wait_until(
        lambda: ops.cluster.kubectl("get", "evaljob", name, "--namespace", TRIALS, "--ignore-not-found"),
        lambda text: text == "",
        timeout=180,
        what=f"deletion of {name} after its time to live",
    )

    events = ops.audit()
    calls = [event for event in events if event["requestReceivedTimestamp"] >= began]
    assert len(calls) > 50
    refused = [event for event in calls if event["annotations"]["authorization.k8s.io/decision"] != "allow"]
    assert refused == []
    given = {
        role["metadata"]["namespace"]: rights.of_rules(role["rules"])
        for role in (
            ops.cluster.get("role", DEPLOYMENT, "--namespace", TRIALS),
            ops.cluster.get("role", f"{DEPLOYMENT}-lease", "--namespace", NAMESPACE),
        )
    }
    # Queues have a test of their own.
    events = [event for event in events if event.get("objectRef", {}).get("apiGroup") != kueue.GROUP]
    used = {
        namespace: rights.of_audit(event for event in events if event.get("objectRef", {}).get("namespace") == namespace)
        for namespace in (TRIALS, NAMESPACE)
    }
    rare = rights.documented(RARE)
    assert {namespace: found - rare for namespace, found in used.items()} == {namespace: found - rare for namespace, found in given.items()}
    # Nothing was asked of the cluster or of any other namespace; what has no resource is discovery.
    elsewhere = {event.get("objectRef", {}).get("namespace") for event in events if event.get("objectRef", {}).get("resource")}
    assert elsewhere == {TRIALS, NAMESPACE}


@pytest.mark.conforms("H-62")
def test_the_operator_may_not_exec_read_secrets_or_leave_its_namespaces(ops: Release) -> None:
    def may(*question: str) -> bool:
        who = f"--as=system:serviceaccount:{NAMESPACE}:{DEPLOYMENT}"
        return ops.cluster.kubectl("auth", "can-i", *question, who, check=False).strip() == "yes"

    asked = {
        ("create", "pods", "-n", TRIALS): True,
        ("create", "pods", "--subresource=exec", "-n", TRIALS): False,
        ("get", "pods", "--subresource=log", "-n", TRIALS): False,
        ("get", "secrets", "-n", TRIALS): False,
        ("list", "secrets", "-n", NAMESPACE): False,
        ("list", "configmaps", "-n", NAMESPACE): False,
        ("create", "pods", "-n", NAMESPACE): False,
        ("list", "pods", "-n", "default"): False,
        ("list", "namespaces"): False,
        ("get", "nodes"): False,
    }
    assert {question: may(*question) for question in asked} == asked
