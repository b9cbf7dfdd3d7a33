"""Why a build failed, from its log: the Dockerfile's line, the instruction and the first cause. Knows buildah, BuildKit and kaniko.

A log is a stranger's text: it is bounded, only searched, and never trusted for more than a message.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from seatrial.taskpkg.dockerfile import Instruction, instructions

_MESSAGE_CHARS: Final = 400
_TAIL_CHARS: Final = 64 * 1024
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_KANIKO_PREFIX: Final = re.compile(r"^[A-Z]{4,5}\[\d+\]\s*")
_KANIKO_LINE: Final = re.compile(r'^time="[^"]*" level=(\w+) msg=(?:"((?:[^"\\]|\\.)*)"|(\S+)).*$')
_BUILDAH_STEP: Final = re.compile(r"^(?:\[(\d+)/\d+\] )?STEP \d+(?:/\d+)?: (.+)$", re.MULTILINE)
_BUILDAH_AT: Final = re.compile(r'at STEP "(.+?)":')
_BUILDKIT_LINE: Final = re.compile(r"^\S*Dockerfile:(\d+)$", re.MULTILINE)
_PARSE_LINE: Final = re.compile(r"(?:parse error on line|line) (\d+)[:,]? ?")
# kaniko looks for all sources of a stage before it says which instruction it is at.
_KANIKO_MISSING: Final = re.compile(r"failed to get fileinfo for (\S+): ")
_UNKNOWN_IMAGE: Final = re.compile(r"MANIFEST_UNKNOWN|manifest unknown|NAME_UNKNOWN|name unknown|no such host|UNAUTHORIZED|DENIED")
_MISSING_BASE: Final = re.compile(
    r"MANIFEST_UNKNOWN|manifest unknown|NAME_UNKNOWN|name unknown|repository name not known|pull access denied|not found: manifest"
    r"|(?:initializing|reading) (?:source|manifest)|failed to resolve source metadata|unable to (?:get|retrieve) .*manifest|no such host"
)
_NO_SPACE: Final = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_REGISTRY: Final = re.compile(
    r"error (?:pushing|checking push)|pushing image|trying to reuse blob|failed to push|connection refused|i/o timeout"
    r"|TLS handshake timeout"
    r"|unexpected status code 5\d\d|received unexpected HTTP status: 5\d\d"
    r"|dial tcp",
)


class BuildFault(NamedTuple):
    """Why a build failed."""

    line: int | None
    """Of the Dockerfile, from 1; None where the log does not lead to one."""
    instruction: str
    """As written, cut; empty where it is not known."""
    message: str
    is_passing: bool
    """The registry or the network, not the Dockerfile: the same build may work later."""

    @property
    def where(self) -> str:
        """As the start of a message."""
        file = "Dockerfile" if self.line is None else f"Dockerfile line {self.line}"
        return f"{file}, {self.instruction}" if self.instruction else file


def explain(dockerfile: str, log: str) -> BuildFault:
    """The fault behind a failed build.

    Args:
        dockerfile: its text; empty where it is not known, and then no line is named.
        log: of the builder, at least its end.
    """
    text = _ANSI.sub("", log[-_TAIL_CHARS:].replace("\r\n", "\n").replace("\r", "\n"))
    lines = [_plain(line.rstrip()) for line in text.splitlines() if line.strip()]
    text = "\n".join(lines)
    known = instructions(dockerfile)
    found = _instruction(text, lines, known)
    message = _message(lines)
    if "nknown instruction" in message and "<<" in dockerfile:
        message = f"this builder does not know here-documents; use a newer one, or let the cluster build ({message})"
    instruction = _cut(f"{found.name} {found.text}", 120) if found is not None else ""
    is_own = found is not None and found.name == "RUN" and "exit status" in message
    is_passing = bool(_REGISTRY.search(message)) and not is_own and not _UNKNOWN_IMAGE.search(message)
    return BuildFault(found.line if found is not None and found.line else None, instruction, message, is_passing)


def _plain(line: str) -> str:
    """kaniko's two forms of a line as one: ``INFO[0] text``."""
    match = _KANIKO_LINE.match(line)
    if match is None:
        return line
    said = match[3] or re.sub(r"\\(.)", lambda found: {"n": " ", "t": " "}.get(found[1], found[1]), match[2])
    return f"{match[1].upper()[:4]}[0] {said}"


