"""Orders: which chunk's forward or backward pass each rank of a pipeline plays next.

A generator returns one rank's actions. ``B`` is the whole backward pass, or only the gradients of
activations where ``W``, the gradients of weights, is an action of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from simulator.specs import ClusterSpec, PipelineSchedule, Workload

ActionKind = Literal["F", "B", "W"]


class Action(NamedTuple):
    """A pass of one chunk of a rank, of one micro-batch."""

    kind: ActionKind
    micro: int
    chunk: int


Orders = list[list[Action]]


def orders_of(workload: Workload, cluster: ClusterSpec) -> Orders:
    """Return the actions of each rank, in order."""
    return ORDERS[workload.pp_schedule](cluster.pp, cluster.vpp, workload.grad_accumulation)


def one_forward_one_backward(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B (arXiv 2104.04473): after a warm-up, forwards and backwards take turns.

    With several chunks a rank it is Megatron-LM's interleaved order: a rank plays a chunk for
    ``pp`` micro-batches, then the next chunk (core/pipeline_parallel/schedules.py).
    """
    return [_alternating(rank, pp, vpp, micros) for rank in range(pp)]


def _alternating(rank: int, pp: int, vpp: int, micros: int) -> list[Action]:
    total = micros * vpp
    if vpp == 1:
        warm_up = pp - rank - 1
    else:
        warm_up = total if micros == pp else 2 * (pp - rank - 1) + (vpp - 1) * pp
    warm_up = min(warm_up, total)
    forwards = [_virtual("F", number, pp, vpp) for number in range(total)]
    backwards = [_virtual("B", number, pp, vpp) for number in range(total)]
    steady = [
        action for pair in zip(forwards[warm_up:], backwards, strict=False) for action in pair
    ]
    return [*forwards[:warm_up], *steady, *backwards[total - warm_up :]]


def _virtual(kind: ActionKind, number: int, pp: int, vpp: int) -> Action:
    """Return a rank's forward, or backward, with that number."""
    if vpp == 1:
        return Action(kind, number, 0)
    group, within = divmod(number, pp * vpp)
    chunk = within // pp
    return Action(kind, group * pp + within % pp, chunk if kind == "F" else vpp - 1 - chunk)


def gpipe(pp: int, vpp: int, micros: int) -> Orders:
    """Return all forwards, then all backwards, last micro-batch first (arXiv 1811.06965)."""
    del vpp  # always 1
    forwards = [Action("F", micro, 0) for micro in range(micros)]
    backwards = [Action("B", micro, 0) for micro in reversed(range(micros))]
    return [[*forwards, *backwards] for _ in range(pp)]


def zero_bubble(pp: int, vpp: int, micros: int) -> Orders:
    """Return an order that fills waits with gradients of weights, in 1F1B's memory: what arXiv
    2401.10241 calls ZB-H1.

    It is the order in which ranks would play if all three passes took the same time: a backward
    where one is ready, else a forward, else a gradient of weights. Rank p holds at most pp − p
    micro-batches that lack their backward, and p more that lack the gradients of weights.
    """
    del vpp  # always 1
    orders: Orders = [[] for _ in range(pp)]
    done: dict[tuple[str, int, int], int] = {}
    time = 0
    while any(len(order) < 3 * micros for order in orders):
        for rank, order in enumerate(orders):
            kind = _next_kind(rank, pp, micros, order, done, time)
            if kind is not None:
                action = Action(kind, sum(one.kind == kind for one in order), 0)
                order.append(action)
                done[kind, action.micro, rank] = time + 1
        time += 1
    return orders


def _next_kind(
    rank: int, pp: int, micros: int, order: list[Action], done: dict[tuple[str, int, int], int],
    time: int,
) -> ActionKind | None:  # fmt: skip
    """Return what the rank plays at ``time``, or None where it waits."""
    kinds = [action.kind for action in order]
    forwards, backwards, weights = (kinds.count(kind) for kind in ("F", "B", "W"))

    def ready(kind: str, micro: int, other: int) -> bool:
        return done.get((kind, micro, other), time + 1) <= time

    last = rank == pp - 1
    may_go_back = backwards < forwards and (last or ready("B", backwards, rank + 1))
    may_go_ahead = forwards < micros and forwards - backwards < pp - rank
    if may_go_ahead and rank:
        may_go_ahead = ready("F", forwards, rank - 1)
    if backwards - weights > rank or (backwards > weights and not (may_go_back or may_go_ahead)):
        return "W"
    if may_go_back:
        return "B"
    return "F" if may_go_ahead else None


ORDERS: Final[dict[PipelineSchedule, Callable[[int, int, int], Orders]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": gpipe,
    "zero-bubble": zero_bubble,
}
"""Name of a schedule -> its generator: (pp, vpp, micro-batches) -> the actions of each rank."""
