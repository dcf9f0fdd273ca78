"""Jobs for ranks of tests: they talk, measure, and fail in every way we know."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from domino_tune.runtime.groups import RankContext
from simulator.schedule import DP, TP

Payload = Mapping[str, Any]


def describe(context: RankContext, payload: Payload) -> None:
    """Report every rank's place, and what its lanes sum up."""
    sums = []
    for lane in (TP, DP):
        tensor = torch.full((3,), float(context.rank))
        handle = context.lanes[lane].issue("sum", tensor, "sum")
        handle.wait()
        sums.append(tensor.tolist()[0])
    mine = {
        "place": (context.rank, context.tp_rank, context.dp_rank, context.world_size),
        "sums": sums,
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "payload": payload,
    }
    for rank, found in enumerate(context.all_gather_objects(mine)):
        context.report({"rank": rank, **found})


def count(context: RankContext, payload: Payload) -> None:
    """Report 0, 1, 2, …, each behind a barrier; ``big`` pads every message."""
    for number in range(payload["count"]):
        context.barrier()
        context.report({"number": number, "pad": "x" * payload.get("big", 0)})


def bandwidth(context: RankContext, payload: Payload) -> None:
    """Report seconds per all-reduce of ``bytes`` over the TP lane."""
    tensor = torch.zeros(payload["bytes"] // 4)
    for _ in range(payload["times"] + 1):
        context.barrier()
        start = time.perf_counter()
        context.lanes[TP].issue("ar", tensor, "sum").wait()
        context.report({"seconds": time.perf_counter() - start})
