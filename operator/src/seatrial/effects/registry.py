"""What is asked of an OCI registry: the digest behind a tag, and what the image says about itself. Nothing is pulled or pushed here.

Source: OCI distribution specification 1.1, the grammar of references of CNCF Distribution, and the token scheme of Docker's registries.

Image names come from tasks, which are strangers' work, and so do the registries behind them. Whoever names a host in a task has it asked:
therefore ``Reach`` says which addresses are asked on behalf of a task, manifests are never looked for behind a redirect, and credentials
go to the registry that they were configured for, to the token service that it names over TLS, and nowhere else.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from seatrial.effects.fetch import Address, Answer, fetch
from seatrial.errors import Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

TIMEOUT_SECONDS: Final = 15.0
DOCUMENT_BYTES: Final = 4 * 1024 * 1024
REDIRECTS: Final = 3
"""Registries keep blobs in object stores of their own."""
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NAME_CHARS: Final = 255
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB: Final = "registry-1.docker.io"
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_THIS_NETWORK: Final = ipaddress.IPv4Network("0.0.0.0/8")


class Throttled(Unavailable):
    """429: ask again after ``retry_after`` seconds."""


class BadAnswer(Unavailable):
    """The registry's answer is none of the protocol, for this repository at least."""


class ImageRef(NamedTuple):
    """``host/repository``, and a tag or a digest."""

    host: str
    repository: str
    reference: str

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"


class ImageFacts(NamedTuple):
    """What an image's configuration says; lists are empty and texts "" where it says nothing."""

    user: str = ""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """``NAME=VALUE``."""


def parse_ref(text: str) -> ImageRef:
    """Parts of an image reference, with Docker's defaults.

    Raises:
        InvalidSpec: it is no reference.
    """
    rest, at, digest = text.partition("@")
    head, slash, _ = rest.partition("/")
    has_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    host, path = (head, rest[len(head) + 1 :]) if has_host else (_DOCKER_HUB, rest)
    repository, colon, tag = path.partition(":")
    if host in ("docker.io", "index.docker.io"):
        host = _DOCKER_HUB
    if host == _DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    good = _HOST.fullmatch(host) and _REPOSITORY.fullmatch(repository) and len(f"{host}/{repository}") <= _NAME_CHARS
    if not good or (colon and not _TAG.fullmatch(tag)) or (at and not _DIGEST.fullmatch(digest)):
        raise InvalidSpec("image", f"{text[:200]!r} is not an image reference: use HOST/NAME:TAG or HOST/NAME@sha256:…")
    return ImageRef(host.lower(), repository, digest or tag or "latest")


class Reach(NamedTuple):
    """Which registries are asked on behalf of a task.

    A registry that the installation names itself, as a mirror, for its builds or with credentials, may be anywhere. Others are asked only
    where a task could go: not on this host, not at link-local addresses with their metadata services, and not in the cluster's networks.
    """

    trusted: frozenset[str] = frozenset()
    """Hosts as references name them, with their ports."""
    blocked: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """The cluster's networks: what no trial Pod may reach."""

    def allows(self, address: Address) -> bool:
        """Whether a registry that only a task names may be asked at ``address``."""
        address = _embedded(address)
        if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast or address.is_reserved:
            return False
        return not any(address in network for network in (_THIS_NETWORK, *self.blocked) if network.version == address.version)


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def registry_hosts(places: Iterable[str]) -> frozenset[str]:
    """Hosts of registries that are named with or without scheme and path, as references name them."""
    hosts = (place.partition("://")[2] or place for place in places)
    named = {host.partition("/")[0].lower() for host in hosts} - {""}
    return frozenset(_DOCKER_HUB if host in ("docker.io", "index.docker.io") else host for host in named)


