"""Top and end of the page: the answer and its question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domino_tune.report import (
    STRATEGY_NAMES,
    Html,
    change_label,
    gib_text,
    join,
    ms_text,
    percent_text,
    plot_figure,
    section,
    tag,
)
from domino_tune.report.data import ReportData
from domino_tune.report.layouts import layout_words
from domino_tune.report.plans import chances, leads, winner
from domino_tune.results.shown import plan_words, slices_words
from domino_tune.results.simulate import BASELINE, Simulated
from domino_tune.results.tune import Tuned, found_words
from simulator.usable import percent

EVEN = 1.005
"""A smaller speedup is no reason to change the plan."""


def answer(data: ReportData) -> Html:
    """Return the header of the page."""
    return tag(
        "header",
        tag("p", data.title, class_="eyebrow"),
        tag("h1", *_headline(data)),
        *_verdict(data),
        tag("p", _reason(data), class_="lead reason"),
        *((tag("p", data.tie, class_="note"),) if data.tie else ()),
        _figures(data),
        _bars(data),
        *(tag("p", tag("strong", "Mind: "), line, class_="warn") for line in data.result.warnings),
        id="answer",
    )


def _headline(data: ReportData) -> tuple[str, ...]:
    """Return the best layout where layouts were searched, else the winner of the contest, else how
    fast the plan is."""
    if data.layouts:
        best = data.layouts.layouts[0]
        return ("The best layout is ", tag("em", layout_words(best), class_="long"))
    if data.result.verdict and len(data.result.verdict.contestants) > 1:
        return winner(data.result.verdict)
    return _sentence(data)


def _verdict(data: ReportData) -> tuple[Html, ...]:
    """Return all chances in words; where layouts were searched, with the winner."""
    if data.result.verdict is None:
        return ()
    above = leads(data.result.verdict) if data.layouts else ""
    return (tag("p", above, chances(data.result.verdict), class_="lead verdict"),)


def _sentence(data: ReportData) -> tuple[str, ...]:
    result, plan = data.result, data.chosen.plan
    if plan.strategy != "domino":
        name = STRATEGY_NAMES[plan.strategy]
        return (f"{name} takes ", tag("em", f"{ms_text(result.iteration_ms)} ms"), " an iteration")
    if result.speedup < EVEN:
        verdict = "no faster than" if result.speedup > 2 - EVEN else "slower than"
        return (f"Slicing does not pay here: {slices_words(plan)} are {verdict} Megatron-LM",)
    faster = tag("em", f"{result.speedup:.2f}× faster")
    verb = "Cut into" if data.search else "With"
    return (f"{verb} {slices_words(plan)}, an iteration is ", faster)


def _reason(data: ReportData) -> str:
    plan, here = data.chosen.plan, data.chosen.timeline.breakdown
    if plan.strategy != "domino":
        text = plan_words(plan)
        return f"{text[:1].upper()}{text[1:]}."
    hidden = percent_text(here.hidden_comm_fraction)
    before = data.baseline.timeline.breakdown.hidden_comm_fraction
    text = plan_words(plan)
    named = (
        f"The rest of this page is about Domino's best cut, {text}."
        if _another_wins(data) else f"{text.capitalize()}."
    )  # fmt: skip
    return (
        f"{named} {hidden} of its communication runs behind computation; "
        f"Megatron-LM hides {percent_text(before)}."
    )


def _another_wins(data: ReportData) -> bool:
    """Return whether the headline names another strategy than the plan's."""
    leader = data.result.verdict.leader if data.result.verdict else None
    return leader is not None and leader.plan.strategy != data.chosen.plan.strategy


def _figures(data: ReportData) -> Html:
    result = data.result
    items = [
        _figure("Iteration", ms_text(result.iteration_ms), "ms",
                f"Megatron-LM {ms_text(result.baseline_ms)} ms"),
        _figure("Speedup", f"{result.speedup:.2f}×", "", _possible(result)),
        _figure(
            "Tokens/s/GPU", f"{result.tokens_per_second_per_gpu:,.0f}", "",
            _utilization(result),
        ),
        _figure(
            "Exposed", ms_text(result.exposed_comm_ms), "ms",
            f"of {ms_text(result.comm_ms)} ms communication",
        ),
        _figure("Peak memory", gib_text(result.peak_memory_gib), "GiB", _capacity(data)),
        *_clock(result),
        _figure("Confidence", result.confidence, "", _assumed(result), level=result.confidence),
    ]  # fmt: skip
    return tag("dl", *items, class_="figures")


