"""A Triton kernel for measurements: a persistent GEMM that spares some SMs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64
STAGES = 4
"""196 KiB of an SM's 227 KiB of shared memory: one CTA an SM, as of cuBLAS's large kernels."""


@triton.jit  # type: ignore[untyped-decorator]
def persistent_gemm_kernel(  # type: ignore[no-untyped-def]
    x, weight, out, tokens, columns, inner,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[tokens, columns] = x[tokens, inner] · weight[columns, inner]ᵀ. A CTA that is done with a
    tile takes the next of its own, so its SM is its own until the end. ``inner`` is a multiple of
    BLOCK_K."""
    across = tl.cdiv(columns, BLOCK_N)
    tiles = tl.cdiv(tokens, BLOCK_M) * across
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = (tile // across) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        column = (tile % across) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, inner, BLOCK_K):
            along = start + tl.arange(0, BLOCK_K)
            a = tl.load(x + row * inner + along[None, :], mask=row < tokens, other=0.0)
            b = tl.load(weight + column * inner + along[:, None], mask=column < columns, other=0.0)
            total = tl.dot(a, b, total)
        kept = (row < tokens) & (column < columns)
        tl.store(out + row * columns + column, total.to(out.dtype.element_ty), mask=kept)


def persistent_linear(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, ctas: int
) -> torch.Tensor:
    """Return ``out`` after it has become x · weightᵀ, computed by so many CTAs.

    Raise ValueError where the inner size is no multiple of BLOCK_K.
    """
    (tokens, inner), columns = x.shape, len(weight)
    if inner % BLOCK_K:
        raise ValueError(f"The inner size must be a multiple of {BLOCK_K}, got {inner}.")
    persistent_gemm_kernel[(ctas,)](
        x, weight, out, tokens, columns, inner, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K, num_warps=8, num_stages=STAGES,
    )  # fmt: skip
    return out
