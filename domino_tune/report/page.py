"""The pages: one self-contained HTML file each, readable without a network."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Final

from domino_tune.report import (
    Axis,
    Html,
    gib_text,
    ms_text,
    percent_text,
    plot_figure,
    section,
    table,
    tag,
    text,
    times_text,
)
from domino_tune.report.answer import again, answer, asked, facts_list, masthead, sweeps
from domino_tune.report.breakdown import pipeline_picture, where_memory_goes, where_time_goes
from domino_tune.report.data import MAX_OPS, ReportData, drawn_ops, lanes_json
from domino_tune.report.layouts import layout_name, layouts_picture
from domino_tune.report.plans import heat_map, how_sure, verdict_part
from domino_tune.results.layouts import ScalePoint, ScaleResult
from domino_tune.results.shown import share
from simulator.usable import percent

EVEN = 1.0005
"""A smaller gain is called none."""
RATES = Axis("Tokens a second a GPU", "", 0)
GAINS = Axis("Gain of Domino", "%", 2)


def scale_parts(result: ScaleResult) -> list[Html]:
    """Return the parts of the page but the commands."""
    facts = (
        ("asked", result.asked),
        ("parameters", f"{result.model.parameters / 1e9:.2f} B"),
        ("profile id", result.profile.content_id),
        ("time", f"{result.seconds:.1f} s"),
    )
    return [
        masthead(result.profile.name),
        _header(result),
        section("scale", "With and without Domino", *_plots(result)),
        section("numbers", "The best layout at each number of GPUs", _table(result)),
        section("asked", "What was asked", facts_list(facts)),
    ]


def _header(result: ScaleResult) -> Html:
    warnings = [tag("p", tag("strong", "Mind: "), line, class_="warn") for line in result.alerts()]
    return tag(
        "header",
        tag("p", result.asked, class_="eyebrow"),
        tag("h1", *_sentence(result)),
        tag("p", "Every number of GPUs trains the same global batch (strong scaling). ",
            _gain_sentence(result), class_="lead"),
        *warnings,
        id="answer",
    )  # fmt: skip


def _sentence(result: ScaleResult) -> tuple[str, ...]:
    (first, layout), (last, _) = result.found[0], result.found[-1]
    if first is last or last.scaling_efficiency is None:
        rate = f"{layout.tokens_per_second_per_gpu:,.0f} tokens a second"
        return (f"Only {first.gpus:,} GPUs have a layout, and each trains ", tag("em", rate))
    kept = tag("em", percent_text(round(last.scaling_efficiency, 3)))
    return f"On {last.gpus:,} GPUs, each has ", kept, f" of its speed on {first.gpus:,}"


def _gain_sentence(result: ScaleResult) -> str:
    gains = [(layout.domino_gain or 1.0, point.gpus) for point, layout in result.found]
    gain, gpus = max(gains, key=lambda item: (item[0], -item[1]))
    if gain < EVEN:
        return "At none of them does Domino add to the best layout."
    return (
        f"Over the best layout without it, Domino adds at most {percent_text(gain - 1)}, "
        f"on {gpus:,} GPUs."
    )


def _plots(result: ScaleResult) -> list[Html]:
    xs = [f"{point.gpus:,}" for point in result.points]
    rates = {
        "best without Domino": [_rate_without(point) for point in result.points],
        "best layout": [_rate(point) for point in result.points],
    }
    plots = [plot_figure("Tokens a second a GPU, by GPUs", "GPUs", xs, rates, RATES)]
    if any((layout.domino_gain or 1.0) >= EVEN for _, layout in result.found):
        gains = {"gain of Domino": [_gain_per_cent(point) for point in result.points]}
        caption = "What Domino adds to the best layout, by GPUs"
        plots.append(plot_figure(caption, "GPUs", xs, gains, GAINS))
    return plots


def _rate(point: ScalePoint) -> float | None:
    return point.layout.tokens_per_second_per_gpu if point.layout else None


def _rate_without(point: ScalePoint) -> float | None:
    one = point.best_without_domino
    return one.tokens_per_second_per_gpu if one else None


def _gain_per_cent(point: ScalePoint) -> float | None:
    gain = point.layout.domino_gain if point.layout else None
    return None if gain is None else 100 * (gain - 1)


def _table(result: ScaleResult) -> Html:
    head = (
        "GPUs", "layout", "tokens/s/GPU", "tokens/s", "MFU", "ms", "GiB", "fits", "gain",
        "efficiency",
    )  # fmt: skip
    return table(head, [_row(point) for point in result.points], class_="layouts points")


def _row(point: ScalePoint) -> tuple[str, ...]:
    one = point.layout
    if one is None or point.tokens_per_second is None:
        none = tag("span", "not possible", tag("small", point.error or ""))
        return (f"{point.gpus:,}", none, *["–"] * 8)
    return (
        f"{point.gpus:,}", layout_name(one),
        f"{one.tokens_per_second_per_gpu:,.0f}", f"{point.tokens_per_second:,.0f}",
        share(one.mfu), ms_text(one.iteration_ms), gib_text(one.peak_memory_gib),
        percent(one.fits_chance), times_text(one.domino_gain), share(point.scaling_efficiency),
    )  # fmt: skip


# The page -----------------------------------------------------------------------------------------
# One self-contained HTML file, readable without a network.

SCRIPTS: Final = ("lanes_data.js", "lanes_view.js", "lanes.js")
"""Parts of one script with one scope: the body of a function of `data`, `host` and `legendBox` that
draws the views and returns a function that removes them."""


def report_html(data: ReportData) -> str:
    """Return the page of ``data``; equal data give equal texts."""
    body = (
        masthead(data.result.profile.name), answer(data), verdict_part(data), layouts_picture(data),
        pipeline_picture(data), _lanes(data), heat_map(data), where_time_goes(data),
        where_memory_goes(data), how_sure(data), sweeps(data), asked(data), again(data.commands),
    )  # fmt: skip
    scripts = string.Template(static("lanes.html")).substitute(
        lanes=lanes_json(data), script=lanes_script()
    )
    return _page(data.title, body, scripts)


def scale_html(result: ScaleResult, commands: Sequence[tuple[str, str]]) -> str:
    """Return the page of a sweep over numbers of GPUs; ``commands`` as in ReportData."""
    return _page(result.asked, [*scale_parts(result), again(commands)])


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
