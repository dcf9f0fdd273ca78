"""Tensor functions of a layer's ops. Each reads and writes ``State.values`` by the op's names.

Activations are [tokens, width], batch-major, so that row slices are contiguous. Column pieces are
separate contiguous buffers, [tokens, hidden / pieces] each; their readers take them piece by piece.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from domino_tune.runtime.ops import State, as_one, pair_of
from simulator.issue_order import ALL_SLICES, ROW_PARALLEL
from simulator.schedule import Op
from simulator.values import Ref


def norm(state: State, op: Op) -> None:
    """Write LayerNorm or RMSNorm; save the statistics."""
    x, weight = state.read(op, 0), state.weight(op.reads[-1])
    if state.shapes.model.norm == "layernorm":
        bias = state.weight(f"{op.reads[-1]}.bias")
        eps = state.shapes.model.norm_eps
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        state.save(op, (mean, rstd))
    else:
        place = state.room(op, x)
        y, rstd = state.pointwise.rms_norm(x, weight, state.shapes.model.norm_eps, place)
        state.save(op, (rstd,))
    state.write(op, y)


def norm_bwd(state: State, op: Op) -> None:
    """Write the gradient of a norm's input plus the residual's; add to the weight's gradient.

    Reads pieces of dy, x, then the residual's gradient (the head's norm has none).
    """
    has_residual = not op.role.startswith("head.")
    values = op.reads[:-1]
    parts = values[: len(values) - 1 - has_residual]
    pieces = [state.mine(state.values[name], op) for name in parts]
    x = state.values[values[len(pieces)]]
    dy = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
    name = op.reads[-1]
    saved = state.saved.pop(_forward_norm(state, op))
    residual = state.values[values[-1]] if has_residual else None
    place = state.room(op, x)
    if state.shapes.model.norm == "layernorm":
        dx = _layer_norm_grad(state, name, x, dy, saved)
        dx = place.copy_(dx) if residual is None else torch.add(dx, residual, out=place)
    else:
        weight = state.weight(name)
        dx, dweight = state.pointwise.rms_norm_grad(dy, x, weight, saved[0], residual, place)
        state.parameters.grads[name].add_(dweight)
    state.write(op, dx)


def _forward_norm(state: State, op: Op) -> str:
    """Return the value that the forward norm wrote, the last time that it was played:
    ``….attn.norm`` for ``….attn.norm_bwd``."""
    norm = Ref(op.role.removesuffix("_bwd"), op.slice)
    again = op.called(norm.again)
    return again if again in state.saved else op.called(norm)


def _layer_norm_grad(
    state: State, name: str, x: torch.Tensor, dy: torch.Tensor, saved: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    weight, bias = state.weight(name), state.weight(f"{name}.bias")
    dx: torch.Tensor
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy, x, x.shape[-1:], saved[0], saved[1], weight, bias, [True, True, True]
    )
    state.parameters.grads[name].add_(dweight)
    state.parameters.grads[f"{name}.bias"].add_(dbias)
    return dx


def column_parallel(state: State, op: Op) -> None:
    """Write the output of a column-parallel GEMM: x·Wᵀ (+ bias)."""
    name = op.reads[-1]
    x = state.whole(state.read(op, 0), state.shapes.tokens(op.slice))
    weight, bias = state.weight(name), state.parameters.weights.get(f"{name}.bias")
    place = state.place(op, len(weight), x)
    if place is None:
        state.write(op, F.linear(x, weight, bias))
    elif bias is None:
        state.write(op, torch.mm(x, weight.t(), out=place))
    else:
        state.write(op, torch.addmm(bias, x, weight.t(), out=place))


def row_parallel(state: State, op: Op) -> None:
    """Write one column piece of a row-parallel GEMM: rows of W, a contiguous output."""
    weight = state.weight(op.reads[-1])
    state.write(op, F.linear(state.read(op, 0), _piece(weight, op, state, "col")))


def _piece(weight: torch.Tensor, op: Op, state: State, kind: str) -> torch.Tensor:
    block = op.role.partition(".")[0]
    count: int = getattr(state.shapes.plan, f"{block}_{kind}_slices")
    if count == 1:
        return weight
    dim = 0 if kind == "col" else 1
    width = weight.shape[dim] // count
    return weight.narrow(dim, op.piece * width, width)


def residual(state: State, op: Op) -> None:
    """Write residual + dropout(row-parallel output + bias), piece by piece."""
    parts = [state.mine(state.values[name], op) for name in op.reads[:-1]]
    skipped = state.values[op.reads[-1]]
    block = op.role.partition(".")[0]
    bias = state.parameters.weights.get(f"l{op.layer}.w.{block}.{ROW_PARALLEL[block]}.bias")
    mask = state.dropout_mask(op, f"l{op.layer}.{block}")
    if mask is not None:
        mask = state.mine(mask, op)
        state.save(op, mask)
    keep = 1 - state.shapes.model.hidden_dropout
    width = parts[0].shape[1]
    result = torch.empty_like(skipped)
    for index, part in enumerate(parts):
        columns = slice(index * width, (index + 1) * width)
        state.pointwise.dropout_add(
            part, None if bias is None else bias[columns],
            None if mask is None else mask[:, columns], keep, skipped[:, columns],
            result[:, columns],
        )  # fmt: skip
    state.write(op, result)


def residual_bwd(state: State, op: Op) -> None:
    """Write the gradient of dropout's input, from the output's gradient and the output's mask."""
    gradient = state.read(op, 0)
    mask = state.saved.pop(op.reads[1], None)
    if mask is not None:
        keep = 1 - state.shapes.model.hidden_dropout
        gradient = state.pointwise.dropout_grad(gradient, mask, keep)
    state.write(op, gradient)


