"""Environment variables of the commands that the runner starts, and the values that must not be kept.

Source of the layers and templates: harbor.md 3.5; of sensitive names: harbor.md 3.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from seatrial.contract import VAR_TEMPLATE_PREFIX
from seatrial.taskpkg.templates import is_sensitive_name, resolve
from seatrial_runner.faults import Fault

# Shorter values occur by chance in ordinary text and would ruin it.
SECRET_CHARS: Final = 6
_LOOKS_BOOLEAN: Final = frozenset({"1", "0", "true", "false", "yes", "no"})


def template_sources(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Names a template may use: literals of the job, and above them Secrets and ConfigMaps of the container."""
    own = {name.removeprefix(VAR_TEMPLATE_PREFIX): value for name, value in environ.items() if name.startswith(VAR_TEMPLATE_PREFIX)}
    return {**variables, **own}


def resolve_all(env: Mapping[str, str], sources: Mapping[str, str], *, where: str) -> dict[str, str]:
    """``env`` with its templates replaced.

    Raises:
        Fault: ValueError of the user: a variable without default is not among ``sources``.
    """
    resolved = {}
    for name, value in env.items():
        try:
            resolved[name] = resolve(value, sources)
        except KeyError as error:
            raise Fault(
                "ValueError",
                "user",
                f"Environment variable {error.args[0]!r} not found ({where} {name}): set it in the job's environment or verifier variables",
                reason="VariableMissing",
            ) from None
    return resolved


def secret_values(env: Mapping[str, str], *, always: bool = False) -> list[str]:
    """Values of ``env`` to be redacted: those under sensitive names (all of them with ``always``), except short and boolean-like ones."""
    return [
        value
        for name, value in env.items()
        if (always or is_sensitive_name(name)) and len(value) >= SECRET_CHARS and value.lower() not in _LOOKS_BOOLEAN
    ]


def values_of(env: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Values of ``names`` in ``env``, to be redacted whatever they are called."""
    return secret_values({name: env[name] for name in names if name in env}, always=True)


def longest_first(values: Iterable[str]) -> tuple[str, ...]:
    """Without duplicates; a value that contains another one comes before it."""
    return tuple(sorted(set(values), key=lambda value: (-len(value), value)))
