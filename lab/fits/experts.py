"""What a profile needs to price mixture-of-experts layers, beside its laws of dense ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Final

from lab.fits.attention import fit_forward
from lab.fits.common import Description, Sources, rounded
from lab.fits.exchange import exchanges
from lab.fits.grouped import Trainer, grouped_gemms
from lab.fits.simumax import rates_gb_s
from simulator.lookup.attention import AttentionFit, AttentionRow
from simulator.lookup.expected import POINTWISE_DEFAULT
from simulator.lookup.pointwise import DEFAULT, PointwiseFit
from simulator.profile import Machine, Profile
from simulator.provenance import Provenance

WORDS: Final = Description("experts")
LATENT: Final = (192, 128)
"""Elements of a key and of a value of DeepSeek's latent attention."""
LATENT_BACKWARD: Final = (3.0, 0.2)
"""Its backward over its forward, assumed, and the error of that."""
LEAST_ROWS: Final = 16384
"""Query rows of all heads, below which a launch is most of the time."""
SORT: Final = "moe_sort"
PERMUTES: Final = {
    "moe_permute": "permute_fwd", "moe_unpermute": "permute_bwd", SORT: "permute_fwd",
}  # fmt: skip
"""Op -> its rate in SimuMax's table: the weighted sum is the backward of a gather."""
B200_GB_S: Final = 8000.0
LIKE: Final = "add"
"""Op whose fixed cost permutations get."""


def with_experts(profile: Profile, sources: Sources, there: Callable[[], Trainer]) -> Profile:
    """Return the profile with laws of experts; ``there`` tells a trainer's level on
    the GPU of its generation that shows it."""
    gpu, machine = profile.name.partition("-")[0], profile.machine
    collectives, pointwise = profile.section("collectives"), profile.section("pointwise")
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
    trainer, attention = there(), profile.section("attention")
    forward, dgrad, wgrad = (trainer.times[x] for x in ("forward", "dgrad", "wgrad"))
    words = WORDS.words(
        "grouped", trainer.error, forward=forward.flops, dgrad=dgrad.flops / forward.flops,
        wgrad=wgrad.flops / forward.flops, memory=wgrad.memory, apart=trainer.error,
    )  # fmt: skip
    return replace(
        made,
        gemm=replace(
            profile.section("gemm"), grouped=grouped_gemms(profile, sources, trainer, words)
        ),
        attention=replace(
            attention, others=(latent_attention(gpu, sources, machine),),
            provenance=_noted(attention.provenance, "attention"),
        ),
    )  # fmt: skip


def _noted(words: Provenance, section: str, **facts: object) -> Provenance:
    """Return a section's provenance with what is said of experts."""
    more = str(WORDS.told[section]["note"]).format(**facts)
    return replace(words, note=f"{words.note or ''} {more}".strip())


def latent_attention(gpu: str, sources: Sources, machine: Machine) -> AttentionFit:
    """Return the law of a GPU's latent attention."""
    table = "moe" if gpu in ("h100", "h200", "b200") else "blackwell"
    keys, values = LATENT
    rows = [
        AttentionRow(
            batch=int(row["batch"]), heads=int(row["heads"]), kv_heads=int(row["heads"]),
            seq=int(row["seq"]), head_dim=keys, v_head_dim=values, median_us=float(row["us"]),
        )
        for row in sources.rows(f"{table}/mla_forward_bf16.csv.gz")
        if row["gpu"] == gpu
    ]  # fmt: skip
    rows = [row for row in rows if row.batch * row.heads * row.seq >= LEAST_ROWS]
    ratio, error = LATENT_BACKWARD
    law = fit_forward(rows, sm_count=machine.sm_count)
    return replace(law, backward_ratio=ratio, backward_error=error)


def permutations(profile: Profile, sources: Sources) -> tuple[list[PointwiseFit], float]:
    """Return the laws of moving experts' tokens and of the router, and permutation's share of the
    bandwidth."""
    section, machine = profile.section("pointwise"), profile.machine
    laws = {name: fit for fit in section.fits for name in fit.names}
    rates, faster = rates_gb_s(sources), machine.memory_bandwidth_gb_s / B200_GB_S
    like = laws.get(LIKE) or laws[DEFAULT]
    found = []
    for name, rate in PERMUTES.items():
        known = name != SORT and profile.name.startswith("b200")
        gb_s = rounded(rates[rate] * faster)
        found.append(
            replace(
                like, names=(name,), kind="fitted" if known else "assumed", small_gb_s=gb_s,
                knee_bytes=1, large_gb_s=gb_s, error=POINTWISE_DEFAULT.error,
            )
        )  # fmt: skip
    router = replace(
        laws[DEFAULT], names=("moe_router",), kind="assumed", error=POINTWISE_DEFAULT.error
    )
    every = sorted((*found, router), key=attrgetter("names"))
    return every, rates["permute_fwd"] / B200_GB_S
