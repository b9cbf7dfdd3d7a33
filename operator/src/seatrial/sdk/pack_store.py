"""Pack one task and put its archive into the store. A module of its own, because worker processes import nothing else."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from seatrial.effects.store import Put, Store, StoreSettings
from seatrial.errors import SeatrialError
from seatrial.sdk.default_image import needs_image, set_docker_image
from seatrial.taskpkg.capture import capture
from seatrial.taskpkg.pack import pack_task

ARCHIVE_NAME: Final = "task_archive"
"""Last part of an archive's path; it has no extension."""
CONTENT_TYPE: Final = "application/gzip"


@dataclass(frozen=True)
class Destination:
    """Where archives go: ``filesets/<namespace>/<fileset>/[prefix/]<folder>/<sha256>/task_archive``."""

    namespace: str
    fileset: str
    prefix: str = ""

    def path(self, folder: str, sha256: str) -> str:
        """Path inside the fileset."""
        return "/".join(part for part in (self.prefix, folder, sha256, ARCHIVE_NAME) if part)

    def ref(self, path: str) -> str:
        """``namespace/fileset#path``."""
        return f"{self.namespace}/{self.fileset}#{path}"

    def key(self, path: str) -> str:
        """Key in the object store."""
        return f"filesets/{self.namespace}/{self.fileset}/{path}"


def key_of(ref: str) -> str:
    """Key of an archive reference."""
    place, _, path = ref.partition("#")
    return f"filesets/{place}/{path}"


class Stored(NamedTuple):
    """An archive, or why there is none."""

    folder: str
    """Absolute path of the task."""
    ref: str = ""
    sha256: str = ""
    size_bytes: int = 0
    outcome: Literal["created", "same", "packed", "failed"] = "failed"
    """``packed``: nothing was sent, because it was a rehearsal."""
    message: str = ""


def pack_and_store(
    folder: str,
    *,
    settings: StoreSettings | None,
    destination: Destination,
    default_image: str | None,
    scratch: str,
    read_back: bool = True,
) -> Stored:
    """Pack and store one task; faults are an outcome, so that one bad task does not end the others.

    Args:
        folder: the task.
        settings: None: pack only.
        destination: where to.
        default_image: image for a task that names none and builds none.
        scratch: an existing folder for the archive until it is sent; nothing stays in it.
        read_back: see ``Store.put_new``.
    """
    source = Path(folder)
    # One folder for all: making and removing one a task costs as much as packing a small task.
    archive = Path(scratch) / f"{os.getpid()}-{next(_numbers)}"
    try:
        if default_image is not None and needs_image(source):
            with tempfile.TemporaryDirectory(dir=scratch) as copy:
                capture(source, Path(copy))
                set_docker_image(Path(copy) / source.name, default_image)
                packed = pack_task(Path(copy) / source.name, archive)
        else:
            packed = pack_task(source, archive)
        path = destination.path(source.name, packed.sha256)
        outcome: Literal["created", "same", "packed"] = "packed"
        if settings is not None:
            put = _store(settings).put_new(destination.key(path), archive, content_type=CONTENT_TYPE, read_back=read_back)
            outcome = "created" if put is Put.CREATED else "same"
        return Stored(folder, destination.ref(path), packed.sha256, packed.size_bytes, outcome)
    except (SeatrialError, OSError) as error:
        return Stored(folder, message=str(error))
    finally:
        archive.unlink(missing_ok=True)


_numbers = itertools.count()


@functools.cache
def _store(settings: StoreSettings) -> Store:
    """One client a process: connections are kept."""
    return Store(settings)
