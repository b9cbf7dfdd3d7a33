"""Panels and dashboards as values, and their Grafana JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

SCHEMA_VERSION: Final = 39
COLUMNS: Final = 24
RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"

Kind = Literal["stat", "timeseries", "bargauge", "table"]
Unit = Literal["short", "s", "percentunit", "reqps", "bytes", "none", "dateTimeFromNow", "ops", "currencyUSD"]
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""
    """Grafana's legend, such as ``{{phase}}``; empty: the labels."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    queries: tuple[Query, ...]
    text: str
    """What a reader learns from it."""
    kind: Kind = "timeseries"
    unit: Unit = "short"
    width: int = 8
    height: int = 7
    stacked: bool = False


Queries = str | Mapping[str, str]
"""One expression whose labels are its legend, or legend -> expression."""


def stat(title: str, queries: Queries, text: str, *, unit: Unit = "short", width: int = 4) -> Panel:
    """One number."""
    return Panel(title, _queries(queries), text, kind="stat", unit=unit, width=width, height=4)


def lines(title: str, queries: Queries, text: str, *, unit: Unit = "short", width: int = 8, stacked: bool = False) -> Panel:
    """Over time."""
    return Panel(title, _queries(queries), text, unit=unit, width=width, stacked=stacked)


def bars(title: str, queries: Queries, text: str, *, unit: Unit = "short", width: int = 8) -> Panel:
    """Of the time shown, as a whole."""
    return Panel(title, _queries(queries), text, kind="bargauge", unit=unit, width=width)


def table(title: str, queries: Queries, text: str, *, width: int = 8) -> Panel:
    """A line for each series."""
    return Panel(title, _queries(queries), text, kind="table", width=width)


def _queries(given: Queries) -> tuple[Query, ...]:
    return (Query(given),) if isinstance(given, str) else tuple(Query(expr, legend) for legend, expr in given.items())


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    label: str
    metric: str
    """Metric whose label gives the choices."""
    value: str
    """That label."""
    matcher: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()


def grafana(board: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it from a file."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": ["seatrial"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "utc",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "tags": ["seatrial"], "title": "seatrial", "asDropdown": True, "keepTime": True}],
        "templating": {"list": [_datasource(), *(_variable(item) for item in board.variables)]},
        "panels": list(_placed(board.panels)),
    }


def text(board: Dashboard) -> str:
    """The file's text."""
    return json.dumps(grafana(board), indent=1, sort_keys=True) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0}


def _variable(item: Variable) -> dict[str, Any]:
    query = f"label_values({item.metric}{{{item.matcher}}}, {item.value})" if item.matcher else f"label_values({item.metric}, {item.value})"
    return {
        "name": item.name,
        "label": item.label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": item.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "current": {},
        "hide": 0,
    }


def _placed(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    """From left to right, a new line where the width is used up."""
    x = y = tallest = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        yield _panel(panel, number, x, y)
        x, tallest = x + panel.width, max(tallest, panel.height)


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    instant = panel.kind != "timeseries"
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal", "group": "A"} if panel.stacked else {"mode": "none"}
        defaults["custom"] = {"fillOpacity": 25 if panel.stacked else 5, "stacking": stacking, "showPoints": "never"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": instant,
                "range": not instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
