"""The tables of ``docs/rbac.md``, as both the chart's tests and the cluster's tests read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rbac.md"


class Right(NamedTuple):
    group: str
    resource: str
    verb: str


def documented(section: str) -> set[Right]:
    """The rights in the table below the heading ``section``.

    Raises:
        ValueError: no such heading, or no table below it.
    """
    lines = PAGE.read_text().splitlines()
    begin = lines.index(f"## {section}") + 1
    body = lines[begin : next((at for at, line in enumerate(lines) if at > begin and line.startswith("## ")), len(lines))]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body if line.startswith("| ")][1:]
    if not rows:
        raise ValueError(f"{PAGE}: no table below {section}")
    return {Right(group, resource, verb.strip()) for group, resource, verbs, _ in rows for verb in verbs.split(",")}


def of_rules(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """The rights that RBAC rules give."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def of_audit(events: Iterable[Mapping[str, Any]]) -> set[Right]:
    """The rights that audited calls needed; discovery, which every user may ask, is left out."""
    found = set()
    for event in events:
        what = event.get("objectRef", {})
        if what.get("resource"):
            name = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            found.add(Right(what.get("apiGroup", ""), name, event["verb"]))
    return found
