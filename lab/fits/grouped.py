"""Grouped GEMMs: the law of rows an expert, of inference servers' layers, and a trainer's level.

The tables time the routed experts of one rank: both grouped GEMMs, with gather, activation and sum
around them, which a byte each costs at a rate that is fitted beside the law. Of a server's searched
kernels those are left out that take longer than the same layer with more to do. What a trainer's
calls take over the law is TransformerEngine's on a B200 in BF16, and that of PyTorch's grouped
GEMMs on our H100 and H200. In other formats and on other GPUs of Blackwell it is that of a single
GEMM an expert, with which a B200's agrees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, median
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from lab.fits.common import TRANSFER_ERROR, Floats, Gpu, Sources, mape, rounded, withheld
from lab.fits.gemm import Bound, law_of, params_of, starts
from lab.fits.quantized import over_rowwise
from simulator.dtypes import MATH_BYTES
from simulator.lookup import FitKind
from simulator.lookup.experts import GroupedFit, GroupedLaw, GroupedRow, Times
from simulator.lookup.gemm import GemmTable
from simulator.lookup.gemm_law import TiledLaw
from simulator.ops import Gemm
from simulator.profile import GroupedGemms, Profile

COLUMNS: Final = {"bf16": "bf16", "fp8_block": "fp8_block", "fp8_tensor": "fp8", "nvfp4": "nvfp4"}
"""Math -> its name in the tables."""
OWN: Final = ("b200", "h100", "h200")  # GPUs that have rows of a trainer's calls
LEAST_ROWS: Final = 16
MOST_EP: Final = 8  # Beyond, most of a layer's time is of tokens that the rank does not compute
SLOWER: Final = 1.03
"""A layer that takes more times as long as one with more to do has a badly chosen kernel."""
KERNELS: Final = 6
"""Of a layer, between which its fixed time is divided: sort, gather, two GEMMs, activation, sum."""
UNGATED: Final = ("nemotron", 22)  # Models, and the top-k, whose experts have one input projection
FOLDS: Final = 5
_STARTS: Final = 3
_JITTER: Final = 0.2
_EFFORT: Final = (15, 60, 20)
"""Steps from each start, of the best one's fit, and of those with models withheld from there."""
_LINEAR_ABOVE: Final = 0.03
_HELD: Final = 1e-9  # Width of the bounds of a number that is held
_MORE: Final[tuple[Bound, ...]] = (*[(2.0, 0.1, 50.0)] * 3, (0.01, 1e-4, 10.0))
"""Start and bounds of TB/s of gather, activation and sum, and of us a group."""
ROWS: Final = (512, 1024, 2048, 4096)
EXPERTS: Final = (8, 16, 32)
SIZES: Final = ((2048, 768), (4096, 1536), (7168, 2048), (5120, 1536), (4096, 14336))
"""Hidden size and an expert's: Qwen3, DeepSeek V2 and V3, Mixtral."""
ALIKE: Final = Times(1.0, 1.0)
LAYOUTS: Final = ("forward", "dgrad", "wgrad")


class Layer(NamedTuple):
    """A rank's routed experts, forward: the experts, rows each, tokens of all ranks together."""

    groups: int
    rows: float
    hidden: int
    inter: int
    tokens: int
    us: float
    model: tuple[int, int]
    ep: int
    tp: int


class Served(NamedTuple):
    """The law of a table's layers, and its error on models that were withheld."""

    law: TiledLaw
    group_us: float
    error: float
    layers: int


class Trainer(NamedTuple):
    """A trainer's calls over the law, by layout, and how far rows are from it."""

    times: dict[str, Times]
    error: float


def layers(gpu: str, dtype: str, sources: Sources) -> list[Layer]:
    """Return the balanced layers of gated experts of a GPU's table that were searched well."""
    every: dict[tuple[int, ...], list[Layer]] = {}
    told = {"dtype": COLUMNS[dtype], "distribution": "balanced"}
    for row in sources.rows(f"moe/{gpu}_moe_forward.csv.gz", **told):
        ungated = row.model.startswith(UNGATED[0]) or row.topk == UNGATED[1]
        if row.trt_us > 0 and not ungated and row.experts % row.ep == 0:
            made = Layer(
                row.experts // row.ep, row.tokens * row.topk / row.experts, row.hidden,
                row.inter // row.tp, row.tokens, row.trt_us, (row.hidden, row.inter), row.ep,
                row.tp,
            )  # fmt: skip
            every.setdefault((row.hidden, row.inter, row.topk, row.experts), []).append(made)
    return [
        one for alike in every.values() for one in alike
        if one.rows >= LEAST_ROWS and one.ep <= MOST_EP and one.tp <= 2
        and one.us <= SLOWER * min(
            x.us for x in alike if x.ep <= one.ep and x.tp <= one.tp and x.tokens >= one.tokens
        )
    ]  # fmt: skip


