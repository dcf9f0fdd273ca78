"""Latent attention's projections (arXiv 2405.04434): what makes queries, keys and values.

Keys and values of all heads come from one latent vector of a token, and queries from another where
the model has ``q_lora_rank``. Each is a product down to the latent vector, its norm, and a product
up to the heads. The part of the keys that is rotated, ``qk_rope_head_dim``, is the same for all
heads and comes with the first product. Backward goes the same way back. The core reads queries,
keys and values as one value, as it does elsewhere.

Tensor-parallel ranks have heads of their own. Each makes the latent vectors of all tokens, by whole
products down, so their gradients are sums over the ranks: that of the input like any block's, those
of the weights before the step (``Shapes.partial_parameters``).
"""

from __future__ import annotations

from simulator.issue_order import Token
from simulator.quantized import Quantized
from simulator.schedule import OpTemplate, Ref

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
