"""Sections on plans: strategies, the map of cuts, and what makes another plan the best."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from domino_tune.report import (
    STRATEGY_NAMES,
    TIE_WORDS,
    Html,
    change_label,
    gib_text,
    join,
    ms_text,
    percent_text,
    plan_key,
    plan_name,
    section,
    table,
    tag,
    tie_mark,
    ties,
)
from domino_tune.report.data import ReportData, Sensitivity
from domino_tune.report.layouts import ticks_around
from domino_tune.results.shown import plan_words
from domino_tune.results.simulate import CLEAR, Contestant, Simulated, Verdict, fits_words
from domino_tune.results.tune import ContentionPoint, GridCell, TrialResult
from simulator.lookup import Provenance

MARGIN: Final = 0.02
"""Room on either side of the axis, in speed-up."""
FAMILY_WORDS: Final = {
    "gemm_forward": "forward GEMMs", "gemm_dgrad": "dgrad GEMMs", "gemm_wgrad": "wgrad GEMMs",
    "attention": "attention", "pointwise": "memory-bound ops", "collective": "collectives",
    "peer_copy": "copies between GPUs", "tile_fused": "tile-fused kernels",
    "collective_between_nodes": "collectives between nodes",
    "contention": "how much communication slows compute",
    "contention_of_collectives": "how much compute slows communication",
    "contention_of_links": "how much groups that share links slow each other",
    "launch": "launches", "power": "the power of ops, and so the clock",
    "hosts": "how unequal CPU hosts are",
}  # fmt: skip


def winner(found: Verdict) -> tuple[str, ...]:
    """Return which strategy is most often the fastest, by how much, and with what chance, as the
    parts of a sentence without its full stop."""
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
    about something else."""
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
    found = data.result.verdict
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


# Heat map of the best iteration time by row and column slices, and a table of plans ---------------

LISTED: Final = 12
STRONGEST = 72
"""Per cent of full colour of the best (and the worst) cell; text on it stays readable."""


def heat_map(data: ReportData) -> Html:
    """Return the section of the page; empty without cells and plans."""
    found, baseline_ms = data.search, data.result.baseline_ms
    if found is None:
        return Html("")
    parts = []
    if found.grid:
        note = tag("p", data.heat_note, class_="note") if data.heat_note else ""
        parts.append(tag("div", _grid(found.grid, baseline_ms), note))
    if found.trials:
        parts.append(tag("div", _plans(found.trials, baseline_ms)))
    lead = _cuts_lead(found.grid, baseline_ms)
    return section("cuts", "Every way to cut it", tag("div", *parts, class_="pair"), lead=lead)


def _cuts_lead(grid: Sequence[GridCell], baseline_ms: float) -> str:
    times = [cell.iteration_ms for cell in grid if cell.iteration_ms is not None]
    if not times:
        return ""
    faster = sum(time < baseline_ms for time in times)
    return (
        f"{faster} of {len(times)} cuts beat Megatron-LM's {ms_text(baseline_ms)} ms; the slowest "
        f"takes {ms_text(max(times))} ms."
    )


def _grid(grid: Sequence[GridCell], baseline_ms: float) -> Html:
    cells = {(cell.row_slices, cell.col_slices): cell for cell in grid}
    rows = sorted({cell.row_slices for cell in grid})
    columns = sorted({cell.col_slices for cell in grid})
    times = [cell.iteration_ms for cell in grid if cell.iteration_ms is not None]
    best, worst = min(times, default=0.0), max(times, default=0.0)
    head = tag(
        "tr",
        tag("th", "rows ↓ columns →", scope="col", class_="corner"),
        *(tag("th", str(column), scope="col") for column in columns),
    )
    body = [
        tag(
            "tr",
            tag("th", str(row), scope="row"),
            *(_cell(cells.get((row, column)), best, worst, baseline_ms) for column in columns),
        )
        for row in rows
    ]
    drawn = tag(
        "table",
        tag("caption", "Iteration in ms by row and column slices; green beats Megatron-LM"),
        tag("thead", head), tag("tbody", *body), class_="heat",
    )  # fmt: skip
    return tag(
        "div", drawn, class_="scroll", tabindex="0", role="region", aria_label="Heat map of cuts"
    )


def _cell(cell: GridCell | None, best: float, worst: float, baseline: float) -> Html:
    if cell is None or cell.iteration_ms is None:
        reason = (cell and cell.reason) or "not feasible, or not tried"
        return tag("td", "–", class_="none", title=reason)
    time = cell.iteration_ms
    faster = time < baseline
    edge = best if faster else max(worst, baseline)
    share = abs(baseline - time) / abs(baseline - edge) if edge != baseline else 0.0
    kind = ("good" if faster else "bad") + (" best" if time == best else "")
    gain = f"{baseline / time:.2f}×" if time else ""
    return tag(
        "td", ms_text(time), tag("small", gain), class_=kind,
        title=f"{cell.plan.label}: {plan_words(cell.plan)}" if cell.plan else None,
        style=f"--v:{8 + (STRONGEST - 8) * min(1.0, share):.0f}%",
    )  # fmt: skip


