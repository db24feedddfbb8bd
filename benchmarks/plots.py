"""Plots as plain SVG, so that a report needs nothing to be drawn or shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed")
_WIDTH = 720
_ROW = 26
_LABEL = 250


def bars(title: str, values: Mapping[str, float], unit: str) -> str:
    """Horizontal bars, the longest first."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    longest = max(values.values())
    rows = []
    for number, (name, value) in enumerate(ordered):
        top = 40 + number * _ROW
        width = (_WIDTH - _LABEL - 90) * value / longest
        rows.append(
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL}" y="{top + 3}" width="{width:.1f}" height="16" '
            f'fill="{_COLOURS[0]}"/>'
            f'<text x="{_LABEL + width + 6:.1f}" y="{top + 15}">{value:,.0f}</text>'
        )
    return _svg(f"{title}, {unit}", 50 + len(ordered) * _ROW, rows)


def lines(title: str, series: Mapping[str, Sequence[float]], unit: str) -> str:
    """Lines over the rounds, from zero."""
    highest = max(max(values) for values in series.values())
    left, top, width, height = 60, 40, _WIDTH - 80, 200
    parts = [
        f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="#999"/>',
        f'<text x="{left - 6}" y="{top + 5}" text-anchor="end">{highest:,.0f}</text>',
        f'<text x="{left - 6}" y="{top + height}" text-anchor="end">0</text>',
    ]
    for number, (name, values) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        step = width / max(len(values) - 1, 1)
        points = " ".join(
            f"{left + i * step:.1f},{top + height * (1 - value / highest):.1f}"
            for i, value in enumerate(values)
        )
        key = top + height + 24 + number * 18
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<rect x="{left}" y="{key - 9}" width="12" height="10" fill="{colour}"/>'
            f'<text x="{left + 18}" y="{key}">{escape(name)}</text>'
        )
    return _svg(f"{title}, {unit}", top + height + 24 + len(series) * 18, parts)


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#222">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text x="12" y="22" font-weight="bold">{escape(title)}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
