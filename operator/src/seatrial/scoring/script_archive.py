"""A ``metric.py`` with the packages that it needs as one archive: its Pod has no network to fetch them.

A zip of ``metric.py``, ``requirements.txt`` with the version of each package, and the packages below ``modules/``; the same files are the
same bytes. It is written when a suite is published and unpacked in the Pod of role ``score``. Standard library only.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ARCHIVE_FILE: Final = "metric.zip"
SCRIPT_FILE: Final = "metric.py"
PINS_FILE: Final = "requirements.txt"
MODULES: Final = "modules"

MOST_BYTES: Final = 128 * 1024 * 1024
"""Of the archive."""
MOST_UNPACKED: Final = 512 * 1024 * 1024
MOST_FILES: Final = 20_000

_BLOCK: Final = 1024 * 1024
_PART: Final = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")
_FAULTS: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, UnicodeError)
"""What ``zipfile`` raises for bytes that somebody has made."""


class ArchiveRefused(Exception):
    """The archive is not what ``pack`` writes, or larger than what a Pod takes."""


def is_archive(path: Path) -> bool:
    """Whether a stored script is an archive; a ``metric.py`` never begins so."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def pack(files: Mapping[str, Path | bytes], target: Path) -> None:
    """Write the archive.

    Args:
        files: name in the archive -> its content.

    Raises:
        ArchiveRefused: more files or bytes than ``unpack`` takes.
    """
    sizes = [len(body) if isinstance(body, bytes) else body.stat().st_size for body in files.values()]
    if len(files) > MOST_FILES or sum(sizes) > MOST_UNPACKED:
        raise ArchiveRefused(f"more than {MOST_FILES} files or {MOST_UNPACKED // 1024**2} MiB")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            body = files[name]
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, body if isinstance(body, bytes) else body.read_bytes())
    if target.stat().st_size > MOST_BYTES:
        raise ArchiveRefused(f"larger than {MOST_BYTES // 1024**2} MiB")


def unpack(path: Path, folder: Path) -> None:
    """Write ``metric.py`` and ``modules/`` into ``folder``, which has neither.

    Raises:
        ArchiveRefused: no archive of ours, a name that leaves the folder, a link, or more than the limits.
        OSError: the machine failed.
    """
    left = MOST_UNPACKED
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > MOST_FILES:
                raise ArchiveRefused(f"has more than {MOST_FILES} files")
            for entry in entries:
                target = folder / _checked_name(entry)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as body, open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                    while block := body.read(_BLOCK):
                        # What an entry says of its size is its maker's word.
                        if (left := left - len(block)) < 0:
                            raise ArchiveRefused(f"holds more than {MOST_UNPACKED // 1024**2} MiB")
                        file.write(block)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArchiveRefused("has a file twice, or one below another") from error
    except _FAULTS as error:
        raise ArchiveRefused(f"cannot be read: {error}") from error
    if not (folder / SCRIPT_FILE).is_file():
        raise ArchiveRefused(f"has no {SCRIPT_FILE}")


def _checked_name(entry: zipfile.ZipInfo) -> str:
    parts, kind = entry.filename.split("/"), stat.S_IFMT(entry.external_attr >> 16)
    is_ours = entry.filename in (SCRIPT_FILE, PINS_FILE) or (parts[0] == MODULES and len(parts) > 1)
    is_safe = len(parts) <= 32 and all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    if not is_ours or not is_safe or kind not in (0, stat.S_IFREG):
        raise ArchiveRefused(f"has {entry.filename[:80]!r}: only a script and plain files of its packages are taken")
    return entry.filename
