"""Templates: how op templates are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final

from simulator.modules import is_replayed
from simulator.op_table import Ops, table_of
from simulator.ops import Gemm, Signature
from simulator.schedule import COMPUTE, TP, OpTemplate
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.values import Ref

LAYERS_KEPT: Final = 16
"""Kinds of layers whose templates are kept, for the plans that come next."""


@lru_cache(maxsize=LAYERS_KEPT)
def _shared_by(layer: tuple[object, ...]) -> dict[object, Any]:
    """Return the cache of plans with one kind of layer, keyed by all that an entry depends on."""
    return {}


def shared_by(shapes: Shapes) -> dict[object, Any]:
    """Return the cache that plans share if their templates differ only by how they cut slices.

    It is that of a layer: what depends on the rank (its number of layers, its replicas and ends) is
    kept under ``Templates.rank``.
    """
    plan = shapes.plan
    mode = plan.strategy, plan.comm_ctas, plan.sequence_parallel
    slicing = plan.slice_dim, plan.slice_balance, plan.slices_sequences
    layer = _layer_of(shapes.model, shapes.workload, shapes.cluster)
    return _shared_by((*layer, *mode, *slicing, shapes.fp8_any_layout))


@lru_cache(maxsize=1024)
def _layer_of(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> tuple[object, ...]:
    """Return all that ops of a layer, of the embedding and of the head depend on."""
    return (
        replace(model, num_hidden_layers=max(1, model.first_k_dense_replace)),
        replace(workload, grad_accumulation=1, pp_layers=(), recompute_layers=0),
        cluster.tp, cluster.cp, cluster.domain, cluster.ep, cluster.expert_tp,
    )  # fmt: skip


@dataclass(kw_only=True)
class Templates:
    """Maker of op templates.

    ``accumulate_first``: the micro-batch adds to the gradients of an earlier micro-batch, or to
    cleared ones. ``shared``: the cache for all plans with such shapes.
    """

    shapes: Shapes
    accumulate_first: bool = False
    shared: dict[object, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.shared:
            self.shared = shared_by(self.shapes)
        self._cuts: dict[int, tuple[int, ...]] = {}

    @cached_property
    def rank(self) -> tuple[object, ...]:
        """Part of the key of templates that depend on more than a layer."""
        s = self.shapes
        return s.model, s.workload, s.cluster, s.embedding, s.head

    def once(self, key: tuple[object, ...], make: Callable[[], Iterable[OpTemplate]]) -> Ops:
        """Return the templates of ``make``, entered once for all plans. They must depend only on
        the shapes and on ``key``."""
        found: Ops | None = self.shared.get(key)
        if found is None:
            found = self.shared[key] = table_of(self.shared).ops(make())
        return found

    def moved(self, ops: Ops, layers: int) -> Ops:
        """Return ops that ``once`` made, shifted to ``layers`` layers later in the pass."""
        if not layers:
            return ops
        return self.once((id(ops), layers), lambda: [op.shifted(layers) for op in ops])

    def cut(self, row: int) -> tuple[int, ...]:
        """Return the part of a plan's row slicing that a slice's templates depend on."""
        found = self._cuts.get(row)
        if found is None:
            plan, tokens = self.shapes.plan, self.shapes.tokens(row)
            whole = plan.slices_sequences or row < 0
            found = self._cuts[row] = (plan.row_slices, tokens) if whole else (tokens,)
        return found

    def op(
        self, role: str, row: int, signature: Signature, reads: tuple[Ref, ...],
        write: Ref, size: int, *, lane: int = COMPUTE, weights: tuple[str, ...] = (),
        piece: int = -1,
    ) -> OpTemplate:  # fmt: skip
        """Return a template that writes one value of ``size`` bytes (0: an alias of an input)."""
        replayed = is_replayed(
            role, self.shapes.workload.cuda_graph_scope, experts=self.shapes.model.num_experts > 0
        )
        return OpTemplate(
            role, row, signature, lane, 0, reads, (write,), weights, piece, replayed, sizes=(size,)
        )  # fmt: skip

    @property
    def gathers(self) -> bool:
        """Whether ranks gather the tokens of values between the blocks, and scatter their sums."""
        return self.shapes.shards_tokens and self.shapes.communicates

    @property
    def keeps_gathered(self) -> bool:
        """Whether the gathered input of a GEMM stays whole until its wgrad; else each rank keeps
        its share, and backward gathers it again."""
        workload = self.shapes.workload
        return workload.implementation.keeps_gathered and workload.fp8_recipe == "none"

    @property
    def waits_for_sums(self) -> bool:
        """Whether backward's gathers and sums run beside no compute of their own layer."""
        s = self.shapes
        overlaps = s.plan.strategy == "domino" or s.workload.implementation.tp_backward_overlap
        return s.communicates and not overlaps

    def accumulated(
        self, role: str, row: int, signature: Gemm, reads: tuple[Ref, ...], gradient: Ref,
        before: tuple[Ref, ...],
    ) -> list[OpTemplate]:  # fmt: skip
        """Return the wgrad that makes ``gradient``, which is added to the one of ``before`` or of
        an earlier micro-batch: by the GEMM itself, or after it."""
        s, accumulates = self.shapes, self.accumulate_first or bool(before)
        if s.workload.implementation.gradient_accumulation_fusion or not accumulates:
            signature = signature._replace(accumulate=accumulates)
            return [self.op(role, row, signature, (*reads, *before), gradient, 0)]
        elements = signature.groups * signature.m * signature.n
        apart = self.op(role, row, signature, reads, gradient.form("apart"), elements * s.element)
        reads = (*apart.writes, *before)
        return [apart, self.op(f"{role}.add", row, s.gradient_sum(elements), reads, gradient, 0)]

    def passes(
        self, asked: dict[str, tuple[bool, Signature]], reads: tuple[Ref, ...]
    ) -> list[OpTemplate]:
        """Return those of the passes, role -> (whether the implementation has it, signature), that
        it has: ops in place, behind ``reads``."""
        return [
            self.op(role, -1, signature, reads, Ref(role), 0)
            for role, (has, signature) in asked.items()
            if has
        ]

    def reduced(self, produced: OpTemplate, size_bytes: int, dtype: str = "") -> list[OpTemplate]:
        """Return ``produced``, followed by its value's all-reduce if ranks communicate."""
        signature = self.shapes.tp_all_reduce(size_bytes, dtype)
        return [produced, *self._collected(produced, signature, "ar", 0)]

    def summed(self, produced: OpTemplate, size_bytes: int) -> list[OpTemplate]:
        """Return ``produced``, followed by the sum of its value over the ranks: an all-reduce, or a
        reduce-scatter with sequence parallelism."""
        if not self.shapes.shards_tokens:
            return self.reduced(produced, size_bytes)
        signature = self.shapes.tp_collective("reduce_scatter", size_bytes)
        share = size_bytes // self.shapes.cluster.tp
        return [produced, *self._collected(produced, signature, "rs", share)]

    def gathered(
        self, row: int, role: str, value: Ref, write: Ref, size: int = 0
    ) -> list[OpTemplate]:
        """Return the all-gather of a [tokens / tp, hidden] value of slice ``row``, none where each
        rank holds all tokens. ``size``: bytes of all tokens, 0 without quantization."""
        s = self.shapes
        if not self.gathers:
            return []
        size = size or s.hidden_bytes(row)
        signature = s.tp_collective("all_gather", size)
        return [self.op(role, row, signature, (value,), write, size, lane=TP)]

    def _collected(
        self, produced: OpTemplate, signature: Signature, suffix: str, size: int
    ) -> list[OpTemplate]:
        if not self.shapes.communicates:
            return []
        value = produced.writes[0]
        return [
            self.op(
                f"{produced.role}.{suffix}", produced.slice, signature, (value,),
                value.form(suffix), size, lane=TP, piece=produced.piece,
            )
        ]  # fmt: skip

    def reduced_ref(self, value: Ref) -> Ref:
        """Return the value to read: the all-reduced one if ranks communicate."""
        return value.form("ar") if self.shapes.communicates else value

    def summed_ref(self, value: Ref) -> Ref:
        """Return the value to read: the one that ``summed`` gives."""
        return value.form("rs") if self.gathers else self.reduced_ref(value)

    def gathered_ref(self, local: Ref, whole: Ref) -> Ref:
        """Return the value to read: ``whole``, or ``local`` where each rank holds all tokens."""
        return whole if self.gathers else local
