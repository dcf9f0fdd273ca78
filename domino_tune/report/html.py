"""The page: one self-contained HTML file, readable without a network."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from domino_tune.report.about import again, asked, sweeps
from domino_tune.report.answer import answer, masthead
from domino_tune.report.breakdown import where_time_goes
from domino_tune.report.confidence import how_sure
from domino_tune.report.data import ReportData
from domino_tune.report.heat import heat_map
from domino_tune.report.lanes import MAX_OPS, drawn_ops, lanes_json
from domino_tune.report.layouts import layouts_picture
from domino_tune.report.markup import Html, section, tag, text
from domino_tune.report.memory import where_memory_goes
from domino_tune.report.pipeline import pipeline_picture
from domino_tune.report.scale import scale_parts
from domino_tune.report.verdict import verdict_part
from domino_tune.results.layouts import ScaleResult
from domino_tune.store.files import write_whole

SCRIPTS: Final = ("lanes_data.js", "lanes_view.js", "lanes.js")
"""Parts of one script with one scope: the body of a function of `data`, `host` and `legendBox` that
draws the views and returns a function that removes them."""


def write_report(path: str | Path, data: ReportData) -> None:
    """Write the page of ``data`` to ``path``, whole or not at all.

    Equal data give equal bytes. Raise InputError when ``path`` cannot be written.
    """
    write_whole(path, report_html(data))


def report_html(data: ReportData) -> str:
    """Return the page as text."""
    body = (
        masthead(data.profile), answer(data), verdict_part(data), layouts_picture(data),
        pipeline_picture(data), _lanes(data), heat_map(data), where_time_goes(data),
        where_memory_goes(data), how_sure(data), sweeps(data), asked(data), again(data.commands),
    )  # fmt: skip
    scripts = string.Template(static("lanes.html")).substitute(
        lanes=lanes_json(data), script=lanes_script()
    )
    return _page(data.title, body, scripts)


def write_scale(path: str | Path, result: ScaleResult, commands: Sequence[tuple[str, str]]) -> None:
    """Write the page of a sweep over numbers of GPUs; ``commands`` as in ReportData.

    Raise InputError when ``path`` cannot be written.
    """
    write_whole(path, _page(result.asked, [*scale_parts(result), again(commands)]))


def _page(title: str, body: Iterable[Html], scripts: str = "") -> str:
    whole = "\n".join(part for part in body if part)
    if " data-plot=" in whole:
        scripts += string.Template(static("plots.html")).substitute(script=static("plot.js"))
    return string.Template(static("page.html")).substitute(
        title=text(title), style=static("page.css"), body=whole, scripts=scripts
    )


@cache
def static(name: str) -> str:
    """Return the text of a file of the ``static`` folder."""
    return (resources.files("domino_tune.report") / "static" / name).read_text("utf-8")


def lanes_script() -> str:
    """Return the body of the function that draws lanes; the caller wraps it (see SCRIPTS)."""
    return "\n".join(static(name) for name in SCRIPTS)


def _lanes(data: ReportData) -> Html:
    shown = (data.baseline, data.chosen, data.bound)
    longest = max(shown, key=lambda item: len(item.timeline.ops))
    total, drawn = len(longest.timeline.ops), len(drawn_ops(longest.timeline))
    cut = tag(
        "p",
        f"The longest timeline has {total:,} operations. Above {MAX_OPS:,}, this page draws the "
        f"first, middle and last layers only ({drawn:,} of them); the trace file holds all.",
        class_="note",
    )
    return section(
        "lanes",
        "One layer, side by side",
        tag("div", "", id="lanes-legend", class_="legend"),
        tag("div", "", id="lanes-views"),
        tag("noscript", tag("p", "The lanes need JavaScript; the tables below do not.")),
        cut if drawn < total else "",
        lead="First lane: computation. Below it: the collectives of each group, in the colour of "
        "their slice. Hatched red: computation stands still until one arrives.",
    )
