"""Types of numbers, what quantized linears multiply, and conversions of units."""

from __future__ import annotations

from typing import Final, Literal, get_args

Dtype = Literal["bf16", "fp16", "fp32", "fp64"]
DTYPE_BYTES: Final[dict[str, int]] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
MATH_BYTES: Final[dict[str, float]] = {
    **DTYPE_BYTES, "tf32": 4, "fp8_tensor": 1, "fp8_block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
"""Bytes of an element of an operand with its scales, by what multiplies it: TF32 is fp32 rounded on
the way to tensor cores."""
OUTPUT_BYTES: Final[dict[str, int]] = {
    **DTYPE_BYTES, "tf32": 4, "fp8_tensor": 2, "fp8_block": 2, "mxfp8": 2, "nvfp4": 2,
}  # fmt: skip
"""The same of a product."""

GradDtype = Literal["fp32", "bf16"]
GRAD_DTYPES: Final[tuple[GradDtype, ...]] = get_args(GradDtype)
MomentsDtype = Literal["fp32", "bf16", "fp8"]
MOMENTS_DTYPES: Final[tuple[MomentsDtype, ...]] = get_args(MomentsDtype)
Fp8Recipe = Literal["none", "delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"]
FP8_RECIPES: Final[tuple[Fp8Recipe, ...]] = get_args(Fp8Recipe)
"""Megatron-LM's ``--fp8-recipe``, or ``--fp4-recipe``: how operands of linear layers are scaled."""
MATH_OF: Final[dict[Fp8Recipe, str]] = {
    "delayed": "fp8_tensor", "tensorwise": "fp8_tensor", "blockwise": "fp8_block",
    "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip
"""Fp8Recipe -> in what its GEMMs multiply. A scale a tensor costs the GEMM the same, whenever it
was found."""


# Conversions between the units of the engines and those that users read ---------------------------

MS_PER_NS: Final = 1e-6
S_PER_NS: Final = 1e-9
GIB: Final = 1 << 30
"""Bytes of one GiB."""
