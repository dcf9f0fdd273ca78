"""GEMMs: the tiled law, fitted to measured rows, and its error on withheld (n, k) pairs. Least
squares on log(time) with a soft L1 loss, so that a few odd kernels do not change the law. Samples
are seeded and numbers rounded: the same rows give the same fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from domino_tune.measure.importers.tables import gemm_csv
from lab import told
from lab.fits.common import TRANSFER_ERROR, Floats, Gpu, Sources, rounded
from simulator.errors import InputError
from simulator.lookup.gemm import GemmFit, GemmRow
from simulator.lookup.gemm_law import ACCUMULATE_BYTES, TILE_CLASSES, TiledLaw, make_law
from simulator.lookup.gemm_table import GemmCurves, StoredCurves, curves_of
from simulator.ops import Gemm
from simulator.profile import GemmSection, Machine, Profile

Shape = tuple[int, int, int, float]
Rows = Sequence[Shape]
Mask = NDArray[np.bool_]
Bound = Sequence[float]  # Start, least and most
Started = tuple[Floats, Floats, Floats]

MIN_ROWS: Final = 200
_DIGITS: Final = 6
_STARTS: Final = 8
_JITTER: Final = 0.4
_TRIED: Final = (15, 1e-3)
_OTHER_WEIGHT: Final = 0.3  # Of a row that is none of the training shapes, where some are drawn
_LINEAR_ABOVE: Final = 0.03  # Larger residuals count linearly: published rows differ by run
_SCALARS: Final[dict[str, Bound]] = told(__file__)["scalars"]
_TILES: Final[dict[str, Any]] = told(__file__)["tiles"]
_ABOVE_0: Final = [least > 0 for _, least, _ in _SCALARS.values()]
_LOGARITHMIC: Final[Mask] = np.array(_ABOVE_0 + [True] * 2 * TILE_CLASSES)
_HOPPERS_SMS: Final = 132
_USUAL_TFLOPS: Final = (1600.0, 3200.0)  # Of a byte-wide GEMM on Hopper and on Blackwell
_BACKWARD: Final = (("dgrad", False), ("wgrad", False), ("wgrad", True))


def gemm_section(gpu: Gpu, sources: Sources, other: Profile | None = None) -> GemmSection:
    """Return the table's law of forward GEMMs; of backward by another GPU's ratios."""
    rows = gemm_csv(sources.table(gpu.told["gemm"]["table"])).rows
    machine = gpu.machine
    fit = fit_gemm([(row.m, row.n, row.k, row.median_us) for row in rows], machine.sm_count)
    backward = _backward_fits(other, fit, machine) if other else ()
    fits = sorted((fit, *backward), key=attrgetter("layout", "dtype", "accumulate"))
    words = gpu.words("gemm", fit.error, rows=len(rows), transfer=TRANSFER_ERROR)
    return GemmSection(fits=tuple(fits), provenance=words)


def layout_fit(rows: Sequence[GemmRow], layout: str, sm_count: int) -> GemmFit:
    """Return the tiled law of a layout's rows. Most weight gradients accumulate."""
    accumulate = layout == "wgrad"
    shapes = [
        (row.m, row.n, row.k, row.median_us) for row in rows
        if (row.layout, row.accumulate) == (layout, accumulate)
    ]  # fmt: skip
    return fit_gemm(shapes, sm_count, layout=layout, accumulate=accumulate)


def _backward_fits(other: Profile, forward: GemmFit, machine: Machine) -> list[GemmFit]:
    """Return laws of dgrad and wgrad on ``machine``, by layout and way to write C. A row of the
    other GPU gives one timing: the forward law of the shape, times what the row takes over its
    GPU's forward GEMM of that shape, plus what fp32 sums cost more behind slower memory."""
    law, table = make_law(forward.law, forward.params, machine.sm_count), other.gemm_table()
    slower_us = 1 / (1e3 * machine.memory_bandwidth_gb_s)
    slower_us -= 1 / (1e3 * other.machine.memory_bandwidth_gb_s)
    fits = []
    for layout, accumulate in _BACKWARD:
        timings = []
        for row in other.section("gemm").rows:
            if (row.layout, row.accumulate) == (layout, accumulate):
                ratio = row.median_us / table.estimate(Gemm(row.m, row.n, row.k)).duration_us
                us = law.parts(row.m, row.n, row.k).total_us * ratio
                us += ACCUMULATE_BYTES * row.m * row.n * slower_us if accumulate else 0.0
                timings.append((row.m, row.n, row.k, us))
        fit = fit_gemm(timings, machine.sm_count, layout=layout, accumulate=accumulate)
        fits.append(replace(fit, error=rounded(fit.error + TRANSFER_ERROR, 3)))
    return fits


