"""The desk of an agent image: commands and files of the environment for the client ``seatrial-env`` in the user's own container.

Why through us: the user's image needs nothing but the client, which is a static program; time limits, volumes and SIGTERM stay here. The
socket lies in a volume that the environment does not see. Frames: ``runner-image/envd/client.go``.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

from seatrial.contract import DESK_MARK
from seatrial_runner.channel import Channel, ChannelError, Entry
from seatrial_runner.frames import FAILED, HEAD_BYTES, PIECE_BYTES, SOCKET, TIMED_OUT, FrameWriter, frame, size_of

LOCK: Final = "agent.lock"
_FRAME_BYTES: Final = 1 << 20
_CONNECTIONS: Final = 256
"""Served at a time, as many as envd takes requests. More wait for their turn: an agent's image must not fill our memory with threads."""
_TREE_BYTES: Final = 8 * 1024 * 1024 * 1024
_TREE_ENTRIES: Final = 1_000_000
_HOOK_SECONDS: Final = 5.0
_LATE_HOOK_SECONDS: Final = 120.0


class Desk:
    """Serves one channel until it is closed; each connection is one request."""

    def __init__(self, folder: str, channel: Channel, *, workdir: str, user: str | int | None) -> None:
        """
        Args:
            folder: writable for this container and the user's.
            user: as whom commands run unless they say otherwise.
        """
        self._channel, self._workdir, self._user = channel, workdir, user
        self._free = threading.Semaphore(_CONNECTIONS)
        self._socket = socket.socket(socket.AF_UNIX)
        path = f"{folder}/{SOCKET}"
        # Renamed into place: the client takes a socket that exists for one that answers.
        self._socket.bind(f"{path}.new")
        os.chmod(f"{path}.new", 0o777)
        self._socket.listen(64)
        os.rename(f"{path}.new", path)
        threading.Thread(target=self._accept, name="desk", daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve_and_free, args=(connection,), name="request", daemon=True).start()

    def _serve_and_free(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        finally:
            self._free.release()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            peer = _Peer(connection)
            try:
                code, error = self._answer(peer), ""
            except (AttributeError, ChannelError, KeyError, RecursionError, TypeError, ValueError) as fault:
                code, error = FAILED, str(fault) or type(fault).__name__
            except OSError:
                return  # the client went away
            try:
                peer.send(b"x", json.dumps({"code": code, "error": error[:1000]}).encode())
            except OSError:
                return

    def _answer(self, peer: _Peer) -> int:
        request = peer.request()
        match request["op"]:
            case "wait":
                return 0
            case "exec":
                return self._exec(peer, request)
            case "put":
                self._channel.put(peer.input(), self._path(request))
                return 0
            case "get":
                self._get(peer, self._path(request))
                return 0
            case other:
                raise ValueError(f"unknown request {other!r}")

    def _path(self, request: dict[str, Any]) -> str:
        path = str(request["path"])
        return path if path.startswith("/") else f"{self._workdir.rstrip('/')}/{path}"

    def _exec(self, peer: _Peer, request: dict[str, Any]) -> int:
        command: str | list[str] = str(request["shell"]) if request.get("shell") else [str(item) for item in request["argv"]]

        def send(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            for start in range(0, len(data), PIECE_BYTES):
                peer.send(b"o" if stream == "stdout" else b"e", data[start : start + PIECE_BYTES])

        running = self._channel.start(
            command,
            env={str(name): str(value) for name, value in (request.get("env") or {}).items()},
            cwd=self._path({"path": request["cwd"]}) if request.get("cwd") else self._workdir,
            user=str(request["user"]) if request.get("user") else self._user,
            stdin=bool(request.get("stdin")),
            timeout_seconds=float(request.get("timeout") or 0) or None,
            on_output=send,
        )

        def feed() -> None:
            try:
                for piece in peer.input():
                    running.write_stdin(piece)
                running.close_stdin()
            except (ChannelError, ValueError):
                return  # ``wait`` tells it
            except OSError:
                running.cancel()  # the client was killed: its command goes with it

        # Without an input nothing more comes, and the end of the connection means that nobody waits any more.
        threading.Thread(target=feed, name="input", daemon=True).start()
        status = running.wait()
        if status is None:
            raise ValueError("the command did not end")
        return TIMED_OUT if status.timed_out else status.returncode

    def _get(self, peer: _Peer, path: str) -> None:
        with self._channel.get(path, max_bytes=_TREE_BYTES, max_entries=_TREE_ENTRIES) as items:
            out: tarfile.TarFile | None = None
            for entry in items:
                if out is None:
                    peer.send(b"k", b"dir" if entry.kind == "dir" else b"file")
                    out = tarfile.open(fileobj=FrameWriter(peer.send, b"o"), mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed below
                    if entry.kind == "dir":
                        continue
                out.addfile(_member(entry), _Content(items.read) if entry.kind == "file" else None)
            if out is not None:
                out.close()


def has_ended(folder: str, *, began: float) -> bool:
    """Whether the user's container is over: gone with its lock, or so soon that its postStart hook could not take one.

    Only the kubelet sees the second. It starts the containers of a Pod one after another, hooks included, the user's before ours, and makes
    the mark when it creates the user's: an older mark without a lock means that the hook came too late. Where the image had to be pulled
    again after our start the hook is still due, and gets the time that the kubelet gives a call of the container runtime.

    Args:
        began: when our own container started, in seconds since the epoch.
    """
    alive = is_alive(folder)
    if alive is not None:
        return not alive
    try:
        made = os.stat(f"{folder}/{DESK_MARK}", follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return time.time() - made >= (_HOOK_SECONDS if made < began else _LATE_HOOK_SECONDS)


def is_alive(folder: str) -> bool | None:
    """Whether the user's container holds its lock; None while it has not taken it yet."""
    try:
        descriptor = os.open(f"{folder}/{LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _member(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime = entry.mode & 0o777, max(0, entry.mtime)
    match entry.kind:
        case "dir":
            info.type = tarfile.DIRTYPE
        case "link":
            info.type, info.linkname = tarfile.SYMTYPE, entry.link_target
        case _:
            info.size = entry.size
    return info


class _Peer:
    """One connection, in frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def request(self) -> dict[str, Any]:
        kind, data = self._receive()
        body = json.loads(data) if kind == b"r" else None
        if not isinstance(body, dict):
            raise ValueError("the first frame is not a request")
        return body

    def input(self) -> Iterator[bytes]:
        while True:
            kind, data = self._receive()
            if kind == b"f":
                return
            if kind != b"i":
                raise ValueError(f"unexpected frame {kind!r}")
            yield data

    def send(self, kind: bytes, data: bytes) -> None:
        with self._sending:
            self._connection.sendall(frame(kind, data))

    def _receive(self) -> tuple[bytes, bytes]:
        head = self._exactly(HEAD_BYTES)
        size = size_of(head)
        if size > _FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes")
        return head[:1], self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the client went away")
            data += piece
        return data


class _Content(io.RawIOBase):
    """The content of the current entry for ``tarfile``."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces = []
        while size != 0 and (piece := self._read(PIECE_BYTES if size < 0 else min(size, PIECE_BYTES))):
            pieces.append(piece)
            size -= len(piece) if size > 0 else 0
        return b"".join(pieces)
