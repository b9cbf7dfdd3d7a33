"""The process in which the user's agent class lives: ``python -I -m …`` started by ``hosted``, told what to do over a socket.

Why a process of its own: a class that blocks, loops or crashes is ended at the phase's limit and takes nothing with it. It reaches the
environment through the desk, like an agent image. One JSON object a line in each direction; every request is answered once:

    {"op": "load", …}              import the class and construct it     -> {"name", "version"}
    {"op": "setup", "user"}        put skills, ``await agent.setup(…)``  -> {}
    {"op": "run", "user", "instruction", "output"}  ``await agent.run(…)`` -> {"context"}
    {"op": "stop"}                 while one of the last two runs: cancel it; its answer comes with what the context holds

A failure is answered by ``{"error": {"type", "message", "user": bool}}``, after a run beside the context.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import os
import shlex
import socket
import stat
import sys
import tarfile
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, Final

from seatrial_runner import harbor_names
from seatrial_runner.frames import FAILED, HEAD_BYTES, PIECE_BYTES, SOCKET, TIMED_OUT, FrameWriter, frame, size_of
from seatrial_runner.harbor_names import BaseEnvironment, ExecResult
from seatrial_runner.mcp import MissingHeaderVariable, resolve_headers

SKILLS_DIR: Final = "/runtime/skills"
SKILL_FILE: Final = "SKILL.md"
OUTPUT_BYTES: Final = 32 * 1024 * 1024
"""Of each stream of a command; the rest is thrown away, and the text says so."""
_NO_HARBOR: Final = (
    "is not in the runner image: set agent.runnerImage to one with `pip install 'harbor>=0.20,<0.27'`, or built from "
    "runner-image/Dockerfile.harbor"
)


class HostError(Exception):
    """The job's author has to change something; the message says what."""


# --- the environment ---------------------------------------------------------------------------------------------------------------------


