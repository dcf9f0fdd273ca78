"""The section on memory: one bar a variant, by category, beside what a GPU has."""

from __future__ import annotations

from domino_tune.report.data import Held, ReportData
from domino_tune.report.markup import Html, section, table, tag
from domino_tune.report.names import gib_text
from domino_tune.report.stacks import Legend, Stack, stack_rows, stacked


def where_memory_goes(data: ReportData) -> Html:
    """Return the section of the page, or nothing where no memory is given."""
    if not data.held:
        return Html("")
    longest = max(data.capacity_gib, *(held.total_gib for held in data.held))
    stacks = [Stack(held.name, held.gib, chosen=held.chosen) for held in data.held]
    legend = _legend(data.held[0])
    names = (held.name for held in data.held)
    return section(
        "memory",
        "Where the memory goes",
        stacked(stacks, legend, longest, _edge(data.capacity_gib, longest)),
        tag(
            "p",
            tag("span", f"what a GPU has: {gib_text(data.capacity_gib)} GiB", class_="key edge"),
            class_="pass-keys",
        ),
        table(("GiB a GPU, at the peak", *names), stack_rows(stacks, legend), class_="parts"),
        lead=_lead(data),
    )


def _legend(held: Held) -> Legend:
    return Legend(
        {category: category.capitalize() for category in held.gib},
        {category: f"mem-{number}" for number, category in enumerate(held.gib)},
        "GiB",
        "{:,.2f}".format,
    )


def _edge(capacity_gib: float, longest: float) -> Html:
    """Return the line across a bar at what a GPU has."""
    return tag(
        "u", "", class_="capacity", style=f"left:{100 * capacity_gib / longest:.3f}%",
        title=f"a GPU has {capacity_gib:.0f} GiB",
    )  # fmt: skip


def _lead(data: ReportData) -> str:
    chosen = next(held for held in data.held if held.chosen)
    left = data.capacity_gib - chosen.total_gib
    if left < 0:
        return (
            f"It does not fit: the plan needs {gib_text(chosen.total_gib)} GiB, and a GPU has "
            f"{data.capacity_gib:.0f}."
        )
    return (
        f"The plan needs {gib_text(chosen.total_gib)} of {data.capacity_gib:.0f} GiB; {left:.1f} "
        "are left for the communicators' buffers and fragmentation, which are not counted."
    )
