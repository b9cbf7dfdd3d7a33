"""Frames, credit and request ids of the connection to envd; what is said in them is ``channel.py``'s part.

The format is written down in ``runner-image/envd/proto.go``. One reader thread per connection sorts arriving frames into bounded queues
and never waits for a consumer: envd may not send more than it was granted, and a breach ends the connection.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

PROTOCOL: Final = 1

HELLO: Final = 1
REQUEST: Final = 2
DATA: Final = 3
EOF: Final = 4
CREDIT: Final = 5
CANCEL: Final = 6
RESULT: Final = 7

STREAM_IN: Final = 0
STREAM_OUT: Final = 1
STREAM_ERR: Final = 2

WINDOW_BYTES: Final = 256 << 10
CHUNK_BYTES: Final = 64 << 10
MAX_REQUEST_BYTES: Final = 4 << 20
_LIMITS: Final[Mapping[int, int]] = {HELLO: 64 << 10, DATA: CHUNK_BYTES + 1, CREDIT: 5, RESULT: 1 << 20}
"""Longest payload of each frame type that envd may send."""

_SEND_SECONDS: Final = 60
"""envd always reads; one that stops for so long is not envd any more."""

_HEADER: Final = struct.Struct(">IBI")
_MAX_MESSAGE: Final = 4096

Json = dict[str, Any]


class ChannelError(Exception):
    """Base of all errors of a channel."""


class EnvironmentExited(ChannelError):
    """The connection to envd is gone: the environment container ended, or its envd did. Nothing more can be asked of it."""


class ProtocolViolation(ChannelError):
    """The other end sent what envd never sends: an impostor or a damaged envd. The channel is closed."""


class EnvdError(ChannelError):
    """envd refused or could not do one request; the channel goes on. ``kind`` is one of the short names of ``errors.go``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class NoAnswer(EnvdError):
    """envd is connected and did not answer in time; ``kind`` is "no-answer"."""

    def __init__(self, message: str) -> None:
        super().__init__("no-answer", message)


class Frame(NamedTuple):
    kind: int
    id: int
    payload: bytes


class Data(NamedTuple):
    stream: int
    data: bytes


class Result(NamedTuple):
    """The end of a call: ``ok`` unless ``error``."""

    ok: Json
    error: EnvdError | None


def read_frame(sock: socket.socket, *, deadline: float | None = None) -> Frame:
    """One frame; raises EnvironmentExited at the end of the stream, ProtocolViolation, TimeoutError after ``deadline``."""
    length, kind, call_id = _HEADER.unpack(_read_exactly(sock, _HEADER.size, deadline))
    limit = _LIMITS.get(kind)
    if limit is None:
        raise ProtocolViolation(f"envd sent a frame of type {kind}, which it never sends")
    if length > limit:
        raise ProtocolViolation(f"envd sent a frame of type {kind} with {length} bytes, limit {limit}")
    return Frame(kind, call_id, _read_exactly(sock, length, deadline))


def _read_exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            sock.settimeout(remaining)
        try:
            chunk = sock.recv(count - len(parts))
        except TimeoutError:
            raise
        except OSError as error:
            raise EnvironmentExited(f"the connection to envd broke: {error}") from error
        if not chunk:
            raise EnvironmentExited("the environment exited")
        parts += chunk
    return bytes(parts)


