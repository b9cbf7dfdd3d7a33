"""The inline dependencies of a ``metric.py``, resolved to wheels when it is published: its Pod has no network.

Wheels only, so nothing of a package runs here. A script whose packages are not to be had as wheels is published alone, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from seatrial.scoring.script import DEPENDENCIES, ScriptFault, dependencies
from seatrial.scoring.script_archive import ARCHIVE_FILE, MODULES, PINS_FILE, SCRIPT_FILE, ArchiveRefused, pack
from seatrial.sdk.metric_script import MetricScriptError, install

PYTHON: Final = "3.11"
"""Of the runner image."""
PLATFORM: Final = "x86_64-manylinux_2_28"
"""For packages that are compiled; most are not, and run anywhere."""

_NOT_KEPT: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
"""Of a package's metadata: what says how and from where it came onto this machine."""


def pack_script(content: bytes, folder: Path, *, platform: str = PLATFORM) -> Path | None:
    """The script and its packages as an archive in ``folder``; None for a script without dependencies.

    Raises:
        MetricScriptError: they cannot be read, are not to be had as wheels, or take too much room.
    """
    try:
        requirements = dependencies(content.decode("utf-8", "replace"))
        if not requirements:
            return None
        modules = folder / MODULES
        install(requirements, modules, "--python-version", PYTHON, "--python-platform", platform)
        pins = sorted({f"{item.metadata['Name']}=={item.version}" for item in distributions(path=[str(modules)])}, key=str.casefold)
        files: dict[str, Path | bytes] = {SCRIPT_FILE: content, PINS_FILE: "".join(f"{pin}\n" for pin in pins).encode()}
        files |= {f"{MODULES}/{path.relative_to(modules).as_posix()}": path for path in _kept(modules)}
        target = folder / ARCHIVE_FILE
        pack(files, target)
    except ArchiveRefused as error:
        raise MetricScriptError(ScriptFault(DEPENDENCIES, f"its packages take too much room: {error}")) from error
    except ScriptFault as fault:
        raise MetricScriptError(fault) from fault
    return target


def _kept(modules: Path) -> Iterator[Path]:
    for path in sorted(modules.rglob("*")):
        inner = path.relative_to(modules)
        is_ours = path.parent.suffix == ".dist-info" and path.name in _NOT_KEPT
        if (
            path.is_file()
            and not path.is_symlink()
            and not is_ours
            and "__pycache__" not in inner.parts
            and inner.parts[0] not in ("bin", ".lock")
        ):
            yield path
