"""Edges of the stack of layers: embedding, head and loss.

They take the places of the layers before and after the stack. The embedding writes what the last
fragments of a layer write, so it is issued where an order has those of the layer before the first;
the head begins as a layer does. So each edge takes the place of a fragment of a layer that does not
exist (``EMBEDS``, ``HEADS``, ``HEAD_GRADS``, ``EMBED_GRADS``), and a slice's collectives at the
edges run beside the layers' compute of other slices, as far as the order lets layers overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, Literal

from simulator.issue_order import ALL_SLICES, Token
from simulator.mtp import projections, projections_bwd, repeated
from simulator.op_table import Ops, table_of
from simulator.ops import Pointwise
from simulator.schedule import DP, OpTemplate
from simulator.shapes import GRAD_BYTES, Shapes
from simulator.sharding import padded_vocab_size
from simulator.templates import Templates
from simulator.values import Ref, main_gradient

LOSS_BYTES: Final = 4
"""Bytes of one loss term: cross-entropy is computed in fp32."""
PLAIN_LOSS: Final = 12
"""Bytes of one logit at the peak of PyTorch's own loss, in backward: its log-softmax, which was
kept, the gradient of the negative log-likelihood and that of the log-softmax, all in fp32 (ATen's
nll_loss_backward and _log_softmax_backward_data). The logits are gone: torchtitan deletes them, and
Hugging Face's Trainer has no name for them. Megatron-LM's loss overwrites what it kept."""
PARALLEL_LOSS: Final = 16
"""The same of logits that are divided over ranks (torch/distributed/tensor/parallel/loss.py): the
log-softmax, zeros with the targets, the exponential, and the sum of both."""
UNFUSED_LOSS: Final = {
    "cross_entropy_max": (2, 6, 4),
    "cross_entropy_sum": (4, 16, 12),
    "cross_entropy_grad": (3, 12, 6),
}
"""Op -> kernels, and bytes read and written per logit, of Megatron-LM's cross-entropy in fp32
(core/tensor_parallel/cross_entropy.py): to fp32, maximum; less it, exp, sum, over the sum; backward
times the loss's gradient, and to the model's dtype. The logits are in 16 bits."""


Await = Literal["dgrad", "wgrad", "nothing"]
"""Which gradient at the head a slice waits for: of its input, where the order asked for that of the
table first, of the table, none."""
Adding = tuple[Ref, tuple[Ref, ...]]
"""A slice's gradient of a table, and the one that it adds to."""
Place = tuple[str, str]
"""Block and fragment of a layer."""


def _once(make: Callable[..., list[OpTemplate]]) -> Callable[..., Ops]:
    """Cache the ops of ``make`` for all plans; they must depend only on the slice and on the other
    arguments."""

    @wraps(make)
    def kept(edges: Edges, row: int, *told: object) -> Ops:
        t = edges.templates
        key = make.__name__, row, t.cut(row), edges.gathers, t.accumulate_first, *told
        return t.once(key, lambda: make(edges, row, *told))

    return kept


