"""The runner's end of the connection to envd: run commands and move files in the environment container.

Why sockets and one reader thread instead of asyncio: agent and verifier each drive one command after the other, and start-up time is
paid by every trial. Wire format: ``runner-image/envd/proto.go``.

Everything that arrives from envd is untrusted: the image's own processes start before envd and may dial first, and later they may write
whatever envd reads. So every frame, queue, file and answer is bounded; a breach raises :class:`ProtocolViolation` and closes the channel.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, cast

from seatrial_runner import wire
from seatrial_runner.tarstream import Entry, TarReader, write_tree
from seatrial_runner.wire import ChannelError, EnvdError, EnvironmentExited, Json, NoAnswer, ProtocolViolation

__all__ = [
    "Channel",
    "ChannelError",
    "CommandFailed",
    "Completed",
    "ConnectTimeout",
    "Download",
    "Entry",
    "EnvdError",
    "EnvironmentExited",
    "ExitStatus",
    "GetSummary",
    "Hello",
    "Listener",
    "Missing",
    "NoAnswer",
    "NotRegular",
    "Process",
    "ProtocolViolation",
    "PutSummary",
    "RunningExec",
    "Stat",
    "TooLarge",
    "Usage",
]

_ANSWER_SECONDS: Final = 120.0
"""A request that moves nothing for so long is given up. Long enough for a tree on a busy disk to be removed."""

_START_FAILURES: Final = frozenset({"no-shell", "not-found", "no-cwd", "no-such-user", "cannot-switch", "cannot-start"})


class ConnectTimeout(ChannelError):
    """Nobody dialled, or the caller did not greet, in time: envd was not started, or not by the image."""


class CommandFailed(EnvdError):
    """The command could not be started at all (no shell, not found, no such user or directory, …). An exit code is not an error."""


class Hello(NamedTuple):
    """What envd says of the environment when it connects. Claims, not facts: bounded and typed, but the image may lie."""

    protocol: int
    instance: str  # 32 hex digits, drawn once per envd: the agent's and the verifier's channel must name the same one
    pid: int
    is_pid1: bool
    uid: int  # of the container's own user, under which commands run when no user is asked for
    gid: int
    user: str | None  # its name in /etc/passwd
    home: str | None
    path: str | None  # the container's PATH
    cwd: str
    shell: str | None  # bash if there is one, else sh, else None: then only argv commands run
    os: str
    arch: str
    has_passwd: bool
    can_switch_user: bool


class ExitStatus(NamedTuple):
    """How a command ended. Exactly one of ``code`` and ``signal`` is set."""

    code: int | None
    signal: int | None
    timed_out: bool = False
    oom_killed: bool | None = None  # the container's memory limit killed a process meanwhile; None: the kernel does not tell

    @property
    def returncode(self) -> int:
        """As a shell reports it: the code, or 128 + signal."""
        return self.code if self.code is not None else 128 + (self.signal or 0)

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out


class Completed(NamedTuple):
    """A finished command with the first bytes of its output."""

    status: ExitStatus
    stdout: bytes
    stderr: bytes
    truncated: bool  # more output came than ``max_output_bytes`` per stream


class Missing(NamedTuple):
    """Nothing is at this path."""

    path: str


class NotRegular(NamedTuple):
    """A link, directory, device, … is at this path: not read."""

    path: str
    kind: str


class TooLarge(NamedTuple):
    """The file is larger than the caller's limit: not read."""

    path: str
    size: int


EntryKind = Literal["file", "dir", "link", "other"]


class Stat(NamedTuple):
    """lstat of a path in the environment."""

    kind: EntryKind
    size: int
    mode: int  # permission bits only
    uid: int
    gid: int
    mtime: int


class Process(NamedTuple):
    """One process of the environment container."""

    pid: int
    ppid: int
    uid: int
    command: str  # at most 200 bytes, undecodable bytes replaced
    origin: Literal["image", "exec"]  # "image": started by the ENTRYPOINT; "exec": descends from a command that envd ran
    active: bool  # belongs to a command that still runs; False with origin "exec" is what a command left behind


class Usage(NamedTuple):
    """Disk space used below a path, counted without following links or leaving the file system."""

    size_bytes: int
    entries: int
    truncated: bool  # more entries than asked for: the figures are a lower bound


