"""Issue orders of a layer, by name. A new overlap order is one new file and one line here.

``greedy`` is not among them: it is planned from a profile (simulator.greedy) into the same type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.schedules.inter import inter
from simulator.schedules.intra import intra
from simulator.schedules.paper import paper

ORDER_LINES: Final[dict[str, Callable[[SlicePlan], LayerOrder]]] = {
    "intra": intra,
    "inter": inter,
    "paper": paper,
}


def fixed_order(plan: SlicePlan) -> LayerOrder:
    """The lines of a plan whose order needs no planner (megatron, no_comm, intra, inter, paper)."""
    unsliced = plan.strategy != "domino" or plan.row_slices == 1
    return ORDER_LINES["intra" if unsliced else plan.order](plan)
