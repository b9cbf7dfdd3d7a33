"""Pack the folder of an agent's own module and put it into the store. The same files give the same archive, so they are stored once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from seatrial.effects.store import Store, StoreSettings
from seatrial.errors import InvalidSpec
from seatrial.sdk.pack_store import CONTENT_TYPE
from seatrial.taskpkg.pack import pack_task

FILESET: Final = "agent-sources"
ROOT: Final = "source"
LEFT_OUT: Final = ("__pycache__", "*.pyc", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache")


def store_agent_source(folder: Path, *, namespace: str, settings: StoreSettings | None) -> tuple[str, str]:
    """``(reference, sha256)`` for ``spec.agent.source``.

    Args:
        folder: becomes importable, so it holds ``module.py`` or a package ``module``.
        settings: None: pack only, nothing is sent.

    Raises:
        InvalidSpec: no such folder, or it has entries that cannot be packed.
    """
    if not folder.is_dir():
        raise InvalidSpec("agent_dir", f"{folder} is no folder")
    with tempfile.TemporaryDirectory(prefix="seatrial-agent-") as scratch:
        copy, archive = Path(scratch, ROOT), Path(scratch, "archive")
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        packed = pack_task(copy, archive)
        path = f"{packed.sha256}/{ROOT}"
        if settings is not None:
            Store(settings).put_new(f"filesets/{namespace}/{FILESET}/{path}", archive, content_type=CONTENT_TYPE)
    return f"{namespace}/{FILESET}#{path}", packed.sha256
