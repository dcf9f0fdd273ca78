"""Laws of GEMM time: from few parameters to µs, in pure Python and over arrays.

``tiled`` models thread-block tiles, waves and split-K, so it follows the staircase that decides
slice counts; ``roofline`` is the sum of a fixed cost, FLOPs and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.dtypes import MATH_BYTES, OUTPUT_BYTES
from simulator.errors import ProfileError, unknown_name
from simulator.lookup import require_number
from simulator.ops import Gemm

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Number = TypeVar("Number", float, Floats)
Params = Mapping[str, float | tuple[float, ...]]

# (rows, columns, class): a tile and its transpose run the same main loop, so they share a class.
TILES: Final = (
    (256, 128, 0), (128, 256, 0), (128, 128, 1), (256, 64, 2),
    (64, 256, 2), (128, 64, 3), (64, 128, 3), (64, 64, 4),
)  # fmt: skip
TILE_CLASSES: Final = 5
SPLITS: Final = (2, 4, 8)
_ELEMENT_BYTES: Final = 2
_BEND_MB: Final = 20.0

# Parameter: (entries, 0 for a plain number; lowest; highest). Far beyond any machine, but narrow
# enough that no time overflows: norm is an exponent, the shares are parts of a whole.
Limits = Mapping[str, tuple[int, float, float]]
_TILED_LIMITS: Final[Limits] = {
    "fixed_us": (0, 0.0, 1e6),
    "mb_us": (0, 1e-3, 1e6),
    "bandwidth_bend": (0, -10.0, 10.0),
    "norm": (0, 1.0, 25.0),
    "ceil_share": (0, 0.0, 1.0),
    "idle_gain": (0, 0.0, 1.0),
    "repeat_share": (0, 0.0, 1.0),
    "reduce_us": (0, 0.0, 1e6),
    "reduce_mb_us": (0, 1e-3, 1e6),
    "throttle": (0, 0.0, 100.0),
    "throttle_gflop": (0, 1e-3, 1e9),
    "tile_mflop_us": (TILE_CLASSES, 1e-3, 1e6),
    "tile_us": (TILE_CLASSES, 1e-6, 1e6),
}
_ROOFLINE_LIMITS: Final[Limits] = {
    "fixed_us": (0, 0.0, 1e6),
    "flops_per_us": (0, 1.0, 1e15),
    "bytes_per_us": (0, 1.0, 1e15),
    "element_bytes": (0, 1.0, 8.0),
}
PARAMETERS: Final[dict[str, Limits]] = {"tiled": _TILED_LIMITS, "roofline": _ROOFLINE_LIMITS}
"""Limits of each law's parameters."""
_OPTIONAL: Final = frozenset({"element_bytes"})


class GemmParts(NamedTuple):
    """Time of one GEMM and its fixed, FLOP-bound and memory-bound parts, in µs."""

    total_us: float
    fixed_us: float
    flops_us: float
    memory_us: float


