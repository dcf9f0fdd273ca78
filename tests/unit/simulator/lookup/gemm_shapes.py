"""A GPU's law with round numbers, and rows made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.lookup.gemm import GemmFit, GemmRow, GemmTable
from simulator.lookup.gemm_law import Params, make_law

SMS: Final = 132
PEAK: Final = {"bf16": 989e12, "fp32": 67e12}
RANGES: Final = {"m": (1, 32768), "n": (32, 65536), "k": (32, 65536)}
PARAMS: Final[Params] = {
    "fixed_us": 2.0, "mb_us": 2.4, "bandwidth_bend": -0.1, "norm": 4.5, "ceil_share": 0.3,
    "idle_gain": 0.5, "repeat_share": 0.5, "reduce_us": 2.3, "reduce_mb_us": 1.2,
    "throttle": 0.1, "throttle_gflop": 1500.0,
    "tile_mflop_us": (6.3, 6.2, 6.1, 5.5, 4.0), "tile_us": (3.3, 2.2, 1.9, 1.8, 2.1),
}  # fmt: skip


def table(rows: Sequence[GemmRow], fits: Sequence[GemmFit] = ()) -> GemmTable:
    return GemmTable(rows, fits=fits, peak_flops=PEAK, memory_bandwidth=3.35e12, sm_count=SMS)


def law_rows(factor: float = 1.0) -> list[GemmRow]:
    """What a machine would measure that is ``factor`` times as slow as the law."""
    law = make_law("tiled", PARAMS, SMS)
    return [
        GemmRow(
            m, n, k, "forward", "bf16", False, (0, 0, 0),
            factor * law.parts(m, n, k).total_us, 0.0, 1,
        )
        for m in (1, 64, 256, 1024, 4096)
        for n in (512, 2048, 8192)
        for k in (512, 2048, 8192)
    ]  # fmt: skip
