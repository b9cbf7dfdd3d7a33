"""What a Dockerfile says, as far as it can be told without building it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_CONTINUED: Final = re.compile(r"\\[ \t]*$")


class Instruction(NamedTuple):
    """One instruction of a Dockerfile."""

    line: int
    """Where it starts, from 1."""
    name: str
    """In capitals."""
    text: str
    """All behind the name, continuation lines joined by a space."""


def instructions(text: str) -> tuple[Instruction, ...]:
    """Instructions with the lines on which they start; here-documents and comments are skipped, nothing is expanded.

    Never raises: what cannot be read is for the builder to refuse.
    """
    found: list[Instruction] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        start = index
        parts: list[str] = []
        while index < len(lines):
            line = lines[index]
            index += 1
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                if parts:
                    continue
                break
            continued = _CONTINUED.search(line)
            parts.append(_CONTINUED.sub("", line).strip() if continued else stripped)
            if not continued:
                break
        joined = " ".join(part for part in parts if part)
        name, _, rest = joined.partition(" ")
        if name:
            found.append(Instruction(start + 1, name.upper(), rest.strip()))
            for end in re.findall(r"<<-?[\"']?([A-Za-z_][A-Za-z0-9_]*)", rest) if name.upper() in ("RUN", "COPY", "ADD") else ():
                while index < len(lines) and lines[index].strip() != end:
                    index += 1
                index += 1
    return tuple(found)
