"""ReportData: everything that the page shows, and its timelines as small arrays for a script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domino_tune.report import (
    LANE_WORDS,
    STRATEGY_NAMES,
    is_backward,
    op_kind,
    role_label,
    shape_text,
)
from domino_tune.results.layouts import Layouts
from domino_tune.results.simulate import Simulated
from domino_tune.results.tune import Tuned
from simulator.lookup import Provenance
from simulator.plan import SlicePlan
from simulator.schedule import LANES, Op, Timeline, is_layer_role


@dataclass(frozen=True, kw_only=True)
class ShownTimeline:
    """One timeline of the page.

    ``alone_ns[i]`` is the i-th op's time alone (``CostModel.duration_ns``), from which the page
    computes the time that contention added.
    """

    plan: SlicePlan
    timeline: Timeline
    alone_ns: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass of a stage over a micro-batch: forward (F), backward (B) or weight gradients (W)."""

    kind: str
    micro: int
    chunk: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True, kw_only=True)
class PipelinePicture:
    """The passes of each stage; ``end_ms``: when the iteration ends."""

    title: str
    stages: tuple[tuple[Pass, ...], ...]
    end_ms: float


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The chosen plan's time with ``key`` changed to ``low`` and to ``high`` (``0.5x``, ``2x``)."""

    key: str
    low: str
    high: str
    low_ms: float
    high_ms: float


