"""The bundled profiles: which law makes each section of a GPU, of the tables that its description
names; what they lack is taken over from another GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Final

from domino_tune.measure.importers.tables import gemm_csv
from lab.fits import attention, blackwell, collectives, contention, measured
from lab.fits.common import ASSUMED_ERROR, TRANSFER_ERROR, Description, Gpu, Sources, rounded
from lab.fits.gemm import gemm_section
from lab.fits.grouped import Trainer, grouped_gemms, trainer_on
from lab.fits.power import capped_section
from lab.fits.quantized import with_quantized
from lab.fits.unshipped import a100_overlap, collectives_of
from simulator.contention import ContentionFit
from simulator.lookup import Provenance
from simulator.lookup.attention import AttentionFit
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.expected import POINTWISE_DEFAULT
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import DEFAULT, PointwiseFit
from simulator.power import PowerSection
from simulator.profile import AttentionSection, GemmSection, PointwiseSection, Profile
from simulator.profile import CollectiveSection as Links
from simulator.profile import ContentionSection as Met

A100, H100, B200 = (Gpu(name) for name in ("a100-sxm", "h100-dgx", "b200-sxm"))
H200: Final = measured.GPU
NCCL_CTAS: Final = 24  # NCCL's own choice on an A100: its time lies between 16 and 32 CTAs


def a100_profile(sources: Sources) -> Profile:
    """Return one NVSwitch node, measured; several nodes assumed."""
    (cells, fit), machine = a100_overlap(sources), A100.machine
    error = fit.leave_shape_out_error
    law = contention.overlap_law(
        fit, sm_count=machine.sm_count, ctas=NCCL_CTAS, kind="fitted", error=error
    )
    told = {"cells": cells, "constant_us": f"{fit.constant_us:g}"}
    hopper = attention.h100_attention(sources, H100.machine)
    pointwise = measured.transferred(measured.h200_ops(sources), machine, least_error=ASSUMED_ERROR)
    by_ctas = collectives_of(sources, "a100_all_reduce_by_ctas")
    nodes = (*collectives.node_collectives(A100, sources), *by_ctas)
    made = A100.profile(
        gemm=gemm_section(A100, sources),
        attention=AttentionSection(
            fit=attention.assumed_on(hopper, H100.machine, machine),
            provenance=A100.words("attention"),
        ),
        pointwise=PointwiseSection(fits=pointwise, provenance=A100.words("pointwise")),
        collectives=collectives.collective_section(A100, nodes),
        contention=Met(fit=law, provenance=A100.words("contention", error, **told)),
        launch=measured.launch_section(),
        power=capped_section(A100, sources, _gemms(A100, sources)),
    )  # fmt: skip
    return with_experts(made, sources)


def h100_profile(sources: Sources) -> Profile:
    """Return DGX H100 nodes, one or several over 8×400 Gb/s InfiniBand."""
    (cells, overlap), h200 = a100_overlap(sources), measured.h200_ops(sources)
    machine = H100.machine
    heads, own = attention.h100_attention(sources, machine), measured.rewritten_rows(H100, sources)
    pointwise = measured.transferred(h200, machine, own=own)
    fitted = rounded(statistics.fmean(fit.error for fit in pointwise if fit.kind == "fitted"), 2)
    off = contention.collective_slowdown(sources.ours("contention")).error
    law = contention.overlap_law(
        overlap, sm_count=machine.sm_count, ctas=contention.NVLS_CTAS,
        kind="assumed", error=contention.ASSUMED_SLOWDOWN,
    )  # fmt: skip
    law = replace(law, collective=replace(law.collective, error=off))
    small = attention.small_heads(measured.attention_law(h200), sources, transfer=True)
    made = H100.profile(
        gemm=gemm_section(H100, sources, h200),
        attention=AttentionSection(
            fit=heads, others=(small,),
            provenance=H100.words("attention", heads.error, transfer=TRANSFER_ERROR),
        ),
        pointwise=PointwiseSection(fits=pointwise, provenance=H100.words("pointwise", fitted)),
        collectives=_h100_collectives(sources),
        contention=Met(fit=law, provenance=H100.words("contention", cells=cells, off=off)),
        launch=measured.launch_section(),
        power=capped_section(H100, sources, _gemms(H100, sources)),
    )  # fmt: skip
    return with_experts(with_quantized(made, sources), sources)


def h200_profile(sources: Sources) -> Profile:
    """Return our records of one GPU; collectives are an H100's, which has the same NVLink."""
    ops, links, law = measured.h200_ops(sources), _h100_collectives(sources), _beside(sources)
    there = links.provenance
    assert law.memory is not None
    words = H200.words(
        "contention", law.law("gemm").error, queue=law.memory.error, off=law.collective.error,
        errors=", ".join(f"{one.family} {one.error:.1%}" for one in law.compute),
    )  # fmt: skip
    taken = H200.words("collectives", source=there.source, there=there.note)
    made = replace(
        ops, attention=measured.attention_section(ops, sources),
        collectives=replace(links, provenance=taken), contention=Met(fit=law, provenance=words),
        launch=measured.launch_section(H200, sources.ours("launch")),
        power=capped_section(H200, sources),
    )  # fmt: skip
    return with_experts(with_quantized(made, sources), sources)


