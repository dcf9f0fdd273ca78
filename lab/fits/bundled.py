"""The bundled profiles: which law makes each section of a GPU, of the tables that its description
names; what they lack is taken over from another GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final

from domino_tune.measure.importers.tables import gemm_csv
from lab.fits.attention import (
    HOPPER,
    assumed_on,
    b200_attention,
    b200_rows,
    h100_attention,
    latent_attention,
    latent_level,
    served_attention,
    small_heads,
)
from lab.fits.blackwell import (
    b200_gemms,
    gemm_mhz,
    pointwise_fits,
    rates_gb_s,
    served_gemms,
    with_bursts,
)
from lab.fits.collectives import (
    b200_collectives,
    blackwell_collectives,
    collective_section,
    exchanges,
    multimem_collectives,
    node_collectives,
)
from lab.fits.common import ASSUMED_ERROR, TRANSFER_ERROR, Description, Gpu, Sources, rounded
from lab.fits.contention import (
    ASSUMED_SLOWDOWN,
    NVLS_CTAS,
    assumed_law,
    beside_law,
    collective_slowdown,
    overlap_law,
)
from lab.fits.gemm import gemm_section
from lab.fits.grouped import Trainer, grouped_gemms, trainer_on
from lab.fits.measured import GPU as H200
from lab.fits.measured import (
    as_assumed,
    attained_gb_s,
    attention_law,
    attention_section,
    h200_ops,
    launch_section,
    rewritten_rows,
    transferred,
)
from lab.fits.power import capped_section
from lab.fits.quantized import with_quantized
from lab.fits.unshipped import a100_overlap, collectives_of
from simulator.contention import ContentionFit
from simulator.lookup.expected import POINTWISE_DEFAULT
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import DEFAULT, PointwiseFit
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    PointwiseSection,
    Profile,
)
from simulator.provenance import Provenance

A100, H100, B200 = (Gpu(name) for name in ("a100-sxm", "h100-dgx", "b200-sxm"))
NCCL_CTAS: Final = 24
"""NCCL's own choice on an A100: its time lies between 16 and 32 CTAs."""


def a100_profile(sources: Sources) -> Profile:
    """Return one NVSwitch node, measured; several nodes assumed."""
    overlapped, machine = a100_overlap(sources), A100.machine
    fit = overlapped.fit
    error = fit.leave_shape_out_error
    law = overlap_law(
        fit, sm_count=machine.sm_count, default_ctas=NCCL_CTAS, kind="fitted", error=error
    )
    told = {"cells": overlapped.cells, "constant_us": f"{fit.constant_us:g}"}
    attention = assumed_on(h100_attention(sources, H100.machine), H100.machine, machine)
    pointwise = transferred(h200_ops(sources), machine, least_error=ASSUMED_ERROR)
    nodes = (*node_collectives(A100, sources), *collectives_of(sources, "a100_all_reduce_by_ctas"))
    made = A100.profile(
        gemm=gemm_section(A100, sources),
        attention=AttentionSection(fit=attention, provenance=A100.words("attention")),
        pointwise=PointwiseSection(fits=tuple(pointwise), provenance=A100.words("pointwise")),
        collectives=collective_section(A100, nodes),
        contention=ContentionSection(fit=law, provenance=A100.words("contention", error, **told)),
        launch=launch_section(), power=capped_section(A100, sources, _gemms(A100, sources)),
    )  # fmt: skip
    return _with_experts(made, sources)


def h100_profile(sources: Sources) -> Profile:
    """Return DGX H100 nodes, one or several over 8×400 Gb/s InfiniBand."""
    h200, overlapped, machine = h200_ops(sources), a100_overlap(sources), H100.machine
    attention, own = h100_attention(sources, machine), rewritten_rows(H100, sources)
    pointwise = transferred(h200, machine, own=own)
    fitted = statistics.fmean(fit.error for fit in pointwise if fit.kind == "fitted")
    met = collective_slowdown(sources.ours("contention"))
    law = overlap_law(
        overlapped.fit, sm_count=machine.sm_count, default_ctas=NVLS_CTAS, kind="assumed",
        error=ASSUMED_SLOWDOWN,
    )  # fmt: skip
    law = replace(law, collective=replace(law.collective, error=met.error))
    words = {
        "attention": H100.words("attention", attention.error, transfer=TRANSFER_ERROR),
        "pointwise": H100.words("pointwise", rounded(fitted, 2)),
        "contention": H100.words("contention", cells=overlapped.cells, off=met.error),
    }
    small = small_heads(attention_law(h200), sources, transfer=True)
    made = H100.profile(
        gemm=gemm_section(H100, sources, h200),
        attention=AttentionSection(fit=attention, others=(small,), provenance=words["attention"]),
        pointwise=PointwiseSection(fits=tuple(pointwise), provenance=words["pointwise"]),
        collectives=_h100_collectives(sources),
        contention=ContentionSection(fit=law, provenance=words["contention"]),
        launch=launch_section(), power=capped_section(H100, sources, _gemms(H100, sources)),
    )  # fmt: skip
    return _with_experts(with_quantized(made, sources), sources)