class ProcessTable(NamedTuple):
    processes: tuple[Process, ...]
    ended_orphans: int  # so far: children of processes that had ended before them


class Changed(NamedTuple):
    """Files that changed since a time, or links that were cut because they did."""

    total: int
    names: tuple[str, ...]  # at most ten, cut
    truncated: bool  # not all could be looked at: the total is a lower bound


class GetSummary(NamedTuple):
    """What a download brought, and what it left out."""

    entries: int
    size_bytes: int
    skipped_special: int  # devices, sockets, fifos
    skipped_large: int  # files above max_file_bytes, or that no longer fitted into max_bytes
    skipped_unreadable: int
    changed: int  # files that changed while they were read: cut or padded with zeros to the size announced
    truncated: bool  # max_entries or the depth limit was met


class PutSummary(NamedTuple):
    entries: int
    size_bytes: int


OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]


class Listener:
    """A bound socket that waits for the one envd of the Pod."""

    def __init__(self, path: str) -> None:
        self.path = path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            # Connecting needs write permission, and the environment may run as any uid.
            os.chmod(path, 0o666)
            info = os.lstat(path)
            sock.listen(1)
        except OSError as error:
            sock.close()
            raise ChannelError(f"cannot listen at {path}: {error.strerror or error}") from error
        self._sock = sock
        self._inode = (info.st_dev, info.st_ino)
        self._open = True

    def accept(self, timeout_seconds: float) -> Channel:
        """Wait for envd, unlink the socket, check the greeting.

        Exactly one connection is accepted, whoever it is: a wrong one is an error of the trial and never an invitation to try again.
        What that proves: the peer could reach ``ctl``, speaks this protocol, and nobody can take its place later. What it does not: the
        image's own ENTRYPOINT can do all that too. Compare ``hello.instance`` of the agent's and the verifier's channel to see an impostor
        that took only one of the two. The Pod's other containers are kept away by their mounts: each has its own socket's folder alone.

        Raises:
            ConnectTimeout: nobody dialled or greeted within ``timeout_seconds``.
            ProtocolViolation: the caller did not greet as envd does, or the socket was replaced.
            EnvironmentExited: the caller hung up.
        """
        deadline = time.monotonic() + timeout_seconds
        self._sock.settimeout(max(timeout_seconds, 0.001))
        try:
            sock, _ = self._sock.accept()
        except TimeoutError:
            raise ConnectTimeout(
                f"the environment did not connect within {timeout_seconds:g} s: neither its arguments nor the startup probe started envd"
            ) from None
        except OSError as error:
            raise ChannelError(f"cannot accept at {self.path}: {error.strerror or error}") from error
        finally:
            replaced = self._is_replaced()
            self.close()
        try:
            if replaced:
                raise ProtocolViolation(f"the socket {self.path} was replaced by another container of the Pod")
            hello = _read_hello(sock, deadline)
        except TimeoutError:
            sock.close()
            raise ConnectTimeout(f"a process connected to {self.path} and did not greet within {timeout_seconds:g} s") from None
        except ChannelError:
            sock.close()
            raise
        sock.settimeout(None)
        return Channel(sock, hello)

    def close(self) -> None:
        """Stop listening and unlink the socket. Harmless after ``accept``."""
        if not self._open:
            return
        self._open = False
        self._sock.close()
        if not self._is_replaced():
            os.unlink(self.path)

    def _is_replaced(self) -> bool:
        try:
            info = os.lstat(self.path)
        except OSError:
            return True
        return (info.st_dev, info.st_ino) != self._inode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _read_hello(sock: socket.socket, deadline: float) -> Hello:
    frame = wire.read_frame(sock, deadline=deadline)
    if frame.kind != wire.HELLO or frame.id != 0:
        raise ProtocolViolation("the first frame is not envd's greeting")
    body = wire.parse_json(frame.payload)
    protocol = wire.take_int(body, "protocol")
    if protocol != wire.PROTOCOL:
        raise ProtocolViolation(f"envd speaks protocol {protocol}, this runner {wire.PROTOCOL}: both come from one runner image")
    instance = wire.take_str(body, "instance", 32)
    if len(instance) != 32 or not set(instance) <= set("0123456789abcdef"):
        raise ProtocolViolation("envd sent no valid text as instance")
    pid = wire.take_int(body, "pid", low=1)

    def optional(key: str) -> str | None:
        return None if body.get(key) is None else wire.take_str(body, key, 4096)

    return Hello(
        protocol=protocol,
        instance=instance,
        pid=pid,
        is_pid1=pid == 1,
        uid=wire.take_int(body, "uid", high=2**32 - 1),
        gid=wire.take_int(body, "gid", high=2**32 - 1),
        user=optional("user"),
        home=optional("home"),
        path=optional("path"),
        cwd=wire.take_str(body, "cwd", 4096),
        shell=optional("shell"),
        os=wire.take_str(body, "os", 40),
        arch=wire.take_str(body, "arch", 40),
        has_passwd=wire.take_bool(body, "has_passwd"),
        can_switch_user=wire.take_bool(body, "can_switch_user"),
    )


