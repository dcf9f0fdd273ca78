"""Attention: the law of ``simulator.lookup.attention``, fitted to timings, or set to the level of
a few; of heads as usual, of small ones, and of latent attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np

from domino_tune.measure.importers.tables import attention_csv, attention_pair_csv
from lab.fits import common
from lab.fits.common import ASSUMED_ERROR, TRANSFER_ERROR, Bounds, Floats, Gpu, Sources, rounded
from simulator.errors import InputError
from simulator.lookup.attention import DIRECTIONS, AttentionFit, AttentionRow
from simulator.profile import Machine

_START: Final = (14.0, 0.56, 630.0, 3000.0, 1.2)
"""Fixed µs, ns a row, TFLOP/s, TFLOP/s of a tile, blend."""
_BOUNDS: Final[Bounds] = ((0.0, 0.0, 1.0, 1.0, 1.0), (1e3, 1e3, 1e4, 1e5, 20.0))
_LINEAR_ABOVE: Final = 0.05
SMALL: Final = 64  # Elements of the smaller heads that models have
LATENT: Final = (192, 128)  # Elements of a key and of a value of DeepSeek's latent attention
LATENT_BACKWARD_ERROR: Final = 0.2
"""Expected error of its backward on a GPU that takes it from Hopper."""
HOPPER: Final = ("h100", "h200")
OURS: Final = "h200"
HOPPER_SMS: Final = 132
LEAST_ROWS: Final = 16384  # Query rows of all heads, below which a launch is most of the time
LEAST_BACKWARD_US: Final = 300.0  # Of timings that show the kernel, not gaps on the host
Rows = Sequence[AttentionRow]
SEQ: Final = attrgetter("seq")
Key = Callable[[AttentionRow], Any]


def fit_attention(
    forward: Rows, pairs: Rows, *, sm_count: int, withheld_by: Key = SEQ
) -> AttentionFit:
    """Fit forward timings and backward over forward ``pairs``. Raise InputError for mixed heads."""
    law = fit_forward(forward, sm_count=sm_count, withheld_by=withheld_by)
    ratio, error = _backward_ratio(pairs)
    return replace(law, backward_ratio=rounded(ratio, 3), backward_error=rounded(error, 2))


def fit_forward(forward: Rows, *, sm_count: int, withheld_by: Key = SEQ) -> AttentionFit:
    """Fit the law to forward timings of one head size; ``error``: withheld in five folds."""
    head_dims = {(row.head_dim, row.v_head_dim) for row in forward}
    if len(head_dims) != 1 or len(forward) < 10:
        raise InputError(f"The law needs ≥ 10 rows of one head size, got {sorted(head_dims)}.")

    def off(others: list[AttentionRow], mine: list[AttentionRow]) -> list[float]:
        law = _law(others, forward, sm_count)
        return [abs(sum(law.shares_us(r.signature)) / r.median_us - 1) for r in mine]

    error = float(np.mean(common.withheld(forward, withheld_by, off, 5)))
    return replace(_law(forward, forward, sm_count), error=rounded(error, 2))


def _law(fitted: Rows, rows: Rows, sm_count: int) -> AttentionFit:
    numbers = (rounded(float(one)) for one in _solve(fitted, sm_count))
    fixed, row_ns, tflops, tile_tflops, blend = numbers
    return AttentionFit(
        sm_count=sm_count, head_dim=rows[0].head_dim, v_head_dim=rows[0].v_head_dim,
        fixed_us=fixed, row_ns=row_ns, tflops=tflops, tile_tflops=tile_tflops, blend=blend,
        backward_ratio=1.0, min_seq=min(row.seq for row in rows),
        max_seq=max(row.seq for row in rows), error=0.0, backward_error=0.0,
    )  # fmt: skip


def _solve(rows: Rows, sm_count: int) -> Floats:
    batch, heads, seq, times = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("batch", "heads", "seq", "median_us")
    )
    dims = rows[0].head_dim + (rows[0].v_head_dim or rows[0].head_dim)
    flops = np.array([row.signature.flops for row in rows], dtype=np.float64)
    tile_flops = 2 * 128 * seq * dims * sm_count

    def off(p: Floats) -> Floats:
        work = batch * heads * seq * p[1] / 1e3 + flops / (p[2] * 1e6)
        tile = tile_flops / (p[3] * 1e6)
        return np.asarray(np.log((p[0] + (work ** p[4] + tile ** p[4]) ** (1 / p[4])) / times))

    return common.robust(off, _START, _BOUNDS, linear_above=_LINEAR_ABOVE, scaled=True)


def _backward_ratio(pairs: Rows) -> tuple[float, float]:
    """Return median backward/forward over shapes timed both ways, and its relative spread."""
    forward = {r.signature: r.median_us for r in pairs if r.direction == "forward"}
    ratios = []
    for row in pairs:
        if row.direction == "backward":
            other = row.signature._replace(direction="forward")
            if other not in forward:
                raise InputError(f"No forward timing for {row.signature}; add one.")
            ratios.append(row.median_us / forward[other])
    if not ratios:
        raise InputError("The backward ratio needs shapes timed forward and backward.")
    middle = float(np.median(ratios))
    return middle, float(np.max(np.abs(np.array(ratios) / middle - 1)))


def h100_attention(sources: Sources, machine: Machine) -> AttentionFit:
    """Return the law of the H100's table with a benchmark's backward ratio."""
    forward = attention_csv(sources.table("h100_attention_fwd_causal_hd128.csv.gz")).rows
    pairs = attention_pair_csv(sources.table("attention_fwd_bwd_hd128.csv")).rows
    return fit_attention(forward, pairs, sm_count=machine.sm_count)


def assumed_on(fit: AttentionFit, of: Machine, machine: Machine) -> AttentionFit:
    """Return the law of another GPU, rates by peak FLOP/s, a row's cost by memory bandwidth."""
    flops = machine.peak_tflops["bf16"] / of.peak_tflops["bf16"]
    memory = machine.memory_bandwidth_gb_s / of.memory_bandwidth_gb_s
    return replace(
        fit, kind="assumed", sm_count=machine.sm_count, tflops=rounded(fit.tflops * flops),
        tile_tflops=rounded(fit.tile_tflops * flops), row_ns=rounded(fit.row_ns / memory),
        error=ASSUMED_ERROR,
    )  # fmt: skip


