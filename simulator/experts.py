"""Experts in the place of a layer's MLP: the ops of its fragments.

Fragments keep their names, so that orders are the same for all layers. Forward of slice 0: ``norm``
has the norm, the shared expert, the router (its GEMM, then the choice of experts) and what sends
the tokens on their way, ``fc1`` the products of this rank's experts and what brings their rows
together, ``act`` the activation times the routers' probabilities, ``fc2`` the second products and
the way back, and ``residual`` the sum over a token's experts. Backward mirrors it: a combine's
backward is a dispatch.

The shared expert runs before the tokens are sent, and in backward after their gradients came back;
with ``moe_shared_expert_overlap`` while they are on their way.

What surrounds products of experts with biases or clamps, as gpt-oss has them, is not fused
(Megatron-LM of 2025 and 2026, core/transformer/moe/experts.py: ``TEGroupedMLP._apply_bias``;
core/fusions/fused_bias_geglu.py: ``weighted_bias_quick_geglu_impl``). Both halves of fc1 are
clamped and put together before the activation, whose offset is copied from the host, which waits
for that. To each expert's rows of fc2 its bias times their probabilities is added, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from simulator.issue_order import Token, output_of
from simulator.ops import Pointwise
from simulator.quantized import Quantized
from simulator.schedule import OpTemplate
from simulator.token_way import Ops, TokenWay
from simulator.values import Ref, main_gradient

ROUTER_BYTES: Final = 4
"""Of a score of the router, in fp32; a choice is an index and a probability."""


class Passes(NamedTuple):
    """Kernels of PyTorch over a value, and some for each expert; the bytes that all of them read
    and write, as multiples of the value's in 16 bits."""

    read: float
    written: float
    kernels: int
    of_experts: int = 0

    def over(self, t: Quantized, size: int) -> Pointwise:
        """Return them over a value of ``size`` bytes."""
        s, kernels = t.shapes, self.kernels + self.of_experts * t.shapes.local_experts
        read, written = round(self.read * size), round(self.written * size)
        return Pointwise("copy", read, written, s.workload.dtype, kernels=kernels)


CLAMPS: Final = Passes(2, 2, 3)
"""Two clamps, and their results put together."""
CLAMPS_BWD: Final = Passes(4.5, 3, 9)
"""Of one half: a comparison, zero, a choice; of the other: two comparisons, both of them, zero, a
choice; and both halves put together."""
BIASES: Final = Passes(7, 7, 2, 2)
"""Of an expert: bias times probabilities in fp32, which are added to its rows. All rows are put
together, and rounded."""
BIASES_BWD: Final = Passes(12, 8, 2, 6)
"""Gradients in fp32; of an expert: those of its rows rounded, those of its bias and of the
probabilities multiplied and summed, the bias's rounded; rows put together."""


# Forward ------------------------------------------------------------------------------------------


def _norm(t: Quantized, row: int, _: int) -> Ops:
    s, size = t.shapes, t.shapes.residual_bytes(row)
    norm = t.op(
        "mlp.norm", row, s.pointwise(s.model.norm, size, size), (Ref("y", row),),
        Ref("mlp.norm", row), size, weights=("w.mlp.norm",),
    )  # fmt: skip
    tokens, experts = s.residual_tokens(row), s.model.num_experts
    scores = tokens * experts * ROUTER_BYTES
    chosen = 2 * tokens * s.model.num_experts_per_tok * ROUTER_BYTES
    router = t.op(
        "mlp.router", row, s.gemm(tokens, experts, s.model.hidden_size, "forward"), norm.writes,
        Ref("mlp.router", row), scores, weights=("w.mlp.router",),
    )  # fmt: skip
    chooses = s.pointwise("moe_router", scores, scores + chosen)
    choice = t.op("mlp.topk", row, chooses, router.writes, Ref("mlp.topk", row), scores + chosen)
    way = TokenWay(t, row)
    counted = way.counted(choice, chooses)
    sent = way.there("dispatch", norm.writes[0], Ref("mlp.in", row))
    if sent:
        sent[0] = sent[0]._replace(reads=(*sent[0].reads, *choice.writes))
    shared = _shared(t, row, norm.writes[0])
    if s.workload.moe_shared_expert_overlap:
        return [norm, router, *counted, *sent, *shared]
    return [norm, *shared, router, *counted, *sent]