class RunningExec:
    """A command that runs. Its output is delivered inside ``wait``, in the waiting thread; unread output slows the command down."""

    def __init__(
        self,
        connection: wire.Connection,
        call: wire.Call,
        *,
        on_output: OnOutput | None,
        deadline: float | None,
    ) -> None:
        self._connection = connection
        self._call = call
        self._on_output = on_output
        self._deadline = deadline
        """When envd must have answered, its own timeout included."""
        self._status: ExitStatus | None = None

    def wait(self, timeout_seconds: float | None = None) -> ExitStatus | None:
        """Deliver output until the command ends; None when ``timeout_seconds`` passed first (call again).

        Raises:
            CommandFailed: the command could not be started.
            NoAnswer: its timeout is long over and envd does not tell its end.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self._status is None:
            limits = [limit - time.monotonic() for limit in (until, self._deadline) if limit is not None]
            if limits and min(limits) <= 0:
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._call.cancel()
                    raise NoAnswer("envd did not report the end of a command whose timeout is over")
                return None
            event = self._call.next(min(limits) if limits else None)
            match event:
                case None:
                    continue
                case wire.Data(stream, data):
                    self._deliver(stream, data)
                case wire.Result(_, wire.EnvdError() as error):
                    raise CommandFailed(error.kind, str(error)) if error.kind in _START_FAILURES else error
                case wire.Result(ok):
                    self._status = _parse_status(ok)
        return self._status

    def kill(self, *, grace_seconds: float = 2.0) -> None:
        """End the command's process group: TERM, KILL after the grace. Returns at once; ``wait`` tells the end. Any thread may call it."""
        self._connection.tell({"op": "kill", "exec": self._call.id, "grace_seconds": grace_seconds})

    def write_stdin(self, data: bytes) -> None:
        """Send bytes to the command's standard input (``stdin=True``), waiting while it does not read. Lost when the command has ended."""
        self._call.send_chunk(data, idle_seconds=None)

    def close_stdin(self) -> None:
        """The command reads end of file after what was written."""
        self._call.send_eof()

    def cancel(self) -> None:
        """End the command as ``kill`` does, and take no interest in its output or end."""
        self._call.cancel()

    def _deliver(self, stream: int, data: bytes) -> None:
        if self._on_output is None:
            return
        try:
            self._on_output("stdout" if stream == wire.STREAM_OUT else "stderr", data)
        except BaseException:
            self.cancel()
            raise


def _parse_status(ok: Json) -> ExitStatus:
    code = wire.take_int(ok, "code", high=255) if "code" in ok else None
    signal = wire.take_int(ok, "signal", low=1, high=127) if "signal" in ok else None
    if (code is None) == (signal is None):
        raise ProtocolViolation("envd sent an end without a code or a signal")
    oom_killed = wire.take_bool(ok, "oom_killed") if "oom_killed" in ok else None
    return ExitStatus(code, signal, timed_out=wire.take_bool(ok, "timed_out", default=False), oom_killed=oom_killed)