@dataclass(kw_only=True)
class Edges:
    """Builder of the ops before, between and after the layers, of one pass. Layer numbers are
    relative: 0 is layer 0 for the embedding, and the number of layers for the head.

    ``gathers``: the embedding waits for the parameters of the edges, which come from the replicas.
    """

    templates: Templates
    gathers: bool = False
    _added: dict[str, list[int]] = field(default_factory=dict)
    _awaited: dict[int, Await] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        """Shapes of the templates."""
        return self.templates.shapes

    def line(self, places: Places, tokens: tuple[Token, ...], later: int) -> tuple[Ops, ...]:
        """Return the ops in the places of ``tokens``, which an order issues one after the other;
        they belong to ``later`` layers after the tokens'."""
        t = self.templates
        key = id(places), tokens, later, t.shapes.plan.row_slices, self.gathers, t.accumulate_first
        found: tuple[Ops, ...] | None = t.shared.get(key)
        if found is None:
            table = table_of(t.shared)
            found = t.shared[key] = tuple(
                table.ops(
                    op
                    for ops in self.instead(places, token)
                    for op in t.moved(ops, token.offset + later)
                )
                for token in tokens
            )
        return found

    def instead(self, places: Places, token: Token) -> list[Ops]:
        """Return the ops in the place of ``token``; none for most fragments, and for column pieces
        but the first."""
        make = places.get((token.block, token.fragment))
        if make is None or token.piece > 0:
            return []
        rows = self.shapes.plan.rows_back if token.slice == ALL_SLICES else (token.slice,)
        made = (self._made(places, make, row) for row in rows)
        return [ops for ops in made if ops is not None]

    def _made(self, places: Places, make: Maker, row: int) -> Ops | None:
        """Return the ops of a place; at the head with those of multi-token prediction."""
        ops = make(self, row)
        predicts = self.shapes.model.num_nextn_predict_layers > 0
        if ops is None or not predicts or places not in (HEADS, HEAD_GRADS):
            return ops
        adding: tuple[Adding, ...] = ()
        if make is Edges.head_norm_bwd:
            layers = range(1, self.shapes.model.num_nextn_predict_layers + 1)
            adding = tuple(self._adding(f"mtp{k}.proj", row) for k in layers)
        key = "mtp", make.__name__, row, self.templates.cut(row), id(ops), adding
        return self.templates.once(key, lambda: self._with_mtp(make, row, ops, adding))

    def _with_mtp(
        self, make: Maker, row: int, ops: Ops, adding: tuple[Adding, ...]
    ) -> list[OpTemplate]:
        t = self.templates
        found = repeated(t, ops)
        if make is Edges.head_norm:
            return [*projections(t, row), *found]
        if make is Edges.head_norm_bwd:
            return [*found, *projections_bwd(t, row, (Ref("x", row).grad,), adding)]
        return found

    def whole(self, first: int) -> list[OpTemplate]:
        """Return all ops of both passes, where slice ``first`` comes first in backward; their order
        cannot be played."""
        s, count = self.shapes, self.shapes.plan.row_slices
        rows = sorted(range(count), key=lambda row: row != first)
        embeds = (EMBEDS, EMBED_GRADS) if s.embedding else ()
        heads = (HEADS, HEAD_GRADS) if s.head else ()
        ops = [
            op for places in (*embeds, *heads) for make in places.values() for row in rows
            for op in self._made(places, make, row) or ()
        ]  # fmt: skip
        return [*ops, *self.loss_sums(), *self.dense_embedding_grad()]

    def parameters(self) -> Ops:
        """Return the gather of the edges' parameters from the replicas."""
        return self._parameters(-1, *self.templates.rank)

    @_once
    def _parameters(self, row: int, *_: object) -> list[OpTemplate]:
        edge = self.shapes.edge_parameters
        signature = self.shapes.dp_gather(edge, edge=edge)
        return [
            self.templates.op("embed.dp.ag", row, signature, (), Ref("params.edges"), 0, lane=DP)
        ]

    # Forward ------------------------------------------------------------------------------------

    @_once
    def look_up(self, row: int) -> list[OpTemplate]:
        """Return the vocabulary-parallel embedding of a slice and its sum over the ranks."""
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        waits = (Ref("params.edges"),) if self.gathers else ()
        produced = self.templates.op(
            "embed", row, s.pointwise("embedding", size, size), waits, Ref("embed", row), size,
            weights=("w.embed",),
        )  # fmt: skip
        # Positions are added to all tokens, before each rank takes its share.
        sums = self.templates.reduced if self._learns_positions else self.templates.summed
        return sums(produced, size)

    @_once
    def embed_post(self, row: int) -> list[OpTemplate]:
        """Return positions and dropout of a slice."""
        s, f, output = self.shapes, self.templates, self.shapes.residual_bytes(row)
        # Without learned positions, dropout and a factor nothing moves.
        model = s.model
        works = self._learns_positions or model.hidden_dropout > 0 or model.scaled_embeddings
        read = s.hidden_bytes(row) if self._learns_positions else output
        mask = s.mask_bytes(row)
        signature = s.pointwise("embedding_post", read * works, output * works + mask)
        refer = f.reduced_ref if self._learns_positions else f.summed_ref
        source = (refer(Ref("embed", row)),)
        return [f.op("embed.post", row, signature, source, Ref("x", row), output + mask)]

    @property
    def _learns_positions(self) -> bool:
        return self.shapes.model.position_embedding == "learned"

    def _vocab(self) -> int:
        return padded_vocab_size(self.shapes.model, self.shapes.cluster) // self.shapes.cluster.tp

    @_once
    def head_norm(self, row: int) -> list[OpTemplate]:
        """Return the final norm of a slice and the gather of its output."""
        s, f, size = self.shapes, self.templates, self.shapes.residual_bytes(row)
        norm = f.op(
            "head.norm", row, s.pointwise(s.model.norm, size, size), (Ref("x", row),),
            Ref("head.norm", row), size, weights=("w.head.norm",),
        )  # fmt: skip
        return [norm, *f.gathered(row, "head.norm.ag", norm.writes[0], norm.writes[0].form("ag"))]

    @_once
    def logits(self, row: int) -> list[OpTemplate]:
        """Return the LM head of a slice."""
        s, f, tokens = self.shapes, self.templates, self.shapes.tokens(row)
        logits_bytes = tokens * self._vocab() * s.element
        source = f.gathered_ref(Ref("head.norm", row), Ref("head.norm", row).form("ag"))
        ops = [f.op(
            "head.logits", row, s.gemm(tokens, self._vocab(), s.model.hidden_size, "forward"),
            (source,), Ref("uncapped", row) if self._capped else Ref("logits", row), logits_bytes,
            weights=(self._table,),
        )]  # fmt: skip
        if self._capped:
            signature = s.pointwise("softcap", logits_bytes, logits_bytes)
            ops.append(f.op(
                "head.softcap", row, signature, ops[0].writes, Ref("logits", row), logits_bytes
            ))  # fmt: skip
        return ops

    @_once
    def loss_max(self, row: int) -> list[OpTemplate]:
        """Return the largest logit of each token, over the ranks."""
        s, f, tokens = self.shapes, self.templates, self.shapes.tokens(row)
        logits_bytes, loss_bytes = tokens * self._vocab() * s.element, tokens * LOSS_BYTES
        signature = self._loss("cross_entropy_max", row, logits_bytes, loss_bytes)
        source = (Ref("logits", row),)
        top = f.op("loss.max", row, signature, source, Ref("loss.max", row), loss_bytes)
        reduced = f.reduced(top, loss_bytes, "fp32")
        if not self._own_logits:
            return reduced
        copy_bytes = tokens * self._vocab() * LOSS_BYTES
        return [top.writing(Ref("fp32.logits", row), copy_bytes), *reduced[1:]]

    def loss_sums(self) -> Sequence[OpTemplate]:
        """Return sum and target logit of all slices, after the whole of forward: another slice's
        work hides the small all-reduces."""
        count = self.shapes.plan.row_slices if self.shapes.head else 0
        ops = [op for row in range(count) for op in self._loss_sum(row, row == count - 1)]
        if not self.shapes.model.num_nextn_predict_layers:
            return ops
        key = "mtp", "loss_sums", *map(id, ops)
        return self.templates.once(key, lambda: repeated(self.templates, ops))

    @property
    def _own_logits(self) -> bool:
        """Whether the loss makes a copy of the logits in fp32."""
        s = self.shapes
        return not s.workload.implementation.cross_entropy_loss_fusion and s.element < LOSS_BYTES

    @property
    def _plain_loss(self) -> bool:
        """Whether the loss is PyTorch's own, whose backward makes gradients in fp32."""
        made = self.shapes.workload.implementation
        return made.name == "torch" and not made.cross_entropy_loss_fusion

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
        return Ref("fp32.logits" if self._own_logits else "logits", row)

    @_once
    def _loss_sum(self, row: int, is_last: bool) -> list[OpTemplate]:
        s, f, tokens = self.shapes, self.templates, self.shapes.tokens(row)
        sums_bytes = 2 * tokens * LOSS_BYTES
        logits_bytes = tokens * self._vocab() * s.element
        signature = self._loss("cross_entropy_sum", row, logits_bytes, sums_bytes)
        if s.workload.implementation.check_for_nan_in_grad and is_last:
            signature = signature._replace(awaited=True)
        reads = (self._loss_input(row), f.reduced_ref(Ref("loss.max", row)))
        sums = f.op("loss.sum", row, signature, reads, Ref("loss.sum", row), sums_bytes)
        return f.reduced(sums, sums_bytes, "fp32")

    # Backward -----------------------------------------------------------------------------------

    @_once
    def loss_grad(self, row: int) -> list[OpTemplate]:
        """Return the gradient of a slice's logits, and the gather that its wgrad needs."""
        s, f = self.shapes, self.templates
        logits_bytes = s.tokens(row) * self._vocab() * s.element
        signature = self._loss("cross_entropy_grad", row, logits_bytes, logits_bytes)
        reads = (
            self._loss_input(row),
            f.reduced_ref(Ref("loss.max", row)),
            f.reduced_ref(Ref("loss.sum", row)),
        )
        ops = [f.op("loss.grad", row, signature, reads, Ref("logits", row).grad, 0)]
        if self._plain_loss:
            name = Ref("fp32.logits", row).grad
            whole = PLAIN_LOSS if s.cluster.tp == 1 else PARALLEL_LOSS
            there = (
                s.element + LOSS_BYTES * self._own_logits
            )  # the gradient takes the logits' place
            more = (whole - there) * s.tokens(row) * self._vocab()
            ops[0] = ops[0].writing(name, more)
        if self._capped:
            signature = s.pointwise("softcap_bwd", 2 * logits_bytes, logits_bytes)
            sources = (*ops[0].writes, Ref("uncapped", row))
            ops.append(
                f.op("head.softcap_bwd", row, signature, sources, Ref("uncapped", row).grad, 0)
            )
        norm = Ref("head.norm", row)
        if f.keeps_gathered:
            return ops
        return [*ops, *f.gathered(row, "head.norm.ag_bwd", norm, norm.form("ag_bwd"))]

    def logits_dgrad(self, row: int) -> Ops:
        """Return the gradient of the final norm's output, summed over the ranks; where its wgrad
        came first, that follows."""
        asked = self._awaited.get(row) == "dgrad"
        self._awaited[row] = "nothing" if asked else "wgrad"
        return self._logits_dgrad(row, *(self._adding("head", row) if asked else ()))

    @_once
    def _logits_dgrad(self, row: int, *adding: Any) -> list[OpTemplate]:
        s, f, norm = self.shapes, self.templates, Ref("head.norm", row)
        again = f.gathered_ref(norm, self._whole_input(row))
        waits = (again,) if f.waits_for_sums and s.shards_tokens else ()
        signature = s.gemm(s.tokens(row), s.model.hidden_size, self._vocab(), "dgrad")
        dgrad = f.op(
            "head.logits_dgrad", row, signature, (self._logits_grad(row), *waits),
            norm.grad, s.hidden_bytes(row), weights=(self._table,),
        )  # fmt: skip
        wgrad = self._logits_wgrad(row, *adding) if adding else ()
        return [*f.summed(dgrad, s.hidden_bytes(row)), *wgrad]

    @property
    def _capped(self) -> bool:
        return self.shapes.model.final_logit_softcapping > 0

    def _whole_input(self, row: int) -> Ref:
        """Return the head's input of all tokens that its wgrad reads."""
        return Ref("head.norm", row).form("ag" if self.templates.keeps_gathered else "ag_bwd")

    def _logits_grad(self, row: int) -> Ref:
        return Ref("uncapped" if self._capped else "logits", row).grad

    def _adding(self, table: str, row: int) -> Adding:
        """Return the gradient of ``table`` from slice ``row``, and the one that it adds to, written
        by the slice issued before. The last slice's is that of the table."""
        added = self._added.setdefault(table, [])
        before = (main_gradient(table, added[-1]),) if added else ()
        added.append(row)
        last = len(added) == self.shapes.plan.row_slices
        return main_gradient(table, -1 if last else row), before

    def logits_wgrad(self, row: int) -> Ops | None:
        """Return ``early_wgrad``; if the dgrad is not issued yet, the wgrad follows right after
        it."""
        self._awaited.setdefault(row, "dgrad")
        return self.early_wgrad(row)

    def early_wgrad(self, row: int) -> Ops | None:
        """Return the ops that add slice ``row`` to the gradient of the head's table; None if its
        dgrad is yet to be issued, or if these ops were issued before."""
        if self._awaited.get(row) != "wgrad":
            return None
        self._awaited[row] = "nothing"
        return self._logits_wgrad(row, *self._adding("head", row))

    @_once
    def _logits_wgrad(self, row: int, made: Ref, before: tuple[Ref, ...]) -> list[OpTemplate]:
        s, f, norm = self.shapes, self.templates, Ref("head.norm", row)
        signature = s.gemm(self._vocab(), s.model.hidden_size, s.tokens(row), "wgrad")
        waits = (f.summed_ref(norm.grad),) if f.waits_for_sums else ()
        whole = f.gathered_ref(norm, self._whole_input(row))
        reads = (self._logits_grad(row), whole, *waits)
        ops = f.accumulated("head.logits_wgrad", row, signature, reads, made, before)
        if s.workload.implementation.dummy_wgrads:
            dummy_bytes = signature.m * signature.n * s.element
            ops[0] = ops[0].writing(made.form("dummy"), dummy_bytes)
        return ops

    @_once
    def head_norm_bwd(self, row: int) -> list[OpTemplate]:
        """Return the gradient of the stack's output."""
        s, f, size = self.shapes, self.templates, self.shapes.residual_bytes(row)
        signature = s.pointwise(f"{s.model.norm}_bwd", 2 * size, size)
        reads = (f.summed_ref(Ref("head.norm", row).grad), Ref("x", row))
        return [
            f.op("head.norm_bwd", row, signature, reads, Ref("x", row).grad, size,
                 weights=("w.head.norm",))
        ]  # fmt: skip

    @_once
    def embed_gather(self, row: int) -> list[OpTemplate]:
        """Return the gather of the gradient of a slice's embedding."""
        local = Ref("x", row).grad
        return self.templates.gathered(
            row, "embed_bwd.ag", local, Ref("embed", row).grad.form("ag")
        )

    def embed_bwd(self, row: int) -> Ops:
        """Return the scatter-add of a slice into the table's (and the positions') gradient.

        The first of a step clears the table's gradient, unless a tied head has written it.
        """
        return self._embed_bwd(row, *self._adding("embed", row))

    @_once
    def _embed_bwd(self, row: int, made: Ref, before: tuple[Ref, ...]) -> list[OpTemplate]:
        s, f, size = self.shapes, self.templates, self.shapes.hidden_bytes(row)
        clears = self._dense or not (f.accumulate_first or s.model.tie_word_embeddings)
        cleared = self._table_bytes if clears and not before else 0
        scaled = size * s.model.scaled_embeddings
        signature = s.pointwise(
            "embedding_bwd", size + s.mask_bytes(row) + scaled, size + cleared + scaled
        )
        whole = f.gathered_ref(Ref("x", row).grad, Ref("embed", row).grad.form("ag"))
        if self._dense and made == main_gradient("embed"):
            made = made.form("dense")
        return [f.op("embed_bwd", row, signature, (whole, *before), made, 0)]

    def dense_embedding_grad(self) -> Sequence[OpTemplate]:
        """Return the sum of a gradient that the embedding made apart into the table's."""
        return self._dense_add(-1) if self._dense and self.shapes.embedding else ()

    @_once
    def _dense_add(self, row: int) -> list[OpTemplate]:
        signature = self.shapes.gradient_sum(self._vocab() * self.shapes.model.hidden_size)
        total = main_gradient("embed")
        return [
            self.templates.op("embed_bwd.add", row, signature, (total.form("dense"),), total, 0)
        ]

    @property
    def _dense(self) -> bool:
        return self.shapes.workload.implementation.dense_embedding_grad

    @property
    def _table_bytes(self) -> int:
        """Bytes of the gradient of the table."""
        width = self.shapes.element if self._dense else GRAD_BYTES
        return self._vocab() * self.shapes.model.hidden_size * width

    @property
    def _table(self) -> str:
        return "w.embed" if self.shapes.model.tie_word_embeddings else "w.head.logits"


