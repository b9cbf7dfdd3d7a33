"""GET and PUT through presigned URLs, with bounded patience.

Why http.client: it is all that is needed, and starts in milliseconds. A URL is a capability of its trial: messages name host and key and
never the query. Every wait ends, every repetition is delayed with jitter.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import time
from collections.abc import Callable
from typing import BinaryIO, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

from seatrial_runner.clock import Deadline

_BLOCK_BYTES: Final = 256 * 1024
_ERROR_BODY_BYTES: Final = 4096
_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

T = TypeVar("T")


class StoreError(Exception):
    """The object store did not do it. The message names host, key and the store's own code."""


class StoreMissing(StoreError):
    """There is no such object or bucket. Repeating does not help."""


class StoreRefused(StoreError):
    """The store answered no (signature, expiry, rights, bad request). Repeating does not help."""


class StoreUnavailable(StoreError):
    """No usable answer within the patience."""


class StoreTaken(StoreError):
    """412: there is an object at this key already, and none of our own attempts can have made it."""


class Patience(NamedTuple):
    """How long one transfer is tried."""

    seconds: float
    attempts: int = 1000
    first_pause_seconds: float = 0.25
    longest_pause_seconds: float = 10.0
    answer_seconds: float = 20.0
    """Silence on a connection that ends an attempt."""


class _Retry(Exception):
    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """The store may have acted although no success was seen."""


def download(url: str, target: BinaryIO, *, max_bytes: int, patience: Patience) -> int:
    """Write the object to ``target`` (emptied before each attempt); returns its size in bytes.

    Raises:
        StoreMissing, StoreRefused, StoreUnavailable: see there. ``StoreRefused`` also for an object above ``max_bytes``.
    """

    def attempt(deadline: Deadline) -> int:
        target.seek(0)
        target.truncate()
        return _get(url, target, max_bytes=max_bytes, deadline=deadline, patience=patience)

    return _repeat(attempt, url, patience)


def upload(url: str, source: BinaryIO, *, content_type: str, patience: Patience, give_up: Callable[[], bool] = bool) -> None:
    """Store ``source`` from its start, unless an object exists at this key (``If-None-Match: *``).

    A 412 after an attempt whose answer was lost is taken for our own success: the key belongs to this retry of the trial alone.

    Raises:
        StoreTaken, StoreMissing, StoreRefused, StoreUnavailable: see there.
    """
    size = source.seek(0, os.SEEK_END)
    may_have_stored = False

    def attempt(deadline: Deadline) -> None:
        nonlocal may_have_stored
        source.seek(0)
        try:
            _put(url, source, size, content_type=content_type, deadline=deadline, patience=patience)
        except _Retry as error:
            may_have_stored = may_have_stored or error.sent
            raise
        except StoreTaken:
            if not may_have_stored:
                raise

    _repeat(attempt, url, patience, give_up=give_up)


def _repeat(attempt: Callable[[Deadline], T], url: str, patience: Patience, *, give_up: Callable[[], bool] = bool) -> T:
    deadline = Deadline(patience.seconds)
    pause = patience.first_pause_seconds
    for number in range(1, patience.attempts + 1):
        try:
            return attempt(deadline)
        except _Retry as error:
            if number == patience.attempts or deadline.cap(pause) < pause or give_up():
                raise StoreUnavailable(f"{_shown(url)}: {error} (tried {number} times)") from error
        time.sleep(pause * _jitter())
        pause = min(patience.longest_pause_seconds, pause * 2)
    raise AssertionError("attempts is at least 1")


def _jitter() -> float:
    """Between 0.5 and 1. Not ``random``: it costs 5 ms at start."""
    return 0.5 + os.urandom(1)[0] / 510


def _get(url: str, target: BinaryIO, *, max_bytes: int, deadline: Deadline, patience: Patience) -> int:
    parts = urlsplit(url)
    connection = _connect(parts, deadline, patience)
    try:
        connection.request("GET", _path(parts), headers={"Accept-Encoding": "identity"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise _refusal(answer, url)
        size = 0
        while block := answer.read(_BLOCK_BYTES):
            size += len(block)
            if size > max_bytes:
                raise StoreRefused(f"{_shown(url)}: larger than {max_bytes} bytes")
            if deadline.passed:
                raise _Retry("too slow", sent=False)
            target.write(block)
    except http.client.HTTPException as error:
        raise _Retry(f"broken answer ({type(error).__name__})", sent=False) from error
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise _Retry(f"connection lost ({error})", sent=False) from error
    else:
        expected = answer.getheader("Content-Length")
        if expected is not None and expected.isdigit() and int(expected) != size:
            raise _Retry(f"{size} of {expected} bytes came", sent=False)
        return size
    finally:
        connection.close()


def _put(url: str, source: BinaryIO, size: int, *, content_type: str, deadline: Deadline, patience: Patience) -> None:
    parts = urlsplit(url)
    connection = _connect(parts, deadline, patience)
    try:
        connection.putrequest("PUT", _path(parts), skip_accept_encoding=True)
        for name, value in {"Content-Length": str(size), "Content-Type": content_type, "If-None-Match": "*"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        early = _send(connection, source, deadline)
        answer = connection.getresponse()
        if answer.status in (200, 201, 204):
            answer.read(_ERROR_BODY_BYTES)
            return
        raise _refusal(answer, url, early=early)
    except http.client.HTTPException as error:
        raise _Retry(f"broken answer ({type(error).__name__})", sent=True) from error
    except OSError as error:
        raise _Retry(f"connection lost ({error})", sent=True) from error
    finally:
        connection.close()


def _send(connection: http.client.HTTPConnection, source: BinaryIO, deadline: Deadline) -> bool:
    """Send the body; True if the store stopped reading: it has probably answered no already, and the answer says why."""
    while block := source.read(_BLOCK_BYTES):
        if deadline.passed:
            raise _Retry("too slow", sent=False)
        try:
            connection.send(block)
        except (BrokenPipeError, ConnectionResetError):
            return True
    return False


def _connect(parts: SplitResult, deadline: Deadline, patience: Patience) -> http.client.HTTPConnection:
    timeout = max(0.1, deadline.cap(patience.answer_seconds))
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout)
    elif parts.scheme == "http":
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout)
    else:
        raise StoreRefused(f"not an http or https address (scheme {parts.scheme!r})")
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        # A wrong certificate does not get better, and must not look like a network that is down.
        if type(error).__name__ == "SSLCertVerificationError":
            raise StoreRefused(f"{parts.hostname}: the certificate is not trusted ({error})") from error
        raise _Retry(f"cannot connect ({error})", sent=False) from error
    return connection


def _refusal(answer: http.client.HTTPResponse, url: str, *, early: bool = False) -> Exception:
    """What an answer other than success means."""
    try:
        found = _CODE.search(answer.read(_ERROR_BODY_BYTES))
    except (OSError, http.client.HTTPException):
        found = None
    code = found[1].decode() if found else answer.reason
    message = f"{answer.status} {code}"
    match answer.status:
        case 404 if found is None:
            # Not S3's own answer: a proxy or gateway that answers while the store is away.
            return _Retry(message, sent=False)
        case 404:
            return StoreMissing(f"{_shown(url)}: {message}")
        case 412:
            return StoreTaken(f"{_shown(url)}: {message}")
        case 408 | 409 | 425 | 429:
            return _Retry(message, sent=False)
        case status if status >= 500:
            return _Retry(message, sent=not early)
        case _:
            return StoreRefused(f"{_shown(url)}: {message}")


def _path(parts: SplitResult) -> str:
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}{parts.path}"[:200]
