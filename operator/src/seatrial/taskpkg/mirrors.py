"""Where images are read from instead of where they are named: sites that mirror registries, or that reach none.

One rule for images that tasks name, for agents' images and for the base images of Dockerfiles that the cluster builds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from seatrial.taskpkg.dockerfile import instructions

DOCKER_HUB: Final = "docker.io"


class Mirrors(NamedTuple):
    """What stands in for registries."""

    sources: Mapping[str, str] = {}
    """Registry, or registry and path -> what replaces it; the longest that fits wins. Names without a registry are Docker Hub's."""
    prefix: str = ""
    """Registry and path before the whole name of every other image."""

    def of(self, image: str) -> str:
        """The name by which ``image`` is read here."""
        if any(_is_below(image, place) for place in (*self.sources.values(), self.prefix) if place):
            return image
        full = _full_name(image)
        for source in sorted(self.sources, key=len, reverse=True):
            if _is_below(full, source):
                return self.sources[source].rstrip("/") + full[len(source.rstrip("/")) :]
        return f"{self.prefix.rstrip('/')}/{image}" if self.prefix else image

    def encode(self) -> str:
        """As a variable of the build context's container."""
        return json.dumps({"sources": dict(self.sources), "prefix": self.prefix}, sort_keys=True)


def decode_mirrors(text: str) -> Mirrors:
    """Inverse of ``Mirrors.encode``."""
    body = json.loads(text)
    return Mirrors(body["sources"], body["prefix"])


def mirror_bases(dockerfile: str, mirrors: Mirrors, *, args: Mapping[str, str]) -> str:
    """The Dockerfile with its base images, and those of ``COPY --from``, read from the mirrors. Lines keep their numbers.

    Args:
        dockerfile: its text.
        mirrors: of the site.
        args: build arguments; they and the arguments before the first FROM are put in where a name has variables.
    """
    if not mirrors.sources and not mirrors.prefix:
        return dockerfile
    known: dict[str, str] = {}
    stages: set[str] = set()
    lines = dockerfile.split("\n")
    for item in instructions(dockerfile):
        if item.name == "ARG" and not stages:
            name, _, default = item.text.partition("=")
            known[name] = args.get(name, default.strip("\"'"))
        elif item.name == "FROM":
            words = [word for word in item.text.split() if not word.startswith("--")]
            if words and words[0] not in stages | {"scratch"}:
                _replace_word(lines, item.line, words[0], lambda word: mirrors.of(_expanded(word, known)))
            stages |= {"", words[2]} if len(words) == 3 and words[1].upper() == "AS" else {""}
        elif (
            item.name == "COPY" and (source := re.match(r"--from=(\S+)", item.text)) and not source[1].isdigit() and source[1] not in stages
        ):
            _replace_word(lines, item.line, source[1], mirrors.of)
    return "\n".join(lines)


def _full_name(image: str) -> str:
    """With its registry, and for Docker Hub's own images their ``library``."""
    head, slash, _ = image.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        return image
    return f"{DOCKER_HUB}/{image}" if slash else f"{DOCKER_HUB}/library/{image}"


def _is_below(image: str, place: str) -> bool:
    return image.startswith(f"{place.rstrip('/')}/")


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """Variables of the form ``$NAME``, ``${NAME}`` and ``${NAME:-default}``; what is not known stays."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        return known.get(name) or (default if default is not None else found[0])

    return re.sub(r"\$(?:\{([A-Za-z_]\w*)(?::-([^}]*))?\}|([A-Za-z_]\w*))", value, word)


def _replace_word(lines: list[str], line: int, word: str, new: Callable[[str], str]) -> None:
    """In the instruction that starts on ``line``: continuation lines are looked through until the word is found."""
    replaced = new(word)
    if "$" in replaced:
        return  # a name that only the builder knows
    for number in range(line - 1, len(lines)):
        pattern = rf"(?<![^\s=]){re.escape(word)}(?![^\s])"
        if re.search(pattern, lines[number]):
            lines[number] = re.sub(pattern, lambda _: replaced, lines[number], count=1)
            return
