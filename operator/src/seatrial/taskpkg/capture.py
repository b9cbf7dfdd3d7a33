"""List a task folder completely and safely, and copy it so that nobody can change it any more.

Source: nemo.md 5.2, 5.3 and 5.5. The source is assumed to be quiet; a change while it is read is an error, never a mixed package.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from seatrial.errors import SeatrialError
from seatrial.taskpkg.limits import DEFAULT, RESERVED_ROOT, Limits
from seatrial.taskpkg.paths import UnsafePath, is_safe_path, printable
from seatrial.taskpkg.tree import Tree, TreeError

_READ_BYTES: Final = 1024 * 1024
_PERMISSIONS: Final = 0o7777


class PackageError(SeatrialError):
    """The folder cannot become an archive. ``path`` (root name first, printable) is the entry to change."""

    def __init__(self, message: str, path: str) -> None:
        self.path = printable(path)
        super().__init__(message if self.path in message else f"{message}: {self.path}")


class Entry(NamedTuple):
    """One file, directory or link of a package, as it was when it was listed."""

    path: str
    """Root name first, ``/`` between the parts."""
    kind: Literal["directory", "file", "link"]
    mode: int
    """The permission bits 07777."""
    size: int
    """Bytes of a file, else 0."""
    target: str
    """Text of a link, else empty."""
    identity: tuple[int, int]
    """Device and inode."""
    modified_ns: int


class Inventory(NamedTuple):
    source: Path
    entries: tuple[Entry, ...]
    """In the order of their path strings, root first."""
    payload_bytes: int


def inventory(root: Path, *, root_name: str | None = None, limits: Limits = DEFAULT) -> Inventory:
    """Everything below ``root``, dotfiles, git-ignored files and empty directories included. No link is followed.

    ``root_name`` stands in the paths instead of the folder's own name.

    Raises:
        PackageError: the first entry that cannot be packed.
        OSError: something cannot be read.
    """
    listed, faults = scan(root, root_name=root_name, limits=limits)
    for fault in faults:
        raise fault
    return listed


def scan(root: Path, *, root_name: str | None = None, limits: Limits = DEFAULT) -> tuple[Inventory, tuple[PackageError, ...]]:
    """As ``inventory``, with all faults instead of the first one; what is at fault is not in the inventory."""
    root = Path(os.path.abspath(root))
    name = root.name if root_name is None else root_name
    status = os.lstat(root)
    if not is_safe_path(name, max_bytes=limits.path_bytes) or not stat.S_ISDIR(status.st_mode) or name.casefold() == RESERVED_ROOT:
        return Inventory(root, (), 0), (PackageError("Task root must be a real, non-reserved directory", name),)
    entries = [_entry(name, "directory", status)]
    faults: list[PackageError] = []
    payload = 0
    for found in _walk(root, name):
        path, status = found.path, found.status
        if not is_safe_path(path, max_bytes=limits.path_bytes):
            faults.append(PackageError(str(UnsafePath(path)), path))
            continue
        depth = path.count("/")
        if depth > limits.depth:
            if depth == limits.depth + 1:  # what is below would only repeat it
                faults.append(PackageError("Directories nested too deeply", path))
            continue
        if len(entries) >= limits.entries:
            faults.append(PackageError("Too many task entries", path))
            break
        if stat.S_ISLNK(status.st_mode):
            entries.append(_entry(path, "link", status, target=os.readlink(found.file)))
        elif stat.S_ISDIR(status.st_mode):
            entries.append(_entry(path, "directory", status))
        elif stat.S_ISREG(status.st_mode):
            payload += status.st_size
            if status.st_size > limits.file_bytes or payload > limits.payload_bytes:
                faults.append(PackageError("Task payload exceeds limits", path))
                continue
            entries.append(_entry(path, "file", status))
        else:
            faults.append(PackageError("Unsupported task entry", path))
    entries.sort(key=lambda entry: entry.path)
    faults += _tree_faults(entries)
    faults.sort(key=lambda fault: fault.path)
    return Inventory(root, tuple(entries), payload), tuple(faults)


def check_unchanged(listed: Inventory, *, root_name: str, limits: Limits = DEFAULT) -> None:
    """Raise ``PackageError`` if the folder no longer is what it was when it was listed."""
    now = inventory(listed.source, root_name=root_name, limits=limits)
    for before, after in zip(listed.entries, now.entries, strict=False):
        if before != after:
            raise PackageError("Task changed during capture", min(before.path, after.path))
    if len(listed.entries) != len(now.entries):
        raise PackageError("Task changed during capture", root_name)


def read_file(listed: Inventory, entry: Entry) -> Iterator[bytes]:
    """The content of a listed file, exactly ``entry.size`` bytes in pieces of at most 1 MiB.

    Raises:
        PackageError: it is another file by now, or it was written to meanwhile.
    """
    file = _source_path(listed, entry)
    try:
        # NONBLOCK: if a FIFO took the file's place, opening it would wait for a writer for ever.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        raise PackageError("Task changed during capture", entry.path) from error
    try:
        _check_same(os.fstat(descriptor), entry)
        left = entry.size
        while left > 0:
            piece = os.read(descriptor, min(left, _READ_BYTES))
            if not piece:
                raise PackageError("Task changed during capture", entry.path)
            left -= len(piece)
            yield piece
        if os.read(descriptor, 1):
            raise PackageError("Task grew during capture", entry.path)
        _check_same(os.fstat(descriptor), entry)
    finally:
        os.close(descriptor)


def capture(source: Path, target: Path, *, limits: Limits = DEFAULT) -> Inventory:
    """Copy the task at ``source`` to ``target / source.name`` with modes and links; ``target`` must be private to the caller.

    Directories are 0700 while the copy is made and get their modes last. Returns the inventory of the copy, links judged again.

    Raises:
        PackageError: the source cannot be packed, or it changed; what was copied until then stays for the caller to remove.
    """
    listed = inventory(source, limits=limits)
    name = listed.entries[0].path
    for entry in listed.entries:
        copy = target / entry.path
        match entry.kind:
            case "directory":
                copy.mkdir(0o700)
            case "link":
                copy.symlink_to(entry.target)
            case "file":
                descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as out:
                    for piece in read_file(listed, entry):
                        out.write(piece)
                    out.flush()
                    os.chmod(descriptor, entry.mode)
    check_unchanged(listed, root_name=name, limits=limits)
    for entry in reversed(listed.entries):
        if entry.kind == "directory":
            os.chmod(target / entry.path, entry.mode)
    return inventory(target / name, limits=limits)


class _Found(NamedTuple):
    path: str
    file: str
    status: os.stat_result


def _walk(root: Path, name: str) -> Iterator[_Found]:
    """Every entry below ``root``, parents before children. Not ``os.walk``: that recurses, and folders may be very deep."""
    waiting = [(str(root), name)]
    while waiting:
        folder, path = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                found = _Found(f"{path}/{entry.name}", entry.path, entry.stat(follow_symlinks=False))
                yield found
                if stat.S_ISDIR(found.status.st_mode):
                    waiting.append((entry.path, found.path))


def _tree_faults(entries: list[Entry]) -> Iterator[PackageError]:
    """Names that differ only in case, and links that leave the task."""
    targets = {entry.path: entry.target for entry in entries if entry.kind == "link"}
    tree = Tree(entries[0].path, entries[0].mode)
    hidden: str | None = None  # below a refused directory everything would be reported again
    for entry in entries[1:]:
        if hidden is not None and entry.path.startswith(hidden):
            continue
        try:
            match entry.kind:
                case "directory":
                    tree.add_directory(entry.path, entry.mode)
                case "link":
                    tree.add_link(entry.path)
                case "file":
                    tree.add_file(entry.path)
        except TreeError as error:
            hidden = f"{entry.path}/"
            if error.is_duplicate:
                yield PackageError("Duplicate case-folded archive path", error.path)
    try:
        for path in tree.bad_links(targets.__getitem__):
            yield PackageError(f"Symlink escapes task root: {path}", path)
    except TreeError as error:
        yield PackageError(str(error), error.path)


def _entry(path: str, kind: Literal["directory", "file", "link"], status: os.stat_result, *, target: str = "") -> Entry:
    return Entry(
        path=path,
        kind=kind,
        mode=status.st_mode & _PERMISSIONS,
        size=status.st_size if kind == "file" else 0,
        target=target,
        identity=(status.st_dev, status.st_ino),
        modified_ns=status.st_mtime_ns,
    )


def _check_same(status: os.stat_result, entry: Entry) -> None:
    if (status.st_dev, status.st_ino) != entry.identity or status.st_mtime_ns != entry.modified_ns or status.st_size < entry.size:
        raise PackageError("Task changed during capture", entry.path)
    if status.st_size > entry.size:
        raise PackageError("Task grew during capture", entry.path)


def _source_path(listed: Inventory, entry: Entry) -> str:
    inner = entry.path.partition("/")[2]
    return os.path.join(listed.source, inner) if inner else str(listed.source)
