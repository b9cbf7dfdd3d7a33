"""A wheel with one module, made by hand: no registry is asked."""

from __future__ import annotations

import zipfile
from pathlib import Path


def probe_wheel(folder: Path) -> Path:
    """``seatrial-probe`` 1.0: its module ``seatrial_probe`` has ``ANSWER``, 42."""
    path = folder / "seatrial_probe-1.0-py3-none-any.whl"
    info = "seatrial_probe-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("seatrial_probe.py", "ANSWER = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: seatrial-probe\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
