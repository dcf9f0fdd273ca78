"""The page of a sweep over numbers of GPUs: tokens/s/GPU with and without Domino."""

from __future__ import annotations

from domino_tune.report.about import facts_list
from domino_tune.report.answer import masthead
from domino_tune.report.frontier import layout_name
from domino_tune.report.markup import Html, section, table, tag
from domino_tune.report.names import gib_text, ms_text, percent_text, times_text
from domino_tune.report.plot import Axis, plot_figure
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