def h200_profile(sources: Sources) -> Profile:
    """Return our records of one GPU; collectives are an H100's, which has the same NVLink."""
    ops, collectives, fit = h200_ops(sources), _h100_collectives(sources), _beside(sources)
    there = collectives.provenance
    assert fit.memory is not None
    contention = H200.words(
        "contention", fit.law("gemm").error, queue=fit.memory.error, off=fit.collective.error,
        errors=", ".join(f"{one.family} {one.error:.1%}" for one in fit.compute),
    )  # fmt: skip
    taken = H200.words("collectives", source=there.source, there=there.note)
    made = replace(
        ops, attention=attention_section(ops, sources),
        collectives=replace(collectives, provenance=taken),
        contention=ContentionSection(fit=fit, provenance=contention),
        launch=launch_section(H200, sources.ours("launch")), power=capped_section(H200, sources),
    )  # fmt: skip
    return _with_experts(with_quantized(made, sources), sources)


def b200_profile(sources: Sources) -> Profile:
    """Return one node's op tables, which SimuMax published; the rest assumed."""
    attention, gap_us = b200_attention(b200_rows(sources), B200.machine.sm_count)
    pointwise, like = pointwise_fits(B200, sources, h200_ops(sources))
    gemm, rates = b200_gemms(B200, sources), B200.told["pointwise"]["rates"]
    told = {"fixed_us": like.fixed_us, "streamed": ", ".join(rates["default"])}
    words = B200.words("pointwise", POINTWISE_DEFAULT.error, **told)
    power = capped_section(B200, sources, gemm.rows)
    return _blackwell(
        B200, sources, gemm=gemm,
        attention=AttentionSection(
            fit=attention, provenance=B200.words("attention", attention.error, gap_us=gap_us)
        ),
        pointwise=PointwiseSection(fits=tuple(pointwise), provenance=words),
        collectives=collective_section(B200, b200_collectives(sources)),
        power=replace(power, gemm_mhz=gemm_mhz(B200, sources)),
    )  # fmt: skip


def served_profile(gpu: Gpu, sources: Sources) -> Profile:
    """Return a node or rack that an inference planner's tables time; the rest assumed."""
    attention, machine = served_attention(gpu, sources), gpu.machine
    pointwise, _ = pointwise_fits(B200, sources, h200_ops(sources))
    faster = machine.memory_bandwidth_gb_s / B200.machine.memory_bandwidth_gb_s
    fits = tuple(as_assumed(fit, faster) for fit in pointwise)
    words = gpu.words("attention", attention.error)
    return _blackwell(
        gpu, sources, gemm=served_gemms(gpu, sources),
        attention=AttentionSection(fit=attention, provenance=words),
        pointwise=PointwiseSection(fits=fits, provenance=gpu.words("pointwise")),
        collectives=collective_section(gpu, blackwell_collectives(gpu, sources)),
        power=with_bursts(gpu, sources, capped_section(gpu, sources)),
    )  # fmt: skip


BUNDLED: Final[dict[str, Callable[[Sources], Profile]]] = {
    "h100-dgx": h100_profile, "a100-sxm": a100_profile, "b200-sxm": b200_profile,
    "h200-sxm": h200_profile,
    **{name: partial(served_profile, Gpu(name))
       for name in ("gb200-nvl72", "gb300-nvl72", "b300-sxm")},
}  # fmt: skip
"""Name → what makes the profile."""


def _blackwell(gpu: Gpu, sources: Sources, **sections: Any) -> Profile:
    """Return the profile of these sections, with our H200's law of contention assumed."""
    h200, machine = h200_ops(sources), gpu.machine
    faster = machine.memory_bandwidth_gb_s / h200.machine.memory_bandwidth_gb_s
    law = assumed_law(
        _beside(sources), sm_count=machine.sm_count, attained_gb_s=attained_gb_s(h200) * faster
    )
    told = {"sms": machine.sm_count, "ctas": law.default_ctas, "off": law.collective.error}
    contention = ContentionSection(fit=law, provenance=gpu.words("contention", **told))
    made = gpu.profile(contention=contention, launch=launch_section(), **sections)
    return _with_experts(with_quantized(made, sources), sources)