class Law(Protocol):
    """Interface of every law."""

    def parts(self, m: int, n: int, k: int) -> GemmParts:
        """Return the time of C[m, n] = A[m, k] · B[k, n]; the three parts sum to the total."""
        ...

    def times_us(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """Return the same totals, in µs, over arrays of one shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class RooflineLaw:
    """fixed + FLOPs / rate + bytes / bandwidth, for elements of ``element_bytes``."""

    fixed_us: float
    flops_per_us: float
    bytes_per_us: float
    element_bytes: float = _ELEMENT_BYTES

    def parts(self, m: int, n: int, k: int) -> GemmParts:
        """See Law."""
        flops_us = 2 * m * n * k / self.flops_per_us
        memory_us = self.element_bytes * (m * k + n * k + m * n) / self.bytes_per_us
        total = self.fixed_us + flops_us + memory_us
        return GemmParts(total, self.fixed_us, flops_us, memory_us)

    def times_us(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """See Law."""
        moved = self.element_bytes * (m * k + n * k + m * n)
        result: Floats = (
            self.fixed_us + 2 * m * n * k / self.flops_per_us + moved / self.bytes_per_us
        )
        return result


@dataclass(frozen=True, kw_only=True)
class TiledLaw:
    """fixed + ‖compute, memory‖_p, where compute is the time of the fastest tile and split.

    A tile of class c costs 2·area·k / ``tile_mflop_us[c]`` (main loop, MFLOP/us of one SM) plus
    ``tile_us[c]`` (prologue and epilogue; its share ``repeat_share`` stays visible after the first
    wave). Waves are w = tiles / SMs. Below one wave the main loop costs 1 − ``idle_gain``·(1 − w)
    of a wave (fewer SMs share clock and cache), above it a mix of ⌈w⌉ (``ceil_share``) and w. Grids
    below one wave may split k; partial sums then move at ``reduce_mb_us`` after ``reduce_us``.
    ``throttle`` is the slowdown of problems far above ``throttle_gflop`` (power limit), and
    ``bandwidth_bend`` the change of the bandwidth ``mb_us`` (MB/µs) with the bytes moved.
    """

    sm_count: int
    fixed_us: float
    mb_us: float
    bandwidth_bend: float
    norm: float
    ceil_share: float
    idle_gain: float
    repeat_share: float
    reduce_us: float
    reduce_mb_us: float
    throttle: float
    throttle_gflop: float
    tile_mflop_us: tuple[float, ...]
    tile_us: tuple[float, ...]

    def parts(self, m: int, n: int, k: int) -> GemmParts:
        """See Law; the norm is divided between compute and memory by their p-th powers."""
        gflop = 2e-9 * m * n * k
        compute = self.multiply_us(m, n, k, self.sm_count) * self.slower(gflop)
        moved_mb = _ELEMENT_BYTES * 1e-6 * (m * k + n * k + m * n)
        return self.joined(compute, self.move_us(moved_mb))

    def slower(self, gflop: Number) -> Number:
        """Return how many times as long the tiles of a problem of these GFLOP take."""
        return 1 + self.throttle * gflop / (gflop + self.throttle_gflop)

    def move_us(self, moved_mb: float) -> float:
        """Return the time of these bytes, in us."""
        return moved_mb / self.mb_us * math.exp(self.bandwidth_bend * _bend(moved_mb))

    def joined(self, compute: float, memory: float) -> GemmParts:
        """Return the time of compute beside memory."""
        ratio = (memory / compute) ** self.norm
        both = compute * (1 + ratio) ** (1 / self.norm)
        flops_us = both / (1 + ratio)
        return GemmParts(self.fixed_us + both, self.fixed_us, flops_us, both - flops_us)

    def multiply_us(self, m: int, n: int, k: int, sms: float) -> float:
        """Return the time of the fastest tile on ``sms`` SMs."""
        ceil_share, idle_gain = self.ceil_share, self.idle_gain
        repeat, best = self.repeat_share, math.inf
        partial_us = 4e-6 * m * n / self.reduce_mb_us
        for rows, columns, index in TILES:
            tiles = -(-m // rows) * -(-n // columns)
            loop_us = 2e-6 * rows * columns * k / self.tile_mflop_us[index]
            edge_us = self.tile_us[index]
            if tiles >= sms:
                waves = tiles / sms
                waves += ceil_share * (-(-tiles // sms) - waves)
                best = min(best, waves * loop_us + edge_us * (1 + repeat * (waves - 1)))
                continue
            busy = 1 - idle_gain * (1 - tiles / sms)
            best = min(best, busy * (loop_us + edge_us))
            for split in SPLITS:
                waves = tiles * split / sms
                if waves <= 1:
                    grid_us = (1 - idle_gain * (1 - waves)) * (loop_us / split + edge_us)
                else:
                    waves += ceil_share * (math.ceil(waves) - waves)
                    grid_us = waves * loop_us / split + edge_us * (1 + repeat * (waves - 1))
                best = min(best, grid_us + self.reduce_us + split * partial_us)
        return best

    def times_us(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """See Law."""
        slow = self.slower(2e-9 * m * n * k)
        memory = self.moved_us(_ELEMENT_BYTES * 1e-6 * (m * k + n * k + m * n))
        compute = self.multiplied_us(m, n, k, self.sm_count) * slow
        norm: Floats = (compute**self.norm + memory**self.norm) ** (1 / self.norm)
        return self.fixed_us + norm

    def moved_us(self, moved_mb: Floats) -> Floats:
        """Return ``move_us`` of each."""
        bend = np.tanh(np.log(moved_mb / _BEND_MB) / 2)
        result: Floats = moved_mb / self.mb_us * np.exp(self.bandwidth_bend * bend)
        return result

    def multiplied_us(self, m: Floats, n: Floats, k: Floats, sms: float | Floats) -> Floats:
        """Return ``multiply_us`` of every shape; in 2-D arrays rows are tiles, columns shapes."""
        rows, columns, index = (np.array(column)[:, None] for column in zip(*TILES, strict=True))
        rate, edge_us = np.array(self.tile_mflop_us)[index], np.array(self.tile_us)[index]
        waves = np.ceil(m / rows) * np.ceil(n / columns) / sms
        loop_us = 2e-6 * rows * columns * k / rate
        times = self._grid_us(waves, loop_us, edge_us)
        small = waves < 1
        waves, loop_us = waves[small], loop_us[small]
        edge_us = np.broadcast_to(edge_us, small.shape)[small]
        partial_us = np.broadcast_to(4e-6 * m * n / self.reduce_mb_us, small.shape)[small]
        for split in SPLITS:
            grid_us = self._grid_us(waves * split, loop_us / split, edge_us)
            grid_us += self.reduce_us + split * partial_us
            times[small] = np.minimum(times[small], grid_us)
        best: Floats = times.min(axis=0)
        return best

    def _grid_us(self, waves: Floats, loop_us: Floats, edge_us: Floats) -> Floats:
        above = waves + self.ceil_share * (np.ceil(waves) - waves)
        busy = np.where(waves <= 1, 1 - self.idle_gain * (1 - waves), above)
        edges = np.where(waves <= 1, busy, 1 + self.repeat_share * (busy - 1))
        result: Floats = busy * loop_us + edge_us * edges
        return result


def _bend(moved_mb: float) -> float:
    return math.tanh(math.log(moved_mb / _BEND_MB) / 2)


def check_params(owner: str, law: str, params: Params) -> None:
    """Raise ProfileError unless ``params`` has the names, types and ranges of ``law``."""
    if law not in PARAMETERS:
        raise ProfileError(f"{owner}: {unknown_name('GEMM law', law, PARAMETERS)}")
    limits = PARAMETERS[law]
    missing = sorted(limits.keys() - params.keys() - _OPTIONAL)
    unknown = sorted(params.keys() - limits.keys())
    if missing or unknown:
        raise ProfileError(
            f"{owner}: law {law!r} lacks {missing} and does not know {unknown}; "
            f"it takes {', '.join(limits)}."
        )
    for name, value in params.items():
        entries, low, high = limits[name]
        listed = isinstance(value, list | tuple)
        if listed != (entries > 0) or (isinstance(value, list | tuple) and len(value) != entries):
            kind = f"a list of {entries} numbers" if entries else "one number"
            raise ProfileError(f"{owner}: params.{name} must be {kind}, got {value!r}.")
        for index, number in enumerate(value if isinstance(value, list | tuple) else (value,)):
            label = f"params.{name}[{index}]" if listed else f"params.{name}"
            require_number(owner, label, number, low=low)
            if number > high:
                raise ProfileError(f"{owner}: {label} must be at most {high:g}, got {number!r}.")


def make_law(name: str, params: Params, sm_count: int) -> Law:
    """Return the law ``name`` with ``params`` on a GPU of ``sm_count`` SMs.

    Raise InputError for an unknown name, ProfileError for missing, unknown or impossible numbers.
    """
    if name not in LAWS:
        raise unknown_name("GEMM law", name, LAWS)
    try:
        law = LAWS[name](params, sm_count)
        time_us = law.parts(4096, 4096, 4096).total_us
    except (TypeError, ArithmeticError) as error:
        raise ProfileError(f"GEMM law {name!r} got parameters it cannot use: {error}.") from error
    if not (math.isfinite(time_us) and time_us > 0):
        raise ProfileError(f"GEMM law {name!r} gives {time_us} us for a 4096-cube; fit it again.")
    return law


def _tiled(params: Params, sm_count: int) -> Law:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list | tuple) else value
        for key, value in params.items()
    }
    law = TiledLaw(sm_count=sm_count, **values)
    for name in ("tile_mflop_us", "tile_us"):
        numbers = getattr(law, name)
        if len(numbers) != TILE_CLASSES or min(numbers) <= 0:
            raise ProfileError(f"{name} must be {TILE_CLASSES} numbers > 0, got {numbers!r}.")
    return law


def _roofline(params: Params, _sm_count: int) -> Law:
    values: dict[str, Any] = dict(params)
    return RooflineLaw(**values)


LAWS: Final[dict[str, Callable[[Params, int], Law]]] = {"tiled": _tiled, "roofline": _roofline}


def fit_roofline(m: Floats, n: Floats, k: Floats, us: Floats) -> RooflineLaw | None:
    """Return a least-squares fit of relative error, or None unless all three numbers are > 0."""
    if len(us) < 8:
        return None
    terms = np.stack(
        [np.ones_like(us), 2 * m * n * k, _ELEMENT_BYTES * (m * k + n * k + m * n)], axis=1
    )
    scale = terms.max(axis=0)
    solved, _, rank, _ = np.linalg.lstsq(terms / scale / us[:, None], np.ones_like(us), rcond=None)
    if rank < 3 or solved.min() <= 0:
        return None
    fixed, per_flop, per_byte = (float(x) for x in solved / scale)
    return RooflineLaw(fixed_us=fixed, flops_per_us=1 / per_flop, bytes_per_us=1 / per_byte)


# Bytes of a GEMM, dtypes that are alike, and what counts as far from timings ----------------------

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