def parse_json(payload: bytes) -> Json:
    """A JSON object from envd."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"envd sent broken JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ProtocolViolation("envd sent JSON that is not an object")
    return value


def parse_result(payload: bytes) -> Result:
    body = parse_json(payload)
    error = body.get("error")
    if error is None:
        ok = body.get("ok")
        if not isinstance(ok, dict):
            raise ProtocolViolation("envd sent a result without content")
        return Result(ok, None)
    if not isinstance(error, dict):
        raise ProtocolViolation("envd sent a malformed error")
    return Result({}, EnvdError(take_str(error, "kind", 40), take_str(error, "message", _MAX_MESSAGE)))


def take_int(body: Json, key: str, *, low: int = 0, high: int = 2**63 - 1, default: int | None = None) -> int:
    value = body.get(key, default)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolViolation(f"envd sent no valid number as {key}")
    return value


def take_bool(body: Json, key: str, *, default: bool | None = None) -> bool:
    value = body.get(key, default)
    if type(value) is not bool:
        raise ProtocolViolation(f"envd sent no truth value as {key}")
    return value


def take_str(body: Json, key: str, limit: int) -> str:
    """A string without control characters, at most ``limit`` characters long."""
    value = body.get(key)
    if not isinstance(value, str) or len(value) > limit:
        raise ProtocolViolation(f"envd sent no valid text as {key}")
    return "".join(c if c.isprintable() else "?" for c in value)


class Call:
    """One open request: what arrived for it and what may be sent for it. Used by one consumer and one sender at a time."""

    def __init__(self, connection: Connection, call_id: int) -> None:
        self.id = call_id
        self._connection = connection
        self._change = threading.Condition()
        self._events: deque[Data | Result] = deque()
        self._held = {STREAM_OUT: 0, STREAM_ERR: 0}
        """Bytes of each stream that arrived and were not granted again."""
        self._consumed = {STREAM_OUT: 0, STREAM_ERR: 0}
        self._credit = WINDOW_BYTES
        self._over = False

    # The reader thread's side.

    def push_data(self, stream: int, data: bytes) -> None:
        with self._change:
            if stream not in self._held:
                raise ProtocolViolation(f"envd sent data on stream {stream}")
            self._held[stream] += len(data)
            if self._held[stream] > WINDOW_BYTES:
                raise ProtocolViolation("envd sent more data than it was granted")
            if data:
                self._events.append(Data(stream, data))
                self._change.notify_all()

    def push_credit(self, amount: int) -> None:
        with self._change:
            self._credit += amount
            if self._credit > WINDOW_BYTES:
                raise ProtocolViolation("envd granted more than was sent")
            self._change.notify_all()

    def push_result(self, result: Result) -> None:
        with self._change:
            self._over = True
            self._events.append(result)
            self._change.notify_all()

    def wake(self) -> None:
        with self._change:
            self._change.notify_all()

    # The caller's side.

    def next(self, timeout_seconds: float | None) -> Data | Result | None:
        """The next event in order; None when the time is over. Raises why the connection ended once all that came before is delivered."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._change:
            while not self._events:
                if self._connection.failure is not None:
                    raise self._connection.why()
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._change.wait(remaining)
            event = self._events.popleft()
            grant = 0
            if isinstance(event, Data):
                self._consumed[event.stream] += len(event.data)
                if self._consumed[event.stream] >= WINDOW_BYTES // 4 and not self._over:
                    grant, self._consumed[event.stream] = self._consumed[event.stream], 0
                    self._held[event.stream] -= grant
        if isinstance(event, Data) and grant:
            self._connection.send(CREDIT, self.id, struct.pack(">BI", event.stream, grant))
        return event

    def result(self, timeout_seconds: float) -> Json:
        """The result of a call without output; raises its error."""
        while True:
            event = self.next(timeout_seconds)
            if event is None:
                self.cancel()
                raise NoAnswer(f"envd did not answer within {timeout_seconds:g} s")
            if isinstance(event, Result):
                if event.error is not None:
                    raise event.error
                return event.ok

    def send_data(self, chunks: Iterable[bytes], *, idle_seconds: float | None) -> bool:
        """Send a whole stream and its end. False when the request was over before that: its result says why."""
        for chunk in chunks:
            if not self.send_chunk(chunk, idle_seconds=idle_seconds):
                return False
        return self.send_eof()

    def send_chunk(self, data: bytes, *, idle_seconds: float | None) -> bool:
        view = memoryview(data)
        while view:
            size = self._take_credit(min(len(view), CHUNK_BYTES), idle_seconds)
            if size == 0:
                return False
            self._connection.send(DATA, self.id, b"\0", view[:size])
            view = view[size:]
        return True

    def send_eof(self) -> bool:
        with self._change:
            if self._over:
                return False
        self._connection.send(EOF, self.id, b"\0")
        return True

    def _take_credit(self, wanted: int, idle_seconds: float | None) -> int:
        deadline = None if idle_seconds is None else time.monotonic() + idle_seconds
        with self._change:
            while True:
                if self._connection.failure is not None:
                    raise self._connection.why()
                if self._over:
                    return 0
                if self._credit:
                    size = min(wanted, self._credit)
                    self._credit -= size
                    return size
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise NoAnswer(f"envd took no data for {idle_seconds:g} s")
                self._change.wait(remaining)

    def cancel(self) -> None:
        """Give the request up; what still arrives for it is dropped."""
        with self._change:
            over, self._over = self._over, True
        self._connection.forget(self.id)
        if not over and self._connection.failure is None:
            try:
                self._connection.send(CANCEL, self.id)
            except ChannelError:
                return  # then it is over anyway