class Download:
    """A running ``get``: iterate the entries in order; ``read`` gives the bytes of the file that was yielded last."""

    def __init__(self, call: wire.Call, *, path: str, max_bytes: int, max_entries: int, answer_seconds: float) -> None:
        self._call = call
        self._path = path
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._answer_seconds = answer_seconds
        self._reader = TarReader(self._pull)
        self._first: Entry | None = None
        self._result: Json | None = None
        self._entries = 0
        self._size = 0
        self._summary: GetSummary | None = None

    def begin(self) -> Self:
        """Wait for the first entry, so that a missing path is an error of ``get`` itself."""
        self._first = self._next()
        return self

    def __iter__(self) -> Iterator[Entry]:
        while self._first is not None:
            yield self._first
            self._first = self._next()

    def read(self, max_bytes: int = 65536) -> bytes:
        """Next bytes of the current file, b"" at its end. What is not read is skipped."""
        return self._reader.read(max_bytes)

    @property
    def summary(self) -> GetSummary:
        """Known when the iteration has ended."""
        if self._summary is None:
            raise ValueError(f"the download of {self._path} has not ended")
        return self._summary

    def close(self) -> None:
        """Stop the transfer; harmless at its end."""
        if self._summary is None:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _next(self) -> Entry | None:
        try:
            entry = self._reader.next()
            if entry is None:
                self._finish()
                return None
            self._entries += 1
            self._size += entry.size
            if self._entries > self._max_entries or self._size > self._max_bytes:
                raise ProtocolViolation(f"envd sent more of {self._path} than it was asked for")
        except ProtocolViolation:
            self._call.cancel()
            raise
        return entry

    def _pull(self) -> bytes:
        if self._result is not None:
            return b""
        match self._call.next(self._answer_seconds):
            case None:
                self._call.cancel()
                raise NoAnswer(f"envd sent nothing of {self._path} for {self._answer_seconds:g} s")
            case wire.Data(_, data):
                return data
            case wire.Result(ok, error):
                if error is not None:
                    raise error
                self._result = ok
                return b""

    def _finish(self) -> None:
        if self._reader.has_rest() or self._pull():
            raise ProtocolViolation("envd sent data behind the end of a tar stream")
        ok = self._result or {}
        self._summary = GetSummary(
            entries=self._entries,
            size_bytes=self._size,
            skipped_special=wire.take_int(ok, "skipped_special"),
            skipped_large=wire.take_int(ok, "skipped_large"),
            skipped_unreadable=wire.take_int(ok, "skipped_unreadable"),
            changed=wire.take_int(ok, "changed"),
            truncated=wire.take_bool(ok, "truncated"),
        )


