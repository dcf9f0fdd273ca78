"""The law of contention from our H200: ops beside emulated collectives, and these beside ops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.contention_law import SHARED_LINKS
from lab.fits.beside import Beside, BesideFit, fit_beside
from lab.fits.common import records, rounded
from lab.fits.memory_queue import Streamed, fit_memory
from lab.fits.parts import OTHER_LINKS
from simulator.contention import ContentionFit, Slowdown
from simulator.memory_queue import MemoryQueue
from simulator.profile import ContentionSection
from simulator.provenance import Provenance

SOURCE: Final = "scripts/gpu-profile on one H200: measurements/h200-sxm"
SM_COUNT: Final = 132
FULL_RATE: Final = 40.0
"""Bytes/ns that a CTA moves through HBM in the cells of the law; in others it moves none."""
NVLS_CTAS: Final = 16
COLLECTIVE_FACTOR: Final = 1.144
"""Slowdown of a collective beside compute, measured on A100. Assumed: on Hopper its CTAs get in
when those of a GEMM leave, which this factor does not tell; see ``collective_slowdown``."""
FILLING: Final = ("gemm", "attention")
"""Families beside which a collective lasted as long as the ops that it met: it got in when they
ended, or in a GEMM's last wave. Beside pointwise ops it starts at once, and waits for memory."""
STREAMS: Final[dict[str, int]] = {"layernorm": 2, "gelu": 2, "add": 3}
"""Tensors that a pointwise op of the records reads or writes."""
_ELEMENT_BYTES: Final = 2


def contention_records(measurements: Path) -> list[dict[str, Any]]:
    """Return the records of ops beside emulated collectives."""
    return records(measurements / "contention.jsonl.gz")


def beside_cells(rows: Iterable[Mapping[str, Any]], rate: float = FULL_RATE) -> list[Beside]:
    """Return the cells whose collective was first, had the higher priority and moved ``rate``."""
    return [
        Beside(
            family=row["family"], case=row["case"], ctas=cell["ctas"],
            alone_us=row["alone_again_ns"] / 1000,
            slowdown=cell["op_mean_ns"] / row["alone_again_ns"],
        )
        for row, cell in full_cells(rows, rate)
    ]  # fmt: skip


def full_cells(
    rows: Iterable[Mapping[str, Any]], rate: float = FULL_RATE
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (op, cell) of the cells whose collective was first, had the higher priority and moved
    ``rate`` bytes/ns by CTA."""
    for row in rows:
        for cell in row["cells"]:
            if cell["rate"] == rate and cell["collective_first"] and cell["priority"] < 0:
                yield row, cell


def streamed_cells(rows: Iterable[Mapping[str, Any]]) -> list[Streamed]:
    """Return the cells of collectives that move bytes beside pointwise ops."""
    return [
        Streamed(
            row["case"], cell["ctas"], gb_s_of(row),
            cell["collective_ns"] / cell["collective_alone_ns"],
        )
        for row, cell in full_cells(rows)
        if row["family"] not in FILLING
    ]  # fmt: skip


def gb_s_of(row: Mapping[str, Any]) -> int:
    """Return what a pointwise op of the records moves through memory alone."""
    moved: float = math.prod(row["shape"]) * _ELEMENT_BYTES * STREAMS[row["name"]]
    return round(moved / float(row["alone_again_ns"]))


def collective_slowdown(
    rows: Iterable[Mapping[str, Any]], memory: MemoryQueue | None = None
) -> Slowdown:
    """Return A100's factor of NCCL's collectives, with its mean error on emulated ones, beside
    what ``memory`` explains of these."""
    errors = [
        abs(COLLECTIVE_FACTOR * waits / cell.slowdown - 1)
        for cell in streamed_cells(rows)
        for waits in (memory.slowdown(cell.gb_s, cell.ctas) if memory else 1.0,)
    ]
    error = rounded(statistics.fmean(errors), 2)
    return Slowdown(factor=COLLECTIVE_FACTOR, kind="assumed", error=error)


def h200_contention(rows: Sequence[Mapping[str, Any]], attained_gb_s: float) -> ContentionSection:
    """Return the law of ops beside emulated collectives, fitted to these records of a GPU whose
    memory gives long ops at most ``attained_gb_s``."""
    cells = beside_cells(rows)
    memory = fit_memory(streamed_cells(rows), attained_gb_s).law
    collective = collective_slowdown(rows, memory)
    fits = {
        family: fit_beside([cell for cell in cells if cell.family == family], sm_count=SM_COUNT)
        for family in ("gemm", "attention", "pointwise")
    }
    error = fits["gemm"].leave_case_out_error
    return ContentionSection(
        fit=ContentionFit(
            sm_count=SM_COUNT,
            default_ctas=NVLS_CTAS,
            compute=tuple(replace(fit.law, fills=name in FILLING) for name, fit in fits.items()),
            collective=collective,
            same_links=SHARED_LINKS,
            other_links=OTHER_LINKS,
            memory=memory,
        ),
        provenance=Provenance(
            kind="fitted", source=SOURCE, error=error, note=_note(fits, collective, memory)
        ),
    )


def _note(fits: Mapping[str, BesideFit], collective: Slowdown, memory: MemoryQueue) -> str:
    errors = ", ".join(f"{name} {fit.leave_case_out_error:.1%}" for name, fit in fits.items())
    return (
        "Ops beside an emulated collective (C CTAs that stream through HBM), C = 1 to 32. Errors "
        f"with each op left out: {errors}. A GEMM loses the same time by a CTA however long it is: "
        "its last wave. Beside GEMMs and attention these collectives lasted as long as the ops "
        "that they met: they get in when such an op ends, or in a GEMM's last wave where that "
        "leaves them SMs (simulator.waves). Beside pointwise ops they wait for memory: "
        f"{memory.error:.1%} with each op left out. Assumed: that all this holds below 70 us, and "
        "that NCCL's CTAs wait as these do; the collective's own factor, A100's, which is with "
        f"these waits {collective.error:.0%} off on average beside pointwise ops; two collectives "
        "sharing links half speed each, not sharing them 1.1 times."
    )
