"""Contention: from iterations of a GEMM and an all-reduce, or from ops beside collectives. An
iteration is two jobs that start together and slow each other until one ends. It also has a constant
time that belongs to the experiment (launches, events), not to the law. Our H200's records have ops
that run while emulated collectives do, by family, and what these wait for memory beside ops that
stream."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from domino_tune.measure.contention_law import SHARED_LINKS
from domino_tune.measure.importers.imported import text_of
from domino_tune.measure.importers.tables import count, microseconds
from domino_tune.measure.importers.tables import records as lines
from lab.fits.common import ASSUMED_ERROR, Bounds, Cell, Floats, robust, rounded, withheld
from simulator.contention import ComputeContention, ContentionFit, MemoryQueue, Slowdown
from simulator.errors import InputError
from simulator.lookup import FitKind

Row = Mapping[str, Any]
ASSUMED_SLOWDOWN: Final = 0.15  # Expected error of a slowdown that nobody timed on that GPU
POINTWISE_SLOWDOWN: Final = ComputeContention(
    family="pointwise", sms_per_cta=0.0, factor=1.15, kind="assumed", error=ASSUMED_SLOWDOWN
)
"""A collective takes about an eighth of the memory bandwidth: 16 CTAs that read and write at the
rate of NVLink (0.45 TB/s of 3.35 TB/s)."""
OTHER_LINKS: Final = Slowdown(factor=1.1, kind="assumed", error=0.1)
"""Two collectives on other links share the memory only: less than what a collective takes of it."""
COLLECTIVE_FACTOR: Final = 1.144
"""Slowdown of a collective beside compute, measured on A100. Assumed: on Hopper its CTAs get in
when those of a GEMM leave, which this factor does not tell; see ``collective_slowdown``."""
NVLS_CTAS: Final = 16
FULL_RATE: Final = 40.0
"""Bytes/ns that a CTA moves through HBM in the cells of the law; in others it moves none."""
FAMILIES: Final = ("gemm", "attention", "pointwise")
FILLING: Final = ("gemm", "attention")
"""Families beside which a collective lasted as long as the ops that it met: it got in when they
ended, or in a GEMM's last wave. Beside pointwise ops it starts at once, and waits for memory."""
STREAMS: Final[dict[str, int]] = {"layernorm": 2, "gelu": 2, "add": 3}
"""Tensors that a pointwise op of the records reads or writes."""
_ELEMENT_BYTES: Final = 2
_LINEAR_ABOVE: Final = 0.02
_NOTHING: Final = 1e-9  # A parameter at its lower bound comes back as 1e-20


def fit_withheld(
    cells: Sequence[Cell], key: Callable[[Cell], Any],
    shares: Callable[[Floats, Sequence[Cell], Sequence[Cell]], Floats],
    start: tuple[float, ...], bounds: Bounds, *, scaled: bool = False,
) -> tuple[Floats, float]:  # fmt: skip
    """Return the parameters of least error, and the MAPE of each key's cells by the others' law.
    ``shares`` returns what a law of ``known`` cells with these parameters predicts of ``asked``
    cells, over what was measured. Raise InputError for fewer than two keys."""

    def solve(some: Sequence[Cell]) -> Floats:
        how: dict[str, Any] = {"linear_above": _LINEAR_ABOVE, "scaled": scaled}
        found = robust(lambda p: np.log(shares(p, some, some)), start, bounds, **how)
        return np.where(found < _NOTHING, 0.0, found)

    def off(others: list[Cell], mine: list[Cell]) -> list[float]:
        return list(map(float, np.abs(shares(solve(others), others, mine) - 1.0)))

    return solve(cells), rounded(float(np.mean(withheld(cells, key, off))), 3)


_OVERLAP_START: Final = (1.85, 1.11, 1.14, 50.0)
"""SMs per CTA, compute factor, collective factor, constant µs."""
_OVERLAP_BOUNDS: Final = ((0.0, 1.0, 1.0, 0.0), (3.0, 2.0, 2.0, 200.0))


class Overlap(NamedTuple):
    """One cell: a GEMM and a collective, each alone and both together, in µs."""

    shape: tuple[int, int, int]
    ctas: int
    gemm_us: float
    comm_us: float
    together_us: float


@dataclass(frozen=True, kw_only=True)
class OverlapFit:
    """The law's numbers, the experiment's constant, and both errors (MAPE)."""

    sms_per_cta: float
    compute_factor: float
    collective_factor: float
    constant_us: float
    error: float
    leave_shape_out_error: float


def read_overlap(data: bytes) -> tuple[Overlap, ...]:
    """Read cells of ``m,n,k,gemm_only,c1 … c32`` (ms); the header has ``comm_only by CTA``."""
    head = re.search(r"comm_only by CTA:((?: *\d+:[\d.]+)+)", text_of(data))
    if head is None:
        raise InputError("The overlap table's header does not give 'comm_only by CTA: 1:… 2:…'.")
    alone = {int(c): 1e3 * float(ms) for c, ms in re.findall(r"(\d+):([\d.]+)", head[1])}
    return tuple(
        Overlap(
            (count(i, row, "m"), count(i, row, "n"), count(i, row, "k")), ctas,
            1e3 * microseconds(i, row, "gemm_only"), comm_us,
            1e3 * microseconds(i, row, f"c{ctas}"),
        ) for i, row in lines(data, ("m", "n", "k", "gemm_only")) for ctas, comm_us in alone.items()
        if row.get(f"c{ctas}", "").strip()
    )  # fmt: skip