def b200_profile(sources: Sources) -> Profile:
    """Return one node's op tables, which SimuMax published; the rest assumed."""
    rows, sm_count = attention.b200_rows(sources), B200.machine.sm_count
    heads, gap_us = attention.b200_attention(rows, sm_count)
    pointwise, like = blackwell.pointwise_fits(B200, sources, measured.h200_ops(sources))
    gemm, rates = blackwell.b200_gemms(B200, sources), B200.told["pointwise"]["rates"]
    told = {"fixed_us": like.fixed_us, "streamed": ", ".join(rates["default"])}
    power = capped_section(B200, sources, gemm.rows)
    return _blackwell(
        B200, sources, gemm, pointwise, collectives.b200_collectives(sources),
        replace(power, gemm_mhz=blackwell.gemm_mhz(B200, sources)), heads,
        B200.words("pointwise", POINTWISE_DEFAULT.error, **told), gap_us=gap_us,
    )  # fmt: skip


def served_profile(gpu: Gpu, sources: Sources) -> Profile:
    """Return a node or rack that an inference planner's tables time; the rest assumed."""
    pointwise, _ = blackwell.pointwise_fits(B200, sources, measured.h200_ops(sources))
    faster = gpu.machine.memory_bandwidth_gb_s / B200.machine.memory_bandwidth_gb_s
    return _blackwell(
        gpu, sources, blackwell.served_gemms(gpu, sources),
        [measured.as_assumed(fit, faster) for fit in pointwise],
        collectives.blackwell_collectives(gpu, sources),
        blackwell.with_bursts(gpu, sources, capped_section(gpu, sources)),
        attention.served_attention(gpu, sources), gpu.words("pointwise"),
    )  # fmt: skip


BUNDLED: Final[dict[str, Callable[[Sources], Profile]]] = {
    "h100-dgx": h100_profile, "a100-sxm": a100_profile, "b200-sxm": b200_profile,
    "h200-sxm": h200_profile,
    **{name: partial(served_profile, Gpu(name))
       for name in ("gb200-nvl72", "gb300-nvl72", "b300-sxm")},
}  # fmt: skip
"""Name → what makes the profile."""


def _blackwell(
    gpu: Gpu, sources: Sources, gemm: GemmSection, pointwise: Iterable[PointwiseFit],
    links: Iterable[CollectiveFit], power: PowerSection, heads: AttentionFit, words: Provenance,
    **told: float,
) -> Profile:  # fmt: skip
    """Return the profile of these laws, with our H200's law of contention assumed."""
    h200, sm_count = measured.h200_ops(sources), gpu.machine.sm_count
    faster = gpu.machine.memory_bandwidth_gb_s / h200.machine.memory_bandwidth_gb_s
    attained = measured.attained_gb_s(h200) * faster
    law = contention.assumed_law(_beside(sources), sm_count=sm_count, attained_gb_s=attained)
    met = gpu.words("contention", sms=sm_count, ctas=law.default_ctas, off=law.collective.error)
    made = gpu.profile(
        gemm=gemm, launch=measured.launch_section(), power=power,
        attention=AttentionSection(
            fit=heads, provenance=gpu.words("attention", heads.error, **told)
        ),
        pointwise=PointwiseSection(fits=tuple(pointwise), provenance=words),
        collectives=collectives.collective_section(gpu, links),
        contention=Met(fit=law, provenance=met),
    )  # fmt: skip
    return with_experts(with_quantized(made, sources), sources)


@cache
def _trainer(name: str, sources: Sources) -> Trainer:
    return trainer_on(Gpu(name), sources)


