"""Which line of a TOML text a key stands on. TOML readers do not tell.

The text must have been read successfully before: this scanner skips values, it does not check them.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Sequence
from typing import Final

Key = tuple[str | int, ...]

# A list of half a million numbers would take 100 MiB here.
_MAX_LINES: Final = 50_000

_SPACE: Final = re.compile(r"(?:[ \t\n\r]|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_BASIC_END: Final = re.compile(r'\\[\s\S]|"{3,5}')
_LITERAL_END: Final = re.compile(r"'{3,5}")
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[Key, int]:
    """The 1-based line of every key, table header and array element, by its path such as ``("steps", 0, "name")``."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    # A text that is stranger than this scanner costs line numbers only; those found until then are right.
    with contextlib.suppress(ValueError, RecursionError):
        scanner.run()
    return scanner.lines


def find_line(lines: dict[Key, int], key: Sequence[str | int]) -> int | None:
    """The line of ``key``, or of the nearest table around it; None for a key that is nowhere, such as an absent section."""
    path = tuple(key)
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self._table_counts: dict[Key, int] = {}
        self.lines: dict[Key, int] = {}

    def run(self) -> None:
        table: Key = ()
        while True:
            self._skip_space()
            if self._at >= len(self._text):
                return
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Key:
        is_array = self._text.startswith("[[", self._at)
        line = self._line_here()
        self._at += 2 if is_array else 1
        path: Key = ()
        for part in self._key():
            path = (*path, part)
            if path in self._table_counts:  # below an array of tables: its latest element
                path = (*path, self._table_counts[path] - 1)
        if is_array:
            base = path[:-1] if path and isinstance(path[-1], int) else path
            index = self._table_counts.get(base, 0)
            self._table_counts[base] = index + 1
            self.lines.setdefault(base, line)
            path = (*base, index)
        self._at = self._text.index("]", self._at) + (2 if is_array else 1)
        self.lines.setdefault(path, line)
        return path

    def _pair(self, table: Key) -> None:
        line = self._line_here()
        path = (*table, *self._key())
        for end in range(len(table) + 1, len(path) + 1):
            self.lines.setdefault(path[:end], line)
        self._at = self._text.index("=", self._at) + 1
        self._value(path)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip_space()
            if match := _QUOTED.match(self._text, self._at):
                parts.append(next(iter(tomllib.loads(f"{match[0]} = 0"))))
            elif match := _BARE_KEY.match(self._text, self._at):
                parts.append(match[0])
            else:
                return parts
            self._at = match.end()
            self._skip_space()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: Key) -> None:
        self._skip_space()
        match self._text[self._at : self._at + 1]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._string()
            case _:
                scalar = _SCALAR.match(self._text, self._at)
                self._at = scalar.end() if scalar else self._at + 1

    def _string(self) -> None:
        if self._text.startswith(('"""', "'''"), self._at):
            pattern = _BASIC_END if self._text[self._at] == '"' else _LITERAL_END
            self._at += 3
            while match := pattern.search(self._text, self._at):
                self._at = match.end()
                if not match[0].startswith("\\"):
                    return
            self._at = len(self._text)
        else:
            match = _QUOTED.match(self._text, self._at)
            self._at = match.end() if match else len(self._text)

    def _array(self, path: Key) -> None:
        self._at += 1
        index = 0
        while True:
            self._skip_space()
            if self._at >= len(self._text) or self._text[self._at] == "]":
                self._at += 1
                return
            if self._text[self._at] == ",":
                self._at += 1
                continue
            if len(self.lines) > _MAX_LINES:
                raise ValueError("more keys than anyone asks for")
            self.lines.setdefault((*path, index), self._line_here())
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Key) -> None:
        self._at += 1
        while True:
            self._skip_space()
            if self._at >= len(self._text) or self._text[self._at] == "}":
                self._at += 1
                return
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._pair(path)

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line