class _Arrays:
    def __init__(self, found: Sequence[Layer], dtype: str, sm_count: int) -> None:
        columns = np.array([one[:6] for one in found], dtype=np.float64).T.copy()
        self.groups, self.rows, self.hidden, self.inter, self.tokens, self.us = columns
        self._bytes, self._sms = MATH_BYTES[dtype], sm_count

    def times_us(self, point: Floats) -> Floats:
        """Return the layers' times of a law and the rates beside it."""
        law, more = law_of(point[: -len(_MORE)], self._sms), np.exp(point[-len(_MORE) :])
        rows = self.groups * self.rows
        gathered = rows * self.hidden * (2 + self._bytes)
        activated = rows * self.inter * (4 + self._bytes)
        summed = 2 * self.tokens * self.hidden
        around_us = gathered / more[0] + activated / more[1] + summed / more[2]
        fixed_us: Floats = law.fixed_us + 1e-6 * around_us + more[3] * self.groups
        first_us = self._product_us(law, 2 * self.inter, self.hidden)
        return fixed_us + first_us + self._product_us(law, self.hidden, self.inter)

    def _product_us(self, law: TiledLaw, n: Floats, k: Floats) -> Floats:
        m, groups = self.rows, self.groups
        multiply_us = law.multiplied_us(m, n, k, self._sms / groups)
        multiply_us = multiply_us * law.slower(2e-9 * groups * m * n * k)
        moved_mb = 1e-6 * groups * (self._bytes * (m + n) * k + 2 * m * n)
        norm: Floats = multiply_us**law.norm + law.moved_us(moved_mb) ** law.norm
        return np.asarray(norm ** (1 / law.norm))


def served(found: Sequence[Layer], dtype: str, sm_count: int) -> Served:
    """Return the law of the layers."""
    start, *ends = starts(MATH_BYTES[dtype], sm_count, _MORE)
    start[0] = math.log(30.0)
    whole = _Arrays(found, dtype, sm_count)

    def fit(known: _Arrays, begin: Floats, steps: int) -> Floats:
        def off(point: Floats) -> Floats:
            return np.asarray(np.log(known.times_us(point) / known.us))

        inside = np.clip(begin, ends[0] + 1e-6, ends[1] - 1e-6)
        made = least_squares(
            off, inside, bounds=ends, loss="soft_l1", f_scale=_LINEAR_ABOVE, x_scale=0.1,
            max_nfev=steps,
        )  # fmt: skip
        return np.asarray(made.x, dtype=np.float64)

    def off(others: list[Layer], mine: list[Layer]) -> list[float]:
        fitted = fit(_Arrays(others, dtype, sm_count), point, _EFFORT[2])
        held = _Arrays(mine, dtype, sm_count)
        return [float(one) for one in np.abs(held.times_us(fitted) / held.us - 1)]

    jitter = np.random.default_rng(0).normal(0.0, _JITTER, (_STARTS - 1, len(start)))
    tries = [fit(whole, start + shift, _EFFORT[0]) for shift in (0.0, *jitter)]
    point = fit(whole, min(tries, key=lambda x: mape(whole.times_us(x), whole.us)), _EFFORT[1])
    errors = withheld(found, lambda one: one.model, off, FOLDS)
    law = law_of(point[: -len(_MORE)], sm_count)
    law = replace(law, fixed_us=law.fixed_us / KERNELS)
    return Served(law, float(np.exp(point[-1])) / 2, fmean(errors), len(found))


def trainer(law: GroupedLaw, rows: Sequence[GroupedRow], *, moved: float | None = None) -> Trainer:
    """Return what the rows take over the law: forward and dgrad in the mean, multiplying and moving
    alike; in wgrad, whose sums in fp32 are most of its bytes, each apart, bytes at most as fast as
    the law says, or ``moved`` times its time, where rows have no such sums."""
    mine = {one: [row for row in rows if row.layout == one] for one in LAYOUTS}
    forward, dgrad = (geometric_mean(_over(law, mine[one], ALIKE)) for one in LAYOUTS[:2])
    last = [row for row in mine["wgrad"] if row.accumulate] or mine["wgrad"]

    def off(point: Floats) -> Floats:
        times = Times(*map(float, np.exp(point)))
        return np.asarray(np.log(_over(law, last, times)), dtype=np.float64)

    least = math.log(moved or 1.0)
    bounds = ([-np.inf, least], [np.inf, least + _HELD if moved else np.inf])
    start = [math.log(forward), least + (_HELD / 2 if moved else math.log(1.0 + SPREAD))]
    flops, memory = np.exp(least_squares(off, start, bounds=bounds, loss="soft_l1").x)
    times = _by_layout((forward, forward), (dgrad, dgrad), (float(flops), float(memory)))
    apart = [abs(1 / one - 1) for x in times for one in _over(law, mine[x], times[x])]
    return Trainer(times, fmean(apart))