def _with_experts(profile: Profile, sources: Sources) -> Profile:
    like = B200.name if profile.machine.fp8_any_layout else profile.name
    return with_experts(profile, sources, lambda: _trainer(like, sources))


@cache
def _trainer(name: str, sources: Sources) -> Trainer:
    return trainer_on(Gpu(name), sources)


def _gemms(gpu: Gpu, sources: Sources) -> tuple[GemmRow, ...]:
    return gemm_csv(sources.table(gpu.told["gemm"]["table"])).rows


def _h100_collectives(sources: Sources) -> CollectiveSection:
    nodes = collectives_of(sources, "h100_nodes_all_reduce")
    fits = (*node_collectives(H100, sources), *nodes, *multimem_collectives(sources))
    return collective_section(H100, fits)


def _beside(sources: Sources) -> ContentionFit:
    attained, sm_count = attained_gb_s(h200_ops(sources)), H200.machine.sm_count
    return beside_law(sources.ours("contention"), sm_count=sm_count, attained_gb_s=attained)


# Experts ------------------------------------------------------------------------------------------

WORDS: Final = Description("experts")
PERMUTES: Final = {
    "moe_permute": "permute_fwd", "moe_unpermute": "permute_bwd", "moe_sort": "permute_fwd",
}  # fmt: skip
"""Op -> its rate in SimuMax's table: the weighted sum is the backward of a gather."""
B200_GB_S: Final = 8000.0
LIKE: Final = "add"
"""Op whose fixed cost permutations get."""


def with_experts(profile: Profile, sources: Sources, there: Callable[[], Trainer]) -> Profile:
    """Return the profile with laws of experts; ``there``: a trainer's level on its generation."""
    gpu, collectives, pointwise = profile.name.partition("-")[0], *map(
        profile.section, ("collectives", "pointwise")
    )  # fmt: skip
    fits = {fit.group: fit for fit in (*collectives.fits, *exchanges(gpu, sources))}
    permutes, share = permutations(profile, sources)
    made = replace(
        profile,
        collectives=replace(
            collectives, fits=tuple(fits[group] for group in sorted(fits)),
            provenance=_noted(collectives.provenance, "collectives"),
        ),
        pointwise=replace(
            pointwise, fits=(*pointwise.fits, *permutes),
            provenance=_noted(pointwise.provenance, "pointwise", share=share),
        ),
    )  # fmt: skip
    if gpu == "a100":
        return made
    trainer, on, latent = there(), "_hopper" if gpu in HOPPER else "", latent_level(sources)
    forward, dgrad, wgrad = (trainer.times[x] for x in ("forward", "dgrad", "wgrad"))
    words = WORDS.words(
        f"grouped{on}", trainer.error, forward=forward.flops, dgrad=dgrad.flops / forward.flops,
        wgrad=wgrad.flops / forward.flops, memory=wgrad.memory, apart=trainer.error,
    )  # fmt: skip
    gemm, attention = profile.section("gemm"), profile.section("attention")
    law = latent_attention(gpu, sources, profile.machine)
    noted = _noted(
        attention.provenance, f"attention{on}", level=f"{latent.times:.2f}",
        ratio=f"{latent.backward_ratio:.2f}", apart=f"{latent.backward_error:.0%}",
        over=f"{latent.over:.1f}",
    )  # fmt: skip
    return replace(
        made, gemm=replace(gemm, grouped=grouped_gemms(profile, sources, trainer, words)),
        attention=replace(attention, others=(*attention.others, law), provenance=noted),
    )  # fmt: skip


def _noted(words: Provenance, section: str, **facts: object) -> Provenance:
    more = str(WORDS.told[section]["note"]).format(**facts)
    return replace(words, note=f"{words.note or ''} {more}".strip())


def permutations(profile: Profile, sources: Sources) -> tuple[list[PointwiseFit], float]:
    """Return laws of moving experts' tokens and of the router, and their share of bandwidth."""
    laws = {name: fit for fit in profile.section("pointwise").fits for name in fit.names}
    rates, faster = rates_gb_s(sources), profile.machine.memory_bandwidth_gb_s / B200_GB_S
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
