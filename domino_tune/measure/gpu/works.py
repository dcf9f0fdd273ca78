"""Works: ops of a layer by themselves, with operands of their own, to be called over and over.

A work has several sets of operands and takes them in turn, so that none is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F

from domino_tune.measure.gpu.events import Work
from domino_tune.runtime.ops.layers import add_product

SETS: Final = 3
GEMMS: Final = (
    (8192, 1920, 5120), (8192, 5120, 640), (8192, 2560, 5120), (8192, 5120, 2560),
    (4096, 7168, 8192), (4096, 8192, 3584), (2048, 2560, 5120), (2048, 5120, 2560),
    (16384, 2752, 4096),
)  # fmt: skip
"""tokens, out, in: layers of GPT-3 13B, Llama-2 70B and 7B at TP 8."""
ATTENTIONS: Final = ((4, 5, 2048), (1, 8, 4096))
"""Sequences, heads, positions."""
POINTWISE: Final = ((8192, 5120), (4096, 8192))
"""Tokens, width."""


class NamedWork(NamedTuple):
    """A family of ops, a name in it and sizes; ``make`` allocates the operands."""

    family: str
    name: str
    shape: tuple[int, ...]
    make: Callable[[], Work]

    @property
    def case(self) -> str:
        """Family, name and sizes in one text."""
        return f"{self.family}/{self.name}/{'x'.join(map(str, self.shape))}"


def works() -> Iterator[NamedWork]:
    """Yield ops of every family."""
    for sizes in GEMMS:
        for layout in ("forward", "dgrad", "wgrad"):
            yield NamedWork("gemm", layout, sizes, _gemm(layout, *sizes))
    for batch, heads, seq in ATTENTIONS:
        for direction in ("forward", "backward"):
            make = _attention(direction, batch, heads, seq)
            yield NamedWork("attention", direction, (batch, heads, seq, 128), make)
    for tokens, wide in POINTWISE:
        for name in ("layernorm", "gelu", "add"):
            yield NamedWork("pointwise", name, (tokens, wide), _pointwise(name, tokens, wide))


def first_works() -> list[NamedWork]:
    """Return the first op of each family and name."""
    first: dict[tuple[str, str], NamedWork] = {}
    for work in works():
        first.setdefault((work.family, work.name), work)
    return list(first.values())


def _gemm(layout: str, tokens: int, out: int, wide: int) -> Callable[[], Work]:
    def make() -> Work:
        x, dy, weight = (
            [random_bf16(rows, columns) for _ in range(SETS)]
            for rows, columns in ((tokens, wide), (tokens, out), (out, wide))
        )
        gradient = torch.zeros(out, wide, device="cuda")

        def work(call: int) -> object:
            i = call % SETS
            if layout == "forward":
                return F.linear(x[i], weight[i])
            if layout == "dgrad":
                return dy[i] @ weight[i]
            add_product(gradient, dy[i], x[i], accumulate=True)
            return None

        return work

    return make


def _attention(direction: str, batch: int, heads: int, seq: int) -> Callable[[], Work]:
    def make() -> Work:
        leaves = [
            [random_bf16(batch, heads, seq, 128).requires_grad_() for _ in range(3)]
            for _ in range(SETS)
        ]
        results = [_attend(qkv) for qkv in leaves]
        upstream = torch.randn_like(results[0])

        def work(call: int) -> object:
            i = call % SETS
            if direction == "forward":
                with torch.no_grad():
                    return _attend(leaves[i])
            return torch.autograd.grad(results[i], leaves[i], upstream, retain_graph=True)

        return work

    return make


def _attend(qkv: list[torch.Tensor]) -> torch.Tensor:
    return F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)


def _pointwise(name: str, tokens: int, wide: int) -> Callable[[], Work]:
    def make() -> Work:
        x, y = ([random_bf16(tokens, wide) for _ in range(SETS)] for _ in range(2))
        weight, bias = random_bf16(wide), random_bf16(wide)

        def work(call: int) -> object:
            i = call % SETS
            if name == "layernorm":
                return torch.native_layer_norm(x[i], (wide,), weight, bias, 1e-5)
            return F.gelu(x[i], approximate="tanh") if name == "gelu" else x[i] + y[i]

        return work

    return make


def random_bf16(*shape: int) -> torch.Tensor:
    """Return normal random numbers on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
