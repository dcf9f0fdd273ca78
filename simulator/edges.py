"""Edges of the stack of layers: embedding, head and loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.ops import Pointwise
from simulator.schedule import DP, OpTemplate, Ref
from simulator.shapes import GRAD_BYTES, Shapes
from simulator.sharding import padded_vocab_size
from simulator.templates import Templates

LOSS_BYTES: Final = 4
"""Bytes of one loss term: cross-entropy is computed in fp32."""
UNFUSED_LOSS: Final = {
    "cross_entropy_max": (2, 6, 4),
    "cross_entropy_sum": (4, 16, 12),
    "cross_entropy_grad": (3, 12, 6),
}
"""Op -> kernels, and bytes read and written per logit, of Megatron-LM's cross-entropy in fp32
(core/tensor_parallel/cross_entropy.py): to fp32, maximum; less it, exp, sum, over the sum; backward
times the loss's gradient, and to the model's dtype. The logits are in 16 bits."""


@dataclass(kw_only=True)
class Edges:
    """Builder of the ops before, between and behind the layers. Layer numbers are relative:
    0 is layer 0 for the embedding, and the number of layers for the head."""

    templates: Templates

    @property
    def shapes(self) -> Shapes:
        """Shapes of the templates."""
        return self.templates.shapes

    def embedding(self, *, gathers: bool = False) -> list[OpTemplate]:
        """Return the vocabulary-parallel embedding, its all-reduce, positions and dropout.

        ``gathers``: the parameters of the edges come from the replicas first.
        """
        rows = range(self.shapes.plan.row_slices)
        looked_up = [op for row in rows for op in self._look_up(row)]
        if gathers:
            signature = self.shapes.dp_gather(self.shapes.edge_parameters)
            own = self.templates.op("embed.dp.ag", -1, signature, (), "params.edges", 0, lane=DP)
            first, *rest = looked_up
            waiting = first._replace(reads=(*first.reads, *own.writes))
            looked_up = [own, waiting, *rest]
        return looked_up + [self._embedding_post(row) for row in rows]

    def _look_up(self, row: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        produced = self.templates.op(
            "embed", row, s.pointwise("embedding", size, size), (), f"s{row}.embed", size,
            weights=("w.embed",),
        )  # fmt: skip
        # Positions are added to all tokens, before each rank takes its share.
        sums = self.templates.reduced if self._learns_positions else self.templates.summed
        return sums(produced, size)

    def _embedding_post(self, row: int) -> OpTemplate:
        s, f, output = self.shapes, self.templates, self.shapes.residual_bytes(row)
        # Without learned positions, dropout and a factor nothing moves.
        model = s.model
        works = self._learns_positions or model.hidden_dropout > 0 or model.scaled_embeddings
        read = s.hidden_bytes(row) if self._learns_positions else output
        mask = s.mask_bytes(row)
        signature = s.pointwise("embedding_post", read * works, output * works + mask)
        refer = f.reduced_ref if self._learns_positions else f.summed_ref
        source = (refer(0, f"s{row}.embed"),)
        return f.op("embed.post", row, signature, source, f"s{row}.x", output + mask)

    @property
    def _learns_positions(self) -> bool:
        return self.shapes.model.position_embedding == "learned"

    def head(self) -> list[OpTemplate]:
        """Return the final norm, LM head and cross-entropy.

        Each step runs over all slices, so that another slice's work hides the small all-reduces.
        The loss of a slice has two (maximum; sum and target logit).
        """
        rows = range(self.shapes.plan.row_slices)
        return [op for step in (self._logits, self._loss_sum) for row in rows for op in step(row)]

    def head_grad(self) -> list[OpTemplate]:
        """Return the gradients of ``head``; another slice's work hides the dgrad's collective."""
        steps, rows = (self._loss_grad, self._head_norm_grad), self.shapes.plan.rows_back
        return [op for step in steps for row in rows for op in step(row)]

    def _before(self, table: str, row: int) -> tuple[Ref, ...]:
        """Return the gradient of ``table`` that slice ``row`` adds to: that of the slice before."""
        rows = self.shapes.plan.rows_back
        index = rows.index(row)
        return (Ref(0, f"grad.{table}.s{rows[index - 1]}"),) if index else ()

    def _vocab(self) -> int:
        return padded_vocab_size(self.shapes.model, self.shapes.cluster) // self.shapes.cluster.tp

    def _logits(self, row: int) -> list[OpTemplate]:
        s, f = self.shapes, self.templates
        tokens, hidden, size = s.tokens(row), s.model.hidden_size, s.residual_bytes(row)
        logits_bytes = tokens * self._vocab() * s.element
        norm = f.op(
            "head.norm", row, s.pointwise(s.model.norm, size, size), (Ref(0, f"s{row}.x"),),
            f"s{row}.head.norm", size, weights=("w.head.norm",),
        )  # fmt: skip
        whole = f"s{row}.head.norm.ag"
        gather = f.gathered(row, "head.norm.ag", norm.writes[0], whole)
        source = (f.gathered_ref(norm.writes[0], whole),)
        capped = s.model.final_logit_softcapping > 0
        ops = [f.op(
            "head.logits", row, s.gemm(tokens, self._vocab(), hidden, "forward"), source,
            f"s{row}.uncapped" if capped else f"s{row}.logits", logits_bytes,
            weights=(self._table,),
        )]  # fmt: skip
        if capped:
            signature = s.pointwise("softcap", logits_bytes, logits_bytes)
            ops.append(f.op(
                "head.softcap", row, signature, ops[0].writes, f"s{row}.logits", logits_bytes
            ))  # fmt: skip
        loss_bytes = tokens * LOSS_BYTES
        signature = self._loss("cross_entropy_max", row, logits_bytes, loss_bytes)
        top = f.op("loss.max", row, signature, ops[-1].writes, f"s{row}.loss.max", loss_bytes)
        reduced = f.reduced(top, loss_bytes, "fp32")
        if self._own_logits:
            f.value_bytes[f"s{row}.fp32.logits"] = tokens * self._vocab() * LOSS_BYTES
            copied = top._replace(writes=(*top.writes, Ref(0, f"s{row}.fp32.logits")))
            reduced = [copied, *reduced[1:]]
        return [norm, *gather, *ops, *reduced]

    @property
    def _own_logits(self) -> bool:
        """Whether the loss makes a copy of the logits in fp32."""
        s = self.shapes
        return not s.workload.implementation.cross_entropy_loss_fusion and s.element < LOSS_BYTES

    def _loss(self, name: str, row: int, read: int, written: int) -> Pointwise:
        """Return a pass over the logits, or the several passes that it takes in fp32."""
        s = self.shapes
        if s.workload.implementation.cross_entropy_loss_fusion:
            return s.pointwise(name, read, written)
        kernels, reads, writes = UNFUSED_LOSS[name]
        logits = s.tokens(row) * self._vocab()
        law = "unfused_cross_entropy"
        return Pointwise(law, reads * logits, writes * logits, s.workload.dtype, kernels=kernels)

    def _loss_input(self, row: int) -> Ref:
        return Ref(0, f"s{row}.fp32.logits" if self._own_logits else f"s{row}.logits")

    def _loss_sum(self, row: int) -> list[OpTemplate]:
        s, f, tokens = self.shapes, self.templates, self.shapes.tokens(row)
        sums_bytes = 2 * tokens * LOSS_BYTES
        logits_bytes = tokens * self._vocab() * s.element
        signature = self._loss("cross_entropy_sum", row, logits_bytes, sums_bytes)
        reads = (self._loss_input(row), f.reduced_ref(0, f"s{row}.loss.max"))
        sums = f.op("loss.sum", row, signature, reads, f"s{row}.loss.sum", sums_bytes)
        return f.reduced(sums, sums_bytes, "fp32")

    def _loss_grad(self, row: int) -> list[OpTemplate]:
        s, f = self.shapes, self.templates
        tokens, hidden = s.tokens(row), s.model.hidden_size
        logits_bytes = tokens * self._vocab() * s.element
        signature = self._loss("cross_entropy_grad", row, logits_bytes, logits_bytes)
        reads = (
            self._loss_input(row),
            f.reduced_ref(0, f"s{row}.loss.max"),
            f.reduced_ref(0, f"s{row}.loss.sum"),
        )
        ops = [f.op("loss.grad", row, signature, reads, f"d.s{row}.logits", 0)]
        if s.model.final_logit_softcapping > 0:
            signature = s.pointwise("softcap_bwd", 2 * logits_bytes, logits_bytes)
            sources = (*ops[0].writes, Ref(0, f"s{row}.uncapped"))
            ops.append(f.op("head.softcap_bwd", row, signature, sources, f"d.s{row}.uncapped", 0))
        norm = f"s{row}.head.norm"
        again = f.gathered(row, "head.norm.ag_bwd", Ref(0, norm), f"{norm}.ag_bwd")
        waits = again[-1].writes if again and f.waits_for_sums else ()
        dgrad = f.op(
            "head.logits_dgrad", row, s.gemm(tokens, hidden, self._vocab(), "dgrad"),
            (*ops[-1].writes, *waits), f"d.s{row}.head.norm", s.hidden_bytes(row),
            weights=(self._table,),
        )  # fmt: skip
        wgrad = self._head_wgrad(row, ops[-1].writes)
        return [*ops, *again, *f.summed(dgrad, s.hidden_bytes(row)), *wgrad]

    def _head_wgrad(self, row: int, grad: tuple[Ref, ...]) -> list[OpTemplate]:
        s, f = self.shapes, self.templates
        signature = s.gemm(self._vocab(), s.model.hidden_size, s.tokens(row), "wgrad")
        before = self._before("head", row)
        norm, name = f"s{row}.head.norm", f"grad.head.s{row}"
        reads = (*grad, f.gathered_ref(Ref(0, norm), f"{norm}.ag_bwd"))
        if f.waits_for_sums:
            reads = (*reads, f.summed_ref(0, f"d.s{row}.head.norm"))
        ops = f.accumulated("head.logits_wgrad", row, signature, reads, name, before)
        if s.workload.implementation.dummy_wgrads:
            dummy = Ref(0, f"{name}.dummy")
            f.value_bytes[dummy.name] = signature.m * signature.n * s.element
            ops[0] = ops[0]._replace(writes=(*ops[0].writes, dummy))
        return ops

    def _head_norm_grad(self, row: int) -> list[OpTemplate]:
        s, f, size = self.shapes, self.templates, self.shapes.residual_bytes(row)
        signature = s.pointwise(f"{s.model.norm}_bwd", 2 * size, size)
        reads = (f.summed_ref(0, f"d.s{row}.head.norm"), Ref(0, f"s{row}.x"))
        return [
            f.op(
                "head.norm_bwd",
                row,
                signature,
                reads,
                f"d.s{row}.x",
                size,
                weights=("w.head.norm",),
            )
        ]

    def embedding_grad(self) -> list[OpTemplate]:
        """Return the scatter-adds of the slices into the table's (and the positions') gradient.

        The first of a step clears the table's gradient, unless a tied head has written it.
        """
        s, f = self.shapes, self.templates
        dense = s.workload.implementation.dense_embedding_grad
        elements = self._vocab() * s.model.hidden_size
        table = elements * (s.element if dense else GRAD_BYTES)
        clears = dense or not (f.accumulate_first or s.model.tie_word_embeddings)
        first, last = s.plan.rows_back[0], s.plan.rows_back[-1]
        ops = []
        for row in s.plan.rows_back:
            size = s.hidden_bytes(row)
            cleared = table if clears and row == first else 0
            scaled = size * s.model.scaled_embeddings
            signature = s.pointwise(
                "embedding_bwd", size + s.mask_bytes(row) + scaled, size + cleared + scaled
            )
            before = self._before("embed", row)
            local, whole = Ref(0, f"d.s{row}.x"), f"d.s{row}.embed.ag"
            ops += f.gathered(row, "embed_bwd.ag", local, whole)
            reads = (f.gathered_ref(local, whole), *before)
            whole_sum = dense and row == last
            write = f"grad.embed.s{row}.dense" if whole_sum else f"grad.embed.s{row}"
            ops.append(f.op("embed_bwd", row, signature, reads, write, 0))
        if dense:
            reads = ops[-1].writes
            write = f"grad.embed.s{last}"
            ops.append(f.op("embed_bwd.add", -1, s.gradient_sum(elements), reads, write, 0))
        return ops

    @property
    def _table(self) -> str:
        return "w.embed" if self.shapes.model.tie_word_embeddings else "w.head.logits"
