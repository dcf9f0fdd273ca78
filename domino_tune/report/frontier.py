"""Layouts that no other beats in both time and memory: points of a plot, and their table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from domino_tune.report.markup import Html, join, table, tag
from domino_tune.report.names import gib_text, ms_text
from domino_tune.report.plan_names import plan_name
from domino_tune.report.plot import tick_step
from domino_tune.results.layouts import LayoutResult

WIDTH: Final = 460
HEIGHT: Final = 330
LEFT: Final = 46
RIGHT: Final = 34
TOP: Final = 30
BOTTOM: Final = 46
CHARACTER: Final = 8.5
LINE: Final = 14
GAP: Final = 6
"""Size of a number's text, and the least space between two."""


class Scale(NamedTuple):
    """Ticks of an axis, and where its ends are drawn."""

    ticks: tuple[float, ...]
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return where ``value`` is drawn."""
        low, high = self.ticks[0], self.ticks[-1]
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def frontier_figure(frontier: Sequence[LayoutResult]) -> Html:
    """Return the plot, fastest layout first, beside the table that its numbers point to."""
    layouts = _told_apart(frontier)
    rows = [
        (
            str(number), layout_name(one),
            ms_text(one.iteration_ms), gib_text(one.peak_memory_gib),
        )
        for number, one in enumerate(layouts, 1)
    ]  # fmt: skip
    return join(
        tag("h3", "Less memory for more time"),
        tag("p", "Of the plans that were looked at, none beats these in both time and memory.",
            class_="note"),
        tag("p", tag("span", "with Domino", class_="key rank-added"),
            tag("span", "without", class_="key rank-without"), class_="pass-keys"),
        tag("div", tag("div", _svg(layouts)),
            tag("div", table(("Point", "layout", "ms", "GiB"), rows, class_="layouts points")),
            class_="pair"),
    )  # fmt: skip


def _told_apart(frontier: Sequence[LayoutResult]) -> list[LayoutResult]:
    """Return the layouts that need less than the last one in the tenths of a GiB that are shown."""
    found: list[LayoutResult] = []
    for one in frontier:
        if not found or gib_text(one.peak_memory_gib) != gib_text(found[-1].peak_memory_gib):
            found.append(one)
    return found


def layout_name(one: LayoutResult) -> Html:
    """Return a layout's name with its plan below it."""
    return tag("span", layout_words(one), tag("small", plan_name(one.plan)))


def layout_words(one: LayoutResult) -> Html:
    """Return a layout's name, whose lines end behind commas only."""
    first, *others = one.label.split(", ")
    return join(tag("span", first, class_="whole"),
                *(join(", ", tag("span", part, class_="whole")) for part in others))  # fmt: skip


def _svg(layouts: Sequence[LayoutResult]) -> Html:
    x = Scale(ticks_around([one.iteration_ms for one in layouts]), LEFT, WIDTH - RIGHT)
    y = Scale(ticks_around([one.peak_memory_gib for one in layouts]), HEIGHT - BOTTOM, TOP)
    places = [(x.at(one.iteration_ms), y.at(one.peak_memory_gib)) for one in layouts]
    return tag(
        "svg", *_axes(x, y), _stairs(places), *map(_point, layouts, places), *_labels(places),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="frontier", role="img",
        aria_label=f"Memory over iteration of {len(layouts)} layouts, which the table lists",
    )  # fmt: skip


def ticks_around(values: Sequence[float]) -> tuple[float, ...]:
    """Return at least two ticks in steps of 1, 2 or 5, from below ``values`` to above them."""
    low, high = min(values), max(values)
    step = tick_step(max(high - low, 0.02 * high, 1e-6) / 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(index * step for index in range(first, max(last, first + 1) + 1))


def _axes(x: Scale, y: Scale) -> list[Html]:
    parts = []
    for tick in y.ticks:
        at = f"{y.at(tick):.1f}"
        parts.append(tag("line", class_="grid", x1=x.start, x2=x.end, y1=at, y2=at))
        parts.append(tag("text", f"{tick:,g}", x=LEFT - 8, y=at, dy="0.32em", text_anchor="end"))
    for tick in x.ticks:
        at = f"{x.at(tick):.1f}"
        parts.append(tag("text", f"{tick:,g}", x=at, y=HEIGHT - BOTTOM + 18, text_anchor="middle"))
    middle = (LEFT + WIDTH - RIGHT) // 2
    return [
        *parts,
        tag("text", "GiB a GPU", x=0, y=12),
        tag("text", "iteration, ms", x=middle, y=HEIGHT - 8, text_anchor="middle"),
    ]


def _stairs(places: Sequence[tuple[float, float]]) -> Html:
    """Return the line between what some layout reaches and what none does."""
    (x, y), *others = places
    steps = [f"{x:.1f},{y:.1f}"]
    for right, below in others:
        steps += [f"{right:.1f},{y:.1f}", f"{right:.1f},{below:.1f}"]
        y = below
    return tag("polyline", points=" ".join(steps), fill="none", class_="stairs")


def _point(one: LayoutResult, place: tuple[float, float]) -> Html:
    words = f"{one.label}, {one.plan.label}: {ms_text(one.iteration_ms)} ms, "
    kind = "added" if one.plan.strategy == "domino" else "without"
    return tag(
        "g",
        tag("title", f"{words}{gib_text(one.peak_memory_gib)} GiB"),
        tag("circle", cx=f"{place[0]:.1f}", cy=f"{place[1]:.1f}", r=5, class_=f"rank-{kind}"),
    )


def _labels(places: Sequence[tuple[float, float]]) -> list[Html]:
    """Return the numbers of the points; where a number would stand on the last, both are one."""
    groups: list[list[int]] = []
    for index, (x, y) in enumerate(places):
        if groups:
            left, above = places[groups[-1][0]]
            ends = left + CHARACTER * len(_numbers(groups[-1])) + GAP
            if x < ends and y - above < LINE:
                groups[-1].append(index)
                continue
        groups.append([index])
    return [
        tag("text", _numbers(group), x=f"{places[group[0]][0] + 6:.1f}",
            y=f"{places[group[0]][1] - 8:.1f}", class_="number")
        for group in groups
    ]  # fmt: skip


def _numbers(group: Sequence[int]) -> str:
    """Return ``3`` or ``3–5``: the numbers of points by their indices."""
    first, last = group[0] + 1, group[-1] + 1
    return str(first) if first == last else f"{first}–{last}"