def fit_overlap(cells: Sequence[Overlap], *, sm_count: int) -> OverlapFit:
    """Fit the law to all cells; ``leave_shape_out_error`` predicts each shape from the others."""

    def shares(p: Floats, _: Sequence[Overlap], asked: Sequence[Overlap]) -> Floats:
        together = np.array([cell.together_us for cell in asked])
        return np.asarray(predict(p, asked, sm_count) / together)

    how = attrgetter("shape"), shares, _OVERLAP_START, _OVERLAP_BOUNDS
    found, left_out = fit_withheld(cells, *how, scaled=True)
    sms_per_cta, compute, collective, constant = (rounded(float(p)) for p in found)
    error = rounded(float(np.mean(np.abs(shares(found, cells, cells) - 1.0))), 3)
    return OverlapFit(
        sms_per_cta=sms_per_cta, compute_factor=compute, collective_factor=collective,
        constant_us=constant, leave_shape_out_error=left_out, error=error,
    )  # fmt: skip


def predict(parameters: Floats, cells: Sequence[Overlap], sm_count: int) -> Floats:
    """Return the µs of each iteration: both slowed until one ends, the rest at full speed."""
    per_cta, compute, collective, constant = parameters
    ctas = np.array([cell.ctas for cell in cells], dtype=np.float64)
    gemm = np.array([cell.gemm_us for cell in cells])
    comm = np.array([cell.comm_us for cell in cells])
    slow_gemm = compute * sm_count / (sm_count - per_cta * ctas)
    gemm_end, comm_end = gemm * slow_gemm, comm * collective
    gemm_first = gemm_end + comm - gemm_end / collective
    comm_first = comm_end + gemm - comm_end / slow_gemm
    return np.asarray(np.where(gemm_end < comm_end, gemm_first, comm_first) + constant)


def overlap_law(
    fit: OverlapFit, sm_count: int, ctas: int, kind: FitKind, error: float
) -> ContentionFit:
    """Return the law of GEMMs; assumed: attention loses SMs likewise, pointwise ops bandwidth."""
    gemm = ComputeContention(
        family="gemm", sms_per_cta=fit.sms_per_cta, factor=fit.compute_factor, fills=True,
        kind=kind, error=error,
    )  # fmt: skip
    less_sure = max(error, ASSUMED_SLOWDOWN)
    attention = replace(gemm, family="attention", kind="assumed", error=less_sure)
    return ContentionFit(
        sm_count=sm_count, default_ctas=ctas, compute=(gemm, attention, POINTWISE_SLOWDOWN),
        collective=Slowdown(factor=fit.collective_factor, kind=kind, error=error),
        same_links=SHARED_LINKS, other_links=OTHER_LINKS,
    )  # fmt: skip


CASE: Final = attrgetter("case")


class Beside(NamedTuple):
    """One cell: an op of ``case`` that takes ``alone_us`` alone, and ``slowdown`` times as long
    while collectives of ``ctas`` CTAs follow each other. They are beside an op for ``stay_us`` of
    it; ops that let none in before they end meet one each."""

    family: str
    case: str
    ctas: int
    alone_us: float
    slowdown: float
    stay_us: float = math.inf

    def by(self, slowdown: float) -> float:
        """Return how many times as long the op takes that is slowed so while it is not alone."""
        if self.alone_us * slowdown <= self.stay_us:
            return slowdown
        return 1 + self.stay_us * (1 - 1 / slowdown) / self.alone_us


def fit_beside(cells: Sequence[Beside], *, sm_count: int) -> ComputeContention:
    """Fit a family's law; ``error``: MAPE of withheld cases. Raise InputError for one case."""
    family = cells[0].family

    def law_of(p: Sequence[float], error: float = 0.0) -> ComputeContention:
        return ComputeContention(family=family, sms_per_cta=p[0], factor=p[1], error=error)

    def shares(p: Floats, _: Sequence[Beside], asked: Sequence[Beside]) -> Floats:
        law = law_of(p.tolist())
        predicted = np.array([one.by(law.slowdown(one.ctas, sm_count)) for one in asked])
        return np.asarray(predicted / np.array([one.slowdown for one in asked]))

    found, left_out = fit_withheld(cells, CASE, shares, (0.5, 1.0), ((0.0, 1.0), (3.0, 2.0)))
    return law_of([rounded(float(value)) for value in found], left_out)


class Streamed(NamedTuple):
    """One cell: a collective's slowdown beside an op that moves ``gb_s`` alone."""

    case: str
    ctas: int
    gb_s: float
    slowdown: float


