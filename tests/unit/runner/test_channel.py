"""The channel against an envd that lies, floods, stalls or breaks off. What the true envd does is tested in ``tests/unit/envd``."""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_runner import wire
from seatrial_runner.channel import (
    Channel,
    CommandFailed,
    EnvdError,
    EnvironmentExited,
    ExitStatus,
    Hello,
    NoAnswer,
    ProtocolViolation,
    Stat,
)
from seatrial_runner.tarstream import TarReader, write_tree

GREETING = {
    "protocol": 1,
    "instance": "0" * 32,
    "pid": 1,
    "uid": 0,
    "gid": 0,
    "user": "root",
    "home": None,
    "path": "/bin",
    "cwd": "/",
    "shell": None,
    "os": "linux",
    "arch": "amd64",
    "has_passwd": True,
    "can_switch_user": True,
}
HELLO = Hello(1, "0" * 32, 1, True, 0, 0, "root", None, "/bin", "/", None, "linux", "amd64", True, True)


def frame(kind: int, call_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload), kind, call_id) + payload


def result(call_id: int, **ok: object) -> bytes:
    return frame(wire.RESULT, call_id, json.dumps({"ok": ok}).encode())


def data(call_id: int, content: bytes, stream: int = wire.STREAM_OUT) -> bytes:
    pieces = [content[i : i + wire.CHUNK_BYTES] for i in range(0, len(content), wire.CHUNK_BYTES)]
    return b"".join(frame(wire.DATA, call_id, bytes([stream]) + piece) for piece in pieces)


