"""What an agent is told, and what a task record shows, from the text of ``instruction.md``.

Sources: harbor.md 1.5 (the agent's text, byte for byte) and nemo.md 4.5 (the record's text).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SPDX: Final = ("SPDX-FileCopyrightText", "SPDX-License-Identifier")


def read_instruction(text: str) -> str:
    """The agent's instruction: line ends unified, leading canary lines dropped, then all leading blank lines."""
    lines = unify_line_ends(text).split("\n")
    start = 0
    while start < len(lines) and _is_canary(lines[start].strip()):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    return "\n".join(lines[start:])


def join_instructions(instruction: str, extras: Sequence[str]) -> str:
    """The instruction followed by the job's extra instructions, a blank line between them."""
    return "\n\n".join([instruction, *extras])


def record_instruction(text: str) -> str:
    """The normalised instruction of a task record: no leading SPDX comments, no white space around. Empty is a fault of the task."""
    rest = text.removeprefix("\ufeff").strip()
    while rest.startswith("<!--"):
        comment, end, behind = rest.partition("-->")
        if not end or not any(mark in comment for mark in _SPDX):
            break
        rest = behind.lstrip()
    return rest


def unify_line_ends(text: str) -> str:
    """``\\r\\n`` and ``\\r`` become ``\\n``, as Python's text files do it."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_canary(line: str) -> bool:
    """A marker against training on benchmarks: a comment that holds the word "canary" in any case.

    A real title that contains the word goes too: Harbor does the same. No regular expression: two wildcards around a word take
    hours on a line of a megabyte.
    """
    if line.startswith("<!--") and line.endswith("-->") and "canary" in line[4:-3].lower():
        return True
    return line.startswith("#") and "canary" in line[1:].lower()
