"""The store against two real S3 servers, and against a server that misbehaves on demand."""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import minio.time
import pytest

from seatrial.effects import store as store_module
from seatrial.effects.store import Put, Store, StoreMisconfigured, StoreSettings, UploadUnverified
from seatrial.errors import AlreadyExists, DiskFull, Forbidden, InvalidSpec, NotFound, SeatrialError, Unavailable
from tests.serving import end, serve

KEY = "filesets/evals/harbor-tasks/hello/0/task_archive"


@pytest.fixture
def settings(each_s3_server: Any) -> StoreSettings:
    bucket: StoreSettings = each_s3_server.bucket()
    return bucket


@pytest.fixture
def real(settings: StoreSettings) -> Store:
    return Store(settings)


CONDITION = {"If-None-Match": "*"}
"""Part of the signature of a presigned PUT."""

Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""

# --- real servers: conditional puts --------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-43")
def test_a_new_key_is_created_and_the_same_bytes_again_are_same(real: Store) -> None:
    assert [real.put_new(KEY, b"one"), real.put_new(KEY, b"one"), real.get(KEY, max_bytes=10)] == [Put.CREATED, Put.SAME, b"one"]


@pytest.mark.conforms("N-44")
def test_other_bytes_under_an_existing_key_are_refused_and_leave_it_alone(real: Store) -> None:
    real.put_new(KEY, b"one")
    with pytest.raises(AlreadyExists, match="exists with other content"):
        real.put_new(KEY, b"two")
    assert real.get(KEY, max_bytes=10) == b"one"


def test_other_bytes_of_the_same_length_are_noticed(real: Store) -> None:
    real.put(KEY, b"abc")
    with pytest.raises(AlreadyExists):
        real.put_new(KEY, b"abd")


def test_bytes_that_change_on_the_way_are_refused_by_the_server(real: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert real.put_new(KEY, b"one", read_back=False) is Put.CREATED
    monkeypatch.setattr(store_module, "_md5", lambda data: base64.b64encode(hashlib.md5(b"other").digest()).decode())
    with pytest.raises(SeatrialError, match="BadDigest"):
        real.put_new(f"{KEY}2", b"one", read_back=False)
    assert [entry.key for entry in real.list("filesets/")] == [KEY]


def test_an_empty_object_can_be_created_once(real: Store) -> None:
    assert [real.put_new(KEY, b""), real.put_new(KEY, b""), real.get(KEY, max_bytes=0)] == [Put.CREATED, Put.SAME, b""]


def test_of_many_writers_exactly_one_creates(real: Store) -> None:
    def write(number: int) -> str:
        try:
            return real.put_new(KEY, f"writer {number}".encode()).value
        except AlreadyExists:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(write, range(8)))
    assert outcomes == ["created"] + ["refused"] * 7


def test_a_long_file_goes_in_parts_and_comes_back_whole(real: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 5 * 1024 * 1024)
    file = tmp_path / "archive"
    file.write_bytes(os.urandom(12 * 1024 * 1024))
    assert real.put_new(KEY, file) is Put.CREATED
    with real.open(KEY) as stream:
        assert (stream.size, hashlib.file_digest(_Reader(stream), "sha256").hexdigest()) == (
            12 * 1024 * 1024,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )


def test_the_condition_holds_for_files_in_parts_when_two_writers_meet(real: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 5 * 1024 * 1024)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(os.urandom(6 * 1024 * 1024))
    second.write_bytes(os.urandom(6 * 1024 * 1024))
    # Both writers see no object when they ask; the server decides at the end.
    monkeypatch.setattr(real, "_is_there", lambda key: False)
    assert real.put_new(KEY, first) is Put.CREATED
    assert real.put_new(KEY, first) is Put.SAME
    with pytest.raises(AlreadyExists):
        real.put_new(KEY, second)
    assert real.get(KEY, max_bytes=10 * 1024 * 1024) == first.read_bytes()