class FakeEnvd:
    """The other end of a channel, driven by the test."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.settimeout(20)
        self.channel = Channel(ours, HELLO)

    def say(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def hear(self) -> tuple[int, int, bytes]:
        """The next frame of the runner: type, id, payload."""
        length, kind, call_id = struct.unpack(">IBI", self._exactly(9))
        return kind, call_id, self._exactly(length)

    def hear_request(self) -> tuple[int, dict[str, object]]:
        kind, call_id, payload = self.hear()
        assert kind == wire.REQUEST
        return call_id, json.loads(payload)

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            piece = self.sock.recv(count - len(parts))
            assert piece, "the runner hung up"
            parts += piece
        return parts


@pytest.fixture
def envd() -> Iterator[FakeEnvd]:
    fake = FakeEnvd()
    yield fake
    fake.channel.close()
    fake.sock.close()
    for thread in threading.enumerate():
        if thread.name == "envd-reader":
            thread.join(20)


# The greeting.


def greet(payload: bytes) -> Hello:
    """What a listener makes of a caller that sends these bytes."""
    with tempfile.TemporaryDirectory(prefix="channel-", dir="/tmp") as folder:
        path = f"{folder}/agent.sock"
        with Channel.listen(path) as listener, socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            caller.sendall(payload)
            caller.shutdown(socket.SHUT_WR)
            with listener.accept(20) as channel:
                return channel.hello


def test_a_proper_greeting_is_read_whole() -> None:
    assert greet(frame(wire.HELLO, 0, json.dumps(GREETING).encode())) == HELLO


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"protocol": 2}, id="another protocol"),
        pytest.param({"protocol": True}, id="truth value as number"),
        pytest.param({"instance": "x" * 32}, id="instance that is not hex"),
        pytest.param({"instance": "0" * 31}, id="short instance"),
        pytest.param({"pid": 0}, id="pid 0"),
        pytest.param({"uid": -1}, id="negative uid"),
        pytest.param({"uid": 2**32}, id="uid too large"),
        pytest.param({"uid": "0"}, id="text as number"),
        pytest.param({"cwd": None}, id="no directory"),
        pytest.param({"user": "x" * 5000}, id="endless name"),
        pytest.param({"has_passwd": 1}, id="number as truth value"),
    ],
)
def test_a_greeting_with_a_wrong_field_is_a_violation(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation):
        greet(frame(wire.HELLO, 0, json.dumps(GREETING | change).encode()))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(frame(wire.RESULT, 0, b"{}"), id="another frame"),
        pytest.param(frame(wire.HELLO, 1, json.dumps(GREETING).encode()), id="an id"),
        pytest.param(frame(wire.HELLO, 0, b"[]"), id="a list"),
        pytest.param(frame(wire.HELLO, 0, b"[" * 60000), id="deep nesting"),
        pytest.param(frame(wire.HELLO, 0, b"\xff"), id="not UTF-8"),
        pytest.param(struct.pack(">IBI", 1 << 20, wire.HELLO, 0), id="too long"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol altogether"),
    ],
)
def test_a_caller_that_does_not_greet_is_a_violation(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        greet(payload)


def test_a_caller_that_hangs_up_is_an_environment_that_exited() -> None:
    with pytest.raises(EnvironmentExited):
        greet(b"")


def test_control_characters_never_pass() -> None:
    assert greet(frame(wire.HELLO, 0, json.dumps(GREETING | {"user": "a\x1b[31m\n\u202e"}).encode())).user == "a?[31m??"


# Frames.


@pytest.mark.parametrize(
    "breach",
    [
        pytest.param(struct.pack(">IBI", (1 << 20) + 1, wire.RESULT, 1), id="result too long"),
        pytest.param(struct.pack(">IBI", (64 << 10) + 2, wire.DATA, 1), id="data too long"),
        pytest.param(frame(wire.REQUEST, 1, b"{}"), id="a request"),
        pytest.param(frame(wire.HELLO, 1, b"{}"), id="a second greeting"),
        pytest.param(frame(99, 1), id="unknown type"),
        pytest.param(result(2), id="answer to a request never made"),
        pytest.param(result(0), id="answer to request 0"),
        pytest.param(frame(wire.RESULT, 1, b"{"), id="broken JSON"),
        pytest.param(frame(wire.RESULT, 1, b"[" * 100_000), id="deep nesting"),
        pytest.param(frame(wire.RESULT, 1, b'{"ok":[]}'), id="result that is a list"),
        pytest.param(frame(wire.RESULT, 1, b'{"error":"no"}'), id="error that is text"),
        pytest.param(frame(wire.RESULT, 1, json.dumps({"error": {"kind": "x" * 50, "message": ""}}).encode()), id="endless kind"),
        pytest.param(frame(wire.DATA, 1), id="data without a stream"),
        pytest.param(data(1, b"x", stream=wire.STREAM_IN), id="data on stdin"),
        pytest.param(data(1, bytes(wire.WINDOW_BYTES + 1)), id="more data than granted"),
        pytest.param(frame(wire.CREDIT, 1, struct.pack(">BI", 0, 1)), id="credit for what was not sent"),
        pytest.param(frame(wire.CREDIT, 1, struct.pack(">BI", 1, 1)), id="credit for stdout"),
        pytest.param(frame(wire.CREDIT, 1, b"\0"), id="short credit"),
    ],
)
def test_a_breach_ends_the_channel_for_everybody(envd: FakeEnvd, breach: bytes) -> None:
    running = envd.channel.start("true")
    envd.say(breach)
    assert envd.channel.wait_closed(20)
    with pytest.raises(ProtocolViolation):
        running.wait(20)
    with pytest.raises(ProtocolViolation):
        envd.channel.stat("/")


def test_what_arrives_for_a_request_that_is_over_is_dropped(envd: FakeEnvd) -> None:
    first = envd.channel.start("true")
    envd.say(result(1, code=0), data(1, b"late"), frame(wire.CREDIT, 1, struct.pack(">BI", 0, 5)), result(1, code=1))
    assert first.wait(20) == ExitStatus(0, None)
    second = envd.channel.start("true")
    envd.say(result(2, signal=9, timed_out=True, oom_killed=True))
    assert second.wait(20) == ExitStatus(None, 9, timed_out=True, oom_killed=True)


def test_output_that_came_before_the_connection_broke_is_delivered(envd: FakeEnvd) -> None:
    received: list[bytes] = []
    running = envd.channel.start("true", on_output=lambda _, piece: received.append(piece))
    envd.say(data(1, b"last words"))
    envd.sock.close()
    with pytest.raises(EnvironmentExited):
        running.wait(20)
    assert received == [b"last words"]


def test_the_window_is_granted_again_as_output_is_taken(envd: FakeEnvd) -> None:
    sizes: list[int] = []
    running = envd.channel.start("true", on_output=lambda _, piece: sizes.append(len(piece)))
    assert envd.hear_request()[0] == 1
    for _ in range(8):
        envd.say(data(1, bytes(wire.WINDOW_BYTES // 4)))
        assert running.wait(0.05) is None
        assert envd.hear() == (wire.CREDIT, 1, struct.pack(">BI", wire.STREAM_OUT, wire.WINDOW_BYTES // 4))
    assert sum(sizes) == 2 * wire.WINDOW_BYTES


def test_nothing_is_granted_while_nobody_takes_the_output(envd: FakeEnvd) -> None:
    envd.channel.start("true")
    assert envd.hear_request()[0] == 1
    envd.say(data(1, bytes(wire.WINDOW_BYTES)))
    other = envd.channel.start("true")
    assert envd.hear_request()[0] == 2
    envd.say(result(2, code=0))
    assert other.wait(20) == ExitStatus(0, None)
    envd.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        envd.hear()


def test_requests_say_what_was_asked_for(envd: FakeEnvd) -> None:
    envd.channel.start(["ls", "-l"], env={"A": "ä"}, cwd="/x", user=5, stdin=True, timeout_seconds=1.5, merge=True)
    assert envd.hear_request() == (
        1,
        {
            "op": "exec",
            "argv": ["ls", "-l"],
            "env": {"A": "ä"},
            "cwd": "/x",
            "user": "5",
            "stdin": True,
            "merge": True,
            "timeout_seconds": 1.5,
        },
    )


def test_a_request_that_is_too_long_is_refused_here(envd: FakeEnvd) -> None:
    with pytest.raises(EnvdError, match="write long input to a file") as refused:
        envd.channel.start("x" * (5 << 20))
    assert refused.value.kind == "bad-request"
    assert not envd.channel.closed


# Answers.


@pytest.mark.parametrize(
    "ok",
    [
        pytest.param({}, id="neither code nor signal"),
        pytest.param({"code": 0, "signal": 9}, id="both"),
        pytest.param({"code": 256}, id="code too large"),
        pytest.param({"code": -1}, id="negative code"),
        pytest.param({"code": 0.0}, id="fraction"),
        pytest.param({"code": None}, id="null"),
        pytest.param({"signal": 0}, id="signal 0"),
        pytest.param({"code": 0, "timed_out": "no"}, id="text as truth value"),
    ],
)
def test_an_end_that_is_none_is_a_violation(envd: FakeEnvd, ok: dict[str, object]) -> None:
    running = envd.channel.start("true")
    envd.say(result(1, **ok))
    with pytest.raises(ProtocolViolation):
        running.wait(20)


def answer(envd: FakeEnvd, reply: Callable[[int], bytes]) -> threading.Thread:
    """Answer the next request as soon as it comes."""
    thread = threading.Thread(target=lambda: envd.say(reply(envd.hear_request()[0])))
    thread.start()
    return thread


def test_an_error_keeps_its_kind_and_loses_its_control_characters(envd: FakeEnvd) -> None:
    body = json.dumps({"error": {"kind": "io", "message": "disk\n\x1bfull"}}).encode()
    thread = answer(envd, lambda call_id: frame(wire.RESULT, call_id, body))
    with pytest.raises(EnvdError, match=r"^disk\?\?full$") as failed:
        envd.channel.mkdir("/x")
    assert (failed.value.kind, isinstance(failed.value, CommandFailed)) == ("io", False)
    thread.join()


STAT = {"kind": "file", "size": 1, "mode": 0o644, "uid": 0, "gid": 0, "mtime": -5}


def test_a_proper_stat_is_read_whole(envd: FakeEnvd) -> None:
    thread = answer(envd, lambda call_id: result(call_id, **STAT))
    assert envd.channel.stat("/x") == Stat("file", 1, 0o644, 0, 0, -5)
    thread.join()


@pytest.mark.parametrize("change", [{"kind": "socket"}, {"size": -1}, {"mode": 0o10000}, {"mtime": 1e3}])
def test_a_stat_with_a_wrong_field_is_a_violation(envd: FakeEnvd, change: dict[str, object]) -> None:
    thread = answer(envd, lambda call_id: result(call_id, **(STAT | change)))
    with pytest.raises(ProtocolViolation):
        envd.channel.stat("/x")
    thread.join()


@pytest.mark.parametrize(
    "rows", [None, {}, [1], [{}], [{"pid": 1, "ppid": 0, "uid": 0, "command": "x", "origin": "agent", "active": False}], [{}] * 1001]
)
def test_a_process_list_that_is_none_is_a_violation(envd: FakeEnvd, rows: object) -> None:
    thread = answer(envd, lambda call_id: result(call_id, processes=rows))
    with pytest.raises(ProtocolViolation):
        envd.channel.processes()
    thread.join()


def test_an_answer_that_does_not_come_is_given_up(envd: FakeEnvd) -> None:
    envd.channel.answer_seconds = 0.05
    with pytest.raises(NoAnswer) as failed:
        envd.channel.stat("/x")
    assert failed.value.kind == "no-answer"
    assert envd.hear_request() == (1, {"op": "stat", "path": "/x"})
    assert envd.hear() == (wire.CANCEL, 1, b"")
    assert not envd.channel.closed


def test_a_command_whose_timeout_is_long_over_is_given_up_although_output_trickles(envd: FakeEnvd) -> None:
    envd.channel.answer_seconds = 0.1
    running = envd.channel.start("true", timeout_seconds=0.1)
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.01):
            envd.say(data(1, b"."))

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(NoAnswer):
            running.wait()
    finally:
        stop.set()
        thread.join()


def test_an_upload_that_envd_does_not_take_is_given_up(envd: FakeEnvd) -> None:
    envd.channel.answer_seconds = 0.05
    drain = threading.Thread(target=lambda: [envd.hear() for _ in range(1 + wire.WINDOW_BYTES // wire.CHUNK_BYTES)])
    drain.start()
    with pytest.raises(NoAnswer, match="took no data"):
        envd.channel.put_bytes(bytes(1_000_000), "/x")
    drain.join()


def test_an_envd_that_reads_nothing_ends_the_channel(envd: FakeEnvd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SEND_SECONDS", 1)
    stuck = FakeEnvd()
    try:
        with pytest.raises(ProtocolViolation, match="read nothing"):
            stuck.channel.start("x" * 4_000_000)
    finally:
        stuck.channel.close()
        stuck.sock.close()


def test_an_upload_that_fails_early_stops_and_tells_why(envd: FakeEnvd) -> None:
    body = json.dumps({"error": {"kind": "io", "message": "no space left on device"}}).encode()

    def fail_and_read_on() -> None:
        envd.say(frame(wire.RESULT, envd.hear_request()[0], body))
        while envd.sock.recv(65536):
            pass

    thread = threading.Thread(target=fail_and_read_on)
    thread.start()
    with pytest.raises(EnvdError, match="no space left"):
        envd.channel.put_bytes(bytes(100_000_000), "/x")
    envd.channel.close()
    thread.join()


# Downloads.

SUMMARY = {"skipped_special": 0, "skipped_large": 0, "skipped_unreadable": 0, "changed": 0, "truncated": False}


def tar_of(*entries: tuple[str, bytes, bytes | str]) -> bytes:
    """A tar of (name, type, content or link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, str):
                info.linkname = content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return _trimmed(out.getvalue())