def _instruction(text: str, lines: list[str], known: tuple[Instruction, ...]) -> Instruction | None:
    marks = _BUILDKIT_LINE.findall(text)
    if marks and known:
        number = int(marks[-1])
        return max((item for item in known if item.line <= number), key=lambda item: item.line, default=None)
    if (parse := _PARSE_LINE.search(lines[-1] if lines else "")) and known and "arse" in lines[-1]:
        return next((item for item in known if item.line == int(parse[1])), None)
    if missing := _KANIKO_MISSING.findall(text):
        copies = [item for item in known if item.name in ("COPY", "ADD")]
        return next((item for item in copies if any(missing[-1].endswith(f"/{_path(word)}") for word in item.text.split()[:-1])), None)
    wanted = ""
    if at := _BUILDAH_AT.findall(text):
        wanted = at[-1]
    elif steps := _BUILDAH_STEP.findall(text):
        wanted = steps[-1][1]
    else:
        names = {"RUN", "COPY", "ADD", "WORKDIR", "USER", "FROM", "ENV", "ARG", "ENTRYPOINT", "CMD", "VOLUME", "EXPOSE", "LABEL"}
        for line in lines:
            shown = _KANIKO_PREFIX.sub("", line)
            if shown.split(" ", 1)[0] in names:
                wanted = shown
        bases = re.findall(r"Retrieving image manifest (\S+)", text)
        if bases and not wanted:
            wanted = f"FROM {bases[-1]}"
    if not wanted:
        return None
    return _closest(wanted, known) or Instruction(0, wanted.split(" ", 1)[0], wanted.partition(" ")[2])


def _path(word: str) -> str:
    return word.strip('[]",').removeprefix("./").lstrip("/") or "/"


def _closest(shown: str, known: tuple[Instruction, ...]) -> Instruction | None:
    """The instruction that the builder shows, perhaps with variables replaced and spaces changed."""
    name, _, rest = shown.partition(" ")
    same = [item for item in known if item.name == name.upper()]
    plain = " ".join(rest.split())
    for item in same:
        if " ".join(item.text.split()) == plain:
            return item
    for item in same:
        pattern = re.split(r"\$\{?[A-Za-z_][A-Za-z0-9_]*(?::[^}]*)?\}?", " ".join(item.text.split()))
        if len(pattern) > 1 and plain.startswith(pattern[0]) and plain.endswith(pattern[-1]):
            return item
    written = [item for item in same if item.text.startswith("<<")]
    if rest.startswith("[") and len(written) == 1:
        return written[0]  # a here-document that was written anew
    start = plain[:40]
    return next((item for item in same if start and " ".join(item.text.split()).startswith(start)), same[0] if len(same) == 1 else None)


def _message(lines: list[str]) -> str:
    tail = lines[-60:]
    errors = [line for line in tail if re.search(r"error|ERROR|fail|fatal|cannot|No space|no space|exit (?:status|code)", line)]
    last = _KANIKO_PREFIX.sub("", errors[-1] if errors else (tail[-1] if tail else "the builder said nothing"))
    joined = "\n".join(tail)
    if _NO_SPACE.search(joined):
        return "no space left on the device; make the image smaller, or give builds more storage"
    if _MISSING_BASE.search(last):
        return _cut(f"the base image cannot be pulled: {last}", _MESSAGE_CHARS)
    if len(errors) > 1 and re.search(r"exit (?:status|code)", last):
        # The builder only knows that a command failed; the command's own last words say why.
        words = next((line for line in reversed(tail[: tail.index(errors[-1])]) if not _is_noise(line)), "")
        if words and words not in last:
            return _cut(f"{last} (its last words: {_KANIKO_PREFIX.sub('', words)})", _MESSAGE_CHARS)
    return _cut(last, _MESSAGE_CHARS)


def _is_noise(line: str) -> bool:
    return bool(re.match(r"^(?:[A-Z]{4,5}\[\d+\]|(?:\[\d+/\d+\] )?STEP |time=|level=|-+$|#\d+ )", line))


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
