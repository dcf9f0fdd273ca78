"""What quantized linear layers need beside their GEMMs: casts, and copies for the other product.

A GEMM's operands are scaled along the dimension that it sums over. So a value that two GEMMs read,
which sum over its columns and over its tokens, is cast to two copies: ``….q`` by rows, for fprop
and dgrad, and ``….qt`` across, for wgrad. Tensor cores of Hopper want the summed dimension last in
both operands, so the copy across is a transposed one; with a scale a tensor it is the same numbers.
Blackwell's take operands of a scale a tensor as they lie, so that no copy across is made
(TransformerEngine, pytorch/csrc/quantizer.cpp: ``nvte_is_non_tn_fp8_gemm_supported``); scales of
blocks lie along one dimension, and such values keep both.

With sequence parallelism a rank casts its share of the tokens, and the gather moves the copy by
rows (TransformerEngine, torchtitan's float8). With one scale a tensor or a block of 128, the
gathered copy is transposed for the wgrad. MXFP8 and NVFP4 have other scales across: those copies
are made of the share, and gathered, too.

What is found first, and when: ``delayed`` takes the scale of earlier steps, so that
TransformerEngine's norm writes FP8 itself; ``tensorwise`` and ``nvfp4`` read the value once more
for its largest number (arXiv 2209.05433; transformer_engine/common/recipe). Weights are cast once a
step. Not priced: sums of the largest numbers over ranks, a few bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.dtypes import MATH_BYTES, Fp8Recipe
from simulator.schedule import OpTemplate
from simulator.shapes import Shapes
from simulator.templates import Templates
from simulator.values import Ref

READS_TWICE: Final[frozenset[Fp8Recipe]] = frozenset({"tensorwise", "nvfp4"})
"""Recipes that read a value for its largest number before they cast it."""
ONE_SCALE: Final[frozenset[Fp8Recipe]] = frozenset({"delayed", "tensorwise"})
"""Recipes with one scale a tensor."""
SCALES_ACROSS: Final[frozenset[Fp8Recipe]] = frozenset({"mxfp8", "nvfp4"})
"""Recipes whose copy across has scales of its own, so that it cannot be made of the other copy."""
CAST_KERNELS: Final[Mapping[Fp8Recipe, int]] = {
    "delayed": 1, "tensorwise": 4, "mxfp8": 2, "nvfp4": 4, "blockwise": 1,
}  # fmt: skip
"""Recipe -> kernels of a cast. The largest number is found by two, its scale by one more; scales of
MXFP8 and NVFP4 are brought into cuBLAS's order before each product (TransformerEngine,
common/recipe, common/cast, pytorch/csrc/quantizer.cpp and extensions/gemm.cpp). Experts' rows are
cast an expert at a time (pytorch/csrc/extensions/cast.cpp). Each kernel takes what the shortest
cast does: on H100s finding the largest number takes 7 us more, the cast itself 2."""
ROWS, ACROSS = "q", "qt"
"""Forms of a value's copy by rows, and of its copy across."""


def operand_bytes(shapes: Shapes, elements: int) -> int:
    """Return the bytes of an operand of the layers' linears with its scales."""
    return round(elements * MATH_BYTES[shapes.workload.linear_math])


def _reads(shapes: Shapes) -> int:
    """Return how often a cast reads its input."""
    return 2 if shapes.workload.fp8_recipe in READS_TWICE else 1


def one_copy(shapes: Shapes) -> bool:
    """Return whether all products read the same copy of a value."""
    return shapes.fp8_any_layout and shapes.workload.fp8_recipe in ONE_SCALE


def cast_weights(t: Templates) -> list[OpTemplate]:
    """Return the casts of all quantized weights, once a step; where parameters are gathered in FP8,
    the copies across alone."""
    s, count = t.shapes, t.shapes.quantized_parameters
    copy, kept, single = operand_bytes(s, count), s.workload.fp8_param_gather, one_copy(s)
    if not count or (kept and single):
        return []
    written = copy if kept or single else 2 * copy
    read = copy if kept else _reads(s) * count * s.element
    return [t.op("cast_weights", -1, s.pointwise("fp8_cast", read, written), (), Ref("w.cast"), 0)]


class Quantized(Templates):
    """Maker of casts and of their readers; without quantization every value is its own copy."""

    @property
    def quantizes(self) -> bool:
        """Whether the layers' linears are quantized."""
        return self.shapes.workload.fp8_recipe != "none"

    @property
    def norm_casts(self) -> bool:
        """Whether the norm writes FP8 itself."""
        work = self.shapes.workload
        return work.fp8_recipe == "delayed" and work.implementation.name == "megatron-te"

    @property
    def scales_across(self) -> bool:
        """Whether the copy across has scales of its own."""
        return self.shapes.workload.fp8_recipe in SCALES_ACROSS

    def rows_of(self, value: Ref, base: Ref | None = None) -> Ref:
        """Return what fprop and dgrad read of a value."""
        return (base or value).at(0).form(ROWS) if self.quantizes else value

    def across_of(self, value: Ref, base: Ref | None = None) -> Ref:
        """Return what the wgrad reads of a value that ``cast`` gave both copies."""
        if one_copy(self.shapes):
            return self.rows_of(value, base)
        return (base or value).at(0).form(ACROSS) if self.quantizes else value

    def cast(
        self, row: int, value: Ref, size: int, *, gathered: bool = False, base: Ref | None = None,
        groups: int = 1,
    ) -> list[OpTemplate]:  # fmt: skip
        """Return the cast of a value of ``size`` bytes, none without quantization. ``gathered``:
        ranks then gather it, and where they can make the copy across from what they get.
        ``groups``: experts whose rows are cast one after the other."""
        if not self.quantizes:
            return []
        s, base = self.shapes, (base or value).at(0)
        copy = operand_bytes(s, size // s.element)
        both = (not gathered or self.scales_across) and not one_copy(s)
        kernels = groups * CAST_KERNELS[s.workload.fp8_recipe]
        signature = s.pointwise("fp8_cast", _reads(s) * size, (1 + both) * copy)
        signature = signature._replace(kernels=kernels)
        role = f"{_role(base)}.cast"
        made = self.op(role, row, signature, (value,), base.form(ROWS), copy)
        return [made.writing(base.form(ACROSS), copy) if both else made]

    def transposed(self, row: int, value: Ref, elements: int) -> list[OpTemplate]:
        """Return the copy across of a value that arrived in FP8, none where it came, too."""
        if not self.quantizes or self.scales_across or one_copy(self.shapes):
            return []
        copy = operand_bytes(self.shapes, elements)
        signature = self.shapes.pointwise("fp8_transpose", copy, copy)
        role = f"{_role(value)}.transpose"
        return [self.op(role, row, signature, (value,), value.at(0).form("across"), copy)]

    def gathered_bytes(self, row: int, copies: int = 1) -> int:
        """Return the bytes of all tokens of slice ``row`` between the blocks, as they are gathered;
        ``copies``: how many of the two, where the copy across is gathered."""
        s = self.shapes
        if not self.quantizes:
            return s.hidden_bytes(row)
        both = copies if self.scales_across else 1
        return both * operand_bytes(s, s.tokens(row) * s.model.hidden_size)


def _role(value: Ref) -> str:
    """Return the name of a value as that of an op: ``d.s0.attn.qkv`` is ``attn.qkv_grad``."""
    return value.bare + "_grad" * (value.kind == "gradient")