def _by_layout(*each: tuple[float, float]) -> dict[str, Times]:
    times = (Times(rounded(flops, 3), rounded(memory, 3)) for flops, memory in each)
    return dict(zip(LAYOUTS, times, strict=True))


def _over(law: GroupedLaw, rows: Sequence[GroupedRow], times: Times) -> list[float]:
    return [row.median_us / law.parts(row.signature, times=times).total_us for row in rows]


def level(law: GroupedLaw, single: GemmTable, dtype: str) -> float:
    """Return what a single GEMM an expert takes over the law, in the median of common shapes."""
    return median(
        groups * single.estimate(one).duration_us
        / law.parts(one._replace(groups=groups), times=ALIKE).total_us
        for rows, groups, (hidden, inter) in itertools.product(ROWS, EXPERTS, SIZES)
        for n, k in ((2 * inter, hidden), (hidden, inter))
        for one in (Gemm(rows, n, k, dtype=dtype),)
    )  # fmt: skip


def fit_of(one: Served, dtype: str, found: Sequence[Layer]) -> GroupedFit:
    """Return the law as a fit whose calls take as long as the law says."""
    sizes: dict[str, list[float]] = {
        "groups": [layer.groups for layer in found], "rows": [float(x.rows) for x in found],
        "n": [size for layer in found for size in (2 * layer.inter, layer.hidden)],
        "k": [size for layer in found for size in (layer.inter, layer.hidden)],
    }  # fmt: skip
    ranges = {name: (math.floor(min(each)), math.ceil(max(each))) for name, each in sizes.items()}
    return GroupedFit(
        dtype=dtype, params=params_of(one.law), group_us=rounded(one.group_us),
        times=dict.fromkeys(LAYOUTS, ALIKE),
        withheld_error=rounded(one.error, 3), error=rounded(one.error, 3), ranges=ranges,
    )  # fmt: skip


def grouped_gemms(profile: Profile, sources: Sources, there: Trainer, words: Any) -> GroupedGemms:
    """Return the table's laws at a trainer's level; ``there``: that in BF16 of its generation."""
    gpu, machine = profile.name.partition("-")[0], profile.machine
    single, fits = profile.gemm_table(), []
    for dtype in filter(machine.peak_tflops.__contains__, COLUMNS):
        made = _law(gpu, dtype, machine.sm_count, sources)
        law = GroupedLaw(made, machine.sm_count)
        if dtype == "bf16" and gpu in OWN:
            fits.append(_at(made, there, "fitted"))
        elif gpu in OWN and not machine.fp8_any_layout:
            fits.append(_at(made, _quantized(law, profile.name, there, sources), "fitted"))
        else:
            times = _carried(there, level(law, single, dtype))
            fits.append(_at(made, Trainer(times, there.error), "assumed"))
    tensor = next((one for one in fits if one.dtype == "fp8_tensor"), None)
    if tensor and "mxfp8" in machine.peak_tflops:
        fits.append(replace(tensor, dtype="mxfp8"))
    rows = _rows_of(profile.name, sources) if gpu in OWN else ()
    by_dtype = tuple(sorted(fits, key=lambda fit: fit.dtype))
    return GroupedGemms(rows=rows, fits=by_dtype, provenance=words)


def _law(gpu: str, dtype: str, sm_count: int, sources: Sources) -> GroupedFit:
    found = layers(gpu, dtype, sources)
    return fit_of(served(found, dtype, sm_count), dtype, found)


def _quantized(law: GroupedLaw, gpu: str, there: Trainer, sources: Sources) -> Trainer:
    """Return a trainer's FP8 level on Hopper by our H200's rows; bytes in wgrad as ``there``."""
    dtype, moved = law.fit.dtype, there.times["wgrad"].memory
    found = trainer(law, quantized_rows(dtype, sources), moved=moved)
    apart = fmean(one.error(one.times) for one in over_rowwise(dtype, sources))
    transfer = 0.0 if gpu == QUANTIZED_ON else TRANSFER_ERROR
    return found._replace(error=found.error + apart + transfer)


