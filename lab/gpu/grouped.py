"""Stage ``grouped``: the GEMMs of a rank's experts, and tokens brought to them and back.

A rank's experts multiply in one kernel, each its own rows: forward, dgrad and wgrad. Rows are
shared out evenly, or by weights 1, 2, …; beside them one GEMM of as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from domino_tune.measure.gpu.events import Work
from lab.gpu.arena import Timed, ops_timer
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.timing import each_ns

BF16: Final = torch.bfloat16
ALIGNED_ROWS: Final = 16
SETS: Final = 2


class Experts(NamedTuple):
    """One rank's experts of a model."""

    model: str
    hidden: int
    inner: int
    local: int
    top: int


EXPERTS: Final = (
    Experts("qwen3-30b-a3b", 2048, 768, 16, 8), Experts("mixtral-8x7b", 4096, 14336, 2, 2),
    Experts("deepseek-v3", 7168, 2048, 8, 8),
)  # fmt: skip
ROWS: Final = (128, 512, 2048, 8192)
"""Mean rows an expert."""
TOKENS: Final = 8192


def grouped_cases(
    stage: Stage, experts: tuple[Experts, ...] = EXPERTS, rows: tuple[int, ...] = ROWS,
    tokens: int = TOKENS,
) -> Iterator[GpuCase]:  # fmt: skip
    """Yield the GEMMs of each model, then its permutations."""
    timed = ops_timer(stage.device)
    for one in experts:
        for count in rows:
            if count * one.local * max(2 * one.inner, one.hidden) > 2**31:
                continue
            yield GpuCase(
                name=f"{one.model} {count} rows", seconds=2.0,
                measure=partial(_gemms, timed, stage.device, one, count),
            )  # fmt: skip
            yield GpuCase(
                name=f"{one.model} {count} rows in fp8", seconds=1.0,
                measure=partial(_quantized, timed, stage.device, one, count),
            )  # fmt: skip
    for one in experts:
        yield GpuCase(
            name=f"{one.model} permutation", seconds=1.5,
            measure=partial(_permutation, timed, stage.device, one, tokens),
        )  # fmt: skip


def shares(total: int, groups: int, *, even: bool) -> list[int]:
    """Return rows an expert, in steps of 16: alike, or in proportion to 1, 2, …"""
    weights = [1] * groups if even else list(range(1, groups + 1))
    found = [
        max(ALIGNED_ROWS, total * weight // sum(weights) // ALIGNED_ROWS * ALIGNED_ROWS)
        for weight in weights
    ]
    found[-1] += total - sum(found)
    return found


def gemm_works(rows: list[int], out: int, wide: int, device: torch.device) -> dict[str, Work]:
    """Return a grouped linear's three GEMMs, and the same in one GEMM of all rows."""
    total, ends = sum(rows), torch.tensor(rows, device=device).cumsum(0).to(torch.int32)
    sets = []
    for _ in range(SETS):
        x = torch.randn(total, wide, device=device, dtype=BF16)
        dy = torch.randn(total, out, device=device, dtype=BF16)
        weight = torch.randn(len(rows), out, wide, device=device, dtype=BF16)
        sets.append((x, dy, weight))

    def each(play: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]) -> Work:
        return lambda call: play(*sets[call % SETS])

    grouped = torch._grouped_mm
    return {
        "forward": each(lambda x, dy, w: grouped(x, w.transpose(-2, -1), offs=ends)),
        "dgrad": each(lambda x, dy, w: grouped(dy, w, offs=ends)),
        "wgrad": each(lambda x, dy, w: grouped(dy.t(), x, offs=ends)),
        "one forward": each(lambda x, dy, w: x @ w[0].t()),
        "one dgrad": each(lambda x, dy, w: dy @ w[0]),
    }


def _gemms(timed: Timed, device: torch.device, one: Experts, count: int) -> Row:
    total = count * one.local
    cells: list[dict[str, Any]] = []
    for layer, (out, wide) in layers_of(one).items():
        for even in (True, False):
            rows = shares(total, one.local, even=even)
            works = gemm_works(rows, out, wide, device)
            makers = {
                name: partial(works.__getitem__, name)
                for name in works if even or not name.startswith("one")
            }  # fmt: skip
            found, failed = each_ns(timed, makers)
            cells.append({
                "layer": layer, "even": even, "rows": rows, "out": out, "in": wide,
                "ns": found, "failed": failed,
            })  # fmt: skip
    flop = 2 * total * 2 * one.inner * one.hidden
    told = ", ".join(f"{name} {flop / ns / 1e3:.0f}" for name, ns in cells[0]["ns"].items())
    return {**one._asdict(), "cells": cells, "told": f"fc1, TFLOP/s: {told}"}


