"""Here-documents of Dockerfiles for builders that do not know them.

Why: kaniko takes ``RUN <<EOT`` for a command with an empty here-document, runs nothing and succeeds, and the image is wrong. ``RUN`` is
written anew as the shell would get it; a here-document of ``COPY`` or ``ADD`` is refused with its line. Source: BuildKit's reference.
"""

from __future__ import annotations

import json
import re
from typing import Final

_MARK: Final = re.compile(r"<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2")
_NAME: Final = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_CONTINUED: Final = re.compile(r"\\[ \t]*\r?$")
_DEFAULT_SHELL: Final = ["/bin/sh", "-c"]


class HeredocError(ValueError):
    """A here-document that cannot be written otherwise; the message names its line."""


def without_heredocs(text: str) -> str:
    """``text`` with every ``RUN`` here-document as a JSON form; text without any is returned as it is.

    Raises:
        HeredocError: of ``COPY`` or ``ADD``, with a script of another interpreter, or without an end.
    """
    if "<<" not in text:
        return text
    lines = text.splitlines()
    out: list[str] = []
    shell = list(_DEFAULT_SHELL)
    index = 0
    while index < len(lines):
        start = index
        index += 1
        head = lines[start]
        if not head.strip() or head.lstrip().startswith("#"):
            out.append(head)
            continue
        while _CONTINUED.search(lines[index - 1]) and index < len(lines):
            index += 1
        logical = "\n".join(lines[start:index])
        match = _NAME.match(logical)
        name, rest = (match[1].upper(), match[2]) if match else ("", "")
        if name == "FROM":
            shell = list(_DEFAULT_SHELL)
        elif name == "SHELL":
            shell = _shell(rest) or shell
        marks = _MARK.findall(rest) if name in ("RUN", "COPY", "ADD") and not rest.lstrip().startswith("[") else []
        if not marks:
            out += lines[start:index]
            continue
        if name != "RUN":
            raise HeredocError(f"line {start + 1}: a here-document of {name} is not supported by the cluster's builder; put it into a file")
        bodies = []
        for dash, _, word in marks:
            body, index = _body(lines, index, word, dash=bool(dash), line=start + 1)
            bodies.append(body)
        out.append(f"RUN {json.dumps([*shell, _script(rest, bodies, line=start + 1)])}")
    return "\n".join(out) + "\n"


def _body(lines: list[str], index: int, word: str, *, dash: bool, line: int) -> tuple[list[str], int]:
    body: list[str] = []
    while index < len(lines):
        text = lines[index].rstrip("\r")
        index += 1
        if (text.lstrip("\t") if dash else text) == word:
            return body, index
        body.append(text.lstrip("\t") if dash else text)
    raise HeredocError(f"line {line}: the here-document has no end {word}")


def _script(rest: str, bodies: list[list[str]], *, line: int) -> str:
    alone = _MARK.fullmatch(rest.strip())
    if alone is None:
        # A command with redirections: the shell reads the here-documents itself.
        ends = [mark[2] for mark in _MARK.findall(rest)]
        return "\n".join([rest.rstrip(), *(text for body, end in zip(bodies, ends, strict=True) for text in (*body, end))]) + "\n"
    if bodies[0] and bodies[0][0].startswith("#!"):
        raise HeredocError(
            f"line {line}: a here-document with {bodies[0][0][:40]} is not supported by the cluster's builder; put it into a file"
        )
    return "\n".join(bodies[0]) + "\n"


def _shell(rest: str) -> list[str] | None:
    try:
        found = json.loads(rest)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(part, str) for part in found) else None
