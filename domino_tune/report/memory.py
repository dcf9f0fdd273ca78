"""The section on memory: one bar a variant, by category, beside what is usable of a GPU."""

from __future__ import annotations

from domino_tune.report.data import Held, ReportData
from domino_tune.report.markup import Html, section, table, tag
from domino_tune.report.names import gib_text
from domino_tune.report.stacks import Legend, Stack, stack_rows, stacked
from domino_tune.results.simulate import UsableMemory
from simulator.usable import SURE, percent


def where_memory_goes(data: ReportData) -> Html:
    """Return the section of the page, or nothing where no memory is given."""
    if not data.held or data.usable is None:
        return Html("")
    usable_gib = data.usable.usable_gib
    longest = max(usable_gib, *(held.total_gib for held in data.held))
    stacks = [Stack(held.name, held.gib, chosen=held.chosen) for held in data.held]
    legend = _legend(data.held[0])
    names = (held.name for held in data.held)
    return section(
        "memory",
        "Where the memory goes",
        stacked(stacks, legend, longest, _edge(usable_gib, longest)),
        tag(
            "p",
            tag("span", f"what is usable of a GPU: {gib_text(usable_gib)} GiB", class_="key edge"),
            class_="pass-keys",
        ),
        table(("GiB a GPU, at the peak", *names), stack_rows(stacks, legend), class_="parts"),
        table(("A GPU's memory", "GiB", "how that is known"), _rows(data.usable), class_="parts"),
        lead=_lead(data, data.usable),
    )


def _legend(held: Held) -> Legend:
    return Legend(
        {category: category.capitalize() for category in held.gib},
        {category: f"mem-{number}" for number, category in enumerate(held.gib)},
        "GiB",
        "{:,.2f}".format,
    )


def _edge(usable_gib: float, longest: float) -> Html:
    """Return the line across a bar at what is usable."""
    return tag(
        "u", "", class_="capacity", style=f"left:{100 * usable_gib / longest:.3f}%",
        title=f"usable of a GPU: {usable_gib:.1f} GiB",
    )  # fmt: skip


def _rows(usable: UsableMemory) -> list[tuple[str, str, str]]:
    """Return what a GPU has, what is taken from it, and what the plan's allocator reserves."""
    return [
        ("in all", f"{usable.gpu_gib:.2f}", usable.source),
        *((one.what, f"− {one.gib:.2f}", one.source) for one in usable.taken),
        ("usable", f"{usable.usable_gib:.2f}", "what is left"),
        ("the plan reserves", f"{usable.reserved_gib:.2f}", usable.reserved_source),
        ("peaks that are recommended", f"up to {usable.recommended_gib:.2f}",
         "a chance of 80 % or more to fit, with fragments and the error of the prediction"),
    ]  # fmt: skip


def _lead(data: ReportData, usable: UsableMemory) -> str:
    chosen = next(held for held in data.held if held.chosen)
    needs = gib_text(chosen.total_gib)
    if chosen.total_gib > usable.usable_gib:
        return (
            f"It does not fit: the plan needs {needs} GiB, and {usable.usable_gib:.1f} of a GPU "
            "are usable."
        )
    doubt = "" if data.fits_chance >= SURE else ", too little to recommend it"
    return (
        f"The plan needs {needs} of {usable.usable_gib:.1f} usable GiB and fits with a chance of "
        f"{percent(data.fits_chance)}{doubt}: about {usable.reserved_gib:.1f} GiB will be reserved "
        "for it."
    )
