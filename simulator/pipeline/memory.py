"""Peak memory of each rank of a pipeline: what its chunks hold for the micro-batches in flight."""

from __future__ import annotations

from simulator.case import Case
from simulator.chunks import Chunk, joined
from simulator.memory import Live, Memory, Phase, held_parameters, lifetimes
from simulator.ordering import order_of
from simulator.pipeline.build import Pass, Piece, Pieces
from simulator.pipeline.orders import held_by_first
from simulator.plan import SlicePlan
from simulator.schedule import Segment

Phases = dict[str, Phase]
"""Live values of a chunk's passes: of ``F``, ``B`` and, where it is apart, ``W``."""


def piped_memory(pieces: Pieces) -> tuple[Memory, ...]:
    """Return each rank's memory at its peak."""
    every = {chunk for rank in pieces.ranks for chunk in rank}
    chunks = {chunk: _held(pieces, chunk) for chunk in every}
    return tuple(_rank_memory(pieces, rank, chunks) for rank in range(len(pieces.ranks)))


def _rank_memory(pieces: Pieces, rank: int, chunks: dict[Chunk, Phases]) -> Memory:
    live = peak = Live(0, 0)
    before = {"F": "", "B": "F", "W": "B"}
    for action in pieces.actions[rank]:
        phases = chunks[pieces.ranks[rank][action.chunk]]
        own = phases[before[action.kind]].held if before[action.kind] else Live(0, 0)
        others = Live(live.whole - own.whole, live.logits - own.logits)
        phase = phases[action.kind]
        peak = max(peak, _sum(others, phase.peak))
        live = _sum(others, phase.held)
    static = held_parameters(pieces.case, pieces.step_shapes(rank))
    return static._replace(activations=peak.whole - peak.logits, logits=peak.logits)


class KeptBytes:
    """What layers keep for backward, for cases with the same layers and micro-batches."""

    def __init__(self) -> None:
        self._of_layers: dict[SlicePlan, tuple[int, int]] = {}

    def least_bytes(self, case: Case, plan: SlicePlan) -> int:
        """Return bytes that no plan with the mode of ``plan``, which is unsliced, needs less than.

        Before backward begins, the first stage holds what backward will read, for all micro-batches
        in flight; that is the same for every cut and order.
        """
        if plan not in self._of_layers:
            pieces = Pieces(case, plan, order_of(case, plan))
            one, two = (
                _held(pieces, Chunk(layers, False, False))["F"].held.whole for layers in (1, 2)
            )
            self._of_layers[plan] = two - one, 2 * one - two
        each, more = self._of_layers[plan]
        first = case.chunks[0]
        layers = min(chunk.layers for chunk in first)
        whole = case.shapes(plan)
        static = sum(held_parameters(case, joined(first).of(whole)))
        return static + held_by_first(case.workload, case.cluster) * (layers * each + min(0, more))


def _sum(one: Live, other: Live) -> Live:
    return Live(one.whole + other.whole, one.logits + other.logits)


def _held(pieces: Pieces, chunk: Chunk) -> Phases:
    """Return what a chunk holds during and behind each pass; a message that it got lives as long as
    the values that it stands for."""
    parts: dict[str, Pass] = (
        {"F": "forward", "B": "dgrad", "W": "wgrad"}
        if pieces.splits_backward
        else {"F": "forward", "B": "backward"}
    )
    segments: list[tuple[int, Segment]] = []
    sizes: dict[str, int] = {}
    for number, part in enumerate(parts.values()):
        schedule = pieces.schedule(Piece(chunk, part, False))
        segments += [(number, segment) for segment in schedule.parts[0].segments]
        sizes |= schedule.value_bytes
    phases = dict(zip(parts, lifetimes(segments, len(parts), sizes), strict=True))
    received = pieces.whole.residual_bytes(-1)
    if not chunk.embedding:
        phases["F"] = _more(phases["F"], received, received)
        phases["B"] = _more(phases["B"], received, 0)
    if not chunk.head:
        phases["B"] = _more(phases["B"], received, 0)
    return phases


def _more(phase: Phase, at_peak: int, at_end: int) -> Phase:
    return Phase(_sum(phase.peak, Live(at_peak, 0)), _sum(phase.held, Live(at_end, 0)))
