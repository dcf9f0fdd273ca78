"""Stage ``grouped``: the GEMMs of a rank's experts, and tokens brought to them and back. A rank's
experts multiply in one kernel, each its own rows: forward, dgrad and wgrad. Rows are shared out
evenly, or by weights 1, 2, …; beside them one GEMM of as many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import Any, Final, NamedTuple

import torch

from domino_tune.measure.gpu import Work
from lab.gpu.cases import SHAPES
from lab.gpu.stage import GpuCase, Moves, Row, Stage, Timed, each_ns, moved, ops_timer

BF16: Final = torch.bfloat16
ALIGNED_ROWS: Final = 16
SETS: Final = 2
Works = dict[str, Work]


class Experts(NamedTuple):
    """One rank's experts of a model."""

    model: str
    hidden: int
    inner: int
    local: int
    top: int

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """Columns and inner size of both grouped linears."""
        return {"fc1": (2 * self.inner, self.hidden), "fc2": (self.hidden, self.inner)}


def grouped_cases(
    stage: Stage, experts: Sequence[Sequence[Any]] = SHAPES["experts"],
    rows: Sequence[int] = SHAPES["rows"], tokens: int = SHAPES["tokens"],
) -> Iterator[GpuCase]:  # fmt: skip
    """Yield the GEMMs of each model, then its permutations."""
    timed, device = ops_timer(stage.device), stage.device
    every = list(starmap(Experts, experts))
    for one in every:
        for count in rows:
            if count * one.local * max(2 * one.inner, one.hidden) <= 2**31:
                name, told = f"{one.model} {count} rows", (timed, device, one, count)
                yield GpuCase(name, 2.0, partial(_gemms, *told))
                yield GpuCase(f"{name} in fp8", 1.0, partial(_quantized, *told))
    for one in every:
        measure = partial(_permutation, timed, device, one, tokens)
        yield GpuCase(f"{one.model} permutation", 1.5, measure)


def shares(total: int, groups: int, *, even: bool) -> list[int]:
    """Return rows an expert, in steps of 16: alike, or in proportion to 1, 2, …"""
    weights = [1] * groups if even else list(range(1, groups + 1))
    found = [
        max(ALIGNED_ROWS, total * weight // sum(weights) // ALIGNED_ROWS * ALIGNED_ROWS)
        for weight in weights
    ]
    found[-1] += total - sum(found)
    return found


def _gemms(timed: Timed, device: torch.device, one: Experts, count: int) -> Row:
    cells: list[dict[str, Any]] = []
    for layer, sizes in one.layers.items():
        for even in (True, False):
            rows = shares(count * one.local, one.local, even=even)
            works = gemm_works(rows, *sizes, device)
            some = {x: work for x, work in works.items() if even or not x.startswith("one")}
            cells.append({**_cell(timed, one, layer, rows, some), "even": even})
    told = [cell.pop("told") for cell in cells]
    return {**one._asdict(), "cells": cells, "told": f"fc1, {told[0]}"}


def _quantized(timed: Timed, device: torch.device, one: Experts, count: int) -> Row:
    rows = shares(count * one.local, one.local, even=True)
    cells = [
        _cell(timed, one, layer, rows, quantized_works(rows, *sizes, device))
        for layer, sizes in one.layers.items()
    ]
    told = [cell.pop("told") for cell in cells]
    return {**one._asdict(), "recipe": "rowwise", "quantized": cells, "told": f"fc1, {told[0]}"}


def _cell(timed: Timed, one: Experts, layer: str, rows: list[int], works: Works) -> dict[str, Any]:
    out, wide = one.layers[layer]
    makers = {name: partial(works.__getitem__, name) for name in works}
    found = each_ns(timed, makers, 2 * sum(rows) * out * wide)
    return {"layer": layer, "rows": rows, "out": out, "in": wide, **found}


def gemm_works(rows: list[int], out: int, wide: int, device: torch.device) -> Works:
    """Return a grouped linear's three GEMMs, and the same in one GEMM of all rows."""
    total, ends = sum(rows), torch.tensor(rows, device=device).cumsum(0).to(torch.int32)
    made = partial(torch.randn, device=device, dtype=BF16)
    sets = [(made(total, wide), made(total, out), made(len(rows), out, wide)) for _ in range(SETS)]

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


def quantized_works(rows: list[int], out: int, wide: int, device: torch.device) -> Works:
    """Return a grouped linear's GEMMs in FP8 with a scale a row, and all rows in one GEMM."""
    total, groups = sum(rows), len(rows)
    ends = torch.tensor(rows, device=device).cumsum(0).to(torch.int32)

    def eight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(torch.float8_e4m3fn)

    x, dy, weight = eight(total, wide), eight(total, out), eight(groups, out, wide)
    turned, columns, gradients = eight(groups, wide, out), eight(wide, total), eight(out, total)
    scale, grouped = partial(torch.ones, device=device), torch._scaled_grouped_mm
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


def _permutation(timed: Timed, device: torch.device, one: Experts, tokens: int) -> Row:
    found = moved("ways", timed, permutation_works(one, tokens, device))
    return {**one._asdict(), "tokens": tokens, **found}


def permutation_works(one: Experts, tokens: int, device: torch.device) -> Moves:
    """Return ways to bring tokens to experts and back, with bytes that must move; and a router."""
    from lab.gpu.kernels import permuted, unpermuted

    top, hidden, made = one.top, one.hidden, partial(torch.randn, device=device)
    order = torch.randperm(tokens * top, device=device)
    source, place = order // top, torch.argsort(order).view(tokens, top)
    x, y = made(tokens, hidden, dtype=BF16), made(tokens * top, hidden, dtype=BF16)
    many, few = torch.empty_like(y), torch.empty_like(x)
    weight, size = torch.rand(tokens, top, device=device), 2 * tokens * hidden * (top + 1)
    states, gate = made(tokens, hidden), made(16 * one.local, hidden)
    return {
        "permute": (size, lambda call: permuted(x, source, many)),
        "permute by torch": (size, lambda call: torch.index_select(x, 0, source)),
        "unpermute": (size, lambda call: unpermuted(y, place, weight, few)),
        "unpermute by scatter_add": (size, lambda call: torch.zeros_like(x).scatter_add_(
            0, source[:, None].expand(-1, hidden), y)),
        "permute's gradient by index_add": (
            size, lambda call: torch.zeros_like(x).index_add_(0, source, y)),
        "router by torch": (0, lambda call: torch.topk(torch.softmax(states @ gate.t(), -1), top)),
    }  # fmt: skip
