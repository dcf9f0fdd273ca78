"""Experts in the place of a layer's MLP: the ops of its fragments.

Fragments keep their names, so that orders are the same for all layers. Forward of slice 0: ``norm``
has the norm, the shared expert, the router (its GEMM, then the choice of experts) and what sends
the tokens on their way, ``fc1`` the products of this rank's experts and what brings their rows
together, ``act`` the activation times the routers' probabilities, ``fc2`` the second products and
the way back, and ``residual`` the sum over a token's experts. Backward mirrors it: a combine's
backward is a dispatch.

The shared expert runs before the tokens are sent, and in backward after their gradients came back;
with ``moe_shared_expert_overlap`` while they are on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from simulator.issue_order import Token
from simulator.quantized import Quantized
from simulator.schedule import Ref
from simulator.token_way import Ops, TokenWay

ROUTER_BYTES: Final = 4
"""Of a score of the router, in fp32; a choice is an index and a probability."""


# Forward ------------------------------------------------------------------------------------------


def _norm(t: Quantized, row: int, _: int) -> Ops:
    s, size, base = t.shapes, t.shapes.residual_bytes(row), f"s{row}.mlp"
    norm = t.op(
        "mlp.norm", row, s.pointwise(s.model.norm, size, size), (Ref(0, f"s{row}.y"),),
        f"{base}.norm", size, weights=("w.mlp.norm",),
    )  # fmt: skip
    tokens, experts = s.residual_tokens(row), s.model.num_experts
    scores = tokens * experts * ROUTER_BYTES
    chosen = 2 * tokens * s.model.num_experts_per_tok * ROUTER_BYTES
    router = t.op(
        "mlp.router", row, s.gemm(tokens, experts, s.model.hidden_size, "forward"), norm.writes,
        f"{base}.router", scores, weights=("w.mlp.router",),
    )  # fmt: skip
    chooses = s.pointwise("moe_router", scores, scores + chosen)
    choice = t.op("mlp.topk", row, chooses, router.writes, f"{base}.topk", scores + chosen)
    way = TokenWay(t, row)
    counted = way.counted(choice, chooses)
    sent = way.there("dispatch", norm.writes[0], f"{base}.in")
    if sent:
        sent[0] = sent[0]._replace(reads=(*sent[0].reads, *choice.writes))
    shared = _shared(t, row, norm.writes[0])
    if s.workload.moe_shared_expert_overlap:
        return [norm, router, *counted, *sent, *shared]
    return [norm, *shared, router, *counted, *sent]


def _fc1(t: Quantized, row: int, _: int) -> Ops:
    s, base, way = t.shapes, f"s{row}.mlp", TokenWay(t, row)
    ops, value = way.arrived("dispatch", Ref(0, f"{base}.norm"), f"{base}.in")
    casts = t.cast(row, value, way.rows * way.row_bytes, base=f"{base}.rows",
                   groups=s.local_experts)  # fmt: skip
    width = s.expert_width("fc1")
    signature = s.grouped(way.rows, width, s.model.hidden_size, "forward")
    read = t.rows_of(value, f"{base}.rows")
    size = way.rows * width * s.element
    made = t.op("mlp.fc1", row, signature, (read,), f"{base}.fc1", size, weights=("w.mlp.fc1",))
    return [*ops, *casts, made]


def _act(t: Quantized, row: int, _: int) -> Ops:
    s, rows = t.shapes, t.shapes.routed_rows(row)
    read, size = (rows * s.expert_width(name) * s.element for name in ("fc1", "act"))
    signature = s.pointwise(s.activation, read, size)
    made = t.op("mlp.act", row, signature, (Ref(0, f"s{row}.mlp.fc1"),), f"s{row}.mlp.act", size)
    return [made, *t.cast(row, made.writes[0], size, groups=s.local_experts)]


def _fc2(t: Quantized, row: int, piece: int) -> Ops:
    s, way, pieces = t.shapes, TokenWay(t, row), t.shapes.plan.mlp_col_slices
    width = s.model.hidden_size // pieces
    signature = s.grouped(way.rows, width, s.expert_width("act"), "forward")
    made = t.op(
        "mlp.fc2", row, signature, (t.rows_of(Ref(0, f"s{row}.mlp.act")),),
        f"s{row}.mlp.fc2.{piece}", way.rows * width * s.element, weights=("w.mlp.fc2",),
        piece=piece,
    )  # fmt: skip
    return [made, *way.back("combine", made, piece, pieces)]


def _residual(t: Quantized, row: int, _: int) -> Ops:
    s, size, way = t.shapes, t.shapes.residual_bytes(row), TokenWay(t, row)
    parts = tuple(way.returned(f"s{row}.mlp.fc2.{j}") for j in range(t.shapes.plan.mlp_col_slices))
    ops, branch = way.summed("combine", parts, f"s{row}.mlp.out")
    if s.model.shared_expert_intermediate_size:
        branch = (*branch, t.summed_ref(0, f"s{row}.mlp.shared.out"))
    reads = (*branch, Ref(0, f"s{row}.y"))
    signature = s.pointwise("add", len(reads) * size, size, len(branch))
    return [*ops, t.op("mlp.residual", row, signature, reads, f"s{row}.x", size, layer=1)]


# Backward -----------------------------------------------------------------------------------------


def _residual_bwd(t: Quantized, row: int, _: int) -> Ops:
    return TokenWay(t, row).there("combine_bwd", Ref(1, f"d.s{row}.x"), f"d.s{row}.mlp.in")


def _fc2_dgrad(t: Quantized, row: int, _: int) -> Ops:
    s, base, way = t.shapes, f"d.s{row}.mlp", TokenWay(t, row)
    ops, value = way.arrived("combine_bwd", Ref(1, f"d.s{row}.x"), f"{base}.in")
    casts = t.cast(row, value, way.rows * way.row_bytes, base=f"{base}.rows",
                   groups=s.local_experts)  # fmt: skip
    width = s.expert_width("act")
    signature = s.grouped(way.rows, width, s.model.hidden_size, "dgrad")
    made = t.op(
        "mlp.fc2_dgrad", row, signature, (t.rows_of(value, f"{base}.rows"),), f"{base}.act",
        way.rows * width * s.element, weights=("w.mlp.fc2",),
    )  # fmt: skip
    return [*ops, *casts, made]


def _act_bwd(t: Quantized, row: int, _: int) -> Ops:
    s, rows = t.shapes, t.shapes.routed_rows(row)
    size, more = (rows * s.expert_width(name) * s.element for name in ("fc1", "act"))
    signature = s.pointwise(f"{s.activation}_bwd", size + more, size)
    reads = (Ref(0, f"d.s{row}.mlp.act"), Ref(0, f"s{row}.mlp.fc1"))
    made = t.op("mlp.act_bwd", row, signature, reads, f"d.s{row}.mlp.fc1", size)
    return [made, *t.cast(row, made.writes[0], size, groups=s.local_experts)]


def _fc1_dgrad(t: Quantized, row: int, piece: int) -> Ops:
    s, way, pieces = t.shapes, TokenWay(t, row), t.shapes.plan.mlp_dgrad_slices
    width = s.model.hidden_size // pieces
    signature = s.grouped(way.rows, width, s.expert_width("fc1"), "dgrad")
    made = t.op(
        "mlp.fc1_dgrad", row, signature, (t.rows_of(Ref(0, f"d.s{row}.mlp.fc1")),),
        f"d.s{row}.mlp.rows.{piece}", way.rows * width * s.element, weights=("w.mlp.fc1",),
        piece=piece,
    )  # fmt: skip
    return [made, *way.back("dispatch_bwd", made, piece, pieces)]


def gradients_back(t: Quantized, row: int) -> tuple[Ref, ...]:
    """Return the gradients that come back from the experts, by column piece."""
    way, pieces = TokenWay(t, row), t.shapes.plan.mlp_dgrad_slices
    return tuple(way.returned(f"d.s{row}.mlp.rows.{j}") for j in range(pieces))


def _norm_bwd(t: Quantized, row: int, _: int) -> Ops:
    s, size, way, base = t.shapes, t.shapes.residual_bytes(row), TokenWay(t, row), f"d.s{row}.mlp"
    shared, branches = _shared_bwd(t, row)
    parts = gradients_back(t, row)
    summed, routed = way.summed("dispatch_bwd", parts, f"{base}.permute")
    choice = _router_bwd(t, row, routed)
    branches = (*branches, *routed, *choice[1].writes)
    total = t.op(
        "mlp.norm_grad", row, s.pointwise("add", len(branches) * size, size, len(branches)),
        branches, f"{base}.norm", size,
    )  # fmt: skip
    reads = (*total.writes, Ref(0, f"s{row}.y"), Ref(1, f"d.s{row}.x"))
    signature = s.pointwise(f"{s.model.norm}_bwd", 3 * size, size)
    norm = t.op("mlp.norm_bwd", row, signature, reads, f"d.s{row}.y", size, weights=("w.mlp.norm",))
    if s.workload.moe_shared_expert_overlap:
        return [*shared, *summed, *choice, total, norm]
    return [*summed, *choice, *shared, total, norm]


def _router_bwd(t: Quantized, row: int, after: tuple[Ref, ...]) -> Ops:
    """Return the gradients of the choice, of the router's input and of its weight."""
    s, base = t.shapes, f"s{row}.mlp"
    tokens, experts, hidden = s.residual_tokens(row), s.model.num_experts, s.model.hidden_size
    scores = tokens * experts * ROUTER_BYTES
    reads = (*after, Ref(0, f"{base}.topk"))
    choice = t.op("mlp.topk_bwd", row, s.pointwise("moe_router", 2 * scores, scores), reads,
                  f"d.{base}.router", scores)  # fmt: skip
    dgrad = t.op(
        "mlp.router_dgrad", row, s.gemm(tokens, hidden, experts, "dgrad"), choice.writes,
        f"d.{base}.routed", s.residual_bytes(row), weights=("w.mlp.router",),
    )  # fmt: skip
    made = s.gemm(experts, hidden, tokens, "wgrad")
    reads = (*choice.writes, Ref(0, f"{base}.norm"))
    wgrad = t.accumulated("mlp.router_wgrad", row, made, reads, f"grad.mlp.router.s{row}", ())
    return [choice, dgrad, *wgrad]


