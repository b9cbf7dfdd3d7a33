"""What is asked of an OCI registry: the digest behind a tag, and what the image says about itself. Nothing is pulled or pushed here.

Source: OCI distribution specification 1.1, and the token scheme of Docker's registries.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from seatrial.errors import Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

TIMEOUT_SECONDS: Final = 15.0
DOCUMENT_BYTES: Final = 4 * 1024 * 1024
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB: Final = "registry-1.docker.io"


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
    rest, _, digest = text.partition("@")
    head, slash, _ = rest.partition("/")
    has_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    host, path = (head, rest[len(head) + 1 :]) if has_host else (_DOCKER_HUB, rest)
    if host == "docker.io":
        host = _DOCKER_HUB
    repository, colon, tag = path.rpartition(":")
    if not colon:
        repository, tag = path, ""
    if host == _DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not _REPOSITORY.fullmatch(repository) or (digest and not _DIGEST.fullmatch(digest)):
        raise InvalidSpec("image", f"{text[:200]!r} is not an image reference: use HOST/NAME:TAG or HOST/NAME@sha256:…")
    return ImageRef(host, repository, digest or tag or "latest")


class Registry:
    """A client for any registry. Safe to use from several threads."""

    def __init__(self, *, insecure: tuple[str, ...] = (), auths: Mapping[str, Any] | None = None, ca: str | None = None) -> None:
        """
        Args:
            insecure: hosts (with port) that speak plain HTTP.
            auths: as ``auths`` of Docker's config.json.
            ca: file of further certificates.
        """
        self._insecure, self._auths = frozenset(insecure), dict(auths or {})
        self._context = ssl.create_default_context(cafile=ca)

    def digest(self, text: str) -> str | None:
        """Digest of the manifest (or index) behind a reference; None if the registry does not have it.

        Raises:
            Unavailable: no answer, or one that says "later". Forbidden: the credentials are refused.
        """
        ref = parse_ref(text)
        try:
            _, headers = self._request("HEAD", ref, f"manifests/{ref.reference}", accept=_MANIFESTS)
        except NotFound:
            return None
        digest = headers.get("Docker-Content-Digest", "")
        if not _DIGEST.fullmatch(digest):
            raise Unavailable(f"registry {ref.host} gives no digest for {text}", retry_after=30.0)
        return digest

    def facts(self, text: str, *, platform: str = "linux/amd64") -> ImageFacts:
        """What the image's configuration says.

        Raises:
            NotFound: the image, or the platform in it. Unavailable, Forbidden: the registry.
        """
        ref = parse_ref(text)
        manifest = self._json(ref, f"manifests/{ref.reference}", accept=_MANIFESTS)
        if "manifests" in manifest:
            system, _, machine = platform.partition("/")
            fitting = [
                item["digest"]
                for item in manifest["manifests"]
                if (item.get("platform") or {}).get("os") == system and (item.get("platform") or {}).get("architecture") == machine
            ]
            if not fitting:
                raise NotFound(f"{text} has no variant for {platform}")
            manifest = self._json(ref, f"manifests/{fitting[0]}", accept=_MANIFESTS)
        config = self._json(ref, f"blobs/{manifest['config']['digest']}", accept=()).get("config") or {}
        return ImageFacts(
            user=str(config.get("User") or "")[:256],
            workdir=str(config.get("WorkingDir") or "")[:1024],
            entrypoint=tuple(str(part)[:4096] for part in config.get("Entrypoint") or ())[:64],
            command=tuple(str(part)[:4096] for part in config.get("Cmd") or ())[:64],
            env=tuple(str(part)[:1024] for part in config.get("Env") or ())[:64],
        )

    def _json(self, ref: ImageRef, path: str, *, accept: tuple[str, ...]) -> dict[str, Any]:
        data, _ = self._request("GET", ref, path, accept=accept)
        try:
            found = json.loads(data)
        except ValueError as error:
            raise Unavailable(f"registry {ref.host} answers {path} with something else than JSON", retry_after=30.0) from error
        if not isinstance(found, dict):
            raise Unavailable(f"registry {ref.host} answers {path} with something else than an object", retry_after=30.0)
        return found

    def _request(self, method: str, ref: ImageRef, path: str, *, accept: tuple[str, ...]) -> tuple[bytes, Mapping[str, str]]:
        scheme = "http" if ref.host in self._insecure else "https"
        url = f"{scheme}://{ref.host}/v2/{ref.repository}/{path}"
        headers = {"Accept": ", ".join(accept)} if accept else {}
        try:
            return self._open(method, url, headers | self._basic(ref.host))
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge.lower().startswith("bearer "):
                raise _translated(error, ref) from error
            try:
                token = self._token(ref, dict(_CHALLENGE.findall(challenge)))
                return self._open(method, url, headers | {"Authorization": f"Bearer {token}"})
            except urllib.error.HTTPError as second:
                raise _translated(second, ref) from second
            except (OSError, ValueError) as second:
                raise Unavailable(f"registry {ref.host} does not answer: {second}", retry_after=10.0) from second
        except (OSError, ValueError) as error:
            raise Unavailable(f"registry {ref.host} does not answer: {error}", retry_after=10.0) from error

    def _token(self, ref: ImageRef, challenge: Mapping[str, str]) -> str:
        realm = challenge.get("realm", "")
        if not realm.startswith("https://") and not (ref.host in self._insecure and realm.startswith("http://")):
            raise ValueError(f"its token service {realm[:100]!r} is no https URL")
        query = {"scope": challenge.get("scope") or f"repository:{ref.repository}:pull"}
        if "service" in challenge:
            query["service"] = challenge["service"]
        # Credentials go to the token service that the registry itself names, as every client of such registries does.
        data, _ = self._open("GET", f"{realm}?{urllib.parse.urlencode(query)}", self._basic(ref.host))
        answer = json.loads(data)
        return str(answer.get("token") or answer.get("access_token") or "")

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

    def _open(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "seatrial", **headers})
        context = self._context if url.startswith("https://") else None
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
            return answer.read(DOCUMENT_BYTES), answer.headers


def docker_auths(path: Path) -> dict[str, Any]:
    """``auths`` of a config.json of Docker; empty where there is none. Credential helpers are not asked."""
    try:
        found = json.loads(path.read_text("utf-8")).get("auths")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _translated(error: urllib.error.HTTPError, ref: ImageRef) -> SeatrialError:
    if error.code == 404:
        return NotFound(f"registry {ref.host} does not have {ref.repository}:{ref.reference}")
    if error.code in (401, 403):
        return Forbidden(f"registry {ref.host} refuses access to {ref.repository} ({error.code}): log in, or give a pull secret")
    return Unavailable(f"registry {ref.host} answers {error.code} for {ref.repository}", retry_after=10.0)
