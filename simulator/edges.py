"""Edges of an iteration: embedding, head and loss, gradient reduction and optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.buckets import reduction
from simulator.fragments import Fragments
from simulator.ops import Collective
from simulator.schedule import DP, TP, OpTemplate, Ref
from simulator.shapes import GRAD_BYTES, Shapes
from simulator.specs import padded_vocab_size

LOSS_BYTES = 4
"""Bytes of one loss term: cross-entropy is computed in fp32."""
ADAM_BYTES_READ = 3 * 4
"""Per parameter: main parameter and both moments, in fp32; the main gradient is extra."""
ADAM_BYTES_WRITTEN = 3 * 4
"""Per parameter: main parameter and both moments, in fp32; the model's own copy is extra."""


@dataclass(kw_only=True)
class Edges:
    """Builder of the ops before, between and behind the layers. Layer numbers are relative:
    0 is layer 0 for the embedding, and the number of layers for the head."""

    fragments: Fragments

    @property
    def shapes(self) -> Shapes:
        """Shapes of the fragments."""
        return self.fragments.shapes

    def embedding(self, *, gathers: bool = False) -> list[OpTemplate]:
        """Return the vocabulary-parallel embedding, its all-reduce, positions and dropout.

        ``gathers``: the parameters of the edges come from the replicas first.
        """
        rows = range(self.shapes.plan.row_slices)
        looked_up = [op for row in rows for op in self._look_up(row)]
        if gathers:
            signature = self.shapes.dp_gather(self.shapes.edge_parameters)
            own = self.fragments.op("embed.dp.ag", -1, signature, (), "params.edges", 0, lane=DP)
            first, *rest = looked_up
            waiting = first._replace(reads=(*first.reads, *own.writes))
            looked_up = [own, waiting, *rest]
        return looked_up + [self._embedding_post(row) for row in rows]

    def _look_up(self, row: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        produced = self.fragments.op(
            "embed", row, s.pointwise("embedding", size, size), (), f"s{row}.embed", size,
            weights=("w.embed",),
        )  # fmt: skip
        # Positions are added to all tokens, before each rank takes its share.
        sums = self.fragments.reduced if self._learns_positions else self.fragments.summed
        return sums(produced, size)

    def _embedding_post(self, row: int) -> OpTemplate:
        s, f, output = self.shapes, self.fragments, self.shapes.residual_bytes(row)
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
        """Return the final norm, LM head, cross-entropy and their gradients.

        Each stage runs over all slices, so that another slice's work hides the small all-reduces
        and the dgrad's. The loss of a slice has two (maximum; sum and target logit).
        """
        rows = range(self.shapes.plan.row_slices)
        stages = (self._logits, self._loss_sum, self._loss_grad, self._head_norm_grad)
        return [op for stage in stages for row in rows for op in stage(row)]

    def _vocab(self) -> int:
        return padded_vocab_size(self.shapes.model, self.shapes.cluster) // self.shapes.cluster.tp

    def _logits(self, row: int) -> list[OpTemplate]:
        s, f = self.shapes, self.fragments
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
        signature = s.pointwise("cross_entropy_max", logits_bytes, loss_bytes)
        top = f.op("loss.max", row, signature, ops[-1].writes, f"s{row}.loss.max", loss_bytes)
        return [norm, *gather, *ops, *f.reduced(top, loss_bytes, "fp32")]

    def _loss_sum(self, row: int) -> list[OpTemplate]:
        s, f, tokens = self.shapes, self.fragments, self.shapes.tokens(row)
        sums_bytes = 2 * tokens * LOSS_BYTES
        logits_bytes = tokens * self._vocab() * s.element
        signature = s.pointwise("cross_entropy_sum", logits_bytes, sums_bytes)
        reads = (Ref(0, f"s{row}.logits"), f.reduced_ref(0, f"s{row}.loss.max"))
        sums = f.op("loss.sum", row, signature, reads, f"s{row}.loss.sum", sums_bytes)
        return f.reduced(sums, sums_bytes, "fp32")

    def _loss_grad(self, row: int) -> list[OpTemplate]:
        s, f = self.shapes, self.fragments
        tokens, hidden = s.tokens(row), s.model.hidden_size
        logits_bytes = tokens * self._vocab() * s.element
        signature = s.pointwise("cross_entropy_grad", logits_bytes, logits_bytes)
        reads = (
            Ref(0, f"s{row}.logits"),
            f.reduced_ref(0, f"s{row}.loss.max"),
            f.reduced_ref(0, f"s{row}.loss.sum"),
        )
        ops = [f.op("loss.grad", row, signature, reads, f"d.s{row}.logits", 0)]
        if s.model.final_logit_softcapping > 0:
            signature = s.pointwise("softcap_bwd", 2 * logits_bytes, logits_bytes)
            sources = (*ops[0].writes, Ref(0, f"s{row}.uncapped"))
            ops.append(f.op("head.softcap_bwd", row, signature, sources, f"d.s{row}.uncapped", 0))
        dgrad = f.op(
            "head.logits_dgrad", row, s.gemm(tokens, hidden, self._vocab(), "dgrad"),
            ops[-1].writes, f"d.s{row}.head.norm", s.hidden_bytes(row), weights=(self._table,),
        )  # fmt: skip
        norm = f"s{row}.head.norm"
        again = f.gathered(row, "head.norm.ag_bwd", Ref(0, norm), f"{norm}.ag_bwd")
        wgrad = self._head_wgrad(row, ops[-1].writes)
        return [*ops, *again, *f.summed(dgrad, s.hidden_bytes(row)), wgrad]

    def _head_wgrad(self, row: int, grad: tuple[Ref, ...]) -> OpTemplate:
        s, f = self.shapes, self.fragments
        accumulate = f.accumulate_first or row > 0
        signature = s.gemm(
            self._vocab(), s.model.hidden_size, s.tokens(row), "wgrad", accumulate=accumulate
        )
        before = (Ref(0, f"grad.head.s{row - 1}"),) if row else ()
        norm = f"s{row}.head.norm"
        reads = (*grad, f.gathered_ref(Ref(0, norm), f"{norm}.ag_bwd"), *before)
        return f.op("head.logits_wgrad", row, signature, reads, f"grad.head.s{row}", 0)

    def _head_norm_grad(self, row: int) -> list[OpTemplate]:
        s, f, size = self.shapes, self.fragments, self.shapes.residual_bytes(row)
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
        s, f = self.shapes, self.fragments
        table = self._vocab() * s.model.hidden_size * GRAD_BYTES
        clears = not (f.accumulate_first or s.model.tie_word_embeddings)
        ops = []
        for row in range(s.plan.row_slices):
            size = s.hidden_bytes(row)
            cleared = table if clears and row == 0 else 0
            scaled = size * s.model.scaled_embeddings
            signature = s.pointwise(
                "embedding_bwd", size + s.mask_bytes(row) + scaled, size + cleared + scaled
            )
            before = (Ref(0, f"grad.embed.s{row - 1}"),) if row else ()
            local, whole = Ref(0, f"d.s{row}.x"), f"d.s{row}.embed.ag"
            ops += f.gathered(row, "embed_bwd.ag", local, whole)
            reads = (f.gathered_ref(local, whole), *before)
            ops.append(f.op("embed_bwd", row, signature, reads, f"grad.embed.s{row}", 0))
        return ops

    def step(
        self, last_bucket_parameters: int, reads: tuple[Ref, ...], *, gathers: bool = False
    ) -> list[OpTemplate]:
        """Return the last data-parallel bucket, the sums of partial gradients and of those of
        copied key-value heads, the global gradient norm, and Adam.

        ``gathers``: the updated parameters are gathered from the replicas at the end.
        """
        s, f = self.shapes, self.fragments
        ops: list[OpTemplate] = []
        if s.reduces:
            ops.append(reduction(f, "step.dp", last_bucket_parameters, reads, "step.dp"))
            reads = (*reads, *ops[-1].writes)
        partial = s.tp_all_reduce(s.partial_parameters * GRAD_BYTES, "fp32")
        sums = {"step.tp": partial} if s.partial_parameters else {}
        if s.kv_copies > 1:
            sums["step.kv"] = s.copies_all_reduce()
        for name, signature in sums.items() if s.communicates else ():
            last = (Ref(0, f"grad.embed.s{s.plan.row_slices - 1}"),)
            ops.append(f.op(f"{name}.ar", -1, signature, last, name, 0, lane=TP))
            reads = (*reads, *ops[-1].writes)
        parameters = s.optimizer_parameters
        read = s.grad_bytes * parameters
        square = f.op(
            "step.grad_norm", -1, s.pointwise("grad_norm", read, 4), reads, "step.norm", 4
        )
        norm, source = self._norm_over_ranks(square)
        ops += norm
        adam = s.pointwise(
            "adam",
            (ADAM_BYTES_READ + s.grad_bytes) * parameters,
            (ADAM_BYTES_WRITTEN + s.element) * parameters,
        )
        done = f.op("step.adam", -1, adam, (source,), "step.done", 0)
        ops.append(done)
        if gathers:
            whole = s.dp_gather(s.rank_parameters)
            ops.append(f.op("step.dp.ag", -1, whole, done.writes, "step.params", 0, lane=DP))
        return ops

    def _norm_over_ranks(self, square: OpTemplate) -> tuple[list[OpTemplate], Ref]:
        """Return the op ``square`` with the sum of its value over the ranks that hold other
        parameters, and the value to read."""
        s, f = self.shapes, self.fragments
        if not (s.reduces and s.shards_optimizer):
            return f.reduced(square, 4, "fp32"), f.reduced_ref(0, "step.norm")
        signature = Collective("all_reduce", 4, *s.cluster.world_group, 0, "fp32")
        summed = f.op("step.grad_norm.ar", -1, signature, square.writes, "step.norm.ar", 0, lane=DP)
        return [square, summed], summed.writes[0]

    @property
    def _table(self) -> str:
        return "w.embed" if self.shapes.model.tie_word_embeddings else "w.head.logits"
