"""Peak memory of a plan, on each stage of its pipeline and on the fullest one."""

from __future__ import annotations

from simulator.case import Case
from simulator.issue_order import LayerOrder
from simulator.memory import Memory, unpiped_memory
from simulator.ordering import order_of
from simulator.pipeline.build import Pieces
from simulator.pipeline.memory import piped_memory
from simulator.plan import SlicePlan


def stage_memory(
    case: Case, plan: SlicePlan, order: LayerOrder | None = None
) -> tuple[Memory, ...]:
    """Return each stage's memory at its peak; one stage without a pipeline."""
    if case.cluster.pp == 1:
        return (unpiped_memory(case, plan, order),)
    return piped_memory(Pieces(case, plan, order or order_of(case, plan)))


def peak_memory(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> Memory:
    """Return the memory at its peak of the fullest stage."""
    return max(stage_memory(case, plan, order), key=sum)


def peak_bytes(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> int:
    """Return the sum of ``peak_memory``."""
    return sum(peak_memory(case, plan, order))
