"""What an agent is told, and what a task record shows, from the text of ``instruction.md``.

Sources: harbor.md 1.5 (the agent's text, byte for byte) and nemo.md 4.5 (the record's text).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Markers against training on benchmarks. A real title that contains the word goes too: Harbor does the same.
_CANARY: Final = re.compile(r"(?:<!--.*canary.*-->|#.*canary.*)\Z", re.IGNORECASE)
_SPDX_COMMENT: Final = re.compile(r"\s*<!--(?:(?!-->).)*?SPDX-(?:FileCopyrightText|License-Identifier)(?:(?!-->).)*-->", re.DOTALL)


def read_instruction(text: str) -> str:
    """The agent's instruction: line ends unified, leading canary lines dropped, then all leading blank lines."""
    lines = unify_line_ends(text).split("\n")
    start = 0
    while start < len(lines) and _CANARY.match(lines[start].strip()):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    return "\n".join(lines[start:])


def join_instructions(instruction: str, extras: Sequence[str]) -> str:
    """The instruction followed by the job's extra instructions, a blank line between them."""
    return "\n\n".join([instruction, *extras])


def record_instruction(text: str) -> str:
    """The normalised instruction of a task record: no leading SPDX comments, no white space around. Empty is a fault of the task."""
    rest = text.removeprefix("\ufeff")
    while match := _SPDX_COMMENT.match(rest):
        rest = rest[match.end() :]
    return rest.strip()


def unify_line_ends(text: str) -> str:
    """``\\r\\n`` and ``\\r`` become ``\\n``, as Python's text files do it."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
