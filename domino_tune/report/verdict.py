"""The section on strategies: each one's speed-up with its range, and its chance to be fastest."""

from __future__ import annotations

from typing import Final

from domino_tune.report.data import ReportData
from domino_tune.report.markup import Html, section, tag
from domino_tune.report.names import ms_text, percent_text, plan_text
from domino_tune.results.verdict import Contestant, Verdict

MARGIN: Final = 0.02
"""Room on either side of the axis, in speed-up."""
FAMILY_WORDS: Final = {
    "gemm_forward": "forward GEMMs", "gemm_dgrad": "dgrad GEMMs", "gemm_wgrad": "wgrad GEMMs",
    "attention": "attention", "pointwise": "memory-bound ops", "collective": "collectives",
    "peer_copy": "copies between GPUs", "collective_between_nodes": "collectives between nodes",
    "contention": "how much communication slows compute",
    "contention_of_collectives": "how much compute slows communication", "launch": "launches",
    "power": "what ops draw, and so the clock",
}  # fmt: skip


def verdict_part(data: ReportData) -> Html:
    """Return the section of the page, or nothing where strategies were not compared."""
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
        "played on each. A bar holds eight of ten draws; “Fastest” is the share of draws in which "
        f"nothing that fits is faster.{doubt}"
    )


def _plot(found: Verdict) -> Html:
    low = min(one.low for one in found.contestants) - MARGIN
    high = max(one.high for one in found.contestants) + MARGIN
    rows = [_row(one, low, high - low, one is found.leader) for one in found.contestants]
    head = tag(
        "div",
        *(
            tag("span", name, class_=where)
            for name, where in (
                ("Strategy", "who"),
                ("Speed-up over Megatron-LM", ""),
                ("", "value"),
                ("Fastest", "chance"),
            )
        ),
        class_="contest head",
    )
    return tag("div", head, *rows, class_="contests")


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
    chance = percent_text(round(one.chance, 2)) if one.fits else "does not fit"
    return tag(
        "div",
        tag("span", tag("b", one.name), tag("small", one.runs_in), class_="who",
            title=plan_text(one.plan)),
        track,
        tag("span", f"{one.speedup:.2f}×", tag("small", f"{one.low:.2f} – {one.high:.2f}, "
            f"{ms_text(one.iteration_ms)} ms"), class_="value"),
        tag("span", chance, class_="chance"),
        class_="contest best" if best else "contest",
    )  # fmt: skip
