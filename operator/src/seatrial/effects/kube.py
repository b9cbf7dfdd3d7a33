"""The Kubernetes API: raw JSON over aiohttp, with HTTP answers turned into errors of ours.

Why not a client library: typed models cost five times the CPU per request and block the loop on large lists. One connector is for
requests, one for watches, one for the Lease, so that none waits for another. Source of limits: ``spec/operator.md`` section 4.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import aiohttp
import yaml

from seatrial import __version__
from seatrial.errors import AlreadyExists, Conflict, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS: Final = 60.0
"""The kubelet rotates the token file; read it again this often."""
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
"""Where lists are merged by their keys; for Kubernetes' own kinds only."""
USER_AGENT: Final = f"seatrial-operator/{__version__}"
# A watch line holds one object; our own are bounded by etcd's 1.5 MiB.
LINE_BYTES: Final = 4 * 1024 * 1024
RETRIES_429: Final = 5

Channel = Literal["request", "watch", "lease"]
Observer = Callable[[str, str, str, float], None]
"""Called per request with verb, resource, code and seconds."""


class ApiUnavailable(Unavailable):
    """The API server did not answer, or could not for the moment; the object store has nothing to do with it."""


class Expired(SeatrialError):
    """410: the version is no longer in the history. List again."""


class QuotaExceeded(SeatrialError):
    """A ResourceQuota has no room; try again later."""


class NamespaceGone(SeatrialError):
    """The namespace is being deleted."""


class MissingRight(Forbidden):
    """RBAC does not allow the operator to do this; a person must act."""


class Rejected(SeatrialError):
    """The server refuses the object itself: Pod Security, an admission policy, a bad field. Never retried unchanged."""


@dataclass(frozen=True)
class Material:
    """What TLS is made of, as PEM."""

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    insecure: bool = False


@dataclass(frozen=True)
class Access:
    """How to reach the API server."""

    server: str
    """URL without a slash at the end."""
    tls: ssl.SSLContext | None = None
    material: Material = Material()
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    namespace: str = "default"


