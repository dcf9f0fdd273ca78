"""The section on layouts: the best ones as bars, and the price of using less memory as points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from domino_tune.report.data import ReportData
from domino_tune.report.frontier import frontier_figure, layout_name, layout_words
from domino_tune.report.markup import Html, join, section, table, tag
from domino_tune.report.names import gib_text, ms_text, percent_text, times_text
from domino_tune.report.plan_names import plan_key
from domino_tune.report.ties import TIE_WORDS, ties
from domino_tune.results.layouts import LayoutResult, Layouts
from domino_tune.results.shown import share
from simulator.usable import percent

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
    narrow screens.
    """
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
    does.
    """
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