class Channel:
    """Requests to one envd. Any number of threads may use one channel at the same time.

    Every method may raise :class:`EnvironmentExited`, :class:`ProtocolViolation` and :class:`EnvdError`. Methods other than ``exec``
    and ``start`` raise :class:`NoAnswer` when nothing moves for ``answer_seconds``.
    """

    def __init__(self, sock: socket.socket, hello: Hello) -> None:
        """Use ``Channel.listen(path).accept(…)``."""
        self.hello = hello
        self.answer_seconds = _ANSWER_SECONDS
        self._connection = wire.Connection(sock)

    @classmethod
    def listen(cls, path: str | PathLike[str]) -> Listener:
        """Bind a unix socket at ``path``, connectable by any uid and through a read-only mount.

        Raises:
            ChannelError: something is at ``path`` already, or it cannot be bound.
        """
        return Listener(os.fspath(path))

    @property
    def closed(self) -> bool:
        """True once the environment is gone or ``close`` was called."""
        return self._connection.ended.is_set()

    def wait_closed(self, timeout_seconds: float | None = None) -> bool:
        """Block until the connection is gone; False when ``timeout_seconds`` passed first."""
        return self._connection.ended.wait(timeout_seconds)

    def exec(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        stdin: bytes | Iterable[bytes] | None = None,
        timeout_seconds: float | None = None,
        on_output: OnOutput | None = None,
        merge: bool = False,
    ) -> ExitStatus:
        """Run a command to its end.

        Args:
            command: a string for ``bash -c`` (``sh -c`` where there is no bash), or an argv that needs no shell.
            env: added to the container's own environment.
            cwd: default: the container's working directory.
            user: name, uid, "uid:gid"; None is the container's own user. Another user needs an envd that runs as root.
            timeout_seconds: then its process group gets TERM, later KILL, and the status says ``timed_out``. None or 0: no limit.
            on_output: gets ("stdout" | "stderr", bytes) in the calling thread; None throws output away.
            merge: stdout and stderr share one pipe; all arrives as "stdout".

        Raises:
            CommandFailed: it could not be started.
        """
        running = self.start(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin is not None,
            timeout_seconds=timeout_seconds,
            on_output=on_output,
            merge=merge,
        )
        if stdin is not None:
            self._feed(running, stdin)
        try:
            status = running.wait()
        except BaseException:
            running.cancel()
            raise
        return cast(ExitStatus, status)

    @staticmethod
    def _feed(running: RunningExec, stdin: bytes | Iterable[bytes]) -> None:
        """Send all input. What may be sent at once is; more needs a thread beside the one that takes the output."""

        def send() -> None:
            try:
                for chunk in wire.split(stdin) if isinstance(stdin, bytes) else stdin:
                    running.write_stdin(chunk)
                running.close_stdin()
            except ChannelError:
                return  # ``wait`` raises it too

        if isinstance(stdin, bytes) and len(stdin) <= wire.WINDOW_BYTES:
            send()
        else:
            threading.Thread(target=send, name="envd-stdin", daemon=True).start()

    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        stdin: bytes | Iterable[bytes] | None = None,
        timeout_seconds: float | None = None,
        merge: bool = False,
        max_output_bytes: int = 1 << 20,
    ) -> Completed:
        """``exec`` that keeps the first ``max_output_bytes`` of each stream."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        truncated = False

        def keep(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            nonlocal truncated
            room = max_output_bytes - len(kept[stream])
            kept[stream] += data[:room]
            truncated = truncated or len(data) > room

        status = self.exec(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            on_output=keep,
            merge=merge,
        )
        return Completed(status, bytes(kept["stdout"]), bytes(kept["stderr"]), truncated)

    def start(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        stdin: bool = False,
        timeout_seconds: float | None = None,
        on_output: OnOutput | None = None,
        merge: bool = False,
    ) -> RunningExec:
        """Like ``exec``, without waiting. A command that cannot be started raises from ``wait``."""
        what = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
        deadline = time.monotonic() + timeout_seconds + self.answer_seconds if timeout_seconds else None
        call = self._connection.open(
            {
                "op": "exec",
                **what,
                "env": dict(env or {}),
                "cwd": cwd or "",
                "user": _user(user) or "",
                "stdin": stdin,
                "merge": merge,
                "timeout_seconds": timeout_seconds or 0,
            }
        )
        return RunningExec(self._connection, call, on_output=on_output, deadline=deadline)

    def put(
        self,
        source: str | PathLike[str] | Iterable[bytes],
        target: str,
        *,
        empty_first: bool = False,
        owner: str | int | None = None,
        dir_mode: int = 0o755,
    ) -> PutSummary:
        """Copy the contents of a local directory, or a tar stream in chunks, into the directory ``target``.

        ``target`` and its parents are made with ``dir_mode``. Modes are kept; everything belongs to root (to the container's user where
        envd is not root) unless ``owner`` says otherwise. Files in the way are replaced, directories are merged. ``empty_first`` removes
        what ``target`` held; a link at ``target`` is replaced then and refused otherwise.

        Raises:
            OSError: the local directory cannot be read.
        """
        chunks = write_tree(source) if isinstance(source, str | PathLike) else source
        request = {"op": "put", "path": target, "empty_first": empty_first, "owner": _user(owner), "dir_mode": dir_mode}
        ok = self._send(request, chunks)
        return PutSummary(wire.take_int(ok, "entries"), wire.take_int(ok, "bytes"))

    def put_bytes(self, data: bytes, path: str, *, mode: int = 0o644, owner: str | int | None = None) -> None:
        """Write one file, replacing what is there (a link too, never what it points to); parents are made (0755)."""
        self._send({"op": "write", "path": path, "size": len(data), "mode": mode, "owner": _user(owner)}, wire.split(data))

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> Download:
        """Read a file or a directory tree out of the environment. Links are never followed; special files are skipped and counted.

        Raises:
            EnvdError: kind "missing" when nothing is at ``path``.
        """
        request = {"op": "get", "path": path, "max_bytes": max_bytes, "max_entries": max_entries, "max_file_bytes": max_file_bytes or 0}
        call = self._connection.open(request)
        download = Download(call, path=path, max_bytes=max_bytes, max_entries=max_entries, answer_seconds=self.answer_seconds)
        return download.begin()

    def get_tree(
        self,
        path: str,
        target: str | PathLike[str],
        *,
        max_bytes: int,
        max_entries: int,
        max_file_bytes: int | None = None,
    ) -> GetSummary:
        """``get`` into the local directory ``target``: regular files and directories only (0644/0755, links are left out).

        ``target`` is made if missing, must be empty, and must not be writable by the environment. A single file keeps its base name.
        """
        os.makedirs(target, exist_ok=True)
        with self.get(path, max_bytes=max_bytes, max_entries=max_entries, max_file_bytes=max_file_bytes) as download:
            for entry in download:
                try:
                    _extract(download, entry, os.path.join(target, entry.name))
                except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
                    raise ProtocolViolation(f"envd sent a tree that contradicts itself at {entry.name!r}") from error
        return download.summary

    def read_file(self, path: str, *, max_bytes: int) -> bytes | Missing | NotRegular | TooLarge:
        """The whole of one regular file."""
        found = self.stat(path)
        if found is None:
            return Missing(path)
        if found.kind != "file":
            return NotRegular(path, found.kind)
        if found.size > max_bytes:
            return TooLarge(path, found.size)
        # All of this may have changed meanwhile; the download has the last word.
        try:
            with self.get(path, max_bytes=max_bytes, max_entries=1) as download:
                for entry in download:
                    if entry.kind != "file":
                        return NotRegular(path, entry.kind)
                    return b"".join(iter(download.read, b""))
        except EnvdError as error:
            if error.kind == "missing":
                return Missing(path)
            raise
        if download.summary.skipped_large:
            return TooLarge(path, max_bytes + 1)
        if download.summary.skipped_special:
            return NotRegular(path, "other")
        raise EnvdError("io", f"{path} cannot be read in the environment")

    def stat(self, path: str) -> Stat | None:
        """lstat; None when nothing is there."""
        try:
            ok = self._ask({"op": "stat", "path": path})
        except EnvdError as error:
            if error.kind == "missing":
                return None
            raise
        kind = wire.take_str(ok, "kind", 10)
        if kind not in ("file", "dir", "link", "other"):
            raise ProtocolViolation("envd sent no valid text as kind")
        return Stat(
            kind=cast(EntryKind, kind),
            size=wire.take_int(ok, "size"),
            mode=wire.take_int(ok, "mode", high=0o7777),
            uid=wire.take_int(ok, "uid", high=2**32 - 1),
            gid=wire.take_int(ok, "gid", high=2**32 - 1),
            mtime=wire.take_int(ok, "mtime", low=-(2**63)),
        )

    def mkdir(self, path: str, *, mode: int = 0o755, owner: str | int | None = None) -> None:
        """Make a directory and its parents; an existing directory gets ``mode`` and ``owner`` too. A link at ``path`` is refused."""
        self._ask({"op": "mkdir", "path": path, "mode": mode, "owner": _user(owner)})

    def remove(self, path: str) -> bool:
        """Remove a file, link or tree, never what a link points to. False when nothing was there."""
        return wire.take_bool(self._ask({"op": "remove", "path": path}), "removed")

    def empty(self, path: str, *, mode: int | None = None) -> None:
        """Make ``path`` an empty directory: what is in it, or a link or file in its place, is removed. A directory itself is kept."""
        self._ask({"op": "empty", "path": path, "mode": mode})

    def usage(self, path: str, *, max_entries: int = 100_000) -> Usage:
        """Disk space used below ``path``."""
        ok = self._ask({"op": "usage", "path": path, "max_entries": max_entries})
        return Usage(wire.take_int(ok, "bytes"), wire.take_int(ok, "entries"), wire.take_bool(ok, "truncated"))

    def changed(
        self,
        paths: Sequence[str],
        *,
        since_ns: int,
        max_entries: int,
        folders: Sequence[str] = (),
        variables: Sequence[str] = (),
        outside: str = "",
        user: str | int | None = None,
        home_names: Sequence[str] = (),
        caches: Sequence[str] = (),
    ) -> Changed:
        """Files and links below ``paths`` whose inode changed since a time, and folders that lost a name; a path may be a link.

        Args:
            folders: only what they hold by name counts.
            variables: of the container's environment, whose values are paths too, but for those in the folder ``outside``.
            home_names: what counts in the home of ``user``.
            caches: in folders of these names a changed file is removed and not counted.
        """
        places = {"paths": list(paths), "folders": list(folders), "variables": list(variables), "outside": outside}
        home = {"user": _user(user) or "", "home_names": list(home_names)}
        request = {"op": "changed", **places, **home, "since": since_ns, "max_entries": max_entries, "caches": list(caches)}
        return _parse_changed(self._ask(request))

    def cut_links(
        self,
        into: str,
        *,
        since_ns: int,
        skip: Sequence[str],
        foreign: Sequence[str],
        root: str,
        max_entries: int,
        max_seconds: int,
    ) -> Changed:
        """Remove links below ``root`` that were made since a time and lead to the folder ``into`` or what it holds; links in it stay.

        Args:
            skip: folders that are not looked at.
            foreign: folders that others may still change: every link from elsewhere to there is removed.
            max_entries: more are not looked at, nor for longer than ``max_seconds``: the answer is truncated.
        """
        request = {"into": into, "since": since_ns, "skip": list(skip), "foreign": list(foreign), "root": root}
        return _parse_changed(self._ask({"op": "cut-links", **request, "max_entries": max_entries, "max_seconds": max_seconds}))

    def processes(self) -> tuple[Process, ...]:
        """The container's processes except envd itself, those of commands first; at most 1,000."""
        return self.process_table().processes

    def process_table(self) -> ProcessTable:
        """``processes``, and what has ended."""
        answer = self._ask({"op": "processes"})
        rows = answer.get("processes")
        if not isinstance(rows, list) or len(rows) > 1000:
            raise ProtocolViolation("envd sent no valid list as processes")
        return ProcessTable(tuple(_parse_process(row) for row in rows), wire.take_int(answer, "ended_orphans"))

    def shutdown(self, *, end_container: bool = False) -> None:
        """Ask envd to end all commands and exit 0 (verifier's channel only). ``end_container``: also TERM for the container's PID 1."""
        self._ask({"op": "shutdown", "end_container": end_container})

    def close(self) -> None:
        """Drop the connection: envd ends this channel's running commands."""
        self._connection.fail(EnvironmentExited("the channel was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _ask(self, request: Mapping[str, object]) -> Json:
        return self._connection.open(request).result(self.answer_seconds)

    def _send(self, request: Mapping[str, object], chunks: Iterable[bytes]) -> Json:
        call = self._connection.open(request)
        try:
            call.send_data(chunks, idle_seconds=self.answer_seconds)
        except BaseException:
            call.cancel()
            raise
        return call.result(self.answer_seconds)


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _parse_changed(ok: Json) -> Changed:
    names = ok.get("names")
    if not isinstance(names, list) or len(names) > 10 or not all(isinstance(name, str) for name in names):
        raise ProtocolViolation("envd sent no valid list as names")
    return Changed(wire.take_int(ok, "count"), tuple(name[:200] for name in names), wire.take_bool(ok, "truncated"))


def _parse_process(row: object) -> Process:
    if not isinstance(row, dict):
        raise ProtocolViolation("envd sent no valid list as processes")
    origin = wire.take_str(row, "origin", 10)
    if origin not in ("image", "exec"):
        raise ProtocolViolation("envd sent no valid text as origin")
    return Process(
        pid=wire.take_int(row, "pid"),
        ppid=wire.take_int(row, "ppid"),
        uid=wire.take_int(row, "uid", low=-1),
        command=wire.take_str(row, "command", 200),
        origin=cast(Literal["image", "exec"], origin),
        active=wire.take_bool(row, "active"),
    )


def _extract(download: Download, entry: Entry, path: str) -> None:
    if entry.kind == "link" or entry.name == ".":
        return
    if entry.kind == "dir":
        os.mkdir(path, 0o755)
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        while piece := download.read():
            file.write(piece)
