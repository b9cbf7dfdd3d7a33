"""The object store: one small synchronous client over ``minio``, with errors of our own.

Why not ``minio`` alone: it has no conditional put (``put_object`` sends ``If-None-Match`` as user metadata and overwrites), no bounded
retries and no errors that tell a missing key from a missing bucket. Conditional puts therefore go through presigned URLs. The region is
always set: without one, each presigning asks the server.

A ``Store`` may be shared between threads, not between processes.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import enum
import hashlib
import io
import os
import random
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import certifi
import minio.time
import urllib3
from minio import Minio
from minio.credentials.providers import Provider, StaticProvider
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from seatrial.effects.credentials import FileCredentials, WebIdentity
from seatrial.effects.signature import Signer
from seatrial.errors import AlreadyExists, DiskFull, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable

Result = TypeVar("Result")

MAX_EXPIRES_SECONDS: Final = 7 * 24 * 3600
"""Limit of signature version 4."""

# Above this, asking first is cheaper than sending a body that the server then refuses.
ASK_FIRST_BYTES: Final = 1024 * 1024
# A single PUT ends at 5 GiB on S3; parts also bound what a broken connection costs. 10,000 parts are allowed: 640 GiB.
PART_BYTES: Final = 64 * 1024 * 1024
BLOCK_BYTES: Final = 1024 * 1024

# Codes by which servers say the same thing; S3, MinIO, Ceph and versitygw differ.
_BAD_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "XAdminUserNotFound", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired"}
)
_WRONG_REGION: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IncorrectRegion", "AuthorizationQueryParametersError"}
)
_FULL: Final = frozenset(
    {"XMinioStorageFull", "InsufficientStorage", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "EntityTooLargeQuota"}
)
_BUSY_CODES: Final = frozenset(
    {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"}
)
# NB: versitygw answers 404 to an unknown access key, so the status alone does not mean that the key is missing.
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion", "NoSuchUpload"})
_EXPIRED: Final = re.compile(r"expired|not yet valid", re.IGNORECASE)
_BUSY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class Put(enum.Enum):
    """Outcome of ``Store.put_new``."""

    CREATED = "created"
    SAME = "same"
    """The key holds exactly these bytes already (or a repeated request of ours had been the one that stored them)."""


class StoreMisconfigured(Unavailable):
    """The bucket does not exist or lies in another region: a person must act. Never mistaken for a missing key."""


class UploadUnverified(SeatrialError):
    """What the store gave back differs from what was sent."""


@dataclass(frozen=True)
class WebIdentitySettings:
    """A token of our ServiceAccount, and who exchanges it for credentials."""

    token_file: str
    role_arn: str
    sts_endpoint: str


@dataclass(frozen=True)
class StoreSettings:
    """Where the store is and who we are. Endpoints are URLs, ``http://host:port`` or ``https://host``."""

    endpoint: str
    bucket: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    region: str = "us-east-1"
    session_token: str | None = field(default=None, repr=False)
    presign_endpoint: str | None = None
    """The endpoint that users of presigned URLs reach, where it differs from ours: signatures cover the host."""
    path_style: bool = True
    """False puts the bucket into the host name."""
    credentials_dir: str | None = None
    """Folder with the files ``accessKey`` and ``secretKey``, read again when they change; it takes the place of the two keys above."""
    web_identity: WebIdentitySettings | None = None
    """Who we are for our own calls. Presigned URLs are still signed with the keys above: one that was signed with credentials for a while
    ends with them."""
    ca: str | None = None
    """File with the certificates to trust; None: ``SSL_CERT_FILE`` or the bundled ones."""


class Stat(NamedTuple):
    """What the store knows about a key."""

    size: int
    etag: str
    modified: datetime.datetime | None
    content_type: str | None


class Entry(NamedTuple):
    """One line of a listing."""

    key: str
    size: int
    modified: datetime.datetime | None


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes; empty at the end."""


class _Failure(Exception):
    """An answer of the server that is not a success, not yet judged."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {code}")
        self.status, self.code, self.message, self.headers = status, code, message, headers


