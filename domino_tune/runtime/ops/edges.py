"""Tensor functions of an iteration's edges: embedding, loss, gradient norm, Adam."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.optim.adam import adam as functional_adam

from domino_tune.runtime.ops import State
from domino_tune.runtime.ops.layers import add_product
from domino_tune.runtime.ops.pointwise_formulas import wide
from simulator.schedule import Op
from simulator.values import Ref


def embed(state: State, op: Op) -> None:
    """Write this rank's rows of the embedding table; zero for tokens of other ranks."""
    ids = state.token_ids(op) - state.vocab_start
    mine = (ids >= 0) & (ids < state.vocab)
    looked_up = F.embedding(ids.clamp(0, state.vocab - 1), state.weight("w.embed"))
    state.write(op, looked_up * mine[:, None])


def embed_post(state: State, op: Op) -> None:
    """Add learned positions and apply dropout."""
    x = state.read(op, 0)
    positions = state.parameters.weights.get("w.positions")
    span = state.positions(op)
    if positions is not None:
        x = (x.view(-1, span.stop - span.start, x.shape[1]) + positions[span]).view_as(x)
    x = state.mine(x, op)
    mask = state.dropout_mask(op, "embed")
    if mask is not None:
        # Dropout's derivative is dropout by the same mask.
        keep = 1 - state.shapes.model.hidden_dropout
        x = state.pointwise.dropout_grad(x, state.mine(mask, op), keep)
        state.saved[op.writes[0]] = mask
    state.write(op, x)


def embed_bwd(state: State, op: Op) -> None:
    """Scatter-add into the table's gradient; sum into the positions' gradient."""
    gradient = state.whole(state.read(op, 0), state.shapes.tokens(op.slice))
    mask = state.saved.pop(op.called(Ref("x", op.slice)), None)
    if mask is not None:
        keep = 1 - state.shapes.model.hidden_dropout
        gradient = state.pointwise.dropout_grad(gradient, mask, keep)
    grads, span = state.parameters.grads, state.positions(op)
    first = len(op.reads) == 1  # it adds to no other slice's
    if first and op.micro == 0 and not state.shapes.model.tie_word_embeddings:
        grads["w.embed"].zero_()
    _scatter_rows(grads["w.embed"], state.token_ids(op) - state.vocab_start, gradient)
    if "w.positions" in grads:
        positions = grads["w.positions"][span]
        by_sequence = gradient.view(-1, span.stop - span.start, gradient.shape[1])
        positions.add_(by_sequence.sum(0, dtype=positions.dtype))
    state.write(op, gradient)


