"""``${VAR}`` templates and names that look like secrets, as Harbor reads them. Source: harbor.md 3.5 and 3.6."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_WHOLE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_EMBEDDED: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SENSITIVE: Final = re.compile(r"KEY|SECRET|TOKEN(?!S)|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)
_COOKIE_HEADERS: Final = frozenset({"cookie", "set-cookie"})
_REFERENCE: Final = r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-)?\}"
# Nothing but references, after at most one word such as "Bearer", with spaces, colons and hyphens between them.
_ONLY_REFERENCES: Final = re.compile(rf"\s*(?:[A-Za-z]+\s+)?{_REFERENCE}(?:[\s:-]*{_REFERENCE})*\s*")

# Each unfinished template is searched to the end of the value: without a bound, a megabyte of "${A:-" would take minutes.
MAX_EMBEDDED: Final = 50


class Variable(NamedTuple):
    name: str
    default: str | None


def variable_of(value: str) -> Variable | None:
    """The variable that ``value`` stands for; None for a literal. Only a *whole* value is a template."""
    match = _WHOLE.fullmatch(value)
    return Variable(match[1], match[2]) if match else None


def required_variables(env: Mapping[str, str]) -> tuple[Variable, ...]:
    """The variables that the values of ``env`` stand for, in order."""
    return tuple(variable for value in env.values() if (variable := variable_of(value)) is not None)


def resolve(value: str, source: Mapping[str, str]) -> str:
    """``value`` with its template replaced; a variable that is set but empty beats the default.

    Raises:
        KeyError: the variable is not in ``source`` and there is no default; the argument is its name.
    """
    variable = variable_of(value)
    if variable is None:
        return value
    if variable.name in source:
        return source[variable.name]
    if variable.default is None:
        raise KeyError(variable.name)
    return variable.default


def embedded_variables(value: str) -> tuple[Variable, ...]:
    """Templates within an HTTP header value.

    Raises:
        ValueError: a ``${`` that is no template, a template inside a default, or more templates than a header can need.
    """
    if value.count("${") > MAX_EMBEDDED:
        raise ValueError(f"more than {MAX_EMBEDDED} templates in one value")
    variables = tuple(Variable(match[1], match[2]) for match in _EMBEDDED.finditer(value))
    if "${" in _EMBEDDED.sub(" ", value) or any("${" in (variable.default or "") for variable in variables):
        raise ValueError("not a valid ${VAR} or ${VAR:-default} template")
    return variables


def is_sensitive_name(name: str) -> bool:
    """True if a variable of this name is taken for a secret."""
    return _SENSITIVE.search(name) is not None


def is_literal_credential(header: str, value: str) -> bool:
    """True if a header that carries credentials holds one as text, or a secret variable has a literal default."""
    sensitive = is_sensitive_name(header) or header.lower() in _COOKIE_HEADERS
    for match in _EMBEDDED.finditer(value):
        if match[2] and (sensitive or is_sensitive_name(match[1])):
            return True
    return sensitive and bool(value.strip()) and _ONLY_REFERENCES.fullmatch(value) is None