class Store:
    """One bucket of an S3 server.

    Every method raises ``Unavailable`` when the server does not answer within the retries, ``Forbidden`` when it refuses us,
    ``StoreMisconfigured`` for a missing bucket or a wrong region, and ``DiskFull`` when it has no room.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        attempts: int = 5,
        connect_timeout_seconds: float = 5,
        read_timeout_seconds: float = 60,
        pool_size: int = 32,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings
        self._attempts, self._sleep, self._jitter = attempts, sleep, jitter
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=connect_timeout_seconds, read=read_timeout_seconds),
            maxsize=pool_size,
            # Repeating is decided in one place, _repeat: it knows which answers are worth it.
            retries=False,
            blocksize=BLOCK_BYTES,
            cert_reqs="CERT_REQUIRED",
            ca_certs=settings.ca or os.environ.get("SSL_CERT_FILE") or certifi.where(),
        )
        keys = _keys(settings)
        own = keys if settings.web_identity is None else _web_identity(settings.web_identity, self._http)
        self._client = _client(settings, settings.endpoint, self._http, own)
        self._own_signer = Signer(_bucket_url(settings, settings.endpoint, self._http), settings.region, own)
        self._signer = Signer(_bucket_url(settings, settings.presign_endpoint or settings.endpoint, self._http), settings.region, keys)

    # --- writing -----------------------------------------------------------------------------------------------------------------

    def put_new(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str = "application/octet-stream",
        read_back: bool = True,
    ) -> Put:
        """Store ``data`` under a key that must not exist; nothing is ever overwritten.

        Args:
            key: object key.
            data: the bytes, or a file that is streamed (in parts when it is longer than ``PART_BYTES``).
            content_type: stored with the object.
            read_back: read the object again and compare size and SHA-256. Without it the server checks what arrived (Content-MD5),
                except for files in parts; for callers whose bytes somebody reads and checks anyway.

        Raises:
            AlreadyExists: the key holds other bytes.
            UploadUnverified: the store gave back something else than was sent.
        """
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        digest = _sha256(data)
        if size > ASK_FIRST_BYTES and self._is_there(key):
            return self._compare(key, size, digest)
        if size > PART_BYTES and isinstance(data, Path):
            created = self._put_in_parts(key, data, size, content_type)
        else:
            created = self._put_conditionally(key, data, size, content_type, md5=None if read_back else _md5(data))
        if not created:
            return self._compare(key, size, digest)
        if read_back and self._content(key, limit=size + 1) != (size, digest):
            raise UploadUnverified(f"the store gave back other bytes than were sent to {self._name(key)}: check the store, then repeat")
        return Put.CREATED

    def put(self, key: str, data: bytes | Path, *, content_type: str = "application/octet-stream") -> None:
        """Store ``data`` under ``key``, replacing what is there."""

        def send() -> None:
            with _opened(data) as (body, size):
                self._client.put_object(self.settings.bucket, key, body, size, content_type=content_type)  # type: ignore[arg-type]

        self._repeat("put", key, send)

    def delete(self, key: str) -> None:
        """Remove ``key``; a key that does not exist is no error."""
        try:
            self._repeat("delete", key, lambda: self._client.remove_object(self.settings.bucket, key))
        except NotFound:
            return

    # --- reading -----------------------------------------------------------------------------------------------------------------

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """The object's bytes.

        Raises:
            NotFound: no such key.
            InvalidSpec: the object is longer than ``max_bytes``; nothing beyond that is read.
        """

        def fetch() -> bytes:
            with self.open(key, attempts=1) as stream:
                return _read_all(stream, max_bytes + 1)

        data = self._repeat("get", key, fetch)
        if len(data) > max_bytes:
            raise InvalidSpec(self._name(key), f"longer than the allowed {max_bytes} bytes")
        return data

    def open(self, key: str, *, attempts: int | None = None) -> ObjectStream:
        """A stream over the object, to be closed by the caller (it is a context manager).

        Raises:
            NotFound: no such key.
        """
        response = self._repeat("get", key, lambda: self._client.get_object(self.settings.bucket, key), attempts=attempts)
        return ObjectStream(response, self._name(key), self.settings.endpoint)

    def stat(self, key: str) -> Stat:
        """Size and type of an object, without its bytes.

        Raises:
            NotFound: no such key.
        """
        try:
            found = self._repeat("stat", key, lambda: self._client.stat_object(self.settings.bucket, key))
        except SeatrialError:
            # The answer to HEAD has no body: a missing bucket or a bad access key looks like a missing key. A listing tells.
            self.ping()
            raise
        return Stat(found.size or 0, found.etag or "", found.last_modified, found.content_type)

    def list(self, prefix: str) -> Iterator[Entry]:
        """All keys below ``prefix``, in the store's order; a broken listing continues behind the last key it gave."""
        after: str | None = None
        while True:
            page = self._repeat("list", prefix, lambda after=after: self._page(prefix, after))  # type: ignore[misc]
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].key

    def ping(self) -> None:
        """Ask for a listing: proves endpoint, credentials, clock, region and bucket."""
        # A listing, because HEAD answers have no body that could tell these faults apart; of a prefix that is always empty.
        self._repeat("list", "", lambda: self._page(".seatrial-ping/", None))

    # --- presigned URLs ----------------------------------------------------------------------------------------------------------

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        """A URL by which anyone may read ``key``; for ``presign_endpoint``. No request is made.

        Raises:
            ValueError: not within 1 second and 7 days.
        """
        return _presign(self._signer, "GET", key, expires_seconds)

    def presign_put(self, key: str, *, expires_seconds: int) -> str:
        """A URL by which anyone may create ``key`` and nobody can overwrite it: the store takes it only with the header
        ``If-None-Match: *``, which is part of the signature. No request is made.

        Raises:
            ValueError: not within 1 second and 7 days.
        """
        return _presign(self._signer, "PUT", key, expires_seconds, headers={"if-none-match": "*"})

    # --- private -----------------------------------------------------------------------------------------------------------------

    def _put_conditionally(self, key: str, data: bytes | Path, size: int, content_type: str, *, md5: str | None) -> bool:
        """True: stored by us. False: the key exists."""

        def send() -> bool:
            with _opened(data) as (body, _):
                headers = {"If-None-Match": "*", "Content-Type": content_type, "Content-Length": str(size)}
                if md5 is not None:
                    headers["Content-MD5"] = md5
                return self._accepts_new(lambda: self._call("PUT", key, {}, headers=headers, body=body))

        return self._repeat("put", key, send)

    def _put_in_parts(self, key: str, data: Path, size: int, content_type: str) -> bool:
        """As ``_put_conditionally``; the condition is checked when the parts become an object."""
        answer = self._repeat("put", key, lambda: self._call("POST", key, {"uploads": ""}, headers={"Content-Type": content_type}))
        upload = _xml_text(answer, "UploadId")
        try:
            tags = [
                self._put_part(key, data, upload=upload, number=number, part=range(offset, min(offset + PART_BYTES, size)))
                for number, offset in enumerate(range(0, size, PART_BYTES), 1)
            ]
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>" for number, tag in enumerate(tags, 1)
            )
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            headers = {"If-None-Match": "*", "Content-Type": "application/xml"}
            created = self._repeat(
                "put",
                key,
                lambda: self._accepts_new(lambda: self._call("POST", key, {"uploadId": upload}, headers=headers, body=body)),
            )
        except NotFound:
            # NoSuchUpload for a repeated completion: the first one had worked and its answer was lost.
            return False
        except BaseException:
            self._abort(key, upload)
            raise
        if not created:
            self._abort(key, upload)
        return created

    def _put_part(self, key: str, data: Path, *, upload: str, number: int, part: range) -> str:
        """Send the bytes ``part`` of the file; the answer is the part's tag."""

        def send() -> str:
            with data.open("rb") as file:
                file.seek(part.start)
                response = self._call_raw(
                    "PUT",
                    key,
                    {"partNumber": str(number), "uploadId": upload},
                    headers={"Content-Length": str(len(part))},
                    body=_Slice(file, len(part)),
                )
            return response.headers.get("etag", "")

        return self._repeat("put", key, send)

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._call("DELETE", key, {"uploadId": upload})
        except (_Failure, urllib3.exceptions.HTTPError):
            # The first error matters more; servers remove stale uploads by themselves or by a lifecycle rule.
            return

    @staticmethod
    def _accepts_new(call: Callable[[], object]) -> bool:
        try:
            call()
        except _Failure as failure:
            if failure.status == 412:
                return False
            raise
        return True

    def _is_there(self, key: str) -> bool:
        try:
            self.stat(key)
        except NotFound:
            return False
        return True

    def _compare(self, key: str, size: int, digest: str) -> Put:
        if self._content(key, limit=size + 1) != (size, digest):
            raise AlreadyExists(f"{self._name(key)} exists with other content; stored objects are never overwritten")
        return Put.SAME

    def _content(self, key: str, *, limit: int) -> tuple[int, str]:
        """Length and SHA-256 of an object, read up to ``limit`` bytes."""

        def fetch() -> tuple[int, str]:
            digest, size = hashlib.sha256(), 0
            with self.open(key, attempts=1) as stream:
                while size < limit and (block := stream.read(min(BLOCK_BYTES, limit - size))):
                    digest.update(block)
                    size += len(block)
            return size, digest.hexdigest()

        return self._repeat("get", key, fetch)

    def _page(self, prefix: str, after: str | None) -> tuple[Entry, ...]:
        found = self._client.list_objects(self.settings.bucket, prefix=prefix, recursive=True, start_after=after)
        page = []
        for item in found:
            page.append(Entry(item.object_name or "", item.size or 0, item.last_modified))
            if len(page) == _PAGE:
                break
        return tuple(page)

    def _call(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> bytes:
        return self._call_raw(method, key, query, headers=headers, body=body).data

    def _call_raw(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request by a presigned URL; an answer other than 2xx becomes ``_Failure``."""
        url = _presign(self._own_signer, method, key, 3600, query=query)
        response = self._http.request(method, url, headers=dict(headers or {}), body=body)
        if not 200 <= response.status < 300:
            code, message = _xml_error(response.data)
            raise _Failure(response.status, code, message, response.headers)
        if method == "POST" and b"<Error>" in response.data[:2048]:
            # Completing an upload may answer 200 and report the failure in the body.
            code, message = _xml_error(response.data)
            raise _Failure(500, code, message, response.headers)
        return response

    def _repeat(self, verb: str, key: str, call: Callable[[], Result], *, attempts: int | None = None) -> Result:
        """``call`` with bounded retries; every failure leaves as an error of ours."""
        last = attempts or self._attempts
        for attempt in range(1, last + 1):
            try:
                return call()
            except (Unavailable, _Failure, MinioException, urllib3.exceptions.HTTPError) as error:
                translated = self._translate(verb, key, error)
                if type(translated) is not Unavailable or attempt == last:
                    raise translated from error
                pause = min(5.0, 0.2 * 2 ** (attempt - 1)) * (0.5 + self._jitter() / 2)
                self._sleep(max(pause, translated.retry_after or 0))
        raise AssertionError("attempts is at least 1")

    def _translate(self, verb: str, key: str, error: Exception) -> SeatrialError:
        match error:
            case SeatrialError():
                return error
            case _Failure():
                return self._judge(verb, key, error)
            case S3Error():
                response = error.response
                return self._judge(verb, key, _Failure(response.status, error.code or "", error.message or "", response.headers))
            case ServerError():
                return self._judge(verb, key, _Failure(error.status_code, "", "", {}))
            case InvalidResponseError():
                # An answer that is not S3's own, e.g. of a proxy. The class keeps its status in a private field.
                return self._judge(verb, key, _Failure(error._code, "", "the answer is not XML: is this an S3 endpoint?", {}))
            case urllib3.exceptions.SSLError():
                return Unavailable(
                    f"cannot trust {self.settings.endpoint}: {_short(error)}. Give the CA file (SEATRIAL_S3_CA) or correct the endpoint"
                )
            case urllib3.exceptions.HTTPError():
                return Unavailable(f"object store {self.settings.endpoint} does not answer: {_short(error)}. Check endpoint and network")
            case _:
                return SeatrialError(f"object store {self.settings.endpoint}: {_short(error)}")

    def _judge(self, verb: str, key: str, failure: _Failure) -> SeatrialError:
        """The error of ours for an answer of the server."""
        status, code, name = failure.status, failure.code, self._name(key)
        said = f"{status} {code}".strip() + (f": {failure.message}" if failure.message else "")
        region = failure.headers.get("x-amz-bucket-region")
        if code == "NoSuchBucket":
            return StoreMisconfigured(
                f"bucket {self.settings.bucket!r} does not exist on {self.settings.endpoint}: create it or correct the name"
            )
        if code in _WRONG_REGION or status in {301, 307} or (status == 400 and region) or "region" in failure.message.lower():
            hint = f"use region {region!r}" if region else f"the setting says {self.settings.region!r}"
            return StoreMisconfigured(f"bucket {self.settings.bucket!r} lies in another region or endpoint: {hint} ({said})")
        if code == "RequestTimeTooSkewed":
            return Forbidden(
                f"the clocks of this machine and of {self.settings.endpoint} differ{_skew(failure.headers)}: set the clock ({said})"
            )
        if code in _BAD_CREDENTIALS:
            return Forbidden(f"{self.settings.endpoint} does not accept the access key or secret: check the S3 credentials ({said})")
        if status == 507 or code in _FULL or "no space left" in failure.message.lower():
            return DiskFull(f"the object store has no room for {name}: free space or raise the quota, then repeat ({said})")
        if status in _BUSY_STATUS or code in _BUSY_CODES:
            return Unavailable(
                f"object store {self.settings.endpoint} cannot {verb} {name} now ({said})",
                retry_after=_seconds(failure.headers.get("retry-after")),
            )
        if status in {401, 403} and _EXPIRED.search(failure.message):
            # Our URLs are signed a moment before they are used.
            return Forbidden(
                f"the clocks of this machine and of {self.settings.endpoint} differ{_skew(failure.headers)}: set the clock ({said})"
            )
        if status in {401, 403}:
            return Forbidden(f"the S3 credentials may not {verb} {name}: grant the right or use others ({said})")
        if code in _MISSING:
            return NotFound(f"{name} does not exist")
        if status == 404 and not code:
            # A proxy or gateway that answers while the store is away. Believed, it would make stored results vanish; and a connection to it
            # that is kept alive would go on answering when the store is back.
            self._http.clear()
            return Unavailable(f"something else than an S3 server answered for {self.settings.endpoint} ({said})")
        if status == 501:
            return StoreMisconfigured(
                f"{self.settings.endpoint} cannot do what is asked of it ({said}): use a server with conditional writes"
            )
        return SeatrialError(f"object store {self.settings.endpoint} refused to {verb} {name} ({said})")

    def _name(self, key: str) -> str:
        return f"s3://{self.settings.bucket}/{key}"


class ObjectStream:
    """The bytes of one object, as they arrive; a broken connection is ``Unavailable``."""

    def __init__(self, response: Any, name: str, endpoint: str) -> None:
        self._response, self._name, self._endpoint = response, name, endpoint
        length = response.headers.get("content-length", "")
        self.size: int | None = int(length) if length.isdigit() else None

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes (all for -1); empty at the end."""
        try:
            return bytes(self._response.read(None if size < 0 else size))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"object store {self._endpoint} broke off while {self._name} was read: {_short(error)}") from error

    def seekable(self) -> bool:
        """Never: bytes come once."""
        return False

    def close(self) -> None:
        """Give the connection back."""
        self._response.close()
        self._response.release_conn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_PAGE: Final = 1000


class _Slice:
    """``length`` bytes of a file from its current position, as a request body."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file, self._left = file, length

    def read(self, size: int = -1, /) -> bytes:
        block = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(block)
        return block


def _keys(settings: StoreSettings) -> Provider:
    if settings.credentials_dir is not None:
        return FileCredentials(Path(settings.credentials_dir))
    return StaticProvider(settings.access_key, settings.secret_key, settings.session_token)


def _web_identity(settings: WebIdentitySettings, http: urllib3.PoolManager) -> Provider:
    return WebIdentity(Path(settings.token_file), role_arn=settings.role_arn, sts_endpoint=settings.sts_endpoint, http=http)


def _client(settings: StoreSettings, endpoint: str, http: urllib3.PoolManager, credentials: Provider | None) -> Minio:
    url = urlsplit(endpoint)
    if url.scheme not in {"http", "https"} or not url.netloc or url.path not in {"", "/"} or url.query or "@" in url.netloc:
        raise InvalidSpec("endpoint", f"{endpoint!r} is not a URL like https://s3.example.org:9000")
    try:
        client = Minio(
            endpoint=url.netloc,
            credentials=credentials,
            secure=url.scheme == "https",
            region=settings.region,
            http_client=http,
        )
    except ValueError as error:
        raise InvalidSpec("endpoint", f"{endpoint!r} with region {settings.region!r}: {error}") from error
    if settings.path_style:
        client.disable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    else:
        client.enable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    return client


def _bucket_url(settings: StoreSettings, endpoint: str, http: urllib3.PoolManager) -> str:
    """The bucket's address, to which a key is appended. The client knows it, on AWS too; without credentials it signs nothing."""
    try:
        return _client(settings, endpoint, http, None).get_presigned_url("GET", settings.bucket, "x").removesuffix("x")
    except ValueError as error:
        raise InvalidSpec("bucket", f"{settings.bucket!r}: {error}") from error


def _presign(
    signer: Signer,
    method: str,
    key: str,
    expires_seconds: int,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    if not 1 <= expires_seconds <= MAX_EXPIRES_SECONDS:
        raise ValueError(f"a presigned URL lives between 1 and {MAX_EXPIRES_SECONDS} seconds, not {expires_seconds}")
    return signer.presign(method, key, expires_seconds=expires_seconds, now=minio.time.utcnow(), query=query, headers=headers)


def _sha256(data: bytes | Path) -> str:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _md5(data: bytes | Path) -> str:
    """What the header Content-MD5 carries; against accidents on the way, not against attackers."""
    digest = hashlib.md5(usedforsecurity=False)
    with _opened(data) as (stream, _):
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()


@contextmanager
def _opened(data: bytes | Path) -> Iterator[tuple[IO[bytes], int]]:
    """A fresh stream over ``data`` and its length, so that each attempt starts at the beginning."""
    if isinstance(data, bytes):
        yield io.BytesIO(data), len(data)
    else:
        with data.open("rb") as file:
            yield file, data.stat().st_size


def _read_all(stream: Readable, limit: int) -> bytes:
    blocks, left = [], limit
    while left and (block := stream.read(min(BLOCK_BYTES, left))):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def _xml_error(body: bytes) -> tuple[str, str]:
    """Code and message of an error document; empty for anything else."""
    try:
        return _xml_text(body[:65536], "Code"), _xml_text(body[:65536], "Message")[:300]
    except ET.ParseError:
        return "", ""


def _xml_text(body: bytes, name: str) -> str:
    for element in ET.fromstring(body).iter():
        if element.tag.rpartition("}")[2] == name:
            return element.text or ""
    return ""


def _skew(headers: Mapping[str, str]) -> str:
    try:
        theirs = email.utils.parsedate_to_datetime(headers.get("date", ""))
    except ValueError:
        return ""
    return f" by {abs((datetime.datetime.now(datetime.UTC) - theirs).total_seconds()):.0f} seconds"


def _seconds(text: str | None) -> float | None:
    return min(float(text), 30.0) if text and text.isdigit() else None


def _short(error: BaseException) -> str:
    """The last part of a chain "where: what: why", without addresses of Python objects."""
    lines = str(error.args[-1] if error.args else error).splitlines() or [type(error).__name__]
    return lines[0].rpartition("): ")[2][:200]
