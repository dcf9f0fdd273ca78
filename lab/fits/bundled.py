"""The bundled profiles: which law makes each section of a GPU, of the tables that its description
names; what they lack is taken over from another GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Final

from domino_tune.measure.importers.tables import attention_csv, attention_pair_csv, gemm_csv
from lab.fits import blackwell
from lab.fits.attention import assumed_on, fit_attention, small_heads
from lab.fits.collectives import collective_section, multimem_collectives, node_collectives
from lab.fits.common import ASSUMED_ERROR, TRANSFER_ERROR, Gpu, Sources, rounded
from lab.fits.contention import (
    ASSUMED_SLOWDOWN,
    NVLS_CTAS,
    assumed_law,
    beside_law,
    collective_slowdown,
    overlap_law,
)  # fmt: skip
from lab.fits.experts import with_experts
from lab.fits.gemm import gemm_section
from lab.fits.grouped import Trainer, trainer_on
from lab.fits.measured import GPU as H200
from lab.fits.measured import (
    attained_gb_s,
    attention_law,
    attention_section,
    h200_ops,
    launch_section,
    rewritten_rows,
)
from lab.fits.pointwise import as_assumed, transferred
from lab.fits.power import capped_section
from lab.fits.quantized import with_quantized
from lab.fits.simumax import (
    attention_fit,
    attention_rows,
    collective_fits,
    gemm_rows,
    pointwise_fits,
)  # fmt: skip
from lab.fits.unshipped import a100_overlap, collectives_of
from simulator.contention import ContentionFit
from simulator.lookup.attention import AttentionFit
from simulator.lookup.expected import POINTWISE_DEFAULT
from simulator.lookup.gemm import GemmRow
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    Disagreement,
    GemmSection,
    PointwiseSection,
    Profile,
)  # fmt: skip

A100, H100, B200 = (Gpu(name) for name in ("a100-sxm", "h100-dgx", "b200-sxm"))
NCCL_CTAS: Final = 24
"""NCCL's own choice on an A100: its time lies between 16 and 32 CTAs."""


def a100_profile(sources: Sources) -> Profile:
    """Return one NVSwitch node, measured; several nodes assumed."""
    overlapped, machine = a100_overlap(sources), A100.machine
    fit = overlapped.fit
    contention = overlap_law(
        fit, sm_count=machine.sm_count, default_ctas=NCCL_CTAS, kind="fitted",
        error=fit.leave_shape_out_error,
    )  # fmt: skip
    pointwise = transferred(h200_ops(sources), machine, least_error=ASSUMED_ERROR)
    made = A100.profile(
        gemm=gemm_section(A100, sources),
        attention=AttentionSection(
            fit=assumed_on(_h100_attention(sources), H100.machine, machine),
            provenance=A100.words("attention"),
        ),
        pointwise=PointwiseSection(fits=tuple(pointwise), provenance=A100.words("pointwise")),
        collectives=collective_section(
            A100,
            [*node_collectives(A100, sources), *collectives_of(sources, "a100_all_reduce_by_ctas")],
        ),
        contention=ContentionSection(
            fit=contention,
            provenance=A100.words(
                "contention", fit.leave_shape_out_error, cells=overlapped.cells,
                constant_us=f"{fit.constant_us:g}",
            ),
        ),
        launch=launch_section(),
        power=capped_section(A100, sources, _gemms(A100, sources)),
    )  # fmt: skip
    return _with_experts(made, sources)


