"""A small Kubernetes API over HTTP: our three kinds, ConfigMaps, Secrets and Pods, with watches, and a stand-in for the operator.

Why a server and not a patched client: the code under test keeps its real connection, timeouts and error paths.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from seatrial.api.evaljob import EvalJob
from seatrial.api.meta import Resource
from seatrial.api.names import ANNOTATION_AGAIN
from seatrial.api.task import Task
from seatrial.api.taskset import Taskset
from tests.serving import end, serve

Raw = dict[str, Any]
MODELS: Mapping[str, type[Resource]] = {"tasks": Task, "tasksets": Taskset, "evaljobs": EvalJob}


class FakeKube:
    """``objects[(plural, namespace, name)]``; ``react`` plays the operator: it gets each written object and may change its status."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Raw] = {}
        self.requests: list[tuple[str, str]] = []
        self.react: Callable[[str, Raw], None] = publish_at_once
        self.faults: list[tuple[int, Raw]] = []
        """Answers to the next requests instead of the real ones."""
        self._version = 0
        self._events: list[tuple[int, str, str, Raw]] = []
        self._changed = threading.Condition()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                fake._handle(self)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        serve(self._server)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        end(self._server)

    def kubeconfig(self, namespace: str) -> Raw:
        """What a kubeconfig file for this server holds."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody", "namespace": namespace}}],
            "current-context": "fake",
        }

    def writes(self) -> list[tuple[str, str]]:
        """All requests that could change something."""
        return [request for request in self.requests if request[0] != "GET"]

    def put(self, plural: str, body: Raw) -> Raw:
        """Store an object as the operator or another user would; watchers see it."""
        with self._changed:
            return self._store(plural, copy.deepcopy(body))

    def get(self, plural: str, name: str, namespace: str = "evals") -> Raw:
        return copy.deepcopy(self.objects[plural, namespace, name])

    def remove(self, plural: str, name: str, namespace: str = "evals") -> None:
        with self._changed:
            self._delete(plural, namespace, name)

    # --- private ---------------------------------------------------------------------------------------------------------------------

    def _store(self, plural: str, body: Raw) -> Raw:
        metadata = body["metadata"]
        key = (plural, metadata["namespace"], metadata["name"])
        before = self.objects.get(key)
        if before is not None and _without_notes(before) == _without_notes(body):
            return before
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault("uid", hashlib.sha256("/".join(key).encode()).hexdigest()[:32])
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if before is None or before.get("spec") != body.get("spec"):
            metadata["generation"] = metadata.get("generation", 0) + 1
        self.objects[key] = body
        self._events.append((self._version, plural, "MODIFIED" if before else "ADDED", copy.deepcopy(body)))
        self._changed.notify_all()
        return body

    def _delete(self, plural: str, namespace: str, name: str) -> Raw:
        gone = self.objects.pop((plural, namespace, name))
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, plural, "DELETED", gone))
        self._changed.notify_all()
        return gone

    def _written(self, plural: str, body: Raw) -> Raw:
        if plural in MODELS:
            fault = _invalid(plural, body)
            if fault is not None:
                raise _Answer(422, fault)
        generation = body["metadata"].get("generation", 0)
        before = self.objects.get((plural, body["metadata"]["namespace"], body["metadata"]["name"]))
        asked = before is not None and _request(before) != _request(body)
        stored = self._store(plural, body)
        if asked or stored["metadata"].get("generation") != generation:
            changed = copy.deepcopy(stored)
            self.react(plural, changed)
            self._store(plural, changed)
        return self.objects[plural, body["metadata"]["namespace"], body["metadata"]["name"]]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        data = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        self.requests.append((handler.command, url.path))
        try:
            if self.faults:
                raise _Answer(*self.faults.pop(0))
            if query.get("watch") == "true":
                self._watch(handler, url.path, query)
                return
            answer = self._answer(handler.command, url.path, query, json.loads(data) if data else None)
            _send(handler, 200, answer)
        except _Answer as answer:
            _send(handler, answer.code, answer.body)
        except BrokenPipeError:
            return

    def _answer(self, method: str, path: str, query: Mapping[str, str], body: Raw | None) -> Raw:
        if path == "/version":
            return {"gitVersion": "v0.0.0-fake"}
        if path == "/apis/seatrial.dev/v1alpha1":
            return {"resources": [{"name": plural} for plural in MODELS]}
        plural, namespace, name = _place(path)
        with self._changed:
            if method == "POST":
                assert body is not None
                return self._create(plural, namespace, body, dry_run="dryRun" in query)
            if name is None:
                return self._list(plural, namespace, query)
            current = self.objects.get((plural, namespace or "", name))
            if method == "PATCH" and "force" in query and body is not None:
                return copy.deepcopy(self._written(plural, _applied(current, body)))
            if current is None:
                raise _Answer(404, _status("NotFound", f'{plural} "{name}" not found', name=name))
            if method == "PATCH" and body is not None:
                return copy.deepcopy(self._written(plural, _merged(copy.deepcopy(current), body)))
            return copy.deepcopy(self._delete(plural, namespace or "", name) if method == "DELETE" else current)

    def _create(self, plural: str, namespace: str | None, body: Raw, *, dry_run: bool) -> Raw:
        metadata = body["metadata"]
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{self._version:05}"
        if (plural, namespace, metadata["name"]) in self.objects:
            raise _Answer(409, _status("AlreadyExists", f'{plural} "{metadata["name"]}" already exists', name=metadata["name"]))
        return body if dry_run else copy.deepcopy(self._written(plural, body))

    def _list(self, plural: str, namespace: str | None, query: Mapping[str, str]) -> Raw:
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        labels = dict(pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair)
        items = [
            copy.deepcopy(item)
            for (kind, space, key), item in sorted(self.objects.items())
            if kind == plural
            and namespace in (None, space)
            and name in ("", key)
            and labels.items() <= item["metadata"].get("labels", {}).items()
        ]
        start, limit = int(query.get("continue", "0")), int(query.get("limit", "1000000"))
        page = {"metadata": {"resourceVersion": str(self._version)}, "items": items[start : start + limit]}
        if start + limit < len(items):
            page["metadata"]["continue"] = str(start + limit)  # type: ignore[index]
        return page

    def _watch(self, handler: BaseHTTPRequestHandler, path: str, query: Mapping[str, str]) -> None:
        plural, namespace, _ = _place(path)
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        seen, end = int(query["resourceVersion"]), time.monotonic() + float(query["timeoutSeconds"])
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while (left := end - time.monotonic()) > 0:
            with self._changed:
                fresh = [event for event in self._events if event[0] > seen]
                if not fresh:
                    self._changed.wait(min(left, 0.2))
                    continue
            for version, kind, type, item in fresh:
                seen = version
                metadata = item["metadata"]
                if kind == plural and namespace in (None, metadata["namespace"]) and name in ("", metadata["name"]):
                    line = json.dumps({"type": type, "object": item}).encode() + b"\n"
                    handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")


class _Answer(Exception):
    def __init__(self, code: int, body: Raw) -> None:
        self.code, self.body = code, body


def _without_notes(body: Raw) -> Raw:
    """The object without annotations that ask nobody for anything."""
    return {**body, "metadata": {**body["metadata"], "annotations": _request(body)}}


def _request(body: Raw) -> Any:
    """What asks the operator to look again."""
    return body["metadata"].get("annotations", {}).get(ANNOTATION_AGAIN)


def publish_at_once(plural: str, item: Raw) -> None:
    """The operator on a good day: every task is verified, every taskset pinned, jobs stay as they are."""
    generation = item["metadata"]["generation"]
    digest = hashlib.sha256(json.dumps(item["spec"], sort_keys=True).encode()).hexdigest()
    before = item.get("status", {})
    revision = before.get("revision", 0) + (before.get("digest") != digest)
    kinds = {"tasks": ("Verified", "ArchiveVerified"), "tasksets": ("Pinned", "MembersPinned")}
    if plural in kinds:
        kind, reason = kinds[plural]
        item["status"] = {
            "observedGeneration": generation,
            "revision": revision,
            "digest": digest,
            "tags": {"latest": revision, **dict.fromkeys(item["spec"].get("tags", []), revision)},
            "conditions": [{"type": kind, "status": "True", "reason": reason, "message": "", "observedGeneration": generation}],
        }
    if plural == "tasks":
        item["status"]["nativeTaskId"] = item["spec"].get("nativeTaskId")
    if plural == "tasksets":
        item["status"]["members"] = len(item["spec"].get("tasks", []))


def _send(handler: BaseHTTPRequestHandler, code: int, body: Raw) -> None:
    data = json.dumps(body).encode()
    handler.send_response(code)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _place(path: str) -> tuple[str, str | None, str | None]:
    """Plural, namespace and name of a path of the API."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = parts[1] if parts[0] == "namespaces" else None
    rest = parts[2:] if namespace else parts
    return rest[0], namespace, rest[1] if len(rest) > 1 else None


def _applied(current: Raw | None, body: Raw) -> Raw:
    """Server-side apply by the only manager: the spec is ours as a whole, the rest stays."""
    if current is None:
        return copy.deepcopy(body)
    annotations = {**current["metadata"].get("annotations", {}), **body["metadata"].get("annotations", {})}
    return {**copy.deepcopy(current), "spec": copy.deepcopy(body["spec"]), "metadata": {**current["metadata"], "annotations": annotations}}


def _merged(current: Raw, patch: Raw) -> Raw:
    for name, value in patch.items():
        current[name] = _merged(current.get(name, {}), value) if isinstance(value, dict) else value
    return current


def _invalid(plural: str, body: Raw) -> Raw | None:
    problems = MODELS[plural].problems({name: value for name, value in body.items() if name != "status"})
    if not problems:
        return None
    causes = [{"field": problem.path, "message": problem.message} for problem in problems]
    details = {"kind": MODELS[plural].__name__, "name": body["metadata"]["name"], "causes": causes}
    return {"kind": "Status", "reason": "Invalid", "code": 422, "message": "is invalid", "details": details}


def _status(reason: str, message: str, *, name: str) -> Raw:
    return {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "details": {"name": name}}
