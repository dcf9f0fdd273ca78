"""Jobs for ranks of tests: they talk, measure, and fail in every way we know."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from domino_tune.runtime import executor
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops.state import State
from domino_tune.runtime.validate_job import validate
from simulator.schedule import DP, TP, Op

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


def _meet(context: RankContext, payload: Payload) -> bool:
    """Report every rank's process id; True on the rank that is to fail."""
    context.report({"pids": context.all_gather_objects(os.getpid())})
    return bool(context.rank == payload["rank"])


def _sum_forever(context: RankContext) -> None:
    tensor = torch.zeros(4)
    while True:
        context.lanes[TP].issue("sum", tensor, "sum").wait()
        context.beat()


def raises(context: RankContext, payload: Payload) -> None:
    """One rank raises while the others wait for it in a collective."""
    if _meet(context, payload):
        raise RuntimeError("the culprit's own words")
    _sum_forever(context)


def raises_while_its_lane_works(context: RankContext, payload: Payload) -> None:
    """One rank raises while its own lane is stuck in a collective that the others never join."""
    if _meet(context, payload):
        context.lanes[TP].issue("alone", torch.zeros(4), "sum")
        raise RuntimeError("the culprit's own words")
    while True:
        time.sleep(0.05)
        context.beat()


def exits(context: RankContext, payload: Payload) -> None:
    """One rank ends without a word."""
    if _meet(context, payload):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    _sum_forever(context)


def gets_signal(context: RankContext, payload: Payload) -> None:
    """One rank gets a signal: SIGKILL ends it, SIGSTOP lets it hang."""
    if _meet(context, payload):
        os.kill(os.getpid(), payload["signal"])
    _sum_forever(context)


def sleeps(context: RankContext, payload: Payload) -> None:
    """One rank sleeps for ever, the others wait for it."""
    if _meet(context, payload):
        _sleep_for_ever()
    _sum_forever(context)


def _sleep_for_ever() -> None:
    while True:
        time.sleep(1)


def works_on(context: RankContext, payload: Payload) -> None:
    """Nobody fails, nobody ends."""
    _meet(context, payload)
    _sum_forever(context)


def validate_short_of_memory(context: RankContext, payload: Payload) -> None:
    """The validation job, on ranks of which the last cannot hold plans of four row slices."""
    core = executor.FUNCTIONS["mlp.core"]

    def starved(state: State, op: Op) -> None:
        if state.shapes.plan.row_slices == 4 and context.rank == context.world_size - 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
        core(state, op)

    executor.FUNCTIONS["mlp.core"] = starved
    validate(context, payload)


def validate_killed(context: RankContext, payload: Payload) -> None:
    """The validation job, on ranks of which the last is killed by plans of four row slices."""
    _validate_where_four_slices(context, payload, lambda: os.kill(os.getpid(), signal.SIGKILL))


def validate_crashing(context: RankContext, payload: Payload) -> None:
    """The validation job, on ranks of which the last dies of plans of four row slices."""
    _validate_where_four_slices(context, payload, lambda: os._exit(3))


def _validate_where_four_slices(
    context: RankContext, payload: Payload, end: Callable[[], None]
) -> None:
    core = executor.FUNCTIONS["mlp.core"]

    def mortal(state: State, op: Op) -> None:
        if state.shapes.plan.row_slices == 4 and context.rank == context.world_size - 1:
            end()
        core(state, op)

    executor.FUNCTIONS["mlp.core"] = mortal
    validate(context, payload)


def validate_short_of_memory_later(context: RankContext, payload: Payload) -> None:
    """The same, but memory runs out in the second round that counts."""
    adam, steps = executor.FUNCTIONS["step.adam"], Counter[int]()

    def starved(state: State, op: Op) -> None:
        steps[state.shapes.plan.row_slices] += 1
        if steps[4] > 3 and context.rank == context.world_size - 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
        adam(state, op)

    executor.FUNCTIONS["step.adam"] = starved
    validate(context, payload)


def validate_without_memory(context: RankContext, payload: Payload) -> None:
    """The validation job on ranks that can hold no plan."""

    def starved(state: State, op: Op) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")

    executor.FUNCTIONS["mlp.core"] = starved
    validate(context, payload)
