"""A small Kubernetes API of our own, for faults that a real one does not produce on demand.

Versions, watches with replay and bookmarks, pages, label selectors, conflicts, preconditions, owner references and the status
subresource work as in the real one; schemas, defaults and admission do not exist here (the cluster tests have those).
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from aiohttp import web

from seatrial.api.names import API_VERSION, GROUP, PLURALS, VERSION
from seatrial.effects.kube import Access

Raw = dict[str, Any]


class Kind(NamedTuple):
    """``/apis/seatrial.dev/v1alpha1`` + ``evaljobs``."""

    base: str
    plural: str


class Answer(NamedTuple):
    """An error as the API server writes it."""

    status: int
    reason: str = ""
    message: str = ""
    headers: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    method: str
    path: str
    body: Raw | None


Fault = Callable[[Request], Answer | None]

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _resource(kind: str, plural: str) -> Raw:
    return {"name": plural, "singularName": kind.lower(), "namespaced": kind != "Namespace", "kind": kind, "verbs": _VERBS}


DISCOVERY: Mapping[str, Raw] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [_resource("Namespace", "namespaces"), _resource("Event", "events"), _resource("Pod", "pods")]},
    "/apis": {
        "groups": [
            {
                "name": GROUP,
                "versions": [{"groupVersion": API_VERSION, "version": VERSION}],
                "preferredVersion": {"groupVersion": API_VERSION, "version": VERSION},
            }
        ]
    },
    f"/apis/{API_VERSION}": {"resources": [_resource(kind, plural) for kind, plural in PLURALS.items()]},
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.4"},
}
"""What Kopf asks before it watches."""


class FakeApi:
    """State of the cluster: ``objects[kind][(namespace, name)]``."""

    def __init__(self) -> None:
        self.objects: dict[Kind, dict[tuple[str, str], Raw]] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        """Asked in order for each request; the first answer is sent instead of the real one."""
        self.lost_answers: list[Fault] = []
        """As faults, but the request is carried out and only its answer is lost."""
        self.page_size: int | None = None
        self.listeners: list[Callable[[str, Kind, Raw], None]] = []
        self._log: list[tuple[int, str, Kind, Raw]] = []
        self._oldest = 0
        self._version = itertools.count(100)
        self._uid = itertools.count(1)
        self._current = 99
        self._news = asyncio.Condition()
        self._streams: set[asyncio.Task[Any]] = set()
        self._cut = asyncio.Event()
        self.url = ""

    # --- for tests -------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeApi]:
        """Listen on loopback."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.cut_watches()
            await runner.cleanup()

    @property
    def access(self) -> Access:
        return Access(server=self.url, namespace="system")

    def all(self, plural: str) -> dict[tuple[str, str], Raw]:
        """Objects of a plural, whatever the group."""
        return {key: body for kind, found in self.objects.items() if kind.plural == plural for key, body in found.items()}

    def get(self, plural: str, name: str, namespace: str = "evals") -> Raw:
        return self.all(plural)[namespace, name]

    def put(self, base: str, plural: str, body: Raw) -> Raw:
        """Create, or replace with a new version; the generation grows when the spec changes."""
        kind, key = Kind(base, plural), _key(body)
        known = self.objects.get(kind, {}).get(key)
        body = copy.deepcopy(body)
        meta = body["metadata"]
        if known is None:
            meta.setdefault("uid", f"00000000-0000-0000-0000-{next(self._uid):012d}")
            meta.setdefault("generation", 1)
            meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        else:
            meta |= {field: known["metadata"][field] for field in ("uid", "creationTimestamp")}
            changed = known.get("spec") != body.get("spec")
            meta["generation"] = known["metadata"].get("generation", 1) + int(changed)
            body.setdefault("status", known.get("status", {}))
        self._store("ADDED" if known is None else "MODIFIED", kind, body)
        return body

    def change(self, plural: str, name: str, edit: Callable[[Raw], None], namespace: str = "evals") -> None:
        """Edit an object in place; no generation."""
        for kind, found in self.objects.items():
            if kind.plural == plural and (namespace, name) in found:
                body = copy.deepcopy(found[namespace, name])
                edit(body)
                self._store("MODIFIED", kind, body)
                return
        raise KeyError(name)

    def remove(self, plural: str, name: str, namespace: str = "evals", *, silent: bool = False) -> None:
        """Delete for good, with everything that it owns; ``silent`` leaves no event, as if history had been lost."""
        for kind, found in list(self.objects.items()):
            if kind.plural == plural and (namespace, name) in found:
                body = found.pop((namespace, name))
                if not silent:
                    self._emit("DELETED", kind, body)
                uid = body["metadata"]["uid"]
                for other, bodies in list(self.objects.items()):
                    for other_key, child in list(bodies.items()):
                        if any(owner["uid"] == uid for owner in child["metadata"].get("ownerReferences", [])):
                            self.remove(other.plural, other_key[1], other_key[0], silent=silent)

    def forget_history(self) -> None:
        """What happened so far can no longer be watched: 410 for older versions."""
        self._log.clear()
        self._oldest = self._current = next(self._version)

    @property
    def watches(self) -> int:
        """Open watch connections."""
        return len(self._streams)

    def cut_watches(self) -> None:
        """End all watch connections without a word."""
        for task in list(self._streams):
            task.cancel()

    def send_error(self, code: int, message: str = "gone") -> None:
        """An ERROR event in every open watch of Pods."""
        status = {"kind": "Status", "code": code, "message": message}
        self._log.append((self._current, "ERROR", Kind("/api/v1", "pods"), status))
        self._wake()

    def writes(self, plural: str | None = None) -> list[Request]:
        """Requests that change something."""
        return [item for item in self.requests if item.method != "GET" and (plural is None or f"/{plural}" in item.path)]

    # --- the server ------------------------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        asked = Request(request.method, request.path, json.loads(raw) if raw else None)
        self.requests.append(asked)
        for fault in self.faults:
            if (answer := fault(asked)) is not None:
                return _error(answer)
        response = await self._answer(request, asked)
        for fault in self.lost_answers:
            if fault(asked) is not None:
                assert request.transport is not None
                request.transport.close()
                break
        return response

    async def _answer(self, request: web.Request, asked: Request) -> web.StreamResponse:
        if asked.path in DISCOVERY:
            return _json(DISCOVERY[asked.path])
        kind, namespace, name, subresource = _parse(asked.path)
        match asked.method:
            case "GET" if name is None and request.query.get("watch"):
                return await self._watch(request, kind, namespace)
            case "GET" if name is None:
                return self._list(request, kind, namespace)
            case "GET":
                body = self.objects.get(kind, {}).get((namespace or "", name or ""))
                return _json(body) if body is not None else _error(Answer(404, "NotFound", f"{kind.plural} {name} not found"))
            case "POST":
                return self._create(kind, namespace or "", asked.body or {})
            case "PUT" | "PATCH":
                return self._update(asked, kind, (namespace or "", name or ""), subresource)
            case "DELETE":
                return self._delete(asked, kind, (namespace or "", name or ""))
            case _:
                return _error(Answer(405))

    def _list(self, request: web.Request, kind: Kind, namespace: str | None) -> web.Response:
        version, start = str(self._current), 0
        if token := request.query.get("continue"):
            version, start = token.split(":")[0], int(token.split(":")[1])
            if int(version) < self._oldest:
                return _error(Answer(410, "Expired", "the continue token is too old"))
        found = [body for key, body in sorted(self.objects.get(kind, {}).items()) if self._selected(request, namespace, key, body)]
        limit = self.page_size or int(request.query.get("limit", "500"))
        meta: Raw = {"resourceVersion": version}
        if start + limit < len(found):
            meta["continue"] = f"{version}:{start + limit}"
        return _json({"kind": "List", "metadata": meta, "items": found[start : start + limit]})

    async def _watch(self, request: web.Request, kind: Kind, namespace: str | None) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion") or self._current)
        if version < self._oldest:
            return _error(Answer(410, "Expired", "too old resource version"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        position = next((index for index, item in enumerate(self._log) if item[0] > version), len(self._log))
        try:
            while True:
                for _, event, other, body in self._log[position:]:
                    wanted = event == "ERROR" or self._selected(request, namespace, _key(body), body)
                    if other == kind and wanted:
                        await response.write(json.dumps({"type": event, "object": body}).encode() + b"\n")
                position = len(self._log)
                async with self._news:
                    try:
                        await asyncio.wait_for(self._news.wait_for(functools.partial(self._has_news, position)), 0.3)
                    except TimeoutError:
                        bookmark = {"kind": kind.plural, "metadata": {"resourceVersion": str(self._current)}}
                        await response.write(json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n")
                position = min(position, len(self._log))
        except (asyncio.CancelledError, ConnectionError):
            if request.transport is not None:
                request.transport.close()
            return response
        finally:
            self._streams.discard(task)

    def _has_news(self, position: int) -> bool:
        return len(self._log) != position

    def _create(self, kind: Kind, namespace: str, body: Raw) -> web.Response:
        body["metadata"]["namespace"] = namespace
        name = body["metadata"]["name"]
        if _key(body) in self.objects.get(kind, {}):
            return _error(Answer(409, "AlreadyExists", f"{kind.plural} {name!r} already exists"))
        if kind.plural == "pods":
            body.setdefault("status", {"phase": "Pending"})
        return _json(self.put(kind.base, kind.plural, body), 201)

    def _update(self, asked: Request, kind: Kind, key: tuple[str, str], subresource: str | None) -> web.Response:
        known, given = self.objects.get(kind, {}).get(key), asked.body or {}
        if known is None:
            return _error(Answer(404, "NotFound", f"{kind.plural} {key[1]} not found"))
        wanted = given.get("metadata", {})
        if any(wanted.get(field) not in (None, known["metadata"][field]) for field in ("resourceVersion", "uid")):
            return _error(Answer(409, "Conflict", "the object has been modified"))
        body = copy.deepcopy(known)
        if asked.method == "PUT":
            body = copy.deepcopy(given)
        elif subresource == "status":
            body["status"] = _merge(body.get("status", {}), given.get("status", {}))
        else:
            body = _merge(body, given)
        body["metadata"]["uid"] = known["metadata"]["uid"]
        self._store("MODIFIED", kind, body)
        return _json(body)

    def _delete(self, asked: Request, kind: Kind, key: tuple[str, str]) -> web.Response:
        known = self.objects.get(kind, {}).get(key)
        if known is None:
            return _error(Answer(404, "NotFound", f"{kind.plural} {key[1]} not found"))
        wanted = ((asked.body or {}).get("preconditions") or {}).get("uid")
        if wanted not in (None, known["metadata"]["uid"]):
            return _error(Answer(409, "Conflict", "the UID in the precondition does not match"))
        self.remove(kind.plural, key[1], key[0])
        return _json(known)

    def _selected(self, request: web.Request, namespace: str | None, key: tuple[str, str], body: Raw) -> bool:
        labels = body["metadata"].get("labels") or {}
        for part in filter(None, request.query.get("labelSelector", "").split(",")):
            name, equals, value = part.partition("=")
            if name not in labels or (equals and labels[name] != value):
                return False
        return namespace in (None, key[0])

    def _store(self, event: str, kind: Kind, body: Raw) -> None:
        self._current = next(self._version)
        body["metadata"]["resourceVersion"] = str(self._current)
        self.objects.setdefault(kind, {})[_key(body)] = body
        self._emit(event, kind, body)

    def _emit(self, event: str, kind: Kind, body: Raw) -> None:
        if event == "DELETED":
            self._current = next(self._version)
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._current)}}
        self._log.append((self._current, event, kind, copy.deepcopy(body)))
        for listener in self.listeners:
            listener(event, kind, copy.deepcopy(body))
        self._wake()

    def _wake(self) -> None:
        async def wake() -> None:
            async with self._news:
                self._news.notify_all()

        asyncio.get_running_loop().create_task(wake())


def status(code: int, reason: str = "", message: str = "", *, times: int | None = None, method: str = "", path: str = "") -> Fault:
    """A fault for requests whose method and path match, so many times."""
    left: Iterator[int] = iter(range(times)) if times is not None else itertools.count()

    def fault(asked: Request) -> Answer | None:
        if method not in ("", asked.method) or path not in asked.path:
            return None
        return Answer(code, reason, message) if next(left, None) is not None else None

    return fault


def _parse(path: str) -> tuple[Kind, str | None, str | None, str | None]:
    parts = path.strip("/").split("/")
    size = 2 if parts[0] == "api" else 3
    base, rest = "/" + "/".join(parts[:size]), parts[size:]
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    rest += [""] * (3 - len(rest))
    return Kind(base, rest[0]), namespace, rest[1] or None, rest[2] or None


def _key(body: Raw) -> tuple[str, str]:
    meta = body["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _merge(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def _json(body: Any, code: int = 200) -> web.Response:
    return web.json_response(body, status=code)


def _error(answer: Answer) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": answer.status, "reason": answer.reason, "message": answer.message}
    return web.json_response(body, status=answer.status, headers=answer.headers)
