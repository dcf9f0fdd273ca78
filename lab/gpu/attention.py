"""Stage ``attention``: heads that published tables of Hopper lack, forward and backward.

Latent attention, whose keys are longer than its values, and heads of 64; beside them heads of 128,
which the tables have. Each by every library that torch can ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from domino_tune.measure.gpu.events import Work
from lab.gpu.arena import Timed, ops_timer
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import each_ns

LIBRARIES: Final = {
    "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
}  # fmt: skip
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
        yield GpuCase(
            name=one.name, seconds=1.5, measure=partial(_measured, timed, stage.device, one)
        )


def _measured(timed: Timed, device: torch.device, one: Heads) -> Row:
    makers = {
        f"{name} {direction}": partial(make, one, library, device)
        for name, library in LIBRARIES.items()
        for direction, make in (("forward", _forward), ("backward", _backward))
    }  # fmt: skip
    found, failed = each_ns(timed, makers)
    told = ", ".join(
        f"{name} {one.forward_flop * (2.5 if name.endswith('backward') else 1) / ns / 1e3:.0f}"
        for name, ns in found.items()
    )
    return {**one._asdict(), "ns": found, "failed": failed, "told": f"TFLOP/s: {told}"}


def _inputs(one: Heads, device: torch.device) -> list[torch.Tensor]:
    return [
        torch.randn(
            one.batch, heads, one.seq, size, device=device, dtype=torch.bfloat16, requires_grad=True
        )
        for heads, size in (
            (one.queries, one.key_size), (one.keys, one.key_size), (one.keys, one.value_size),
        )
    ]  # fmt: skip


def _played(inputs: list[torch.Tensor], one: Heads, library: SDPBackend) -> torch.Tensor:
    query, key, value = inputs
    with sdpa_kernel(library):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=one.keys != one.queries
        )


def _forward(one: Heads, library: SDPBackend, device: torch.device) -> Work:
    sets = [_inputs(one, device) for _ in range(SETS)]
    return lambda call: _played(sets[call % SETS], one, library)


def _backward(one: Heads, library: SDPBackend, device: torch.device) -> Work:
    sets: list[tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]] = []
    for _ in range(SETS):
        inputs = _inputs(one, device)
        mixed = _played(inputs, one, library)
        sets.append((mixed, inputs, torch.randn_like(mixed)))

    def each(play: Callable[..., Any]) -> Work:
        return lambda call: play(*sets[call % SETS])

    return each(
        lambda mixed, inputs, given: torch.autograd.grad(mixed, inputs, given, retain_graph=True)
    )