def _scatter_rows(table: torch.Tensor, ids: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add rows of ``gradient`` to the table's rows ``ids``; ids of other ranks are left out.

    On CUDA, selecting rows would make the host wait for their number. So rows of other ranks add
    zero, spread over the table, as atomic adds to one row would wait for each other.
    """
    mine = (ids >= 0) & (ids < len(table))
    if gradient.is_cuda:
        rows = gradient.to(table.dtype) * mine[:, None]
        table.index_add_(0, ids.remainder(len(table)), rows)
    else:
        table.index_add_(0, ids[mine], gradient[mine].to(table.dtype))


def logits(state: State, op: Op) -> None:
    """Write this rank's logits; −inf for columns that pad the vocabulary."""
    x = state.whole(state.read(op, 0), state.shapes.tokens(op.slice))
    logits = F.linear(x, state.weight(op.reads[-1]))
    logits[:, state.vocab_valid :] = float("-inf")
    state.write(op, logits)


def loss_max(state: State, op: Op) -> None:
    """Write the largest logit of each token on this rank, fp32 (fp64 when computing in fp64)."""
    logits = state.read(op, 0)
    state.write(op, wide(logits.max(dim=1).values))


def loss_sum(state: State, op: Op) -> None:
    """Write [2, tokens]: the sum of exponentials, and the target's logit if this rank has it."""
    logits, top = state.read(op, 0), state.read(op, 1)
    shifted = wide(logits) - top[:, None]
    ids = state.target_ids(op) - state.vocab_start
    mine = (ids >= 0) & (ids < state.vocab)
    target = shifted.gather(1, ids.clamp(0, state.vocab - 1)[:, None])[:, 0]
    target = torch.where(mine, target, torch.zeros_like(target))
    state.write(op, torch.stack([shifted.exp().sum(dim=1), target]))


def loss_grad(state: State, op: Op) -> None:
    """Write (softmax − one-hot) / global tokens · loss scale over the logits; record the loss."""
    logits, top, sums = state.read(op, 0), state.read(op, 1), state.read(op, 2)
    state.losses.append((sums[0].log() - sums[1]).sum() / state.global_tokens)
    gradient = (wide(logits) - top[:, None]).exp_() / sums[0][:, None]
    ids = state.target_ids(op) - state.vocab_start
    mine = (ids >= 0) & (ids < state.vocab)
    one_hot = mine[:, None].to(gradient.dtype)
    gradient.scatter_add_(1, ids.clamp(0, state.vocab - 1)[:, None], one_hot.neg_())
    state.write(op, logits.copy_(gradient / (state.global_tokens / state.loss_scale)))


def logits_dgrad(state: State, op: Op) -> None:
    """Write the gradient of the final norm's output."""
    state.write(op, state.read(op, 0) @ state.weight(op.reads[-1]))


def logits_wgrad(state: State, op: Op) -> None:
    """Write the gradient of the table; with tied embeddings, embed_bwd adds to it later."""
    model = state.shapes.model
    name = "w.embed" if model.tie_word_embeddings else "w.head.logits"
    gradient = state.read(op, 0)
    add_product(
        state.parameters.grads[name],
        gradient,
        state.whole(state.read(op, 1), len(gradient)),
        accumulate=op.signature.accumulate,  # type: ignore[union-attr]
    )


def pack_partial(state: State, op: Op) -> None:
    """Write the concatenated gradients that are only partial sums on this rank."""
    state.write(op, torch.cat([grad.reshape(-1) for grad in _partial_grads(state)]))


def unpack_partial(state: State, op: Op) -> None:
    """Copy the gradients' sums over the ranks back."""
    grads, packed = _partial_grads(state), state.read(op, 0)
    parts = torch.split(packed, [grad.numel() for grad in grads])
    for grad, part in zip(grads, parts, strict=True):
        grad.copy_(part.view_as(grad))
    state.write(op, packed)


def _partial_grads(state: State) -> list[torch.Tensor]:
    return state.parameters.partial_grads(shards_tokens=state.shapes.shards_tokens)


def grad_norm(state: State, op: Op) -> None:
    """Write this rank's share of the squared gradient norm."""
    state.write(op, state.trained.squared_norm() / state.loss_scale**2)
    if state.watches_layers:
        state.saved["layers"] = state.trained.by_layer()


def adam(state: State, op: Op) -> None:
    """Clip, step, copy to the compute dtype, and zero the gradients that ops only add to."""
    p = state.trained
    state.saved["grad_norm"] = state.read(op, 0)
    if p.main.is_cuda:
        _fused_adam(state, state.read(op, 0))
    else:
        _adam(state, state.read(op, 0))
    if p.model_copy is not p.main:
        p.model_copy.copy_(p.main)
    p.clear_added()


def _adam(state: State, square: torch.Tensor) -> None:
    p, t = state.trained, state.training
    if t.clip_norm:
        p.grad.mul_((t.clip_norm / (square.sqrt() + 1e-6)).clamp(max=1.0) / state.loss_scale)
    elif state.loss_scale != 1:
        p.grad.div_(state.loss_scale)
    count = p.steps + 1
    p.moment1.lerp_(p.grad, 1 - t.beta1)
    p.moment2.mul_(t.beta2).addcmul_(p.grad, p.grad, value=1 - t.beta2)
    bias2 = (1 - t.beta2**count) ** 0.5
    scale = p.moment2.sqrt().div_(bias2).add_(t.adam_eps)
    p.main.addcdiv_(p.moment1, scale, value=-t.learning_rate / (1 - t.beta1**count))


def _fused_adam(state: State, square: torch.Tensor) -> None:
    """Do the same in one pass over memory; the step count stays on the device."""
    p, t = state.trained, state.training
    scale = None
    if t.clip_norm:
        clip = ((square.sqrt() + 1e-6) / t.clip_norm).clamp(min=1.0).float()
        scale = clip * state.loss_scale
    elif state.loss_scale != 1:
        scale = square.new_full((1,), state.loss_scale, dtype=torch.float32)
    functional_adam(
        [p.main], [p.grad], [p.moment1], [p.moment2], [], [p.step_count], fused=True,
        grad_scale=scale, found_inf=None, amsgrad=False, beta1=t.beta1, beta2=t.beta2,
        lr=t.learning_rate, weight_decay=0.0, eps=t.adam_eps, maximize=False,
    )  # fmt: skip
