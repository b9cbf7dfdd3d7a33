"""Tar streams to and from envd: a writer for trees of ours, and a strict reader for what envd sends.

Why not the standard library's tarfile: it believes a header's size when it loads extended headers into memory, follows chains of them by
recursion, and knows sparse files, hard links and devices. envd writes none of that, so the reader refuses it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from seatrial_runner.wire import ProtocolViolation

BLOCK: Final = 512
_CHUNK: Final = 64 << 10
_MAX_EXTENDED_BYTES: Final = 64 << 10
_MAX_NAME_BYTES: Final = 4096
_MAX_PART_BYTES: Final = 255


class Entry(NamedTuple):
    """One file, directory or link of a download. ``name`` is relative, without ``..``; "." is the directory asked for."""

    name: str
    kind: Literal["file", "dir", "link"]
    mode: int
    size: int
    mtime: int
    link_target: str  # "" unless kind is "link"; never followed


class TarReader:
    """Entries one after the other out of a stream that ``pull`` gives piece by piece (b"" at its end)."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        self._pull = pull
        self._buffer = b""
        self._content = 0
        """Bytes of the current file that were not read yet."""
        self._padding = 0

    def next(self) -> Entry | None:
        """The next entry, None at the end of the archive. What was not read of the current file is skipped."""
        while self._content:
            self.read(_CHUNK)
        self._take(self._padding)
        self._padding = 0
        extended: dict[str, bytes] = {}
        header = self._take(BLOCK)
        if header[156:157] == b"x":
            size = _number(header[124:136])
            if size > _MAX_EXTENDED_BYTES:
                raise ProtocolViolation(f"extended tar header of {size} bytes")
            extended = _parse_extended(self._take(size))
            self._take(-size % BLOCK)
            header = self._take(BLOCK)
        if header == bytes(BLOCK):
            if extended or self._take(BLOCK) != bytes(BLOCK):
                raise ProtocolViolation("tar stream ends in the middle")
            return None
        return self._entry(header, extended)

    def read(self, max_bytes: int) -> bytes:
        """Next bytes of the current file, b"" at its end."""
        if not self._content:
            return b""
        if not self._buffer:
            self._fill()
        piece = self._buffer[: min(max_bytes, self._content)]
        self._buffer = self._buffer[len(piece) :]
        self._content -= len(piece)
        return piece

    def has_rest(self) -> bool:
        """Whether bytes came behind what was read."""
        return bool(self._buffer)

    def _entry(self, header: bytes, extended: dict[str, bytes]) -> Entry:
        checksum = sum(header[:148]) + 8 * 0x20 + sum(header[156:])
        if header[257:263] != b"ustar\0" or _number(header[148:156]) != checksum:
            raise ProtocolViolation("damaged tar header")
        name = _text(header[0:100])
        if prefix := _text(header[345:500]):
            name = prefix + b"/" + name
        name = extended.get("path", name)
        size = _decimal(extended["size"]) if "size" in extended else _number(header[124:136])
        mode = _number(header[100:108]) & 0o7777
        mtime = _number(header[136:148])
        match header[156:157]:
            case b"0":
                self._content, self._padding = size, -size % BLOCK
                return Entry(_checked_name(name), "file", mode, size, mtime, "")
            case b"5":
                return Entry(_checked_name(name.removesuffix(b"/"), allow_dot=True), "dir", mode, 0, mtime, "")
            case b"2":
                target = extended.get("linkpath", _text(header[157:257]))
                if not target or len(target) > _MAX_NAME_BYTES or b"\0" in target:
                    raise ProtocolViolation("tar entry with a malformed link")
                return Entry(_checked_name(name), "link", mode, 0, mtime, os.fsdecode(target))
            case other:
                raise ProtocolViolation(f"tar entry of type {other!r}")

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        piece, self._buffer = self._buffer[:count], self._buffer[count:]
        return piece

    def _fill(self) -> None:
        more = self._pull()
        if not more:
            raise ProtocolViolation("tar stream ends in the middle")
        self._buffer = self._buffer + more if self._buffer else more


