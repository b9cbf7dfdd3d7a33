"""Write ``logs.tar.gz``: the logs of agent and verifier, the artifacts and their manifest. Streamed, capped, free of known secrets.

Why so suspicious: all of it was written by the task's processes. Nothing is followed, everything is bounded, names are checked again,
devices are left out, set-id bits are dropped. Layout and manifest: harbor.md 4.7 and 7.4.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, BinaryIO, Final, Literal, NamedTuple, Protocol, TypedDict

from seatrial.contract import ArtifactInput
from seatrial_runner.channel import ChannelError, Entry, EnvdError, EnvironmentExited, GetSummary
from seatrial_runner.redact import Redactor
from seatrial_runner.tarstream import stays_inside

MIB: Final = 1024 * 1024
# Fast: the verifier has a twentieth of a core, and logs shrink well at any level.
_COMPRESSION: Final = 3
_BLOCK_BYTES: Final = 64 * 1024
_LISTED: Final = 20
_NOT_FOLLOWED: Final = "a link is not followed"
# ``os.fwalk`` recurses and keeps a descriptor open on each level.
_LOCAL_DEPTH: Final = 64


class Caps(NamedTuple):
    """Bounds of one archive; bytes before compression."""

    total_bytes: int = 100 * MIB
    file_bytes: int = 10 * MIB
    """A longer log keeps its head and tail; a longer artifact is kept whole as far as the total allows."""
    read_bytes: int = 1024 * MIB
    """A longer file is not read at all."""
    entries: int = 20_000


DEFAULT_CAPS: Final = Caps()
SEPARATE_CAPS: Final = Caps(total_bytes=900 * MIB, file_bytes=10 * MIB, read_bytes=900 * MIB, entries=100_000)
"""A separate verifier has nothing but the artifacts. The scratch volume has 1 GiB."""


class Items(Protocol):
    """A running read of a file or tree, as ``channel.Download``."""

    def __iter__(self) -> Iterator[Entry]: ...
    def read(self, max_bytes: int = ...) -> bytes: ...
    @property
    def summary(self) -> GetSummary: ...
    def close(self) -> None: ...


class Source(Protocol):
    """Where evidence is read from."""

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> Items: ...


class ManifestEntry(TypedDict):
    source: str
    destination: str
    type: Literal["file", "directory"]
    status: Literal["ok", "empty", "failed", "skipped"]
    service: str | None
    exclude: list[str]


class Evidence(NamedTuple):
    """What was written."""

    sha256: str
    size_bytes: int
    truncated: tuple[str, ...]
    """Names of the first files that are cut or left out, and what else is missing."""


class AddedArtifact(NamedTuple):
    kind: Literal["file", "directory"]
    complete: bool
    entries: int
    """Without the artifact itself."""


class EvidenceWriter:
    """Builds the archive in ``file``. Once a cap is met the rest is named instead of kept; nothing here fails the trial."""

    def __init__(self, file: BinaryIO, *, redactor: Redactor, caps: Caps = DEFAULT_CAPS, out_of_time: Callable[[], bool] = bool) -> None:
        self._hashing = _Hashing(file)
        self._gzip = gzip.GzipFile(filename="", fileobj=self._hashing, mode="wb", compresslevel=_COMPRESSION, mtime=0)
        self._tar = tarfile.open(fileobj=self._gzip, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by ``finish``
        self._redactor = redactor
        self._caps = caps
        self._out_of_time = out_of_time
        self._left = caps.total_bytes
        self._entries = caps.entries
        self._truncated: list[str] = []
        self._names: set[int] = set()
        """Hashes: names of 4 KiB, a hundred thousand times, would fill the memory."""
        self._is_whole = True

    def add_logs(self, source: Source, path: str, prefix: str) -> None:
        """The tree at ``path`` below ``prefix``; what cannot be read is named as missing."""
        try:
            for name, entry, items in self._items(source, path, prefix):
                self._add(name, entry, items, whole=False)
        except EnvdError as error:
            self._lose(prefix, str(error))

    def add_artifact(self, source: Source, path: str, destination: str, exclude: Sequence[str], *, prefix: str = "") -> AddedArtifact:
        """One artifact below ``<prefix>artifacts/``.

        Raises:
            EnvdError: nothing readable is at ``path``.
        """
        top = f"{prefix}artifacts/{destination}"
        kind: Literal["file", "directory"] = "file"
        count = 0
        self._is_whole = True
        for name, entry, items in self._items(source, path, top):
            if name == top:
                kind = "directory" if entry.kind == "dir" else "file"
                if entry.kind == "link":
                    self._lose(top, _NOT_FOLLOWED)
            elif _is_excluded(name.removeprefix(f"{top}/"), exclude):
                continue
            else:
                count += 1
            self._add(name, entry, items, whole=True)
        return AddedArtifact(kind, self._is_whole, count)

    def add_bytes(self, name: str, data: bytes) -> None:
        """A file of our own, beyond all caps."""
        self._write(name, io.BytesIO(data), len(data), mode=0o644, mtime=int(time.time()))

    def copy(self, archive: str) -> None:
        """All members of an archive that an earlier writer made, beyond all caps."""
        with tarfile.open(archive) as tar:
            for member in members(tar):
                if member.isreg() or member.isdir() or member.issym():
                    self._names.add(hash(member.name))
                    self._add_member(member, tar.extractfile(member) if member.isreg() else None)

    @property
    def incomplete(self) -> str | None:
        """An artifact that is not wholly in the archive although it could be read."""
        return next((text for text in self._truncated if "artifacts/" in text.split(":")[0] and not text.endswith(_NOT_FOLLOWED)), None)

    def finish(self) -> Evidence:
        self._tar.close()
        self._gzip.close()
        return Evidence(self._hashing.hexdigest(), self._hashing.size, tuple(self._truncated[:_LISTED]))

    def _items(self, source: Source, path: str, top: str) -> Iterator[tuple[str, Entry, Items]]:
        """Entries with their names in the archive, ``top`` for ``path`` itself; ends early when a cap is met."""
        caps = self._caps
        if self._out_of_time():
            # An environment that answers nothing would be waited for once for each artifact.
            self._lose(top, "left out: no time")
            return
        items = source.get(path, max_bytes=16 * caps.read_bytes, max_entries=caps.entries, max_file_bytes=caps.read_bytes)
        try:
            is_tree = False
            for number, entry in enumerate(items):
                if self._out_of_time() or self._entries <= 0:
                    self._lose(top, "the rest is left out: " + ("no time" if self._entries > 0 else "too many entries"))
                    return
                if number == 0:
                    is_tree = entry.kind == "dir"
                    yield top, entry, items
                elif is_tree and _is_plain(entry.name):
                    yield f"{top}/{entry.name}", entry, items
            self._lose_what_was_not_read(top, items.summary)
        finally:
            items.close()

    def _lose_what_was_not_read(self, top: str, summary: GetSummary) -> None:
        if summary.skipped_large:
            self._lose(top, f"{summary.skipped_large} files are too large to read")
        if summary.skipped_unreadable:
            self._lose(top, f"{summary.skipped_unreadable} files cannot be read")
        if summary.truncated:
            self._lose(top, "the rest is left out: too many entries, or too deep")

    def _lose(self, name: str, why: str) -> None:
        """Note that ``name`` is not, or not wholly, in the archive."""
        self._is_whole = False
        if len(self._truncated) < _LISTED:
            self._truncated.append(f"{name}: {why}"[:200])

    def _add(self, name: str, entry: Entry, items: Items, *, whole: bool) -> None:
        if hash(name) in self._names:
            return
        self._entries -= 1
        self._names.add(hash(name))
        match entry.kind:
            case "dir":
                self._write_special(name, entry, tarfile.DIRTYPE)
            case "link":
                # Below the first folder: logs do not lead to artifacts.
                if stays_inside(name.partition("/")[2], entry.link_target):
                    self._write_special(name, entry, tarfile.SYMTYPE)
            case "file":
                self._add_file(name, entry, items, whole=whole)

    def _add_file(self, name: str, entry: Entry, items: Items, *, whole: bool) -> None:
        mode = 0o755 if entry.mode & 0o111 else 0o644
        if whole and entry.size > self._caps.file_bytes:
            if entry.size > self._left:
                self._lose(name, f"left out, {entry.size} bytes are too many")
                return
            self._left -= entry.size
            self._write(name, _Exactly(_Masked(items, self._redactor), entry.size), entry.size, mode=mode, mtime=entry.mtime)
            return
        data, cut = _read_capped(items, entry.size, min(self._caps.file_bytes, max(0, self._left)), self._redactor)
        data = self._redactor.file(name, data)
        self._left -= len(data)
        if cut:
            self._lose(name, f"cut from {entry.size} bytes")
        self._write(name, io.BytesIO(data), len(data), mode=mode, mtime=entry.mtime)

    def _write(self, name: str, data: BinaryIO | _Exactly, size: int, *, mode: int, mtime: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, mode, max(0, mtime)
        self._add_member(info, data)

    def _write_special(self, name: str, entry: Entry, type: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = type, 0o755, max(0, entry.mtime)
        if type == tarfile.SYMTYPE:
            info.linkname = entry.link_target
        self._add_member(info, None)

    def _add_member(self, info: tarfile.TarInfo, data: IO[bytes] | _Exactly | None) -> None:
        self._tar.addfile(info, data)
        forget_members(self._tar)


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive of ours, each to be used before the next."""
    while (member := tar.next()) is not None:
        yield member
        forget_members(tar)


