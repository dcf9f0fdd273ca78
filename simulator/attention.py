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
from simulator.schedule import OpTemplate, Ref
from simulator.shapes import GRAD_BYTES
from simulator.templates import Templates

SCORES: Final = ("attn.scores", "attn.softmax", "attn.attn_dropout")
"""Roles of what the core computes before it meets the values, where it is not one kernel."""


def core_attention(t: Templates, row: int) -> list[OpTemplate]:
    """Return the forward ops of slice ``row``, from its qkv to the projection's input."""
    s, qkv, moved = t.shapes, Ref(0, f"s{row}.attn.qkv"), t.shapes.qk_bytes(row)
    source, ops = qkv, []
    if s.model.qk_norm:  # not in place: backward reads what it normalises
        signature = s.pointwise(s.model.norm, moved, moved)
        ops.append(
            t.op("attn.qk_norm", row, signature, (qkv,), f"s{row}.attn.qk", moved,
                 weights=("w.attn.qk_norm",))
        )  # fmt: skip
        source = ops[-1].writes[0]
    if s.model.position_embedding == "rope":
        signature = s.pointwise("rope", moved, moved)
        ops.append(t.op("attn.rope", row, signature, (source,), f"{source.name}.rope", 0))
        source = ops[-1].writes[0]
    own = (source, qkv) if s.model.qk_norm else (source,)
    inputs = (*own, *_earlier(t, row))
    write, size = f"s{row}.attn.core_attn", s.width_bytes("core_attn", row)
    if s.cluster.cp > 1:
        return [*ops, *context_attention(t, row, inputs, write)]
    if s.workload.implementation.flash_attention:
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
    rope = ".rope" if model.position_embedding == "rope" else ""
    names = ("qkv", f"qk{rope}") if model.qk_norm else (f"qkv{rope}",)
    return tuple(Ref(0, f"s{i}.attn.{name}") for i in range(row) for name in names)


def _probabilities(t: Templates, row: int, inputs: tuple[Ref, ...]) -> list[OpTemplate]:
    """Return the scores, their softmax and its dropout."""
    s, size, mask = t.shapes, t.shapes.score_bytes(row), t.shapes.score_mask_bytes(row)
    scores = t.op(
        "attn.scores", row, _gemm(t, row, s.spans[row].stop, s.model.head_dim), inputs,
        f"s{row}.attn.scores", size,
    )  # fmt: skip
    softmax = t.op(
        "attn.softmax", row, s.pointwise("softmax", size, size), scores.writes,
        f"s{row}.attn.softmax", size,
    )  # fmt: skip
    if not mask:
        return [scores, softmax]
    dropout = t.op(
        "attn.attn_dropout", row, s.pointwise("dropout", size, size + mask), softmax.writes,
        f"s{row}.attn.attn_dropout", size + mask,
    )  # fmt: skip
    return [scores, softmax, dropout]


def core_attention_bwd(t: Templates, row: int) -> list[OpTemplate]:
    """Return the backward ops of slice ``row``, from the core's gradient to that of its qkv."""
    s, qkv, size = t.shapes, Ref(0, f"s{row}.attn.qkv"), t.shapes.width_bytes("qkv", row)
    normed = f"d.{qkv.name}.qk_norm" if s.model.qk_norm else f"d.{qkv.name}"
    rope = s.model.position_embedding == "rope"
    last = f"{normed}.rope" if rope else normed
    first = f"{last}.own" if s.plan.slices_sequences else last
    grad, inputs = Ref(0, f"d.s{row}.attn.core_attn"), _kept_inputs(t, row)
    if s.cluster.cp > 1:
        ops = context_attention_bwd(t, row, grad, inputs, first)
    elif s.workload.implementation.flash_attention:
        reads = (grad, *inputs, Ref(0, f"s{row}.attn.core_attn"))
        signature = _attention(t, row, "backward")
        ops = [t.op("attn.core_attn_bwd", row, signature, reads, first, size)]
    else:
        ops = _unfused_bwd(t, row, grad, inputs, first)
    if s.plan.slices_sequences:
        ops = _with_kv_grad(t, row, ops, last)
    moved = s.qk_bytes(row)
    if rope:
        rope_signature = s.pointwise("rope_bwd", moved, moved)
        ops.append(t.op("attn.rope_bwd", row, rope_signature, (Ref(0, last),), normed, 0))
    if s.model.qk_norm:
        norm_signature = s.pointwise(f"{s.model.norm}_bwd", 2 * moved, moved)
        ops.append(
            t.op("attn.qk_norm_bwd", row, norm_signature, (Ref(0, normed), qkv),
                 f"d.{qkv.name}", 0, weights=("w.attn.qk_norm",))
        )  # fmt: skip
    return ops


