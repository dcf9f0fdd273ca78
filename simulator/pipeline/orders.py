"""Orders: which chunk's forward or backward pass each rank of a pipeline plays next.

A generator returns one rank's actions. ``B`` is the whole backward pass, or only the gradients of
activations where ``W``, the gradients of weights, is an action of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from simulator.specs import ClusterSpec, PipelineSchedule, Workload

ActionKind = Literal["F", "B", "W"]


class Beside(NamedTuple):
    """The pass, of the other kind, that runs beside one."""

    micro: int
    chunk: int


class Action(NamedTuple):
    """A pass of one chunk of a rank, of one micro-batch. ``beside``: a forward and the backward
    after it that run together (``simulator.paired``)."""

    kind: ActionKind
    micro: int
    chunk: int
    beside: Beside | None = None


Orders = list[list[Action]]


def one_forward_one_backward(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B (arXiv 2104.04473): after a warm-up, forwards and backwards take turns.

    With several chunks a rank it is Megatron-LM's interleaved order: a rank plays a chunk for
    ``pp`` micro-batches, then the next chunk (core/pipeline_parallel/schedules.py).
    """
    return [_alternating(rank, pp, vpp, micros, ahead=0) for rank in range(pp)]


def in_pairs(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B in which each forward of the steady phase runs beside the backward after it. For
    that a rank plays one forward more first (``num_warmup_microbatches`` there)."""
    return [_with_partners(_alternating(rank, pp, vpp, micros, ahead=1)) for rank in range(pp)]


def _with_partners(order: list[Action]) -> list[Action]:
    made, index = list(order), 0
    while index + 1 < len(made):
        one, other = made[index], made[index + 1]
        if (one.kind, other.kind) == ("F", "B"):
            made[index] = one._replace(beside=Beside(other.micro, other.chunk))
            made[index + 1] = other._replace(beside=Beside(one.micro, one.chunk))
            index += 1
        index += 1
    return made


def _alternating(rank: int, pp: int, vpp: int, micros: int, *, ahead: int) -> list[Action]:
    total = micros * vpp
    warm_up = min(total, _warm_up(rank, pp, vpp, micros) + ahead)
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


def held_by_first(workload: Workload, cluster: ClusterSpec) -> int:
    """Return how many forward passes the first rank holds at once, of all its chunks."""
    pp, vpp, micros = cluster.pp, cluster.vpp, workload.grad_accumulation
    if workload.pp_schedule == "gpipe" and pp > 1:
        return micros
    return min(micros * vpp, _warm_up(0, pp, vpp, micros) + 1)


def _warm_up(rank: int, pp: int, vpp: int, micros: int) -> int:
    """Return how many forwards a rank plays before its first backward, less one."""
    total = micros * vpp
    if vpp == 1:
        return min(total, pp - rank - 1)
    return min(total, 2 * (pp - rank - 1) + (vpp - 1) * pp)


def gpipe(pp: int, vpp: int, micros: int) -> Orders:
    """Return all forwards, then all backwards, last micro-batch first (arXiv 1811.06965)."""
    del vpp  # always 1
    forwards = [Action("F", micro, 0) for micro in range(micros)]
    backwards = [Action("B", micro, 0) for micro in reversed(range(micros))]
    return [[*forwards, *backwards] for _ in range(pp)]


def zero_bubble(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B with separate weight-gradient passes that fill waits: ZB-H1 of arXiv 2401.10241.

    Rank p defers p of them, so that it holds as much as the first rank of 1F1B; while the pipeline
    drains, one fills the wait after each backward.
    """
    return [
        _with_weights(rank, order)
        for rank, order in enumerate(one_forward_one_backward(pp, vpp, micros))
    ]


def _with_weights(rank: int, order: list[Action]) -> list[Action]:
    forwards, backwards, weights = sum(action.kind == "F" for action in order), 0, 0
    made = []
    for action in order:
        made.append(action)
        forwards -= action.kind == "F"
        backwards += action.kind == "B"
        drains = action.kind == "B" and not forwards
        if backwards - weights > rank or (drains and backwards > weights):
            made.append(Action("W", weights, 0))
            weights += 1
    return made + [Action("W", micro, 0) for micro in range(weights, backwards)]


ORDERS: Final[dict[PipelineSchedule, Callable[[int, int, int], Orders]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": gpipe,
    "zero-bubble": zero_bubble,
}
"""Name of a schedule -> its generator: (pp, vpp, micro-batches) -> the actions of each rank."""


def orders_of(schedule: PipelineSchedule, pp: int, vpp: int, micros: int, *, pairs: bool) -> Orders:
    """Return the actions of each rank; ``pairs``: passes run beside each other, which 1F1B has."""
    return (in_pairs if pairs else ORDERS[schedule])(pp, vpp, micros)
