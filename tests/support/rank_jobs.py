"""Jobs for ranks of tests: ranks that report, measure, and fail in different ways."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from domino_tune.runtime.executor import FUNCTIONS
from domino_tune.runtime.lanes.lane import all_reduce
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops import State
from domino_tune.runtime.validate_job import validate
from simulator.schedule import DP, TP, Op

Payload = Mapping[str, Any]


def describe(context: RankContext, payload: Payload) -> None:
    """Report every rank's place, and the sums that its lanes compute."""
    sums = []
    for lane in (TP, DP):
        tensor = torch.full((3,), float(context.rank))
        handle = context.lanes[lane].issue("sum", all_reduce(tensor))
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
    """Report 0, 1, 2, …, each after a barrier. ``big`` characters pad every message."""
    for number in range(payload["count"]):
        context.barrier()
        context.report({"number": number, "pad": "x" * payload.get("big", 0)})


def bandwidth(context: RankContext, payload: Payload) -> None:
    """Report the seconds of each all-reduce of ``bytes`` on the TP lane."""
    tensor = torch.zeros(payload["bytes"] // 4)
    for _ in range(payload["times"] + 1):
        context.barrier()
        start = time.perf_counter()
        context.lanes[TP].issue("ar", all_reduce(tensor)).wait()
        context.report({"seconds": time.perf_counter() - start})


def _report_pids(context: RankContext, payload: Payload) -> bool:
    """Report every rank's process id. Return True on the rank that must fail."""
    context.report({"pids": context.all_gather_objects(os.getpid())})
    return bool(context.rank == payload["rank"])


def _sum_forever(context: RankContext) -> None:
    tensor = torch.zeros(4)
    while True:
        context.lanes[TP].issue("sum", all_reduce(tensor)).wait()
        context.beat()


def raises(context: RankContext, payload: Payload) -> None:
    """Raise on one rank while the others wait for it in a collective."""
    if _report_pids(context, payload):
        raise RuntimeError("the culprit's own words")
    _sum_forever(context)


def raises_while_its_lane_works(context: RankContext, payload: Payload) -> None:
    """Raise on one rank while its own lane waits in a collective that the others never join."""
    if _report_pids(context, payload):
        context.lanes[TP].issue("alone", all_reduce(torch.zeros(4)))
        raise RuntimeError("the culprit's own words")
    while True:
        time.sleep(0.05)
        context.beat()


def exits(context: RankContext, payload: Payload) -> None:
    """End one rank without an exception."""
    if _report_pids(context, payload):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    _sum_forever(context)


def gets_signal(context: RankContext, payload: Payload) -> None:
    """Send one rank a signal: SIGKILL ends it, SIGSTOP makes it hang."""
    if _report_pids(context, payload):
        os.kill(os.getpid(), payload["signal"])
    _sum_forever(context)


def sleeps(context: RankContext, payload: Payload) -> None:
    """Let one rank sleep forever while the others wait for it."""
    if _report_pids(context, payload):
        _sleep_forever()
    _sum_forever(context)


def _sleep_forever() -> None:
    while True:
        time.sleep(1)


def works_on(context: RankContext, payload: Payload) -> None:
    """Run forever without a failure."""
    _report_pids(context, payload)
    _sum_forever(context)


def validate_short_of_memory(context: RankContext, payload: Payload) -> None:
    """Run the validation job; plans of four row slices run out of memory on the last rank."""
    _validate_until_four_slices(context, payload, _run_out_of_memory)


def validate_killed(context: RankContext, payload: Payload) -> None:
    """Run the validation job; plans of four row slices kill the last rank."""
    _validate_until_four_slices(context, payload, lambda: os.kill(os.getpid(), signal.SIGKILL))


def validate_crashing(context: RankContext, payload: Payload) -> None:
    """Run the validation job; plans of four row slices end the last rank."""
    _validate_until_four_slices(context, payload, lambda: os._exit(3))


def _validate_until_four_slices(
    context: RankContext, payload: Payload, fail: Callable[[], None]
) -> None:
    activation = FUNCTIONS["mlp.act"]

    def failing(state: State, op: Op) -> None:
        if state.shapes.plan.row_slices == 4 and context.rank == context.world_size - 1:
            fail()
        activation(state, op)

    FUNCTIONS["mlp.act"] = failing
    validate(context, payload)


def _run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")


def validate_short_of_memory_later(context: RankContext, payload: Payload) -> None:
    """Run the validation job; plans of four row slices run out of memory in the second measured
    round."""
    adam, steps = FUNCTIONS["step.adam"], Counter[int]()

    def failing(state: State, op: Op) -> None:
        steps[state.shapes.plan.row_slices] += 1
        if steps[4] > 4 and context.rank == context.world_size - 1:
            _run_out_of_memory()
        adam(state, op)

    FUNCTIONS["step.adam"] = failing
    validate(context, payload)


def validate_without_memory(context: RankContext, payload: Payload) -> None:
    """Run the validation job; all plans run out of memory."""
    FUNCTIONS["mlp.act"] = lambda state, op: _run_out_of_memory()
    validate(context, payload)
