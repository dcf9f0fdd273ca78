"""Triton kernels: dropout masks, emulated collectives, the clock. Needs Triton and a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from domino_tune.runtime.lanes.pace import Chunks

BLOCK = 1024


@triton.jit(do_not_specialize=["first", "key", "threshold"])  # type: ignore[untyped-decorator]
def mask_kernel(mask, step, first, key, threshold, elements, quarter, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Draw a sequence's mask. Each counter of a Philox generator gives four elements, one in each
    quarter of the sequence. Its key is (site, step), its second counter the sequence."""
    sequence = tl.program_id(1)
    counter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed = (tl.load(step).to(tl.int64) << 32) | key
    zero = counter * 0
    r0, r1, r2, r3 = tl.philox(seed, counter, zero + (first + sequence), zero, zero)
    row = mask + sequence.to(tl.int64) * elements
    mine = counter < quarter
    second, third, fourth = counter + quarter, counter + 2 * quarter, counter + 3 * quarter
    tl.store(row + counter, tl.where(r0 >= threshold, 1, 0).to(tl.uint8), mine)
    tl.store(row + second, tl.where(r1 >= threshold, 1, 0).to(tl.uint8), mine & (second < elements))
    tl.store(row + third, tl.where(r2 >= threshold, 1, 0).to(tl.uint8), mine & (third < elements))
    tl.store(row + fourth, tl.where(r3 >= threshold, 1, 0).to(tl.uint8), mine & (fourth < elements))


def drawn_mask(
    sequences: Sequence[int], shape: tuple[int, int], rate: float, *,
    key: int, step: int | torch.Tensor, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return ``dropout.keep_mask`` by one kernel for all ``sequences``, which are consecutive."""
    elements = shape[0] * shape[1]
    mask = torch.empty((len(sequences) * shape[0], shape[1]), dtype=torch.bool, device=device)
    if not isinstance(step, torch.Tensor):
        step = torch.full((1,), float(step), device=device)
    quarter = triton.cdiv(elements, 4)
    mask_kernel[(triton.cdiv(quarter, BLOCK), len(sequences))](
        mask.view(torch.uint8), step, sequences[0], key & 0x7FFFFFFF, round(rate * 2**31) * 2,
        elements, quarter, BLOCK=BLOCK,
    )  # fmt: skip
    return mask


@triton.jit(do_not_specialize=["first", "count", "chunk_ns"])  # type: ignore[untyped-decorator]
def carry_kernel(left, right, total, stamps, first, count, chunk_ns, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add blocks of two buffers into a third, at most one block every ``chunk_ns``.

    A CTA that is late may catch up by a few blocks, as over a link with a small buffer. A larger
    delay makes it end later. Each writes its beginning and its end (ns) to ``stamps``, if not None.
    """
    lane = tl.arange(0, BLOCK)
    begun = globaltimer()
    deadline = begun
    for index in range(count):
        block = index * tl.num_programs(0) + tl.program_id(0)
        offset = ((first + block) % blocks) * BLOCK + lane
        tl.store(total + offset, tl.load(left + offset) + tl.load(right + offset))
        now = globaltimer()
        deadline = tl.maximum(deadline, now - 4 * chunk_ns) + chunk_ns
        while now < deadline:
            now = globaltimer()
    if stamps is not None:
        tl.store(stamps + 2 * tl.program_id(0), begun)
        tl.store(stamps + 2 * tl.program_id(0) + 1, globaltimer())


@triton.jit
def stamp_kernel(stamp):  # type: ignore[no-untyped-def]
    """Write the device's clock, ns."""
    tl.store(stamp, globaltimer())


def stamp(target: torch.Tensor) -> None:
    """Write the device's clock (ns) to an int64 tensor, on the current stream."""
    stamp_kernel[(1,)](target)


def carry(
    left: torch.Tensor, right: torch.Tensor, total: torch.Tensor, first: int, chunks: Chunks,
    ctas: int, stamps: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Launch ``carry_kernel`` on the current stream, from element ``first`` of the buffers."""
    carry_kernel[(ctas,)](
        left, right, total, stamps, first // chunks.block, chunks.count, chunks.chunk_ns,
        left.numel() // chunks.block,
        BLOCK=chunks.block, num_warps=16,
    )  # fmt: skip
