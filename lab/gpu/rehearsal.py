"""Stage ``rehearsal``: what surrounds a plan in a user's loop, on one GPU, before NCCL runs it: two
ways of each.

Optimizers in loops and in one pass; inputs of merged weight gradients, put together or written as
one; the copy that gives bf16 weights their gradients; the gradient of wide norms.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from domino_tune.measure.gpu.events import spans_ns, ticks_around
from domino_tune.runtime.ops.pointwise import pointwise_for
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import median_ns

CALLS: Final = 20
SECONDS: Final = 12.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A rank's share of Llama-2 13B at TP 8, or of anything smaller."""

    tokens: int = 16384
    hidden: int = 5120
    inner: int = 1728
    layers: int = 40
    wide: tuple[int, ...] = (8192, 12288, 16384)


Ways = dict[str, Callable[[], object]]
Make = Callable[[Sizes, torch.device], Ways]


def rehearsal_cases(stage: Stage, sizes: Sizes | None = None) -> Iterator[GpuCase]:
    """Yield a case for each thing that is done in two ways or more, with each one's ns."""
    for name, make in MAKERS.items():
        yield GpuCase(name, SECONDS, partial(_row, make, sizes or Sizes(), stage.device))


def _row(make: Make, sizes: Sizes, device: torch.device) -> Row:
    return {f"{way}_ns": _timed(work, device) for way, work in make(sizes, device).items()}


def _timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        return median_ns(device, work, CALLS)
    work()
    ticks = ticks_around(lambda _: work(), CALLS)
    torch.cuda.synchronize()
    return statistics.median(spans_ns(ticks))


def optimizers(sizes: Sizes, device: torch.device) -> Ways:
    """AdamW of all layers' weights, as torch chooses for DTensors, and in one pass."""

    def stepped(**how: Any) -> Callable[[], object]:
        shapes = [(sizes.inner, sizes.hidden)] * 4 + [(sizes.hidden,)] * 2
        weights = [nn.Parameter(torch.zeros(x, device=device)) for x in shapes * sizes.layers]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return torch.optim.AdamW(weights, **how).step

    return {"loop": stepped(foreach=False), "fused": stepped(fused=True)}


def merged_inputs(sizes: Sizes, device: torch.device) -> Ways:
    """A merged weight gradient of two slices, whose inputs are put together, or are one."""
    half = partial(torch.ones, sizes.tokens // 2, dtype=torch.bfloat16, device=device)
    dy, x = ([half(wide) for _ in range(2)] for wide in (sizes.inner, sizes.hidden))
    whole_dy, whole_x = torch.cat(dy), torch.cat(x)
    return {
        "put_together": lambda: torch.cat(dy).t() @ torch.cat(x),
        "one": lambda: whole_dy.t() @ whole_x,
    }


def gradients(sizes: Sizes, device: torch.device) -> Ways:
    """The gradients of a stack in fp32, and the copy in bf16; the weights that autocast casts."""
    flat = torch.ones(4 * sizes.inner * sizes.hidden * sizes.layers, device=device)
    return {"to_bf16": lambda: flat.to(torch.bfloat16), "cleared": flat.zero_}


def wide_norms(sizes: Sizes, device: torch.device) -> Ways:
    """The gradient of RMSNorm at widths whose rows used to spill registers."""
    functions = pointwise_for(device)

    def work(width: int) -> Callable[[], object]:
        rows, dtype = max(1, sizes.tokens * sizes.hidden // width), torch.bfloat16
        x, dy = (torch.randn(rows, width, device=device, dtype=dtype) for _ in range(2))
        weight = torch.ones(width, device=device, dtype=dtype)
        _, rstd = functions.rms_norm(x, weight, 1e-5)
        return lambda: functions.rms_norm_grad(dy, x, weight, rstd, None)

    return {f"width_{width}": work(width) for width in sizes.wide}


MAKERS: Final[dict[str, Make]] = {
    "optimizers": optimizers, "merged inputs": merged_inputs, "gradients": gradients,
    "wide norms": wide_norms,
}  # fmt: skip
