"""Fixed issue orders of a layer, by name. A new order needs one new file and one entry here.

``greedy`` is not listed: simulator.greedy plans it from a profile, into the same type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from simulator.issue_order import LayerOrder, recomputing
from simulator.modules import CORE_ALONE, Modules
from simulator.plan import SlicePlan
from simulator.schedules.inter import inter
from simulator.schedules.intra import intra
from simulator.schedules.paper import paper
from simulator.specs import Recompute

ISSUE_ORDERS: Final[dict[str, Callable[[SlicePlan], LayerOrder]]] = {
    "intra": intra,
    "inter": inter,
    "paper": paper,
}


@lru_cache(maxsize=256)
def fixed_order(
    plan: SlicePlan, recompute: Recompute = "none", modules: Modules = CORE_ALONE
) -> LayerOrder:
    """Return the order of a plan that needs no planner (megatron, no_comm, intra, inter, paper).

    Layers are recomputed one by one, in the forward order of ``intra``.
    """
    unsliced = plan.strategy != "domino" or plan.row_slices == 1
    order = ISSUE_ORDERS["intra" if unsliced else plan.order](plan)
    again = intra(plan).forward.tokens
    backward = recomputing(
        order.backward.tokens, again, recompute, modules, along_sequences=plan.slices_sequences
    )
    return replace(order, backward=replace(order.backward, tokens=backward))