# A B200's rows by SimuMax, and those of inference servers ----------------------------------------


def _row(row: Any, us: float, dims: tuple[int, int] = (128, 128)) -> AttentionRow:
    """Return a table's row."""
    return AttentionRow(
        batch=row.batch, heads=row.heads, kv_heads=getattr(row, "kv_heads", row.heads), seq=row.seq,
        head_dim=dims[0], v_head_dim=dims[1] if dims[1] != dims[0] else 0,
        direction=getattr(row, "direction", "forward"), median_us=us,
    )  # fmt: skip


def b200_rows(sources: Sources, *, contiguous: bool = True) -> list[AttentionRow]:
    """Return SimuMax's timings of contiguous (or not contiguous) q, k and v."""
    rows = sources.rows("b200/attention_bf16.csv", qkv_contiguous=int(contiguous))
    return [_row(row, row.us) for row in rows]


def b200_attention(rows: Rows, sm_count: int) -> tuple[AttentionFit, float]:
    """Return the law of the kernels, and the gap (us) that was taken out of forward timings."""
    forward, backward = ([row for row in rows if row.direction == one] for one in DIRECTIONS)
    fit = partial(fit_attention, sm_count=sm_count, withheld_by=attrgetter("seq", "heads"))
    gap_us = fit(forward, rows).fixed_us
    kernels = [replace(row, median_us=row.median_us - gap_us) for row in forward]
    return replace(fit(kernels, [*kernels, *backward]), fixed_us=0.0), gap_us


def served_attention(gpu: Gpu, sources: Sources) -> AttentionFit:
    """Return an inference server's law on Blackwell; backward as a B200's over the same law."""
    rows = b200_rows(sources)
    there = fit_attention(_served("b200", sources), rows, sm_count=148)
    late = [r for r in rows if r.direction == "backward" and r.median_us > LEAST_BACKWARD_US]
    ops = [replace(row, direction="forward") for row in late]
    pairs = (replace(op, median_us=sum(there.shares_us(op.signature))) for op in ops)
    own, sm_count = _served(gpu.short, sources), gpu.machine.sm_count
    return fit_attention(own, [*pairs, *late], sm_count=sm_count)


