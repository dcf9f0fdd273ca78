"""Triton kernels that frameworks have and the runtime has not: casts to FP8 with transposes, and
the permutation of tokens to experts and back. Each reads and writes what must be, once."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8_MAX: Final = 448.0  # Largest number of e4m3
TILE: Final = 128


@triton.jit  # type: ignore[untyped-decorator]
def cast_kernel(x, scale, out, turned, rows, columns, TURN: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cast a tile to FP8 with one scale of the tensor; write it, and its transpose if asked."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(x + row[:, None] * columns + column[None, :], inside, 0.0).to(tl.float32)
    small = (tile * tl.load(scale)).to(tl.float8e4nv)
    tl.store(out + row[:, None] * columns + column[None, :], small, inside)
    if TURN:
        tl.store(turned + column[:, None] * rows + row[None, :], tl.trans(small), tl.trans(inside))


@triton.jit  # type: ignore[untyped-decorator]
def block_cast_kernel(  # type: ignore[no-untyped-def]
    x, out, scales, turned, turned_scales, rows, columns, TURN: tl.constexpr, TILE: tl.constexpr
):
    """Cast a tile of 128 x 128 with a scale for each 128 elements of a row, and its transpose with
    a scale for each 128 of a column. Scales of one block column are next to each other."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(x + row[:, None] * columns + column[None, :], inside, 0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(tile), axis=1), 1e-12)
    small = (tile * (448.0 / most)[:, None]).to(tl.float8e4nv)
    tl.store(out + row[:, None] * columns + column[None, :], small, inside)
    tl.store(scales + tl.program_id(1) * rows + row, most / 448.0, row < rows)
    if TURN:
        most = tl.maximum(tl.max(tl.abs(tile), axis=0), 1e-12)
        small = (tile * (448.0 / most)[None, :]).to(tl.float8e4nv)
        tl.store(turned + column[:, None] * rows + row[None, :], tl.trans(small), tl.trans(inside))
        place = turned_scales + tl.program_id(0).to(tl.int64) * columns + column
        tl.store(place, most / 448.0, column < columns)


@triton.jit  # type: ignore[untyped-decorator]
def permute_kernel(x, source, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy row ``source[i]`` to row i."""
    row = tl.program_id(0).to(tl.int64)
    taken = tl.load(source + row).to(tl.int64)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + row * width + at, tl.load(x + taken * width + at, at < width), at < width)


@triton.jit  # type: ignore[untyped-decorator]
def unpermute_kernel(y, place, weight, out, width, TOP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add up the ``TOP`` rows of a token, each times its weight."""
    token = tl.program_id(0).to(tl.int64)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for number in tl.static_range(TOP):
            row = tl.load(place + token * TOP + number).to(tl.int64)
            part = tl.load(y + row * width + at, at < width, 0.0).to(tl.float32)
            total += part * tl.load(weight + token * TOP + number)
        tl.store(out + token * width + at, total.to(out.dtype.element_ty), at < width)


class Casts:
    """A bf16 tensor and the buffers that its casts write."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        rows, columns = x.shape
        blocks = triton.cdiv(rows, TILE), triton.cdiv(columns, TILE)
        self.grid = blocks
        self.out = torch.empty(rows, columns, device=x.device, dtype=torch.float8_e4m3fn)
        self.turned = torch.empty(columns, rows, device=x.device, dtype=torch.float8_e4m3fn)
        outs = self.out, self.turned
        self.out_bytes, self.turned_bytes = (one.view(torch.uint8) for one in outs)
        self.scale = FP8_MAX / x.abs().amax().float().reshape(1)
        self.scales = torch.empty(blocks[1], rows, device=x.device)
        self.turned_scales = torch.empty(blocks[0], columns, device=x.device)

    def per_tensor(self, *, turn: bool) -> None:
        """Cast with a scale that is known: bytes 2 + 1 an element, and 1 more if turned."""
        rows, columns = self.x.shape
        cast_kernel[self.grid](
            self.x, self.scale, self.out, self.turned, rows, columns, TURN=turn, TILE=TILE
        )

    def by_block(self, *, turn: bool) -> None:
        """Cast with scales of 1 x 128 elements, found in the same kernel."""
        rows, columns = self.x.shape
        block_cast_kernel[self.grid](
            self.x, self.out, self.scales, self.turned, self.turned_scales, rows, columns,
            TURN=turn, TILE=TILE,
        )  # fmt: skip


def permuted(x: Tensor, source: Tensor, out: Tensor) -> None:
    """Write rows ``source`` of ``x``, one after the other, to ``out``."""
    permute_kernel[(len(source),)](x, source, out, x.shape[1], BLOCK=1024)


def unpermuted(y: Tensor, place: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write to each token of ``out`` the sum of its rows ``place[token]`` of ``y``, weighted."""
    tokens, top = place.shape
    unpermute_kernel[(tokens,)](y, place, weight, out, y.shape[1], TOP=top, BLOCK=1024)