# The shared expert --------------------------------------------------------------------------------


def _shared(t: Quantized, row: int, norm: Ref) -> Ops:
    """Return a dense MLP of all tokens; none where a model has no shared expert."""
    s, base = t.shapes, f"s{row}.mlp.shared"
    if not s.model.shared_expert_intermediate_size:
        return []
    tokens, hidden = s.tokens(row), s.model.hidden_size
    wide, narrow = s.shared_width("fc1"), s.shared_width("act")
    ops = t.cast(row, norm, s.residual_bytes(row), gathered=t.gathers, base=f"{base}.in")
    source = t.rows_of(norm, f"{base}.in")
    ops += t.gathered(row, "mlp.shared.ag", source, f"{base}.in.ag", t.gathered_bytes(row))
    fc1 = t.op(
        "mlp.shared_fc1", row, s.linear(tokens, wide, hidden, "forward"),
        (t.gathered_ref(source, f"{base}.in.ag"),), f"{base}.fc1", tokens * wide * s.element,
        weights=("w.mlp.shared_fc1",),
    )  # fmt: skip
    size = tokens * narrow * s.element
    signature = s.pointwise(s.activation, tokens * wide * s.element, size)
    act = t.op("mlp.shared_act", row, signature, fc1.writes, f"{base}.act", size)
    ops += [fc1, act, *t.cast(row, act.writes[0], size)]
    fc2 = t.op(
        "mlp.shared_fc2", row, s.linear(tokens, hidden, narrow, "forward"),
        (t.rows_of(act.writes[0]),), f"{base}.out", s.hidden_bytes(row),
        weights=("w.mlp.shared_fc2",),
    )  # fmt: skip
    return [*ops, *t.summed(fc2, s.hidden_bytes(row))]