def quantized_works(rows: list[int], out: int, wide: int, device: torch.device) -> dict[str, Work]:
    """Return a grouped linear's GEMMs in FP8 with a scale a row, each expert's weight with one a
    row of its own, and all rows in one GEMM."""
    total, groups = sum(rows), len(rows)
    ends = torch.tensor(rows, device=device).cumsum(0).to(torch.int32)
    eight = torch.float8_e4m3fn
    x, dy = (torch.randn(total, size, device=device).to(eight) for size in (wide, out))
    weight = torch.randn(groups, out, wide, device=device).to(eight)
    turned = torch.randn(groups, wide, out, device=device).to(eight)
    columns, gradients = (torch.randn(size, total, device=device).to(eight) for size in (wide, out))
    scale = partial(torch.ones, device=device)
    grouped = torch._scaled_grouped_mm
    tokens, outs, wides = scale(total), scale(groups, out), scale(groups, wide)
    sums = scale(groups * out), scale(groups * wide)
    return {
        "forward": lambda call: grouped(
            x, weight.transpose(-2, -1), tokens, outs, ends, out_dtype=BF16, use_fast_accum=True
        ),
        "dgrad": lambda call: grouped(
            dy, turned.transpose(-2, -1), tokens, wides, ends, out_dtype=BF16
        ),
        "wgrad": lambda call: grouped(gradients, columns.t(), *sums, ends, out_dtype=BF16),
        "one forward": lambda call: torch._scaled_mm(
            x, weight[0].t(), scale(total, 1), scale(1, out), out_dtype=BF16, use_fast_accum=True
        ),
    }  # fmt: skip


def _quantized(timed: Timed, device: torch.device, one: Experts, count: int) -> Row:
    cells: list[dict[str, Any]] = []
    for layer, (out, wide) in layers_of(one).items():
        rows = shares(count * one.local, one.local, even=True)
        works = quantized_works(rows, out, wide, device)
        found, failed = each_ns(timed, {name: partial(works.__getitem__, name) for name in works})
        cells.append({
            "layer": layer, "rows": rows, "out": out, "in": wide, "ns": found, "failed": failed,
        })  # fmt: skip
    flop = 2 * sum(cells[0]["rows"]) * 2 * one.inner * one.hidden
    told = ", ".join(f"{name} {flop / ns / 1e3:.0f}" for name, ns in cells[0]["ns"].items())
    return {
        **one._asdict(),
        "recipe": "rowwise",
        "quantized": cells,
        "told": f"fc1, TFLOP/s: {told}",
    }


def layers_of(one: Experts) -> dict[str, tuple[int, int]]:
    """Return columns and inner size of both grouped linears."""
    return {"fc1": (2 * one.inner, one.hidden), "fc2": (one.hidden, one.inner)}


def permutation_works(
    one: Experts, tokens: int, device: torch.device
) -> dict[str, tuple[int, Work]]:
    """Return ways to bring tokens to experts and back, each with the bytes that it must move."""
    from lab.gpu.kernels import permuted, unpermuted

    top, hidden = one.top, one.hidden
    order = torch.randperm(tokens * top, device=device)
    source, place = order // top, torch.argsort(order).view(tokens, top)
    x = torch.randn(tokens, hidden, device=device, dtype=BF16)
    y = torch.randn(tokens * top, hidden, device=device, dtype=BF16)
    many, few = torch.empty_like(y), torch.empty_like(x)
    weight = torch.rand(tokens, top, device=device)
    size = 2 * tokens * hidden * (top + 1)
    return {
        "permute": (size, lambda call: permuted(x, source, many)),
        "permute by torch": (size, lambda call: torch.index_select(x, 0, source)),
        "unpermute": (size, lambda call: unpermuted(y, place, weight, few)),
        "unpermute by torch": (
            size, lambda call: (y[place.view(-1)].view(tokens, top, hidden)
                                * weight[..., None].to(BF16)).sum(1),
        ),
        "router by torch": (0, _router(tokens, hidden, 16 * one.local, top, device)),
    }  # fmt: skip


def _router(tokens: int, hidden: int, experts: int, top: int, device: torch.device) -> Work:
    """A router's GEMM in fp32, softmax and the ``top`` best, as torch launches them."""
    x = torch.randn(tokens, hidden, device=device)
    weight = torch.randn(experts, hidden, device=device)
    return lambda call: torch.topk(torch.softmax(x @ weight.t(), -1), top)


def _permutation(timed: Timed, device: torch.device, one: Experts, tokens: int) -> Row:
    works = permutation_works(one, tokens, device)
    found = {name: {"bytes": size, "ns": timed(work)} for name, (size, work) in works.items()}
    told = ", ".join(
        f"{name} {cell['bytes'] / cell['ns']:.0f}" for name, cell in found.items() if cell["bytes"]
    )
    return {**one._asdict(), "tokens": tokens, "ways": found, "told": f"GB/s: {told}"}
