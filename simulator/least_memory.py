"""Lower bounds on the memory of a layout's plans, before any of them is scheduled.

When a rank's first backward begins, it holds what backward will read, for all micro-batches in
flight. Those are the same bytes for every cut and order of a mode. So the peak of every plan is at
least that, on each rank, with its parameters and what it receives for that backward.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.case import Case, Chunk, joined
from simulator.memory import held_parameters, held_phases
from simulator.pipeline.build import pieces_of
from simulator.pipeline.orders import held_by_chunk
from simulator.plan import SlicePlan
from simulator.specs import Workload
from simulator.stack import LayerKind, kinds

Counts = dict[LayerKind, int]


class _Rank(NamedTuple):
    """What a rank always holds, and passes of each chunk when its first backward begins."""

    static_bytes: int
    held: tuple[tuple[Chunk, int], ...]


class KeptBytes:
    """What cases with the same kinds of layers hold, each found once; they may differ in the size
    and number of micro-batches, stages and replicas. ``like``: of the same model, whose stacks it
    shares."""

    def __init__(self, like: KeptBytes | None = None) -> None:
        self._kinds: dict[tuple[object, ...], tuple[Counts, int]] = like._kinds if like else {}
        self._left: dict[tuple[object, ...], tuple[int, int]] = {}
        self._of_chunks: dict[tuple[object, ...], int] = {}
        self._static: dict[tuple[object, ...], int] = {}

    def static_bytes(self, case: Case, plan: SlicePlan, chunk: Chunk) -> int:
        """Return what a rank with the layers of ``chunk`` always holds, under an unsliced plan: no
        buffer depends on the micro-batch."""
        key = plan, chunk, case.cluster.dp
        if key not in self._static:
            self._static[key] = sum(held_parameters(case, chunk.of(case.shapes(plan))))
        return self._static[key]

    def of_chunk(self, case: Case, plan: SlicePlan, chunk: Chunk, work: Workload) -> int:
        """Return at least what a pass of ``chunk`` with the settings ``work`` leaves for
        backward."""
        alike = chunk, work.recompute, work.recompute_layers
        key = plan, case.workload.micro_batch_size, *alike
        found = self._of_chunks.get(key)
        if found is None:
            short = chunk._replace(layers=1, dense=0)
            if alike not in self._kinds:
                model = chunk.model(case.model)
                stacked = model.stacked_layers - chunk.layers + short.layers
                self._kinds[alike] = kinds(model, chunk.workload(work)), stacked
            counts, stacked = self._kinds[alike]
            layer = {kind: self._layer_bytes(case, plan, kind) for kind in counts}
            found = sum(layers * layer[kind] for kind, layers in counts.items()) + min(
                self._left_by(case, plan, kind, short) - stacked * layer[kind] for kind in counts
            )
            self._of_chunks[key] = found
        return found

    def _layer_bytes(self, case: Case, plan: SlicePlan, kind: LayerKind) -> int:
        """Return what a layer of a kind keeps."""
        one, two = (
            self._left_by(case, plan, kind, Chunk(layers, embedding=False, head=False))
            for layers in (1, 2)
        )
        return two - one

    def _left_by(self, case: Case, plan: SlicePlan, kind: LayerKind, chunk: Chunk) -> int:
        """Return the bytes that a pass forward of a chunk with layers of a kind leaves. Each
        sequence leaves as many, except where a rank gets more rows than others, which are whole."""
        size, balanced = case.workload.micro_batch_size, case.workload.moe_imbalance == 1
        key = plan, kind, chunk, 0 if balanced else size
        known_size, left = self._left.get(key, (0, 0))
        if not known_size or size % known_size:
            left = held_phases(pieces_of(case.of(kind), plan), chunk)["F"].held.whole
            self._left.setdefault(key, (size, left))
            return left
        return left * (size // known_size)


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
