"""Bytes of a GEMM, dtypes that are alike, and what counts as far from timings."""

from __future__ import annotations

from typing import Final

from simulator.dtypes import MATH_BYTES, OUTPUT_BYTES
from simulator.ops import Gemm

FAR_OCTAVES: Final = 1.0
"""A look-up that is more doublings than this outside its range counts as extrapolated."""
ACCUMULATE_BYTES: Final = 4 + 4 - 2
"""Bytes added per element: an fp32 C is read and written; overwriting writes 16 bits once."""
SAME_RATE: Final[dict[str, str]] = {"fp16": "bf16"}
"""Same tensor-core rate, same bytes."""


def moved_bytes(gemm: Gemm) -> int:
    """Return the bytes of A, B and C, of all groups; an accumulated C is read and written in
    fp32."""
    element, output = MATH_BYTES[gemm.dtype], OUTPUT_BYTES[gemm.dtype]
    output += ACCUMULATE_BYTES if gemm.accumulate else 0
    one = round(element * (gemm.m + gemm.n) * gemm.k) + output * gemm.m * gemm.n
    return gemm.groups * one