def _plans(trials: Sequence[TrialResult], baseline_ms: float) -> Html:
    many = len({trial.micro_batch_size for trial in trials}) > 1
    ranked = sorted(trials, key=lambda trial: trial.iteration_ms)[:LISTED]
    fastest = ranked[0].iteration_ms
    several = sum(ties(one.iteration_ms, fastest) for one in ranked) > 1
    rows = [
        _plan_row(one, baseline_ms, several and ties(one.iteration_ms, fastest), many)
        for one in ranked
    ]
    note = tag("p", TIE_WORDS, class_="note") if several else ""
    return join(table(("Plan", "ms", "speedup", "GiB"), rows, class_="plans"), note, plan_key())


def _plan_row(one: TrialResult, baseline: float, tied: bool, many: bool) -> tuple[str, ...]:
    gain = f"{baseline / one.iteration_ms:.2f}×" if one.iteration_ms else "–"
    batch = f", micro-batch {one.micro_batch_size}" if many else ""
    name = join(plan_name(one.plan), batch, tie_mark(tied))
    return name, ms_text(one.iteration_ms), gain, gib_text(one.peak_memory_gib)


# Confidence ---------------------------------------------------------------------------------------
# The sources of the times, and what changes the best plan.

SOURCE_WORDS: Final = {
    "measured": "measured at this very shape",
    "interpolated": "interpolated between measurements",
    "fitted": "from a fit to measurements",
    "extrapolated": "outside the measured range",
    "assumed": "assumed, not measured on this machine",
}


def how_sure(data: ReportData) -> Html:
    """Return the section of the page."""
    result, contention = data.result, data.search and data.search.contention
    return section(
        "confidence",
        "How sure is this",
        _shares(result.confidence_shares),
        _crossovers(contention.crossovers if contention else ()),
        _tornado(data.sensitivity, result.iteration_ms),
        _sources(data.sources),
        lead=_confidence_lead(result),
    )


def _confidence_lead(result: Simulated) -> str:
    ends = (result.interval_ms.low, result.interval_ms.high)
    low, high = (end / (result.iteration_ms or 1) - 1 for end in ends)
    uncertain = sum(result.confidence_shares.get(kind, 0.0) for kind in ("assumed", "extrapolated"))
    level = (
        f"Confidence is {result.confidence}: on 80 % of the machines drawn from the profile's "
        f"errors the time is off by {low:+.0%} to {high:+.0%}"
    )
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


def _crossovers(crossovers: Sequence[ContentionPoint]) -> Html:
    if not crossovers:
        return Html("")
    rows = [
        (
            f"from {one.factor:.3g}×", plan_name(one.winner), ms_text(one.winner_ms),
            ms_text(one.baseline_ms), f"{one.baseline_ms / one.winner_ms:.2f}×",
        )
        for one in crossovers
    ]  # fmt: skip
    head = ("Contention", "best plan", "ms", "Megatron-LM", "speedup")
    return join(
        tag("h3", "At which contention the winner changes"),
        tag("p", crossover_sentence(crossovers), class_="note"),
        table(head, rows, class_="crossovers"),
    )


def crossover_sentence(crossovers: Sequence[ContentionPoint]) -> str:
    """Return up to which contention the winner at ×1 stays the best plan."""
    until_now = [one for one in crossovers if one.factor <= 1]
    present = max(until_now, key=lambda one: one.factor, default=crossovers[0])
    later = next((one for one in crossovers if one.factor > max(1.0, present.factor)), None)
    now, meaning = present.winner.label, "1× is the slowdown that the profile states, 0× none."
    if later is None:
        return f"{now} stays the best plan over the whole range looked at. {meaning}"
    return f"{now} is best up to {later.factor:.3g}×, then {later.winner.label}. {meaning}"


def _tornado(items: Sequence[Sensitivity], here: float) -> Html:
    """Return bars from the present time to the time after each change, the widest first."""
    if not items:
        return Html("")
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


def _sources(sources: Mapping[str, Provenance]) -> Html:
    if not sources:
        return Html("")
    rows = [
        (
            name, item.kind, "–" if item.error is None else percent_text(item.error),
            tag("span", item.source, tag("small", item.note) if item.note else ""),
        )
        for name, item in sources.items()
    ]  # fmt: skip
    return join(
        tag("h3", "Where the profile comes from"),
        table(("Section", "kind", "error", "source"), rows, class_="sources"),
    )