def _shared_bwd(t: Quantized, row: int) -> tuple[Ops, tuple[Ref, ...]]:
    """Return the backward ops of the shared expert, and the gradient of its input."""
    s, base, grad = t.shapes, f"s{row}.mlp.shared", Ref(1, f"d.s{row}.x")
    if not s.model.shared_expert_intermediate_size:
        return [], ()
    tokens, hidden = s.tokens(row), s.model.hidden_size
    wide, narrow = s.shared_width("fc1"), s.shared_width("act")
    given = f"d.{base}.out"
    ops = t.cast(row, grad, s.residual_bytes(row), gathered=t.gathers, base=given)
    source = t.rows_of(grad, given)
    whole = t.gathered_bytes(row, copies=2)
    ops += t.gathered(row, "mlp.shared.ag_bwd", source, f"{given}.ag", whole)
    dy = t.gathered_ref(source, f"{given}.ag")
    ops.append(
        t.op("mlp.shared_fc2_dgrad", row, s.linear(tokens, narrow, hidden, "dgrad"), (dy,),
             f"d.{base}.act", tokens * narrow * s.element, weights=("w.mlp.shared_fc2",))
    )  # fmt: skip
    d_act = ops[-1].writes[0]
    across = dy if t.gathers else t.across_of(grad, given)
    ops += t.accumulated(
        "mlp.shared_fc2_wgrad", row, s.linear(hidden, narrow, tokens, "wgrad"),
        (across, t.across_of(Ref(0, f"{base}.act"))), f"grad.mlp.shared_fc2.s{row}", (),
    )  # fmt: skip
    size = tokens * wide * s.element
    signature = s.pointwise(f"{s.activation}_bwd", size + tokens * narrow * s.element, size)
    reads = (d_act, Ref(0, f"{base}.fc1"))
    ops.append(t.op("mlp.shared_act_bwd", row, signature, reads, f"d.{base}.fc1", size))
    ops += t.cast(row, ops[-1].writes[0], size)
    kept = Ref(0, f"{base}.in.ag_bwd")
    again = t.gathered(
        row, "mlp.shared.in_ag_bwd", t.rows_of(Ref(0, f"s{row}.mlp.norm"), f"{base}.in"),
        kept.name, t.gathered_bytes(row),
    )  # fmt: skip
    dgrad = t.op(
        "mlp.shared_fc1_dgrad", row, s.linear(tokens, hidden, wide, "dgrad"),
        (t.rows_of(Ref(0, f"d.{base}.fc1")),), f"d.{base}.norm", s.hidden_bytes(row),
        weights=("w.mlp.shared_fc1",),
    )  # fmt: skip
    ops += [*again, *t.summed(dgrad, s.hidden_bytes(row))]
    x = kept if t.gathers else t.across_of(Ref(0, f"s{row}.mlp.norm"), f"{base}.in")
    ops += t.accumulated(
        "mlp.shared_fc1_wgrad", row, s.linear(wide, hidden, tokens, "wgrad"),
        (t.across_of(Ref(0, f"d.{base}.fc1")), x), f"grad.mlp.shared_fc1.s{row}", (),
    )  # fmt: skip
    return ops, (t.summed_ref(0, f"d.{base}.norm"),)


