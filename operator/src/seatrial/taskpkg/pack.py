"""Write a task folder as an archive of the format ``tar-gzip-v1``: the same tree gives the same bytes.

Why the tar headers are made here and not by ``tarfile``: its layout changed between Python releases (device fields, prefix), and the
archive's digest is its name. Layout: nemo.md 5.6. Equal bytes need an equal deflate too, so a change of zlib may change digests.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from seatrial.taskpkg.capture import Entry, check_unchanged, inventory, read_file
from seatrial.taskpkg.limits import DEFAULT, Limits

FORMAT: Final = "tar-gzip-v1"
BLOCK: Final = 512
RECORD: Final = 10240
# No file name, no time, "best compression", unknown system.
_GZIP_HEADER: Final = bytes.fromhex("1f8b08000000000002ff")
_LEVEL: Final = 9
_TYPES: Final = {"file": b"0", "link": b"2", "directory": b"5"}
# Pieces between reader and compressor: bounded, so that a slow disk or a slow processor never fills the memory.
_QUEUED_PIECES: Final = 8
_PIECE_BYTES: Final = 256 * 1024


class Packed(NamedTuple):
    path: Path
    sha256: str
    """Of the finished file, 64 lower-case hex."""
    size_bytes: int
    entries: int


def pack_task(source: Path, target: Path, *, root_name: str | None = None, limits: Limits = DEFAULT) -> Packed:
    """Pack the folder ``source`` into the new file ``target``. Native validity is not judged here (``check.check_task``).

    ``root_name`` names the archive's root directory; the default is the folder's own name. Memory stays below about 20 MiB plus
    500 bytes an entry, whatever the size of the files.

    Raises:
        PackageError: an entry that cannot be packed, or the folder changed meanwhile. ``target`` is removed.
        FileExistsError: ``target`` exists; it is never overwritten.
    """
    listed = inventory(source, root_name=root_name, limits=limits)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as out, _Compressor(out.write) as compressor:
            for entry in listed.entries:
                compressor.feed(header(entry))
                if entry.kind == "file":
                    for piece in read_file(listed, entry):
                        compressor.feed(piece)
                    compressor.feed(bytes(-entry.size % BLOCK))
            written = compressor.fed_bytes + 2 * BLOCK
            compressor.feed(bytes(2 * BLOCK + -written % RECORD))
        check_unchanged(listed, root_name=listed.entries[0].path, limits=limits)
    except BaseException:
        os.unlink(target)
        raise
    return Packed(path=target, sha256=compressor.hexdigest(), size_bytes=compressor.size_bytes, entries=len(listed.entries))


def header(entry: Entry) -> bytes:
    """The tar records that introduce ``entry``: an extended header first, where its name or target needs one."""
    name = f"{entry.path}/" if entry.kind == "directory" else entry.path
    extended = b"".join(
        _record(key, value) for key, value in (("path", name), ("linkpath", entry.target)) if not value.isascii() or len(value) > 100
    )
    mode = 0o777 if entry.kind == "link" else entry.mode
    block = _block(name, type=_TYPES[entry.kind], mode=mode, size=entry.size, link=entry.target)
    if not extended:
        return block
    return b"".join(
        (
            _block("././@PaxHeader", type=b"x", mode=0, size=len(extended), link=""),
            extended,
            bytes(-len(extended) % BLOCK),
            block,
        )
    )


def _block(name: str, *, type: bytes, mode: int, size: int, link: str) -> bytes:
    """One ustar header: owner 0, time 0, no user names; text beyond 100 bytes is in the extended header."""
    fields = (
        name.encode("ascii", "replace")[:100].ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0",  # uid
        b"0000000\0",  # gid
        b"%011o\0" % size,
        b"00000000000\0",  # mtime
        b"        ",  # checksum, which counts itself as spaces
        type,
        link.encode("ascii", "replace")[:100].ljust(100, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _record(key: str, value: str) -> bytes:
    """``<length> <key>=<value>\\n``, where the length counts its own digits."""
    rest = f" {key}={value}\n".encode()
    length = len(rest) + 1
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


class _Compressor:
    """Deflates, hashes and writes in a thread of its own; zlib and hashlib release the interpreter meanwhile.

    That is what ``tar | gzip`` does with two processes. An error of the thread is raised by the next ``feed`` or at the end.
    """

    def __init__(self, write: Callable[[memoryview], int | None]) -> None:
        self._write = write
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_QUEUED_PIECES)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._digest = hashlib.sha256()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="seatrial-pack", daemon=True)
        self.fed_bytes = 0
        self.size_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._flush()
        self._pieces.put(None)
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def feed(self, data: bytes) -> None:
        self.fed_bytes += len(data)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _PIECE_BYTES:
            self._flush()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _flush(self) -> None:
        if self._error is not None:
            raise self._error
        self._pieces.put(b"".join(self._pending))
        self._pending, self._pending_bytes = [], 0

    def _run(self) -> None:
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, 0)
        checksum = size = 0
        ended = False
        try:
            self._put(_GZIP_HEADER)
            while (piece := self._pieces.get()) is not None:
                checksum = zlib.crc32(piece, checksum)
                size += len(piece)
                self._put(deflate.compress(piece))
            ended = True
            self._put(deflate.flush() + checksum.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little"))
        except BaseException as error:  # noqa: BLE001 handed over to the feeding thread, which raises it
            self._error = error
            while not ended and self._pieces.get() is not None:
                pass

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self.size_bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[self._write(view) or 0 :]
