"""Fragments: a token's op templates, with the values that they read and write.

Values inside a layer: ``s0.x`` is its input, ``s0.y`` what follows attention, and others are called
as what makes them (``simulator.values``).
With sequence parallelism ``s0.x``, ``s0.y`` and the norms' outputs are this rank's share of the
tokens; ``….ag`` is the same value gathered from all ranks, ``….rs`` a sum scattered over them.
``s0.attn.qk`` are normalised queries and keys; values are still read from ``s0.attn.qkv``.
Backward gathers a norm's output again for the wgrad (``….ag_bwd``), unless it was kept whole.
The chain of main gradients' writers fixes the order of accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from simulator.attention import (
    core_attention,
    core_attention_bwd,
    latent_dgrad,
    latent_qkv,
    latent_wgrad,
)
from simulator.experts import MAKERS as EXPERT_MAKERS
from simulator.experts import expert_wgrad, gradients_back
from simulator.issue_order import (
    AGAIN,
    ALL_SLICES,
    BLOCKS,
    COLUMN_PARALLEL,
    CORE,
    FORWARD_FRAGMENTS,
    INPUT,
    JOINED,
    ROW_PARALLEL,
    SIDES,
    Token,
    copied,
    is_cut,
    output_of,
    pieces,
)
from simulator.modules import GRAPH_COPY, graph_entry
from simulator.op_table import Ops, table_of
from simulator.ops import Gemm
from simulator.overlap import NONE, Overlap, overlap_of, told_of
from simulator.overlapped import Linear, gather_gemm, reserved, sum_gemm
from simulator.quantized import ROWS, Quantized, operand_bytes
from simulator.recomputation import Recomputation
from simulator.schedule import OpTemplate
from simulator.token_way import TokenWay
from simulator.values import Ref, main_gradient

SEES: Final = {
    **dict.fromkeys(("proj", "fc2", "residual", "residual_bwd"), "col"),
    **dict.fromkeys(("qkv_dgrad", "fc1_dgrad", "norm_bwd"), "dgrad"),
}
"""Fragments whose templates depend on pieces: of the row-parallel GEMM of their block, or of the
column-parallel dgrad; wgrads wait for these only where nothing is sliced."""


@dataclass(kw_only=True)
class Fragments(Quantized):
    """Builder of tokens' op templates."""

    chains: dict[Token, Token | None] = field(default_factory=dict)

    def templates(self, token: Token) -> Ops:
        """Return the op templates of a token, in issue order; plans with its slice share them."""
        return self.listed((token,))[0]

    def listed(self, tokens: Iterable[Token]) -> list[Ops]:
        """Return ``templates`` of each token."""
        chains, counts, rows = self.chains, self._counts, dict[int, dict[object, Ops]]()
        told, found = told_of(self.shapes.plan.tp_comm_overlap), []
        for token in tokens:
            known = rows.get(token.slice)
            if known is None:
                key = Fragments, token.slice, self.accumulate_first, *self.cut(token.slice)
                known = rows[token.slice] = self.shared.setdefault(key, {})
            before, count = chains.get(token), counts.get(token[:2])
            own = before, count, told.get(token.block)
            what = (token, own) if any(own) else token
            ops = known.get(what)
            if ops is None:
                made = (op.shifted(token.offset) for op in self.made(token, before))
                ops = known[what] = table_of(self.shared).ops(made)
            found.append(ops)
        return found

    @cached_property
    def _counts(self) -> dict[tuple[str, str], int]:
        """Block and fragment of tokens whose ops depend on the pieces of a GEMM -> their number."""
        plan = self.shapes.plan
        return {
            (block, f"{fragment}{again}"): getattr(plan, f"{block}_{pieces}_slices")
            for block in BLOCKS for fragment, pieces in SEES.items() for again in ("", AGAIN)
        }  # fmt: skip

    def made(self, token: Token, before: Token | None = None) -> list[OpTemplate]:
        """Return new op templates of ``token``, in its own layer; ``before``: the token whose
        gradient a wgrad adds to."""
        if token.is_wgrad:
            ops = self._wgrad(token, before)
            return [self.recomputation.reading(op, token.fragment) for op in ops]
        return self._build(token)

    def _build(self, token: Token) -> list[OpTemplate]:
        if token.is_again:
            return self._again(token.plain)
        built = [*self._graph_copies(token), *self._plain(token)]
        if token.fragment in FORWARD_FRAGMENTS[token.block]:
            return [self.recomputation.dropping(op) for op in built]
        return [self.recomputation.reading(op, token.fragment) for op in built]

    def _plain(self, token: Token) -> list[OpTemplate]:
        if token.block == "mlp" and self.shapes.model.num_experts:
            return EXPERT_MAKERS[token.fragment](self, token.slice, token.piece)
        return MAKERS[token.fragment](self, token.block, token.slice, token.piece)

    def _graph_copies(self, token: Token) -> list[OpTemplate]:
        """Return the op that copies inputs of a graph of a part of the layer into its memory."""
        s, block, row = self.shapes, token.block, token.slice
        scopes, size = s.workload.cuda_graph_scope, s.residual_bytes(token.slice)
        entry = graph_entry(block, token.fragment, scopes, experts=s.model.num_experts > 0)
        if not entry:
            return []
        reads: tuple[Ref, ...] = (Ref(INPUT[block], row),)
        if entry == "backward":
            reads = (Ref("y", row).grad,)
            if block == "mlp":
                reads = (output_of(block, row).grad, *gradients_back(self, row))
                size += TokenWay(self, row).sent_bytes(scopes)
        role = f"{block}.{GRAPH_COPY}" + "_bwd" * (entry == "backward")
        signature = s.pointwise("copy", size, size, len(reads))
        return [self.op(role, row, signature, reads, reads[0].at(0).form("graph"), size)]

    # Recomputation ------------------------------------------------------------------------------

    @cached_property
    def recomputation(self) -> Recomputation:
        """What backward computes again. It looks at forward ops of another builder, which does not
        hold this one."""
        return Recomputation(self.shapes, replace(self, shared={})._of_first_slice)

    def _of_first_slice(self, block: str, fragment: str) -> list[OpTemplate]:
        """Return the forward ops of the first slice."""
        count = pieces(self.shapes.plan, block, fragment) if is_cut(block, fragment) else 1
        return [
            op for piece in range(count) for op in self._plain(Token(block, fragment, 0, piece))
        ]

    def _again(self, token: Token) -> list[OpTemplate]:
        """Return the forward ops of ``token`` as backward recomputes them from kept values."""
        again, block, row = self.recomputation, token.block, token.slice
        if again.per_op and token.fragment == COLUMN_PARALLEL[block]:
            ops = self._column_parallel_again(block, row)
        else:
            sources = again.sources(block, token.fragment)
            plain = [op for one in sources for op in self._plain(token._replace(fragment=one))]
            ops = again.ops(block, token.fragment, plain)
        overlapped = self.overlap(COLUMN_PARALLEL[block], "fprop").method != "none"
        if again.per_op and token.fragment == "norm" and overlapped and not again.part(block):
            ops += self._norm_gathered(block, row)  # no GEMM does
        return [again.again(op) for op in ops]

    def _column_parallel_again(self, block: str, row: int) -> list[OpTemplate]:
        """Return the part of the GEMM whose output was not kept."""
        s, columns = self.shapes, self.recomputation.part(block)
        if not columns:
            return []
        size = s.tokens(row) * columns * s.element
        if block == "attn" and s.model.position_embedding == "rope" and not s.model.qk_norm:
            size = s.qk_bytes(row)  # queries are rotated again, too, from those that were kept
        write = Ref(f"{block}.{COLUMN_PARALLEL[block]}", row).again
        return self._column_gemm(block, row, columns, write, size)

    # Forward ------------------------------------------------------------------------------------

    def _core_attn(self, block: str, row: int, _: int) -> list[OpTemplate]:
        ops, size = core_attention(self, row), self.shapes.width_bytes("core_attn", row)
        return [*ops, *self.cast(row, Ref("attn.core_attn", row), size)]

    def _norm(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.residual_bytes(row)
        source = Ref(INPUT[block], row)
        write = Ref(f"{block}.norm", row)
        written = operand_bytes(s, size // s.element) if self.norm_casts else size
        norm = self.op(
            f"{block}.norm", row, s.pointwise(s.model.norm, size, written), (source,),
            write.form(ROWS) if self.norm_casts else write, written, weights=(f"w.{block}.norm",),
        )  # fmt: skip
        ops = [norm]
        if not self.norm_casts:
            ops += self.cast(row, write, size, gathered=self.gathers)
        if self.overlap(COLUMN_PARALLEL[block], "fprop").method != "none":
            return ops  # the GEMM gathers
        return [*ops, *self._norm_gathered(block, row)]

    def _norm_gathered(self, block: str, row: int) -> list[OpTemplate]:
        local = Ref(f"{block}.norm", row)
        source, size = self.rows_of(local), self.gathered_bytes(row)
        return self.gathered(row, f"{block}.norm.ag", source, local.form("ag"), size)

    def _column_parallel(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, first = self.shapes, COLUMN_PARALLEL[block]
        if self._is_latent(block):
            return latent_qkv(self, row)
        size = s.width_bytes(first, row)
        return self._column_gemm(block, row, s.width(first), Ref(f"{block}.{first}", row), size)

    def _column_gemm(
        self, block: str, row: int, width: int, write: Ref, size: int
    ) -> list[OpTemplate]:
        """Return the GEMM of ``width`` columns, and what gathers its input meanwhile."""
        s, role = self.shapes, f"{block}.{COLUMN_PARALLEL[block]}"
        tokens, bias = s.tokens(row), s.model.has_bias(COLUMN_PARALLEL[block])

        def gemm(tokens: int) -> Gemm:
            return s.linear(tokens, width, s.model.hidden_size, "forward", bias=bias)

        norm = Ref(f"{block}.norm", row)
        linear = Linear(
            role, row, gemm, tokens, write, size, (f"w.{role}",),
            gathered_bytes=self.gathered_bytes(row),
        )  # fmt: skip
        how = self.overlap(COLUMN_PARALLEL[block], "fprop")
        return gather_gemm(self, how, linear, self.rows_of(norm), norm.form("ag"))

    def overlap(self, linear: str, way: str) -> Overlap:
        """Return how the plan hides the collective of a GEMM."""
        plan = self.shapes.plan
        if linear == "qkv" and self.shapes.model.kv_lora_rank:
            return NONE
        return overlap_of(plan.strategy, plan.tp_comm_overlap, f"{linear}_{way}")

    def _act(self, block: str, row: int, _: int) -> list[OpTemplate]:
        read, size = (self.shapes.width_bytes(name, row) for name in ("fc1", "act"))
        signature = self.shapes.pointwise(self.shapes.activation, read, size)
        reads, write = (Ref("mlp.fc1", row),), Ref("mlp.act", row)
        made = self.op("mlp.act", row, signature, reads, write, size)
        return [made, *self.cast(row, made.writes[0], size)]

    def _row_parallel(self, block: str, row: int, piece: int) -> list[OpTemplate]:
        s, role, core = self.shapes, f"{block}.{ROW_PARALLEL[block]}", CORE[block]
        count = getattr(s.plan, f"{block}_col_slices")
        width = s.model.hidden_size // count
        linear = Linear(
            role, row, lambda tokens: s.linear(tokens, width, s.width(core), "forward"),
            s.tokens(row), Ref(role, row, piece), s.hidden_bytes(row) // count, (f"w.{role}",),
            piece,
        )  # fmt: skip
        how = self.overlap(ROW_PARALLEL[block], "fprop")
        return sum_gemm(self, how, linear, (self.rows_of(Ref(f"{block}.{core}", row)),))

    def _residual(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.residual_bytes(row)
        residual, parts, ops = Ref(INPUT[block], row), self._block_output(block, row), []
        if s.model.post_norm:
            gathered = size if len(parts) > 1 else 0
            signature = s.pointwise(s.model.norm, size + gathered, size + gathered, len(parts))
            ops.append(
                self.op(f"{block}.post_norm", row, signature, parts, Ref(f"{block}.post_norm", row),
                        size, weights=(f"w.{block}.post_norm",))
            )  # fmt: skip
            parts = ops[0].writes
        fused = s.model.has_bias(ROW_PARALLEL[block]) or s.model.hidden_dropout
        name = "bias_dropout_add" if fused else "add"
        signature = s.pointwise(name, 2 * size, size + s.mask_bytes(row), len(parts))
        return [
            *ops,
            self.op(f"{block}.residual", row, signature, (*parts, residual), output_of(block, row),
                    size + s.mask_bytes(row)),
        ]  # fmt: skip

    def _block_output(self, block: str, row: int) -> tuple[Ref, ...]:
        """Return the column pieces of the block's output, summed over the ranks."""
        count, last = getattr(self.shapes.plan, f"{block}_col_slices"), ROW_PARALLEL[block]
        return tuple(self.summed_ref(Ref(f"{block}.{last}", row, j)) for j in range(count))

    # Backward -----------------------------------------------------------------------------------

    def _row_parallel_grad(self, block: str, row: int) -> Ref:
        """Return the gradient of the row-parallel GEMM's output, of all tokens."""
        whole = Ref(f"{block}.residual", row).grad.form("ag")
        return self.gathered_ref(self._rows_grad(block, row), whole)

    def _rows_grad(self, block: str, row: int) -> Ref:
        """Return this rank's share of it, as its GEMMs read it."""
        return self.rows_of(self._local_grad(block, row), Ref(f"{block}.out", row).grad)

    def _local_grad(self, block: str, row: int) -> Ref:
        if self.shapes.model.post_norm:
            return Ref(f"{block}.post_norm", row).grad
        return self._branch_grad(block, row)

    def _branch_grad(self, block: str, row: int) -> Ref:
        """Return the gradient of the branch that the residual connection adds to its input."""
        if self.shapes.has_residual_bwd:
            return Ref(f"{block}.residual", row).grad
        return output_of(block, row).grad

    def _residual_bwd(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size, added = self.shapes, self.shapes.residual_bytes(row), Ref(f"{block}.residual", row)
        role, ops = f"{block}.residual_bwd", []
        if s.has_residual_bwd:
            signature = s.pointwise("bias_dropout_add_bwd", size + s.mask_bytes(row), size)
            reads = (output_of(block, row).grad, output_of(block, row))
            ops.append(self.op(role, row, signature, reads, added.grad, size))
        if s.model.post_norm:
            inputs = self._block_output(block, row)
            gathered, kernel = size if len(inputs) > 1 else 0, f"{s.model.norm}_bwd"
            signature = s.pointwise(kernel, 2 * size + gathered, size + gathered, len(inputs))
            ops.append(
                self.op(f"{block}.post_norm_bwd", row, signature,
                        (self._branch_grad(block, row), *inputs),
                        Ref(f"{block}.post_norm", row).grad, size,
                        weights=(f"w.{block}.post_norm",))
            )  # fmt: skip
        local = self._local_grad(block, row)
        out = Ref(f"{block}.out", row).grad
        ops += self.cast(row, local, size, gathered=self.gathers, base=out)
        if self.overlap(ROW_PARALLEL[block], "dgrad").method != "none":
            return ops  # the GEMM gathers
        source, whole = self._rows_grad(block, row), self.gathered_bytes(row, copies=2)
        return [*ops, *self.gathered(row, f"{role}.ag", source, added.grad.form("ag"), whole)]

    def _row_parallel_dgrad(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, role, core = self.shapes, f"{block}.{ROW_PARALLEL[block]}", CORE[block]
        linear = Linear(
            f"{role}_dgrad", row,
            lambda tokens: s.linear(tokens, s.width(core), s.model.hidden_size, "dgrad"),
            s.tokens(row), Ref(f"{block}.{core}", row).grad, s.width_bytes(core, row),
            (f"w.{role}",), gathered_bytes=self.gathered_bytes(row, copies=2),
        )  # fmt: skip
        how = self.overlap(ROW_PARALLEL[block], "dgrad")
        whole = Ref(f"{block}.residual", row).grad.form("ag")
        return gather_gemm(self, how, linear, self._rows_grad(block, row), whole)

    def _core_attn_bwd(self, block: str, row: int, _: int) -> list[OpTemplate]:
        ops, grad = core_attention_bwd(self, row), Ref("attn.qkv", row).grad
        return [*ops, *self.cast(row, grad, self.shapes.width_bytes("qkv", row))]

    def _act_bwd(self, block: str, row: int, _: int) -> list[OpTemplate]:
        size = self.shapes.width_bytes("fc1", row)
        read = size + self.shapes.width_bytes("act", row)
        signature = self.shapes.pointwise(f"{self.shapes.activation}_bwd", read, size)
        reads = (Ref("mlp.act", row).grad, Ref("mlp.fc1", row))
        made = self.op("mlp.act_bwd", row, signature, reads, Ref("mlp.fc1", row).grad, size)
        return [made, *self.cast(row, made.writes[0], size)]

    def _column_parallel_dgrad(self, block: str, row: int, piece: int) -> list[OpTemplate]:
        s, first = self.shapes, COLUMN_PARALLEL[block]
        if self._is_latent(block):
            again = [] if self._gathers_once else self._regathered(block, row)
            return [*again, *latent_dgrad(self, row)]
        count = getattr(s.plan, f"{block}_dgrad_slices")
        width = s.model.hidden_size // count
        norm = Ref(f"{block}.norm", row)
        regathers = s.shards_tokens and not self._gathers_once
        waits = (norm.form("ag_bwd"),) if self.waits_for_sums and regathers else ()
        how = self.overlap(first, "dgrad")
        linear = Linear(
            f"{block}.{first}_dgrad", row,
            lambda tokens: s.linear(tokens, width, s.width(first), "dgrad"), s.tokens(row),
            norm._replace(piece=piece).grad, s.hidden_bytes(row) // count,
            (f"w.{block}.{first}",), piece,
        )  # fmt: skip
        again = self._regathered(block, row) if regathers and piece == 0 else []
        if how.method == "bulk":
            again = [op._replace(signature=reserved(op.signature, how.num_sm)) for op in again]
        reads = (self.rows_of(Ref(f"{block}.{first}", row).grad), *waits)
        return [*again, *sum_gemm(self, how, linear, reads)]

    @property
    def _gathers_once(self) -> bool:
        """Whether what was gathered for a GEMM serves its wgrad, too."""
        return self.keeps_gathered or self.recomputation.per_op

    def _whole_input(self, block: str, row: int) -> Ref:
        """Return a norm's output of all tokens, as a wgrad reads it."""
        whole = Ref(f"{block}.norm", row).form("ag" if self._gathers_once else "ag_bwd")
        return self.gathered_ref(self._kept_input(block, row), whole)

    def _regathered(self, block: str, row: int) -> list[OpTemplate]:
        """Return the gather of a norm's output for the wgrad that reads it."""
        source, write = self._kept_input(block, row), Ref(f"{block}.norm", row).form("ag_bwd")
        return self.gathered(row, f"{block}.norm.ag_bwd", source, write, self.gathered_bytes(row))

    def _norm_bwd(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.residual_bytes(row)
        count = getattr(s.plan, f"{block}_dgrad_slices")
        parts = (self.summed_ref(Ref(f"{block}.norm", row, j).grad) for j in range(count))
        source = Ref(INPUT[block], row)
        gathered = size if count > 1 else 0
        signature = s.pointwise(f"{s.model.norm}_bwd", 3 * size + gathered, size + gathered, count)
        reads, weights = (*parts, source, output_of(block, row).grad), (f"w.{block}.norm",)
        role = f"{block}.norm_bwd"
        return [self.op(role, row, signature, reads, source.grad, size, weights=weights)]

    def _wgrad(self, token: Token, before: Token | None) -> list[OpTemplate]:
        s, block, linear = self.shapes, token.block, token.linear
        gradient = gradient_of(token)
        chained = () if before is None else (gradient_of(before),)
        if block == "mlp" and s.model.num_experts:
            return expert_wgrad(self, token, gradient, chained)
        if linear == "qkv" and s.model.kv_lora_rank:
            x, turned = self._whole_input(block, token.slice), list[OpTemplate]()
            if self.gathers or self.norm_casts:
                x = self._turned(x, token.slice, turned)
            return [*turned, *latent_wgrad(self, token, gradient, chained, x)]
        rows = range(s.plan.row_slices) if token.slice == ALL_SLICES else (token.slice,)
        hidden, tokens = s.model.hidden_size, s.tokens(token.slice)
        moved: list[OpTemplate] = []
        if linear == COLUMN_PARALLEL[block]:
            m, n = s.width(linear), hidden
            dys = [self.across_of(Ref(f"{block}.{linear}", i).grad) for i in rows]
            xs = [self._whole_input(block, i) for i in rows]
            if self.gathers or self.norm_casts:
                xs = [self._turned(x, i, moved) for x, i in zip(xs, rows, strict=True)]
        else:
            m, n = hidden, s.width(CORE[block])
            dys = [
                self._turned(self._row_parallel_grad(block, i), i, moved)
                if self.gathers
                else self.across_of(self._local_grad(block, i), Ref(f"{block}.out", i).grad)
                for i in rows
            ]
            xs = [self.across_of(Ref(f"{block}.{CORE[block]}", i)) for i in rows]
        sides = dys, xs
        joins = self._joins(token, sides, (m, n)) if len(rows) > 1 else [None, None]
        reads: list[Ref] = []
        for join, refs in zip(joins, sides, strict=True):
            reads += refs if join is None else join.writes
        if linear == COLUMN_PARALLEL[block] and self.waits_for_sums:
            count = getattr(s.plan, f"{block}_dgrad_slices")
            reads += [
                self.summed_ref(Ref(f"{block}.norm", i, j).grad) for i in rows for j in range(count)
            ]
        signature = s.linear(m, n, tokens, "wgrad", bias=s.model.has_bias(linear))
        role = f"{block}.{token.fragment}"
        made = self.accumulated(role, token.slice, signature, tuple(reads), gradient, chained)
        return [*moved, *(join for join in joins if join is not None), *made]

    def _kept_input(self, block: str, row: int) -> Ref:
        """Return what backward keeps of a column-parallel GEMM's input: this rank's share where
        ranks gather, else what its wgrad reads."""
        norm = Ref(f"{block}.norm", row)
        across = self.scales_across or not (self.gathers or self.norm_casts)
        return self.across_of(norm) if across else self.rows_of(norm)

    def _turned(self, value: Ref, row: int, ops: list[OpTemplate]) -> Ref:
        """Return the copy across of a value in FP8; if it must be made, add its op to ``ops``."""
        s = self.shapes
        made = self.transposed(row, value, s.tokens(row) * s.model.hidden_size)
        ops += made
        return made[0].writes[0] if made else value

    def _joins(
        self, token: Token, sides: tuple[list[Ref], list[Ref]], widths: tuple[int, int]
    ) -> list[OpTemplate | None]:
        """Return the copies that put the slices of dy and of x together, where these need one."""
        s, made = self.shapes, list[OpTemplate | None]()
        needs = copied(s.model, token.block, token.linear, gathered=s.shards_tokens)
        for side, needed, refs, width in zip(SIDES, needs, sides, widths, strict=True):
            role = f"{token.block}.{token.fragment}.{side}"
            size = s.tokens(token.slice) * width * s.element
            copy = s.pointwise("copy", size, size, len(refs))
            join = self.op(role, token.slice, copy, tuple(refs), Ref(role).form(JOINED), size)
            made.append(join if needed else None)
        return made

    def _is_latent(self, block: str) -> bool:
        return block == "attn" and self.shapes.model.kv_lora_rank > 0


MAKERS: Final[Mapping[str, Callable[[Fragments, str, int, int], list[OpTemplate]]]] = {
    "norm": Fragments._norm,
    "qkv": Fragments._column_parallel, "fc1": Fragments._column_parallel,
    "core_attn": Fragments._core_attn, "act": Fragments._act,
    "proj": Fragments._row_parallel, "fc2": Fragments._row_parallel,
    "residual": Fragments._residual, "residual_bwd": Fragments._residual_bwd,
    "proj_dgrad": Fragments._row_parallel_dgrad, "fc2_dgrad": Fragments._row_parallel_dgrad,
    "core_attn_bwd": Fragments._core_attn_bwd, "act_bwd": Fragments._act_bwd,
    "qkv_dgrad": Fragments._column_parallel_dgrad, "fc1_dgrad": Fragments._column_parallel_dgrad,
    "norm_bwd": Fragments._norm_bwd,
}  # fmt: skip
"""Fragment -> what makes its templates of a block, a slice and a piece; wgrads apart."""


def gradient_of(token: Token) -> Ref:
    """Return a weight's main gradient after ``token`` added its share."""
    return main_gradient(f"{token.block}.{token.linear}", token.slice)