class Connection:
    """The frames of one connection, shared by any number of calls and threads."""

    def __init__(self, sock: socket.socket) -> None:
        """``sock``: connected, in blocking mode, the greeting already read."""
        # Not settimeout: that would make the descriptor non-blocking for the reader as well.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_SECONDS, 0))
        self._sock = sock
        self._sending = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._state = threading.Lock()
        self._next_id = 1
        self.failure: ChannelError | None = None
        self.ended = threading.Event()
        threading.Thread(target=self._read, name="envd-reader", daemon=True).start()

    def open(self, request: Mapping[str, object]) -> Call:
        payload = encode_request(request)
        with self._state:
            if self.failure is not None:
                raise self.why()
            call = Call(self, self._next_id)
            self._calls[call.id] = call
            self._next_id += 1
        self.send(REQUEST, call.id, payload)
        return call

    def tell(self, request: Mapping[str, object]) -> None:
        """Send a request whose answer nobody waits for."""
        call = self.open(request)
        self.forget(call.id)

    def forget(self, call_id: int) -> None:
        with self._state:
            self._calls.pop(call_id, None)

    def send(self, kind: int, call_id: int, *parts: bytes | memoryview) -> None:
        length = sum(len(part) for part in parts)
        frame = b"".join((_HEADER.pack(length, kind, call_id), *parts))
        try:
            with self._sending:
                self._sock.sendall(frame)
        except BlockingIOError:
            self.fail(ProtocolViolation(f"envd read nothing for {_SEND_SECONDS} s"))
            raise self.why() from None
        except OSError as error:
            self.fail(EnvironmentExited(f"the connection to envd broke: {error}"))
            raise self.why() from error

    def fail(self, why: ChannelError) -> None:
        """End the connection; the first reason counts."""
        with self._state:
            if self.failure is None:
                self.failure = why
            calls = list(self._calls.values())
        with contextlib.suppress(OSError):  # it may not be connected any more
            self._sock.shutdown(socket.SHUT_RDWR)
        self.ended.set()
        for call in calls:
            call.wake()

    def why(self) -> ChannelError:
        """A new exception for each that asks: several threads may raise it."""
        return type(self.failure)(str(self.failure)) if self.failure is not None else EnvironmentExited("the environment exited")

    def _read(self) -> None:
        try:
            while True:
                self._dispatch(read_frame(self._sock))
        except ChannelError as error:
            self.fail(error)
        finally:
            with self._sending:
                self._sock.close()

    def _dispatch(self, frame: Frame) -> None:
        with self._state:
            call = self._calls.get(frame.id)
            if not 0 < frame.id < self._next_id:
                raise ProtocolViolation(f"envd answered request {frame.id}, which was never made")
            if frame.kind == RESULT:
                self._calls.pop(frame.id, None)
        match frame.kind:
            case 3:  # DATA
                if not frame.payload:
                    raise ProtocolViolation("envd sent data without a stream")
                if call is not None:
                    call.push_data(frame.payload[0], frame.payload[1:])
            case 5:  # CREDIT
                if len(frame.payload) != 5 or frame.payload[0] != STREAM_IN:
                    raise ProtocolViolation("envd sent a malformed credit")
                if call is not None:
                    call.push_credit(struct.unpack(">I", frame.payload[1:])[0])
            case 7:  # RESULT
                result = parse_result(frame.payload)
                if call is not None:
                    call.push_result(result)
            case _:
                raise ProtocolViolation(f"envd sent a frame of type {frame.kind} in mid-connection")


def encode_request(request: Mapping[str, object]) -> bytes:
    """Requests of ours that envd could not take are refused here, before they cost the connection."""
    try:
        payload = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:  # also UnicodeEncodeError: a name that is not UTF-8
        raise EnvdError("bad-request", f"the request cannot be sent: {error}") from error
    if len(payload) > MAX_REQUEST_BYTES:
        raise EnvdError(
            "bad-request", f"the request has {len(payload)} bytes, limit {MAX_REQUEST_BYTES}; write long input to a file or to stdin"
        )
    return payload


def split(data: bytes) -> Iterator[bytes]:
    """``data`` in chunks of a frame's size."""
    view = memoryview(data)
    for start in range(0, len(data), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])