@dataclass(frozen=True, kw_only=True)
class SweepPlot:
    """One plot of ``whatif --sweep``: ``series`` maps a name to one time in ms per point."""

    x_label: str
    xs: tuple[str, ...]
    series: dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything on the page. Empty tuples and None omit their part.

    ``title``: model, ranks and profile in one line. ``workload``: (name, value) pairs.
    ``commands``: (purpose, command) pairs. ``result``: of the chosen plan. ``search``: how it was
    found; ``heat_note``: a sentence on the cells of its grid; ``tie``: why the plan is not its
    fastest, or empty. ``layouts``: the best ones of a search; ``pipelines``: those of the baseline
    and of the plan. ``sources``: of the profile, by section.
    """

    title: str
    workload: tuple[tuple[str, str], ...]
    baseline: ShownTimeline
    chosen: ShownTimeline
    bound: ShownTimeline
    result: Simulated
    layouts: Layouts | None = None
    pipelines: tuple[PipelinePicture, ...] = ()
    search: Tuned | None = None
    heat_note: str = ""
    tie: str = ""
    sensitivity: tuple[Sensitivity, ...] = ()
    sweeps: tuple[SweepPlot, ...] = ()
    sources: Mapping[str, Provenance] = field(default_factory=dict)
    commands: tuple[tuple[str, str], ...] = ()


# Data of the page's script ------------------------------------------------------------------------
# Timelines as small arrays, and the first windows of the views.

MAX_OPS: Final = 12_000
"""Most ops of one timeline on the page; a longer one is drawn with some layers only."""
Spans = list[tuple[int, int]]


def lanes_json(data: ReportData) -> str:
    """Return the script's data as JSON that is safe inside a script element."""
    shown = (data.baseline, data.chosen, data.bound)
    parsed = {
        "timelines": [_timeline(item) for item in shown],
        "views": views(shown),
        "laneNames": [LANE_WORDS[lane] for lane in LANES],
    }
    text = json.dumps(parsed, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def drawn_ops(timeline: Timeline) -> list[int]:
    """Return indices of the ops to draw: all, or edges and the first, middle and last layers."""
    ops = timeline.ops
    if len(ops) <= MAX_OPS:
        return list(range(len(ops)))
    layers = 1 + max((op.layer for op in ops if is_layer_role(op.role)), default=0)
    drawn: list[int] = []
    for count in range(max(1, layers // 3), 0, -1):
        drawn = list(_of_layers(ops, layers, count))
        if len(drawn) <= MAX_OPS:
            return drawn
    return drawn[:MAX_OPS]


def _of_layers(ops: tuple[Op, ...], layers: int, count: int) -> Iterator[int]:
    """Yield ops of ``count`` layers at both ends and in the middle, of three micro-batches."""
    middle = max(0, layers // 2 - count // 2)
    blocks = (range(count), range(middle, middle + count), range(layers - count, layers))
    wanted = {layer for block in blocks for layer in block}
    micros = {0, ops[-1].micro // 2, ops[-1].micro}
    for index, op in enumerate(ops):
        if op.micro in micros and (op.layer in wanted or not is_layer_role(op.role)):
            yield index


def cut_spans(timeline: Timeline, drawn: list[int]) -> Spans:
    """Return the joined spans of ops that are not drawn: the lanes say nothing there."""
    inside = set(drawn)
    spans = zip(timeline.start_ns, timeline.end_ns, strict=True)
    merged: Spans = []
    for start, end in sorted(span for index, span in enumerate(spans) if index not in inside):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _timeline(shown: ShownTimeline) -> dict[str, Any]:
    timeline, plan = shown.timeline, shown.plan
    drawn = drawn_ops(timeline)
    templates: dict[tuple[Any, ...], int] = {}
    described: list[list[Any]] = []
    columns: dict[str, list[int]] = {"t": [], "l": [], "m": [], "g": [], "d": []}
    last = dict.fromkeys(range(len(LANES)), 0)
    for index in drawn:
        op = timeline.ops[index]
        key = (op.role, op.slice, op.piece, op.lane, op.signature)
        if key not in templates:
            templates[key] = len(templates)
            described.append(_template(op, shown.alone_ns[index]))
        start, end = timeline.start_ns[index], timeline.end_ns[index]
        row = (templates[key], op.layer, op.micro, start - last[op.lane], end - start)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        last[op.lane] = end
    if timeline.schedule.micros == 1:
        columns["m"] = []
    return {
        "name": STRATEGY_NAMES[plan.strategy],
        "plan": plan.label if plan.strategy == "domino" else "",
        "end": timeline.makespan_ns,
        "lanes": list(timeline.schedule.lanes()),
        "slices": plan.row_slices,
        "templates": described,
        "ops": columns,
        "cuts": cut_spans(timeline, drawn),
        "phases": list(_phases(timeline)),
    }


def _template(op: Op, alone_ns: int) -> list[Any]:
    return [
        role_label(op.role), op.role, op.slice, op.piece, op.lane, op_kind(op),
        shape_text(op.signature), alone_ns, int(is_layer_role(op.role)), int(is_backward(op.role)),
    ]  # fmt: skip


def views(shown: Iterable[ShownTimeline]) -> list[dict[str, Any]]:
    """Return the views: a middle layer forward and backward, and the whole iteration.

    ``origins``: each timeline's time at x = 0, in ns; ``window``: the span shown first, from there.
    """
    timelines = [item.timeline for item in shown]
    ops = timelines[0].ops
    layers = sorted({op.layer for op in ops if is_layer_role(op.role)})
    layer, micro = layers[len(layers) // 2], (timelines[0].schedule.micros - 1) // 2
    found = [
        _layer_view(timelines, layer, layers, micro, backward=backward)
        for backward in (False, True)
    ]
    end = max(timeline.makespan_ns for timeline in timelines)
    whole = {
        "id": "whole",
        "title": "The whole iteration",
        "origins": [0] * len(timelines),
        "window": [round(-0.004 * end), round(1.004 * end)],
        "layer": -1,
        "micro": -1,
        "backward": 0,
        "each": [timeline.makespan_ns for timeline in timelines],
        "unit": "an iteration",
    }
    return [*found, whole]


def _layer_view(
    timelines: list[Timeline], layer: int, layers: list[int], micro: int, *, backward: bool
) -> dict[str, Any]:
    spans = [_layer_spans(timeline, micro, backward=backward) for timeline in timelines]
    each = [_pitch(by_layer, layers) for by_layer in spans]
    length = max(each)
    return {
        "id": "backward" if backward else "forward",
        "title": f"Layer {layer}, {'backward' if backward else 'forward'}",
        "origins": [by_layer[layer][0] for by_layer in spans],
        "window": [round(-0.015 * length), round(1.02 * length)],
        "layer": layer,
        "micro": micro,
        "backward": int(backward),
        "each": each,
        "unit": "a layer",
    }


def _layer_spans(timeline: Timeline, micro: int, *, backward: bool) -> dict[int, tuple[int, int]]:
    """Return first start and last end of each layer's ops in one direction, in ns."""
    spans: dict[int, tuple[int, int]] = {}
    for op, start, end in zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True):
        mine = op.micro == micro and op.role.startswith(("attn.", "mlp."))
        if mine and is_backward(op.role) == backward:
            low, high = spans.get(op.layer, (start, end))
            spans[op.layer] = (min(low, start), max(high, end))
    return spans


def _pitch(spans: dict[int, tuple[int, int]], layers: list[int]) -> int:
    """Return the time from one layer to the next in ns, over the middle half of the stack.

    ``layers``: those of a rank; of a pipeline with virtual stages, the stack is the middle one.
    """
    middle = layers[len(layers) // 2]
    stack = [layer for layer in layers if layer - layers.index(layer) == middle - len(layers) // 2]
    low, high = stack[len(stack) // 4], stack[(3 * len(stack)) // 4]
    if high == low:
        return spans[low][1] - spans[low][0]
    return round(abs(spans[high][0] - spans[low][0]) / (high - low))


def _phases(timeline: Timeline) -> Iterator[tuple[str, int, int]]:
    """Yield forward, backward and step of a single micro-batch, or each micro-batch as a whole."""
    marks: dict[str, tuple[int, int]] = {}
    many = timeline.schedule.micros > 1
    for op, start, end in zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True):
        if op.role.startswith("step."):
            name = "step"
        elif many:
            name = f"micro-batch {op.micro}"
        else:
            name = _direction(op.role)
        low, high = marks.get(name, (start, end))
        marks[name] = (min(low, start), max(high, end))
    for name, (low, high) in marks.items():
        yield name, low, high


def _direction(role: str) -> str:
    if role.startswith(("head.", "loss.")):
        return "head and loss"
    return "backward" if is_backward(role) or role.startswith("dp.") else "forward"