def fit_gemm(
    rows: Rows, sm_count: int, *, layout: str = "forward", dtype: str = "bf16",
    accumulate: bool = False,
) -> GemmFit:  # fmt: skip
    """Fit rows of (m, n, k, us). Raise InputError below 200 rows: the law has 21 numbers."""
    made = _whole_fit(rows, sm_count, layout, dtype, accumulate)
    return replace(made, error=rounded(heldout_error(rows, sm_count), 3))


def fit_curves(rows: Rows, sm_count: int, *, dtype: str = "bf16") -> GemmFit:
    """Return the law of forward rows with their curves; ``error`` is that of curves left out."""
    fit = _whole_fit(rows, sm_count, "forward", dtype, False)
    law = make_law(fit.law, fit.params, sm_count)
    m, n, k, us = _table(rows, MIN_ROWS).T
    curves = curves_of(m, n, k, us, law)
    return replace(fit, curves=curves, error=rounded(StoredCurves(curves, law).leave_out_error, 3))


def _whole_fit(rows: Rows, sm_count: int, layout: str, dtype: str, adds: bool) -> GemmFit:
    table = _table(rows, MIN_ROWS)
    ranges = {
        name: (int(table[:, column].min()), int(table[:, column].max()))
        for column, name in enumerate("mnk")
    }
    return GemmFit(
        law="tiled", layout=layout, dtype=dtype, accumulate=adds,
        params=params_of(_fit(table, sm_count)), error=0.0, ranges=ranges,
    )  # fmt: skip


def heldout_error(rows: Rows, sm_count: int) -> float:
    """Return the error on a fifth of the (n, k) pairs, withheld: of training shapes, if any."""
    table = _table(rows, MIN_ROWS)
    out = _folds(table, 5)[0]
    law, tested = _fit(table[~out], sm_count), table[out]
    error = np.abs(law.times_us(*tested.T[:3]) / tested[:, 3] - 1)
    chosen = _is_training(tested)
    return float(error[chosen].mean() if chosen.any() else error.mean())