def _rows_of(gpu: str, sources: Sources) -> tuple[GroupedRow, ...]:
    return trained_rows(sources) if gpu.startswith("b200") else our_rows(gpu, sources)


def _at(fit: GroupedFit, level: Trainer, kind: FitKind) -> GroupedFit:
    error = rounded(math.hypot(fit.withheld_error, level.error), 2)
    return replace(fit, times=level.times, kind=kind, error=error)


def _carried(there: Trainer, forward: float) -> dict[str, Times]:
    """Return another GPU's times: in proportion, but for what moves bytes in wgrad."""
    first, dgrad, wgrad = (there.times[one] for one in LAYOUTS)
    more = forward / first.flops
    backward = (dgrad.flops * more, dgrad.memory * more), (wgrad.flops * more, wgrad.memory)
    return _by_layout((forward, forward), *backward)


def trainer_on(gpu: Gpu, sources: Sources) -> Trainer:
    """Return a trainer's level in BF16 on a GPU that has a profile and rows of its own."""
    law = _law(gpu.short, "bf16", gpu.machine.sm_count, sources)
    return trainer(GroupedLaw(law, gpu.machine.sm_count), _rows_of(gpu.name, sources))


# What trainers' grouped GEMMs took ----------------------------------------------------------------

SPREAD: Final = 0.05  # Of a row that was timed once
QUANTIZED_ON: Final = "h200-sxm"  # The GPU whose grouped GEMMs in FP8 we have


def _linear(groups: int, rows: int, out: int, wide: int) -> dict[str, Gemm]:
    return {
        "forward": Gemm(rows, out, wide, groups=groups),
        "dgrad": Gemm(rows, wide, out, "dgrad", groups=groups),
        "wgrad": Gemm(out, wide, rows, "wgrad", groups=groups),
    }


def trained_rows(sources: Sources) -> tuple[GroupedRow, ...]:
    """Return TransformerEngine's rows on a B200, sorted. Weight gradients were timed twice: those
    that add to fp32 move 4 bytes an element more, and with few rows an expert they take longer by
    just that. The longer one of a shape is taken for that, and a single one, too."""
    timed: dict[Gemm, list[float]] = {}
    for row in sources.rows("moe/b200_grouped_gemm_bf16.csv"):
        layout = "forward" if row.stage == "fwd" else row.stage
        timed.setdefault(_linear(row.groups, row.m, row.n, row.k)[layout], []).append(row.us)
    found = []
    for gemm, times in timed.items():
        parts: dict[bool, list[float]] = {False: times}
        if gemm.layout == "wgrad":
            parts = {True: [max(times)], False: [min(times)] if len(times) > 1 else []}
        for adds, mine in parts.items():
            if mine:
                us, apart_us = fmean(mine), max(mine) - min(mine)
                found.append(_row(gemm, adds, rounded(us, 5), max(SPREAD * us, apart_us), 2))
    return tuple(sorted(found, key=lambda row: row.signature))


def _row(gemm: Gemm, adds: bool, us: float, apart_us: float, samples: int) -> GroupedRow:
    sizes, how = (gemm.groups, gemm.m, gemm.n, gemm.k), (gemm.layout, gemm.dtype)
    return GroupedRow(*sizes, *how, adds, us, rounded(apart_us), samples)


def our_rows(gpu: str, sources: Sources) -> tuple[GroupedRow, ...]:
    """Return our rows of experts with as many rows each; their sums overwrite in BF16."""
    records = sources.ours("grouped", gpu)
    cells = (cell for one in records for cell in one.get("cells", ()) if cell["even"])
    return _alike(cells, "bf16", {})


def quantized_rows(dtype: str, sources: Sources) -> tuple[GroupedRow, ...]:
    """Return the same of our H200 in FP8, scaled as ``dtype`` is."""
    records = sources.ours("grouped", QUANTIZED_ON)
    cells = (cell for one in records for cell in one.get("quantized", ()))
    return _alike(cells, dtype, {one.layout: one.times for one in over_rowwise(dtype, sources)})


def _alike(cells: Iterable[Any], dtype: str, slower: dict[Any, float]) -> tuple[GroupedRow, ...]:
    found = []
    for cell in cells:
        sizes = len(cell["rows"]), cell["rows"][0], cell["out"], cell["in"]
        for layout, one in _linear(*sizes).items():
            if layout in cell["ns"]:
                us = rounded(slower.get(layout, 1.0) * cell["ns"][layout] / 1e3)
                found.append(_row(one._replace(dtype=dtype), False, us, 0.0, 1))
    return tuple(sorted(found, key=lambda row: row.signature))
