"""Peak memory of a plan, on each stage of its pipeline and on the fullest one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.case import Case
from simulator.chunks import joined
from simulator.issue_order import LayerOrder
from simulator.memory import Memory, head_bytes, held_parameters, unpiped_memory
from simulator.pipeline.build import pieces_of
from simulator.pipeline.memory import piped_memory
from simulator.plan import MEGATRON, SlicePlan


def stage_memory(
    case: Case, plan: SlicePlan, order: LayerOrder | None = None
) -> tuple[Memory, ...]:
    """Return each stage's memory at its peak; one stage without a pipeline."""
    if case.cluster.pp == 1:
        return (unpiped_memory(case, plan, order),)
    return piped_memory(case, pieces_of(case, plan, order))


def peak_memory(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Memory:
    """Return the memory at its peak of the fullest stage."""
    return max(stage_memory(case, plan, order), key=sum)


def peak_bytes(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Return the sum of ``peak_memory``."""
    return sum(peak_memory(case, plan, order))


def least_peak_bytes(case: Case) -> int:
    """Return a lower bound (bytes) on the peak of every searched plan; most plans of real models
    need little more. With a pipeline it is the static memory of the fullest stage."""
    return min(_least_bytes(case))


def may_fit(case: Case) -> bool:
    """Return whether ``least_peak_bytes`` may be recommended; the first bound usually decides."""
    return any(held <= case.memory.sure_bytes for held in _least_bytes(case))


def static_memory(case: Case, plan: SlicePlan) -> Memory:
    """Return the static memory of the fullest stage: parameters, main gradients, optimizer state
    and workspaces."""
    whole = case.shapes(plan)
    if case.cluster.pp == 1:
        return held_parameters(case, whole)
    ranks = dict.fromkeys(map(joined, case.chunks))
    stages = (held_parameters(case, chunk.of(whole)) for chunk in ranks)
    return max(stages, key=sum)


def _least_bytes(case: Case) -> Iterator[int]:
    if case.cluster.pp == 1:
        return head_bytes(case)
    usual = replace(MEGATRON, sequence_parallel=case.modes[0])
    return iter([sum(static_memory(case, usual))])
