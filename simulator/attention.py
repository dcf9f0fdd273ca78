"""Attention's op templates: its core, and latent attention's projections.

Where a row slice is positions [a, b) of all sequences, its queries meet the keys of positions below
b: those of all slices before it, too. In backward a slice's queries contribute to the gradients of
the keys and values before a. A sum in fp32 collects these contributions (``attn.kv_bwd``). When the
slice of those keys comes, all later slices have added theirs: it adds the sum to the gradient from
its own queries.

softmax(QKᵀ)V is one kernel, or with ``flash_attention`` off GEMMs over scores that memory holds:
[sequences · heads · seq_length, seq_length], priced as one GEMM of the same FLOPs. The outputs of
the softmax and the dropout are kept for backward, 5 bytes per score in bf16 (arXiv 2205.05198,
section 4.1).
"""

from __future__ import annotations

from typing import Final

from simulator.context import context_attention, context_attention_bwd
from simulator.issue_order import Token
from simulator.ops import Attention, Direction, Gemm
from simulator.quantized import Quantized
from simulator.schedule import OpTemplate
from simulator.shapes import GRAD_BYTES
from simulator.templates import Templates
from simulator.values import Ref, main_gradient

SCORES: Final = ("attn.scores", "attn.softmax", "attn.attn_dropout")
"""Roles of what the core computes before it meets the values, where it is not one kernel."""


def core_attention(t: Templates, row: int) -> list[OpTemplate]:
    """Return the forward ops of slice ``row``, from its qkv to the projection's input."""
    s, qkv, moved = t.shapes, Ref("attn.qkv", row), t.shapes.qk_bytes(row)
    source, ops = qkv, []
    if s.model.qk_norm:  # not in place: backward reads what it normalises
        signature = s.pointwise(s.model.norm, moved, moved)
        ops.append(
            t.op("attn.qk_norm", row, signature, (qkv,), Ref("attn.qk", row), moved,
                 weights=("w.attn.qk_norm",))
        )  # fmt: skip
        source = ops[-1].writes[0]
    if s.model.position_embedding == "rope":
        signature = s.pointwise("rope", moved, moved)
        ops.append(t.op("attn.rope", row, signature, (source,), source.form("rope"), 0))
        source = ops[-1].writes[0]
    own = (source, qkv) if s.model.qk_norm else (source,)
    inputs = (*own, *_earlier(t, row))
    write, size = Ref("attn.core_attn", row), s.width_bytes("core_attn", row)
    if s.cluster.cp > 1:
        return [*ops, *context_attention(t, row, inputs, write)]
    if s.workload.flash_attention:
        ops.append(t.op("attn.core_attn", row, _attention(t, row), inputs, write, size))
        return ops
    ops += _probabilities(t, row, inputs)
    context = _gemm(t, row, s.model.head_dim, s.spans[row].stop)
    reads = (*ops[-1].writes, qkv)
    return [*ops, t.op("attn.core_attn", row, context, reads, write, size)]


def _earlier(t: Templates, row: int) -> tuple[Ref, ...]:
    """Return keys and values of the slices before ``row`` in its sequences."""
    if not t.shapes.plan.slices_sequences:
        return ()
    model = t.shapes.model
    rope = ("rope",) if model.position_embedding == "rope" else ()
    parts = (("qkv", ()), ("qk", rope)) if model.qk_norm else (("qkv", rope),)
    return tuple(Ref(f"attn.{one}", i).form(*forms) for i in range(row) for one, forms in parts)


