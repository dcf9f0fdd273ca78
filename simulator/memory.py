"""Peak memory of a rank, from the lifetimes of the schedule's values.

A value lives from the op that writes it to the last op that reads it, in issue order; what is
written in place takes no memory of its own. Weights, main gradients and optimizer state are always
there. A stack of equal layers adds the same to every phase's peak per layer, so two short stacks
tell what a deep one needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.build import build_schedule
from simulator.case import Case
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.predict import order_of
from simulator.schedule import OpTemplate, Schedule, Segment
from simulator.shapes import GRAD_BYTES

SHORT: Final = 4
"""Layers of the shorter stack; the other has one more. Lines span three layers at most."""
MOMENT_BYTES: Final = 8
"""Adam's two moments, fp32, per parameter."""
MAIN_BYTES: Final = 4
"""An fp32 main parameter, kept beside parameters of fewer bytes."""


def static_bytes(case: Case, plan: SlicePlan) -> int:
    """Weights, main gradients, main parameters and moments of one rank."""
    element = case.workload.dtype_bytes
    main = MAIN_BYTES if element < MAIN_BYTES else 0
    per_parameter = element + GRAD_BYTES + main + MOMENT_BYTES
    return case.shapes(plan).rank_parameters * per_parameter


def peak_bytes(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Peak memory of one rank in bytes, without the framework's own and without fragmentation."""
    order = order or order_of(case, plan)
    layers = case.model.num_hidden_layers
    if layers <= SHORT + 1:
        return static_bytes(case, plan) + max(_phases(case, plan, order, layers))
    short = _phases(case, plan, order, SHORT)
    longer = _phases(case, plan, order, SHORT + 1)
    more = layers - SHORT - 1
    peaks = [after + more * (after - before) for before, after in zip(short, longer, strict=True)]
    return static_bytes(case, plan) + max(peaks)


def _phases(case: Case, plan: SlicePlan, order: LayerOrder, layers: int) -> list[int]:
    """Largest sum of live values in the forward walk, the head and the backward walk."""
    schedule = build_schedule(
        replace(case.model, num_hidden_layers=layers),
        replace(case.workload, grad_accumulation=1),
        case.cluster,
        plan,
        order,
    )
    return live_peaks(schedule)


def live_peaks(schedule: Schedule) -> list[int]:
    """Peaks of live values, in bytes: up to the head, in it, behind it. One micro-batch."""
    placed = [
        (phase, template, layer)
        for phase, segment in _with_phases(schedule.parts[0].segments)
        for template, layer in _expand(segment)
    ]
    last_read: dict[tuple[int, str], int] = {}
    for index, (_, template, layer) in enumerate(placed):
        for ref in (*template.reads, *template.writes):
            last_read[layer + ref.layer, _storage(ref.name)] = index
    freed: dict[int, int] = {}
    live, peaks = 0, [0, 0, 0]
    sizes = schedule.value_bytes
    for index, (phase, template, layer) in enumerate(placed):
        for ref in template.writes:
            size = sizes[ref.name]
            if size:
                live += size
                last = last_read[layer + ref.layer, _storage(ref.name)]
                freed[last] = freed.get(last, 0) + size
        peaks[phase] = max(peaks[phase], live)
        live -= freed.pop(index, 0)
    return peaks


def _storage(name: str) -> str:
    """The value whose memory ``name`` uses: in-place results end in .ar or .rope."""
    if name.startswith("d.") and name.endswith(".logits"):
        name = name[2:]
    while name.endswith((".ar", ".rope")):
        name = name.rpartition(".")[0]
    return name


def _with_phases(segments: tuple[Segment, ...]) -> list[tuple[int, Segment]]:
    phase, found = 0, []
    for segment in segments:
        if segment.templates[0].role.startswith("head."):
            phase = 1
        elif phase == 1:
            phase = 2
        found.append((phase, segment))
    return found


def _expand(segment: Segment) -> list[tuple[OpTemplate, int]]:
    return [
        (template, segment.layer(repetition, template.offset))
        for repetition in range(segment.count)
        for template in segment.templates
    ]