def leave_out_error(rows: Rows, *, fit: GemmFit, sm_count: int) -> float:
    """Return a dense table's interpolation error on (n, k) pairs withheld in ten folds, around the
    law of ``fit``, of about 20,000 rows at most."""
    table, trend = _table(rows, 2), make_law(fit.law, fit.params, sm_count)
    stride = max(1, -(-len(table) // 20_000))
    errors: list[float] = []
    for out in _folds(table, 10):
        m, n, k, us = table[~out].T
        curves = GemmCurves(m, n, k, us, trend)
        for *shape, measured_us in table[out][::stride].tolist():
            errors.append(abs(curves.predict(*map(int, shape))[0] / measured_us - 1))
    return float(np.mean(errors))


def _fit(table: Floats, sm_count: int) -> TiledLaw:
    m, n, k, us = table.T
    rate = float(np.quantile(2e-6 * m * n * k / us, 0.99)) / sm_count
    best_mb_us = float(np.quantile(2e-6 * (m * k + n * k + m * n) / us, 0.8))
    start, low, high = _started(rate, (), mb_us=min(max(best_mb_us, 0.02), 99.0))
    tiles = np.arange(len(start)) >= len(_SCALARS)
    jitter = np.random.default_rng(0).normal(0.0, _JITTER, (_STARTS, len(start))) * tiles
    few, many = _sample(table, 1500), _sample(table, 6000)
    tries = [
        _descend(few, sm_count, np.clip(start + shift, low, high), (low, high), _TRIED)
        for shift in jitter
    ]
    best = min(tries, key=lambda attempt: attempt[0])
    return law_of(_descend(many, sm_count, best[1], (low, high), (60, 1e-5))[1], sm_count)


def _descend(
    table: Floats, sm_count: int, start: Floats, bounds: Any, effort: tuple[int, float]
) -> tuple[float, Floats]:  # fmt: skip
    """Return (cost, point) of least squares from ``start``; ``effort`` is (steps, tolerance)."""
    shapes, target = table.T[:3], np.log(table[:, 3])

    def residual(point: Floats) -> Floats:
        result: Floats = np.log(law_of(point, sm_count).times_us(*shapes)) - target
        return result

    found = least_squares(
        residual, start, bounds=bounds, loss="soft_l1", f_scale=_LINEAR_ABOVE, x_scale=0.1,
        max_nfev=effort[0], ftol=effort[1],
    )  # fmt: skip
    return float(found.cost), found.x


def starts(element_bytes: float, sm_count: int, more: Sequence[Bound]) -> Started:
    """Return start and bounds of a law beside ``more`` numbers, from a GPU's usual rates."""
    return _started(_USUAL_TFLOPS[sm_count > _HOPPERS_SMS] / (element_bytes * sm_count), more)


def _started(rate: float, more: Sequence[Bound], **known: float) -> Started:
    scalars = ((known.get(name, one[0]), *one[1:]) for name, one in _SCALARS.items())
    rates = ((rate * x, rate / _TILES["range"], rate * _TILES["range"]) for x in _TILES["rates"])
    columns = np.array([*scalars, *rates, *[_TILES["us"]] * TILE_CLASSES, *more])
    logs = np.concatenate([_LOGARITHMIC, np.ones(len(more), np.bool_)])
    columns[logs] = np.log(columns[logs])
    return columns[:, 0], columns[:, 1], columns[:, 2]


def law_of(point: Floats, sm_count: int) -> TiledLaw:
    """Return the law of a fit's point."""
    values = np.where(_LOGARITHMIC, np.exp(point), point).tolist()
    scalars, tiles = values[: len(_SCALARS)], values[len(_SCALARS) :]
    return TiledLaw(
        sm_count=sm_count, tile_mflop_us=tuple(tiles[:TILE_CLASSES]),
        tile_us=tuple(tiles[TILE_CLASSES:]), **dict(zip(_SCALARS, scalars, strict=True)),
    )  # fmt: skip


def params_of(law: TiledLaw) -> dict[str, Any]:
    """Return the law's numbers as a profile holds them."""
    scalars = {name: rounded(getattr(law, name), _DIGITS) for name in _SCALARS}
    tiles = {"tile_mflop_us": law.tile_mflop_us, "tile_us": law.tile_us}
    many = {name: tuple(rounded(x, _DIGITS) for x in each) for name, each in tiles.items()}
    return scalars | many


def _table(rows: Rows, least: int) -> Floats:
    """Return rows sorted by (n, k, m), so that their first order has no effect."""
    table = np.array(rows, dtype=float).reshape(-1, 4)
    if len(table) < least or not (np.isfinite(table).all() and (table > 0).all()):
        raise InputError(
            f"A GEMM fit needs at least {least} rows of m, n, k, us, all finite and > 0; got "
            f"{len(table)} rows. Measure or import more shapes."
        )
    return table[np.lexsort((table[:, 0], table[:, 2], table[:, 1]))]


def _folds(table: Floats, folds: int) -> list[Mask]:
    """Return row masks of whole (n, k) pairs, each in one fold, by a seeded shuffle."""
    pairs, owner = np.unique(table[:, 1:3], axis=0, return_inverse=True)
    if len(pairs) < 2:
        raise InputError("Leaving pairs out needs at least two different (n, k); got one.")
    fold_of = np.random.default_rng(0).permutation(len(pairs)) % folds
    masks = [fold_of[owner.reshape(-1)] == fold for fold in range(folds)]
    return [mask for mask in masks if mask.any()]


def _sample(table: Floats, count: int) -> Floats:
    if len(table) <= count:
        return table
    weight, rng = np.where(_is_training(table), 1.0, _OTHER_WEIGHT), np.random.default_rng(0)
    return table[np.sort(rng.choice(len(table), count, replace=False, p=weight / weight.sum()))]


def _is_training(table: Floats) -> Mask:
    """Return a mask of multiples of 8 tokens, at least 256, with layers of at least 512 × 512."""
    m, n, k, _ = table.T
    mask: Mask = (m >= 256) & (m % 8 == 0) & (n >= 512) & (k >= 512)
    return mask
