"""Waves: in how many rounds a GEMM's tiles go over the SMs, and what its last round leaves free.

A cuBLAS GEMM for Hopper starts a CTA on every SM, or on as many SMs as C has tiles. A CTA takes the
next tile when it is done with one, and leaves its SM when none is left. So all SMs are held for
whole waves, and in the last wave those without a tile are free (persistent CTAs, CUTLASS:
media/docs/cpp/efficient_gemm.md).

Which tile cuBLAS takes is not public. Assumed: of its large ones, those that its kernels' names
tell (nvjet_hsh_128x256…, 320x128…, 192x192…), the one with the least waves × area. A C in fp32 that
is added to needs room for itself: there 128 × 256 alone gives what our H200's records show.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from simulator.contention import Contention
from simulator.ops import Collective, Gemm, Signature

OPEN: Final = 1 << 20
"""Room beside an op that lets every collective in."""
_TILES: Final = ((128, 256), (256, 128), (128, 320), (320, 128), (192, 192))
_ADDING_TILES: Final = ((128, 256), (256, 128))


class Waves(NamedTuple):
    """``waves`` of them; ``free_sms`` SMs have no tile in the last one."""

    waves: int
    free_sms: int


def waves_of(gemm: Gemm, sm_count: int) -> Waves:
    """Return the waves of ``gemm`` on a GPU of ``sm_count`` SMs that it has for itself."""
    return _waves(gemm.m, gemm.n, gemm.accumulate, sm_count)


def room_beside(signature: Signature, contention: Contention, least: int) -> Waves:
    """Return the room beside an op as the SMs that are free in its last wave; one wave where they
    are free all the time, or fewer than the ``least`` that a collective needs."""
    if isinstance(signature, Collective) or not contention.fills(signature.kind):
        return Waves(1, OPEN)
    if not isinstance(signature, Gemm):
        return Waves(1, 0)
    waves = waves_of(signature, contention.sm_count)
    return waves if waves.free_sms >= least else Waves(1, 0)


@cache
def _waves(m: int, n: int, accumulate: bool, sm_count: int) -> Waves:
    return min(
        (count * rows * columns, tiles, Waves(count, count * sm_count - tiles))
        for rows, columns in (_ADDING_TILES if accumulate else _TILES)
        for tiles in (-(-m // rows) * -(-n // columns),)
        for count in (-(-tiles // sm_count),)
    )[2]