def _trimmed(archive: bytes) -> bytes:
    """Without the padding that tarfile adds behind the two blocks that end an archive."""
    end = len(archive.rstrip(b"\0"))
    return archive[: end + -end % 512] + bytes(1024)


FILE, FOLDER, LINK = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(tar_of(("../x", FILE, b"1")), id="leaves the folder"),
        pytest.param(tar_of(("/x", FILE, b"1")), id="absolute"),
        pytest.param(tar_of(("a/./x", FILE, b"1")), id="dot in the middle"),
        pytest.param(tar_of(("a//x", FILE, b"1")), id="empty part"),
        pytest.param(tar_of((".", FILE, b"1")), id="file without a name"),
        pytest.param(tar_of(("n" * 256, FILE, b"1")), id="part too long"),
        pytest.param(tar_of(("d/" * 2100 + "x", FILE, b"1")), id="path too long"),
        pytest.param(tar_of(("x", tarfile.LNKTYPE, "y")), id="hard link"),
        pytest.param(tar_of(("x", tarfile.CHRTYPE, b"")), id="device"),
        pytest.param(tar_of(("x", tarfile.FIFOTYPE, b"")), id="fifo"),
        pytest.param(tar_of(("x", tarfile.GNUTYPE_SPARSE, b"")), id="sparse file"),
        pytest.param(tar_of(("x", FILE, b"1" * 101)), id="more bytes than asked for"),
        pytest.param(tar_of(*((str(i), FILE, b"") for i in range(11))), id="more entries than asked for"),
        pytest.param(tar_of(("x", FILE, b"1"))[:700], id="cut off"),
        pytest.param(tar_of(("x", FILE, b"1")) + bytes(512), id="data behind the end"),
        pytest.param(b"\1" + tar_of(("x", FILE, b"1"))[1:], id="damaged header"),
        pytest.param(b"rubbish!" * 200, id="rubbish"),
        pytest.param(tar_of(("a", FILE, b"1"), ("a/b", FILE, b"2")), id="file as folder"),
        pytest.param(tar_of(("a", FILE, b"1"), ("a", FILE, b"2")), id="same name twice"),
        pytest.param(tar_of(("a/b", FILE, b"1")), id="folder never named"),
        pytest.param(tar_of(("a", LINK, "/etc"), ("a/b", FILE, b"1")), id="below a link"),
    ],
)
def test_a_hostile_tar_stream_is_a_violation_and_leaves_nothing_outside(envd: FakeEnvd, tmp_path: Path, stream: bytes) -> None:
    thread = answer(envd, lambda call_id: data(call_id, stream) + result(call_id, **SUMMARY))
    target = tmp_path / "deep" / "target"
    with pytest.raises(ProtocolViolation):
        envd.channel.get_tree("/logs", target, max_bytes=100, max_entries=10)
    thread.join()
    assert os.listdir(tmp_path) == ["deep"]
    assert os.listdir(tmp_path / "deep") == ["target"]


