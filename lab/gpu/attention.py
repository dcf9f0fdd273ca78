"""Stage ``attention``: heads that published tables of Hopper lack, forward and backward.

Latent attention, whose keys are longer than its values, and heads of 64; beside them heads of 128,
which the tables have. Each by every library that torch can ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from domino_tune.measure.gpu.events import Work
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import Timed, each_ns, ops_timer

LIBRARIES: Final = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
SETS: Final = 2


class Heads(NamedTuple):
    """One rank's heads, causal: those of queries, of keys and values, and elements of each."""

    batch: int
    seq: int
    queries: int
    keys: int
    key_size: int
    value_size: int

    @property
    def name(self) -> str:
        """Return all of it, short."""
        sizes = f"{self.key_size}+{self.value_size}"
        return f"{self.batch}x{self.seq} heads {self.queries}/{self.keys} of {sizes}"

    @property
    def forward_flop(self) -> float:
        """Return what the unmasked half multiplies and adds."""
        pairs = self.batch * self.queries * self.seq**2 / 2
        return 2 * pairs * (self.key_size + self.value_size)


CASES: Final = (
    Heads(1, 4096, 128, 128, 192, 128), Heads(1, 4096, 16, 16, 192, 128),
    Heads(2, 4096, 64, 64, 192, 128), Heads(1, 8192, 32, 32, 192, 128),
    Heads(1, 4096, 64, 8, 64, 64), Heads(2, 4096, 32, 4, 64, 64), Heads(1, 8192, 64, 8, 64, 64),
    Heads(1, 4096, 32, 4, 128, 128), Heads(2, 4096, 16, 16, 128, 128),
)  # fmt: skip


def attention_cases(stage: Stage, cases: tuple[Heads, ...] = CASES) -> Iterator[GpuCase]:
    """Yield a case per shape; its row has the forward and backward time by each library."""
    timed = ops_timer(stage.device)
    for one in cases:
        yield GpuCase(one.name, 1.5, partial(_measured, timed, stage.device, one))


def _measured(timed: Timed, device: torch.device, one: Heads) -> Row:
    makers = {
        f"{name} {direction}": partial(_work, one, library, device, direction)
        for name, library in LIBRARIES.items() for direction in ("forward", "backward")
    }  # fmt: skip
    return {**one._asdict(), **each_ns(timed, makers, one.forward_flop)}


def _work(one: Heads, library: SDPBackend, device: torch.device, direction: str) -> Work:
    def made(heads: int, size: int) -> torch.Tensor:
        shape = one.batch, heads, one.seq, size
        return torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)

    def mixed(inputs: list[torch.Tensor]) -> torch.Tensor:
        query, key, value = inputs
        with sdpa_kernel(library):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=one.keys != one.queries
            )

    heads = (one.queries, one.key_size), (one.keys, one.key_size), (one.keys, one.value_size)
    sets = [[made(*each) for each in heads] for _ in range(SETS)]
    if direction == "forward":
        return lambda call: mixed(sets[call % SETS])
    outs = [mixed(inputs) for inputs in sets]
    given = [torch.randn_like(out) for out in outs]

    def backward(call: int) -> object:
        at = call % SETS
        return torch.autograd.grad(outs[at], sets[at], given[at], retain_graph=True)

    return backward