def h100_profile(sources: Sources) -> Profile:
    """Return DGX H100 nodes, one or several over 8×400 Gb/s InfiniBand."""
    h200, overlapped = h200_ops(sources), a100_overlap(sources)
    attention, own = _h100_attention(sources), rewritten_rows(H100, sources)
    pointwise = transferred(h200, H100.machine, own=own)
    fitted = [fit.error for fit in pointwise if fit.kind == "fitted"]
    met = collective_slowdown(sources.ours("contention"))
    contention = overlap_law(
        overlapped.fit, sm_count=H100.machine.sm_count, default_ctas=NVLS_CTAS, kind="assumed",
        error=ASSUMED_SLOWDOWN,
    )  # fmt: skip
    collective = replace(contention.collective, error=met.error)
    made = H100.profile(
        gemm=gemm_section(H100, sources, h200),
        attention=AttentionSection(
            fit=attention,
            others=(small_heads(attention_law(h200), sources, transfer=True),),
            provenance=H100.words("attention", attention.error, transfer=TRANSFER_ERROR),
        ),
        pointwise=PointwiseSection(
            fits=tuple(pointwise),
            provenance=H100.words("pointwise", rounded(statistics.fmean(fitted), 2)),
        ),
        collectives=_h100_collectives(sources),
        contention=ContentionSection(
            fit=replace(contention, collective=collective),
            provenance=H100.words("contention", cells=overlapped.cells, off=met.error),
        ),
        launch=launch_section(),
        power=capped_section(H100, sources, _gemms(H100, sources)),
    )
    return _with_experts(with_quantized(made, sources), sources)


def h200_profile(sources: Sources) -> Profile:
    """Return our own records of one GPU. Collectives, which it cannot show, are H100's: both have
    the same NVLink."""
    ops, collectives, fit = h200_ops(sources), _h100_collectives(sources), _beside(sources)
    assert fit.memory is not None
    taken = H200.words(
        "collectives", source=collectives.provenance.source, there=collectives.provenance.note
    )
    contention = H200.words(
        "contention", fit.law("gemm").error, queue=fit.memory.error, off=fit.collective.error,
        errors=", ".join(f"{one.family} {one.error:.1%}" for one in fit.compute),
    )  # fmt: skip
    made = replace(
        ops,
        attention=attention_section(ops, sources),
        collectives=replace(collectives, provenance=taken),
        contention=ContentionSection(fit=fit, provenance=contention),
        launch=launch_section(H200, sources.ours("launch")),
        power=capped_section(H200, sources),
    )
    return _with_experts(with_quantized(made, sources), sources)


def b200_profile(sources: Sources) -> Profile:
    """Return one node's op tables, which SimuMax published; the rest assumed."""
    h200, rows, machine = h200_ops(sources), gemm_rows(sources), B200.machine
    attention, gap_us = attention_fit(attention_rows(sources), machine.sm_count)
    pointwise, like = pointwise_fits(B200, sources, h200, ASSUMED_ERROR)
    made = B200.profile(
        gemm=b200_gemms(sources),
        attention=AttentionSection(
            fit=attention, provenance=B200.words("attention", attention.error, gap_us=gap_us)
        ),
        pointwise=PointwiseSection(
            fits=tuple(pointwise),
            provenance=B200.words(
                "pointwise", POINTWISE_DEFAULT.error, fixed_us=like.fixed_us,
                streamed=", ".join(B200.told["pointwise"]["rates"]["default"]),
            ),
        ),
        collectives=collective_section(B200, collective_fits(sources)),
        contention=_assumed_contention(B200, sources),
        launch=launch_section(),
        power=replace(
            capped_section(B200, sources, rows), gemm_mhz=blackwell.gemm_mhz(B200, sources)
        ),
    )  # fmt: skip
    return _with_experts(with_quantized(made, sources), sources)


def b200_gemms(sources: Sources) -> GemmSection:
    """Return SimuMax's rows, and by how much those of another source differ from them."""
    rows = gemm_rows(sources)
    faster, clock = blackwell.sources_differ(sources, rows)
    apart = rounded(faster / clock - 1, 2)
    between = B200.told["gemm"]["between"].format(faster=faster, clock=clock)
    words = B200.words("gemm", rows=len(rows), faster=faster, clock=clock, apart=apart)
    return GemmSection(
        rows=rows,
        disagreement=Disagreement(error=apart, between=between),
        looped=True,
        provenance=words,
    )