def _fc1(t: Quantized, row: int, _: int) -> Ops:
    s, way = t.shapes, TokenWay(t, row)
    ops, value = way.arrived("dispatch", Ref("mlp.norm", row), Ref("mlp.in", row))
    casts = t.cast(row, value, way.rows * way.row_bytes, base=Ref("mlp.rows", row),
                   groups=s.local_experts)  # fmt: skip
    width = s.expert_width("fc1")
    signature = s.grouped(way.rows, width, s.model.hidden_size, "forward")
    read = t.rows_of(value, Ref("mlp.rows", row))
    size = way.rows * width * s.element
    made = t.op(
        "mlp.fc1", row, signature, (read,), Ref("mlp.fc1", row), size, weights=("w.mlp.fc1",)
    )
    return [*ops, *casts, made]


def _act(t: Quantized, row: int, _: int) -> Ops:
    s, rows = t.shapes, t.shapes.routed_rows(row)
    read, size = (rows * s.expert_width(name) * s.element for name in ("fc1", "act"))
    ops, source = list[OpTemplate](), Ref("mlp.fc1", row)
    if s.model.swiglu_limit:
        clamps = CLAMPS.over(t, read)._replace(awaited=True)
        ops.append(t.op("mlp.act_clamp", row, clamps, (source,), source.form("clamped"), read))
        source = source.form("clamped")
    signature = s.pointwise(s.activation, read, size)
    made = t.op("mlp.act", row, signature, (source,), Ref("mlp.act", row), size)
    return [*ops, made, *t.cast(row, made.writes[0], size, groups=s.local_experts)]


def _fc2(t: Quantized, row: int, piece: int) -> Ops:
    s, way, pieces = t.shapes, TokenWay(t, row), t.shapes.plan.mlp_col_slices
    width = s.model.hidden_size // pieces
    signature = s.grouped(way.rows, width, s.expert_width("act"), "forward")
    made = t.op(
        "mlp.fc2", row, signature, (t.rows_of(Ref("mlp.act", row)),),
        Ref("mlp.fc2", row, piece), way.rows * width * s.element, weights=("w.mlp.fc2",),
        piece=piece,
    )  # fmt: skip
    if not s.model.has_expert_biases:
        return [made, *way.back("combine", made, piece, pieces)]
    size, value = made.sizes[0], _fc2_output(t, row, piece)
    biased = t.op("mlp.fc2_bias", row, BIASES.over(t, size), made.writes, value, size, piece=piece)
    return [made, biased, *way.back("combine", biased, piece, pieces)]


def _fc2_output(t: Quantized, row: int, piece: int) -> Ref:
    """Return the experts' outputs that go back."""
    value = Ref("mlp.fc2", row, piece)
    return value.form("biased") if t.shapes.model.has_expert_biases else value


def _residual(t: Quantized, row: int, _: int) -> Ops:
    s, size, way = t.shapes, t.shapes.residual_bytes(row), TokenWay(t, row)
    pieces = range(t.shapes.plan.mlp_col_slices)
    parts = tuple(way.returned(_fc2_output(t, row, piece)) for piece in pieces)
    ops, branch = way.summed("combine", parts, Ref("mlp.out", row))
    if s.model.shared_expert_intermediate_size:
        branch = (*branch, t.summed_ref(Ref("mlp.shared.out", row)))
    reads = (*branch, Ref("y", row))
    signature = s.pointwise("add", len(reads) * size, size, len(branch))
    return [*ops, t.op("mlp.residual", row, signature, reads, output_of("mlp", row), size)]


# Backward -----------------------------------------------------------------------------------------


def _residual_bwd(t: Quantized, row: int, _: int) -> Ops:
    return TokenWay(t, row).there(
        "combine_bwd", output_of("mlp", row).grad, Ref("mlp.in", row).grad
    )


