"""Confidence: the sources of the times, and what changes the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domino_tune.report.data import Crossover, Numbers, ReportData, Sensitivity, Source
from domino_tune.report.markup import Html, join, section, table, tag
from domino_tune.report.names import change_label, ms_text, percent_text
from domino_tune.report.plan_names import plan_name

SOURCE_WORDS: Final = {
    "measured": "measured at this very shape",
    "interpolated": "interpolated between measurements",
    "fitted": "from a fit to measurements",
    "extrapolated": "outside the measured range",
    "assumed": "assumed, not measured on this machine",
}


def how_sure(data: ReportData) -> Html:
    """Return the section of the page."""
    numbers = data.numbers
    return section(
        "confidence",
        "How sure is this",
        _shares(numbers.shares),
        _crossovers(data.crossovers),
        _tornado(data.sensitivity, numbers),
        _sources(data.sources),
        lead=_lead(numbers),
    )


def _lead(numbers: Numbers) -> str:
    half = (numbers.high_ms - numbers.low_ms) / 2
    about = percent_text(half / numbers.iteration_ms) if numbers.iteration_ms else "0 %"
    uncertain = sum(numbers.shares.get(kind, 0.0) for kind in ("assumed", "extrapolated"))
    level = f"Confidence is {numbers.confidence}: the time is good to about ± {about}"
    if uncertain:
        share = percent_text(round(uncertain, 2))
        return f"{level}, and {share} of it is assumed or extrapolated."
    return f"{level}."


def _shares(shares: dict[str, float]) -> Html:
    """Return the shares of the critical path by source of its times."""
    known = [(kind, shares[kind]) for kind in SOURCE_WORDS if shares.get(kind, 0.0) > 0]
    if not known:
        return Html("")
    bar = [
        tag("i", "", class_=f"source-{kind}", style=f"width:{100 * share:.2f}%")
        for kind, share in known
    ]
    legend = [
        tag("li", tag("i", "", class_=f"swatch source-{kind}"), tag("b", percent_text(share)),
            f" {SOURCE_WORDS[kind]}")
        for kind, share in known
    ]  # fmt: skip
    return join(
        tag("h3", "Where the iteration's time was looked up"),
        tag("div", *bar, class_="track shares", aria_hidden="true"),
        tag("ul", *legend, class_="legend"),
    )


def _crossovers(crossovers: Sequence[Crossover]) -> Html:
    if not crossovers:
        return Html("")
    rows = [
        (
            f"from {one.factor:.3g}×", plan_name(one.winner), ms_text(one.iteration_ms),
            ms_text(one.baseline_ms), f"{one.baseline_ms / one.iteration_ms:.2f}×",
        )
        for one in crossovers
    ]  # fmt: skip
    head = ("Contention", "best plan", "ms", "Megatron-LM", "speedup")
    return join(
        tag("h3", "At which contention the winner changes"),
        tag("p", crossover_sentence(crossovers), class_="note"),
        table(head, rows, class_="crossovers"),
    )


def crossover_sentence(crossovers: Sequence[Crossover]) -> str:
    """Return up to which contention the winner at ×1 stays the best plan."""
    until_now = [one for one in crossovers if one.factor <= 1]
    present = max(until_now, key=lambda one: one.factor, default=crossovers[0])
    later = next((one for one in crossovers if one.factor > max(1.0, present.factor)), None)
    now, meaning = present.winner.label, "1× is the slowdown that the profile states, 0× none."
    if later is None:
        return f"{now} stays the best plan over the whole range looked at. {meaning}"
    return f"{now} is best up to {later.factor:.3g}×, then {later.winner.label}. {meaning}"


def _tornado(items: Sequence[Sensitivity], numbers: Numbers) -> Html:
    """Return bars from the present time to the time after each change, the widest first."""
    if not items:
        return Html("")
    here = numbers.iteration_ms
    widest = max(max(abs(i.low_ms - here), abs(i.high_ms - here)) for i in items) or 1.0
    rows = [
        _tornado_row(item, here, widest)
        for item in sorted(items, key=lambda i: -abs(i.high_ms - i.low_ms))
    ]
    return join(
        tag("h3", "What this plan's time depends on"),
        tag(
            "p",
            f"Each fact of the machine at two other values: green is less than the plan's "
            f"{ms_text(here)} ms, red is more.",
            class_="note",
        ),
        tag("div", *rows, class_="tornado"),
    )


def _tornado_row(item: Sensitivity, here: float, widest: float) -> Html:
    bars = [
        _tornado_bar(value, change, here, widest)
        for value, change in ((item.low_ms, item.low), (item.high_ms, item.high))
    ]
    name = tag("span", change_label(item.key), class_="name")
    low, high = (change.replace("x", "×") for change in (item.low, item.high))
    times = tag("span", f"{low} → {ms_text(item.low_ms)} · {high} → "
                f"{ms_text(item.high_ms)} ms", class_="value")  # fmt: skip
    return tag("div", name, tag("span", *bars, class_="track"), times, class_="change")


def _tornado_bar(value: float, change: str, here: float, widest: float) -> Html:
    width = 50 * abs(value - here) / widest
    left = 50 - width if value < here else 50
    kind = "faster" if value < here else "slower"
    return tag("i", "", class_=kind, title=f"{change}: {ms_text(value)} ms",
               style=f"left:{left:.2f}%;width:{width:.2f}%")  # fmt: skip


def _sources(sources: Sequence[Source]) -> Html:
    if not sources:
        return Html("")
    rows = [
        (
            item.section, item.kind, "–" if item.error is None else percent_text(item.error),
            tag("span", item.source, tag("small", item.note) if item.note else ""),
        )
        for item in sources
    ]  # fmt: skip
    return join(
        tag("h3", "Where the profile comes from"),
        table(("Section", "kind", "error", "source"), rows, class_="sources"),
    )
