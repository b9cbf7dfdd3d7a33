"""Plots as SVG text: score by task, pass@k curve, durations, cost against score. No drawing library, no script, no font of its own.

Why by hand: four simple charts do not justify a plotting library in every installation, and the text is the same for the same input.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 32, 44
BAR: Final = 18
MAX_BARS: Final = 60
LABEL_CHARS: Final = 36
COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626")


class Bar(NamedTuple):
    label: str
    value: float | None
    """None: nothing was measured; no bar is drawn, and the text says so."""
    note: str = ""


class Point(NamedTuple):
    x: float
    y: float
    label: str = ""


def score_by_task(bars: Sequence[Bar], *, title: str = "Score by task") -> str:
    """Horizontal bars, the lowest score first; at most 60, the rest is counted."""
    ordered = sorted(bars, key=lambda bar: (bar.value is None, bar.value if bar.value is not None else 0.0, bar.label))
    shown, hidden = ordered[:MAX_BARS], max(0, len(ordered) - MAX_BARS)
    left, height = 260, TOP + BAR * max(1, len(shown)) + 24
    values = [bar.value for bar in shown if bar.value is not None]
    low, high = min([0.0, *values]), max([1.0, *values])
    scale = (WIDTH - left - RIGHT - 90) / (high - low)
    parts = []
    for index, bar in enumerate(shown):
        y = TOP + index * BAR
        parts.append(_text(left - 8, y + 12, _short(bar.label), anchor="end", hint=bar.label))
        if bar.value is None:
            parts.append(_text(left + 4, y + 12, f"not measured {bar.note}".rstrip(), fill="#6b7280"))
            continue
        start, end = sorted((left + (0 - low) * scale, left + (bar.value - low) * scale))
        parts.append(f'<rect x="{start:.1f}" y="{y + 2}" width="{max(1.0, end - start):.1f}" height="{BAR - 5}" fill="{COLOURS[0]}"/>')
        parts.append(_text(end + 5, y + 12, f"{_number(bar.value)} {bar.note}".rstrip(), fill="#374151"))
    if hidden:
        parts.append(_text(left, height - 6, f"and {hidden} more tasks with higher scores", fill="#6b7280"))
    return _svg(title, parts, height=height)


def curves(lines: Sequence[tuple[str, Sequence[Point]]], *, title: str, x_name: str, y_name: str) -> str:
    """Lines over one x axis from 1, y from 0 to 1: for pass@k and pass^k."""
    points = [point for _, line in lines for point in line]
    if not points:
        return _svg(title, [_text(LEFT, HEIGHT / 2, "nothing measured", fill="#6b7280")])
    frame = _Frame(1.0, max(2.0, *(point.x for point in points)), 0.0, 1.0)
    parts = frame.axes(x_name, y_name)
    for (name, line), colour in zip(lines, COLOURS, strict=False):
        path = " ".join(f"{frame.x(point.x):.1f},{frame.y(point.y):.1f}" for point in line)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        parts += [_dot(frame, point, colour) for point in line] if len(line) <= 64 else []
        if line:
            parts.append(_text(min(frame.x(line[-1].x), WIDTH - 90), frame.y(line[-1].y) - 8, name, fill=colour))
    return _svg(title, parts)


def histogram(values: Iterable[float], *, title: str = "Duration of trials", x_name: str = "seconds") -> str:
    """Counts in up to 24 equal classes."""
    found = sorted(value for value in values if math.isfinite(value))
    if not found:
        return _svg(title, [_text(LEFT, HEIGHT / 2, "nothing measured", fill="#6b7280")])
    low, high = found[0], found[-1]
    classes = max(1, min(24, round(math.sqrt(len(found)))))
    width = (high - low) / classes or 1.0
    counts = [0] * classes
    for value in found:
        counts[min(classes - 1, int((value - low) / width))] += 1
    frame = _Frame(low, low + width * classes, 0.0, float(max(counts)))
    parts = frame.axes(x_name, "trials")
    for index, count in enumerate(counts):
        x = frame.x(low + index * width)
        y = frame.y(count)
        step = frame.x(low + (index + 1) * width) - x
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, step - 1):.1f}" height="{frame.y(0) - y:.1f}" fill="{COLOURS[0]}"/>')
    return _svg(title, parts)


def scatter(
    points: Sequence[Point], *, title: str = "Cost against score", x_name: str = "cost in US dollars", y_name: str = "reward"
) -> str:
    """One dot a point; the label shows on hover."""
    if not points:
        return _svg(title, [_text(LEFT, HEIGHT / 2, "no trial reported a cost", fill="#6b7280")])
    frame = _Frame(
        0.0, max(point.x for point in points), min(0.0, *(point.y for point in points)), max(1.0, *(point.y for point in points))
    )
    return _svg(title, [*frame.axes(x_name, y_name), *(_dot(frame, point, COLOURS[0]) for point in points)])


class _Frame:
    """Maps values to places inside the axes."""

    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self._x_low, self._x_high = x_low, x_high if x_high > x_low else x_low + 1
        self._y_low, self._y_high = y_low, y_high if y_high > y_low else y_low + 1

    def x(self, value: float) -> float:
        return LEFT + (value - self._x_low) / (self._x_high - self._x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self._y_low) / (self._y_high - self._y_low) * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_name: str, y_name: str) -> list[str]:
        base, right = self.y(self._y_low), WIDTH - RIGHT
        parts = [f'<path d="M{LEFT},{TOP}V{base:.1f}H{right}" fill="none" stroke="#9ca3af"/>']
        for part in range(5):
            x = self._x_low + (self._x_high - self._x_low) * part / 4
            y = self._y_low + (self._y_high - self._y_low) * part / 4
            parts.append(_text(self.x(x), base + 16, _number(x), anchor="middle", fill="#6b7280"))
            parts.append(_text(LEFT - 6, self.y(y) + 4, _number(y), anchor="end", fill="#6b7280"))
        parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x_name, anchor="middle", fill="#374151"))
        parts.append(_text(8, TOP - 8, y_name, fill="#374151"))
        return parts


def _dot(frame: _Frame, point: Point, colour: str) -> str:
    hint = f"{point.label} ({_number(point.x)}, {_number(point.y)})".strip()
    place = f'cx="{frame.x(point.x):.1f}" cy="{frame.y(point.y):.1f}"'
    return f'<circle {place} r="3" fill="{colour}" fill-opacity="0.7"><title>{_escape(hint)}</title></circle>'


def _svg(title: str, parts: Iterable[str], *, height: float = HEIGHT) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'role="img" font-family="system-ui,sans-serif" font-size="11">\n<title>{_escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{_text(WIDTH / 2, 16, title, anchor="middle")}\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#111827", hint: str = "") -> str:
    title = f"<title>{_escape(hint)}</title>" if hint and hint != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{title}{_escape(text)}</text>'


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS else f"…{text[1 - LABEL_CHARS :]}"


def _escape(text: str) -> str:
    """For XML: escaped, and without characters that XML cannot hold."""
    return html.escape("".join(char if char.isprintable() else "\ufffd" for char in text))


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.4g}"
