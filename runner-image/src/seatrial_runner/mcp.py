"""MCP servers for agents: templates in their HTTP headers. Source: harbor.md 3.5 and 5.7."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_TEMPLATE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class MissingHeaderVariable(ValueError):
    """A header names a variable that the agent does not have."""


def resolve_headers(servers: Sequence[Mapping[str, Any]], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """``servers`` with the templates of their headers replaced from the agent's variables.

    Raises:
        MissingHeaderVariable: a variable without default is not in ``env``.
    """
    return [
        {**server, "headers": {name: _resolve(value, env, server["name"]) for name, value in server.get("headers", {}).items()}}
        for server in servers
    ]


def _resolve(value: str, env: Mapping[str, str], server: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1] in env:
            return env[match[1]]
        if match[2] is None:
            raise MissingHeaderVariable(f"MCP server {server!r}: a header needs {match[1]}: name it in spec.agent.env or envSecrets")
        return match[2]

    return _TEMPLATE.sub(replace, value)
