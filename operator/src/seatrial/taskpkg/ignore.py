"""Which files of a task ``.harborignore`` and ``.gitignore`` leave out. Source: harbor.md 1.9 and 2.8.

``.harborignore`` counts only below ``tests/`` and ``solution/`` of the task and of its steps; its rules are inherited from folder to
folder like Git's, and once a folder is left out nothing in it comes back. The root ``.gitignore`` counts for digests only.

NB: patterns become regular expressions, and a pattern such as ``*a*a*a*a*b`` can take for ever. Where the task is a stranger's, use
``isolated.check_untrusted``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from pathspec import GitIgnoreSpec, PathSpec

from seatrial.taskpkg.limits import DEFAULT

IGNORE_FILE: Final = ".harborignore"
# What Harbor drops where a task has no .gitignore of its own.
DEFAULT_IGNORES: Final = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")

MAX_RULE_BYTES: Final = DEFAULT.gitignore_bytes


class IgnoreError(ValueError):
    """A ``.harborignore`` that cannot be read as rules; ``path`` is relative to the task."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class HarborIgnore:
    """The rules of one task; rule files are read once."""

    def __init__(self, task_dir: Path) -> None:
        self._root = task_dir.resolve()
        self._specs: dict[str, GitIgnoreSpec | None] = {}
        # Most tasks have no rules at all; then no file needs to be matched or resolved.
        self.is_empty = not _has_rules(self._root)

    def is_excluded(self, path: Path) -> bool:
        """True if ``path`` (in the task, absolute or not) or what it links to inside the task is left out.

        Raises:
            IgnoreError: a rule file on the way is not a regular file of UTF-8 text.
        """
        if self.is_empty:
            return False
        path = Path(os.path.abspath(path))
        if not path.is_relative_to(self._root):
            return False
        if self._matches(path):
            return True
        resolved = path.resolve()
        return resolved != path and resolved.is_relative_to(self._root) and self._matches(resolved)

    def _matches(self, path: Path) -> bool:
        relative = path.relative_to(self._root)
        parts = relative.parts
        if relative.name == IGNORE_FILE:
            return True
        start = _scope_depth(parts)
        if start is None:
            return False
        is_directory = path.is_dir()
        rules: list[tuple[int, GitIgnoreSpec]] = []
        for depth in range(start, len(parts) + 1):
            suffix = "/" if depth < len(parts) or is_directory else ""
            is_excluded = False
            for base, spec in rules:  # the last rule that says anything wins, inner files after outer ones
                found = spec.check_file("/".join(parts[base:depth]) + suffix).include
                if found is not None:
                    is_excluded = found
            if is_excluded:
                return True
            if depth < len(parts) and (inner := self._spec("/".join(parts[:depth]))) is not None:
                rules.append((depth, inner))
        return False

    def _spec(self, directory: str) -> GitIgnoreSpec | None:
        if directory not in self._specs:
            self._specs[directory] = self._read(directory)
        return self._specs[directory]

    def _read(self, directory: str) -> GitIgnoreSpec | None:
        name = f"{directory}/{IGNORE_FILE}"
        file = self._root / name
        if not file.resolve().is_relative_to(self._root):
            raise IgnoreError(name, "must stay within the task")
        if not os.path.lexists(file):
            return None
        if not file.is_file():
            raise IgnoreError(name, "must be a regular file")
        if file.stat().st_size > MAX_RULE_BYTES:
            raise IgnoreError(name, f"must be at most {MAX_RULE_BYTES} bytes")
        try:
            return GitIgnoreSpec.from_lines(file.read_text("utf-8").splitlines())
        except ValueError as error:  # not UTF-8, or a pattern that is none
            raise IgnoreError(name, str(error)) from error


class GitIgnore:
    """The root ``.gitignore`` as Harbor's digest reads it; a present file replaces the default rules."""

    def __init__(self, task_dir: Path) -> None:
        file = task_dir / ".gitignore"
        if file.exists() and file.stat().st_size > MAX_RULE_BYTES:
            raise IgnoreError(".gitignore", f"must be at most {MAX_RULE_BYTES} bytes")
        lines = file.read_text("utf-8").splitlines() if file.exists() else DEFAULT_IGNORES
        # Deliberately the plain pattern set and not GitIgnoreSpec: the digest depends on how it treats re-included files.
        self._spec: PathSpec[Any] = PathSpec.from_lines("gitignore", lines)

    def matches(self, relative: str) -> bool:
        return self._spec.match_file(relative)


def _scope_depth(parts: tuple[str, ...]) -> int | None:
    """How many parts lead to the folder whose rules count; None outside of all of them."""
    if parts[:1] in (("tests",), ("solution",)):
        return 1
    if len(parts) >= 3 and parts[0] == "steps" and parts[2] in ("tests", "solution"):
        return 3
    return None


def _has_rules(root: Path) -> bool:
    waiting = [str(root)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name == IGNORE_FILE:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return False
