"""Whether an installation works, step by step; each step says what to do when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from seatrial.api.names import EVALJOB, GROUP, LABEL_NETWORK, PLURALS, TASK, TASKSET
from seatrial.effects.store import Put, Store, StoreSettings
from seatrial.errors import Forbidden, NotFound, SeatrialError
from seatrial.sdk import netprobe
from seatrial.sdk.cluster import Cluster
from seatrial.sdk.storage import CONFIG_MAP, StoreOptions, operator_namespace, read_endpoints, store_settings

OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=seatrial,app.kubernetes.io/component=operator"
SILENT_SECONDS: Final = 60.0
"""A Lease that was not renewed for so long has no holder; the operator renews every two seconds."""
SECURITY_LABEL: Final = "pod-security.kubernetes.io/enforce"
PROBE_KEY: Final = ".seatrial-ping/doctor"
AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"


class Finding(NamedTuple):
    """One step."""

    step: str
    good: bool
    detail: str


def diagnose(connect: Callable[[], Cluster], options: StoreOptions, *, network: bool = False) -> Iterator[Finding]:
    """All steps in order; a step that needs an earlier one that failed is left out. ``network``: with a Pod that tries it."""
    found = _attempt("cluster", lambda: _cluster(connect))
    yield found.finding
    if found.value is None:
        return
    cluster: Cluster = found.value
    for step, call in (
        ("custom resources", lambda: _resources(cluster)),
        ("namespace", lambda: _namespace(cluster)),
        ("your rights", lambda: _rights(cluster)),
        ("operator", lambda: _operator(cluster)),
        ("operator's rights", lambda: _operator_rights(cluster)),
        ("client settings", lambda: _client_settings(cluster)),
    ):
        yield _attempt(step, call).finding
    settings = _attempt("S3 settings", lambda: _settings(cluster, options))
    yield settings.finding
    if settings.value is not None:
        yield _attempt("object store", lambda: _store(settings.value)).finding
    if network:
        yield _attempt("network", lambda: _network(cluster)).finding


def operator_images(cluster: Cluster) -> tuple[str, ...]:
    """Images of the operator's Deployment."""
    return tuple(
        container["image"] for item in _deployments(cluster) for container in item["spec"]["template"]["spec"].get("containers", [])
    )


class _Attempt(NamedTuple):
    finding: Finding
    value: Any


def _attempt(step: str, call: Callable[[], tuple[str, Any]]) -> _Attempt:
    try:
        detail, value = call()
    except SeatrialError as error:
        return _Attempt(Finding(step, False, str(error)), None)
    return _Attempt(Finding(step, True, detail), value)


def _cluster(connect: Callable[[], Cluster]) -> tuple[str, Cluster]:
    cluster = connect()
    return f"{cluster.server}, {cluster.version()}, namespace {cluster.namespace}", cluster


def _resources(cluster: Cluster) -> tuple[str, None]:
    listed = cluster.request("GET", f"/apis/{GROUP}/v1alpha1")
    names = {item["name"] for item in listed.get("resources", [])}
    missing = sorted(set(PLURALS.values()) - names)
    if missing:
        raise NotFound(f"the API server does not know {', '.join(missing)}: install or upgrade the chart")
    return ", ".join(sorted(PLURALS.values())), None


def _namespace(cluster: Cluster) -> tuple[str, None]:
    """It exists, lets trials in, and has room for a Pod."""
    name = cluster.namespace
    try:
        labels = cluster.request("GET", f"/api/v1/namespaces/{quote(name)}")["metadata"].get("labels") or {}
    except NotFound as error:
        raise NotFound(f"namespace {name} does not exist: kubectl create namespace {name}") from error
    except Forbidden:
        labels = {}
    if labels.get(SECURITY_LABEL) == "restricted":
        raise SeatrialError(f"Pod Security refuses trials in {name}: kubectl label namespace {name} {SECURITY_LABEL}=baseline --overwrite")
    for quota in _readable(cluster, f"/api/v1/namespaces/{quote(name)}/resourcequotas"):
        hard, used = (quota.get("status", {}).get(part, {}) for part in ("hard", "used"))
        for resource in ("pods", "count/pods"):
            if resource in hard and int(hard[resource]) <= int(used.get(resource, 0)):
                what = f"ResourceQuota {name}/{quota['metadata']['name']}"
                raise SeatrialError(f"{what} leaves no room for a Pod ({used.get(resource, 0)} of {hard[resource]}): raise {resource}")
    policies = _readable(cluster, f"/apis/networking.k8s.io/v1/namespaces/{quote(name)}/networkpolicies")
    chosen = {policy["spec"].get("podSelector", {}).get("matchLabels", {}).get(LABEL_NETWORK) for policy in policies} - {None}
    guarded = (
        "network policies for trials" if chosen >= {"public", "none", "verify"} else "no network policies for trials (networkPolicies)"
    )
    return f"{name}, {guarded}", None


def _rights(cluster: Cluster) -> tuple[str, None]:
    """What ``publish`` and ``run`` need."""
    for plural in (PLURALS[kind] for kind in (TASK, TASKSET, EVALJOB)):
        wanted = {"namespace": cluster.namespace, "group": GROUP, "resource": plural, "verb": "create"}
        answer = cluster.request("POST", f"{AUTHORIZATION}/selfsubjectaccessreviews", body=_review("SelfSubjectAccessReview", wanted))
        if not answer.get("status", {}).get("allowed"):
            raise Forbidden(f"you may not create {plural} in {cluster.namespace}: ask for the role edit there")
    return f"tasks, tasksets and evaljobs in {cluster.namespace}", None