def _clock(result: Simulated) -> tuple[Html, ...]:
    if result.clock_mhz is None:
        return ()
    note = f"{result.power_w:,.0f} W a GPU; Megatron-LM {result.variants[BASELINE].clock_mhz:,} MHz"
    return (_figure("Clock", f"{result.clock_mhz:,}", "MHz", note),)


def _figure(name: str, value: str, unit: str, note: str, *, level: str = "") -> Html:
    big = tag("span", value, class_=f"big {level}".strip())
    small = tag("span", unit, class_="unit") if unit else ""
    return tag("div", tag("dt", name), tag("dd", big, small), tag("dd", note, class_="note"))


def _capacity(data: ReportData) -> str:
    usable, chance = data.result.usable_memory, data.result.fits_chance
    return f"of {gib_text(usable.usable_gib)} usable; fits: {percent(chance)}"


def _assumed(result: Simulated) -> str:
    share = sum(result.confidence_shares.get(kind, 0.0) for kind in ("assumed", "extrapolated"))
    return (
        f"{percent_text(round(share, 2))} of the time is assumed" if share else "nothing is assumed"
    )


def _utilization(result: Simulated) -> str:
    rate = f"{result.tflops_per_gpu:,.0f} model TFLOP/s"
    return rate if result.mfu is None else f"{rate}, MFU {percent_text(result.mfu)}"


def _possible(result: Simulated) -> str:
    if not result.no_comm_ms:
        return "over Megatron-LM"
    return f"{result.baseline_ms / result.no_comm_ms:.2f}× if communication were free"


def _bars(data: ReportData) -> Html:
    """Return a bar for each iteration, on one scale: exposed communication and the rest."""
    result = data.result
    rows = (
        ("", data.baseline, result.baseline_ms, result.variants[BASELINE].exposed_comm_ms),
        ("chosen", data.chosen, result.iteration_ms, result.exposed_comm_ms),
        ("bound", data.bound, result.no_comm_ms, 0.0),
    )
    longest = max(time for _, _, time, _ in rows) or 1.0
    bars = [
        _bar(STRATEGY_NAMES[item.plan.strategy], time, exposed, longest, role)
        for role, item, time, exposed in rows
    ]
    key = tag("p", tag("i", "", class_="swatch exposed"), "communication that nothing hides",
              class_="note")  # fmt: skip
    return join(tag("div", *bars, class_="totals"), key)


def _bar(name: str, time_ms: float, exposed_ms: float, longest_ms: float, role: str) -> Html:
    shares = (("busy", time_ms - exposed_ms), ("exposed", exposed_ms))
    pieces = [
        tag("i", "", class_=kind, style=f"width:{100 * value / longest_ms:.3f}%")
        for kind, value in shares
    ]
    return tag(
        "div",
        tag("span", name, class_="name"),
        tag("span", *pieces, class_="track"),
        tag("span", f"{ms_text(time_ms)} ms", class_="value"),
        class_=f"total {role}".strip(),
    )


def masthead(profile: str) -> Html:
    """Return the first line of the page: the program and the profile."""
    return tag(
        "nav",
        tag("strong", "domino_tune"),
        tag("span", join("predicted from profile ", tag("code", profile))),
        class_="mast",
    )


# The end of the page ------------------------------------------------------------------------------
# The sweeps, the request, the search, and the commands.

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


def _search(search: Tuned) -> tuple[tuple[str, str], ...]:
    took = (("Time", f"{search.seconds:.2f} s"),) if search.seconds else ()
    left_out = ", ".join(
        f"{count:,} {REASONS.get(why, why)}" for why, count in search.infeasible.items() if count
    )
    return (
        ("Search", f"{search.search}, {found_words(search)}"),
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
