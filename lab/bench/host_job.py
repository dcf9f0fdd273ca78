"""A transformer layer as Megatron-LM of 2022 issues it, on tensors of a few elements.

What is left of its time is the host's: Python, PyTorch's dispatcher and autograd, and CPU kernels
that do next to nothing. The structure is Megatron-LM's: linears, softmax and bias-GeLU are autograd
functions of their own, dropout of scores runs under a forked random state, each layer is
checkpointed with its random states.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

HIDDEN, HEADS, TOKENS, LAYERS = 8, 2, 4, 12


class Linear(Function):
    """A linear whose backward computes both gradients by itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x·wᵀ + b."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        out = torch.matmul(x, weight.t())
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of input, weight and bias."""
        x, weight = ctx.saved_tensors
        back = grad.matmul(weight)
        grad, x = grad.view(-1, grad.shape[-1]), x.view(-1, x.shape[-1])
        return back, grad.t().matmul(x), grad.sum(0) if ctx.has_bias else None


class Softmax(Function):
    """The fused scale, mask and softmax."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        """Return the probabilities."""
        out = torch.softmax(scores, -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the scores' gradient."""
        (out,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad, out, -1, out.dtype)


class BiasGelu(Function):
    """The fused bias and GeLU: one kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        """Return the activation."""
        ctx.save_for_backward(x, bias)
        return functional.gelu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and bias."""
        x, _ = ctx.saved_tensors
        back = torch.ops.aten.gelu_backward(grad, x)
        return back, back


@contextmanager
def forked() -> Iterator[None]:
    """Run under another random state, and restore this one's."""
    before = torch.get_rng_state()
    torch.set_rng_state(before)
    try:
        yield
    finally:
        torch.get_rng_state()
        torch.set_rng_state(before)


class Layer(nn.Module):
    """One layer with dropout; tensors are [tokens, batch, hidden]."""

    def __init__(self) -> None:
        super().__init__()
        h = HIDDEN
        self.norms = nn.ModuleList([nn.LayerNorm(h), nn.LayerNorm(h)])
        shapes = {"qkv": (3 * h, h), "proj": (h, h), "fc1": (4 * h, h), "fc2": (h, 4 * h)}
        self.weights = nn.ParameterDict({name: torch.randn(s) for name, s in shapes.items()})
        self.biases = nn.ParameterDict({name: torch.randn(s[0]) for name, s in shapes.items()})

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        x = self._add(x, self._linear(self._attention(self.norms[0](x)), "proj"), "proj")
        inside = self._linear(self.norms[1](x), "fc1")
        inside = BiasGelu.apply(inside, self.biases["fc1"])  # type: ignore[no-untyped-call]
        return self._add(x, self._linear(inside, "fc2"), "fc2")

    def _linear(self, x: Tensor, name: str, *, biased: bool = False) -> Tensor:
        bias = self.biases[name] if biased else None
        out: Tensor = Linear.apply(x, self.weights[name], bias)  # type: ignore[no-untyped-call]
        return out

    def _attention(self, x: Tensor) -> Tensor:
        length, batch = x.shape[:2]
        size = HIDDEN // HEADS
        qkv = self._linear(x, "qkv", biased=True).view(length, batch, HEADS, 3 * size)
        q, k, v = (part.reshape(length, batch * HEADS, size) for part in torch.split(qkv, size, -1))
        scores = torch.empty(batch * HEADS, length, length)
        scores = torch.baddbmm(scores, q.transpose(0, 1), k.permute(1, 2, 0), beta=0.0, alpha=0.5)
        probabilities = Softmax.apply(scores)  # type: ignore[no-untyped-call]
        with forked():
            probabilities = functional.dropout(probabilities, 0.1, True)
        context = torch.bmm(probabilities, v.transpose(0, 1))
        return context.transpose(0, 1).contiguous().view(length, batch, HIDDEN)

    def _add(self, x: Tensor, out: Tensor, name: str) -> Tensor:
        return x + functional.dropout(out + self.biases[name].expand_as(out), 0.1, True)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the dispatched ops that start a kernel: those that are no views and allocate nothing
    else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op; count it."""
        free = func.is_view or func._schema.name in ("aten::empty.memory_format", "aten::detach")
        self.count += not free
        return func(*args, **(kwargs or {}))


def measure(rounds: int = 30) -> dict[str, tuple[float, int]]:
    """Return by pass the host's µs a layer, medians of ``rounds``, and the dispatched ops that are
    kernels on a GPU."""
    torch.set_num_threads(1)
    layers = [Layer() for _ in range(LAYERS)]
    spent = [_round(layers) for _ in range(rounds)]
    forward_us, backward_us = (median(one) / LAYERS * 1e6 for one in zip(*spent, strict=True))
    with Counter() as counter:
        out = _forward(layers)
        ahead = counter.count
        out.sum().backward()  # type: ignore[no-untyped-call]
    return {
        "forward, saving random states": (forward_us, ahead // LAYERS),
        "forward again and backward": (backward_us, (counter.count - ahead) // LAYERS),
    }


def _round(layers: list[Layer]) -> tuple[float, float]:
    begun = time.perf_counter()
    out = _forward(layers)
    between = time.perf_counter()
    out.sum().backward()  # type: ignore[no-untyped-call]
    return between - begun, time.perf_counter() - between


def _forward(layers: list[Layer]) -> Tensor:
    x = torch.randn(TOKENS, 1, HIDDEN, requires_grad=True)
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=True, preserve_rng_state=True)
    return x