def _operator(cluster: Cluster) -> tuple[str, None]:
    found = _deployments(cluster)
    namespace = operator_namespace()
    if not found:
        raise NotFound(f"no operator in namespace {namespace}: helm install it, or name its namespace in SEATRIAL_OPERATOR_NAMESPACE")
    ready = sum(item.get("status", {}).get("readyReplicas", 0) for item in found)
    if ready == 0:
        raise NotFound(f"the operator in namespace {namespace} is not ready{_waiting(cluster, namespace)}: kubectl get pods -n {namespace}")
    for item in found:
        _led(cluster, namespace, item["metadata"]["name"])
    return f"{ready} ready in namespace {namespace}", None


def _waiting(cluster: Cluster, namespace: str) -> str:
    """Why its containers wait, as far as it can be read."""
    pods = _readable(cluster, f"/api/v1/namespaces/{quote(namespace)}/pods", selector=OPERATOR_SELECTOR)
    states = [status.get("state", {}).get("waiting", {}) for pod in pods for status in pod.get("status", {}).get("containerStatuses", ())]
    reasons = sorted({state["reason"] for state in states if "reason" in state})
    return f" ({', '.join(reasons)})" if reasons else ""


def _led(cluster: Cluster, namespace: str, lease: str) -> None:
    try:
        spec = cluster.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/{quote(lease)}")["spec"]
    except Forbidden:
        return
    except NotFound as error:
        raise NotFound(f"no replica of the operator leads: Lease {namespace}/{lease} does not exist; see the operator's log") from error
    renewed = datetime.fromisoformat(spec["renewTime"]) if spec.get("renewTime") else None
    if not spec.get("holderIdentity") or renewed is None or (datetime.now(UTC) - renewed).total_seconds() > SILENT_SECONDS:
        raise NotFound(f"no replica of the operator leads: Lease {namespace}/{lease} is not renewed; see the operator's log")


def _operator_rights(cluster: Cluster) -> tuple[str, None]:
    """Whether it can work in the namespace at all; asked only by those who may ask for others."""
    found = _deployments(cluster)
    if not found:
        raise NotFound("there is no operator to ask for")
    for item in found:
        account = item["spec"]["template"]["spec"].get("serviceAccountName", "default")
        user = f"system:serviceaccount:{operator_namespace()}:{account}"
        for group, resource, subresource, verb in (("", "pods", "", "create"), (GROUP, PLURALS[EVALJOB], "status", "patch")):
            wanted = {"namespace": cluster.namespace, "group": group, "resource": resource, "subresource": subresource, "verb": verb}
            try:
                body = _review("SubjectAccessReview", wanted, user=user)
                answer = cluster.request("POST", f"{AUTHORIZATION}/subjectaccessreviews", body=body)
            except Forbidden:
                return "not asked: you may not ask for others", None
            if not answer.get("status", {}).get("allowed"):
                raise Forbidden(
                    f"the operator may not {verb} {resource} in {cluster.namespace}: name it in the chart's namespaces, and upgrade"
                )
    return f"creates Pods and writes status in {cluster.namespace}", None


def _review(kind: str, wanted: dict[str, str], **more: str) -> dict[str, Any]:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": wanted, **more}}


def _readable(cluster: Cluster, path: str, *, selector: str = "") -> list[dict[str, Any]]:
    """Items of a LIST, or none where it may not be read."""
    try:
        found: list[dict[str, Any]] = cluster.request("GET", path, query={"labelSelector": selector} if selector else {}).get("items", [])
    except (Forbidden, NotFound):
        return []
    return found


def _client_settings(cluster: Cluster) -> tuple[str, None]:
    found = read_endpoints(cluster)
    inside = f"Pods use {found.internal}" if found.internal else "no endpoint for Pods"
    return f"{inside}, people {found.external or 'none'}, bucket {found.bucket or 'none'}", None


def _settings(cluster: Cluster, options: StoreOptions) -> tuple[str, StoreSettings]:
    settings = store_settings(cluster, options)
    return f"{settings.endpoint}, bucket {settings.bucket}, region {settings.region}", settings


def _store(settings: StoreSettings) -> tuple[str, None]:
    store = Store(settings, attempts=2)
    store.ping()
    # Objects are never overwritten: that rests on the server's conditional writes, so they are tried.
    store.delete(PROBE_KEY)
    try:
        if store.put_new(PROBE_KEY, b"1") is not Put.CREATED:
            raise SeatrialError(f"the object store {settings.endpoint} has an object that was just deleted: is it consistent?")
        try:
            store.put_new(PROBE_KEY, b"2")
        except SeatrialError:
            return "readable, writable, refuses to overwrite", None
        raise SeatrialError(f"the object store {settings.endpoint} ignores If-None-Match: use a server with conditional writes")
    finally:
        store.delete(PROBE_KEY)


def _network(cluster: Cluster) -> tuple[str, None]:
    found = read_endpoints(cluster)
    if not found.runner_image:
        raise NotFound(f"ConfigMap {operator_namespace()}/{CONFIG_MAP} names no runnerImage: upgrade the chart")
    reached = netprobe.probe(cluster, image=found.runner_image, endpoint=found.internal)
    return netprobe.verdict(cluster.namespace, found.internal, reached), None


def _deployments(cluster: Cluster) -> list[dict[str, Any]]:
    path = f"/apis/apps/v1/namespaces/{quote(operator_namespace())}/deployments"
    found: list[dict[str, Any]] = cluster.request("GET", path, query={"labelSelector": OPERATOR_SELECTOR}).get("items", [])
    return found