def _served(gpu: str, sources: Sources) -> list[AttentionRow]:
    """Return the rows of SGLang: TensorRT-LLM's write the cache, too."""
    table = f"{'fp8' if gpu == 'b200' else 'blackwell'}/attention_forward.csv.gz"
    rows = sources.rows(table, gpu=gpu, kernel="sgl")
    return _long(_row(row, row.bf16_us) for row in rows if row.bf16_us > 0)


def _long(rows: Iterable[AttentionRow]) -> list[AttentionRow]:
    return [row for row in rows if row.batch * row.heads * row.seq >= LEAST_ROWS]


class Level(NamedTuple):
    """What few rows take over a law forward, and backward over forward, each with its spread."""

    times: float
    error: float
    backward_ratio: float
    backward_error: float

    @property
    def over(self) -> float:
        """What the rows take backward over the law forward."""
        return rounded(self.times * self.backward_ratio, 2)

    def of(self, law: AttentionFit, *, transfer: bool) -> AttentionFit:
        """Return the law at this level; with ``transfer`` of another GPU's rows."""
        more = TRANSFER_ERROR if transfer else 0.0
        return replace(
            law, fixed_us=rounded(law.fixed_us * self.times),
            row_ns=rounded(law.row_ns * self.times), tflops=rounded(law.tflops / self.times),
            tile_tflops=rounded(law.tile_tflops / self.times), backward_ratio=self.backward_ratio,
            error=rounded(law.error + self.error + more, 2), backward_error=self.backward_error,
        )  # fmt: skip


def level(law: AttentionFit, rows: Rows) -> Level:
    """Return the level of rows of the law's head size, timed both ways."""
    forward = [row for row in rows if row.direction == "forward"]
    over = [row.median_us / sum(law.shares_us(row.signature)) for row in forward]
    times, (ratio, spread) = median(over), _backward_ratio(rows)
    off = fmean(abs(one / times - 1) for one in over)
    return Level(times, off, rounded(ratio, 3), rounded(spread, 2))


def our_rows(sources: Sources, dims: tuple[int, int]) -> list[AttentionRow]:
    """Return our H200's rows of these heads, both ways, by the faster one of torch's libraries."""
    keys, values = dims
    return [
        AttentionRow(
            batch=row["batch"], heads=row["queries"], kv_heads=row["keys"], seq=row["seq"],
            head_dim=keys, v_head_dim=values if values != keys else 0, direction=direction,
            median_us=rounded(min(
                ns for way, ns in row["ns"].items() if way.endswith(direction)
            ) / 1e3, 5),
        ) for row in sources.ours("attention") if (row["key_size"], row["value_size"]) == dims
        for direction in DIRECTIONS
    ]  # fmt: skip


def small_heads(ours: AttentionFit, sources: Sources, *, transfer: bool = False) -> AttentionFit:
    """Return the law of heads of 64 on Hopper, derived from larger ones, at our rows' level."""
    share = SMALL / ours.head_dim
    law = replace(ours, head_dim=SMALL, row_ns=rounded(ours.row_ns * share),
                  tflops=rounded(ours.tflops * share**0.5),
                  tile_tflops=rounded(ours.tile_tflops * share**0.5))  # fmt: skip
    return level(law, our_rows(sources, (SMALL, SMALL))).of(law, transfer=transfer)


def latent_level(sources: Sources) -> Level:
    """Return the level of our H200's rows over the law of its table."""
    return level(_served_latent(OURS, sources, HOPPER_SMS), our_rows(sources, LATENT))


def latent_attention(gpu: str, sources: Sources, machine: Machine) -> AttentionFit:
    """Return the table's law forward; on Hopper at our rows' level, elsewhere backward by it."""
    there, law = latent_level(sources), _served_latent(gpu, sources, machine.sm_count)
    if gpu in HOPPER:
        return there.of(law, transfer=gpu != OURS)
    return replace(law, backward_ratio=there.over, backward_error=LATENT_BACKWARD_ERROR)


@cache
def _served_latent(gpu: str, sources: Sources, sm_count: int) -> AttentionFit:
    table = "moe" if gpu in ("h100", "h200", "b200") else "blackwell"
    rows = sources.rows(f"{table}/mla_forward_bf16.csv.gz", gpu=gpu)
    return fit_forward(_long(_row(row, row.us, LATENT) for row in rows), sm_count=sm_count)
