"""Where time and memory go: sections on the iteration, on memory and on the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from domino_tune.report import (
    STRATEGY_NAMES,
    Html,
    Legend,
    StackedBar,
    gib_text,
    ms_text,
    ns_as_ms,
    op_kind,
    role_label,
    section,
    stack_rows,
    stacked,
    table,
    tag,
)
from domino_tune.report.data import Pass, PipelinePicture, ReportData, ShownTimeline
from domino_tune.results.simulate import BASELINE, CHOSEN, UsableMemory
from simulator.schedule import COMPUTE, is_layer_role
from simulator.usable import SURE, percent

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


def parts_ns(shown: ShownTimeline) -> dict[str, int]:
    """Return the parts of an iteration by the keys of PARTS, in ns; their sum is the makespan.

    The time that a compute op takes longer than alone counts as ``slowed``.
    """
    timeline = shown.timeline
    parts = dict.fromkeys(PARTS, 0)
    for index, op in enumerate(timeline.ops):
        if op.lane != COMPUTE:
            continue
        elapsed = timeline.end_ns[index] - timeline.start_ns[index]
        alone = min(elapsed, shown.alone_ns[index])
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
        StackedBar(name, parts, chosen=index == 1)
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


def _role_rows(shown: tuple[ShownTimeline, ...], longest: int) -> list[tuple[str, ...]]:
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


def where_memory_goes(data: ReportData) -> Html:
    """Return the section of the page: one bar a variant, beside what is usable of a GPU."""
    result, usable = data.result, data.result.usable_memory
    usable_gib = usable.usable_gib
    held = {BASELINE: data.baseline, CHOSEN: data.chosen}
    stacks = [
        StackedBar(
            STRATEGY_NAMES[shown.plan.strategy], result.variants[name].memory_gib, chosen=at > 0
        )
        for at, (name, shown) in enumerate(held.items())
    ]
    longest = max(usable_gib, *(sum(stack.parts.values()) for stack in stacks))
    legend, names = _legend(stacks[0].parts), (stack.name for stack in stacks)
    return section(
        "memory",
        "Where the memory goes",
        stacked(stacks, legend, longest, _edge(usable_gib, longest)),
        tag(
            "p",
            tag("span", f"what is usable of a GPU: {gib_text(usable_gib)} GiB", class_="key edge"),
            class_="pass-keys",
        ),
        table(("GiB a GPU, at the peak", *names), stack_rows(stacks, legend), class_="parts"),
        table(("A GPU's memory", "GiB", "how that is known"), _rows(usable), class_="parts"),
        lead=_memory_lead(sum(stacks[1].parts.values()), usable, result.fits_chance),
    )


def _legend(gib: Mapping[str, float]) -> Legend:
    return Legend(
        {category: category.capitalize() for category in gib},
        {category: f"mem-{number}" for number, category in enumerate(gib)},
        "GiB",
        "{:,.2f}".format,
    )


def _edge(usable_gib: float, longest: float) -> Html:
    """Return the line across a bar at what is usable."""
    return tag(
        "u", "", class_="capacity", style=f"left:{100 * usable_gib / longest:.3f}%",
        title=f"usable of a GPU: {usable_gib:.1f} GiB",
    )  # fmt: skip


def _rows(usable: UsableMemory) -> list[tuple[str, str, str]]:
    """Return what a GPU has, what is taken from it, and what the plan's allocator reserves."""
    return [
        ("in all", f"{usable.gpu_gib:.2f}", usable.source),
        *((one.what, f"− {one.gib:.2f}", one.source) for one in usable.taken),
        ("usable", f"{usable.usable_gib:.2f}", "what is left"),
        ("the plan reserves", f"{usable.reserved_gib:.2f}", usable.reserved_source),
        ("peaks that are recommended", f"up to {usable.recommended_gib:.2f}",
         "a chance of 80 % or more to fit, with fragments and the error of the prediction"),
    ]  # fmt: skip


def _memory_lead(needed_gib: float, usable: UsableMemory, chance: float) -> str:
    needs = gib_text(needed_gib)
    if needed_gib > usable.usable_gib:
        return (
            f"It does not fit: the plan needs {needs} GiB, and {usable.usable_gib:.1f} of a GPU "
            "are usable."
        )
    doubt = "" if chance >= SURE else ", too little to recommend it"
    return (
        f"The plan needs {needs} of {usable.usable_gib:.1f} usable GiB and fits with a chance of "
        f"{percent(chance)}{doubt}: about {usable.reserved_gib:.1f} GiB will be reserved "
        "for it."
    )


# The section on the pipeline ----------------------------------------------------------------------
# One row a stage, one box a pass, the baseline above the plan.

WIDTH: Final = 1000
LEFT: Final = 30
ROW: Final = 24
LABELLED: Final = 15
"""Least width of a box that the number of its micro-batch fits in."""
NAMES: Final = {
    "F": "forward",
    "B": "backward",
    "I": "gradients of activations",
    "W": "gradients of weights",
}


def pipeline_picture(data: ReportData) -> Html:
    """Return the section of the page, or nothing without a pipeline."""
    if not data.pipelines:
        return Html("")
    longest = max(picture.end_ms for picture in data.pipelines)
    kinds = {one.kind for stage in data.pipelines[0].stages for one in stage}
    legend = tag(
        "p",
        *(tag("span", NAMES[kind], class_=f"key pass-{kind}") for kind in NAMES if kind in kinds),
        class_="pass-keys",
    )
    drawn = [
        tag(
            "figure",
            tag("figcaption", f"{picture.title}: {ms_text(picture.end_ms)} ms"),
            _svg(picture, longest),
        )
        for picture in data.pipelines
    ]
    return section(
        "pipeline", "The pipeline", legend, *drawn,
        lead="One row a stage. A box is a pass of one micro-batch, whose number it bears; lighter "
        "boxes are of later virtual stages. Where nothing is drawn, the stage waits.",
    )  # fmt: skip


def _svg(picture: PipelinePicture, longest_ms: float) -> Html:
    height = ROW * len(picture.stages)
    rows = [
        part
        for number, stage in enumerate(picture.stages)
        for part in _stage(number, stage, (WIDTH - LEFT) / longest_ms)
    ]
    return tag(
        "svg", *rows, viewBox=f"0 0 {WIDTH} {height}", class_="pipeline", role="img",
        aria_label=f"{picture.title}: {ms_text(picture.end_ms)} ms",
    )  # fmt: skip


def _stage(number: int, stage: Sequence[Pass], scale: float) -> Iterator[Html]:
    y = number * ROW
    yield tag("text", str(number), x=LEFT - 8, y=y + 16, class_="stage", text_anchor="end")
    most = max(one.chunk for one in stage)
    for one in stage:
        x, width = LEFT + one.start_ms * scale, (one.end_ms - one.start_ms) * scale
        about = (
            f"{NAMES[one.kind]} of micro-batch {one.micro}"
            + (f", virtual stage {one.chunk}" if most else "")
            + f": {ms_text(one.end_ms - one.start_ms)} ms"
        )
        box = tag(
            "rect", x=f"{x:.2f}", y=y + 2, width=f"{max(0.3, width - 0.4):.2f}", height=ROW - 4,
            class_=f"pass-{one.kind}", opacity=f"{1 - 0.45 * one.chunk / max(1, most):.2f}",
        )  # fmt: skip
        label = (
            tag("text", str(one.micro), x=f"{x + width / 2:.2f}", y=y + 16, text_anchor="middle",
                class_="micro")
            if width > LABELLED
            else ""
        )  # fmt: skip
        yield tag("g", tag("title", about), box, label)
