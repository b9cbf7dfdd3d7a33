"""Harbor's own package format: the archive that its registry keeps (``dist.tar.gz``). Source: harbor.md 2.9.

It holds the files of the content digest and nothing else, so it is not our archive (``pack``), which keeps everything.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from pathlib import Path
from typing import Final

from seatrial.taskpkg.digest import content_digest, content_files

PACKAGE_FILE: Final = "dist.tar.gz"


def pack_harbor(task_dir: Path, target: Path) -> str:
    """Write the task's package to the new file ``target``; returns the content digest, 64 hex. Deterministic.

    Raises:
        FileExistsError: ``target`` exists.
    """
    with (
        target.open("xb") as out,
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for relative, file in content_files(task_dir):
            with file.open("rb") as stream:
                status = os.fstat(stream.fileno())
                entry = tarfile.TarInfo(relative)
                entry.size = status.st_size
                entry.mode = 0o755 if status.st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH) else 0o644
                tar.addfile(entry, stream)
    return content_digest(task_dir)


def matches_digest(task_dir: Path, digest: str) -> bool:
    """True if the folder's content is what the digest (``sha256:<hex>`` or bare) promises; ask after every download."""
    return content_digest(task_dir) == digest.removeprefix("sha256:")