def _with_kv_grad(t: Templates, row: int, ops: list[OpTemplate], write: str) -> list[OpTemplate]:
    """Return the core's backward ops, and the one that sums the gradients of keys and values."""
    s, last = t.shapes, t.shapes.plan.row_slices - 1
    span, later = s.spans[row], row < last
    before, own = (s.kv_elements(row, positions) for positions in (span.start, len(span)))
    reads, total = [*ops[0].writes, *ops[-1].writes], "attn.kv_grad"
    if later:
        reads += [Ref(0, f"d.s{i}.{total}") for i in dict.fromkeys((row + 1, last))]
    if before:
        given = Ref(0, f"d.s{row}.attn.kv")
        ops[-1] = ops[-1].writing(given, before * s.element)
        reads.append(given)
    signature = s.pointwise(
        "grad_add",
        before * (s.element + GRAD_BYTES * later) + own * (s.element + GRAD_BYTES) * later,
        before * GRAD_BYTES + own * s.element * later,
    )
    op = t.op("attn.kv_bwd", row, signature, tuple(dict.fromkeys(reads)), write, 0)
    if before:
        op = op.writing(Ref(0, f"d.s{row}.{total}"), 0 if later else before * GRAD_BYTES)
    return [*ops, op]


def _unfused_bwd(
    t: Templates, row: int, grad: Ref, inputs: tuple[Ref, ...], write: str
) -> list[OpTemplate]:
    """Return the gradients of values, probabilities, scores, queries and keys."""
    s, size, mask = t.shapes, t.shapes.score_bytes(row), t.shapes.score_mask_bytes(row)
    length, head_dim = s.spans[row].stop, s.model.head_dim
    softmax = Ref(0, f"s{row}.attn.softmax")
    probabilities = Ref(0, f"s{row}.attn.attn_dropout") if mask else softmax
    to_scores, to_heads = _gemm(t, row, length, head_dim), _gemm(t, row, head_dim, length)
    ops = [
        t.op("attn.values_bwd", row, to_heads, (grad, probabilities), write,
             s.width_bytes("qkv", row)),
        t.op("attn.softmax_grad", row, to_scores, (grad, *inputs), f"d.s{row}.attn.softmax", size),
    ]  # fmt: skip
    if mask:
        dropped = s.pointwise("dropout_bwd", size + mask, size)
        reads = (*ops[-1].writes, probabilities)
        ops.append(
            t.op("attn.attn_dropout_bwd", row, dropped, reads, f"d.s{row}.attn.dropped", size)
        )
    signature = s.pointwise("softmax_bwd", 2 * size, size)
    reads = (*ops[-1].writes, softmax)
    ops.append(t.op("attn.softmax_bwd", row, signature, reads, f"d.s{row}.attn.scores", size))
    reads = (*ops[-1].writes, *inputs, Ref(0, write))
    ops.append(t.op("attn.queries_bwd", row, to_heads, reads, f"{write}.queries", 0))
    reads = (*reads[:-1], *ops[-1].writes)
    return [*ops, t.op("attn.keys_bwd", row, to_heads, reads, f"{write}.keys", 0)]


def _kept_inputs(t: Templates, row: int) -> tuple[Ref, ...]:
    s, names = t.shapes, ("qkv", "qk") if t.shapes.model.qk_norm else ("qkv",)
    first = 0 if s.plan.slices_sequences else row
    rows = range(row, first - 1, -1)
    return tuple(Ref(0, f"s{i}.attn.{name}") for i in rows for name in names)


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
    t: Quantized, row: int, name: str, reads: tuple[Ref, ...], write: str, size: int
) -> OpTemplate:
    out, width = t.shapes.attention_weights[name]
    signature = t.shapes.linear(t.shapes.tokens(row), out, width, "forward")
    return t.op(f"attn.{name}", row, signature, reads, write, size, weights=(f"w.attn.{name}",))