def test_an_error_in_the_middle_of_a_download_is_told(envd: FakeEnvd) -> None:
    body = json.dumps({"error": {"kind": "io", "message": "input/output error"}}).encode()
    stream = tar_of(("x", FILE, b"1" * 2000))[:1000]
    thread = answer(envd, lambda call_id: data(call_id, stream) + frame(wire.RESULT, call_id, body))
    with envd.channel.get("/x", max_bytes=10_000, max_entries=1) as download:
        assert next(iter(download)).size == 2000
        with pytest.raises(EnvdError, match="input/output error"):
            list(iter(download.read, b""))
    thread.join()


def test_a_download_that_stalls_is_given_up(envd: FakeEnvd) -> None:
    envd.channel.answer_seconds = 0.05
    thread = answer(envd, lambda call_id: data(call_id, tar_of(("x", FILE, b"1" * 2000))[:1000]))
    with envd.channel.get("/x", max_bytes=10_000, max_entries=1) as download:
        assert next(iter(download)).size == 2000
        with pytest.raises(NoAnswer, match="sent nothing"):
            list(iter(download.read, b""))
    thread.join()


# The tar reader and writer by themselves.


def pieces_of(stream: bytes, size: int) -> Callable[[], bytes]:
    source = io.BytesIO(stream)
    return lambda: source.read(size)


