"""Line plots as inline SVG; the page's style sheet gives the colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

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
LABEL_HEIGHT: Final = 17
CHARACTER: Final = 9
"""Width of a digit on narrow screens, where the style sheet makes the text larger."""


class Axis(NamedTuple):
    """A plot's values: their name, their unit (empty: none below the axis), and a value as text."""

    name: str
    unit: str
    written: Callable[[float], str]


TIMES: Final = Axis("Iteration in ms", "ms", ms_text)


def sweep_figure(
    caption: str,
    x_label: str,
    xs: Sequence[str | float],
    series: Mapping[str, Sequence[float | None]],
    axis: Axis = TIMES,
) -> Html:
    """Return the SVG of ``sweep_svg`` under a caption, with names above it for narrow screens."""
    keys = [
        tag("span", name, class_="key line", style=f"color:{_colour(number)}")
        for number, name in enumerate(series)
    ]
    plot = tag("div", sweep_svg(x_label, xs, series, axis), class_="scroll", tabindex="0",
               role="region", aria_label=caption)  # fmt: skip
    return tag(
        "figure", tag("figcaption", caption), tag("p", *keys, class_="pass-keys narrow"), plot
    )


def sweep_svg(
    x_label: str,
    xs: Sequence[str | float],
    series: Mapping[str, Sequence[float | None]],
    axis: Axis = TIMES,
) -> Html:
    """Return an SVG of values over ``xs``, evenly spaced in the order given.

    ``series`` maps a name to one value a point, None where there is none. Raise InputError for a
    series with another number of values, or with one that is not finite.
    """
    for name, values in series.items():
        if len(values) != len(xs) or not all(math.isfinite(value or 0.0) for value in values):
            raise InputError(f"Series {name!r} needs {len(xs)} finite values, got {list(values)}.")
    highest = max((value or 0.0 for values in series.values() for value in values), default=1.0)
    ticks = up_to(highest)
    places = [_x(index, len(xs)) for index in range(len(xs))]
    parts = [
        *_grid(ticks, axis.unit),
        *_x_names([str(x) for x in xs], places),
        tag("text", change_label(x_label), x=(LEFT + WIDTH - RIGHT) // 2, y=HEIGHT - 8,
            text_anchor="middle"),
        *_lines(series, places, ticks[-1], axis),
    ]  # fmt: skip
    label = f"{axis.name} by {change_label(x_label)}: {', '.join(series)}"
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="sweep", role="img",
               aria_label=label)  # fmt: skip


def _x_names(names: Sequence[str], places: Sequence[float]) -> list[Html]:
    """Return the names of the points; of points that are too close, every second, third or so."""
    widest = CHARACTER * (2 + max(map(len, names), default=0))
    every = math.ceil(len(names) * widest / (WIDTH - LEFT - RIGHT)) or 1
    return [
        tag("text", name, x=f"{place:.1f}", y=HEIGHT - BOTTOM + 19, text_anchor="middle")
        for name, place in zip(names[::every], places[::every], strict=True)
    ]


def _x(index: int, count: int) -> float:
    return LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / max(1, count)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def up_to(highest: float) -> list[float]:
    """Return ticks from 0 in steps of 1, 2 or 5, up to the first at or above ``highest``."""
    step = tick_step((highest or 1.0) / 4)
    return [index * step for index in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


def tick_step(least: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is not below ``least``."""
    unit: float = 10.0 ** math.floor(math.log10(least))
    return next(k * unit for k in (1, 2, 5, 10) if k * unit >= least)


def _grid(ticks: list[float], unit: str) -> list[Html]:
    parts = []
    for tick in ticks:
        y = f"{_y(tick, ticks[-1]):.1f}"
        parts.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(tag("text", f"{tick:,g}", x=LEFT - 9, y=y, dy="0.32em", text_anchor="end"))
    return [*parts, tag("text", unit, x=LEFT - 9, y=HEIGHT - BOTTOM + 19, text_anchor="end")]


def _lines(
    series: Mapping[str, Sequence[float | None]], places: list[float], top: float, axis: Axis
) -> list[Html]:
    """Return a line a series, with a dot a value and its name at the height of the last one."""
    parts = []
    found = [[value for value in values if value is not None] for values in series.values()]
    heights = _label_heights([_y(values[-1], top) if values else 0.0 for values in found])
    for number, ((name, values), height) in enumerate(zip(series.items(), heights, strict=True)):
        colour = _colour(number)
        points = [
            (x, _y(value, top), value)
            for x, value in zip(places, values, strict=True)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(
            tag("polyline", points=path, fill="none", stroke=colour, stroke_width=2.25,
                stroke_linejoin="round")
        )  # fmt: skip
        parts += [
            _dot(x, y, colour, f"{name}: {axis.written(value)} {axis.unit}".rstrip())
            for x, y, value in points
        ]
        parts.append(
            tag("text", name, x=WIDTH - RIGHT + 2, y=f"{height:.1f}", dy="0.32em", class_="name",
                style=f"fill:{colour}")
        )  # fmt: skip
    return parts


def _colour(number: int) -> str:
    return f"var(--s{number % COLOURS})"


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
