"""The Kubernetes API as the CLI and the SDK use it: plain JSON in and out, timeouts everywhere, errors of our own.

Why raw requests through the client's connection and not its typed classes: decoding into models costs more than the request, and
custom objects have no model there. Kubeconfig, context and namespace mean what they mean to kubectl.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import urllib3

from seatrial.api.names import GROUP, PLURALS, VERSION
from seatrial.errors import AlreadyExists, Conflict, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

Raw = dict[str, Any]

FIELD_MANAGER: Final = "seatrial"
PAGE: Final = 500
CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 30
# The server ends a watch by itself after this time, so that a dead connection is noticed soon and waiters look at the clock.
WATCH_SECONDS: Final = 20
ATTEMPTS: Final = 4

_SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class ClusterSettings:
    """Which cluster; every None means what kubectl would take."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


class Event(NamedTuple):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Raw


class Cluster:
    """One API server, one default namespace. May be shared between threads.

    Every method raises ``Unavailable`` when the server does not answer and ``Forbidden`` when it refuses us.
    """

    def __init__(self, api: Any, *, namespace: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self._sleep = sleep
        self.namespace = namespace
        self.server: str = api.configuration.host

    @classmethod
    def connect(cls, settings: ClusterSettings = ClusterSettings()) -> Cluster:
        """Read the kubeconfig; outside of it, inside a Pod, use its service account. No request is made.

        Raises:
            Unavailable: there is no cluster to talk to.
        """
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        configuration = client.Configuration()
        path = settings.kubeconfig or os.environ.get("KUBECONFIG") or None
        try:
            config.load_kube_config(config_file=path, context=settings.context, client_configuration=configuration)  # type: ignore[no-untyped-call]
            namespace = settings.namespace or _context_namespace(config, path, settings.context)
        except (ConfigException, OSError) as error:
            if settings.kubeconfig or settings.context or "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise Unavailable(f"no usable kubeconfig: {error}. Give --kubeconfig or set KUBECONFIG") from error
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            namespace = settings.namespace or _SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
        configuration.retries = False
        configuration.connection_pool_maxsize = 32
        return cls(client.ApiClient(configuration), namespace=namespace)

    def at(self, namespace: str) -> Cluster:
        """The same connection with another default namespace."""
        return Cluster(self._api, namespace=namespace, sleep=self._sleep)

    # --- our kinds ---------------------------------------------------------------------------------------------------------------

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> Raw:
        """One object.

        Raises:
            NotFound: it does not exist.
        """
        return self.request("GET", self._path(kind, namespace, name))

    def list(self, kind: str, *, namespace: str | None = None, selector: str = "", all_namespaces: bool = False) -> Iterator[Raw]:
        """All objects of a kind, read in pages."""
        yield from self._pages(self._path(kind, namespace, all_namespaces=all_namespaces), selector)

    def create(self, kind: str, body: Raw, *, namespace: str | None = None, dry_run: bool = False) -> Raw:
        """Make a new object; unknown fields are refused.

        Raises:
            AlreadyExists, InvalidSpec.
        """
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self.request("POST", self._path(kind, namespace), query=query, body=body)

    def apply(self, kind: str, body: Raw, *, namespace: str | None = None) -> Raw:
        """Server-side apply: create the object or set our fields of it.

        Raises:
            InvalidSpec: the schema refuses it.
        """
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        path = self._path(kind, namespace, body["metadata"]["name"])
        return self.request("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")

    def merge(self, kind: str, name: str, patch: Raw, *, namespace: str | None = None) -> Raw:
        """Change some fields of an object."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        path = self._path(kind, namespace, name)
        return self.request("PATCH", path, query=query, body=patch, content_type="application/merge-patch+json")

    def delete(self, kind: str, name: str, *, namespace: str | None = None) -> None:
        """Remove an object.

        Raises:
            NotFound: it does not exist.
        """
        self.request("DELETE", self._path(kind, namespace, name))

    def follow(
        self, kind: str, *, name: str | None = None, namespace: str | None = None, tick_seconds: float = WATCH_SECONDS
    ) -> Iterator[Event | None]:
        """The present objects as ADDED, then their changes, without end; None at least every ``tick_seconds`` (whole, 1 to 20).

        A lost connection is repaired by listing again, so an object may come twice, and one that vanished meanwhile comes as DELETED.
        """
        path, fields = self._path(kind, namespace), {"fieldSelector": f"metadata.name={name}"} if name else {}
        seconds = max(1, min(WATCH_SECONDS, int(tick_seconds)))
        known: dict[str, Raw] = {}
        failures = 0
        while True:
            try:
                listed = self.request("GET", path, query=fields)
                present = {item["metadata"]["uid"]: item for item in listed.get("items", [])}
                for uid in [uid for uid in known if uid not in present]:
                    yield Event("DELETED", known.pop(uid))
                for uid, item in present.items():
                    known[uid] = item
                    yield Event("ADDED", item)
                version = listed["metadata"]["resourceVersion"]
                while True:
                    for event in self._watch(path, {**fields, "resourceVersion": version, "timeoutSeconds": str(seconds)}):
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type == "BOOKMARK":
                            continue
                        if event.type == "DELETED":
                            known.pop(event.object["metadata"]["uid"], None)
                        else:
                            known[event.object["metadata"]["uid"]] = event.object
                        failures = 0
                        yield event
                    failures = 0
                    yield None
            except Conflict:
                # 410: the version is too old by now. List again.
                continue
            except Unavailable:
                failures += 1
                if failures > ATTEMPTS:
                    raise
                self._sleep(min(8.0, 0.5 * 2**failures))
                yield None

    # --- other kinds -------------------------------------------------------------------------------------------------------------

    def core(self, resource: str, name: str | None = None, *, namespace: str | None = None, query: Mapping[str, str] | None = None) -> Raw:
        """An object, or a list, of the core group, such as ``core("pods", "p")``.

        Raises:
            NotFound: it does not exist.
        """
        path = f"/api/v1/namespaces/{quote(namespace or self.namespace)}/{resource}" + (f"/{quote(name)}" if name else "")
        return self.request("GET", path, query=query)

    def pod_log(self, pod: str, *, container: str, namespace: str | None = None, follow: bool = False) -> Iterator[bytes]:
        """The log of a container, as pieces.

        Raises:
            NotFound: no such Pod.
        """
        path = f"/api/v1/namespaces/{quote(namespace or self.namespace)}/pods/{quote(pod)}/log"
        query = {"container": container, **({"follow": "true"} if follow else {})}
        response = self._send("GET", path, query=query, read_seconds=3600 if follow else READ_SECONDS)
        try:
            yield from response.stream(65536)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"the log of Pod {pod} broke off: {_short(error)}. Repeat the command") from error
        finally:
            response.release_conn()

    def version(self) -> str:
        """The server's version, such as ``v1.35.4``."""
        return str(self.request("GET", "/version").get("gitVersion", ""))

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content_type: str = "application/json",
    ) -> Raw:
        """One request with retries where nothing can have happened twice: reads, applies, merges, deletes, and refused connections."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                response = self._send(method, path, query=query, body=body, content_type=content_type)
                try:
                    answer: Raw = json.loads(response.data)
                    return answer
                finally:
                    response.release_conn()
            except Unavailable as error:
                # A create whose answer was lost may have happened: the caller decides, by asking again.
                if attempt == ATTEMPTS or method == "POST":
                    raise
                self._sleep(max(error.retry_after or 0, 0.25 * 2**attempt))
            except (ValueError, urllib3.exceptions.HTTPError) as error:
                raise Unavailable(f"the API server {self.server} sent something unreadable: {_short(error)}") from error
        raise AssertionError("ATTEMPTS is at least 1")

    # --- private -----------------------------------------------------------------------------------------------------------------

    def _path(self, kind: str, namespace: str | None, name: str | None = None, *, all_namespaces: bool = False) -> str:
        scope = "" if all_namespaces else f"/namespaces/{quote(namespace or self.namespace)}"
        return f"/apis/{GROUP}/{VERSION}{scope}/{PLURALS[kind]}" + (f"/{quote(name)}" if name else "")

    def _pages(self, path: str, selector: str) -> Iterator[Raw]:
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = self.request("GET", path, query=query)
            yield from page.get("items", [])
            if not (following := page.get("metadata", {}).get("continue")):
                return
            query = {**query, "continue": following}

    def _watch(self, path: str, query: Mapping[str, str]) -> Iterator[Event]:
        query = {**query, "watch": "true", "allowWatchBookmarks": "true"}
        response = self._send("GET", path, query=query, read_seconds=WATCH_SECONDS + 10)
        buffer = b""
        try:
            for piece in response.stream(65536):
                buffer += piece
                *lines, buffer = buffer.split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(self.server, int(event["object"].get("code", 500)), event["object"], path)
                    yield Event(event["type"], event["object"])
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise Unavailable(f"the watch on {self.server} broke off: {_short(error)}") from error
        finally:
            response.close()
            response.release_conn()

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content_type: str = "application/json",
        read_seconds: float = READ_SECONDS,
    ) -> Any:
        from kubernetes.client.exceptions import ApiException

        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": "seatrial"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            answer = self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=(CONNECT_SECONDS, read_seconds)
            )
        except (urllib3.exceptions.HTTPError, ApiException) as error:
            raise Unavailable(f"cannot reach the cluster at {self.server}: {_short(error)}. Check kubeconfig and network") from error
        response = answer.response
        if 200 <= response.status < 300:
            return response
        try:
            status = json.loads(response.data)
        except ValueError:
            status = {}
        response.release_conn()
        raise _error(self.server, response.status, status, path, retry_after=response.headers.get("retry-after"))


def _error(server: str, code: int, status: Raw, path: str, *, retry_after: str | None = None) -> SeatrialError:
    """The error of ours for a Kubernetes ``Status``."""
    said = str(status.get("message") or f"HTTP {code} for {path}")
    match code:
        case 401:
            return Forbidden(f"{server} does not accept the credentials of the kubeconfig: log in again ({said})")
        case 403:
            return Forbidden(f"{said}. Ask for the right, or use another context")
        case 404 if status.get("kind") != "Status" or not status.get("details", {}).get("name"):
            return NotFound(f"{server} does not know {path}: are seatrial's CRDs installed? (helm install, seatrial doctor)")
        case 404:
            return NotFound(f"{said}: seatrial get lists what there is, -n names another namespace")
        case 409 if status.get("reason") == "AlreadyExists":
            return AlreadyExists(said)
        case 409 | 410:
            return Conflict(said)
        case 400 | 413 | 422:
            details = status.get("details", {})
            causes = "; ".join(f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in details.get("causes", [])[:5])
            name = f"{details.get('kind', 'object')} {details.get('name', '')}".strip()
            return InvalidSpec(name, causes or said)
        case 429 | 500 | 502 | 503 | 504:
            pause = min(float(retry_after), 10.0) if retry_after and retry_after.isdigit() else None
            return Unavailable(f"the API server {server} cannot answer now: {said}", retry_after=pause)
        case _:
            return SeatrialError(f"the API server {server} answered {code}: {said}")


def _context_namespace(config: Any, path: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(config_file=path)
    chosen = next((item for item in contexts if item["name"] == context), active) if context else active
    return str(chosen["context"].get("namespace") or "default")


def _short(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or (error.args[-1] if error.args else error)
    lines = str(reason).splitlines() or [type(error).__name__]
    return lines[0].rpartition("): ")[2][:200]