class Environment(BaseEnvironment):
    """The task's container through the desk; commands run as ``default_user`` and see the agent's variables above their own."""

    session_id = "environment"
    os = "linux"
    task_os = "linux"

    def __init__(self, folder: str, extra_env: Mapping[str, str]) -> None:
        self._path = f"{folder}/{SOCKET}"
        self._overlays: tuple[dict[str, str], ...] = (dict(extra_env),)
        self.default_user: str | int | None = None
        self.logger = logging.getLogger("environment")
        self.capabilities = SimpleNamespace(mounted=False, windows=False, gpus=False, disable_internet=False, docker_compose=False)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run ``command`` with bash.

        Raises:
            RuntimeError: it took longer than ``timeout_sec``, or could not be started.
        """
        merged = dict(env or {})
        for overlay in self._overlays:
            merged |= overlay
        request = {"op": "exec", "shell": command, "env": merged, "cwd": cwd or "", "timeout": timeout_sec or 0}
        request["user"] = "" if user is None else str(user)
        kept = {b"o": bytearray(), b"e": bytearray()}
        cut: set[bytes] = set()
        async with self._opened(request) as peer:
            async for kind, data in peer.frames():
                if kind in kept:
                    room = OUTPUT_BYTES - len(kept[kind])
                    kept[kind] += data[:room]
                    if len(data) > room:
                        cut.add(kind)
        if peer.code == FAILED and peer.error:
            raise RuntimeError(f"the command could not be run: {peer.error}")
        if peer.code == TIMED_OUT and timeout_sec:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        texts = [kept[kind].decode(errors="replace") + ("\n[output cut]\n" if kind in cut else "") for kind in (b"o", b"e")]
        return ExecResult(stdout=texts[0], stderr=texts[1], return_code=peer.code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file; ``target_path`` is the file's path in the container."""
        target = PurePosixPath(target_path)
        await self._put(str(target.parent), [(Path(source_path), target.name)])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in ``source_dir`` into ``target_dir``, which is made; links are copied as what they point to."""
        await self._put(target_dir, _members(Path(source_dir)))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the container.

        Raises:
            FileNotFoundError: there is none.
        """
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        kind, archive = await self._get(source_path)
        if kind != "file":
            raise FileNotFoundError(f"{source_path} is no file in the environment")
        with archive:
            for member, content in archive.files():
                _write(target, content, member.mode)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a folder of the container into ``target_dir``: files and folders, no links.

        Raises:
            FileNotFoundError: there is none.
        """
        kind, archive = await self._get(source_dir)
        if kind != "dir":
            raise FileNotFoundError(f"{source_dir} is no folder in the environment")
        with archive:
            archive.extract(Path(target_dir))

    async def is_dir(self, path: str, user: str | int | None = None) -> bool:
        """Whether ``path`` is a folder."""
        return (await self.exec(f"test -d {shlex.quote(path)}", timeout_sec=10, user=user)).return_code == 0

    async def is_file(self, path: str, user: str | int | None = None) -> bool:
        """Whether ``path`` is a regular file."""
        return (await self.exec(f"test -f {shlex.quote(path)}", timeout_sec=10, user=user)).return_code == 0

    async def ensure_dirs(self, dirs: Sequence[str], *, chmod: bool = True) -> ExecResult | None:
        """Make folders that everybody may write to."""
        if not dirs:
            return None
        names = " ".join(shlex.quote(str(item)) for item in dirs)
        return await self.exec(f"mkdir -p {names}" + (f" && chmod 777 {names}" if chmod else ""), user="root" if chmod else None)

    async def prepare_logs_for_host(self) -> None:
        """Nothing to do: the logs are in a volume of the Pod."""

    def is_path_mounted(self, environment_path: object, host_path: object) -> bool:
        """Whether both are one folder: nothing may rely on that here."""
        return False

    @contextlib.contextmanager
    def with_default_user(self, user: str | int | None) -> Iterator[None]:
        """Commands run as ``user`` meanwhile."""
        before, self.default_user = self.default_user, user
        try:
            yield
        finally:
            self.default_user = before

    @contextlib.contextmanager
    def scoped_exec_env(self, env: dict[str, str]) -> Iterator[None]:
        """Commands see ``env`` above everything else meanwhile."""
        before, self._overlays = self._overlays, (*self._overlays, dict(env))
        try:
            yield
        finally:
            self._overlays = before

    async def _put(self, target: str, members: Sequence[tuple[Path, str]]) -> None:
        async with self._opened({"op": "put", "path": target}) as peer:
            await peer.send_tar(members)
            async for _ in peer.frames():
                pass
        peer.check(f"{target} could not be written")

    async def _get(self, path: str) -> tuple[str, _Archive]:
        kind, file = "", await asyncio.to_thread(_unnamed_file)
        async with self._opened({"op": "get", "path": path}) as peer:
            async for frame, data in peer.frames():
                if frame == b"k":
                    kind = data.decode(errors="replace")
                elif frame == b"o":
                    file.write(data)
        if peer.code:
            file.close()
            raise FileNotFoundError(f"{path}: {peer.error}")
        return kind, _Archive(file)

    @contextlib.asynccontextmanager
    async def _opened(self, request: dict[str, Any]) -> AsyncIterator[_Peer]:
        """One request; leaving early ends its command."""
        if request.get("user") == "" and self.default_user is not None:
            request["user"] = str(self.default_user)
        reader, writer = await asyncio.open_unix_connection(self._path)
        peer = _Peer(reader, writer)
        try:
            peer.send(b"r", json.dumps(request).encode())
            yield peer
        finally:
            writer.close()


class _Peer:
    """The client's end of the desk's frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.code, self.error = FAILED, "the runner went away"

    def send(self, kind: bytes, data: bytes) -> None:
        self._writer.write(frame(kind, data))

    async def send_tar(self, members: Sequence[tuple[Path, str]]) -> None:
        """Files and folders with their modes, everything readable for everybody; then the end of the input."""
        try:
            with tarfile.open(fileobj=FrameWriter(self.send, b"i"), mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for path, name in members:
                    status = path.stat()
                    info = tarfile.TarInfo(name)
                    if stat.S_ISDIR(status.st_mode):
                        info.type, info.mode = tarfile.DIRTYPE, stat.S_IMODE(status.st_mode) | 0o555
                        tar.addfile(info)
                    elif stat.S_ISREG(status.st_mode):
                        info.size, info.mode = status.st_size, stat.S_IMODE(status.st_mode) | 0o444
                        with path.open("rb") as file:
                            tar.addfile(info, file)
                    await self._writer.drain()
            self.send(b"f", b"")
            await self._writer.drain()
        except (ConnectionError, BrokenPipeError):
            return  # the answer says why

    async def frames(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Until the last one, which sets ``code`` and ``error``."""
        while True:
            try:
                head = await self._reader.readexactly(HEAD_BYTES)
                data = await self._reader.readexactly(size_of(head))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if head[:1] == b"x":
                end = json.loads(data)
                self.code, self.error = int(end["code"]), str(end["error"])
                return
            yield head[:1], data

    def check(self, what: str) -> None:
        if self.code:
            raise RuntimeError(f"{what}: {self.error}")


class _Archive:
    """What came out of the environment: untrusted."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def extract(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for member, content in self.files():
            path = target / member.name
            _make_folders(target, path if content is None else path.parent)
            if content is not None:
                _write(path, content, member.mode)

    def files(self) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
        """Folders (without content) and regular files with safe names."""
        self._file.seek(0)
        with tarfile.open(fileobj=self._file, mode="r|") as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                if member.name.startswith("/") or ".." in parts or not parts or not (member.isreg() or member.isdir()):
                    continue
                yield member, tar.extractfile(member) if member.isreg() else None


def _unnamed_file() -> IO[bytes]:
    import tempfile

    return tempfile.TemporaryFile()


def _members(top: Path) -> list[tuple[Path, str]]:
    if not top.is_dir():
        raise FileNotFoundError(f"{top} is no folder")
    return [(path, str(path.relative_to(top))) for path in sorted(top.rglob("*"))]


def _make_folders(top: Path, folder: Path) -> None:
    """``folder`` below ``top``; a link on the way is refused, because whoever made it is not us."""
    missing = []
    while folder != top:
        if folder.is_symlink():
            raise RuntimeError(f"{folder} is a link: nothing is written through it")
        missing.append(folder)
        folder = folder.parent
    for item in reversed(missing):
        item.mkdir(exist_ok=True)


def _write(path: Path, content: Any, mode: int) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644 | (mode & 0o111))
    with open(descriptor, "wb") as file:
        while piece := content.read(PIECE_BYTES):
            file.write(piece)


# --- the agent ---------------------------------------------------------------------------------------------------------------------------


class Host:
    """The agent and its environment."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Import and construct.

        Raises:
            HostError: what is asked for does not exist or is not supported. Anything else is the class's own.
        """
        source = request["source"]
        if source:
            sys.path.insert(0, source)
            os.chdir(source)
        is_lean = harbor_names.install()
        servers, env = request["mcp_servers"], request["extra_env"]
        cls = _load_class(request["import_path"])
        self.skills = _find_skills(request["skills"], source)
        skills_dir = request["skills_dir"]
        if self.skills:
            skills_dir = skills_dir or SKILLS_DIR
            if not skills_dir.startswith("/"):
                raise HostError(f"[environment].skills_dir {skills_dir!r} is not absolute, and the job gives skills")
        _check_capabilities(cls, skills=self.skills, servers=servers)
        if is_lean:
            try:
                servers = resolve_headers(servers, env)
            except MissingHeaderVariable as error:
                raise HostError(str(error)) from error
        context, configs = importlib.import_module("harbor.models.agent.context"), importlib.import_module("harbor.models.task.config")
        self._make_context = context.AgentContext
        self.skills_dir = skills_dir
        self.environment = Environment(request["desk"], env)
        self.agent = cls(
            logs_dir=Path(request["logs_dir"]),
            model_name=request["model"],
            logger=logging.getLogger("agent"),
            mcp_servers=[configs.MCPServerConfig(**server) for server in servers] or None,
            skills_dir=skills_dir,
            extra_env=dict(env),
            **request["kwargs"],
        )

    def about(self) -> dict[str, Any]:
        """Name and version, as the class says."""
        version = self.agent.version()
        return {"name": str(self.agent.name()), "version": None if version is None else str(version)}

    async def setup(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.environment.default_user = request["user"]
        if self.skills:
            await self._put_skills()
        await self.agent.setup(self.environment)
        return {}

    async def _put_skills(self) -> None:
        """The job's skills, in place of what the folder held before."""
        folder = shlex.quote(str(self.skills_dir))
        done = await self.environment.exec(f"mkdir -p {folder} && find {folder} -mindepth 1 -delete", user="root")
        if done.return_code:
            raise RuntimeError(f"{self.skills_dir} cannot be emptied for the skills: {done.stderr}")
        for name, path in self.skills.items():
            await self.environment.upload_dir(path, f"{self.skills_dir}/{name}")

    async def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One execution phase; the answer holds the context also when it failed."""
        _print_to(request["output"])
        self.environment.default_user = request["user"]
        context = self._make_context()
        answer: dict[str, Any] = {}
        try:
            await self.agent.run(request["instruction"], self.environment, context)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the user's class: told by name
            answer = _failure(error)
        populate = getattr(self.agent, "populate_context_post_run", None)
        if populate is not None and not any(value is not None for value in context.model_dump().values()):
            try:
                populate(context)
            except Exception:  # noqa: BLE001 - an extra
                traceback.print_exc()
        return {**answer, "context": context.model_dump(mode="json")}


def _print_to(path: str) -> None:
    """The folder of the logs was emptied before a step. Not through a link: the environment can make one there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def _load_class(import_path: str) -> type:
    module_name, _, class_name = import_path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "harbor":
            raise HostError(f"{import_path}: module {missing} {_NO_HARBOR}") from error
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise HostError(
                f"{import_path}: there is no module {missing}: give agent.source (--agent-dir), or an agent.runnerImage that has it"
            ) from error
        message = f"{import_path}: its module needs {missing}, which is not there: put it into agent.source or agent.runnerImage"
        raise HostError(message) from error
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "harbor":
            raise HostError(f"{import_path}: {error}: the Harbor package {_NO_HARBOR}") from error
        raise
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise HostError(f"{import_path}: module {module_name} has no class {class_name}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise HostError(f"{import_path}: class {class_name} lacks {missing}")
    return found


def _check_capabilities(cls: type, *, skills: Mapping[str, Path], servers: Sequence[Mapping[str, Any]]) -> None:
    """Harbor's rule: an agent that does not name a capability is not given what needs it."""
    can = getattr(cls, "capabilities", None)
    for name, wanted in (
        ("skills", bool(skills)),
        ("mcp_servers", bool(servers)),
        ("mcp_http_headers", any(server.get("headers") for server in servers)),
    ):
        if wanted and not getattr(can, name, False):
            raise HostError(f"Agent {cls.__name__} does not support {name}: set capabilities = AgentCapabilities({name}=True) or give none")


def _find_skills(paths: Sequence[str], source: str | None) -> dict[str, Path]:
    """Skills by name, sorted; of two with one name the last wins.

    Args:
        paths: absolute, or relative to the agent's source: a skill, or a folder of skills.
    """
    found: dict[str, Path] = {}
    for path in paths:
        folder = Path(source or "/", path)
        folders = [folder] if (folder / SKILL_FILE).is_file() else sorted(item.parent for item in folder.glob(f"*/{SKILL_FILE}"))
        if not folders:
            raise HostError(f"skill {path!r}: {folder} holds no {SKILL_FILE}")
        found |= {item.name: item for item in folders}
    return dict(sorted(found.items()))


def _failure(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, HostError | asyncio.CancelledError):
        traceback.print_exception(error)
    name = "ValueError" if isinstance(error, HostError) else type(error).__name__
    return {"error": {"type": name, "message": str(error)[:2000] or name, "user": isinstance(error, HostError)}}


# --- requests ----------------------------------------------------------------------------------------------------------------------------


async def serve(connection: socket.socket) -> None:
    """Answer requests until the other end closes."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 26)
    requests: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    running: asyncio.Task[dict[str, Any]] | None = None

    async def receive() -> None:
        while line := await reader.readline():
            request = json.loads(line)
            if request["op"] == "stop":
                if running is not None:
                    running.cancel()
            else:
                requests.put_nowait(request)
        requests.put_nowait(None)
        if running is not None:
            running.cancel()

    receiving = asyncio.ensure_future(receive())
    host: Host | None = None
    while (request := await requests.get()) is not None:
        try:
            if host is None:
                host = Host(request)
                answer = host.about()
            else:
                running = asyncio.ensure_future(host.setup(request) if request["op"] == "setup" else host.run(request))
                answer = await running
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the border to the runner, which is told by name
            answer = _failure(error)
        running = None
        writer.write(json.dumps(answer, default=str).encode() + b"\n")
        await writer.drain()
    receiving.cancel()


def main(arguments: Sequence[str]) -> int:
    """``agent_host FD``: serve the inherited socket."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(socket.socket(fileno=int(arguments[0]))))
    return 0
