"""Shared parts of the bundled profiles: reading tables, and laws assumed from fitted ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from domino_tune.measure.contention_law import SHARED_LINKS
from domino_tune.measure.importers.tables import collectives_csv, gemm_csv
from lab.fits.collectives import fit_collectives
from lab.fits.contention import OverlapFit
from lab.fits.gemm import fit_gemm
from simulator.contention import ComputeContention, ContentionFit, Slowdown
from simulator.lookup import FitKind
from simulator.lookup.collectives import CollectiveFit
from simulator.profile import GemmSection, LaunchSection
from simulator.provenance import Provenance

AICONFIGURATOR = "ai-dynamo/aiconfigurator @095f58a (Apache-2.0)"
OVERLAP = "Evansika959/aiconfigurator_overlap_exp @0488800"

ASSUMED_ERROR = 0.25
LAUNCH_ERROR = 0.5
"""Launch costs differ by a factor of two from plan to plan and from host to host."""
ASSUMED_SLOWDOWN = 0.15
"""Expected error of a slowdown that nobody timed on that GPU."""
POINTWISE_SLOWDOWN = ComputeContention(
    family="pointwise", sms_per_cta=0.0, factor=1.15, kind="assumed", error=ASSUMED_SLOWDOWN
)
"""A collective takes about an eighth of the memory bandwidth: 16 CTAs that read and write at the
rate of NVLink (0.45 TB/s of 3.35 TB/s)."""
OTHER_LINKS = Slowdown(factor=1.1, kind="assumed", error=0.1)
"""Two collectives on other links share the memory only: less than what a collective takes of it."""


def gemm_section(table: Path, sm_count: int, *, clock: str, note: str) -> GemmSection:
    """Return the tiled law of forward GEMMs."""
    rows = gemm_csv(table.read_bytes()).rows
    fit = fit_gemm([(row.m, row.n, row.k, row.median_us) for row in rows], sm_count)
    return GemmSection(
        fits=(fit,),
        provenance=Provenance(
            kind="fitted",
            source=f"{len(rows)} shapes of {AICONFIGURATOR}",
            error=fit.error,
            clock=clock,
            note=note,
        ),
    )


def node_collectives(table: Path) -> tuple[CollectiveFit, ...]:
    """Return laws of all-reduce, all-gather and reduce-scatter inside one node."""
    return fit_collectives(collectives_csv(table.read_bytes()).rows)


def contention_law(
    fit: OverlapFit, *, sm_count: int, default_ctas: int, kind: FitKind, error: float
) -> ContentionFit:
    """Return the law of GEMMs. Assumed: attention loses SMs as they do, pointwise ops bandwidth;
    both let no collective in before they end, as on our H200."""
    gemm = ComputeContention(
        family="gemm", sms_per_cta=fit.sms_per_cta, factor=fit.compute_factor, fills=True,
        kind=kind, error=error,
    )  # fmt: skip
    return ContentionFit(
        sm_count=sm_count,
        default_ctas=default_ctas,
        compute=(
            gemm,
            replace(gemm, family="attention", kind="assumed", error=max(error, ASSUMED_SLOWDOWN)),
            POINTWISE_SLOWDOWN,
        ),
        collective=Slowdown(factor=fit.collective_factor, kind=kind, error=error),
        same_links=SHARED_LINKS,
        other_links=OTHER_LINKS,
    )


def eager_launch() -> LaunchSection:
    """Return the host costs of eager PyTorch."""
    return LaunchSection(
        mode="async",
        cost_us={"gemm": 6.0, "attention": 10.0, "pointwise": 6.0, "collective": 15.0},
        queue_depth=1024,
        provenance=Provenance(
            kind="assumed",
            source="eager PyTorch: a kernel costs about 6 us of host time to dispatch and launch",
            error=LAUNCH_ERROR,
            note="Attention adds checks of its arguments, a collective its work object and two "
            "event waits. CUDA graphs make all of them about zero (--cuda-graph).",
        ),
    )