def latent_qkv(t: Quantized, row: int) -> Ops:
    """Return the ops from the norm's output of slice ``row`` to its queries, keys and values."""
    s, base = t.shapes, f"s{row}.attn"
    source = t.gathered_ref(t.rows_of(Ref(0, f"{base}.norm")), f"{base}.norm.ag")
    ops = list[OpTemplate]()
    ups: list[Ref] = []
    for name, rank in _latents(t).items():
        width = s.attention_weights[f"{name}_down"][0]
        down = _product(t, row, f"{name}_down", (source,), f"{base}.{name}_down",
                        _size(t, row, width))  # fmt: skip
        size = _size(t, row, rank)
        norm = t.op(
            f"attn.{name}_norm", row, s.pointwise(s.model.norm, size, size), down.writes,
            f"{base}.{name}_norm", size, weights=(f"w.attn.{name}_norm",),
        )  # fmt: skip
        ops += [down, norm, *t.cast(row, norm.writes[0], size)]
        ups.append(t.rows_of(norm.writes[0]))
    first = ups[0] if len(ups) == 2 else source
    name = "q_up" if len(ups) == 2 else "q"
    queries = _product(t, row, name, (first,), f"{base}.q", 0)
    whole = s.width_bytes("qkv", row)
    keys = _product(t, row, "kv_up", (ups[-1], *queries.writes), f"{base}.qkv", whole)
    return [*ops, queries, keys]


def latent_dgrad(t: Quantized, row: int) -> Ops:
    """Return the ops from the gradient of queries, keys and values to that of the norm's output,
    summed over the ranks."""
    s, base, grad = t.shapes, f"s{row}.attn", Ref(0, f"d.s{row}.attn.qkv")
    read, tokens = t.rows_of(grad), s.tokens(row)
    ops: Ops = []
    branches: list[Ref] = []

    def back(name: str, source: Ref, write: str, size: int) -> Ref:
        out, width = s.attention_weights[name]
        signature = s.linear(tokens, width, out, "dgrad")
        ops.append(
            t.op(f"attn.{name}_dgrad", row, signature, (source,), write, size,
                 weights=(f"w.attn.{name}",))
        )  # fmt: skip
        return ops[-1].writes[0]

    latents = _latents(t)
    if "q" not in latents:
        branches.append(back("q", read, f"d.{base}.norm.q", s.hidden_bytes(row)))
    for name, rank in latents.items():
        size = _size(t, row, rank)
        given = back(f"{name}_up", read, f"d.{base}.{name}_norm", size)
        width = s.attention_weights[f"{name}_down"][0]
        signature = s.pointwise(f"{s.model.norm}_bwd", 2 * size, size)
        reads = (given, Ref(0, f"{base}.{name}_down"))
        down = _size(t, row, width)
        ops.append(
            t.op(f"attn.{name}_norm_bwd", row, signature, reads, f"d.{base}.{name}_down", down,
                 weights=(f"w.attn.{name}_norm",))
        )  # fmt: skip
        value = ops[-1].writes[0]
        ops += t.cast(row, value, down)
        branches.append(
            back(f"{name}_down", t.rows_of(value), f"d.{base}.norm.{name}", s.hidden_bytes(row))
        )
    size = s.hidden_bytes(row)
    total = s.pointwise("add", len(branches) * size, size, len(branches))
    grad_op = t.op("attn.norm_grad", row, total, tuple(branches), f"d.{base}.norm.0", size)
    return [*ops, *t.summed(grad_op, size)]


def latent_wgrad(t: Quantized, token: Token, name: str, before: tuple[Ref, ...], norm: Ref) -> Ops:
    """Return the gradients of all projections; ``name``: that of the last one, which the order's
    next token adds to; ``norm``: the input of the products down, as wgrads read it."""
    s, row, base = t.shapes, token.slice, f"s{token.slice}.attn"
    grad, tokens = t.across_of(Ref(0, f"d.{base}.qkv")), s.tokens(token.slice)
    ops: Ops = []
    sides: dict[str, tuple[Ref, Ref]] = {}
    for latent in _latents(t):
        sides[f"{latent}_down"] = t.across_of(Ref(0, f"d.{base}.{latent}_down")), norm
        sides[f"{latent}_up"] = grad, t.across_of(Ref(0, f"{base}.{latent}_norm"))
    if "q_up" not in sides:
        sides["q"] = grad, norm
    for index, (linear, reads) in enumerate(sides.items()):
        out, width = s.attention_weights[linear]
        last = index == len(sides) - 1
        written = name if last else f"grad.attn.{linear}.s{row}"
        role = "attn.qkv_wgrad" if last else f"attn.{linear}_wgrad"
        made = s.linear(out, width, tokens, "wgrad")
        ops += t.accumulated(role, row, made, reads, written, before)
    return ops
