"""Published measurements that benchmarks compare with: those held in ``data``, and the others."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from domino_tune.measure.importers import read_table
from domino_tune.measure.importers.imported import NO_HINTS, Hints, Imported
from lab.verdict import SkippedError
from simulator.lookup.gemm import GemmFit, GemmRow
from simulator.profile import GemmSection, Machine, Profile
from simulator.provenance import Provenance

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MEASURED: Final = REPOSITORY / "data" / "measured"
H100_SMS: Final = 132


def facts_dir() -> Path:
    """Return ``DOMINO_TUNE_FACTS``, the folder of tables that are not held (data/NOTICE.md).

    Raise SkippedError where there is none.
    """
    folder = os.environ.get("DOMINO_TUNE_FACTS", "")
    if not (folder and Path(folder).is_dir()):
        raise SkippedError(
            f"no facts: DOMINO_TUNE_FACTS = {folder!r} is not a folder; see data/NOTICE.md"
        )
    return Path(folder)


@cache
def read_measured(name: str, importer: str, hints: Hints = NO_HINTS) -> Imported:
    """Read a file of ``data/measured`` with the importer that users call."""
    return read_table((MEASURED / name).read_bytes(), importer, hints)


def bare_h100(name: str) -> Profile:
    """Return an H100 profile that holds only the data sheet. Imports start from it."""
    machine = Machine(
        gpu="H100 SXM 80 GB", gpus_per_node=8, gpu_memory_gib=80.0, sm_count=H100_SMS,
        peak_tflops={"bf16": 989.4}, memory_bandwidth_gb_s=3350.0, backend="nccl",
    )  # fmt: skip
    return Profile(name=name, created="2025-06-18", machine=machine)


def gemm_section(rows: tuple[GemmRow, ...], fits: tuple[GemmFit, ...] = ()) -> GemmSection:
    """Return the profile section that an import of ``rows`` and ``fits`` makes."""
    return GemmSection(
        rows=rows,
        fits=fits,
        provenance=Provenance(kind="imported", source="published measurements"),
    )