class Registry:
    """A client for any registry. Safe to use from several threads."""

    def __init__(
        self,
        *,
        insecure: tuple[str, ...] = (),
        auths: Mapping[str, Any] | None = None,
        ca: str | None = None,
        reach: Reach | None = None,
    ) -> None:
        """
        Args:
            insecure: hosts (with port) that speak plain HTTP.
            auths: as ``auths`` of Docker's config.json.
            ca: file of further certificates.
            reach: None where no task's words decide what is asked: on a user's machine, for the registry that the user names.
        """
        self._insecure, self._auths = frozenset(insecure), dict(auths or {})
        self._tls = ssl.create_default_context(cafile=ca)
        self._reach = reach

    def digest(self, text: str, *, seconds: float = TIMEOUT_SECONDS) -> str | None:
        """Digest of the manifest (or index) behind a reference; None if the registry does not have it. Ends within ``seconds``.

        Raises:
            Forbidden: the credentials are refused, or the registry must not be asked. Throttled, BadAnswer: as they say.
            Unavailable: no answer, or one that says "later".
        """
        ref = parse_ref(text)
        try:
            answer = self._manifest("HEAD", ref, ref.reference, end=time.monotonic() + seconds)
        except NotFound:
            return None
        digest = answer.headers.get("docker-content-digest", "")
        if not _DIGEST.fullmatch(digest):
            raise BadAnswer(f"registry {ref.host} gives no digest for {text}", retry_after=30.0)
        return digest

    def facts(self, text: str, *, platform: str = "linux/amd64") -> ImageFacts:
        """What the image's configuration says.

        Raises:
            NotFound: the image, or the platform in it. Others: as ``digest``.
        """
        ref = parse_ref(text)
        manifest = self._document(ref, ref.reference)
        if "manifests" in manifest:
            system, _, machine = platform.partition("/")
            entries = [item for item in _list(manifest["manifests"]) if isinstance(item, dict)]
            platforms = [(item.get("digest"), item.get("platform")) for item in entries]
            fitting = [
                digest
                for digest, place in platforms
                if isinstance(place, dict) and (place.get("os"), place.get("architecture")) == (system, machine)
            ]
            if not fitting:
                raise NotFound(f"{text} has no variant for {platform}")
            manifest = self._document(ref, self._checked(ref, fitting[0]))
        described = manifest.get("config")
        blob = self._checked(ref, described.get("digest") if isinstance(described, dict) else None)
        answer = self._blob(ref, blob, end=time.monotonic() + TIMEOUT_SECONDS)
        config = _object(ref, answer.body).get("config")
        config = config if isinstance(config, dict) else {}
        return ImageFacts(
            user=str(config.get("User") or "")[:256],
            workdir=str(config.get("WorkingDir") or "")[:1024],
            entrypoint=tuple(str(part)[:4096] for part in _list(config.get("Entrypoint")))[:64],
            command=tuple(str(part)[:4096] for part in _list(config.get("Cmd")))[:64],
            env=tuple(str(part)[:1024] for part in _list(config.get("Env")))[:64],
        )

    def _document(self, ref: ImageRef, reference: str) -> dict[str, Any]:
        return _object(ref, self._manifest("GET", ref, reference, end=time.monotonic() + TIMEOUT_SECONDS).body)

    def _checked(self, ref: ImageRef, digest: object) -> str:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise BadAnswer(f"registry {ref.host} names something in {ref.repository} by {str(digest)[:100]!r}, which is no digest")
        return digest

    def _manifest(self, method: str, ref: ImageRef, reference: str, *, end: float) -> Answer:
        answer = self._ask(method, ref, f"manifests/{reference}", accept=_MANIFESTS, end=end)
        if answer.status != 200:
            raise _error(answer, ref)
        return answer

    def _blob(self, ref: ImageRef, digest: str, *, end: float) -> Answer:
        """The content, also where the registry keeps it elsewhere; nobody but the registry gets its credentials."""
        url = self._url(ref, f"blobs/{digest}")
        answer = self._ask("GET", ref, f"blobs/{digest}", accept=(), end=end)
        for _ in range(REDIRECTS):
            if answer.status not in (301, 302, 303, 307, 308):
                break
            url = urllib.parse.urljoin(url, answer.headers.get("location", ""))
            if not url.startswith("https://") and ref.host not in self._insecure:
                raise BadAnswer(f"registry {ref.host} sends us to {url[:100]!r}, which is no https URL")
            answer = self._fetch("GET", ref, url, {}, end=end)
        if answer.status != 200:
            raise _error(answer, ref)
        return answer

    def _ask(self, method: str, ref: ImageRef, path: str, *, accept: tuple[str, ...], end: float) -> Answer:
        """With credentials where there are any, and with a token where the registry wants one."""
        url, headers = self._url(ref, path), {"Accept": ", ".join(accept)} if accept else {}
        answer = self._fetch(method, ref, url, headers | self._basic(ref.host), end=end)
        challenge = answer.headers.get("www-authenticate", "")
        if answer.status != 401 or not challenge.lower().startswith("bearer "):
            return answer
        token = self._token(ref, dict(_CHALLENGE.findall(challenge)), end=end)
        return self._fetch(method, ref, url, headers | {"Authorization": f"Bearer {token}"}, end=end)

    def _token(self, ref: ImageRef, challenge: Mapping[str, str], *, end: float) -> str:
        """From the token service that the registry names. It gets the registry's credentials as every client gives them to it: over TLS,
        or where it is the registry itself."""
        realm = challenge.get("realm", "").partition("#")[0]
        if not realm.startswith("https://") and not (ref.host in self._insecure and realm.startswith("http://")):
            raise BadAnswer(f"registry {ref.host} names a token service {realm[:100]!r} that is no https URL")
        query = {"scope": challenge.get("scope") or f"repository:{ref.repository}:pull"}
        if "service" in challenge:
            query["service"] = challenge["service"]
        is_own = realm.partition("://")[2].partition("/")[0].lower() == ref.host
        credentials = self._basic(ref.host) if realm.startswith("https://") or is_own else {}
        url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        answer = self._fetch("GET", ref, url, credentials, end=end)
        if answer.status != 200:
            raise _error(answer, ref)
        found = _object(ref, answer.body)
        return str(found.get("token") or found.get("access_token") or "")

    def _fetch(self, method: str, ref: ImageRef, url: str, headers: Mapping[str, str], *, end: float) -> Answer:
        """One request for ``ref``, of its registry or of whomever that sends us to: what holds for the one holds for the others."""
        allows = self._reach.allows if self._reach is not None and ref.host not in self._reach.trusted else None
        try:
            return fetch(method, url, headers=headers, end=end, tls=self._tls, most_bytes=DOCUMENT_BYTES, allows=allows)
        except Forbidden as error:
            text = f"registry {ref.host} is not asked: {error}; if it is yours, name it in site.imageMirrors, as its own mirror"
            raise Forbidden(text) from error
        except OSError as error:
            raise Unavailable(f"registry {ref.host} does not answer: {error}", retry_after=10.0) from error
        except ValueError as error:
            raise BadAnswer(f"registry {ref.host} cannot be asked: {error}", retry_after=30.0) from error

    def _url(self, ref: ImageRef, path: str) -> str:
        return f"{'http' if ref.host in self._insecure else 'https'}://{ref.host}/v2/{ref.repository}/{path}"

    def _basic(self, host: str) -> dict[str, str]:
        names = (host, f"https://{host}", "https://index.docker.io/v1/") if host == _DOCKER_HUB else (host, f"https://{host}")
        for name in names:
            entry = self._auths.get(name) or {}
            if auth := entry.get("auth"):
                return {"Authorization": f"Basic {auth}"}
            if "username" in entry:
                pair = f"{entry['username']}:{entry.get('password', '')}".encode()
                return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {}