def forget_members(tar: tarfile.TarFile) -> None:
    """Have ``tar`` keep none of the members that it has read or written: a hundred thousand names of 4 KiB would fill the memory."""
    tar.members.clear()  # type: ignore[attr-defined]


def collect_artifacts(
    writer: EvidenceWriter, source: Source, artifacts: Sequence[ArtifactInput], *, conventional: str, workdir: str, prefix: str = ""
) -> list[ManifestEntry]:
    """Write all artifacts, ``conventional`` (``/logs/artifacts``) first unless an entry names it; returns the manifest.

    ``prefix`` stands before their folder in the archive; the manifest does not show it.

    The first entry to claim a place wins; one equal to, above or below a claimed place is ``skipped``.
    """
    entries = list(artifacts)
    if not any(entry["source"].rstrip("/") == conventional and entry["service"] in (None, "main") for entry in entries):
        entries.insert(0, ArtifactInput(source=conventional, destination=None, exclude=[], service=None))
    claimed: list[str] = []
    manifest = []
    for entry in entries:
        path = entry["source"] if entry["source"].startswith("/") else f"{workdir.rstrip('/')}/{entry['source']}"
        destination = _normal(entry["destination"] or entry["source"])
        row = ManifestEntry(
            source=entry["source"],
            destination=f"artifacts/{destination}",
            type="file",
            status="failed",
            service=None if entry["service"] == "main" else entry["service"],
            exclude=[],
        )
        manifest.append(row)
        if any(_overlap(destination, other) for other in claimed):
            row["status"] = "skipped"
            continue
        claimed.append(destination)
        if row["service"] is not None or not destination:
            continue
        try:
            row["type"], complete, count = writer.add_artifact(source, path, destination, entry["exclude"], prefix=prefix)
        except EnvdError:
            continue
        if row["type"] == "directory":
            row["exclude"] = list(entry["exclude"])
        row["status"] = "ok" if complete else "failed"
        if path.rstrip("/") == conventional and complete and not count:
            row["status"] = "empty"
    return manifest


