"""Layouts: those that no other beats in time and memory, and the section on the best ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from domino_tune.report import (
    TIE_WORDS,
    Html,
    gib_text,
    join,
    ms_text,
    percent_text,
    plan_key,
    plan_name,
    section,
    table,
    tag,
    tick_step,
    ties,
    times_text,
)
from domino_tune.report.data import ReportData
from domino_tune.results.layouts import LayoutResult, Layouts
from domino_tune.results.shown import share
from simulator.usable import percent

# Layouts that no other beats in both time and memory ----------------------------------------------
# Points of a plot, and their table.

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


# The section on layouts ---------------------------------------------------------------------------
# The best ones as bars, and the price of using less memory as points.

ROW: Final = 42
BAR: Final = 14
WIDEST: Final = 66
"""Width of the longest bar, per cent; numbers are to the right of it."""


def layouts_picture(data: ReportData) -> Html:
    """Return the section of the page, or nothing if layouts were not searched."""
    found = data.layouts
    if found is None:
        return Html("")
    return section(
        "layouts", "The best layouts", _legend(found), _ranking(found), _table(found.layouts),
        _unsure(found.unsure_layouts), frontier_figure(found.frontier), lead=_lead(found),
    )  # fmt: skip


def _lead(found: Layouts) -> str:
    batch = f"{found.gpus:,} GPUs train {found.global_batch_size:,} sequences an iteration"
    first, rival = found.layouts[0], found.best_without_domino
    if rival is None:
        return f"{batch}. No layout is sure enough to fit without Domino."
    if rival.tokens_per_second_per_gpu >= first.tokens_per_second_per_gpu:
        return f"{batch}. The best layout does without Domino."
    return join(
        f"{batch}. The best layout without Domino is ", layout_words(rival),
        f": the first is {times_text(first.domino_gain)} as fast.",
    )  # fmt: skip


def _legend(found: Layouts) -> Html:
    keys = [("without", "without Domino, in the same layout")]
    if any(one.plan.strategy == "domino" and one.domino_gain_here for one in found.layouts):
        keys.append(("added", "what Domino adds"))
    if any(one.domino_gain_here is None for one in found.layouts):
        keys.append(("only", "does not fit without Domino"))
    if rival := found.best_without_domino:
        keys.append(("rival", f"best without Domino: {rival.tokens_per_second_per_gpu:,.0f}"))
    return join(
        tag("h3", "Tokens a second a GPU"),
        tag("p", *(tag("span", words, class_=f"key rank-{kind}") for kind, words in keys),
            class_="pass-keys"),
    )  # fmt: skip


def _ranking(found: Layouts) -> Html:
    """Return one bar per layout; widths are per cent, so that text keeps its size on
    narrow screens."""
    longest = max(one.tokens_per_second_per_gpu for one in found.layouts)
    rival = found.best_without_domino
    mark = rival.tokens_per_second_per_gpu if rival else None
    tied = _tied(found.layouts)
    rows = [
        tag("g", *_bar(one, ROW * number, WIDEST / longest, mark, one in tied))
        for number, one in enumerate(found.layouts)
    ]
    shown = "; ".join(f"{one.label}: {one.tokens_per_second_per_gpu:,.0f}" for one in found.layouts)
    return tag(
        "svg", *rows, class_="ranking", width="100%", height=ROW * len(rows), role="img",
        aria_label=f"Tokens a second a GPU: {shown}",
    )  # fmt: skip


def _tied(layouts: Sequence[LayoutResult]) -> list[LayoutResult]:
    """Return the layouts that tie with the first, the fastest, including itself; [] if no other
    does."""
    found = [one for one in layouts if ties(one.iteration_ms, layouts[0].iteration_ms)]
    return found if len(found) > 1 else []


def _bar(one: LayoutResult, y: int, scale: float, mark: float | None, tied: bool) -> Iterator[Html]:
    """Yield a layout's name, its bar in one or two parts, the rival's mark, and its number."""
    rate, here = one.tokens_per_second_per_gpu, one.domino_gain_here
    yield tag("title", f"{one.label}: {one.plan.label}; {_gain_words(one)}")
    yield tag("text", one.label + ", tie" * tied, x=0, y=y + 13, class_="name")
    top, width = y + 19, rate * scale
    without = 0.0 if here is None else rate / max(1.0, here) * scale
    if without:
        yield tag("rect", x=0, y=top, width=_per_cent(without), height=BAR, class_="rank-without")
    if width - without > 1e-6:
        kind = "only" if here is None else "added"
        yield tag("rect", x=_per_cent(without), y=top, width=_per_cent(width - without),
                  height=BAR, class_=f"rank-{kind}")  # fmt: skip
    if mark is not None:
        x = _per_cent(mark * scale)
        yield tag("line", x1=x, x2=x, y1=top - 1, y2=top + BAR + 3, class_="rank-rival")
    more = f", +{percent_text(round(here - 1, 3))}" if here and here > 1.0005 else ""
    yield tag("text", f"{rate:,.0f}{more}", x=_per_cent(WIDEST), dx=9, y=top + 11)


def _per_cent(value: float) -> str:
    return f"{value:.3f}%"


def _gain_words(one: LayoutResult) -> str:
    if one.domino_gain_here is None:
        return "does not fit without Domino"
    return f"{times_text(one.domino_gain_here)} over the same layout without Domino"


def _unsure(layouts: Sequence[LayoutResult]) -> Html:
    """Return layouts that are faster but may not fit, or nothing if no such layout was found."""
    if not layouts:
        return Html("")
    rows = [
        (
            layout_name(one), f"{one.tokens_per_second_per_gpu:,.0f}", ms_text(one.iteration_ms),
            gib_text(one.peak_memory_gib), percent(one.fits_chance),
        )
        for one in layouts
    ]  # fmt: skip
    return join(
        tag("h3", "Faster, but not recommended"),
        tag("p", "These fit the memory with a chance below 80 %.", class_="note"),
        table(("Layout", "tokens/s/GPU", "ms", "GiB", "fits"), rows, class_="layouts"),
    )


def _table(layouts: Sequence[LayoutResult]) -> Html:
    head = ("Layout", "tokens/s/GPU", "MFU", "ms", "GiB", "fits", "gain", "gain here")
    rows = [
        (
            layout_name(one), f"{one.tokens_per_second_per_gpu:,.0f}", share(one.mfu),
            ms_text(one.iteration_ms), gib_text(one.peak_memory_gib), percent(one.fits_chance),
            times_text(one.domino_gain), times_text(one.domino_gain_here),
        )
        for one in layouts
    ]  # fmt: skip
    tied = f" {TIE_WORDS.capitalize()}" if _tied(layouts) else ""
    return tag(
        "details",
        tag("summary", "As a table, with plans"),
        table(head, rows, class_="layouts"),
        tag("p", "gain: over the best layout without Domino; gain here: over the same layout "
            f"without it.{tied}", class_="note"),
        plan_key(),
    )  # fmt: skip