def _fc2_dgrad(t: Quantized, row: int, _: int) -> Ops:
    s, way, rows = t.shapes, TokenWay(t, row), Ref("mlp.rows", row).grad
    ops, value = way.arrived("combine_bwd", output_of("mlp", row).grad, Ref("mlp.in", row).grad)
    if s.model.has_expert_biases:
        size = way.rows * way.row_bytes
        passes, value = BIASES_BWD.over(t, size), _fc2_gradient(t, row)
        ops.append(t.op("mlp.fc2_bias_bwd", row, passes, (_arrived(t, row),), value, size))
    casts = t.cast(row, value, way.rows * way.row_bytes, base=rows,
                   groups=s.local_experts)  # fmt: skip
    width = s.expert_width("act")
    signature = s.grouped(way.rows, width, s.model.hidden_size, "dgrad")
    made = t.op(
        "mlp.fc2_dgrad", row, signature, (t.rows_of(value, rows),),
        Ref("mlp.act", row).grad, way.rows * width * s.element, weights=("w.mlp.fc2",),
    )  # fmt: skip
    return [*ops, *casts, made]


def _arrived(t: Quantized, row: int) -> Ref:
    """Return the gradients that arrived for the experts' rows."""
    return TokenWay(t, row).sorted(output_of("mlp", row).grad, Ref("mlp.in", row).grad)


def _fc2_gradient(t: Quantized, row: int) -> Ref:
    """Return the gradients of fc2's products."""
    arrived = _arrived(t, row)
    return arrived.form("biased") if t.shapes.model.has_expert_biases else arrived


def _act_bwd(t: Quantized, row: int, _: int) -> Ops:
    s, rows, fc1 = t.shapes, t.shapes.routed_rows(row), Ref("mlp.fc1", row)
    size, more = (rows * s.expert_width(name) * s.element for name in ("fc1", "act"))
    signature = s.pointwise(f"{s.activation}_bwd", size + more, size)
    clamps = s.model.swiglu_limit > 0
    source = fc1.form("clamped") if clamps else fc1
    ops = [t.op("mlp.act_bwd", row, signature, (Ref("mlp.act", row).grad, source), source.grad,
                size)]  # fmt: skip
    if clamps:
        reads = (source.grad, fc1)
        ops.append(t.op("mlp.act_clamp_bwd", row, CLAMPS_BWD.over(t, size), reads, fc1.grad, size))
    return [*ops, *t.cast(row, fc1.grad, size, groups=s.local_experts)]


def _fc1_dgrad(t: Quantized, row: int, piece: int) -> Ops:
    s, way, pieces = t.shapes, TokenWay(t, row), t.shapes.plan.mlp_dgrad_slices
    width = s.model.hidden_size // pieces
    signature = s.grouped(way.rows, width, s.expert_width("fc1"), "dgrad")
    made = t.op(
        "mlp.fc1_dgrad", row, signature, (t.rows_of(Ref("mlp.fc1", row).grad),),
        Ref("mlp.rows", row, piece).grad, way.rows * width * s.element, weights=("w.mlp.fc1",),
        piece=piece,
    )  # fmt: skip
    return [made, *way.back("dispatch_bwd", made, piece, pieces)]


def gradients_back(t: Quantized, row: int) -> tuple[Ref, ...]:
    """Return the gradients that come back from the experts, by column piece."""
    way, pieces = TokenWay(t, row), t.shapes.plan.mlp_dgrad_slices
    return tuple(way.returned(Ref("mlp.rows", row, j).grad) for j in range(pieces))


def _norm_bwd(t: Quantized, row: int, _: int) -> Ops:
    s, size, way = t.shapes, t.shapes.residual_bytes(row), TokenWay(t, row)
    shared, branches = _shared_bwd(t, row)
    parts = gradients_back(t, row)
    summed, routed = way.summed("dispatch_bwd", parts, Ref("mlp.permute", row).grad)
    choice = _router_bwd(t, row, routed)
    branches = (*branches, *routed, *choice[1].writes)
    total = t.op(
        "mlp.norm_grad", row, s.pointwise("add", len(branches) * size, size, len(branches)),
        branches, Ref("mlp.norm", row).grad, size,
    )  # fmt: skip
    reads = (*total.writes, Ref("y", row), output_of("mlp", row).grad)
    signature = s.pointwise(f"{s.model.norm}_bwd", 3 * size, size)
    norm = t.op(
        "mlp.norm_bwd", row, signature, reads, Ref("y", row).grad, size, weights=("w.mlp.norm",)
    )
    if s.workload.moe_shared_expert_overlap:
        return [*shared, *summed, *choice, total, norm]
    return [*summed, *choice, *shared, total, norm]


