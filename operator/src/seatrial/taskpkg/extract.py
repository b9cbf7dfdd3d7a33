"""The one safe extractor of task archives (``tar-gzip-v1``). Standard library only: it also runs in a trial Pod's init container.

Why not ``tarfile``: it reads extended headers and sparse maps into memory before anyone can look at them, knows entry types that a task
never needs, and costs more per entry. This reader accepts what ``pack`` writes and little else. Every byte is bounded before it is
read; nothing is written through a link; links are judged when the whole tree exists. Rules and messages: nemo.md section 8.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import stat
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

from seatrial.errors import SeatrialError
from seatrial.taskpkg.limits import DEFAULT, RESERVED_ROOT, Limits
from seatrial.taskpkg.paths import UnsafePath, check_path, printable
from seatrial.taskpkg.tree import Tree, TreeError

BLOCK: Final = 512
_ZEROS: Final = bytes(BLOCK)
_READ_BYTES: Final = 256 * 1024
# One piece of expanded data. A bomb expands 1000:1, so the piece is bounded and not what is read.
_PIECE_BYTES: Final = 512 * 1024
_PIECES_AHEAD: Final = 6
_PIECES_BEFORE_THREAD: Final = 3
_PERMISSIONS: Final = 0o7777
# Faults of the file system that a name or a depth in the archive causes; all others are the machine's.
_ARCHIVE_ERRNOS: Final = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EEXIST, errno.ENOTDIR, errno.ELOOP})

UNREADABLE: Final = "Invalid or unreadable Harbor archive"


class ArchiveError(SeatrialError):
    """The archive was refused and nothing of it is left in the target.

    ``kind`` is ``corrupt`` (checksum, gzip, broken tar: another download may help) or ``unsafe`` (a rule; never worth a repetition).
    ``member`` names the entry, printable, where one is to blame.
    """

    def __init__(self, kind: Literal["corrupt", "unsafe"], message: str, member: str | None = None) -> None:
        self.kind = kind
        self.member = None if member is None else printable(member)
        super().__init__(message if self.member is None or self.member in message else f"{message}: {self.member}")


class Extracted(NamedTuple):
    root_name: str
    entries: int
    """The root directory included."""
    payload_bytes: int
    compressed_bytes: int
    sha256: str
    """Of the compressed bytes, 64 lower-case hex."""


class _Header(NamedTuple):
    name: str
    type: bytes
    mode: int
    size: int
    link: str


def extract_archive(stream: BinaryIO, target: Path, *, limits: Limits = DEFAULT, sha256: str | None = None) -> Extracted:
    """Write the one root directory of the archive into ``target`` (made when absent; it must not hold that name yet).

    With ``sha256`` (64 lower-case hex of the compressed bytes) nothing is extracted before the whole stream has matched; a stream that
    cannot seek is kept in an unnamed file beside ``target`` meanwhile. Without it the stream is read once, and the digest is returned.
    Files and directories get the mode bits of the archive and belong to the caller; ``chown`` is never called. Memory stays below
    about 8 MiB plus 250 bytes an entry.

    Raises:
        ArchiveError: the archive was refused; nothing of it remains.
        OSError: the machine failed (no room, no right to write).
    """
    target.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if sha256 is not None:
            stream = stack.enter_context(_checked(stream, sha256, spool=target, limits=limits))
        source = stack.enter_context(contextlib.closing(_Gunzip(stream, limits)))
        extraction = _Extraction(source, target, limits)
        try:
            return extraction.run()
        except BaseException as error:
            # The root itself may have been there before: that is the caller's fault, not the archive's.
            is_members_fault = isinstance(error, OSError) and error.errno in _ARCHIVE_ERRNOS
            is_members_fault = is_members_fault and (extraction.has_begun or not isinstance(error, FileExistsError))
            try:
                extraction.discard()
            except OSError as left_over:
                error.add_note(f"the partly extracted task could not be removed: {left_over}")
            if is_members_fault:
                raise ArchiveError("unsafe", "The file system refuses an entry", extraction.current) from error
            raise


class _Extraction:
    def __init__(self, source: _Gunzip, target: Path, limits: Limits) -> None:
        self._source = source
        self._root = os.fspath(target)
        self._limits = limits
        self._tree: Tree | None = None
        self._records = 0
        self._payload = 0
        self._entries = 0
        self.current: str | None = None
        """Path of the entry at hand, for messages."""

    def run(self) -> Extracted:
        while (header := self._next_entry()) is not None:
            self.current = header.name
            self._write(header)
        self.current = None
        if self._tree is None:
            raise ArchiveError("unsafe", "Empty archive")
        if not self._source.rest_is_zero():
            raise ArchiveError("unsafe", "Unexpected trailing archive content")
        self._finish(self._tree)
        return Extracted(
            root_name=self._tree.root.name,
            entries=self._entries,
            payload_bytes=self._payload,
            compressed_bytes=self._source.compressed_bytes,
            sha256=self._source.hexdigest(),
        )

    @property
    def has_begun(self) -> bool:
        return self._tree is not None

    def discard(self) -> None:
        """Remove what was written. Not ``rmtree``: it fails where a directory has no permissions."""
        if self._tree is None:
            return
        folders = [f"{self._root}/{directory.path()}" for directory in self._tree.directories]
        folders = [folder for folder in folders if os.path.isdir(folder)]
        for folder in folders:
            os.chmod(folder, 0o700)
        for folder in reversed(folders):
            with os.scandir(folder) as entries:
                for entry in entries:
                    os.unlink(entry)
            os.rmdir(folder)

    # --- headers ---------------------------------------------------------------------------------------------------------------------

    def _next_entry(self) -> _Header | None:
        """The next real entry with its extended headers applied; None at the end of the tar."""
        extended: dict[str, str] = {}
        chain = 0
        while True:
            block = self._source.read(BLOCK)
            if block == _ZEROS:
                if chain:
                    raise ArchiveError("corrupt", "Truncated tar file")
                return None
            self._records += 1
            if self._records > self._limits.records:
                raise ArchiveError("unsafe", "Too many physical tar records")
            header = _parse_header(block)
            if header.type != b"x":
                break
            chain += 1
            if chain > self._limits.pax_chain or not 0 <= header.size <= self._limits.pax_header_bytes:
                raise ArchiveError("unsafe", "Excessive tar metadata", header.name)
            body = self._source.read(header.size)
            self._source.read(-header.size % BLOCK)
            for key, value in _parse_extended(body, header.name):
                if key in extended:
                    raise ArchiveError("unsafe", "Unsupported tar metadata", header.name)
                extended[key] = value
        if header.type in (b"\0", b"0") and header.name.endswith("/") and "path" not in extended:
            header = header._replace(type=b"5")  # how tar marked directories before it had a type for them
        return header._replace(name=extended.get("path", header.name), link=extended.get("linkpath", header.link))

    # --- entries ---------------------------------------------------------------------------------------------------------------------

    def _write(self, header: _Header) -> None:
        path = header.name
        if header.type == b"S":
            raise ArchiveError("unsafe", "Unsupported sparse tar metadata", path)
        if header.type not in (b"\0", b"0", b"5", b"2"):
            raise ArchiveError("unsafe", "Unsupported tar entry type", path)
        if header.type == b"5" and path.endswith("/"):
            path = path[:-1]
        try:
            check_path(path, max_bytes=self._limits.path_bytes)
        except UnsafePath as error:
            raise ArchiveError("unsafe", str(error), error.path) from None
        if path.count("/") > self._limits.depth:
            raise ArchiveError("unsafe", "Directories nested too deeply", path)
        if header.mode & ~_PERMISSIONS:
            raise ArchiveError("unsafe", "Unsupported mode bits", path)
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ArchiveError("unsafe", "Duplicate or excessive archive entries", path)
        if self._tree is None:
            if header.type != b"5" or "/" in path or path.casefold() == RESERVED_ROOT:
                raise ArchiveError("unsafe", "Archive must start with one named root directory", path)
            if header.size:
                raise ArchiveError("unsafe", "Directory has a payload", path)
            os.mkdir(f"{self._root}/{path}", 0o700)  # raises before there is a tree: what was here already is never discarded
            self._tree = Tree(path, header.mode)
            return
        try:
            match header.type:
                case b"5":
                    self._write_directory(self._tree, path, header)
                case b"2":
                    self._write_link(self._tree, path, header)
                case _:
                    self._write_file(self._tree, path, header)
        except TreeError as error:
            raise ArchiveError("unsafe", str(error), error.path) from None

    def _write_directory(self, tree: Tree, path: str, header: _Header) -> None:
        if header.size:
            raise ArchiveError("unsafe", "Directory has a payload", path)
        tree.add_directory(path, header.mode)
        os.mkdir(f"{self._root}/{path}", 0o700)

    def _write_link(self, tree: Tree, path: str, header: _Header) -> None:
        if header.size or not header.link or "\0" in header.link:
            raise ArchiveError("unsafe", "Invalid symlink entry", path)
        if len(os.fsencode(header.link)) > self._limits.path_bytes:
            raise ArchiveError("unsafe", f"Symlink escapes task root: {printable(path)}", path)
        tree.add_link(path)
        os.symlink(header.link, f"{self._root}/{path}")

    def _write_file(self, tree: Tree, path: str, header: _Header) -> None:
        self._payload += max(0, header.size)
        if header.size < 0 or header.size > self._limits.file_bytes or self._payload > self._limits.payload_bytes:
            raise ArchiveError("unsafe", "Archive payload exceeds limits", path)
        if header.size > metadata_limit(path, self._limits):
            raise ArchiveError("unsafe", "Metadata exceeds byte limit", path)
        tree.add_file(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        # Mostly the mode holds at once; nobody else can look in, because the directories above are 0700 until the end.
        descriptor = os.open(f"{self._root}/{path}", flags, header.mode & 0o777)
        try:
            for piece in self._source.pieces(header.size):
                _write_all(descriptor, piece)
            _set_mode(descriptor, header.mode, "file", path)
        finally:
            os.close(descriptor)
        self._source.read(-header.size % BLOCK)

    def _finish(self, tree: Tree) -> None:
        """Judge the links of the whole tree, then give the directories their modes, children before parents."""
        try:
            tree.check_links(lambda path: os.readlink(f"{self._root}/{path}"))
        except TreeError as error:
            raise ArchiveError("unsafe", str(error), error.path) from None
        for directory in reversed(tree.directories):
            if directory.mode != 0o700:
                path = directory.path()
                _set_mode(f"{self._root}/{path}", directory.mode, "directory", path)


class _Gunzip:
    """Bounded, hashing gunzip of a stream that is read once, front to back.

    After the first pieces a thread expands ahead, as ``gzip`` does beside ``tar``: zlib and hashlib release the interpreter. Small
    archives never get there. ``close`` must be called, so that nobody reads the stream any more afterwards.
    """

    def __init__(self, stream: BinaryIO, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._digest = hashlib.sha256()
        self._expanding = self._expand()
        self._buffer = memoryview(b"")
        self._filled = 0
        self._ahead: queue.Queue[bytes | BaseException | None] = queue.Queue(_PIECES_AHEAD)
        self._thread: threading.Thread | None = None
        self._closed = False
        self.compressed_bytes = 0

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes; small sizes only."""
        if size <= len(self._buffer):
            taken = bytes(self._buffer[:size])
            self._buffer = self._buffer[size:]
            return taken
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Exactly ``size`` bytes as they come; each piece is valid until the next one."""
        while size > 0:
            if not self._buffer and not self._fill():
                raise ArchiveError("corrupt", "Truncated tar file")
            piece = self._buffer[:size]
            self._buffer = self._buffer[len(piece) :]
            size -= len(piece)
            yield piece

    def rest_is_zero(self) -> bool:
        """Read to the end, which also checks the gzip trailer; True if only zeros came."""
        while self._buffer or self._fill():
            if bytes(self._buffer).strip(b"\0"):
                return False
            self._buffer = memoryview(b"")
        return True

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def close(self) -> None:
        self._closed = True
        while self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._ahead.get(timeout=0.01)

    def _fill(self) -> bool:
        """Have a little more in the buffer; False at the clean end of the stream."""
        self._filled += 1
        if self._filled == _PIECES_BEFORE_THREAD:
            self._thread = threading.Thread(target=self._run_ahead, name="seatrial-gunzip", daemon=True)
            self._thread.start()
        piece = next(self._expanding, None) if self._thread is None else self._ahead.get()
        if isinstance(piece, BaseException):
            raise piece
        if piece is None:
            return False
        self._buffer = memoryview(piece)
        return True

    def _run_ahead(self) -> None:
        last: BaseException | None = None
        try:
            for piece in self._expanding:
                self._ahead.put(piece)
                if self._closed:
                    return
        except BaseException as error:  # noqa: BLE001 handed over to the reading thread, which raises it
            last = error
        self._ahead.put(last)

    def _expand(self) -> Iterator[bytes]:
        """The expanded bytes in pieces that are never empty."""
        expanded = 0
        inflate = None
        data = b""
        while True:
            if not data and not (data := self._compressed()):
                if inflate is not None:
                    raise ArchiveError("corrupt", UNREADABLE)
                return
            if inflate is None:
                if self.compressed_bytes > len(data):  # padding after a gzip member, as gzip itself accepts it
                    data = data.lstrip(b"\0")
                if not data:
                    continue
                inflate = zlib.decompressobj(wbits=31)
            try:
                piece = inflate.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise ArchiveError("corrupt", UNREADABLE) from error
            data = inflate.unconsumed_tail
            if inflate.eof:
                data, inflate = inflate.unused_data, None
            expanded += len(piece)
            if expanded > self._limits.expanded_bytes:
                raise ArchiveError("unsafe", "Expanded archive exceeds limit")
            if piece:
                yield piece

    def _compressed(self) -> bytes:
        data = self._stream.read(_READ_BYTES)
        self.compressed_bytes += len(data)
        if self.compressed_bytes > self._limits.compressed_bytes:
            raise ArchiveError("unsafe", "Downloaded object exceeds byte limit")
        self._digest.update(data)
        return data


def metadata_limit(path: str, limits: Limits) -> int:
    """Largest size of the file at ``path`` (root name first); the general limit for anything but metadata."""
    parts = path.split("/")
    if parts[-1] == "instruction.md":
        return limits.instruction_bytes
    if len(parts) == 2 and parts[1] == "task.toml":
        return limits.task_toml_bytes
    if len(parts) == 2 and parts[1] == ".gitignore":
        return limits.gitignore_bytes
    return limits.file_bytes


def _parse_header(block: bytes) -> _Header:
    """Read one ustar header. Source: POSIX pax, "ustar Interchange Format"."""
    total = _number(block[148:156])
    # The checksum counts its own field as spaces; some old tars summed signed bytes.
    unsigned = sum(block) - sum(block[148:156]) + 8 * 0x20
    if total != unsigned:
        signed = unsigned - 256 * sum(1 for byte in block[:148] + block[156:] if byte > 127)
        if total != signed:
            raise ArchiveError("corrupt", UNREADABLE)
    name, prefix = _text(block[0:100]), _text(block[345:500])
    return _Header(
        name=f"{prefix}/{name}" if prefix else name,
        type=block[156:157],
        mode=_number(block[100:108]),
        size=_number(block[124:136]),
        link=_text(block[157:257]),
    )


def _number(field: bytes) -> int:
    """An octal field, or a base-256 field whose first byte is 0x80 (positive) or 0xFF (negative)."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    text = field.split(b"\0", 1)[0].strip()
    if not text:
        return 0
    if not text.isdigit() or b"8" in text or b"9" in text:
        raise ArchiveError("corrupt", UNREADABLE)
    return int(text, 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _parse_extended(body: bytes, name: str) -> Iterator[tuple[str, str]]:
    """Records ``<length> <key>=<value>\\n`` of a pax header; only ``path`` and ``linkpath`` are known."""
    position = 0
    while position < len(body):
        space = body.find(b" ", position, position + 20)
        digits = body[position:space] if space > position else b""
        if not digits.isdigit():
            raise ArchiveError("corrupt", UNREADABLE, name)
        end = position + int(digits)
        record = body[space + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if end > len(body) or end <= space + 1 or not record.endswith(b"\n") or not equals:
            raise ArchiveError("corrupt", UNREADABLE, name)
        if key.startswith(b"GNU.sparse."):
            raise ArchiveError("unsafe", "Unsupported sparse tar metadata", name)
        if key not in (b"path", b"linkpath"):
            raise ArchiveError("unsafe", "Unsupported tar metadata", name)
        yield key.decode("ascii"), value.decode("utf-8", "surrogateescape")
        position = end


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _set_mode(file: int | str, mode: int, what: str, path: str) -> None:
    """Set the mode where it is another one, and read it back: some mounts squash modes without an error."""
    if stat.S_IMODE(os.stat(file).st_mode) == mode:
        return
    try:
        os.chmod(file, mode)
    except PermissionError as error:
        raise ArchiveError("unsafe", f"Unable to restore archive {what} permissions", path) from error
    if stat.S_IMODE(os.stat(file).st_mode) != mode:
        raise ArchiveError("unsafe", f"Unable to restore archive {what} permissions", path)


@contextlib.contextmanager
def _checked(stream: BinaryIO, sha256: str, *, spool: Path, limits: Limits) -> Iterator[BinaryIO]:
    """The stream from where it stands, after its digest has matched."""
    digest = hashlib.sha256()
    size = 0
    with contextlib.ExitStack() as stack:
        start = stream.tell() if stream.seekable() else None
        copy = stack.enter_context(tempfile.TemporaryFile(dir=spool)) if start is None else None
        while chunk := stream.read(_READ_BYTES):
            size += len(chunk)
            if size > limits.compressed_bytes:
                raise ArchiveError("unsafe", "Downloaded object exceeds byte limit")
            digest.update(chunk)
            if copy is not None:
                copy.write(chunk)
        if digest.hexdigest() != sha256:
            raise ArchiveError("corrupt", "Downloaded object checksum mismatch")
        if copy is not None:
            copy.seek(0)
            yield copy
        else:
            assert start is not None
            stream.seek(start)
            yield stream