def blackwell_profile(gpu: Gpu, sources: Sources) -> Profile:
    """Return a node or a rack of a GPU that an inference planner's tables time; the rest assumed,
    as a B200's or our H200's."""
    name, machine = gpu.name.partition("-")[0], gpu.machine
    gemm = blackwell.gemms(name, sources, machine.sm_count)
    attention = blackwell.attention(name, sources, machine.sm_count)
    pointwise, _ = pointwise_fits(B200, sources, h200_ops(sources), ASSUMED_ERROR)
    faster = machine.memory_bandwidth_gb_s / B200.machine.memory_bandwidth_gb_s
    made = gpu.profile(
        gemm=GemmSection(
            fits=(gemm.fit,),
            disagreement=Disagreement(error=gemm.apart, between=gpu.told["gemm"]["between"]),
            provenance=gpu.words("gemm", gemm.fit.error, rows=gemm.rows, apart=gemm.apart),
        ),
        attention=AttentionSection(
            fit=attention, provenance=gpu.words("attention", attention.error)
        ),
        pointwise=PointwiseSection(
            fits=tuple(as_assumed(fit, faster) for fit in pointwise),
            provenance=gpu.words("pointwise"),
        ),
        collectives=collective_section(gpu, blackwell.collectives(gpu, sources)),
        contention=_assumed_contention(gpu, sources),
        launch=launch_section(),
        power=blackwell.power(gpu, sources, capped_section(gpu, sources)),
    )  # fmt: skip
    return _with_experts(with_quantized(made, sources), sources)


BUNDLED: Final[dict[str, Callable[[Sources], Profile]]] = {
    "h100-dgx": h100_profile, "a100-sxm": a100_profile, "b200-sxm": b200_profile,
    "h200-sxm": h200_profile,
    **{name: partial(blackwell_profile, Gpu(name))
       for name in ("gb200-nvl72", "gb300-nvl72", "b300-sxm")},
}  # fmt: skip
"""Name → what makes the profile."""


def _with_experts(profile: Profile, sources: Sources) -> Profile:
    like = B200.name if profile.machine.fp8_any_layout else profile.name
    return with_experts(profile, sources, lambda: _trainer(like, sources))


@cache
def _trainer(name: str, sources: Sources) -> Trainer:
    return trainer_on(name, Gpu(name).machine, sources)


def _gemms(gpu: Gpu, sources: Sources) -> tuple[GemmRow, ...]:
    return gemm_csv(sources.table(gpu.told["gemm"]["table"])).rows


def _h100_attention(sources: Sources) -> AttentionFit:
    """Return the forward law with the backward ratio."""
    forward = attention_csv(sources.table("h100_attention_fwd_causal_hd128.csv.gz"))
    pairs = attention_pair_csv(sources.table("attention_fwd_bwd_hd128.csv"))
    return fit_attention(forward.rows, pairs.rows, sm_count=H100.machine.sm_count)


def _h100_collectives(sources: Sources) -> CollectiveSection:
    """Return one node of published tables, and several of numbers fitted to some."""
    nodes = collectives_of(sources, "h100_nodes_all_reduce")
    fits = (*node_collectives(H100, sources), *nodes, *multimem_collectives(sources))
    return collective_section(H100, fits)


def _assumed_contention(gpu: Gpu, sources: Sources) -> ContentionSection:
    """Return our H200's law as that of a GPU that was not timed."""
    h200, machine = h200_ops(sources), gpu.machine
    faster = machine.memory_bandwidth_gb_s / h200.machine.memory_bandwidth_gb_s
    law = assumed_law(
        _beside(sources), sm_count=machine.sm_count, attained_gb_s=attained_gb_s(h200) * faster
    )
    words = gpu.words(
        "contention", sms=machine.sm_count, ctas=law.default_ctas, off=law.collective.error
    )
    return ContentionSection(fit=law, provenance=words)


def _beside(sources: Sources) -> ContentionFit:
    """Return the law of our H200's records."""
    attained = attained_gb_s(h200_ops(sources))
    return beside_law(
        sources.ours("contention"), sm_count=H200.machine.sm_count, attained_gb_s=attained
    )