def _gemms(gpu: Gpu, sources: Sources) -> tuple[GemmRow, ...]:
    return gemm_csv(sources.table(gpu.told["gemm"]["table"])).rows


def _h100_collectives(sources: Sources) -> Links:
    nodes = collectives_of(sources, "h100_nodes_all_reduce")
    own = (*collectives.node_collectives(H100, sources), *nodes)
    return collectives.collective_section(H100, (*own, *collectives.multimem_collectives(sources)))


def _beside(sources: Sources) -> ContentionFit:
    attained, rows = measured.attained_gb_s(measured.h200_ops(sources)), sources.ours("contention")
    return contention.beside_law(rows, sm_count=H200.machine.sm_count, attained_gb_s=attained)


# Experts ------------------------------------------------------------------------------------------

WORDS: Final = Description("experts")
PERMUTES: Final = {
    "moe_permute": "permute_fwd", "moe_unpermute": "permute_bwd", "moe_sort": "permute_fwd",
}  # fmt: skip
"""Op -> its rate in SimuMax's table: the weighted sum is the backward of a gather."""
B200_GB_S: Final = 8000.0
LIKE: Final = "add"  # Op whose fixed cost permutations get


def with_experts(profile: Profile, sources: Sources) -> Profile:
    """Return the profile with laws of experts, at a trainer's level on its generation."""
    gpu, names = profile.name.partition("-")[0], ("gemm", "attention", "collectives", "pointwise")
    gemm, heads, links, pointwise = map(profile.section, names)
    fits = {one.group: one for one in (*links.fits, *collectives.exchanges(gpu, sources))}
    permutes, share = permutations(profile, sources)
    made = replace(
        profile,
        collectives=replace(
            links, fits=tuple(fits[group] for group in sorted(fits)),
            provenance=_noted(links.provenance, "collectives"),
        ),
        pointwise=replace(
            pointwise, fits=(*pointwise.fits, *permutes),
            provenance=_noted(pointwise.provenance, "pointwise", share=share),
        ),
    )  # fmt: skip
    if gpu == "a100":
        return made
    latent, on = attention.latent_level(sources), "_hopper" if gpu in attention.HOPPER else ""
    trainer = _trainer(B200.name if profile.machine.fp8_any_layout else profile.name, sources)
    forward, dgrad, wgrad = (trainer.times[x] for x in ("forward", "dgrad", "wgrad"))
    words = WORDS.words(
        f"grouped{on}", trainer.error, forward=forward.flops, dgrad=dgrad.flops / forward.flops,
        wgrad=wgrad.flops / forward.flops, memory=wgrad.memory, apart=trainer.error,
    )  # fmt: skip
    law = attention.latent_attention(gpu, sources, profile.machine)
    noted = _noted(
        heads.provenance, f"attention{on}", level=f"{latent.times:.2f}",
        ratio=f"{latent.backward_ratio:.2f}", apart=f"{latent.backward_error:.0%}",
        over=f"{latent.over:.1f}",
    )  # fmt: skip
    return replace(
        made, gemm=replace(gemm, grouped=grouped_gemms(profile, sources, trainer, words)),
        attention=replace(heads, others=(*heads.others, law), provenance=noted),
    )  # fmt: skip


def _noted(words: Provenance, section: str, **facts: object) -> Provenance:
    more = str(WORDS.told[section]["note"]).format(**facts)
    return replace(words, note=f"{words.note or ''} {more}".strip())


def permutations(profile: Profile, sources: Sources) -> tuple[list[PointwiseFit], float]:
    """Return laws of moving experts' tokens and of the router, and their share of bandwidth."""
    laws = {name: fit for fit in profile.section("pointwise").fits for name in fit.names}
    faster = profile.machine.memory_bandwidth_gb_s / B200_GB_S
    rates = blackwell.rates_gb_s(sources)
    like, error, found = laws.get(LIKE) or laws[DEFAULT], POINTWISE_DEFAULT.error, []
    for name, rate in PERMUTES.items():
        known = name != "moe_sort" and profile.name.startswith("b200")
        gb_s = rounded(rates[rate] * faster)
        found.append(
            replace(
                like, names=(name,), kind="fitted" if known else "assumed", small_gb_s=gb_s,
                knee_bytes=1, large_gb_s=gb_s, error=error,
            )
        )  # fmt: skip
    found.append(replace(laws[DEFAULT], names=("moe_router",), kind="assumed", error=error))
    return sorted(found, key=attrgetter("names")), rates["permute_fwd"] / B200_GB_S
