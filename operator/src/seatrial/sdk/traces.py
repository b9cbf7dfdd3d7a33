"""The trace that tells what an agent did: OpenTelemetry's before ATIF. Source: nemo.md 18."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any, Final, Literal, NamedTuple

from seatrial.sdk.results import Member

TRACE_FOLDER: Final = "artifacts/traces/"
TRAJECTORY: Final = "agent/trajectory.json"
TRACE_BYTES: Final = 64 * 1024 * 1024
"""A longer one is not read."""


class Trace(NamedTuple):
    format: Literal["otlp", "atif"]
    path: str
    """Inside the trial's archive."""
    content: Any
    """OTLP: the list of its lines; ATIF: the trajectory."""


def primary_trace(members: Iterable[tuple[Member, IO[bytes]]]) -> Trace | None:
    """The first OTLP file (``*.jsonl`` below ``traces``) that parses, else the first ATIF one, else the agent's trajectory.

    Args:
        members: files of a trial's archive, untrusted; each is read before the next is taken.
    """
    found: list[Trace] = []
    for member, body in members:
        kind = _kind(member.path)
        if kind is None or member.size > TRACE_BYTES:
            continue
        try:
            data = body.read()
            content = [json.loads(line) for line in data.splitlines() if line.strip()] if kind == "otlp" else json.loads(data)
        except (ValueError, RecursionError):
            continue
        if content and all(isinstance(item, dict) for item in (content if kind == "otlp" else [content])):
            found.append(Trace(kind, member.path, content))
    return min(found, key=lambda trace: (trace.format != "otlp", trace.path == TRAJECTORY, trace.path), default=None)


def _kind(path: str) -> Literal["otlp", "atif"] | None:
    if path == TRAJECTORY or (path.startswith(TRACE_FOLDER) and path.endswith(".atif.json")):
        return "atif"
    return "otlp" if path.startswith(TRACE_FOLDER) and path.endswith(".jsonl") else None
