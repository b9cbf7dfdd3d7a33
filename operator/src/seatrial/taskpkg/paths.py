"""Which paths may stand in a task archive. Standard library only.

Why so strict: a path must mean the same file on every system, in every tool, in an object key and in a reference
(``namespace/fileset#path``). Source: nemo.md 5.1.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from seatrial.taskpkg.limits import DEFAULT

# Control characters and \ % ? # : anywhere; empty parts; parts that end in a space or a dot (so also "." and "..").
_BAD: Final = re.compile(r"[\x00-\x1f\x7f\\%?#:]|^/|//|/\Z|[ .](?:/|\Z)")


class UnsafePath(ValueError):
    """A path that the rule refuses; ``path`` is printable."""

    def __init__(self, path: str) -> None:
        self.path = printable(path)
        super().__init__(f"Unsafe or ambiguous archive path: '{self.path}'")


def is_safe_path(path: str, *, max_bytes: int = DEFAULT.path_bytes) -> bool:
    """True if ``path`` (parts separated by ``/``) obeys the path rule."""
    if not path or _BAD.search(path):
        return False
    if path.isascii():
        return len(path) <= max_bytes
    try:
        size = len(path.encode())
    except UnicodeEncodeError:  # surrogates: the bytes were not UTF-8
        return False
    return size <= max_bytes and unicodedata.is_normalized("NFC", path)


def check_path(path: str, *, max_bytes: int = DEFAULT.path_bytes) -> None:
    """Raise ``UnsafePath`` unless ``path`` obeys the path rule."""
    if not is_safe_path(path, max_bytes=max_bytes):
        raise UnsafePath(path)


def printable(text: str, *, max_chars: int = 200) -> str:
    """``text`` for a message: control characters and undecodable bytes escaped, long text cut."""
    shown = "".join(char if char.isprintable() else _escaped(char) for char in text[:max_chars])
    return shown if len(text) <= max_chars else f"{shown}…"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
