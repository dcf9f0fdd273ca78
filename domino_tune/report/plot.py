"""Line plots as inline SVG; the page's style sheet gives the colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from domino_tune.report.markup import Html, tag
from domino_tune.report.names import change_label, ms_text
from simulator.errors import InputError

WIDTH: Final = 860
HEIGHT: Final = 330
LEFT: Final = 64
RIGHT: Final = 240
TOP: Final = 14
BOTTOM: Final = 52
COLOURS: Final = 8
LABEL_HEIGHT: Final = 15


def sweep_svg(
    x_label: str, xs: Sequence[str | float], series: Mapping[str, Sequence[float]]
) -> str:
    """Return an SVG of times in ms over ``xs``, evenly spaced in the order given.

    ``series`` maps a name to one value a point. Raise InputError for a series with another number
    of values, or with one that is not finite.
    """
    for name, values in series.items():
        if len(values) != len(xs) or not all(math.isfinite(value) for value in values):
            raise InputError(f"Series {name!r} needs {len(xs)} finite values, got {list(values)}.")
    ticks = _ticks(max((v for values in series.values() for v in values), default=1.0))
    places = [_x(index, len(xs)) for index in range(len(xs))]
    parts = [
        *_grid(ticks),
        *(
            tag("text", str(x), x=f"{place:.1f}", y=HEIGHT - BOTTOM + 19, text_anchor="middle")
            for x, place in zip(xs, places, strict=True)
        ),
        tag("text", change_label(x_label), x=(LEFT + WIDTH - RIGHT) // 2, y=HEIGHT - 8,
            text_anchor="middle"),
        *_lines(series, places, ticks[-1]),
    ]  # fmt: skip
    label = f"Iteration in ms by {change_label(x_label)}: {', '.join(series)}"
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="sweep", role="img",
               aria_label=label)  # fmt: skip


def _x(index: int, count: int) -> float:
    return LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / max(1, count)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _ticks(highest: float) -> list[float]:
    """Return ticks from 0 in steps of 1, 2 or 5, up to the first at or above ``highest``."""
    rough = (highest or 1.0) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= rough)
    return [index * step for index in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


def _grid(ticks: list[float]) -> list[Html]:
    parts = []
    for tick in ticks:
        y = f"{_y(tick, ticks[-1]):.1f}"
        parts.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(tag("text", f"{tick:g}", x=LEFT - 9, y=y, dy="0.32em", text_anchor="end"))
    return [*parts, tag("text", "ms", x=LEFT - 9, y=HEIGHT - BOTTOM + 19, text_anchor="end")]


def _lines(series: Mapping[str, Sequence[float]], places: list[float], top: float) -> list[Html]:
    parts = []
    heights = _label_heights([_y(values[-1], top) if values else 0.0 for values in series.values()])
    for number, ((name, values), height) in enumerate(zip(series.items(), heights, strict=True)):
        colour = f"var(--s{number % COLOURS})"
        points = [(x, _y(value, top)) for x, value in zip(places, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            tag("polyline", points=path, fill="none", stroke=colour, stroke_width=2.25,
                stroke_linejoin="round")
        )  # fmt: skip
        parts += [
            _dot(x, y, colour, f"{name}: {ms_text(value)} ms")
            for (x, y), value in zip(points, values, strict=True)
        ]
        parts.append(
            tag("text", name, x=WIDTH - RIGHT + 2, y=f"{height:.1f}", dy="0.32em", class_="name",
                style=f"fill:{colour}")
        )  # fmt: skip
    return parts


def _dot(x: float, y: float, colour: str, title: str) -> Html:
    circle = tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3.6, fill=colour)
    return tag("g", tag("title", title), circle)


def _label_heights(wanted: list[float]) -> list[float]:
    """Return ``wanted`` heights, moved down where names would overlap, then up from the bottom."""
    placed = dict.fromkeys(range(len(wanted)), 0.0)
    last = -math.inf
    for index in sorted(placed, key=lambda i: wanted[i]):
        last = placed[index] = max(wanted[index], last + LABEL_HEIGHT)
    over = max(0.0, last - (HEIGHT - BOTTOM))
    return [placed[index] - over for index in range(len(wanted))]