def test_a_file_above_the_ask_first_size_is_not_sent_again(real: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "archive"
    file.write_bytes(os.urandom(store_module.ASK_FIRST_BYTES + 1))
    assert real.put_new(KEY, file) is Put.CREATED
    monkeypatch.setattr(real, "_put_conditionally", lambda *_: pytest.fail("the body was sent again"))
    assert real.put_new(KEY, file) is Put.SAME


# --- real servers: the rest ----------------------------------------------------------------------------------------------------------


def test_put_replaces_and_delete_is_idempotent(real: Store) -> None:
    real.put(KEY, b"one")
    real.put(KEY, b"two")
    assert real.get(KEY, max_bytes=10) == b"two"
    real.delete(KEY)
    real.delete(KEY)
    with pytest.raises(NotFound, match=KEY):
        real.get(KEY, max_bytes=10)


def test_a_missing_key_is_not_found_by_every_reader(real: Store) -> None:
    for read in (lambda: real.get(KEY, max_bytes=1), lambda: real.open(KEY), lambda: real.stat(KEY)):
        with pytest.raises(NotFound, match=KEY):
            read()


def test_get_refuses_an_object_above_the_limit(real: Store) -> None:
    real.put(KEY, b"12345")
    assert real.get(KEY, max_bytes=5) == b"12345"
    with pytest.raises(InvalidSpec, match="longer than the allowed 4 bytes"):
        real.get(KEY, max_bytes=4)


def test_stat_gives_size_and_type(real: Store) -> None:
    real.put_new(KEY, b"{}", content_type="application/json")
    found = real.stat(KEY)
    assert (found.size, found.content_type) == (2, "application/json")


def test_a_listing_continues_over_pages(real: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PAGE", 3)
    keys = [f"jobs/evals/j/{number:02}" for number in range(8)]
    for key in keys:
        real.put(key, b"1")
    real.put("jobs/other", b"1")
    assert [entry.key for entry in real.list("jobs/evals/")] == keys


@pytest.mark.parametrize("key", ["a/ü mlaut+%41", "a/with space/and=equals&and", "a/" + "x" * 200])
def test_unusual_keys_are_signed_correctly(real: Store, key: str) -> None:
    assert [real.put_new(key, b"1"), real.get(key, max_bytes=1), [entry.key for entry in real.list("a/")]] == [Put.CREATED, b"1", [key]]


# --- real servers: presigned URLs ----------------------------------------------------------------------------------------------------


def _open(url: str, *, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=data, headers=dict(headers or {}), method="GET" if data is None else "PUT")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def test_presigned_urls_read_and_write_one_key(real: Store) -> None:
    put = real.presign_put(KEY, expires_seconds=60)
    get = real.presign_get(KEY, expires_seconds=60)
    assert [_open(put, data=b"one", headers=CONDITION)[0], _open(get)] == [200, (200, b"one")]


def test_a_presigned_put_never_overwrites(real: Store) -> None:
    url = real.presign_put(KEY, expires_seconds=60)
    codes = [_open(url, data=body, headers=CONDITION)[0] for body in (b"one", b"two")]
    assert (codes, real.get(KEY, max_bytes=10)) == ([200, 412], b"one")


@pytest.mark.parametrize("headers", [{}, {"If-None-Match": '"0"'}, {"If-Match": "*"}], ids=["left-out", "another", "turned-round"])
def test_whoever_holds_the_url_of_a_presigned_put_cannot_overwrite_by_it(real: Store, headers: Mapping[str, str]) -> None:
    url = real.presign_put(KEY, expires_seconds=60)
    assert _open(url, data=b"one", headers=CONDITION)[0] == 200
    assert _open(url, data=b"two", headers=headers)[0] in (400, 403)
    narrowed = url.replace("host%3Bif-none-match", "host")
    assert narrowed != url
    assert _open(narrowed, data=b"two")[0] == 403
    assert real.get(KEY, max_bytes=10) == b"one"


def test_a_presigned_put_of_an_odd_key_and_a_session_token_is_valid(settings: StoreSettings) -> None:
    key = "jobs/evals/a b+c~ü=&%/trials/x.json"
    assert _open(Store(settings).presign_put(key, expires_seconds=60), data=b"one", headers=CONDITION)[0] == 200
    assert Store(settings).get(key, max_bytes=10) == b"one"
    query = parse_qs(urlsplit(Store(replace(settings, session_token="a/b+c=")).presign_put(key, expires_seconds=60)).query)
    assert query["X-Amz-Security-Token"] == ["a/b+c="]


def test_a_presigned_url_for_another_endpoint_names_it_and_works_there(settings: StoreSettings) -> None:
    other = settings.endpoint.replace("127.0.0.1", "localhost")
    signed = Store(replace(settings, presign_endpoint=other))
    signed.put(KEY, b"one")
    url = signed.presign_get(KEY, expires_seconds=60)
    assert (url.startswith(other), _open(url), _open(url.replace("localhost", "127.0.0.1"))[0]) == (True, (200, b"one"), 403)


def test_presigning_makes_no_request() -> None:
    offline = Store(StoreSettings(f"http://127.0.0.1:{_closed_port()}", "bucket", "access", "secret"))
    query = parse_qs(urlsplit(offline.presign_get(KEY, expires_seconds=77)).query)
    assert query["X-Amz-Expires"] == ["77"]


@pytest.mark.parametrize("seconds", [0, 7 * 24 * 3600 + 1])
def test_a_url_lifetime_outside_the_signatures_limit_is_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 604800 seconds"):
        Store(StoreSettings("http://127.0.0.1:1", "bucket", "access", "secret")).presign_put(KEY, expires_seconds=seconds)


# --- real servers: what a person must correct ----------------------------------------------------------------------------------------

CALLS: list[Callable[[Store], object]] = [
    lambda it: it.ping(),
    lambda it: it.get(KEY, max_bytes=1),
    lambda it: it.stat(KEY),
    lambda it: it.put(KEY, b"1"),
    lambda it: it.put_new(KEY, b"1"),
    lambda it: list(it.list("a/")),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        pytest.param({"access_key": "nobody"}, Forbidden, "does not accept the access key", id="unknown-key"),
        pytest.param({"secret_key": "wrong"}, Forbidden, "does not accept the access key or secret", id="wrong-secret"),
        pytest.param({"bucket": "no-such-bucket"}, StoreMisconfigured, "'no-such-bucket' does not exist", id="no-bucket"),
    ],
)
def test_a_wrong_setting_is_named_and_never_looks_like_a_missing_key(
    settings: StoreSettings, change: Mapping[str, str], error: type[Exception], words: str, call: Callable[[Store], object]
) -> None:
    with pytest.raises(error, match=words):
        call(Store(replace(settings, **change)))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_region_is_named(store_settings: StoreSettings, call: Callable[[Store], object]) -> None:
    # MinIO takes any region unless it is told one, so this has one server.
    with pytest.raises(StoreMisconfigured, match="another region or endpoint: the setting says 'eu-west-7'"):
        call(Store(replace(store_settings, region="eu-west-7")))


@pytest.mark.parametrize("call", [lambda it: it.ping(), lambda it: it.get(KEY, max_bytes=1), lambda it: it.put_new(KEY, b"1")])
def test_a_wrong_clock_is_named(real: Store, monkeypatch: pytest.MonkeyPatch, call: Callable[[Store], object]) -> None:
    slow = minio.time.utcnow() - datetime.timedelta(hours=2)
    monkeypatch.setattr(minio.time, "utcnow", lambda: slow)
    with pytest.raises(Forbidden, match=r"the clocks of this machine and of .* differ"):
        call(real)


# --- a server that misbehaves --------------------------------------------------------------------------------------------------------


class Misbehaving:
    """Answers with the scripted replies, one a request; an empty script means 200."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.requests.append(self.command)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, body = outer.script.pop(0) if outer.script else (200, {}, b"")
                if status == 0:
                    self.connection.close()
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        serve(self._server)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        end(self._server)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    running = Misbehaving()
    yield running
    running.close()


def _xml(code: str, message: str = "") -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


def _fault(status: int, code: str, message: str = "", **headers: str) -> Answer:
    return (
        status,
        {"Content-Type": "application/xml", **{name.replace("_", "-"): value for name, value in headers.items()}},
        _xml(code, message),
    )


def _impatient(server: Misbehaving, *, pauses: list[float] | None = None, **options: Any) -> Store:
    record = pauses if pauses is not None else []
    return Store(StoreSettings(server.url, "bucket", "access", "secret"), sleep=record.append, jitter=lambda: 1.0, **options)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_fault(503, "SlowDown"), id="slow-down"),
        pytest.param(_fault(500, "InternalError"), id="internal-error"),
        pytest.param((502, {"Content-Type": "text/html"}, b"<html>bad gateway"), id="proxy"),
        pytest.param((0, {}, b""), id="connection-closed"),
        pytest.param((404, {}, b""), id="somebody-else-answers"),
        pytest.param(_fault(409, "ConditionalRequestConflict"), id="conflicting-writers"),
    ],
)
def test_a_passing_fault_is_repeated_until_it_works(server: Misbehaving, answer: Answer) -> None:
    server.script = [answer, answer]
    assert _impatient(server).put_new(KEY, b"1", read_back=False) is Put.CREATED
    assert server.requests == ["PUT"] * 3


@pytest.mark.parametrize("body", [b"", b"<html>default backend - 404</html>"], ids=["empty", "page"])
def test_a_404_that_is_not_the_stores_own_is_never_taken_for_a_missing_key(server: Misbehaving, body: bytes) -> None:
    server.script = [(404, {"Content-Type": "text/html"}, body)] * 20
    with pytest.raises(Unavailable, match="something else than an S3 server"):
        _impatient(server).get(KEY, max_bytes=1)
    with pytest.raises(Unavailable, match="something else than an S3 server"):
        _impatient(server).put_new(KEY, b"1")


def test_retries_end_and_pauses_grow_with_jitter(server: Misbehaving) -> None:
    server.script = [_fault(503, "SlowDown")] * 10
    pauses: list[float] = []
    with pytest.raises(Unavailable, match=r"cannot get s3://bucket/.* now"):
        _impatient(server, pauses=pauses).get(KEY, max_bytes=1)
    assert (pauses, len(server.requests)) == ([0.2, 0.4, 0.8, 1.6], 5)


def test_the_servers_own_pause_is_obeyed(server: Misbehaving) -> None:
    server.script = [_fault(503, "SlowDown", retry_after="7")]
    pauses: list[float] = []
    _impatient(server, pauses=pauses).put_new(KEY, b"1", read_back=False)
    assert pauses == [7.0]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        pytest.param(_fault(507, "XMinioStorageFull"), DiskFull, "has no room", id="507"),
        pytest.param(_fault(403, "QuotaExceeded"), DiskFull, "has no room", id="quota"),
        pytest.param(_fault(403, "AccessDenied"), Forbidden, "may not put", id="denied"),
        pytest.param(
            _fault(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1"), StoreMisconfigured, "use region 'eu-west-1'", id="region"
        ),
        pytest.param(_fault(501, "NotImplemented"), StoreMisconfigured, "server with conditional writes", id="no-conditions"),
        pytest.param(_fault(400, "MalformedThing", "odd"), SeatrialError, "refused to put .*400 MalformedThing: odd", id="other"),
    ],
)
def test_a_lasting_fault_is_named_at_once(server: Misbehaving, answer: Answer, error: type[Exception], words: str) -> None:
    server.script = [answer]
    with pytest.raises(error, match=words):
        _impatient(server).put_new(KEY, b"1")
    assert server.requests == ["PUT"]


@pytest.mark.conforms("N-43")
def test_other_bytes_at_the_read_back_are_an_error(server: Misbehaving) -> None:
    server.script = [(200, {}, b""), (200, {}, b"2")]
    with pytest.raises(UploadUnverified, match="gave back other bytes"):
        _impatient(server).put_new(KEY, b"1")


def test_a_lost_answer_of_our_own_put_ends_as_same(server: Misbehaving) -> None:
    server.script = [(0, {}, b""), _fault(412, "PreconditionFailed"), (200, {}, b"1")]
    assert _impatient(server).put_new(KEY, b"1") is Put.SAME


def test_a_body_that_ends_early_is_read_again(server: Misbehaving) -> None:
    server.script = [(200, {"Content-Length": "9"}, b"short"), (200, {}, b"all of it")]
    assert _impatient(server).get(KEY, max_bytes=20) == b"all of it"


def test_a_failed_part_ends_the_upload_on_the_server(server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 10)
    monkeypatch.setattr(store_module, "ASK_FIRST_BYTES", 100)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 25)
    upload: Answer = (200, {}, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
    server.script = [upload, (200, {"ETag": '"1"'}, b""), _fault(403, "AccessDenied")]
    with pytest.raises(Forbidden):
        _impatient(server).put_new(KEY, file)
    assert server.requests == ["POST", "PUT", "PUT", "DELETE"]


def test_a_completed_upload_that_reports_a_fault_in_its_body_is_no_success(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 10)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 15)
    upload: Answer = (200, {}, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
    part: Answer = (200, {"ETag": '"1"'}, b"")
    server.script = [
        upload,
        part,
        part,
        (200, {}, _xml("InternalError")),
        (200, {}, b"<CompleteMultipartUploadResult/>"),
        (200, {}, b"x" * 15),
    ]
    assert _impatient(server).put_new(KEY, file) is Put.CREATED
    assert server.requests == ["POST", "PUT", "PUT", "POST", "POST", "GET"]


def test_a_silent_server_is_unavailable_within_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        quiet = Store(
            StoreSettings(f"http://127.0.0.1:{silent.getsockname()[1]}", "bucket", "access", "secret"),
            attempts=1,
            read_timeout_seconds=0.2,
        )
        started = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer"):
            quiet.ping()
        assert time.monotonic() - started < 5


def test_a_closed_port_is_unavailable_and_says_what_to_check() -> None:
    closed = f"http://127.0.0.1:{_closed_port()}"
    with pytest.raises(Unavailable, match="Connection refused"):
        Store(StoreSettings(closed, "bucket", "access", "secret"), attempts=1).ping()


# --- settings ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://host", "http://", "http://host/path", "http://user:pw@host", "http://host?x=1"]
)
def test_an_endpoint_that_is_no_plain_url_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a URL like"):
        Store(StoreSettings(endpoint, "bucket", "access", "secret"))


def test_settings_never_show_their_secrets() -> None:
    shown = repr(StoreSettings("http://host", "bucket", "AKID", "SECRET", session_token="TOKEN"))
    assert [word for word in ("AKID", "SECRET", "TOKEN") if word in shown] == []


def test_virtual_hosts_put_the_bucket_into_the_host_name() -> None:
    styled = Store(StoreSettings("https://s3.example.org", "bucket", "access", "secret", path_style=False))
    assert urlsplit(styled.presign_get("k", expires_seconds=1)).netloc == "bucket.s3.example.org"


class _Reader:
    """What hashlib.file_digest wants of a file."""

    def __init__(self, stream: store_module.ObjectStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
