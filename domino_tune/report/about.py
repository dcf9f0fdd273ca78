"""The end of the page: the sweeps, the request, the search, and the commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domino_tune.report.data import ReportData, Search
from domino_tune.report.markup import Html, join, section, tag
from domino_tune.report.names import change_label
from domino_tune.report.plot import plot_figure

REASONS: Final = {
    "duplicate": "the same as others",
    "rows": "with more slices than rows",
    "hidden": "whose column slices do not divide the hidden size",
    "order": "in an order that these slices do not have",
    "wgrad": "with weight gradients where the order has no place for them",
    "memory": "beyond the memory",
    "comm_ctas": "with CTAs that the profile does not know",
    "target": "that the framework does not run",
}
"""Why combinations are left out of a search, by the slugs of ``Space.infeasible``, in words."""


def sweeps(data: ReportData) -> Html:
    """Return one plot a sweep."""
    if not data.sweeps:
        return Html("")
    pictures = [
        plot_figure(
            f"Iteration by {change_label(sweep.x_label)}", sweep.x_label, sweep.xs, sweep.series
        )
        for sweep in data.sweeps
    ]
    return section("whatif", "What if", *pictures)


def asked(data: ReportData) -> Html:
    """Return the section of the workload and the search."""
    facts = facts_list(data.workload)
    found = facts_list(_search(data.search)) if data.search else Html("")
    return section("asked", "What was asked", tag("div", facts, found, class_="pair"))


def facts_list(facts: Sequence[tuple[str, str]]) -> Html:
    """Return names with their values, one a line."""
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag("dl", *rows, class_="facts")


def _search(search: Search) -> tuple[tuple[str, str], ...]:
    took = () if search.seconds is None else (("Time", f"{search.seconds:.2f} s"),)
    left_out = ", ".join(
        f"{count:,} {REASONS.get(why, why)}" for why, count in search.infeasible.items() if count
    )
    return (
        ("Search", f"{search.method}, {search.found}"),
        ("Space", f"{search.space_size:,} combinations"),
        ("Evaluated", f"{search.evaluations:,}"),
        ("Left out", left_out or "none"),
        *took,
    )


def again(commands: Sequence[tuple[str, str]]) -> Html:
    """Return the commands that make this page, its plan and its trace again, by purpose."""
    if not commands:
        return Html("")
    parts = [
        join(tag("p", what), tag("pre", tag("code", command), tabindex="0"))
        for what, command in commands
    ]
    return section("again", "Do it again", *parts)
