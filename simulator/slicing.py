"""Where row slices are cut: between sequences, or between positions of all sequences.

The work of a sequence's positions below x, in FLOPs of a layer's forward and backward, is
    3·L·x + 3.5·A·x²/2,
with L a token's FLOPs in the linears and A those of a query and a key (backward of a linear is
twice its forward; of attention 2.5 times, FlashAttention's rule). A later position attends to more
keys, so slices of equal work get shorter.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from simulator.specs import ModelSpec

SliceDim = Literal["batch", "sequence"]
SliceBalance = Literal["balanced", "even", "front"]
Slicing = tuple[SliceDim, SliceBalance]
SLICE_DIMS: Final[tuple[SliceDim, ...]] = ("batch", "sequence")
SLICE_BALANCES: Final[tuple[SliceBalance, ...]] = ("balanced", "even", "front")
SLICINGS: Final[tuple[Slicing, ...]] = (
    ("batch", "balanced"), ("sequence", "balanced"), ("sequence", "even"), ("sequence", "front"),
)  # fmt: skip
"""Every way to cut: the dimension, and the balance."""
SEQUENCE_ROW_SLICES: Final = (2, 3, 4)
"""Numbers of slices of sequences that a search looks at: more never paid."""
ENOUGH_SEQUENCES: Final = 2
"""A micro-batch of so many can be sliced along the batch: slices of sequences, which move the
gradients of keys and values more often, were never more than 0.1 % faster there, and looking for
them takes three times as long."""
FRONT: Final = 1.5
"""Work of the first slice over that of the last one, where slices are ``front``-heavy."""
TILE: Final = 128
"""Tokens of a GEMM's tile: cuts of long sequences fall between tiles."""
TILES_PER_SLICE: Final = 16
"""A cut is moved to a tile's edge where that is at most 1/32 of a slice away."""


def searched_slicings(micro_batch_size: int) -> tuple[Slicing, ...]:
    """Return the ways to cut that a search looks at: along the batch, and where that cannot be,
    along the sequences."""
    return SLICINGS if micro_batch_size < ENOUGH_SEQUENCES else SLICINGS[:1]


def batch_slice_sizes(micro_batch_size: int, slices: int) -> tuple[int, ...]:
    """Return the sequences in each slice: as even as possible, larger slices first."""
    small, extra = divmod(micro_batch_size, slices)
    return tuple(small + (index < extra) for index in range(slices))


def sequence_spans(
    model: ModelSpec, seq_length: int, slices: int, multiple: int, balance: SliceBalance
) -> tuple[range, ...]:
    """Return the positions of each slice. Cuts are multiples of ``multiple``; a sequence must have
    at least ``slices`` · ``multiple`` positions.

    ``balanced``: slices of equal work; ``even``: of equal length; ``front``: of work that falls
    linearly, from FRONT to 1.
    """
    tile = math.lcm(multiple, TILE)
    grain = tile if seq_length >= TILES_PER_SLICE * slices * tile else multiple
    cuts = [0]
    for index in range(1, slices):
        ideal = seq_length * _position(model, seq_length, _share(index, slices, balance), balance)
        least, most = cuts[-1] + grain, seq_length - (slices - index) * grain
        cuts.append(min(max(round(ideal / grain) * grain, least), most // grain * grain))
    return tuple(range(a, b) for a, b in zip(cuts, [*cuts[1:], seq_length], strict=True))


def _share(index: int, slices: int, balance: SliceBalance) -> float:
    """Return the share of the first ``index`` slices."""
    if balance != "front" or slices == 1:
        return index / slices
    weights = [FRONT + (1 - FRONT) * i / (slices - 1) for i in range(slices)]
    return sum(weights[:index]) / sum(weights)


def _position(model: ModelSpec, seq_length: int, share: float, balance: SliceBalance) -> float:
    """Return the share of the positions in which ``share`` of the work is done."""
    if balance == "even":
        return share
    linear = 3.0 * 2 * model.linear_parameters
    attention = 3.5 * 4 * model.num_attention_heads * model.head_dim * seq_length / 2
    whole = share * (linear + attention)
    return 2 * whole / (linear + math.sqrt(linear**2 + 4 * attention * whole))
