"""Find literals that look like credentials, so that none ends up in a spec, a plan or a log.

A backstop, not a guarantee. Source of the rules: NeMo Evaluator's check of agent settings (key rule and value rule) and Harbor's words
for variables that it masks. Only paths leave this module, never values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

# CEL has no look-behind, so the rules are written as RE2 can read them: the same text goes into the CRD.
KEY_PATTERN: Final = (
    "(^|[^a-z0-9])(api_key|apikey|access_key|private_key|token|secret|password|passwd|passphrase|credential|authorization)s?($|[^a-z0-9])"
)
"""Matched against the lower-cased dotted path."""

VALUE_PATTERN: Final = (
    "(^|[\\s:=])(nvapi-|sk-|hf_|ghp_|gho_|github_pat_|glpat-|xoxb-|xoxp-|xoxa-|xapp-|-----BEGIN"
    "|(AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35})"
)
"""Matched against values of at least ``VALUE_CHARS`` characters, whatever their key is."""
VALUE_CHARS: Final = 16

ENV_NAME_PATTERN: Final = "(?i)(key|secret|token|password|credential|auth)"
"""Names of agent variables that Harbor masks in its files, so that a literal there never belongs in ``env``."""

_TEMPLATE: Final = re.compile(r"\$\{[^}]*\}")
_KEY: Final = re.compile(KEY_PATTERN)
_VALUE: Final = re.compile(VALUE_PATTERN)
_ENV_NAME: Final = re.compile(ENV_NAME_PATTERN)
_NAMES_OF_VARIABLES: Final = ("api_key_env", "client_secret_env", "header_env")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def credential_paths(value: object, path: str = "") -> Iterator[str]:
    """Dotted paths below ``value`` whose string looks like a credential; an index of a list adds nothing to the path.

    A string that is one whole ``${…}`` template carries no value and passes.
    """
    match value:
        case str():
            if _is_credential(path, value):
                yield path
        case Mapping():
            for key, item in value.items():
                yield from credential_paths(item, f"{path}.{key}" if path else str(key))
        case Sequence():
            for item in value:
                yield from credential_paths(item, path)
        case _:
            pass


def is_masked_name(name: str) -> bool:
    """Whether Harbor would take an environment variable of this name for a secret."""
    return _ENV_NAME.search(name) is not None


def _is_credential(path: str, value: str) -> bool:
    if not value or _TEMPLATE.fullmatch(value):
        return False
    if len(value) >= VALUE_CHARS and _VALUE.search(value):
        return True
    parent, _, last = path.rpartition(".")
    if last in _NAMES_OF_VARIABLES and parent.rpartition(".")[2] != "env" and _IDENTIFIER.fullmatch(value):
        return False
    return _KEY.search(path.lower()) is not None
