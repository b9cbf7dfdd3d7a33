"""``seatrial doctor`` finds planted faults, one at a time, and says what mends each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest

from .harness import Result, wait_until
from .ops import DEPLOYMENT, NAMESPACE, TRIALS, Release

pytestmark = [pytest.mark.cluster, pytest.mark.deep]


class Seen(NamedTuple):
    code: int
    faults: dict[str, str]
    """Failed steps and what was said."""


def examined(ops: Release, *arguments: str, environment: dict[str, str] | None = None, namespace: str = TRIALS) -> Seen:
    given = [f"{name}={value}" for name, value in {"SEATRIAL_OPERATOR_NAMESPACE": NAMESPACE, **(environment or {})}.items()]
    done: Result = ops.cluster.run(
        "env", *given, "seatrial", "doctor", "--namespace", namespace, "-o", "json", *arguments, check=False, timeout=120
    )
    return Seen(done.code, {step["step"]: step["detail"] for step in json.loads(done.out) if not step["good"]})


def test_a_sound_installation_has_no_fault(ops: Release) -> None:
    assert examined(ops, "--network") == Seen(0, {})
    assert ops.cluster.items("pods", "--namespace", TRIALS, "--selector=seatrial.dev/network") == []


# --- faults that need no change of the cluster ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "environment", "step", "said"),
    [
        (("--kubeconfig", "/nonexistent"), {}, "cluster", "kubeconfig"),
        ((), {"SEATRIAL_OPERATOR_NAMESPACE": "default"}, "operator", "helm install it"),
        (("--s3-bucket", "no-such-bucket"), {}, "object store", "no-such-bucket"),
        (("--s3-endpoint", "http://127.0.0.1:9"), {}, "object store", "127.0.0.1:9"),
        ((), {"SEATRIAL_S3_ACCESS_KEY": "wrong", "SEATRIAL_S3_SECRET_KEY": "wrong"}, "object store", "access key"),
    ],
    ids=["no cluster", "no operator", "wrong bucket", "store does not answer", "wrong keys"],
)
def test_wrong_settings_are_found(ops: Release, arguments: tuple[str, ...], environment: dict[str, str], step: str, said: str) -> None:
    seen = examined(ops, *arguments, environment=environment)
    assert (seen.code, said in seen.faults.get(step, "")) == (3, True), seen


def test_a_namespace_that_does_not_exist_is_found(ops: Release) -> None:
    seen = examined(ops, namespace="nowhere")
    assert "kubectl create namespace nowhere" in seen.faults["namespace"]


def test_a_namespace_that_the_operator_does_not_watch_is_found(ops: Release) -> None:
    seen = examined(ops, namespace="default")
    assert seen.faults == {
        "operator's rights": "the operator may not create pods in default: name it in the chart's namespaces, and upgrade"
    }


def test_policies_that_are_not_in_force_are_found(ops: Release) -> None:
    policy = f"{DEPLOYMENT}-none"
    saved = ops.cluster.get("networkpolicy", policy, "--namespace", TRIALS)
    ops.cluster.kubectl("delete", "networkpolicy", policy, "--namespace", TRIALS)
    try:
        seen = examined(ops, "--network")
    finally:
        del saved["metadata"]["resourceVersion"], saved["metadata"]["uid"]
        ops.cluster.apply(saved)
    assert (seen.code, list(seen.faults)) == (3, ["network"])
    assert f"a Pod without a network reaches the API server from {TRIALS}" in seen.faults["network"]


# --- faults of the cluster --------------------------------------------------------------------------------------------------------------


@contextmanager
def too_strict(ops: Release) -> Iterator[None]:
    label = "pod-security.kubernetes.io/enforce"
    ops.cluster.kubectl("label", "namespace", TRIALS, f"{label}=restricted", "--overwrite")
    yield
    ops.cluster.kubectl("label", "namespace", TRIALS, f"{label}=baseline", "--overwrite")


@contextmanager
def no_room(ops: Release) -> Iterator[None]:
    quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": TRIALS}}
    ops.cluster.apply({**quota, "spec": {"hard": {"pods": "0"}}})
    wait_until(
        lambda: ops.cluster.get("resourcequota", "none", "-n", TRIALS),
        lambda item: "hard" in item.get("status", {}),
        timeout=30,
        what="quota",
    )
    yield
    ops.cluster.kubectl("delete", "resourcequota", "none", "--namespace", TRIALS)


@contextmanager
def not_running(ops: Release) -> Iterator[None]:
    ops.cluster.kubectl("scale", f"deployment/{DEPLOYMENT}", "--replicas=0", "--namespace", NAMESPACE)
    wait_until(ops.pods, lambda pods: pods == [], timeout=60, what="end of the operator")
    yield
    ops.cluster.kubectl("scale", f"deployment/{DEPLOYMENT}", "--replicas=1", "--namespace", NAMESPACE)
    ops.ready()


@contextmanager
def image_missing(ops: Release) -> Iterator[None]:
    # By helm: it owns the field, and a change beside it would be a conflict later.
    ops.install(ops.values(image={"repository": "seatrial.local/nothing", "tag": "1"}), wait=False)
    wait_until(
        lambda: ops.cluster.kubectl("get", "pods", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/component=operator"),
        lambda text: "ImagePull" in text and "Running" not in text,
        timeout=90,
        what="failed pull",
    )
    yield
    ops.install(ops.values())
    ops.ready()


@contextmanager
def settings_missing(ops: Release) -> Iterator[None]:
    saved = ops.cluster.get("configmap", "seatrial-client", "--namespace", NAMESPACE)
    ops.cluster.kubectl("delete", "configmap", "seatrial-client", "--namespace", NAMESPACE)
    yield
    del saved["metadata"]["resourceVersion"], saved["metadata"]["uid"]
    ops.cluster.apply(saved)


@contextmanager
def credentials_missing(ops: Release) -> Iterator[None]:
    ops.cluster.kubectl("delete", "secret", "s3-credentials", "--namespace", NAMESPACE)
    yield
    ops.namespaces()


FAULTS: dict[str, tuple[Callable[[Release], AbstractContextManager[None]], str, str]] = {
    "pod security": (too_strict, "namespace", "pod-security.kubernetes.io/enforce=baseline --overwrite"),
    "quota": (no_room, "namespace", "leaves no room for a Pod (0 of 0): raise pods"),
    "operator away": (not_running, "operator", "is not ready"),
    "operator's image": (image_missing, "operator", "ImagePull"),
    "client settings": (settings_missing, "client settings", "install the chart"),
    "credentials": (credentials_missing, "S3 settings", "does not exist"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_cluster_is_found(ops: Release, fault: str) -> None:
    plant, step, said = FAULTS[fault]
    with plant(ops):
        seen = examined(ops)
    assert (seen.code, said in seen.faults.get(step, "")) == (3, True), seen
    assert examined(ops, "--network") == Seen(0, {})
    assert ops.cluster.items("pods", "--namespace", TRIALS, "--selector=seatrial.dev/network") == []
