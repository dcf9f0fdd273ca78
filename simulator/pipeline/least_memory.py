"""Lower bounds on the memory of a layout's plans, before any of them is scheduled.

When a rank's first backward begins, it holds what backward will read, for all micro-batches in
flight. Those are the same bytes for every cut and order of a mode. So the peak of every plan is at
least that, on each rank, with its parameters and what it receives for that backward.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.case import Case
from simulator.chunks import Chunk, joined
from simulator.memory import held_parameters
from simulator.pipeline.build import pieces_of
from simulator.pipeline.memory import held_phases
from simulator.pipeline.orders import held_by_chunk
from simulator.plan import SlicePlan
from simulator.specs import Workload
from simulator.stack import LayerKind, kinds


class _Rank(NamedTuple):
    """What a rank always holds, and how many passes of each of its chunks when its first backward
    begins."""

    static_bytes: int
    held: tuple[tuple[Chunk, int], ...]


class _Keeps(NamedTuple):
    """The bytes that a pass forward of a stack of one kind leaves: of each layer, and beside."""

    layer: int
    beside: int


class KeptBytes:
    """What cases with the same kinds of layers and micro-batches hold, each found once."""

    def __init__(self) -> None:
        self._of_layers: dict[tuple[object, ...], _Keeps] = {}
        self._of_chunks: dict[tuple[object, ...], int] = {}
        self._static: dict[tuple[object, ...], int] = {}

    def static_bytes(self, case: Case, plan: SlicePlan, chunk: Chunk) -> int:
        """Return what a rank with the layers of ``chunk`` always holds."""
        key = plan, chunk, case.cluster.dp
        if key not in self._static:
            self._static[key] = sum(held_parameters(case, chunk.of(case.shapes(plan))))
        return self._static[key]

    def of_chunk(self, case: Case, plan: SlicePlan, chunk: Chunk, work: Workload) -> int:
        """Return at least what a pass of ``chunk`` with the settings ``work`` leaves for
        backward."""
        key = plan, chunk, work.recompute, work.recompute_layers
        if key not in self._of_chunks:
            ends, found = chunk._replace(layers=0, dense=0), 0
            beside = []
            for kind, layers in kinds(chunk.model(case.model), chunk.workload(work)).items():
                keeps = self._of_layer(case, plan, kind, ends)
                found += layers * keeps.layer
                beside.append(keeps.beside)
            self._of_chunks[key] = found + min(beside)
        return self._of_chunks[key]

    def _of_layer(self, case: Case, plan: SlicePlan, kind: LayerKind, ends: Chunk) -> _Keeps:
        """Return what layers of a kind keep between ``ends``."""
        key = plan, kind, ends
        if key not in self._of_layers:
            pieces = pieces_of(case.of(kind), plan)
            short, long = (ends._replace(layers=layers) for layers in (1, 2))
            one, two = (held_phases(pieces, chunk)["F"].held.whole for chunk in (short, long))
            layers = short.model(case.model).stacked_layers
            self._of_layers[key] = _Keeps(two - one, one - layers * (two - one))
        return self._of_layers[key]


class LeastBytes:
    """The bound of all plans of a case with the mode of ``plan``, which is unsliced, for any
    number of recomputed layers. ``static``: what the fullest rank always holds."""

    def __init__(self, case: Case, plan: SlicePlan, kept: KeptBytes) -> None:
        self.plan = plan
        self._case, self._kept = case, kept
        firsts: dict[Chunk, int] = {}  # of equal ranks the first holds most micro-batches
        for number, chunks in enumerate(case.chunks):
            firsts.setdefault(joined(chunks), number)
        self._ranks = [self._rank(chunk, number) for chunk, number in firsts.items()]
        self._received = case.shapes(plan).residual_bytes(-1)
        self.static = max(one.static_bytes for one in self._ranks)

    def _rank(self, chunk: Chunk, number: int) -> _Rank:
        case = self._case
        counts = held_by_chunk(case.workload, case.cluster, number)
        static = self._kept.static_bytes(case, self.plan, chunk)
        return _Rank(static, tuple(zip(case.chunks[number], counts, strict=True)))

    def of(self, work: Workload) -> int:
        """Return the bound (bytes) with the recomputation of ``work``."""
        return max(self._of_rank(one, work) for one in self._ranks)

    def _of_rank(self, rank: _Rank, work: Workload) -> int:
        held = sum(
            count * self._kept.of_chunk(self._case, self.plan, chunk, work)
            for chunk, count in rank.held
            if count
        )
        receives = not rank.held[-1][0].head
        return rank.static_bytes + held + receives * self._received