def in_cluster_access(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access | None:
    """Access by the Pod's service account; None outside a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (folder / "token").exists():
        return None
    material = Material(authority=(folder / "ca.crt").read_bytes())
    address = f"[{host}]" if ":" in host else host
    namespace = (folder / "namespace").read_text().strip()
    return Access(f"https://{address}:{port}", tls=_tls(material), material=material, token_file=folder / "token", namespace=namespace)


def kubeconfig_access(path: Path, context: str | None = None) -> Access:
    """Access by a kubeconfig with a token or client certificates; plugins are not run.

    Raises:
        InvalidSpec: the file lacks what is needed.
    """
    try:
        body = yaml.safe_load(path.read_text())
        name = context or body["current-context"]
        entry = _named(body["contexts"], name)["context"]
        cluster = _named(body["clusters"], entry["cluster"])["cluster"]
        user = _named(body["users"], entry["user"])["user"]
        server = cluster["server"].rstrip("/")
    except (OSError, KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
        raise InvalidSpec(str(path), "is not a kubeconfig with the wanted context") from error
    material = Material(
        authority=_pem(cluster, "certificate-authority", base=path.parent),
        certificate=_pem(user, "client-certificate", base=path.parent),
        key=_pem(user, "client-key", base=path.parent),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
    )
    token_file = user.get("tokenFile")
    return Access(
        server=server,
        tls=_tls(material) if server.startswith("https:") else None,
        material=material,
        token=user.get("token"),
        token_file=path.parent / token_file if token_file else None,
        namespace=entry.get("namespace", "default"),
    )


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _tls(material: Material) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=material.authority.decode() if material.authority else None)
    if material.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if material.certificate and material.key:
        # ssl reads certificates from files only; the file is gone before this returns.
        with tempfile.NamedTemporaryFile() as file:
            file.write(material.certificate + b"\n" + material.key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(section: Mapping[str, Any], name: str, *, base: Path) -> bytes | None:
    if data := section.get(f"{name}-data"):
        return base64.b64decode(str(data))
    if file := section.get(name):
        return (base / str(file)).read_bytes()
    return None


class TokenBucket:
    """At most ``rate`` takes per second, ``burst`` at once; waiters are served in order."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), time.monotonic()
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        async with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            if self._tokens < 1.0:
                await asyncio.sleep((1.0 - self._tokens) / self._rate)
                self._tokens, self._at = 1.0, time.monotonic()
            self._tokens -= 1.0


class Kube:
    """A connection to one API server. Use as an async context manager."""

    def __init__(
        self, access: Access, *, write_rate: float = 20.0, write_burst: int = 50, concurrency: int = 32, observer: Observer | None = None
    ) -> None:
        self._access, self._observer = access, observer
        self._bucket, self._slots = TokenBucket(write_rate, write_burst), asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._sessions: dict[Channel, aiohttp.ClientSession] = {}
        self._token, self._token_until = access.token, 0.0
        self.denied_since: float | None = None
        """Since when every answer has been 401 or 403, on the monotonic clock; None after any other answer."""
        self.fence: Callable[[], bool] | None = None
        """Asked right before each write; False stops it. A paused leader has requests under way that must not be sent when it wakes."""

    async def __aenter__(self) -> Self:
        total = aiohttp.ClientTimeout(total=30, sock_connect=5)
        watch = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=75)
        for channel, limit, timeout in (("request", self._concurrency, total), ("watch", 0, watch), ("lease", 2, total)):
            connector = aiohttp.TCPConnector(limit=limit, keepalive_timeout=60)
            self._sessions[channel] = aiohttp.ClientSession(  # type: ignore[index]
                connector=connector, timeout=timeout, headers={"User-Agent": USER_AGENT, "Accept": "application/json"}
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            await session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None, *, channel: Channel = "request") -> dict[str, Any]:
        """GET of an object or a page.

        Raises: as ``request``.
        """
        return await self.request("GET", path, params=params, channel=channel)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        channel: Channel = "request",
    ) -> dict[str, Any]:
        """One request and its JSON answer. A 429 is waited out; everything else is the caller's decision.

        Raises:
            NotFound, AlreadyExists, Conflict, Expired, QuotaExceeded, NamespaceGone, MissingRight, Forbidden, Rejected: as they say.
            Unavailable: no answer, or 5xx; the outcome is unknown and the same request may be repeated.
        """
        data = json.dumps(body, separators=(",", ":")).encode() if body is not None else None
        for attempt in range(RETRIES_429 + 1):
            if channel == "request":
                async with self._slots:
                    if method != "GET":
                        await self._bucket.take()
                        if self.fence is not None and not self.fence():
                            raise ApiUnavailable(f"{method} {path}: the Lease was not renewed in time, nothing is written")
                    status, answer, retry_after = await self._send(
                        method, path, params, data=data, content_type=content_type, channel=channel
                    )
            else:
                status, answer, retry_after = await self._send(method, path, params, data=data, content_type=content_type, channel=channel)
            if status != 429 or attempt == RETRIES_429:
                break
            await asyncio.sleep(retry_after * random.uniform(1.0, 1.5))
        if status < 300:
            return _object(answer)
        raise _error(method, path, status, answer, retry_after)

    @asynccontextmanager
    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of one watch request, until the server ends the stream.

        Raises:
            Expired: 410 on the request. Unavailable: reset, silence for 75 s, an answer that is no event. Others as ``request``.
        """
        started = time.monotonic()
        try:
            async with self._sessions["watch"].get(
                self._access.server + path, params=dict(params), headers=await self._headers(None), ssl=self._tls()
            ) as response:
                self._observe("WATCH", path, str(response.status), time.monotonic() - started, status=response.status)
                if response.status != 200:
                    raise _error("WATCH", path, response.status, await response.read(), _retry_after(response.headers))
                yield _events(response.content)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiUnavailable(f"watch of {path} broke: {type(error).__name__}") from error

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, *, data: bytes | None, content_type: str, channel: Channel
    ) -> tuple[int, bytes, float]:
        started = time.monotonic()
        try:
            async with self._sessions[channel].request(
                method,
                self._access.server + path,
                params=dict(params or {}),
                data=data,
                headers=await self._headers(content_type if data is not None else None),
                ssl=self._tls(),
            ) as response:
                answer = await response.read()
                self._observe(method, path, str(response.status), time.monotonic() - started, status=response.status)
                return response.status, answer, _retry_after(response.headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observe(method, path, "none", time.monotonic() - started, status=0)
            raise ApiUnavailable(f"{method} {path}: the API server did not answer ({type(error).__name__})") from error

    def _observe(self, method: str, path: str, code: str, seconds: float, *, status: int) -> None:
        if status in (401, 403):
            self.denied_since = self.denied_since or time.monotonic()
        elif status:
            self.denied_since = None
        if status == 401:
            self._token_until = 0.0
        if self._observer is not None:
            self._observer(method, resource_of(path), code, seconds)

    async def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Content-Type": content_type} if content_type else {}
        file = self._access.token_file
        if file is not None and time.monotonic() >= self._token_until:
            self._token = (await asyncio.to_thread(file.read_text)).strip()
            self._token_until = time.monotonic() + TOKEN_SECONDS
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _tls(self) -> ssl.SSLContext | bool:
        return self._access.tls if self._access.tls is not None else True


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """JSON objects of a watch, one a line; a chunk may end anywhere."""
    tail = b""
    async for chunk in stream.iter_any():
        *lines, tail = (tail + chunk).split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)
        if len(tail) > LINE_BYTES:
            raise ValueError("a watch event is too long")


def resource_of(path: str) -> str:
    """``pods``, ``evaljobs/status``, …: for metrics, without names."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0] if rest else "other"


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ApiUnavailable("the API server answered with something that is no JSON") from error
    if not isinstance(value, dict):
        raise ApiUnavailable("the API server answered with something that is no object")
    return value


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(60.0, float(text)) if text.isascii() and text.isdigit() else 1.0