def row_parallel_dgrad(state: State, op: Op) -> None:
    """Write the gradient of the GEMM's input: dy·W."""
    dy = state.whole(state.read(op, 0), state.shapes.tokens(op.slice))
    state.write(op, dy @ state.weight(op.reads[-1]))


def column_parallel_dgrad(state: State, op: Op) -> None:
    """Write one column piece of the gradient of the norm's output: dy·W[:, piece]."""
    weight = _piece(state.weight(op.reads[-1]), op, state, "dgrad")
    state.write(op, state.read(op, 0) @ weight)


def act(state: State, op: Op) -> None:
    """Write GeLU (tanh), SiLU, ReLU, or gated SiLU of fc1's output."""
    fc1, model, aten = state.read(op, 0), state.shapes.model, torch.ops.aten
    place = state.room(op, fc1, fc1.shape[1] // (2 if model.gated_mlp else 1))
    if model.gated_mlp:
        state.pointwise.swiglu(fc1, place)
    elif model.hidden_act == "gelu":
        aten.gelu.out(fc1, approximate="tanh", out=place)
    elif model.hidden_act == "relu":
        torch.clamp_min(fc1, 0, out=place)
    else:
        aten.silu.out(fc1, out=place)
    state.write(op, place)


def act_bwd(state: State, op: Op) -> None:
    """Write the gradient of fc1's output. Reads the activation's gradient and fc1's output."""
    dact, fc1, model = state.read(op, 0), state.read(op, 1), state.shapes.model
    place, aten = state.room(op, fc1), torch.ops.aten
    if model.gated_mlp:
        state.pointwise.swiglu_grad(dact, fc1, place)
    elif model.hidden_act == "gelu":
        aten.gelu_backward.grad_input(dact, fc1, approximate="tanh", grad_input=place)
    elif model.hidden_act == "relu":
        aten.threshold_backward.grad_input(dact, fc1, 0, grad_input=place)
    else:
        aten.silu_backward.grad_input(dact, fc1, grad_input=place)
    state.write(op, place)


def joined(state: State, op: Op) -> None:
    """Write the slices that a merged weight gradient reads, one below the other."""
    state.write(op, torch.cat([state.values[name] for name in op.reads]))


def wgrad(state: State, op: Op) -> None:
    """Write or add dyᵀ·x to the main gradient; add to the bias's gradient. A merged one reads the
    slices of each, or all of them as one."""
    linear = op.role.removesuffix("_wgrad")
    name, plan = f"l{op.layer}.w.{linear}", state.shapes.plan
    rows = plan.row_slices if op.slice == ALL_SLICES else 1
    pair = [[state.values[name] for name in names] for names in pair_of(op, rows)]
    tokens = max(sum(map(len, side)) for side in pair)
    dy, x = (
        as_one(side) if sum(map(len, side)) == tokens else state.whole(side[0], tokens)
        for side in pair
    )
    accumulate = op.signature.accumulate  # type: ignore[union-attr]
    add_product(state.parameters.grads[name], dy, x, accumulate=accumulate)
    state.parameters.added(name)
    bias = state.parameters.grads.get(f"{name}.bias")
    if bias is not None:
        # Every rank has the whole gradient after a gather, and adds its tokens' share.
        shared = state.shapes.shards_tokens and linear.endswith(tuple(ROW_PARALLEL.values()))
        for part in pair[0] if shared else (dy,):
            own = part.chunk(state.shapes.cluster.tp)[state.tp_rank] if shared else part
            bias.add_(own.sum(0, dtype=bias.dtype))


def add_product(
    gradient: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, *, accumulate: bool
) -> None:
    """Write or add dyᵀ·x to ``gradient``, by one GEMM."""
    if gradient.dtype == dy.dtype:
        gradient.addmm_(dy.t(), x, beta=1 if accumulate else 0)
    elif dy.is_cuda and widening_gemm():
        _widening_product(gradient, dy, x, accumulate=accumulate)
    elif accumulate:
        gradient.add_(dy.t() @ x)
    else:
        gradient.copy_(dy.t() @ x)


def _widening_product(
    gradient: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, *, accumulate: bool
) -> None:
    """Multiply half-precision operands into fp32, where the GEMM itself also adds."""
    if accumulate:
        torch.ops.aten.addmm.dtype_out(gradient, dy.t(), x, torch.float32, out=gradient)
    else:
        torch.ops.aten.mm.dtype_out(dy.t(), x, torch.float32, out=gradient)


@cache
def widening_gemm() -> bool:
    """Return whether torch can multiply half-precision matrices into an fp32 one, on CUDA."""
    result = torch.full((16, 16), 2.0, device="cuda")
    one = torch.ones((16, 16), device="cuda", dtype=torch.bfloat16)
    try:
        _widening_product(result, one, one, accumulate=True)
        added = bool((result == 18.0).all())
        _widening_product(result, one, one, accumulate=False)
        return added and bool((result == 16.0).all())
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
