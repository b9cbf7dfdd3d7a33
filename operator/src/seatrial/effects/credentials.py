"""Credentials that change while the process runs: files of mounted Secrets, and a web identity.

Why providers and functions: whoever sends a request asks for credentials with each one, so that a rotated key is used without a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import ParseError

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider, WebIdentityProvider
from minio.error import MinioException

from seatrial.errors import Unavailable

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
_READS: Final = 5


Headers = Callable[[], Mapping[str, str]]
"""Headers of one request. Raises Unavailable: they cannot be read, or are none."""


def bearer_of(file: str) -> Headers:
    """The token in ``file`` as it is then; no header without a file."""
    return lambda: {"Authorization": f"Bearer {_read(file)}"} if file else {}


def headers_of(file: str) -> Headers:
    """The NAME=VALUE,… in ``file`` as they are then; none without a file."""

    def read() -> Mapping[str, str]:
        items = [item.strip() for item in _read(file).split(",") if item.strip()] if file else []
        found = dict(item.split("=", 1) for item in items if "=" in item)
        if len(found) < len(items):
            raise Unavailable(f"{file} does not hold NAME=VALUE,…")  # the values are secrets
        return found

    return read


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{file} cannot be read: {type(error).__name__}") from error


class FileCredentials(Provider):
    """The files ``accessKey`` and ``secretKey`` of a folder, read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, int], ...] = ()
        self._credentials: Credentials | None = None

    def retrieve(self) -> Credentials:
        """The newest pair.

        Raises:
            Unavailable: a file is missing or empty.
        """
        with self._lock:
            try:
                for _ in range(_READS):
                    state = self._state()
                    if self._credentials is not None and state == self._seen:
                        return self._credentials
                    access, secret = ((self._folder / name).read_text().strip() for name in (ACCESS_KEY, SECRET_KEY))
                    # The kubelet replaces both files at once; a read between them would pair an old key with a new one.
                    if self._state() == state and access and secret:
                        self._seen, self._credentials = state, Credentials(access, secret)
                        return self._credentials
            except OSError as error:
                raise Unavailable(f"the object store's credentials cannot be read: {error}") from error
        raise Unavailable(f"the object store's credentials in {self._folder} are empty: the Secret needs {ACCESS_KEY} and {SECRET_KEY}")

    def _state(self) -> tuple[tuple[int, int], ...]:
        found = ((self._folder / name).stat() for name in (ACCESS_KEY, SECRET_KEY))
        return tuple((item.st_mtime_ns, item.st_ino) for item in found)


class WebIdentity(Provider):
    """Credentials for a while, which a token service gives for the token of our ServiceAccount."""

    def __init__(self, token_file: Path, *, role_arn: str, sts_endpoint: str, http: urllib3.PoolManager) -> None:
        self._lock = threading.Lock()
        self._inner = WebIdentityProvider(
            jwt_provider_func=lambda: {"access_token": token_file.read_text().strip()},
            sts_endpoint=sts_endpoint,
            role_arn=role_arn,
            role_session_name="seatrial",
            http_client=http,
        )

    def retrieve(self) -> Credentials:
        """Those that are valid now.

        Raises:
            Unavailable: the token service gives none.
        """
        with self._lock:
            try:
                return self._inner.retrieve()
            except (MinioException, OSError, ParseError, ValueError, urllib3.exceptions.HTTPError) as error:
                raise Unavailable(f"no credentials for the web identity: {str(error)[:300]}") from error