def docker_auths(path: Path) -> dict[str, Any]:
    """``auths`` of a config.json of Docker; empty where there is none. Credential helpers are not asked."""
    try:
        found = json.loads(path.read_text("utf-8")).get("auths")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(ref: ImageRef, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"registry {ref.host} answers for {ref.repository} with something else than JSON", retry_after=30.0) from error
    if not isinstance(found, dict):
        raise BadAnswer(f"registry {ref.host} answers for {ref.repository} with something else than an object", retry_after=30.0)
    return found


def _error(answer: Answer, ref: ImageRef) -> SeatrialError:
    match answer.status:
        case 404:
            return NotFound(f"registry {ref.host} does not have {ref.repository}:{ref.reference}")
        case 401 | 403:
            text = f"registry {ref.host} refuses access to {ref.repository} ({answer.status}): log in, or give a pull secret"
            return Forbidden(text)
        case 429:
            wait = answer.headers.get("retry-after", "")
            seconds = float(wait) if wait.isascii() and wait.isdigit() else 60.0
            return Throttled(f"registry {ref.host} answers 429 for {ref.repository}: too many requests", retry_after=seconds)
        case status if status >= 500:
            return Unavailable(f"registry {ref.host} answers {status} for {ref.repository}", retry_after=10.0)
        case status:
            return BadAnswer(f"registry {ref.host} answers {status} for {ref.repository}", retry_after=30.0)