def _checked_name(raw: bytes, *, allow_dot: bool = False) -> str:
    if raw == b"." and allow_dot:
        return "."
    parts = raw.split(b"/")
    wrong = any(part in (b"", b".", b"..") or len(part) > _MAX_PART_BYTES or b"\0" in part for part in parts)
    if wrong or len(raw) > _MAX_NAME_BYTES:
        raise ProtocolViolation(f"tar entry with the name {raw[:80]!r}")
    return os.fsdecode(raw)


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _number(field: bytes) -> int:
    digits = field.rstrip(b" \0").lstrip(b" ")
    if not digits:
        return 0
    if not all(0x30 <= digit <= 0x37 for digit in digits):
        raise ProtocolViolation("tar header with a malformed number")
    return int(digits, 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise ProtocolViolation("tar header with a malformed number")
    return int(digits)


def _parse_extended(data: bytes) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    while data:
        length_digits, separator, _ = data[:8].partition(b" ")
        if not separator:
            raise ProtocolViolation("malformed extended tar header")
        length = _decimal(length_digits)
        record = data[len(length_digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if length > len(data) or not equals or not value.endswith(b"\n"):
            raise ProtocolViolation("malformed extended tar header")
        records[key.decode("ascii", "replace")] = value[:-1]
        data = data[length:]
    return records


def stays_inside(name: str, target: str) -> bool:
    """Whether a link at ``name`` of a tree leads to a place in the tree, whichever other links of the tree it leads through.

    Steps up may only come first, where they start at the link's own folder: behind another link they start where that one leads.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return ups <= name.count("/") and ".." not in parts[ups:]


def write_tree(source: str | os.PathLike[str]) -> Iterator[bytes]:
    """The content of a directory as a tar stream, in order of name; links stay links.

    Raises:
        OSError: a file cannot be read, or something in the tree is neither file, directory nor link.
    """
    root = os.fsencode(source)
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{os.fsdecode(root)} is not a directory")
    yield from _write_folder(root, b"")
    yield bytes(2 * BLOCK)


def _write_folder(folder: bytes, prefix: bytes) -> Iterator[bytes]:
    for item in sorted(os.listdir(folder)):
        path, name = os.path.join(folder, item), prefix + item
        info = os.lstat(path)
        if stat.S_ISDIR(info.st_mode):
            yield build_header(name + b"/", b"5", info, size=0)
            yield from _write_folder(path, name + b"/")
        elif stat.S_ISLNK(info.st_mode):
            yield build_header(name, b"2", info, size=0, link=os.readlink(path))
        elif stat.S_ISREG(info.st_mode):
            yield from _write_file(path, name)
        else:
            raise OSError(f"{os.fsdecode(path)} is neither file, directory nor link")


def _write_file(path: bytes, name: bytes) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        info = os.fstat(file.fileno())
        yield build_header(name, b"0", info, size=info.st_size)
        missing = info.st_size
        while missing:
            piece = file.read(min(missing, _CHUNK))
            if not piece:
                raise OSError(f"{os.fsdecode(path)} became shorter while it was read")
            missing -= len(piece)
            yield piece
    yield bytes(-info.st_size % BLOCK)


def build_header(name: bytes, kind: bytes, info: os.stat_result, *, size: int, link: bytes = b"") -> bytes:
    """A header block, with an extended header before it where name, link or size do not fit."""
    extended = b""
    if len(name) > 100 or not name.isascii():
        extended += _record(b"path", name)
    if len(link) > 100 or not link.isascii():
        extended += _record(b"linkpath", link)
    if size >= 8**11:
        extended += _record(b"size", b"%d" % size)
    mtime = min(max(int(info.st_mtime), 0), 8**11 - 1)
    header = _block(_ascii(name), kind, mode=stat.S_IMODE(info.st_mode), size=size % 8**11, mtime=mtime, link=_ascii(link))
    if not extended:
        return header
    return _block(b"extended", b"x", mode=0o644, size=len(extended)) + extended + bytes(-len(extended) % BLOCK) + header


def _ascii(name: bytes) -> bytes:
    return bytes(byte if byte < 0x80 else 0x3F for byte in name[:100])


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d" % length + rest


def _block(name: bytes, kind: bytes, *, mode: int, size: int, mtime: int = 0, link: bytes = b"") -> bytes:
    fields = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,
            b"%07o\0" % 0,
            b"%011o\0" % size,
            b"%011o\0" % mtime,
            b" " * 8,
            kind,
            link.ljust(100, b"\0"),
            b"ustar\x0000",
        )
    ).ljust(BLOCK, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]