def entries_or_violation(stream: bytes, size: int) -> list[str]:
    """The names in a stream as far as it is an archive. Any other exception than a violation comes through."""
    reader, found = TarReader(pieces_of(stream, size)), []
    try:
        while (entry := reader.next()) is not None:
            found.append(entry.name)
    except ProtocolViolation:
        found.append("violation")
    return found


@given(st.binary(max_size=3000).filter(lambda stream: any(stream[:512])), st.integers(1, 700))
def test_random_bytes_are_no_archive(stream: bytes, size: int) -> None:
    assert entries_or_violation(stream, size) == ["violation"]


@given(st.data())
def test_a_damaged_archive_is_an_archive_or_a_violation(source: st.DataObject) -> None:
    stream = bytearray(tar_of(("a" * 120, FILE, b"x" * 600), ("link", LINK, "y" * 120), ("d", FOLDER, b"")))
    for _ in range(source.draw(st.integers(1, 4))):
        stream[source.draw(st.integers(0, len(stream) - 1))] = source.draw(st.integers(0, 255))
    for name in entries_or_violation(bytes(stream), 512):
        assert not {"..", "."} & set(name.split("/"))


def test_an_extended_header_is_bounded_before_it_is_read() -> None:
    endless = bytearray(tar_of(("a" * 120, FILE, b"")))
    endless[124:136] = b"77777777777\0"
    pulled = 0

    def pull() -> bytes:
        nonlocal pulled
        pulled += 1
        return bytes(endless)

    with pytest.raises(ProtocolViolation, match="extended tar header of 8589934591 bytes"):
        TarReader(pull).next()
    assert pulled == 1


def test_the_writers_trees_are_what_tarfile_reads(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o4755)
    (tmp_path / "sub" / ("ü" * 120)).write_bytes(b"x" * 513)
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("t" * 150)
    with tarfile.open(fileobj=io.BytesIO(b"".join(write_tree(tmp_path)))) as archive:
        got = [(m.name, m.type, m.mode, m.size, m.linkname, (m.uid, m.gid)) for m in archive]
        content = archive.extractfile("sub/" + "ü" * 120)
        assert content is not None
        assert content.read() == b"x" * 513
    root = (0, 0)
    assert got == [
        ("empty", FILE, 0o644, 0, "", root),
        ("link", LINK, 0o777, 0, "t" * 150, root),
        ("run.sh", FILE, 0o4755, 10, "", root),
        ("sub", FOLDER, 0o755, 0, "", root),
        ("sub/deeper", FOLDER, 0o755, 0, "", root),
        ("sub/" + "ü" * 120, FILE, 0o644, 513, "", root),
    ]


def test_the_writer_names_what_it_cannot_send(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="fifo is neither file, directory nor link"):
        list(write_tree(tmp_path))
    with pytest.raises(NotADirectoryError):
        list(write_tree(tmp_path / "fifo"))
