"""Breakdown of each iteration: a stacked bar and a table."""

from __future__ import annotations

from typing import Final

from domino_tune.report.data import ReportData, Shown
from domino_tune.report.markup import Html, section, table, tag
from domino_tune.report.names import STRATEGY_NAMES, ns_as_ms, op_kind, role_label
from domino_tune.report.stacks import Legend, Stack, stack_rows, stacked
from simulator.schedule import COMPUTE, is_layer_role

PARTS: Final = {
    "gemm": "GEMMs",
    "wgrad": "Weight-gradient GEMMs",
    "attention": "Attention",
    "pointwise": "Norms, activations, residuals",
    "edges": "Embedding, head, optimizer",
    "slowed": "Slowed down by overlap",
    "exposed": "Exposed communication",
    "idle": "Waiting for the host",
}
LEGEND: Final = Legend(PARTS, {key: f"part-{key}" for key in PARTS}, "ms", ns_as_ms)
BUSIEST: Final = "Passes of the pipeline's busiest rank, without its waits for other stages. "
LEAST: Final = 0.005
"""Roles below this share of the longest iteration are left out of the table."""


def parts_ns(shown: Shown) -> dict[str, int]:
    """Return the parts of an iteration by the keys of PARTS, in ns; their sum is the makespan.

    The time that a compute op takes longer than alone counts as ``slowed``.
    """
    timeline = shown.timeline
    parts = dict.fromkeys(PARTS, 0)
    for index, op in enumerate(timeline.ops):
        if op.lane != COMPUTE:
            continue
        elapsed = timeline.end_ns[index] - timeline.start_ns[index]
        alone = min(elapsed, shown.alone_ns[index]) if shown.alone_ns else elapsed
        edge = not is_layer_role(op.role)
        parts["edges" if edge else op_kind(op)] += alone
        parts["slowed"] += elapsed - alone
    parts["exposed"] = timeline.breakdown.exposed_comm_ns
    parts["idle"] = timeline.breakdown.idle_ns
    return parts


def where_time_goes(data: ReportData) -> Html:
    """Return the section of the page."""
    shown = (data.baseline, data.chosen, data.bound)
    names = tuple(STRATEGY_NAMES[item.plan.strategy] for item in shown)
    found = [parts_ns(item) for item in shown]
    longest = max(1, *(sum(parts.values()) for parts in found))
    stacks = [
        Stack(name, parts, chosen=index == 1)
        for index, (name, parts) in enumerate(zip(names, found, strict=True))
    ]
    return section(
        "time",
        "Where the time goes",
        stacked(stacks, LEGEND, longest),
        table(("ms an iteration", *names), stack_rows(stacks, LEGEND), class_="parts"),
        tag(
            "details",
            tag("summary", "By operation, with time hidden behind other lanes"),
            table(("ms in flight", *names), _role_rows(shown, longest)),
        ),
        lead=(BUSIEST if data.pipelines else "") + _lead(data, found),
    )


def _lead(data: ReportData, found: list[dict[str, int]]) -> str:
    baseline, chosen, _ = found
    saved = baseline["exposed"] - chosen["exposed"]
    if data.chosen.plan.strategy != "domino":
        return f"{ns_as_ms(chosen['exposed'])} ms of communication are exposed."
    paid = sum(chosen.values()) - chosen["exposed"] - sum(baseline.values()) + baseline["exposed"]
    overlap = chosen["slowed"] - baseline["slowed"]
    gain = f"Hiding communication saves {ns_as_ms(max(0, saved))} ms"
    if paid <= 0:
        return f"{gain}; smaller pieces and overlap cost nothing."
    slowed = f", {ns_as_ms(overlap)} ms of it by overlap" if 0 < overlap <= paid else ""
    return f"{gain}; smaller pieces and slower operations cost {ns_as_ms(paid)} ms{slowed}."


def _role_rows(shown: tuple[Shown, ...], longest: int) -> list[tuple[str, ...]]:
    roles = [item.timeline.by_role for item in shown]
    largest = {role: max(by.get(role, 0) for by in roles) for by in roles for role in by}
    longest_roles = sorted(
        (role for role, value in largest.items() if value > LEAST * longest),
        key=lambda role: (-largest[role], role),
    )
    rows: list[tuple[str, ...]] = []
    for role in longest_roles:
        label = _with_block(role)
        rows.append((label, *(ns_as_ms(by[role]) if role in by else "–" for by in roles)))
    return rows


def _with_block(role: str) -> str:
    """Return the role's label, with the block for norms and residual adds, which both have."""
    block = {"attn": "attention", "mlp": "MLP"}.get(role.split(".")[0])
    doubled = ".norm" in role or ".residual" in role
    return f"{role_label(role)}, {block}" if block and doubled else role_label(role)
