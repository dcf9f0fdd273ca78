"""Shared parts of the bundled profiles: reading tables, and laws assumed from fitted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from domino_tune.measure.fits.collectives import fit_collectives
from domino_tune.measure.fits.contention import OverlapFit
from domino_tune.measure.fits.gemm import fit_gemm
from domino_tune.measure.fits.pointwise import fit_pointwise
from domino_tune.measure.importers.tables import collectives_csv, gemm_csv, pointwise_csv
from simulator.contention import ComputeContention, ContentionFit
from simulator.lookup.collectives import CollectiveFit
from simulator.lookup.pointwise import DEFAULT, PointwiseFit
from simulator.profile import GemmSection, LaunchSection, Provenance

AICONFIGURATOR = "ai-dynamo/aiconfigurator @095f58a (Apache-2.0)"
VIDUR = "microsoft/vidur @7d47513 (MIT)"
OVERLAP = "Evansika959/aiconfigurator_overlap_exp @0488800"

# Ops that one fused kernel streams once, as the fitted op of the same kind does.
_ALIKE: dict[str, tuple[str, ...]] = {
    "rmsnorm": ("rmsnorm_bwd", "layernorm_bwd"),
    "swiglu": ("swiglu_bwd", "gelu", "gelu_bwd", "relu", "relu_bwd"),
    "rope": ("rope_bwd",),
    "embedding": ("embedding_bwd",),
}
_STREAMED = (
    "bias_dropout_add", "bias_dropout_add_bwd", "layernorm", "embedding_post", "cross_entropy_max",
    "cross_entropy_sum", "cross_entropy_grad", "grad_norm", "adam", "copy", DEFAULT,
)  # fmt: skip
ASSUMED_ERROR = 0.25


def gemm_section(table: Path, sm_count: int, note: str) -> GemmSection:
    """Return the tiled law of forward GEMMs; look-ups use it for other layouts, too."""
    rows = gemm_csv(table.read_bytes()).rows
    fit = fit_gemm([(row.m, row.n, row.k, row.median_us) for row in rows], sm_count)
    return GemmSection(
        fits=(fit,),
        provenance=Provenance(
            kind="fitted",
            source=f"{len(rows)} shapes of {AICONFIGURATOR}",
            error=fit.error,
            note=note,
        ),
    )


def pointwise_fits(table: Path) -> tuple[PointwiseFit, ...]:
    """Return laws fitted by op, and assumed laws for ops without timings."""
    rows = pointwise_csv(table.read_bytes()).rows
    fits: list[PointwiseFit] = []
    for name in ("add", *_ALIKE):
        fit = fit_pointwise([row for row in rows if row.name == name], (name,))
        alike = _STREAMED if name == "add" else _ALIKE[name]
        fits += [fit, replace(fit, names=alike, kind="assumed", error=ASSUMED_ERROR)]
    return tuple(fits)


def scaled_pointwise(fits: Sequence[PointwiseFit], ratio: float) -> tuple[PointwiseFit, ...]:
    """Return the assumed laws of a GPU whose memory is ``ratio`` times as fast."""
    return tuple(
        replace(
            fit,
            small_gb_s=float(f"{fit.small_gb_s * ratio:.4g}"),
            large_gb_s=float(f"{fit.large_gb_s * ratio:.4g}"),
            kind="assumed",
            error=ASSUMED_ERROR,
        )
        for fit in fits
    )


def node_collectives(table: Path) -> tuple[CollectiveFit, ...]:
    """Return laws of all-reduce, all-gather and reduce-scatter inside one node."""
    return fit_collectives(collectives_csv(table.read_bytes()).rows)


def contention_law(
    fit: OverlapFit, *, sm_count: int, default_ctas: int, kind: str, error: float
) -> ContentionFit:
    """Return the law: GEMM and attention lose SMs, pointwise ops memory bandwidth (assumed)."""
    return ContentionFit(
        sm_count=sm_count,
        default_ctas=default_ctas,
        compute=(
            ComputeContention(
                family="gemm", sms_per_cta=fit.sms_per_cta, factor=fit.compute_factor
            ),
            ComputeContention(
                family="attention", sms_per_cta=fit.sms_per_cta, factor=fit.compute_factor
            ),
            ComputeContention(family="pointwise", sms_per_cta=0.0, factor=1.15),
        ),
        collective_factor=fit.collective_factor,
        same_links_factor=2.0,
        other_links_factor=1.1,
        kind="assumed" if kind == "assumed" else "fitted",
        error=error,
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
            note="Attention adds checks of its arguments, a collective its work object and two "
            "event waits. CUDA graphs make all of them about zero (--cuda-graph).",
        ),
    )