class LocalSource:
    """The verifier's own mounts of the log folders, for when the environment is gone. Links are never followed."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(roots)

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> Items:
        if path.rstrip("/") not in self._roots or not os.path.isdir(path):
            raise EnvdError("missing", "the environment is gone")
        return _LocalItems(path, max_entries, max_file_bytes or max_bytes)


class FailingSource:
    """Reads as long as the environment lives; when it dies, what is left is missing and nothing more."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> Items:
        try:
            return _FailingItems(self._source.get(path, max_bytes=max_bytes, max_entries=max_entries, max_file_bytes=max_file_bytes))
        except ChannelError as error:
            raise _as_missing(error) from error


class _FailingItems:
    def __init__(self, items: Items) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Entry]:
        try:
            yield from self._items
        except ChannelError as error:
            raise _as_missing(error) from error

    def read(self, max_bytes: int = _BLOCK_BYTES) -> bytes:
        try:
            return self._items.read(max_bytes)
        except ChannelError:
            return b""  # padded to the announced size; the next entry raises

    @property
    def summary(self) -> GetSummary:
        return self._items.summary

    def close(self) -> None:
        self._items.close()


def _as_missing(error: ChannelError) -> EnvdError:
    if isinstance(error, EnvdError):
        return error
    what = "the environment exited" if isinstance(error, EnvironmentExited) else "the connection to the environment broke"
    return EnvdError("missing", what)


