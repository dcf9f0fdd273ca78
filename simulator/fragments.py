"""Fragments: what a token of a line stands for, as op templates with values and signatures.

Naming of values inside a layer: ``s0.x`` layer input, ``s0.y`` after attention, ``s0.attn.a`` an
output of the A GEMM, ``s0.attn.b.1`` a column piece, ``….ar`` the same piece after its all-reduce
(in place). ``d.…`` are gradients. ``grad.attn.a.s1`` is the main gradient after slice 1 added to
it: the chain of writers fixes the order of accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.issue_order import ALL_SLICES, Token
from simulator.ops import Attention, Direction, Signature
from simulator.schedule import COMPUTE, TP, OpTemplate, Ref
from simulator.shapes import Shapes


@dataclass(kw_only=True)
class Fragments:
    """Turns tokens into op templates; keeps the sizes of the values they write.

    ``accumulate_first``: the micro-batch adds to gradients that an earlier one has written.
    """

    shapes: Shapes
    chains: dict[Token, Token | None] = field(default_factory=dict)
    accumulate_first: bool = False
    value_bytes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cache: dict[Token, list[OpTemplate]] = {}

    def templates(self, token: Token) -> list[OpTemplate]:
        """Op templates of ``token``, in issue order."""
        if token.fragment.endswith("_wgrad"):
            return [self._wgrad(token)]
        plain = token._replace(offset=0)
        found = self._cache.get(plain)
        if found is None:
            found = self._cache[plain] = self._build(plain)
        return [template.shifted(token.offset) for template in found]

    def _build(self, token: Token) -> list[OpTemplate]:
        build = {
            "norm": self._norm, "a": self._a, "core": self._core, "b": self._b, "out": self._out,
            "out'": self._out_grad, "b_dgrad": self._b_dgrad, "core'": self._core_grad,
            "a_dgrad": self._a_dgrad, "norm'": self._norm_grad,
        }[token.fragment]  # fmt: skip
        return build(token.block, token.slice, token.piece)

    def op(
        self, role: str, row: int, signature: Signature, reads: tuple[Ref, ...],
        write: str, size: int, *, lane: int = COMPUTE, weights: tuple[str, ...] = (),
        piece: int = -1, layer: int = 0,
    ) -> OpTemplate:  # fmt: skip
        """A template that writes one value of ``size`` bytes (0: it aliases what it reads)."""
        self.value_bytes[write] = size
        return OpTemplate(
            role, row, signature, lane, 0, reads, (Ref(layer, write),), weights, piece
        )

    def reduced(self, produced: OpTemplate, size_bytes: int, dtype: str = "") -> list[OpTemplate]:
        """``produced`` followed by the all-reduce of what it wrote, where there is one."""
        if not self.shapes.communicates:
            return [produced]
        value = produced.writes[0]
        signature = self.shapes.tp_all_reduce(size_bytes, dtype)
        reduce = self.op(
            f"{produced.role}.ar", produced.slice, signature, (value,), f"{value.name}.ar", 0,
            lane=TP, piece=produced.piece, layer=value.layer,
        )  # fmt: skip
        return [produced, reduce]

    def reduced_ref(self, layer: int, name: str) -> Ref:
        """The value to read after the all-reduce, where there is one."""
        return Ref(layer, f"{name}.ar" if self.shapes.communicates else name)

    # Forward ------------------------------------------------------------------------------------

    def _norm(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        source = Ref(0, f"s{row}.x" if block == "attn" else f"s{row}.y")
        signature = s.pointwise(s.model.norm, size, size)
        return [
            self.op(f"{block}.norm", row, signature, (source,), f"s{row}.{block}.norm", size,
                    weights=(f"w.{block}.norm",))
        ]  # fmt: skip

    def _a(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s = self.shapes
        tokens, width = s.tokens(row), s.width(block, "a")
        signature = s.gemm(tokens, width, s.model.hidden_size, "forward", bias=s.has_bias(block))
        write = f"s{row}.{block}.a"
        reads = (Ref(0, f"s{row}.{block}.norm"),)
        size = tokens * width * s.element
        return [
            self.op(f"{block}.a", row, signature, reads, write, size, weights=(f"w.{block}.a",))
        ]

    def _core(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s = self.shapes
        a = Ref(0, f"s{row}.{block}.a")
        a_bytes = s.tokens(row) * s.width(block, "a") * s.element
        core_bytes = s.tokens(row) * s.width(block, "core") * s.element
        write = f"s{row}.{block}.core"
        if block == "mlp":
            signature = s.pointwise(self._activation, a_bytes, core_bytes)
            return [self.op("mlp.core", row, signature, (a,), write, core_bytes)]
        ops = []
        if s.model.position_embedding == "rope":
            rope = self._rope_bytes(row)
            signature = s.pointwise("rope", rope, rope)
            ops.append(self.op("attn.rope", row, signature, (a,), f"{a.name}.rope", 0))
            a = ops[0].writes[0]
        ops.append(self.op("attn.core", row, self._attention(row), (a,), write, core_bytes))
        return ops

    def _b(self, block: str, row: int, piece: int) -> list[OpTemplate]:
        s = self.shapes
        count = getattr(s.plan, f"{block}_col_slices")
        width = s.model.hidden_size // count
        signature = s.gemm(s.tokens(row), width, s.width(block, "core"), "forward")
        size = s.hidden_bytes(row) // count
        produced = self.op(
            f"{block}.b", row, signature, (Ref(0, f"s{row}.{block}.core"),),
            f"s{row}.{block}.b.{piece}", size, weights=(f"w.{block}.b",), piece=piece,
        )  # fmt: skip
        return self.reduced(produced, size)

    def _out(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        residual = Ref(0, f"s{row}.x" if block == "attn" else f"s{row}.y")
        count = getattr(s.plan, f"{block}_col_slices")
        parts = (self.reduced_ref(0, f"s{row}.{block}.b.{j}") for j in range(count))
        layer, write = (0, f"s{row}.y") if block == "attn" else (1, f"s{row}.x")
        name = "bias_dropout_add" if s.has_bias(block) or s.model.hidden_dropout else "add"
        signature = s.pointwise(name, 2 * size, size + s.mask_bytes(row), count)
        return [
            self.op(f"{block}.out", row, signature, (*parts, residual), write,
                    size + s.mask_bytes(row), layer=layer)
        ]  # fmt: skip

    # Backward -----------------------------------------------------------------------------------

    def _out_source(self, block: str, row: int) -> Ref:
        """Gradient of the block's output: of the next layer's input, or of the middle."""
        return Ref(1, f"d.s{row}.x") if block == "mlp" else Ref(0, f"d.s{row}.y")

    def _b_grad(self, block: str, row: int) -> Ref:
        """Gradient of B's output."""
        if self.shapes.has_out_grad:
            return Ref(0, f"d.s{row}.{block}.out")
        return self._out_source(block, row)

    def _out_grad(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        if not s.has_out_grad:
            return []
        signature = s.pointwise("bias_dropout_add_bwd", size + s.mask_bytes(row), size)
        forward = Ref(0, f"s{row}.y") if block == "attn" else Ref(1, f"s{row}.x")
        reads = (self._out_source(block, row), forward)
        return [self.op(f"{block}.out'", row, signature, reads, f"d.s{row}.{block}.out", size)]

    def _b_dgrad(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s = self.shapes
        tokens, width = s.tokens(row), s.width(block, "core")
        signature = s.gemm(tokens, width, s.model.hidden_size, "dgrad")
        return [
            self.op(f"{block}.b_dgrad", row, signature, (self._b_grad(block, row),),
                    f"d.s{row}.{block}.core", tokens * width * s.element, weights=(f"w.{block}.b",))
        ]  # fmt: skip

    def _core_grad(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s = self.shapes
        a_bytes = s.tokens(row) * s.width(block, "a") * s.element
        core_bytes = s.tokens(row) * s.width(block, "core") * s.element
        dcore, a = Ref(0, f"d.s{row}.{block}.core"), Ref(0, f"s{row}.{block}.a")
        write = f"d.s{row}.{block}.a"
        if block == "mlp":
            signature = s.pointwise(f"{self._activation}_bwd", a_bytes + core_bytes, a_bytes)
            return [self.op("mlp.core'", row, signature, (dcore, a), write, a_bytes)]
        rope = s.model.position_embedding == "rope"
        first = f"{write}.rope" if rope else write
        reads = (dcore, a, Ref(0, f"s{row}.attn.core"))
        ops = [self.op("attn.core'", row, self._attention(row, "backward"), reads, first, a_bytes)]
        if rope:
            moved = self._rope_bytes(row)
            signature = s.pointwise("rope_bwd", moved, moved)
            ops.append(self.op("attn.rope'", row, signature, (Ref(0, first),), write, 0))
        return ops

    def _a_dgrad(self, block: str, row: int, piece: int) -> list[OpTemplate]:
        s = self.shapes
        count = getattr(s.plan, f"{block}_dgrad_slices")
        width = s.model.hidden_size // count
        signature = s.gemm(s.tokens(row), width, s.width(block, "a"), "dgrad")
        size = s.hidden_bytes(row) // count
        produced = self.op(
            f"{block}.a_dgrad", row, signature, (Ref(0, f"d.s{row}.{block}.a"),),
            f"d.s{row}.{block}.norm.{piece}", size, weights=(f"w.{block}.a",), piece=piece,
        )  # fmt: skip
        return self.reduced(produced, size)

    def _norm_grad(self, block: str, row: int, _: int) -> list[OpTemplate]:
        s, size = self.shapes, self.shapes.hidden_bytes(row)
        count = getattr(s.plan, f"{block}_dgrad_slices")
        parts = (self.reduced_ref(0, f"d.s{row}.{block}.norm.{j}") for j in range(count))
        source = Ref(0, f"s{row}.x" if block == "attn" else f"s{row}.y")
        write = f"d.s{row}.x" if block == "attn" else f"d.s{row}.y"
        gathered = size if count > 1 else 0
        signature = s.pointwise(f"{s.model.norm}_bwd", 3 * size + gathered, size + gathered, count)
        reads = (*parts, source, self._out_source(block, row))
        return [
            self.op(f"{block}.norm'", row, signature, reads, write, size,
                    weights=(f"w.{block}.norm",))
        ]  # fmt: skip

    def _wgrad(self, token: Token) -> OpTemplate:
        s, block, part = self.shapes, token.block, token.fragment[0]
        rows = range(s.plan.row_slices) if token.slice == ALL_SLICES else (token.slice,)
        hidden, tokens = s.model.hidden_size, s.tokens(token.slice)
        if part == "a":
            m, n = s.width(block, "a"), hidden
            reads = [
                r for i in rows for r in (Ref(0, f"d.s{i}.{block}.a"), Ref(0, f"s{i}.{block}.norm"))
            ]
        else:
            m, n = hidden, s.width(block, "core")
            reads = [
                r for i in rows for r in (self._b_grad(block, i), Ref(0, f"s{i}.{block}.core"))
            ]
        before = self.chains.get(token)
        if before is not None:
            reads.append(Ref(0, gradient_name(before)))
        write = gradient_name(token)
        self.value_bytes[write] = 0
        accumulate = self.accumulate_first or before is not None
        signature = s.gemm(m, n, tokens, "wgrad", accumulate=accumulate, bias=s.has_bias(block))
        return OpTemplate(
            f"{block}.{part}_wgrad", token.slice, signature, COMPUTE, token.offset, tuple(reads),
            (Ref(0, write),),
        )  # fmt: skip

    # Signatures ---------------------------------------------------------------------------------

    @property
    def _activation(self) -> str:
        return "swiglu" if self.shapes.model.gated_mlp else self.shapes.model.hidden_act

    def _attention(self, row: int, direction: Direction = "forward") -> Attention:
        s, tp = self.shapes, self.shapes.cluster.tp
        return Attention(
            s.rows[row], s.model.num_attention_heads // tp, s.model.num_key_value_heads // tp,
            s.workload.seq_length, s.model.head_dim, True, direction, s.workload.dtype,
        )  # fmt: skip

    def _rope_bytes(self, row: int) -> int:
        """Bytes of queries and keys, which rope turns in place."""
        m = self.shapes.model
        width = (m.num_attention_heads + m.num_key_value_heads) * m.head_dim
        return self.shapes.tokens(row) * width // self.shapes.cluster.tp * self.shapes.element


def gradient_name(token: Token) -> str:
    """The main gradient of a weight after ``token`` added its share."""
    rows = "all" if token.slice == ALL_SLICES else f"s{token.slice}"
    return f"grad.{token.block}.{token.fragment[0]}.{rows}"