def fit_memory(cells: Sequence[Streamed], attained_gb_s: float) -> tuple[MemoryQueue, float]:
    """Fit the law to all cells, its error of withheld cases; return it and the factor that
    collectives have beside any op. Raise InputError for fewer than two cases."""

    def law_of(p: Sequence[float], known: Sequence[Streamed]) -> MemoryQueue:
        busiest = max(cell.gb_s for cell in known) / attained_gb_s
        return MemoryQueue(
            attained_gb_s=attained_gb_s, busiest=busiest, wait=p[1], by_cta=p[2], error=0.0
        )

    def shares(p: Floats, known: Sequence[Streamed], asked: Sequence[Streamed]) -> Floats:
        law = law_of(p.tolist(), known)
        waits = [float(p[0]) * law.slowdown(cell.gb_s, cell.ctas) for cell in asked]
        return np.asarray(np.array(waits) / np.array([cell.slowdown for cell in asked]))

    start, bounds = (1.02, 0.02, 0.04), ((1.0, 0.0, 0.0), (1.2, 5.0, 1.0))
    found, left_out = fit_withheld(cells, CASE, shares, start, bounds)
    law = law_of([rounded(float(value), 3) for value in found], cells)
    attained, busiest = rounded(attained_gb_s, 4), rounded(law.busiest, 3)
    law = replace(law, attained_gb_s=attained, busiest=busiest, error=left_out)
    return law, rounded(float(found[0]))


def full_cells(rows: Iterable[Row], rate: float = FULL_RATE) -> Iterator[tuple[Row, Row]]:
    """Yield (op, cell) where the collective was first, had priority and moved ``rate`` by CTA."""
    for row in rows:
        for cell in row["cells"]:
            if cell["rate"] == rate and cell["collective_first"] and cell["priority"] < 0:
                yield row, cell


def beside_cells(rows: Iterable[Row], rate: float = FULL_RATE) -> list[Beside]:
    """Return those cells, of ops beside collectives."""
    return [
        Beside(
            row["family"], row["case"], cell["ctas"], row["alone_again_ns"] / 1000,
            cell["op_mean_ns"] / row["alone_again_ns"],
            cell["collective_alone_ns"] / 1000 * cell["collectives"] / cell["ops"]
            if row["family"] in FILLING else math.inf,
        ) for row, cell in full_cells(rows, rate)
    ]  # fmt: skip


def streamed_cells(rows: Iterable[Row]) -> list[Streamed]:
    """Return the cells of collectives that move bytes beside pointwise ops."""
    return [
        Streamed(
            row["case"], cell["ctas"], gb_s_of(row),
            cell["collective_ns"] / cell["collective_alone_ns"],
        ) for row, cell in full_cells(rows) if row["family"] not in FILLING
    ]  # fmt: skip


def gb_s_of(row: Row) -> int:
    """Return what a pointwise op of the records moves through memory alone."""
    moved: float = math.prod(row["shape"]) * _ELEMENT_BYTES * STREAMS[row["name"]]
    return round(moved / float(row["alone_again_ns"]))


def collective_slowdown(rows: Iterable[Row], memory: MemoryQueue | None = None) -> Slowdown:
    """Return A100's factor of NCCL's collectives; ``error``: beside what ``memory`` explains."""
    errors = [
        abs(COLLECTIVE_FACTOR * waits / cell.slowdown - 1) for cell in streamed_cells(rows)
        for waits in (memory.slowdown(cell.gb_s, cell.ctas) if memory else 1.0,)
    ]  # fmt: skip
    error = rounded(statistics.fmean(errors), 2)
    return Slowdown(factor=COLLECTIVE_FACTOR, kind="assumed", error=error)


def beside_law(rows: Sequence[Row], *, sm_count: int, attained_gb_s: float) -> ContentionFit:
    """Return the law fitted to records of a GPU whose memory gives at most ``attained_gb_s``."""
    (memory, _), cells = fit_memory(streamed_cells(rows), attained_gb_s), beside_cells(rows)
    by_family = ([cell for cell in cells if cell.family == family] for family in FAMILIES)
    laws = (fit_beside(some, sm_count=sm_count) for some in by_family)
    return ContentionFit(
        sm_count=sm_count, default_ctas=NVLS_CTAS, memory=memory,
        compute=tuple(replace(law, fills=law.family in FILLING) for law in laws),
        collective=collective_slowdown(rows, memory), same_links=SHARED_LINKS,
        other_links=OTHER_LINKS,
    )  # fmt: skip


def assumed_law(law: ContentionFit, *, sm_count: int, attained_gb_s: float) -> ContentionFit:
    """Return the law as one of a GPU that was not timed, and what its memory gives."""
    unsure: dict[str, Any] = {"kind": "assumed", "error": ASSUMED_ERROR}
    queue = law.memory and replace(law.memory, attained_gb_s=rounded(attained_gb_s), **unsure)
    compute = tuple(replace(one, **unsure) for one in law.compute)
    return replace(law, sm_count=sm_count, compute=compute, memory=queue)