MAKERS: Final[Mapping[str, Callable[[Quantized, int, int], Ops]]] = {
    "norm": _norm, "fc1": _fc1, "act": _act, "fc2": _fc2, "residual": _residual,
    "residual_bwd": _residual_bwd, "fc2_dgrad": _fc2_dgrad, "act_bwd": _act_bwd,
    "fc1_dgrad": _fc1_dgrad, "norm_bwd": _norm_bwd,
}  # fmt: skip
"""Fragment -> what makes its templates of a slice and a piece; wgrads apart."""


def expert_wgrad(t: Quantized, token: Token, name: str, chained: tuple[Ref, ...]) -> Ops:
    """Return the products that make the gradients of this rank's experts, ``name``, from those of
    a slice's rows."""
    s, row, linear = t.shapes, token.slice, token.fragment.removesuffix("_wgrad")
    way, base, hidden = TokenWay(t, row), f"s{row}.mlp", s.model.hidden_size
    if linear == "fc1":
        value = way.sorted(Ref(0, f"{base}.norm"), f"{base}.in")
        reads = t.across_of(Ref(0, f"d.{base}.fc1")), t.across_of(value, f"{base}.rows")
        out, width = s.expert_width("fc1"), hidden
    else:
        value = way.sorted(Ref(1, f"d.s{row}.x"), f"d.{base}.in")
        reads = t.across_of(value, f"d.{base}.rows"), t.across_of(Ref(0, f"{base}.act"))
        out, width = hidden, s.expert_width("act")
    signature = s.grouped(way.rows, out, width, "wgrad")
    return t.accumulated(f"mlp.{token.fragment}", row, signature, reads, name, chained)
