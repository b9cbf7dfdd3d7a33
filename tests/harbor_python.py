"""A Python that has Harbor, for tests that ask Harbor itself: made once and kept outside the checkout.

Usage: ``python -m tests.harbor_python [VERSION]`` prints the path of the interpreter, or nothing where there is none and none can be had:
the reason goes to standard error. ``SEATRIAL_HARBOR_PYTHON`` names one to be used instead. Harbor needs Python 3.12 or newer: one of the
machine, else one that uv downloads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

VERSION: Final = "0.26.0"
_BESIDE: Final = ("kubernetes",)
"""For Harbor's environments on Kubernetes."""
_NEW_ENOUGH: Final = "import sys, venv; sys.exit(sys.version_info < (3, 12))"
_INSTALL_SECONDS: Final = 900


def harbor_python(version: str = VERSION) -> Path | None:
    """An interpreter that imports ``harbor`` in ``version``, made on first use; None with the reason on standard error."""
    if version == VERSION and (given := os.environ.get("SEATRIAL_HARBOR_PYTHON")):
        return Path(given)
    cache = Path(os.environ.get("SEATRIAL_CACHE_DIR") or Path.home() / ".cache" / "seatrial") / "harbor"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / version
    with (cache / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [f"harbor=={version}", *_BESIDE]
        mark = folder / ".complete"
        if not mark.exists() or mark.read_text() != " ".join(wanted):
            try:
                _make(folder, wanted)
                mark.write_text(" ".join(wanted))
            except (OSError, subprocess.SubprocessError) as error:
                output = getattr(error, "stderr", None) or ""
                sys.stderr.write(f"no Python with harbor {version}: {error}\n{output[-2000:]}\n")
                return None
    return folder / "bin" / "python"


def _make(folder: Path, wanted: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--python", _base_python(), str(folder))
    _uv("pip", "install", "--python", str(folder / "bin" / "python"), *wanted)


def _base_python() -> str:
    """Path of a Python that is new enough, or what uv shall look for."""
    for path in _installed():
        if subprocess.run([path, "-c", _NEW_ENOUGH], capture_output=True, check=False, timeout=60).returncode == 0:
            return str(path)
    return "3.13"


def _installed() -> Iterator[Path]:
    for minor in (13, 12, 14):
        if (found := shutil.which(f"python3.{minor}")) is not None:
            yield Path(found)
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from sorted(versions.glob("3.1[2-4].*/bin/python3"))


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([str(uv), "--quiet", *arguments], capture_output=True, text=True, check=True, timeout=_INSTALL_SECONDS)


if __name__ == "__main__":
    if (found := harbor_python(*sys.argv[1:2])) is not None:
        print(found)
