"""Works of other frameworks' kernels, by the name that a schedule gives them.

Operands are as many as the signature's bytes say. All are far larger than the L2, so one set does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F

from domino_tune.measure.gpu.events import Work
from domino_tune.runtime.ops.attention import causal_mask
from simulator.ops import Attention, Gemm, Pointwise, Signature

Play = TypeVar("Play", bound=Callable[..., Any])

BF16: Final = torch.bfloat16
FP32_BYTES: Final = 4
STREAM_BYTES: Final = 4
"""Bytes that a copy of one element in bf16 reads and writes."""
ADAM_WRITTEN_BYTES: Final = 12
KEEP: Final = 0.9


class Sizes(NamedTuple):
    """What signatures of a step do not tell; ``vocab`` is one rank's."""

    tokens: int
    hidden_size: int
    vocab: int
    seq_length: int


def device() -> torch.device:
    """Return where works are played."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device=device(), dtype=dtype)


def _copy(signature: Signature, sizes: Sizes) -> Work:
    """Copies that move the signature's bytes, in as many kernels."""
    one = cast("Pointwise", signature)
    x = _random(max(1, one.moved_bytes // STREAM_BYTES // one.kernels))
    y = torch.empty_like(x)

    def work(call: int) -> object:
        for _ in range(one.kernels):
            y.copy_(x)
        return y

    return work


def _gradients(play: Callable[[torch.Tensor, torch.Tensor], object]) -> Maker:
    """A pass over main gradients in fp32; the second tensor are new ones in bf16."""

    def make(signature: Signature, sizes: Sizes) -> Work:
        count = cast("Pointwise", signature).bytes_written // FP32_BYTES
        sums, new = torch.zeros(count, device=device()), _random(count)
        return lambda call: play(sums, new)

    return make


def _adam(signature: Signature, sizes: Sizes) -> Work:
    count = cast("Pointwise", signature).bytes_written // ADAM_WRITTEN_BYTES
    weight = torch.nn.Parameter(torch.zeros(count, device=device()))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=0.0, fused=True)
    return lambda call: optimizer.step()


def _table_gradient(signature: Signature, sizes: Sizes) -> Work:
    gradient = _random(sizes.tokens, sizes.hidden_size)
    tokens = torch.randint(0, sizes.vocab, (sizes.tokens,), device=device())
    whole = torch.ops.aten.embedding_dense_backward
    return lambda call: whole(gradient, tokens, sizes.vocab, -1, False)


# Cross-entropy -----------------------------------------------------------------------------------


def _largest(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().amax(dim=-1)


def _sums(
    logits: torch.Tensor, top: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    shifted = logits.float() - top[:, None]
    return shifted.exp().sum(dim=-1), shifted.gather(1, targets[:, None])[:, 0]


def _logits_gradient(
    logits: torch.Tensor, top: torch.Tensor, total: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    gradient = (logits.float() - top[:, None]).exp() / total[:, None]
    columns = torch.arange(gradient.shape[1], device=gradient.device)
    return (gradient - (columns[None, :] == targets[:, None]).float()).to(BF16)


def compiled(function: Play) -> Play:
    """Return the function as one kernel, of each shape its own."""
    return cast("Play", torch.compile(function, dynamic=False))


def _loss_operands(sizes: Sizes) -> dict[str, torch.Tensor]:
    logits = _random(sizes.tokens, sizes.vocab)
    targets = torch.randint(0, sizes.vocab, (sizes.tokens,), device=device())
    top = _largest(logits)
    total, _ = _sums(logits, top, targets)
    return {"logits": logits, "top": top, "total": total, "targets": targets}


def _fused(function: Callable[..., Any], *names: str) -> Maker:
    """A pass compiled into one kernel, on the operands of these names."""

    def make(signature: Signature, sizes: Sizes) -> Work:
        found, play = _loss_operands(sizes), compiled(function)
        return lambda call: play(*(found[name] for name in names))

    return make


def _unfused_max(signature: Signature, sizes: Sizes) -> Work:
    logits = _loss_operands(sizes)["logits"]
    return lambda call: logits.float().amax(dim=-1)


def _unfused_sum(signature: Signature, sizes: Sizes) -> Work:
    found = _loss_operands(sizes)
    wide, top = found["logits"].float(), found["top"]

    def work(call: int) -> object:
        shares = wide.sub_(top[:, None]).exp()
        return shares.div_(shares.sum(dim=-1)[:, None])

    return work


def _unfused_gradient(signature: Signature, sizes: Sizes) -> Work:
    found = _loss_operands(sizes)
    shares, targets = found["logits"].float(), found["targets"]
    upstream = torch.ones(sizes.tokens, 1, device=device())
    rows = torch.arange(sizes.tokens, device=device())

    def work(call: int) -> object:
        shares[rows, targets] -= 1.0
        return shares.mul_(upstream).to(BF16)

    return work


# Attention ---------------------------------------------------------------------------------------


def _scores(signature: Signature, sizes: Sizes) -> torch.Tensor:
    """Scores of as many bytes as the signature's dropout or softmax keeps."""
    one = cast("Pointwise", signature)
    kept = one.bytes_read if one.name in ("softmax", "dropout") else one.bytes_written
    return _random(kept // 2 // sizes.seq_length, sizes.seq_length)


def _on_scores(play: Callable[[torch.Tensor], object]) -> Maker:
    def make(signature: Signature, sizes: Sizes) -> Work:
        scores = _scores(signature, sizes)
        return lambda call: play(scores)

    return make


def _softmax_grad(signature: Signature, sizes: Sizes) -> Work:
    scores = _scores(signature, sizes)
    gradient, shares = torch.randn_like(scores), torch.softmax(scores, -1)
    backward = torch.ops.aten._softmax_backward_data
    return lambda call: backward(gradient, shares, -1, BF16)


def _dropout_grad(signature: Signature, sizes: Sizes) -> Work:
    gradient = _scores(signature, sizes)
    mask = torch.rand(gradient.shape, device=device()) < KEEP
    backward = torch.ops.aten.native_dropout_backward
    return lambda call: backward(gradient, mask, 1 / KEEP)


def _matmul(signature: Signature, sizes: Sizes) -> Work:
    """A GEMM of unfused attention: one of each head of each sequence."""
    one = cast("Gemm", signature)
    heads = max(1, one.m // sizes.seq_length)
    a, b = _random(heads, one.m // heads, one.k), _random(heads, one.k, one.n)
    return lambda call: torch.bmm(a, b)


def _attention(signature: Signature, sizes: Sizes | None) -> Work:
    one = cast("Attention", signature)
    query = _random(one.batch, one.heads, one.seq, one.head_dim).requires_grad_()
    key, value = (
        _random(one.batch, one.kv_heads, one.keys, one.head_dim).requires_grad_() for _ in range(2)
    )
    mask = causal_mask(one.seq, one.keys)

    def attend() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None,
            enable_gqa=one.heads != one.kv_heads,
        )  # fmt: skip

    if one.direction == "forward":
        return torch.no_grad()(lambda call: attend())
    with _deterministic(one.deterministic):
        result = attend()
    upstream = torch.randn_like(result)

    def work(call: int) -> object:
        with _deterministic(one.deterministic):
            return torch.autograd.grad(result, (query, key, value), upstream, retain_graph=True)

    return work


@contextmanager
def _deterministic(wanted: bool) -> Any:
    """Play what is inside in a fixed order. Torch would also fill new tensors, which takes time."""
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(wanted)  # a warning alone would change no kernel
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = filled


Maker = Callable[[Signature, Sizes], Work]
MAKERS: Final[dict[str, Callable[..., Work]]] = {
    "copy": _copy,
    "grad_add": _gradients(lambda sums, new: sums.add_(new)),
    "grad_scale": _gradients(lambda sums, new: sums.mul_(0.5)),
    "zero_grads": _gradients(lambda sums, new: sums.zero_()),
    "adam": _adam,
    "embedding_bwd": _table_gradient,
    "fused_cross_entropy loss.max": _fused(_largest, "logits"),
    "fused_cross_entropy loss.sum": _fused(_sums, "logits", "top", "targets"),
    "fused_cross_entropy loss.grad": _fused(_logits_gradient, "logits", "top", "total", "targets"),
    "unfused_cross_entropy loss.max": _unfused_max,
    "unfused_cross_entropy loss.sum": _unfused_sum,
    "unfused_cross_entropy loss.grad": _unfused_gradient,
    "softmax": _on_scores(lambda scores: torch.softmax(scores, -1)),
    "softmax_bwd": _softmax_grad,
    "dropout": _on_scores(lambda scores: torch.native_dropout(scores, 1 - KEEP, True)),
    "dropout_bwd": _dropout_grad,
    "gemm": _matmul,
    "attention": _attention,
}
"""Name of a signature, of cross-entropy with its role -> what makes its work."""