def _probabilities(t: Templates, row: int, inputs: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the scores, their softmax and its dropout."""
    s, size, mask = t.shapes, t.shapes.score_bytes(row), t.shapes.score_mask_bytes(row)
    scores = t.op(
        "attn.scores", row, _gemm(t, row, s.spans[row].stop, s.model.head_dim), inputs,
        Ref("attn.scores", row), size,
    )  # fmt: skip
    softmax = t.op(
        "attn.softmax", row, s.pointwise("softmax", size, size), scores.writes,
        Ref("attn.softmax", row), size,
    )  # fmt: skip
    if not mask:
        return [scores, softmax]
    dropout = t.op(
        "attn.attn_dropout", row, s.pointwise("dropout", size, size + mask), softmax.writes,
        Ref("attn.attn_dropout", row), size + mask,
    )  # fmt: skip
    return [scores, softmax, dropout]


def core_attention_bwd(t: Templates, row: int) -> list[OpTemplate]:
    """Return the backward ops of slice ``row``, from the core's gradient to that of its qkv."""
    s, qkv, size = t.shapes, Ref("attn.qkv", row), t.shapes.width_bytes("qkv", row)
    normed = qkv.grad.form("qk_norm") if s.model.qk_norm else qkv.grad
    rope = s.model.position_embedding == "rope"
    last = normed.form("rope") if rope else normed
    first = last.form("own") if s.plan.slices_sequences else last
    grad, inputs = Ref("attn.core_attn", row).grad, _kept_inputs(t, row)
    if s.cluster.cp > 1:
        ops = context_attention_bwd(t, row, grad, inputs, first)
    elif s.workload.flash_attention:
        reads = (grad, *inputs, Ref("attn.core_attn", row))
        signature = _attention(t, row, "backward")
        ops = [t.op("attn.core_attn_bwd", row, signature, reads, first, size)]
    else:
        ops = _unfused_bwd(t, row, grad, inputs, first)
    if s.plan.slices_sequences:
        ops = _with_kv_grad(t, row, ops, last)
    moved = s.qk_bytes(row)
    if rope:
        rope_signature = s.pointwise("rope_bwd", moved, moved)
        ops.append(t.op("attn.rope_bwd", row, rope_signature, (last,), normed, 0))
    if s.model.qk_norm:
        norm_signature = s.pointwise(f"{s.model.norm}_bwd", 2 * moved, moved)
        ops.append(
            t.op("attn.qk_norm_bwd", row, norm_signature, (normed, qkv), qkv.grad, 0,
                 weights=("w.attn.qk_norm",))
        )  # fmt: skip
    return ops


def _with_kv_grad(t: Templates, row: int, ops: list[OpTemplate], write: Ref) -> list[OpTemplate]:
    """Return the core's backward ops, and the one that sums the gradients of keys and values."""
    s, last = t.shapes, t.shapes.plan.row_slices - 1
    span, later = s.spans[row], row < last
    before, own = (s.kv_elements(row, positions) for positions in (span.start, len(span)))
    reads, total = [*ops[0].writes, *ops[-1].writes], "attn.kv_grad"
    if later:
        reads += [Ref(total, i).grad for i in dict.fromkeys((row + 1, last))]
    if before:
        given = Ref("attn.kv", row).grad
        ops[-1] = ops[-1].writing(given, before * s.element)
        reads.append(given)
    signature = s.pointwise(
        "grad_add",
        before * (s.element + GRAD_BYTES * later) + own * (s.element + GRAD_BYTES) * later,
        before * GRAD_BYTES + own * s.element * later,
    )
    op = t.op("attn.kv_bwd", row, signature, tuple(dict.fromkeys(reads)), write, 0)
    if before:
        op = op.writing(Ref(total, row).grad, 0 if later else before * GRAD_BYTES)
    return [*ops, op]


def _unfused_bwd(
    t: Templates, row: int, grad: Ref, inputs: tuple[Ref, ...], write: Ref
) -> list[OpTemplate]:
    """Return the gradients of values, probabilities, scores, queries and keys."""
    s, size, mask = t.shapes, t.shapes.score_bytes(row), t.shapes.score_mask_bytes(row)
    length, head_dim = s.spans[row].stop, s.model.head_dim
    softmax = Ref("attn.softmax", row)
    probabilities = Ref("attn.attn_dropout", row) if mask else softmax
    to_scores, to_heads = _gemm(t, row, length, head_dim), _gemm(t, row, head_dim, length)
    ops = [
        t.op("attn.values_bwd", row, to_heads, (grad, probabilities), write,
             s.width_bytes("qkv", row)),
        t.op("attn.softmax_grad", row, to_scores, (grad, *inputs), softmax.grad, size),
    ]  # fmt: skip
    if mask:
        dropped = s.pointwise("dropout_bwd", size + mask, size)
        reads = (*ops[-1].writes, probabilities)
        ops.append(
            t.op("attn.attn_dropout_bwd", row, dropped, reads, Ref("attn.dropped", row).grad, size)
        )
    signature = s.pointwise("softmax_bwd", 2 * size, size)
    reads = (*ops[-1].writes, softmax)
    ops.append(t.op("attn.softmax_bwd", row, signature, reads, Ref("attn.scores", row).grad, size))
    reads = (*ops[-1].writes, *inputs, write)
    ops.append(t.op("attn.queries_bwd", row, to_heads, reads, write.form("queries"), 0))
    reads = (*reads[:-1], *ops[-1].writes)
    return [*ops, t.op("attn.keys_bwd", row, to_heads, reads, write.form("keys"), 0)]


def _kept_inputs(t: Templates, row: int) -> tuple[Ref, ...]:
    s, names = t.shapes, ("qkv", "qk") if t.shapes.model.qk_norm else ("qkv",)
    first = 0 if s.plan.slices_sequences else row
    rows = range(row, first - 1, -1)
    return tuple(Ref(f"attn.{name}", i) for i in rows for name in names)


def _gemm(t: Templates, row: int, n: int, k: int) -> Gemm:
    """Return one head after the other as one GEMM: [sequences · heads · seq_length, n]."""
    s = t.shapes
    return s.gemm(s.tokens(row) * s.heads, n, k, "forward")


def _attention(t: Templates, row: int, direction: Direction = "forward") -> Attention:
    s, span = t.shapes, t.shapes.spans[row]
    return Attention(
        s.rows[row], s.heads, s.kv_heads, len(span), s.model.head_dim, True, direction,
        s.workload.math, s.model.attn_logit_softcapping > 0,
        direction == "backward" and s.workload.implementation.deterministic_attention,
        span.stop if span.start else 0, s.model.v_head_dim,
    )  # fmt: skip


# Latent attention's projections (arXiv 2405.04434) ------------------------------------------------
# What makes queries, keys and values.
#
# Keys and values of all heads come from one latent vector of a token, and queries from another
# where the model has ``q_lora_rank``. Each is a product down to the latent vector, its norm, and a
# product up to the heads. The part of the keys that is rotated, ``qk_rope_head_dim``, is the same
# for all heads and comes with the first product. Backward goes the same way back. The core reads
# queries, keys and values as one value, as it does elsewhere.
#
# Tensor-parallel ranks have heads of their own. Each makes the latent vectors of all tokens, by
# whole products down, so their gradients are sums over the ranks: that of the input like any
# block's, those of the weights before the step (``Shapes.partial_parameters``).

Ops = list[OpTemplate]


def _latents(t: Quantized) -> dict[str, int]:
    """Return the elements of each latent vector, by the letters before its name."""
    model = t.shapes.model
    queries = {"q": model.q_lora_rank} if model.q_lora_rank else {}
    return {**queries, "kv": model.kv_lora_rank}


def _size(t: Quantized, row: int, elements: int) -> int:
    return t.shapes.tokens(row) * elements * t.shapes.element


def _product(
    t: Quantized, row: int, name: str, reads: tuple[Ref, ...], write: Ref, size: int
) -> OpTemplate:
    out, width = t.shapes.attention_weights[name]
    signature = t.shapes.linear(t.shapes.tokens(row), out, width, "forward")
    return t.op(f"attn.{name}", row, signature, reads, write, size, weights=(f"w.attn.{name}",))


def latent_qkv(t: Quantized, row: int) -> Ops:
    """Return the ops from the norm's output of slice ``row`` to its queries, keys and values."""
    s = t.shapes
    normed = Ref("attn.norm", row)
    source = t.gathered_ref(t.rows_of(normed), normed.form("ag"))
    ops = list[OpTemplate]()
    ups: list[Ref] = []
    for name, rank in _latents(t).items():
        width = s.attention_weights[f"{name}_down"][0]
        down = _product(t, row, f"{name}_down", (source,), Ref(f"attn.{name}_down", row),
                        _size(t, row, width))  # fmt: skip
        size = _size(t, row, rank)
        norm = t.op(
            f"attn.{name}_norm", row, s.pointwise(s.model.norm, size, size), down.writes,
            Ref(f"attn.{name}_norm", row), size, weights=(f"w.attn.{name}_norm",),
        )  # fmt: skip
        ops += [down, norm, *t.cast(row, norm.writes[0], size)]
        ups.append(t.rows_of(norm.writes[0]))
    first = ups[0] if len(ups) == 2 else source
    name = "q_up" if len(ups) == 2 else "q"
    queries = _product(t, row, name, (first,), Ref("attn.q", row), 0)
    whole = s.width_bytes("qkv", row)
    keys = _product(t, row, "kv_up", (ups[-1], *queries.writes), Ref("attn.qkv", row), whole)
    return [*ops, queries, keys]


def latent_dgrad(t: Quantized, row: int) -> Ops:
    """Return the ops from the gradient of queries, keys and values to that of the norm's output,
    summed over the ranks."""
    s, grad = t.shapes, Ref("attn.qkv", row).grad
    read, tokens = t.rows_of(grad), s.tokens(row)
    ops: Ops = []
    branches: list[Ref] = []

    def back(name: str, source: Ref, write: Ref, size: int) -> Ref:
        out, width = s.attention_weights[name]
        signature = s.linear(tokens, width, out, "dgrad")
        ops.append(
            t.op(f"attn.{name}_dgrad", row, signature, (source,), write, size,
                 weights=(f"w.attn.{name}",))
        )  # fmt: skip
        return ops[-1].writes[0]

    latents = _latents(t)
    if "q" not in latents:
        branches.append(back("q", read, Ref("attn.norm.q", row).grad, s.hidden_bytes(row)))
    for name, rank in latents.items():
        size = _size(t, row, rank)
        given = back(f"{name}_up", read, Ref(f"attn.{name}_norm", row).grad, size)
        width = s.attention_weights[f"{name}_down"][0]
        signature = s.pointwise(f"{s.model.norm}_bwd", 2 * size, size)
        kept = Ref(f"attn.{name}_down", row)
        down = _size(t, row, width)
        ops.append(
            t.op(f"attn.{name}_norm_bwd", row, signature, (given, kept), kept.grad, down,
                 weights=(f"w.attn.{name}_norm",))
        )  # fmt: skip
        value = ops[-1].writes[0]
        ops += t.cast(row, value, down)
        branch = Ref(f"attn.norm.{name}", row).grad
        branches.append(back(f"{name}_down", t.rows_of(value), branch, s.hidden_bytes(row)))
    size = s.hidden_bytes(row)
    total = s.pointwise("add", len(branches) * size, size, len(branches))
    write = Ref("attn.norm", row, 0).grad
    grad_op = t.op("attn.norm_grad", row, total, tuple(branches), write, size)
    return [*ops, *t.summed(grad_op, size)]


def latent_wgrad(t: Quantized, token: Token, made: Ref, before: tuple[Ref, ...], norm: Ref) -> Ops:
    """Return the gradients of all projections; ``made``: that of the last one, which the order's
    next token adds to; ``norm``: the input of the products down, as wgrads read it."""
    s, row = t.shapes, token.slice
    grad, tokens = t.across_of(Ref("attn.qkv", row).grad), s.tokens(token.slice)
    ops: Ops = []
    sides: dict[str, tuple[Ref, Ref]] = {}
    for latent in _latents(t):
        sides[f"{latent}_down"] = t.across_of(Ref(f"attn.{latent}_down", row).grad), norm
        sides[f"{latent}_up"] = grad, t.across_of(Ref(f"attn.{latent}_norm", row))
    if "q_up" not in sides:
        sides["q"] = grad, norm
    for index, (linear, reads) in enumerate(sides.items()):
        out, width = s.attention_weights[linear]
        last = index == len(sides) - 1
        written = made if last else main_gradient(f"attn.{linear}", row)
        role = "attn.qkv_wgrad" if last else f"attn.{linear}_wgrad"
        signature = s.linear(out, width, tokens, "wgrad")
        ops += t.accumulated(role, row, signature, reads, written, before)
    return ops
