"""Horizontal bars as an SVG, drawn by hand: no plotting package is needed to read a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _NAMES, _NUMBERS = 860, 250, 190  # pixels: all, the names' column, room for numbers at the right
_ROW, _HEAD, _EDGE = 22, 38, 12
_OWN, _OTHERS, _INK = "#1b6ca8", "#a9b4bf", "#222"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        name: Stands left of the bar.
        value: The bar's length.
        low: Where the whisker begins.
        high: Where the whisker ends.
        note: Stands after the number.
        own: Draws the bar in the strong colour.
    """

    name: str
    value: float
    low: float
    high: float
    note: str = ""
    own: bool = False


def bars(groups: Mapping[str, Sequence[Bar]]) -> str:
    """A block of bars under each title. Each block has its own scale, which begins at 0."""
    pieces: list[str] = []
    y = _EDGE
    for title, group in groups.items():
        pieces.append(f'<text x="{_EDGE}" y="{y + 20}" font-weight="bold">{escape(title)}</text>')
        y += _HEAD
        longest = max((bar.high for bar in group), default=0) or 1
        for bar in group:
            pieces += _bar(bar, y, (_WIDTH - _NAMES - _NUMBERS) / longest)
            y += _ROW
        y += _EDGE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}" '
        f'font-family="sans-serif" font-size="13" fill="{_INK}">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{y}" fill="white"/>', *pieces, "</svg>"]) + "\n"


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    end, middle = _NAMES + bar.value * scale, y + _ROW / 2
    low, high = _NAMES + bar.low * scale, _NAMES + bar.high * scale
    note = f"  {bar.note}" if bar.note else ""
    return [
        f'<text x="{_NAMES - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{_NAMES}" y="{y + 3}" width="{end - _NAMES:.1f}" height="{_ROW - 6}" '
        f'fill="{_OWN if bar.own else _OTHERS}"/>',
        f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}" stroke="{_INK}" stroke-width="1.5"/>',
        f'<text x="{max(end, high) + 6:.1f}" y="{middle + 4:.1f}">{bar.value:.0f}{escape(note)}</text>',
    ]