def _error(method: str, path: str, status: int, data: bytes, retry_after: float) -> SeatrialError:
    """The error that an answer means. Source: ``spec/operator.md`` section 4.2."""
    try:
        body = json.loads(data)
        message, reason = str(body.get("message", "")), str(body.get("reason", ""))
        causes = {str(item.get("reason", "")) for item in ((body.get("details") or {}).get("causes") or ())}
    except (ValueError, AttributeError):
        message, reason, causes = data[:200].decode(errors="replace"), "", set()
    text = message or f"{method} {path}: {status}"
    match status:
        case 404:
            return NamespaceGone(text) if message.startswith("namespaces ") and method == "POST" else NotFound(text)
        case 409 if reason == "AlreadyExists":
            return AlreadyExists(text)
        case 409:
            return Conflict(text)
        case 410:
            return Expired(text)
        case 403 if "exceeded quota" in message:
            return QuotaExceeded(text)
        case 403 if "NamespaceTerminating" in causes or "being terminated" in message:
            return NamespaceGone(text)
        case 403 if "cannot " in message and " resource " in message:
            return MissingRight(text)
        case 401:
            return MissingRight(text or "the API server does not know us")
        case 403 if "error looking up service account" in message:
            # Admission's cache is behind: the account of a new namespace exists a moment later.
            return ApiUnavailable(text, retry_after=1.0)
        case 403 | 400 | 422 | 413:
            return Rejected(text)
        case 504 if "Too large resource version" in message:
            return ApiUnavailable(text, retry_after=1.0)
        case _:
            return ApiUnavailable(f"{method} {path}: {status} {text}", retry_after=retry_after)


# --- paths -----------------------------------------------------------------------------------------------------------------------------


def core_path(resource: str, *, namespace: str | None = None, name: str | None = None) -> str:
    """``/api/v1/…``; without a namespace, all of them."""
    return _path("/api/v1", resource, namespace, name)


def group_path(group: str, version: str, resource: str, *, namespace: str | None = None, name: str | None = None) -> str:
    """``/apis/<group>/<version>/…``."""
    return _path(f"/apis/{group}/{version}", resource, namespace, name)


def _path(base: str, resource: str, namespace: str | None, name: str | None) -> str:
    path = f"{base}/namespaces/{namespace}/{resource}" if namespace else f"{base}/{resource}"
    return f"{path}/{name}" if name else path
