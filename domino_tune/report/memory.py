"""The section on memory: one bar a variant, by category, beside what a GPU has."""

from __future__ import annotations

from domino_tune.report.data import Held, ReportData
from domino_tune.report.markup import Html, section, table, tag

LABELLED = 0.06
"""Least share of the longest bar that a piece's label fits in."""


def where_memory_goes(data: ReportData) -> Html:
    """Return the section of the page, or nothing where no memory is given."""
    if not data.held:
        return Html("")
    longest = max(data.capacity_gib, *(held.total_gib for held in data.held))
    bars = [_bar(held, longest, data.capacity_gib) for held in data.held]
    return section(
        "memory",
        "Where the memory goes",
        tag("div", *bars, class_="stacks", aria_hidden="true"),
        table(
            ("GiB a GPU, at the peak", *(held.name for held in data.held)), _rows(data.held),
            class_="parts",
        ),
        lead=_lead(data),
    )  # fmt: skip


def _lead(data: ReportData) -> str:
    chosen = next(held for held in data.held if held.chosen)
    left = data.capacity_gib - chosen.total_gib
    if left < 0:
        return (
            f"It does not fit: the plan needs {chosen.total_gib:.1f} GiB, and a GPU has "
            f"{data.capacity_gib:.0f}."
        )
    return (
        f"The plan needs {chosen.total_gib:.1f} of {data.capacity_gib:.0f} GiB; {left:.1f} are "
        "left for the communicators' buffers and fragmentation, which are not counted."
    )


def _bar(held: Held, longest: float, capacity_gib: float) -> Html:
    pieces = [
        tag(
            "i",
            tag("b", f"{gib:.1f}") if gib > LABELLED * longest else "",
            class_=f"mem-{number}",
            style=f"width:{100 * gib / longest:.3f}%",
            title=f"{name}: {gib:.2f} GiB",
        )
        for number, (name, gib) in enumerate(held.gib.items())
        if gib
    ]
    edge = tag(
        "u", "", class_="capacity", style=f"left:{100 * capacity_gib / longest:.3f}%",
        title=f"a GPU has {capacity_gib:.0f} GiB",
    )  # fmt: skip
    label = tag("span", held.name, class_="name")
    return tag("div", label, tag("span", *pieces, edge, class_="track"),
               class_="stack chosen" if held.chosen else "stack")  # fmt: skip


def _rows(found: tuple[Held, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, name in enumerate(found[0].gib):
        values = [held.gib[name] for held in found]
        if any(values):
            swatch = tag("i", "", class_=f"swatch mem-{number}")
            label = tag("span", swatch, name.capitalize())
            rows.append((label, *(f"{value:.2f}" if value else "–" for value in values)))
    return [*rows, ("All", *(f"{held.total_gib:.2f}" for held in found))]
