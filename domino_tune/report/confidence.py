"""How sure: the interval, where the numbers come from, and what would change the winner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from domino_tune.report.data import Numbers, ReportData, Sensitivity, Source, Turn
from domino_tune.report.markup import Html, join, section, table, tag
from domino_tune.report.names import change_label, ms_text, percent_text

SOURCE_WORDS: Final = {
    "measured": "measured at this very shape",
    "interpolated": "interpolated between measurements",
    "fitted": "from a fit to measurements",
    "extrapolated": "outside the measured range",
    "assumed": "assumed, not measured on this machine",
}


def how_sure(data: ReportData) -> Html:
    """The section of the page."""
    numbers = data.numbers
    return section(
        "sure",
        "How sure is this",
        _interval(numbers),
        _shares(numbers.shares),
        _turns(data.turns),
        _tornado(data.sensitivity, numbers),
        _sources(data.sources),
        lead=_lead(numbers),
    )


def _lead(numbers: Numbers) -> str:
    half = (numbers.high_ms - numbers.low_ms) / 2
    about = percent_text(half / numbers.iteration_ms) if numbers.iteration_ms else "0 %"
    unsure = sum(numbers.shares.get(kind, 0.0) for kind in ("assumed", "extrapolated"))
    said = f"Confidence is {numbers.confidence}: the time is good to about ± {about}"
    if unsure:
        share = percent_text(round(unsure, 2))
        return f"{said}, and {share} of it rests on assumptions or extrapolation."
    return f"{said}."


def _interval(numbers: Numbers) -> Html:
    """The likely range on an axis, with the baseline and the bound on it."""
    low = min(numbers.low_ms, numbers.no_comm_ms, numbers.iteration_ms)
    high = max(numbers.high_ms, numbers.baseline_ms, numbers.iteration_ms)
    span = (high - low) or 1.0

    def at(value: float) -> str:
        return f"{4 + 92 * (value - low) / span:.2f}%"

    width = f"{92 * (numbers.high_ms - numbers.low_ms) / span:.2f}%"
    marks = [
        tag("i", "", class_="band", style=f"left:{at(numbers.low_ms)};width:{width}"),
        _mark("bound", "no communication", numbers.no_comm_ms, at),
        _mark("base", "Megatron-LM", numbers.baseline_ms, at),
        _mark("point", "this plan", numbers.iteration_ms, at),
    ]
    said = (
        f"{ms_text(numbers.iteration_ms)} ms, likely between {ms_text(numbers.low_ms)} and "
        f"{ms_text(numbers.high_ms)} ms"
    )
    return tag("div", *marks, class_="interval", role="img", aria_label=said)


def _mark(kind: str, name: str, value: float, at: Callable[[float], str]) -> Html:
    label = tag("span", name, tag("br"), tag("b", f"{ms_text(value)} ms"))
    return tag("i", label, class_=f"mark {kind}", style=f"left:{at(value)}")


def _shares(shares: dict[str, float]) -> Html:
    """Share of the critical path by source of its times."""
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


def _turns(turns: Sequence[Turn]) -> Html:
    if not turns:
        return Html("")
    rows = [
        (
            f"from ×{turn.factor:.3g}", turn.winner, ms_text(turn.iteration_ms),
            ms_text(turn.baseline_ms), f"{turn.baseline_ms / turn.iteration_ms:.2f}×",
        )
        for turn in turns
    ]  # fmt: skip
    head = ("Contention", "best plan", "ms", "Megatron-LM", "speedup")
    return join(
        tag("h3", "At which contention the winner changes"),
        tag("p", turn_sentence(turns), class_="note"),
        table(head, rows, class_="turns"),
    )


def turn_sentence(turns: Sequence[Turn]) -> str:
    """What the turns say about today's winner, the one at ×1."""
    today = max((turn for turn in turns if turn.factor <= 1), key=lambda turn: turn.factor,
                default=turns[0])  # fmt: skip
    later = next((turn for turn in turns if turn.factor > max(1.0, today.factor)), None)
    meaning = "×1 is the slow-down that the profile states, ×0 none."
    if later is None:
        return f"{today.winner} stays the best plan over the whole range looked at. {meaning}"
    return f"{today.winner} is best up to ×{later.factor:.3g}, then {later.winner}. {meaning}"


def _tornado(items: Sequence[Sensitivity], numbers: Numbers) -> Html:
    """Bars from today's time to the time after each change, the widest first."""
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
        tag("div", *rows, class_="tornado"),
    )


def _tornado_row(item: Sensitivity, here: float, widest: float) -> Html:
    bars = [
        _tornado_bar(value, change, here, widest)
        for value, change in ((item.low_ms, item.low), (item.high_ms, item.high))
    ]
    name = tag("span", change_label(item.key), class_="name")
    low, high = (change.replace("x", "×") for change in (item.low, item.high))
    said = tag("span", f"{low} → {ms_text(item.low_ms)} ms · {high} → "
               f"{ms_text(item.high_ms)} ms", class_="value")  # fmt: skip
    return tag("div", name, tag("span", *bars, class_="track"), said, class_="change")


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
