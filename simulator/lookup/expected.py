"""Expected errors of look-ups that borrow: a number taken from another signature, group or dtype.

Each has its source. ``scripts/bench accuracy`` measures again what tables can tell; what they
cannot is assumed, and ``profiles check`` lists it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple


class Expected(NamedTuple):
    """A relative error (0.02 = 2 %) that look-ups add or state, and how it is known."""

    what: str
    error: float
    kind: Literal["measured", "assumed"]
    source: str


SINGLE_RUN: Final = Expected(
    "a row without a spread",
    0.02,
    "measured",
    "four collectors of the same GEMMs differ by 2 to 4 %, two runs of a collective by 0.9 %",
)
LEAST: Final = Expected(
    "the least error of a row", 0.005, "assumed", "a clock and a host that are steady for a while"
)
FAR: Final = Expected(
    "a law twice outside its range, and half as much more for each doubling",
    0.1,
    "assumed",
    "no table reaches far enough beyond another one's range",
)
GEMM_DGRAD: Final = Expected(
    "a dgrad taken from forward GEMMs", 0.04, "measured", "833 rows of an H200"
)
GEMM_WGRAD: Final = Expected(
    "a wgrad taken from forward GEMMs", 0.13, "measured", "692 rows of an H200"
)
GEMM_ACCUMULATE: Final = Expected(
    "a GEMM that adds to C, from one that does not",
    0.05,
    "measured",
    "532 pairs of rows of an H200",
)
GEMM_STRIDES: Final = Expected(
    "a GEMM of strided operands, from a packed one", 0.02, "assumed", "no table has both"
)
GEMM_OCTAVE: Final = Expected(
    "a GEMM beyond the rows, for each doubling",
    0.03,
    "assumed",
    "the law of H100 rows stays within its error for three doublings; fewer rows may do worse",
)
GEMM_GROUPED: Final = Expected(
    "a grouped GEMM without timings, as a GEMM a group",
    0.25,
    "measured",
    "TransformerEngine's grouped linear layers on a B200, from single GEMMs of the same source: "
    "forward 16 % too slow, dgrad 8 % too fast, wgrad of few rows 32 % too fast in the median",
)
GEMM_ANALYTIC: Final = Expected(
    "a GEMM from data-sheet peaks alone",
    0.15,
    "measured",
    "the published tables of H100 and A100: 11 and 18 % on training shapes",
)
GEMM_MATH: Final = Expected(
    "a GEMM in a dtype that was not timed, from bf16's by the peaks",
    0.1,
    "assumed",
    "GEMMs in FP8, whose peak is twice bf16's, take 1 / 1.92 of its time on an H100 (1.84 to 2.06) "
    "and 1 / 1.96 on a B200 (1.73 to 2.19); TF32 was not timed",
)
ATTENTION_NEAREST: Final = Expected(
    "attention scaled by FLOPs from the nearest row",
    0.28,
    "measured",
    "rows of an H200, looked up without those of their length",
)
ATTENTION_HEADS: Final = Expected(
    "attention of another head size or dtype than the law's, or with a soft-cap",
    0.2,
    "assumed",
    "the law was fitted to heads of 128",
)
ATTENTION_BEHIND: Final = Expected(
    "attention to keys before the first query, as a share of the whole sequence's",
    0.1,
    "assumed",
    "one kernel on a B200: full blocks 1.08 times faster by FLOP than causal ones forward and 1.12 "
    "backward at 8k, 0.99 forward at 16k (Dao-AILab/flash-attention #2280, #2605)",
)
ATTENTION_DETERMINISTIC: Final = Expected(
    "attention backward in a fixed order",
    0.25,
    "assumed",
    "a later schedule of the same kernel takes 1.21 instead of 1.59 times (flash-attention #1893)",
)
COLLECTIVE_RING: Final = Expected(
    "an all-reduce that NVSwitch may not sum, as a scatter and a gather",
    0.1,
    "assumed",
    "until measured: see scripts/bench accuracy",
)
POINTWISE_DEFAULT: Final = Expected(
    "a pointwise op by the law of others", 0.3, "assumed", "ops of one size differ by as much"
)
POINTWISE_SUMS: Final = Expected(
    "rows that are summed by index, where permutation is not fused",
    0.3,
    "assumed",
    "an H20's rate by SM and clock; what is probably an A100's agrees within 3 %",
)
POINTWISE_TABLE: Final = Expected(
    "a pointwise op between rows of its name",
    0.17,
    "measured",
    "rows of an H200, left out one by one",
)
COLLECTIVE_TABLE: Final = Expected(
    "a collective between rows of its group",
    0.05,
    "measured",
    "tables of H100 and A100 nodes, each row looked up without itself",
)
COLLECTIVE_HALF: Final = Expected(
    "a gather or scatter as half an all-reduce",
    0.21,
    "measured",
    "120 rows of H100 and A100 nodes: 20 and 21 % too fast, as NVSwitch helps all-reduces only",
)
COLLECTIVE_RELATED: Final = Expected(
    "a broadcast or a send from a gather", 0.3, "assumed", "no table has them"
)
PEER_COPY: Final = Expected(
    "copies by copy engines from a gather",
    0.2,
    "assumed",
    "copy engines and NCCL both come near NVLink's rate; no table has both",
)
TILE_FUSED: Final = Expected(
    "a tile-fused GEMM from waves of tiles", 0.12, "assumed", "the tile of other kernels differs"
)
COLLECTIVE_GROUPS: Final = Expected(
    "a collective of a group between or beside timed ones",
    0.12,
    "measured",
    "H100 and A100 nodes: 4 GPUs from 2 and 8, 7 to 8 %; 8 from 2 and 4, 13 to 18 %",
)
COLLECTIVE_ONE_GROUP: Final = Expected(
    "a collective of a group from the only timed one",
    0.4,
    "measured",
    "H100 and A100 nodes: 4 GPUs from 8, 12 to 13 %; 8 from 2, 58 to 65 %",
)
COLLECTIVE_WIRES: Final = Expected(
    "a collective between nodes from its NICs' rate",
    0.3,
    "assumed",
    "sites with the same network differ by 10 to 20 %",
)
BANDWIDTH: Final = Expected(
    "the share of a data sheet's memory bandwidth that no kernel reaches",
    0.05,
    "assumed",
    "refresh and turnarounds; the best timed row is at 0.97, helped by what the L2 still held",
)

EXPECTED: Final = (
    SINGLE_RUN, LEAST, FAR, GEMM_DGRAD, GEMM_WGRAD, GEMM_ACCUMULATE, GEMM_STRIDES, GEMM_OCTAVE,
    GEMM_GROUPED, GEMM_ANALYTIC, GEMM_MATH, ATTENTION_NEAREST, ATTENTION_HEADS, ATTENTION_BEHIND,
    ATTENTION_DETERMINISTIC,
    POINTWISE_DEFAULT, POINTWISE_SUMS, POINTWISE_TABLE, COLLECTIVE_TABLE, COLLECTIVE_HALF,
    COLLECTIVE_RELATED,
    PEER_COPY, TILE_FUSED, COLLECTIVE_GROUPS,
    COLLECTIVE_ONE_GROUP, COLLECTIVE_RING, COLLECTIVE_WIRES, BANDWIDTH,
)  # fmt: skip
"""All of them."""
