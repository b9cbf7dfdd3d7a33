"""``.dockerignore`` as Docker reads it: which paths of a build context are left out.

Source: Docker's documentation of ``.dockerignore`` and the matcher behind it: patterns are relative to the context's root, ``*`` stays in
one name, ``**`` as a whole name crosses folders, ``!`` takes back, the last match wins, and a match of a folder covers all below it.

No regular expressions: the files are a stranger's, and matching must take time in proportion to pattern and path, whatever they are.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Sequence
from typing import Final, NamedTuple

MOST_PATTERNS: Final = 500
MOST_CHARS: Final = 512


class DockerignoreError(ValueError):
    """A line that cannot be used; the message names it."""


class _Any:
    """``*`` inside a name."""


_STAR: Final = _Any()
_Atom = str | _Any | None | tuple[bool, tuple[tuple[str, str], ...]]
"""A character, ``*``, ``?`` (None), or a class: negated, ranges."""
_Name = tuple[_Atom, ...] | None
"""One name of a pattern; None is ``**``."""


class _Rule(NamedTuple):
    excludes: bool
    names: tuple[_Name, ...]


class Dockerignore:
    """The rules of one file."""

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._rules = tuple(rules)
        self.has_exceptions = any(not rule.excludes for rule in self._rules)

    def excludes(self, path: str) -> bool:
        """Whether a path (relative, with slashes) is left out of the context."""
        parts = tuple(path.split("/"))
        excluded = False
        for rule in self._rules:
            if rule.excludes != excluded and _matches(rule.names, parts):
                excluded = rule.excludes
        return excluded


def parse_dockerignore(text: str) -> Dockerignore:
    """Rules of a file.

    Raises:
        DockerignoreError: a pattern that Docker refuses, or more than any real file has.
    """
    rules: list[_Rule] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if raw.startswith("#") or not (line := raw.strip()):
            continue
        excludes = not line.startswith("!")
        pattern = line if excludes else line[1:].strip()
        if not pattern:
            raise DockerignoreError(f"line {number}: '!' needs a pattern behind it")
        if len(pattern) > MOST_CHARS or len(rules) >= MOST_PATTERNS:
            most = f"at most {MOST_PATTERNS} patterns of {MOST_CHARS} characters are read"
            raise DockerignoreError(f"line {number}: {most}; simplify the file")
        cleaned = posixpath.normpath(pattern).lstrip("/")
        if cleaned not in ("", "."):
            rules.append(_Rule(excludes, tuple(None if name == "**" else _parse_name(name, number) for name in cleaned.split("/"))))
    return Dockerignore(rules)


def _parse_name(name: str, number: int) -> tuple[_Atom, ...]:
    atoms: list[_Atom] = []
    index = 0
    while index < len(name):
        char = name[index]
        index += 1
        if char == "*":
            if not atoms or atoms[-1] is not _STAR:
                atoms.append(_STAR)
        elif char == "?":
            atoms.append(None)
        elif char == "[":
            end = name.find("]", index + 1)
            if end < 0:
                raise DockerignoreError(f"line {number}: '[' has no end in {name!r}")
            atoms.append(_parse_class(name[index:end]))
            index = end + 1
        elif char == "\\" and index < len(name):
            atoms.append(name[index])
            index += 1
        else:
            atoms.append(char)
    return tuple(atoms)


def _parse_class(body: str) -> tuple[bool, tuple[tuple[str, str], ...]]:
    negated, body = body.startswith("^"), body.removeprefix("^")
    ranges, index = [], 0
    while index < len(body):
        if index + 2 < len(body) and body[index + 1] == "-":
            ranges.append((body[index], body[index + 2]))
            index += 3
        else:
            ranges.append((body[index], body[index]))
            index += 1
    return negated, tuple(ranges)


def _matches(names: tuple[_Name, ...], parts: tuple[str, ...]) -> bool:
    """Whether the pattern matches the path or a folder above it."""
    reached = {0}  # numbers of path parts that the names so far can cover
    for name in names:
        if name is None:
            reached = set(range(min(reached), len(parts) + 1)) if reached else set()
        else:
            reached = {count + 1 for count in reached if count < len(parts) and _name_matches(name, parts[count])}
    reached.discard(0)
    return bool(reached)


@functools.lru_cache(maxsize=4096)
def _name_matches(atoms: tuple[_Atom, ...], text: str) -> bool:
    at = index = 0
    star, retry = -1, 0
    while index < len(text):
        if at < len(atoms) and atoms[at] is _STAR:
            star, retry, at = at, index, at + 1
        elif at < len(atoms) and _fits(atoms[at], text[index]):
            at, index = at + 1, index + 1
        elif star >= 0:
            retry += 1
            at, index = star + 1, retry
        else:
            return False
    return all(atom is _STAR for atom in atoms[at:])


def _fits(atom: _Atom, char: str) -> bool:
    if atom is None:
        return True
    if isinstance(atom, tuple):
        negated, ranges = atom
        return any(low <= char <= high for low, high in ranges) != negated
    return atom == char
