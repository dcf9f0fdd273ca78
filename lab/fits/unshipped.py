"""Laws fitted to tables that the repository may not hold: data/fitted has only the numbers.
data/NOTICE.md says which tables these are and why they are not shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.importers.nccl import nccl_table
from domino_tune.measure.importers.tables import collectives_csv, cta_all_reduce_csv
from domino_tune.store.files import parse_json, write_whole
from domino_tune.store.parsing import parse
from lab.fits.collectives import fit_collectives
from lab.fits.common import Sources
from lab.fits.contention import OverlapFit, fit_overlap, read_overlap
from simulator.errors import InputError
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.collectives import CollectiveRow
from simulator.profile import to_plain

OVERLAP_TABLE: Final = "contention/overlap_432_1200MHz.csv"
CTAS_TABLE: Final = "contention/ar_by_cta_w4.csv"
NODES_TABLES: Final = tuple(
    f"nccl-tests/nccltests309_{name}_default.csv" for name in ("A_2n16", "B_4n32", "C_8n64")
)
A100_SMS: Final = 108
SMALL_BYTES: Final = 64 << 10  # up to this size NCCL uses few CTAs, whatever the limit


def a100_overlap(sources: Sources) -> tuple[int, OverlapFit]:
    """Return the contention law fitted on A100, after the number of cells, from ``data/fitted``."""
    told, how = _read(sources, "a100_overlap")
    return told["cells"], parse(OverlapFit, told["fit"], **how)


def collectives_of(sources: Sources, name: str) -> tuple[CollectiveFit, ...]:
    """Return the laws ``a100_all_reduce_by_ctas`` (4 GPUs) or ``h100_nodes_all_reduce``."""
    told, how = _read(sources, name)
    return tuple(parse(CollectiveFit, fit, **how) for fit in told["fits"])


def fit_unshipped(tables: Path, data: Path) -> None:
    """Fit all laws to the ``tables`` and write them into ``data/fitted``."""
    cells, fit = fitted_overlap(tables)
    by_ctas = fit_collectives(_rows_by_ctas(tables, data / "measured"))
    made = {
        "a100_overlap": {"cells": cells, "fit": fit}, "a100_all_reduce_by_ctas": {"fits": by_ctas},
        "h100_nodes_all_reduce": {"fits": fit_collectives(_nodes_rows(tables))},
    }  # fmt: skip
    for name, one in made.items():
        write_whole(data / "fitted" / f"{name}.json", json.dumps(to_plain(one), indent=1) + "\n")


def fitted_overlap(tables: Path) -> tuple[int, OverlapFit]:
    """Return the contention law, after the number of cells that it was fitted to."""
    cells = read_overlap((tables / OVERLAP_TABLE).read_bytes())
    return len(cells), fit_overlap(cells, sm_count=A100_SMS)


def _rows_by_ctas(tables: Path, measured: Path) -> list[CollectiveRow]:
    """Return timed rows by CTAs; up to SMALL_BYTES, use NCCL's own choice for every count."""
    timed = cta_all_reduce_csv((tables / CTAS_TABLE).read_bytes()).rows
    rows = collectives_csv((measured / "a100_nccl_nvlink.csv").read_bytes()).rows
    small = [r for r in rows if r.group[:3] == ("all_reduce", 1, 4) and r.bytes <= SMALL_BYTES]
    counts = sorted({row.ctas for row in timed})
    return [*timed, *(replace(row, ctas=ctas) for ctas in counts for row in small)]


def _nodes_rows(tables: Path) -> list[CollectiveRow]:
    """Return rows of 2, 4 and 8 nodes; small sizes on 8 nodes are extrapolated from 2 and 4."""
    every = (nccl_table((tables / name).read_bytes()).rows for name in NODES_TABLES)
    two, four, eight = ([r for r in rows if 512 <= r.bytes <= 4 << 30] for rows in every)
    on_two = {row.bytes: row.median_us for row in two}
    extrapolated = [
        replace(row, nodes=8, median_us=2 * row.median_us - on_two[row.bytes])
        for row in four if row.bytes < eight[0].bytes
    ]  # fmt: skip
    return [*two, *four, *extrapolated, *eight]


def _read(sources: Sources, name: str) -> tuple[Any, dict[str, Any]]:
    path = sources.data / "fitted" / f"{name}.json"
    how = {"source": str(path), "error": InputError}
    return parse_json(path.read_bytes(), source=str(path), error=InputError), how