class _LocalItems:
    """Walks with directory descriptors, so that no name is looked up through a link that appears meanwhile."""

    def __init__(self, path: str, max_entries: int, max_file_bytes: int) -> None:
        self._path = path
        self._max_entries = max_entries
        self._max_file_bytes = max_file_bytes
        self._file: BinaryIO | None = None
        self._special = self._large = self._unreadable = 0
        self._is_cut = False

    @property
    def summary(self) -> GetSummary:
        return GetSummary(0, 0, self._special, self._large, self._unreadable, 0, self._is_cut)

    def __iter__(self) -> Iterator[Entry]:
        left = self._max_entries
        for folder, folders, files, descriptor in os.fwalk(self._path, follow_symlinks=False, onerror=None):
            relative = os.path.relpath(folder, self._path)
            if relative.count("/") >= _LOCAL_DEPTH and folders:
                self._is_cut = True
                folders.clear()
            yield _local_entry(relative, os.fstat(descriptor))
            for name in sorted([*files, *(name for name in folders if _is_link(name, descriptor))]):
                left -= 1
                if left < 0:
                    self._is_cut = True
                    return
                entry = self._open(name, descriptor, relative)
                if entry is not None:
                    yield entry

    def _open(self, name: str, directory: int, relative: str) -> Entry | None:
        place = name if relative == "." else f"{relative}/{name}"
        self.close()
        try:
            status = os.lstat(name, dir_fd=directory)
            if stat.S_ISLNK(status.st_mode):
                return _local_entry(place, status)._replace(link_target=os.readlink(name, dir_fd=directory))
            if not stat.S_ISREG(status.st_mode):
                self._special += 1
                return None
            if status.st_size > self._max_file_bytes:
                self._large += 1
                return None
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError:
            self._unreadable += 1  # gone, or readable by root alone
            return None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            return None
        self._file = open(descriptor, "rb")  # noqa: SIM115 - closed with the next entry or by ``close``
        return _local_entry(place, status)

    def read(self, max_bytes: int = _BLOCK_BYTES) -> bytes:
        return self._file.read(max_bytes) if self._file is not None else b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode)
    except OSError:
        return False


def _local_entry(name: str, status: os.stat_result) -> Entry:
    kind: Literal["file", "dir", "link"] = "file"
    if stat.S_ISDIR(status.st_mode):
        kind = "dir"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
    size = status.st_size if kind == "file" else 0
    return Entry(name=name, kind=kind, mode=stat.S_IMODE(status.st_mode), size=size, mtime=int(status.st_mtime), link_target="")


class _Hashing(io.RawIOBase):
    """Writes through and digests what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class _Masked:
    """Blanks known secrets in a stream without changing its length, for files too long for memory."""

    def __init__(self, items: Items, redactor: Redactor) -> None:
        self._items = items
        self._redactor = redactor
        self._ready = b""
        self._pending = b""

    def read(self, size: int) -> bytes:
        while len(self._ready) < size:
            block = self._items.read(_BLOCK_BYTES)
            # The end of a block may be the beginning of a value, so that many bytes wait for the next one.
            keep = self._redactor.longest - 1 if block and self._redactor else 0
            masked = self._redactor.mask(self._pending + block)
            cut = max(0, len(masked) - keep)
            self._ready += masked[:cut]
            self._pending = masked[cut:]
            if not block:
                break
        data, self._ready = self._ready[:size], self._ready[size:]
        return data


class _Exactly:
    """Exactly ``size`` bytes: cut, or padded with zeros where a file shrank meanwhile."""

    def __init__(self, source: _Masked, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int = -1) -> bytes:
        want = self._left if size < 0 else min(size, self._left)
        data = self._source.read(want)
        self._left -= want
        return data.ljust(want, b"\0")


def _read_capped(items: Items, size: int, cap: int, redactor: Redactor) -> tuple[bytes, bool]:
    """A file's bytes; of a longer one head, marker and tail within about ``cap``; and whether it was cut. No part of a secret is left at a
    cut: whole ones are blanked out first, and then as much is left out as one can be long.
    """
    if size <= cap:
        return _read(items, size), False
    head = _read(items, cap // 2)
    tail = b""
    while block := items.read(_BLOCK_BYTES):
        tail = (tail + block)[-(cap - cap // 2) :] if cap else b""
    if edge := max(0, redactor.longest - 1):
        head, tail = redactor.mask(head)[:-edge], redactor.mask(tail)[edge:]
    marker = f"\n[... {size - len(head) - len(tail)} bytes left out ...]\n".encode()
    return head + marker + tail, True


def _read(items: Items, size: int) -> bytes:
    pieces = []
    left = size
    while left > 0 and (block := items.read(min(left, _BLOCK_BYTES))):
        pieces.append(block)
        left -= len(block)
    return b"".join(pieces)


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    return not name.startswith("/") and "\0" not in name and all(part not in ("", ".", "..") for part in parts)


def _is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """As ``tar --exclude``: a pattern matches from any folder on, "*" also matches "/", a matched folder takes its contents along."""
    parts = name.split("/")
    return any(
        fnmatch.fnmatchcase("/".join(parts[start:end]), pattern.rstrip("/"))
        for pattern in patterns
        for start in range(len(parts))
        for end in range(start + 1, len(parts) + 1)
    )


def _normal(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", ".", ".."))


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
