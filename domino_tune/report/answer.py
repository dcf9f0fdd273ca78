"""The top of the page: one sentence, the main numbers, and three bars to compare."""

from __future__ import annotations

from domino_tune.report.data import Numbers, ReportData, Shown
from domino_tune.report.markup import Html, join, tag
from domino_tune.report.names import (
    STRATEGY_NAMES,
    ms_text,
    ns_as_ms,
    percent_text,
    plan_text,
    slices_text,
)

EVEN = 1.005
"""A smaller speedup is no reason to change the plan."""


def answer(data: ReportData) -> Html:
    """Return the header of the page."""
    return tag(
        "header",
        tag("p", data.title, class_="eyebrow"),
        tag("h1", *_sentence(data)),
        *((tag("p", data.verdict.text, class_="lead verdict"),) if data.verdict else ()),
        tag("p", _reason(data), class_="lead"),
        *((tag("p", data.tie, class_="note"),) if data.tie else ()),
        _figures(data),
        _bars(data),
        *(tag("p", tag("strong", "Mind: "), line, class_="warn") for line in data.numbers.warnings),
        id="answer",
    )


def _sentence(data: ReportData) -> tuple[str, ...]:
    numbers, plan = data.numbers, data.chosen.plan
    if plan.strategy != "domino":
        name = STRATEGY_NAMES[plan.strategy]
        return (f"{name} takes ", tag("em", f"{ms_text(numbers.iteration_ms)} ms"), " an iteration")
    if numbers.speedup < EVEN:
        verdict = "no faster than" if numbers.speedup > 2 - EVEN else "slower than"
        return (f"Slicing does not pay here: {slices_text(plan)} are {verdict} Megatron-LM",)
    faster = tag("em", f"{numbers.speedup:.2f}× faster")
    verb = "Cut into" if data.search else "With"
    return (f"{verb} {slices_text(plan)}, an iteration is ", faster)


def _reason(data: ReportData) -> str:
    plan, here = data.chosen.plan, data.chosen.timeline.breakdown
    if plan.strategy != "domino":
        return f"That is {plan_text(plan)}."
    hidden = percent_text(here.hidden_comm_fraction)
    before = data.baseline.timeline.breakdown.hidden_comm_fraction
    return (
        f"{plan_text(plan).capitalize()}. {hidden} of its communication runs behind computation; "
        f"Megatron-LM hides {percent_text(before)}."
    )


def _figures(data: ReportData) -> Html:
    numbers, here = data.numbers, data.chosen.timeline.breakdown
    items = [
        _figure("Iteration", ms_text(numbers.iteration_ms), "ms", _span(numbers)),
        _figure("Speedup", f"{numbers.speedup:.2f}", "×", _possible(numbers)),
        _figure(
            "Tokens a second a GPU", f"{numbers.tokens_per_second_per_gpu:,.0f}", "",
            _utilization(numbers),
        ),
        _figure(
            "Exposed communication", ns_as_ms(here.exposed_comm_ns), "ms",
            f"of {ns_as_ms(here.comm_ns)} ms in all",
        ),
        _figure("Peak memory", f"{numbers.peak_memory_gib:.1f}", "GiB", "a GPU, predicted"),
        *_clock(numbers),
        _figure("Confidence", numbers.confidence, "", _assumed(numbers), level=numbers.confidence),
    ]  # fmt: skip
    return tag("dl", *items, class_="figures")


def _clock(numbers: Numbers) -> tuple[Html, ...]:
    if numbers.clock_mhz is None:
        return ()
    note = f"{numbers.power_w:,.0f} W a GPU; Megatron-LM {numbers.baseline_clock_mhz:,} MHz"
    return (_figure("Clock", f"{numbers.clock_mhz:,}", "MHz", note),)


def _figure(name: str, value: str, unit: str, note: str, *, level: str = "") -> Html:
    big = tag("span", value, class_=f"big {level}".strip())
    small = tag("span", unit, class_="unit") if unit else ""
    return tag("div", tag("dt", name), tag("dd", big, small), tag("dd", note, class_="note"))


def _span(numbers: Numbers) -> str:
    return f"{ms_text(numbers.low_ms)} – {ms_text(numbers.high_ms)} ms likely"


def _assumed(numbers: Numbers) -> str:
    share = sum(numbers.shares.get(kind, 0.0) for kind in ("assumed", "extrapolated"))
    return (
        f"{percent_text(round(share, 2))} of the time is assumed" if share else "nothing is assumed"
    )


def _utilization(numbers: Numbers) -> str:
    rate = f"{numbers.tflops_per_gpu:,.0f} model TFLOP/s"
    return rate if numbers.mfu is None else f"{rate}, MFU {percent_text(numbers.mfu)}"


def _possible(numbers: Numbers) -> str:
    if not numbers.no_comm_ms:
        return "over Megatron-LM"
    return f"{numbers.baseline_ms / numbers.no_comm_ms:.2f}× if communication were free"


def _bars(data: ReportData) -> Html:
    """Return a bar for each iteration, on one scale: exposed communication and the rest."""
    longest = max(item.timeline.makespan_ns for item in (data.baseline, data.chosen, data.bound))
    rows = [
        _bar(item, longest or 1, role)
        for item, role in ((data.baseline, ""), (data.chosen, "chosen"), (data.bound, "bound"))
    ]
    return tag("div", *rows, class_="totals")


def _bar(item: Shown, longest: int, role: str) -> Html:
    parts = item.timeline.breakdown
    busy = parts.makespan_ns - parts.exposed_comm_ns
    pieces = [
        tag("i", "", class_="busy", style=f"width:{100 * busy / longest:.3f}%"),
        tag("i", "", class_="exposed", style=f"width:{100 * parts.exposed_comm_ns / longest:.3f}%"),
    ]
    name = STRATEGY_NAMES[item.plan.strategy]
    note = "exposed communication in red" if not role else ""
    return tag(
        "div",
        tag("span", name, class_="name"),
        tag("span", *pieces, class_="track", title=note or None),
        tag("span", f"{ns_as_ms(parts.makespan_ns)} ms", class_="value"),
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
