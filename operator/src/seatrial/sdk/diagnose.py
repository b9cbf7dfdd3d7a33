"""Whether an installation works, step by step; each step says what to do when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from seatrial.api.names import GROUP, PLURALS
from seatrial.effects.store import Put, Store, StoreSettings
from seatrial.errors import NotFound, SeatrialError
from seatrial.sdk.cluster import Cluster
from seatrial.sdk.storage import StoreOptions, operator_namespace, read_endpoints, store_settings

OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=seatrial"
PROBE_KEY: Final = ".seatrial-ping/doctor"


class Finding(NamedTuple):
    """One step."""

    step: str
    good: bool
    detail: str


def diagnose(connect: Callable[[], Cluster], options: StoreOptions) -> Iterator[Finding]:
    """All steps in order; a step that needs an earlier one that failed is left out."""
    found = _attempt("cluster", lambda: _cluster(connect))
    yield found.finding
    if found.value is None:
        return
    cluster: Cluster = found.value
    for step, call in (
        ("custom resources", lambda: _resources(cluster)),
        ("operator", lambda: _operator(cluster)),
        ("client settings", lambda: _client_settings(cluster)),
    ):
        yield _attempt(step, call).finding
    settings = _attempt("S3 settings", lambda: _settings(cluster, options))
    yield settings.finding
    if settings.value is not None:
        yield _attempt("object store", lambda: _store(settings.value)).finding


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


def _operator(cluster: Cluster) -> tuple[str, None]:
    found = _deployments(cluster)
    namespace = operator_namespace()
    if not found:
        raise NotFound(f"no operator in namespace {namespace}: helm install it, or name its namespace in SEATRIAL_OPERATOR_NAMESPACE")
    ready = sum(item.get("status", {}).get("readyReplicas", 0) for item in found)
    if ready == 0:
        raise NotFound(f"the operator in namespace {namespace} is not ready: kubectl get pods -n {namespace}")
    return f"{ready} ready in namespace {namespace}", None


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


def _deployments(cluster: Cluster) -> list[dict[str, Any]]:
    path = f"/apis/apps/v1/namespaces/{quote(operator_namespace())}/deployments"
    found: list[dict[str, Any]] = cluster.request("GET", path, query={"labelSelector": OPERATOR_SELECTOR}).get("items", [])
    return found
