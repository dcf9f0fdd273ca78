"""Jobs of CUDA ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from domino_tune.runtime.lanes.lane import all_reduce
from domino_tune.runtime.launch.context import RankContext
from simulator.schedule import TP


def reduce(context: RankContext, payload: Mapping[str, Any]) -> None:
    """One all-reduce through the tensor-parallel lane."""
    tensor = torch.ones(4, device=context.device)
    context.lanes[TP].issue("ones", all_reduce(tensor)).wait()
    context.report({"sum": float(tensor.sum()), "device": str(context.device)})


def reduce_with_few_ctas(context: RankContext, payload: Mapping[str, Any]) -> None:
    """One all-reduce by the lane of each CTA count, in turn and again."""
    sums = []
    for ctas in payload["ctas"]:
        tensor = torch.ones(4, device=context.device)
        context.lanes_for(ctas)[TP].issue("ones", all_reduce(tensor)).wait()
        sums.append(float(tensor.sum()))
    distinct = {id(context.lanes_for(ctas)[TP]) for ctas in payload["ctas"]}
    context.report({"sums": sums, "lanes": len(distinct)})