def _router_bwd(t: Quantized, row: int, after: tuple[Ref, ...]) -> Ops:
    """Return the gradients of the choice, of the router's input and of its weight."""
    s = t.shapes
    tokens, experts, hidden = s.residual_tokens(row), s.model.num_experts, s.model.hidden_size
    scores = tokens * experts * ROUTER_BYTES
    reads = (*after, Ref("mlp.topk", row))
    choice = t.op("mlp.topk_bwd", row, s.pointwise("moe_router", 2 * scores, scores), reads,
                  Ref("mlp.router", row).grad, scores)  # fmt: skip
    dgrad = t.op(
        "mlp.router_dgrad", row, s.gemm(tokens, hidden, experts, "dgrad"), choice.writes,
        Ref("mlp.routed", row).grad, s.residual_bytes(row), weights=("w.mlp.router",),
    )  # fmt: skip
    made = s.gemm(experts, hidden, tokens, "wgrad")
    reads = (*choice.writes, Ref("mlp.norm", row))
    gradient = main_gradient("mlp.router", row)
    wgrad = t.accumulated("mlp.router_wgrad", row, made, reads, gradient, ())
    return [choice, dgrad, *wgrad]


# The shared expert --------------------------------------------------------------------------------


def _shared(t: Quantized, row: int, norm: Ref) -> Ops:
    """Return a dense MLP of all tokens; none where a model has no shared expert."""
    s, entry = t.shapes, Ref("mlp.shared.in", row)
    if not s.model.shared_expert_intermediate_size:
        return []
    tokens, hidden = s.tokens(row), s.model.hidden_size
    wide, narrow = s.shared_width("fc1"), s.shared_width("act")
    ops = t.cast(row, norm, s.residual_bytes(row), gathered=t.gathers, base=entry)
    source = t.rows_of(norm, entry)
    ops += t.gathered(row, "mlp.shared.ag", source, entry.form("ag"), t.gathered_bytes(row))
    fc1 = t.op(
        "mlp.shared_fc1", row, s.linear(tokens, wide, hidden, "forward"),
        (t.gathered_ref(source, entry.form("ag")),), Ref("mlp.shared.fc1", row),
        tokens * wide * s.element,
        weights=("w.mlp.shared_fc1",),
    )  # fmt: skip
    size = tokens * narrow * s.element
    signature = s.pointwise(s.activation, tokens * wide * s.element, size)
    act = t.op("mlp.shared_act", row, signature, fc1.writes, Ref("mlp.shared.act", row), size)
    ops += [fc1, act, *t.cast(row, act.writes[0], size)]
    fc2 = t.op(
        "mlp.shared_fc2", row, s.linear(tokens, hidden, narrow, "forward"),
        (t.rows_of(act.writes[0]),), Ref("mlp.shared.out", row), s.hidden_bytes(row),
        weights=("w.mlp.shared_fc2",),
    )  # fmt: skip
    return [*ops, *t.summed(fc2, s.hidden_bytes(row))]


