"""FLOPs and ranks of signatures, and their defaults."""

from __future__ import annotations

import pytest

from simulator.ops import Attention, Collective, Gemm, Pointwise


def test_a_gemm_multiplies_and_adds() -> None:
    assert Gemm(3, 5, 7).flops == 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("causal", "direction", "flops"),
    [(False, "forward", 4), (True, "forward", 2), (False, "backward", 10), (True, "backward", 5)],
)
def test_attention_counts_as_flash_attention_does(causal: bool, direction: str, flops: int) -> None:
    """QKᵀ and PV are 2·s²·d each and head; backward has five such products for their two; a causal
    mask halves all. Key and value heads change nothing."""
    core = Attention(3, 6, 2, 10, 8, causal, direction)  # type: ignore[arg-type]
    assert core.flops == flops * 3 * 6 * 10 * 10 * 8


def test_other_ops_count_none() -> None:
    assert Pointwise("gelu", 8, 8).flops == 0
    assert Collective("all_reduce", 8, 1, 2).flops == 0


def test_ranks_of_a_group() -> None:
    assert Collective("all_gather", 8, 3, 4).ranks == 12


def test_defaults_are_whole_packed_bf16_ops() -> None:
    gemm = Gemm(3, 5, 7)
    assert (gemm.layout, gemm.dtype, gemm.accumulate, gemm.bias) == (
        "forward", "bf16", False, False,
    )  # fmt: skip
    assert gemm.strides == (0, 0, 0)
    assert Attention(1, 2, 2, 4, 8)[5:] == (True, "forward", "bf16", False, False, 0, 0)
    assert Pointwise("gelu", 8, 8).pieces == 1
    assert Collective("all_reduce", 8, 1, 2).ctas == 0
    kinds = [op.kind for op in (gemm, Pointwise("gelu", 8, 8), Collective("broadcast", 8, 1, 2))]
    assert kinds == ["gemm", "pointwise", "collective"]
