"""Here-documents of Dockerfiles for builders that do not know them.

Why: kaniko takes ``RUN <<EOT`` for a command with an empty here-document, runs nothing and succeeds, and the image is wrong. ``RUN`` is
written anew as the shell would get it; those of ``COPY`` and ``ADD`` become files of the context. Source: BuildKit's reference.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Final, NamedTuple

_MARK: Final = re.compile(r"<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2")
_NAME: Final = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_CONTINUED: Final = re.compile(r"\\[ \t]*\r?$")
_DEFAULT_SHELL: Final = ["/bin/sh", "-c"]
_SCRIPT: Final = "/tmp/.seatrial-run"
FOLDER: Final = ".seatrial-heredocs"
"""In the build context. ``COPY .`` takes it along, which BuildKit would not; it holds only what the image has anyway."""


class HeredocError(ValueError):
    """A here-document that cannot be written otherwise; the message names its line."""


class Translated(NamedTuple):
    text: str
    files: dict[str, str]
    """To be put into the build context: path -> text."""


def without_heredocs(text: str) -> Translated:
    """A Dockerfile without here-documents; one that has none is returned as it is.

    Raises:
        HeredocError: of ``COPY`` or ``ADD`` with variables, which only the builder knows, or without an end.
    """
    if "<<" not in text:
        return Translated(text, {})
    lines = text.splitlines()
    out: list[str] = []
    files: dict[str, str] = {}
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
        bodies = []
        for dash, _, word in marks:
            body, index = _body(lines, index, word, dash=bool(dash), line=start + 1)
            bodies.append(body)
        if name == "RUN":
            out.append(f"RUN {json.dumps([*shell, _script(rest, bodies)])}")
            continue
        for (_, quote, word), body in zip(marks, bodies, strict=True):
            path, content = f"{FOLDER}/{start + 1}/{word}", "".join(f"{part}\n" for part in body)
            if "$" in content and not quote:
                message = f"a here-document of {name} with variables is not supported by the cluster's builder"
                raise HeredocError(f"line {start + 1}: {message}; quote its word {word}, or put it into a file")
            files[path] = content
            rest = _MARK.sub(path, rest, count=1)
        out.append(f"{name} {rest}")
    return Translated("\n".join(out) + "\n", files)


def _body(lines: list[str], index: int, word: str, *, dash: bool, line: int) -> tuple[list[str], int]:
    body: list[str] = []
    while index < len(lines):
        text = lines[index].rstrip("\r")
        index += 1
        if (text.lstrip("\t") if dash else text) == word:
            return body, index
        body.append(text.lstrip("\t") if dash else text)
    raise HeredocError(f"line {line}: the here-document has no end {word}")


def _script(rest: str, bodies: list[list[str]]) -> str:
    alone = _MARK.fullmatch(rest.strip())
    if alone is None:
        # A command with redirections: the shell reads the here-documents itself.
        ends = [mark[2] for mark in _MARK.findall(rest)]
        return "\n".join([rest.rstrip(), *(text for body, end in zip(bodies, ends, strict=True) for text in (*body, end))]) + "\n"
    script = "\n".join(bodies[0]) + "\n"
    if not script.startswith("#!"):
        return script
    # A program of its own, as BuildKit runs it.
    end = next(word for number in itertools.count() if (word := f"SEATRIAL{number}") not in bodies[0])
    write = f"cat > {_SCRIPT} <<'{end}'\n{script}{end}\nchmod 700 {_SCRIPT}\n"
    return f"{write}{_SCRIPT}\ncode=$?\nrm -f {_SCRIPT}\nexit $code\n"


def _shell(rest: str) -> list[str] | None:
    try:
        found = json.loads(rest)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(part, str) for part in found) else None
