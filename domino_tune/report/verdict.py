"""Strategies: which one wins and with what chance, in words and as a section with their ranges."""

from __future__ import annotations

import re
from typing import Final

from domino_tune.report.data import ReportData
from domino_tune.report.frontier import ticks_around
from domino_tune.report.markup import Html, section, tag
from domino_tune.report.names import STRATEGY_NAMES, ms_text, percent_text
from domino_tune.results.shown import plan_words
from domino_tune.results.simulate import CLEAR, Contestant, Verdict, fits_words

MARGIN: Final = 0.02
"""Room on either side of the axis, in speed-up."""
FAMILY_WORDS: Final = {
    "gemm_forward": "forward GEMMs", "gemm_dgrad": "dgrad GEMMs", "gemm_wgrad": "wgrad GEMMs",
    "attention": "attention", "pointwise": "memory-bound ops", "collective": "collectives",
    "peer_copy": "copies between GPUs", "tile_fused": "tile-fused kernels",
    "collective_between_nodes": "collectives between nodes",
    "contention": "how much communication slows compute",
    "contention_of_collectives": "how much compute slows communication", "launch": "launches",
    "power": "the power of ops, and so the clock",
}  # fmt: skip


def winner(found: Verdict) -> tuple[str, ...]:
    """Return which strategy is most often the fastest, by how much, and with what chance, as the
    parts of a sentence without its full stop.
    """
    best, baseline = found.leader, found.contestants[0]
    if best is None:
        return ("No plan is sure enough to fit the memory",)
    clear, chance, name = best.chance >= CLEAR, _chance(best), _name(best)
    if best is baseline and clear:
        return f"Not here: {name} is ", tag("em", f"the fastest with a chance of {chance}")
    sure = f"; its chance to be the fastest is {chance}"
    if clear:
        sure = f", and the fastest with a chance of {chance}"
    if best is baseline:
        return (f"{name} leads{sure}",)
    if not baseline.recommended:
        not_sure = "is not sure to" if baseline.fits else "does not"
        return (
            f"{name} fits, {_name(baseline)} {not_sure}; it is the fastest with {chance}",
        )  # fmt: skip
    faster = tag("em", f"{best.speedup:.2f}× as fast")
    return f"{name} is ", faster, f" as {_name(baseline)}{sure}"


def chances(found: Verdict) -> str:
    """Return each strategy's chance to be the fastest, the best first, as a sentence."""
    ranked = sorted(
        found.contestants, key=lambda one: (-one.recommended, -one.chance, -one.speedup)
    )
    said = (f"{_name(one)} {_chance(one)}" for one in ranked)
    return f"Chance to be the fastest: {', '.join(said)}."


def leads(found: Verdict) -> str:
    """Return a sentence that names the leader, with a trailing space, for use below a headline
    about something else.
    """
    best, baseline = found.leader, found.contestants[0]
    if best is None:
        return "No plan is sure enough to fit the memory. "
    over = f", {best.speedup:.2f}× as fast as {_name(baseline)}"
    beside = best is not baseline and baseline.recommended
    return f"{_name(best)} leads there{over if beside else ''}. "


def _name(one: Contestant) -> str:
    return STRATEGY_NAMES[one.plan.strategy]


def _chance(one: Contestant) -> str:
    return percent_text(round(one.chance, 2)) if one.recommended else fits_words(one)


def verdict_part(data: ReportData) -> Html:
    """Return the section of the page, or nothing if strategies were not compared."""
    found = data.verdict
    if found is None or len(found.contestants) < 2:
        return Html("")
    return section("verdict", "Domino or not", _plot(found), lead=_lead(found))


def _lead(found: Verdict) -> str:
    worst = [
        f"{FAMILY_WORDS.get(family, family)} (± {percent_text(round(error, 3))})"
        for family, error in list(found.unsure.items())[:3]
    ]
    doubt = f" Most of the doubt comes from {', '.join(worst)}." if worst else ""
    return (
        f"{found.draws:,} machines were drawn from the errors of the profile, and all strategies "
        "played on each. A bar holds eight of ten draws; the chance to be fastest is the share of "
        f"draws in which nothing that is sure enough to fit is faster.{doubt}"
    )


def _plot(found: Verdict) -> Html:
    bounds = [1.0, *(value for one in found.contestants for value in (one.low, one.high))]
    low, high = min(bounds) - MARGIN, max(bounds) + MARGIN
    rows = [_row(one, low, high - low, one is found.leader) for one in found.contestants]
    head = tag(
        "div",
        *(
            tag("span", name, class_=where)
            for name, where in (
                ("Strategy", "who"),
                ("Speed-up over Megatron-LM: eight of ten draws", ""),
                ("as profiled", "value"),
                ("Chance to be fastest", "chance"),
            )
        ),
        class_="contest head",
    )
    return tag("div", head, *rows, _axis(bounds, low, high - low), class_="contests")


def _axis(bounds: list[float], low: float, span: float) -> Html:
    """Return a row with the speed-ups below the bars."""
    marks = [
        tag("span", f"{tick:.2f}×", style=f"left:{100 * (tick - low) / span:.2f}%")
        for tick in ticks_around(bounds)
        if low + 0.04 * span <= tick <= low + 0.96 * span  # a text at the edge would stick out
    ]
    axis = tag("span", *marks, class_="range axis")
    return tag("div", tag("span", ""), axis, class_="contest scale", aria_hidden="true")


def _row(one: Contestant, low: float, span: float, best: bool) -> Html:
    def at(value: float) -> str:
        return f"{100 * (value - low) / span:.2f}%"

    where = f"left:{at(one.low)};width:{100 * (one.high - one.low) / span:.2f}%"
    label = f"{one.speedup:.2f} times as fast, likely {one.low:.2f} to {one.high:.2f}"
    track = tag(
        "span",
        tag("i", "", class_="even", style=f"left:{at(1.0)}"),
        tag("i", "", class_="likely", style=where),
        tag("i", "", class_="middle", style=f"left:{at(one.speedup)}"),
        class_="range", role="img", aria_label=label,
    )  # fmt: skip
    return tag(
        "div",
        tag("span", tag("b", one.name), tag("small", *_flags_whole(one.runs_in)), class_="who",
            title=plan_words(one.plan)),
        track,
        tag("span", f"{one.speedup:.2f}×", tag("small", f"{one.low:.2f} – {one.high:.2f}, "
            f"{ms_text(one.iteration_ms)} ms"), class_="value"),
        tag("span", _chance(one),
            tag("small", "fastest", class_="narrow") if one.recommended else "", class_="chance"),
        class_="contest best" if best else "contest",
    )  # fmt: skip


def _flags_whole(said: str) -> list[str]:
    """Return the text in parts that keep each command-line option on one line."""
    return [
        tag("span", part, class_="whole") if part.startswith("--") else part
        for part in re.split(r"(--[\w-]+)", said)
    ]
