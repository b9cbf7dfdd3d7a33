"""The runner's end of the connection to envd: run commands and move files in the environment container.

Why sockets and one reader thread instead of asyncio: agent and verifier each drive one command after the other, and start-up time is
paid by every trial. Wire format: ``runner-image/envd/proto.go``.

Everything that arrives from envd is untrusted: the image's own processes start before envd and may dial first, and later they may write
whatever envd reads. So every frame, queue, file and answer is bounded; a breach raises :class:`ProtocolViolation` and closes the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, NamedTuple, Self

PROTOCOL = 1


class ChannelError(Exception):
    """Base of all errors of a channel."""


class ConnectTimeout(ChannelError):
    """Nobody dialled, or the caller did not greet, in time: the image runs neither its arguments nor the postStart hook."""


class EnvironmentExited(ChannelError):
    """The connection to envd is gone: the environment container ended, or its envd did. Nothing more can be asked of it."""


class ProtocolViolation(ChannelError):
    """The other end sent what envd never sends: an impostor or a damaged envd. The channel is closed."""


class EnvdError(ChannelError):
    """envd refused or could not do one request; the channel goes on. ``kind`` is one of the short names of ``errors.go``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class CommandFailed(EnvdError):
    """The command could not be started at all (no shell, not found, no such user or directory, …). An exit code is not an error."""


class NoAnswer(EnvdError):
    """envd is connected and did not answer in time; ``kind`` is "no-answer"."""


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


class Entry(NamedTuple):
    """One file, directory or link of a download. ``name`` is relative, without ``..``; "." is the directory asked for."""

    name: str
    kind: Literal["file", "dir", "link"]
    mode: int
    size: int
    mtime: int
    link_target: str  # "" unless kind is "link"; never followed


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

    path: str

    def accept(self, timeout_seconds: float, *, refuse_peer_uids: frozenset[int] = frozenset()) -> Channel:
        """Wait for envd, unlink the socket, check the greeting.

        Exactly one connection is accepted, whoever it is: a wrong one is an error of the trial and never an invitation to try again.

        Raises:
            ConnectTimeout: nobody dialled or greeted within ``timeout_seconds``.
            ProtocolViolation: the caller did not greet as envd does, or has one of ``refuse_peer_uids`` where the kernel tells.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening and unlink the socket. Harmless after ``accept``."""
        raise NotImplementedError


class RunningExec:
    """A command that runs. Its output is delivered inside ``wait``, in the waiting thread; unread output slows the command down."""

    def wait(self, timeout_seconds: float | None = None) -> ExitStatus | None:
        """Deliver output until the command ends; None when ``timeout_seconds`` passed first (call again)."""
        raise NotImplementedError

    def kill(self, *, grace_seconds: float = 2.0) -> None:
        """End the command's process group: TERM, KILL after the grace. Returns at once; ``wait`` tells the end. Any thread may call it."""
        raise NotImplementedError

    def write_stdin(self, data: bytes) -> None:
        """Send bytes to the command's standard input (``stdin=True``), waiting while it does not read."""
        raise NotImplementedError

    def close_stdin(self) -> None:
        raise NotImplementedError


class Download:
    """A running ``get``: iterate the entries in order; ``read`` gives the bytes of the file that was yielded last."""

    def __iter__(self) -> Iterator[Entry]:
        raise NotImplementedError

    def read(self, max_bytes: int = 65536) -> bytes:
        """Next bytes of the current file, b"" at its end. What is not read is skipped."""
        raise NotImplementedError

    @property
    def summary(self) -> GetSummary:
        """Known when the iteration has ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the transfer; harmless at its end."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Channel:
    """Requests to one envd. Any number of threads may use one channel at the same time.

    Every method may raise :class:`EnvironmentExited`, :class:`ProtocolViolation` and :class:`EnvdError`. Methods other than ``exec``
    and ``start`` raise :class:`NoAnswer` when nothing moves for ``answer_seconds``.
    """

    hello: Hello
    answer_seconds: float

    @classmethod
    def listen(cls, path: str | PathLike[str]) -> Listener:
        """Bind a unix socket at ``path``, connectable by any uid and through a read-only mount.

        Raises:
            ChannelError: something is at ``path`` already, or it cannot be bound.
        """
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """True once the environment is gone or ``close`` was called."""
        raise NotImplementedError

    def wait_closed(self, timeout_seconds: float | None = None) -> bool:
        """Block until the connection is gone; False when ``timeout_seconds`` passed first."""
        raise NotImplementedError

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
            timeout_seconds: then its process group gets TERM, later KILL, and the status says ``timed_out``.
            on_output: gets ("stdout" | "stderr", bytes) in the calling thread; None throws output away.
            merge: stdout and stderr share one pipe; all arrives as "stdout".

        Raises:
            CommandFailed: it could not be started.
        """
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError

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

        ``target`` and its parents are made with ``dir_mode``. Modes are kept; everything belongs to root (to the container's user where envd
        is not root) unless ``owner`` says otherwise. ``empty_first`` removes what ``target`` held; a link at ``target`` is replaced then and refused otherwise.
        """
        raise NotImplementedError

    def put_bytes(self, data: bytes, path: str, *, mode: int = 0o644, owner: str | int | None = None) -> None:
        """Write one file, replacing what is there; parents are made (0755)."""
        raise NotImplementedError

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> Download:
        """Read a file or a directory tree out of the environment. Links are never followed; special files are skipped and counted.

        Raises:
            EnvdError: kind "missing" when nothing is at ``path``.
        """
        raise NotImplementedError

    def get_tree(
        self,
        path: str,
        target: str | PathLike[str],
        *,
        max_bytes: int,
        max_entries: int,
        max_file_bytes: int | None = None,
    ) -> GetSummary:
        """``get`` into the local directory ``target``: regular files and directories only (0644/0755, links are left out)."""
        raise NotImplementedError

    def read_file(self, path: str, *, max_bytes: int) -> bytes | Missing | NotRegular | TooLarge:
        """The whole of one regular file."""
        raise NotImplementedError

    def stat(self, path: str) -> Stat | None:
        """lstat; None when nothing is there."""
        raise NotImplementedError

    def mkdir(self, path: str, *, mode: int = 0o755, owner: str | int | None = None) -> None:
        """Make a directory and its parents; an existing directory gets ``mode`` and ``owner`` too. A link at ``path`` is refused."""
        raise NotImplementedError

    def remove(self, path: str) -> bool:
        """Remove a file, link or tree, never what a link points to. False when nothing was there."""
        raise NotImplementedError

    def empty(self, path: str) -> None:
        """Remove what a directory holds and keep the directory (a mount point cannot be removed)."""
        raise NotImplementedError

    def usage(self, path: str, *, max_entries: int = 100_000) -> Usage:
        """Disk space used below ``path``."""
        raise NotImplementedError

    def processes(self) -> tuple[Process, ...]:
        """The container's processes except envd itself; at most 1,000."""
        raise NotImplementedError

    def leftovers(self) -> tuple[Process, ...]:
        """Processes that ended commands left running."""
        return tuple(process for process in self.processes() if process.origin == "exec" and not process.active)

    def shutdown(self, *, end_container: bool = False) -> None:
        """Ask envd to end all commands and exit 0 (verifier's channel only). ``end_container``: also TERM for the container's PID 1."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop the connection: envd ends this channel's running commands."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