def _shared_bwd(t: Quantized, row: int) -> tuple[Ops, tuple[Ref, ...]]:
    """Return the backward ops of the shared expert, and the gradient of its input."""
    s, entry, grad = t.shapes, Ref("mlp.shared.in", row), output_of("mlp", row).grad
    if not s.model.shared_expert_intermediate_size:
        return [], ()
    tokens, hidden = s.tokens(row), s.model.hidden_size
    wide, narrow = s.shared_width("fc1"), s.shared_width("act")
    given = Ref("mlp.shared.out", row).grad
    ops = t.cast(row, grad, s.residual_bytes(row), gathered=t.gathers, base=given)
    source = t.rows_of(grad, given)
    whole = t.gathered_bytes(row, copies=2)
    ops += t.gathered(row, "mlp.shared.ag_bwd", source, given.form("ag"), whole)
    dy = t.gathered_ref(source, given.form("ag"))
    ops.append(
        t.op("mlp.shared_fc2_dgrad", row, s.linear(tokens, narrow, hidden, "dgrad"), (dy,),
             Ref("mlp.shared.act", row).grad, tokens * narrow * s.element,
             weights=("w.mlp.shared_fc2",))
    )  # fmt: skip
    d_act = ops[-1].writes[0]
    across = dy if t.gathers else t.across_of(grad, given)
    ops += t.accumulated(
        "mlp.shared_fc2_wgrad", row, s.linear(hidden, narrow, tokens, "wgrad"),
        (across, t.across_of(Ref("mlp.shared.act", row))), main_gradient("mlp.shared_fc2", row), (),
    )  # fmt: skip
    size = tokens * wide * s.element
    signature = s.pointwise(f"{s.activation}_bwd", size + tokens * narrow * s.element, size)
    fc1 = Ref("mlp.shared.fc1", row)
    ops.append(t.op("mlp.shared_act_bwd", row, signature, (d_act, fc1), fc1.grad, size))
    ops += t.cast(row, fc1.grad, size)
    kept = entry.form("ag_bwd")
    again = t.gathered(
        row, "mlp.shared.in_ag_bwd", t.rows_of(Ref("mlp.norm", row), entry),
        kept, t.gathered_bytes(row),
    )  # fmt: skip
    dgrad = t.op(
        "mlp.shared_fc1_dgrad", row, s.linear(tokens, hidden, wide, "dgrad"),
        (t.rows_of(fc1.grad),), Ref("mlp.shared.norm", row).grad, s.hidden_bytes(row),
        weights=("w.mlp.shared_fc1",),
    )  # fmt: skip
    ops += [*again, *t.summed(dgrad, s.hidden_bytes(row))]
    x = kept if t.gathers else t.across_of(Ref("mlp.norm", row), entry)
    ops += t.accumulated(
        "mlp.shared_fc1_wgrad", row, s.linear(wide, hidden, tokens, "wgrad"),
        (t.across_of(fc1.grad), x), main_gradient("mlp.shared_fc1", row), (),
    )  # fmt: skip
    return ops, (t.summed_ref(Ref("mlp.shared.norm", row).grad),)


MAKERS: Final[Mapping[str, Callable[[Quantized, int, int], Ops]]] = {
    "norm": _norm, "fc1": _fc1, "act": _act, "fc2": _fc2, "residual": _residual,
    "residual_bwd": _residual_bwd, "fc2_dgrad": _fc2_dgrad, "act_bwd": _act_bwd,
    "fc1_dgrad": _fc1_dgrad, "norm_bwd": _norm_bwd,
}  # fmt: skip
"""Fragment -> what makes its templates of a slice and a piece; wgrads apart."""


def expert_wgrad(t: Quantized, token: Token, gradient: Ref, chained: tuple[Ref, ...]) -> Ops:
    """Return the products that make ``gradient``, of this rank's experts, from those of a slice's
    rows."""
    s, row, linear = t.shapes, token.slice, token.linear
    way, hidden = TokenWay(t, row), s.model.hidden_size
    if linear == "fc1":
        value = way.sorted(Ref("mlp.norm", row), Ref("mlp.in", row))
        reads = t.across_of(Ref("mlp.fc1", row).grad), t.across_of(value, Ref("mlp.rows", row))
        out, width = s.expert_width("fc1"), hidden
    else:
        value = _fc2_gradient(t, row)
        reads = t.across_of(value, Ref("mlp.rows", row).grad), t.across_of(Ref("mlp.act", row))
        out, width = hidden, s.expert_width("act")
    signature = s.grouped(way.rows, out, width, "wgrad")
    return t.accumulated(f"mlp.{token.fragment}", row, signature, reads, gradient, chained)
