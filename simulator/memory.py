"""Peak memory of a rank, from the lifetimes of the schedule's values.

A value lives from the op that writes it to the last op that reads it, in issue order. A value
written in place takes no extra memory. Weights, main gradients and optimizer state always exist.
Each layer of a stack adds the same to the peak of every phase, so two short stacks determine the
peak of a deep one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.build import build_schedule
from simulator.case import Case
from simulator.issue_order import LayerOrder
from simulator.plan import MAX_ROW_SLICES, SlicePlan
from simulator.predict import order_of
from simulator.schedule import OpTemplate, Schedule, Segment
from simulator.shapes import GRAD_BYTES

SHORT: Final = 4
"""Layers of the shorter stack; the other has one more. Orders span three layers at most."""
HEAD: Final = 1
"""Index of the head among the phases: forward, head, backward."""
MOMENT_BYTES: Final = 8
"""Bytes per parameter of Adam's two moments, in fp32."""
MAIN_BYTES: Final = 4
"""Bytes of an fp32 main parameter; it exists beside a parameter of fewer bytes."""


def static_bytes(case: Case, plan: SlicePlan) -> int:
    """Return the bytes of one rank's weights, main gradients, main parameters and moments."""
    element = case.workload.dtype_bytes
    main = MAIN_BYTES if element < MAIN_BYTES else 0
    per_parameter = element + GRAD_BYTES + main + MOMENT_BYTES
    return case.shapes(plan).rank_parameters * per_parameter


def peak_bytes(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Return one rank's peak memory in bytes, without the framework's own and fragmentation."""
    return static_bytes(case, plan) + max(_peaks(case, plan, order or order_of(case, plan)))


def least_peak_bytes(case: Case) -> int:
    """Return bytes that no plan's peak is below; most plans of real models need little more.

    Every plan issues all of forward before the head and all of backward behind it. So in the head
    it holds what backward will read, which is the same bytes for every cut and order. Each stage of
    the head runs over all slices before the next, so all logits are alive at once. What depends on
    the slices there is the first gradient of a hidden state, of the first slice's size, and with
    sequence parallelism what a slice gathers. Slices are as even as possible and the first is the
    largest, so more row slices never make these larger. So the head's peak is least with the most
    row slices, and no plan's peak is below its own head's.
    """
    rows = min(MAX_ROW_SLICES, case.workload.micro_batch_size)
    whole = SlicePlan(row_slices=rows, order="intra", wgrad="eager")
    plans = [replace(whole, sequence_parallel=mode) for mode in case.modes]
    return min(
        static_bytes(case, plan) + _peaks(case, plan, order_of(case, plan))[HEAD] for plan in plans
    )


def _peaks(case: Case, plan: SlicePlan, order: LayerOrder) -> list[int]:
    """Return the peaks of live values of the whole stack, in bytes, one for each phase."""
    layers = case.model.num_hidden_layers
    if layers <= SHORT + 1:
        return _phases(case, plan, order, layers)
    short = _phases(case, plan, order, SHORT)
    longer = _phases(case, plan, order, SHORT + 1)
    more = layers - SHORT - 1
    return [after + more * (after - before) for before, after in zip(short, longer, strict=True)]


def _phases(case: Case, plan: SlicePlan, order: LayerOrder, layers: int) -> list[int]:
    """Return the peaks of live values, in bytes, in the forward pass, the head and backward."""
    schedule = build_schedule(
        replace(case.model, num_hidden_layers=layers),
        replace(case.workload, grad_accumulation=1),
        case.cluster,
        plan,
        order,
    )
    return live_peaks(schedule)


def live_peaks(schedule: Schedule) -> list[int]:
    """Return one micro-batch's peaks of live values, in bytes: before, in and behind the head."""
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
    """Return the value whose memory ``name`` uses: in-place results end in .ar or .rope."""
    if name.startswith("d.") and name.endswith(".logits"):
        name = name[2:]
    while name.endswith((".ar", ".rope")):
        name = name.rpartition(".")[0]
    return name


def _with_phases(segments: tuple[Segment, ...]) -> list[tuple[int, Segment]]:
    phase, phased = 0, []
    for segment in segments:
        if segment.templates[0].role.startswith("head."):
            phase = 1
        elif phase == 1:
            phase = 2
        phased.append((phase, segment))
    return phased


def _expand(segment: Segment) -> list[tuple[OpTemplate, int]]:
    return [
        (template, segment.layer(repetition, template.offset))
        for repetition in range(segment.count)
        for template in segment.templates
    ]
