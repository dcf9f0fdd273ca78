"""Durations of kernels that fuse a GEMM with its collective, tile by tile.

Tiles of 128 × 256 outputs run in waves, one tile per SM: the GEMM's own time is rounded up to whole
waves. With the gather, tiles run in the order in which their rows arrive, and a wave begins when
all its rows are there. With the scatter, the SMs of a wave multiply together and then store
together, to all ranks at once, so that little of the exchange is hidden; a sum over the received
parts follows (not counted here).
Sources: Flux (arXiv 2406.06858) has these kernels, the tile is CUTLASS's usual one on Hopper.
"""

from __future__ import annotations

import math
from typing import Final

from simulator.ops import Gemm

TILE_M: Final = 128
TILE_N: Final = 256
SM_COUNT: Final = 132
"""SMs of an H100, where a profile does not say."""
BARRIER_US: Final = 10.0
"""All ranks meet before and behind such a kernel (assumed: two signals through NVLink and back)."""


def gathered_us(gemm: Gemm, alone_us: float, copy_us: float, ranks: int, sms: int) -> float:
    """Return the time of a GEMM whose input's chunks arrive ``copy_us`` after each other; a rank's
    own chunk is there."""
    waves, wave_us = _waves(gemm, alone_us, sms)
    columns = math.ceil(gemm.n / TILE_N)
    done_us = 0.0
    for wave in range(waves):
        last_tile = min((wave + 1) * sms, _tiles(gemm)) - 1
        last_row = min(gemm.m, (last_tile // columns + 1) * TILE_M)
        chunk = math.ceil(last_row * ranks / gemm.m) - 1
        done_us = max(done_us, chunk * copy_us) + wave_us
    return done_us + BARRIER_US


def scattered_us(gemm: Gemm, alone_us: float, exchange_us: float, ranks: int, sms: int) -> float:
    """Return the time of a GEMM whose tiles are stored to the ranks that add them up."""
    waves, wave_us = _waves(gemm, alone_us, sms)
    return waves * wave_us + exchange_us + BARRIER_US


def _waves(gemm: Gemm, alone_us: float, sms: int) -> tuple[int, float]:
    """Return the number of waves, and the time of each."""
    waves = _tiles(gemm) / sms
    return math.ceil(waves), alone_us / waves


def _tiles(gemm: Gemm) -> int:
    return math.ceil(gemm.m / TILE_M) * math.ceil(gemm.n / TILE_N)