Maker = Callable[[Edges, int], Ops | None]
Places = Mapping[Place, Maker]
EMBEDS: Final[Places] = {("mlp", "fc2"): Edges.look_up, ("mlp", "residual"): Edges.embed_post}
"""Fragment of the layer before the stack -> what makes the ops in its place."""
HEADS: Final[Places] = {
    ("attn", "norm"): Edges.head_norm, ("attn", "qkv"): Edges.logits,
    ("attn", "core_attn"): Edges.loss_max,
}  # fmt: skip
"""The same for the layer behind the stack."""
HEAD_GRADS: Final[Places] = {
    ("attn", "core_attn_bwd"): Edges.loss_grad, ("attn", "qkv_dgrad"): Edges.logits_dgrad,
    ("mlp", "fc2_wgrad"): Edges.early_wgrad, ("mlp", "fc1_wgrad"): Edges.early_wgrad,
    ("attn", "proj_wgrad"): Edges.early_wgrad, ("attn", "qkv_wgrad"): Edges.logits_wgrad,
    ("attn", "norm_bwd"): Edges.head_norm_bwd,
}  # fmt: skip
"""The same for the layer with which backward would begin. Any of its wgrads may be what hides the
sum of its dgrad."""
EMBED_GRADS: Final[Places] = {
    ("mlp", "residual_bwd"): Edges.embed_gather, ("mlp", "fc2_dgrad"): Edges.embed_bwd,
}  # fmt: skip
"""The same for the layer in which backward would end."""
