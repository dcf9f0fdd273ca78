"""What a profile needs to price mixture-of-experts layers, beside its laws of dense ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Final

from lab.fits.attention import fit_forward, level, our_rows
from lab.fits.common import TRANSFER_ERROR, Description, Sources, rounded
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
LATENT_BACKWARD_ERROR: Final = 0.2
"""Expected error of its backward on a GPU that takes it from Hopper."""
HOPPER: Final = ("h100", "h200")
OURS: Final = "h200"
HOPPER_SMS: Final = 132
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
    told = "grouped_hopper" if gpu in HOPPER else "grouped"
    words = WORDS.words(
        told, trainer.error, forward=forward.flops, dgrad=dgrad.flops / forward.flops,
        wgrad=wgrad.flops / forward.flops, memory=wgrad.memory, apart=trainer.error,
    )  # fmt: skip
    return replace(
        made,
        gemm=replace(
            profile.section("gemm"), grouped=grouped_gemms(profile, sources, trainer, words)
        ),
        attention=replace(
            attention, others=(*attention.others, latent_attention(gpu, sources, machine)),
            provenance=_noted(
                attention.provenance, "attention_hopper" if gpu in HOPPER else "attention",
                **_told_of_latent(sources),
            ),
        ),
    )  # fmt: skip


def _noted(words: Provenance, section: str, **facts: object) -> Provenance:
    """Return a section's provenance with what is said of experts."""
    more = str(WORDS.told[section]["note"]).format(**facts)
    return replace(words, note=f"{words.note or ''} {more}".strip())


def latent_attention(gpu: str, sources: Sources, machine: Machine) -> AttentionFit:
    """Return the law of a GPU's latent attention: the table's forward, on Hopper at the level of
    our H200's rows; elsewhere backward takes as many times the table's forward as there."""
    law = _served_latent(gpu, sources, machine.sm_count)
    rows, there = our_rows(sources, LATENT), _served_latent(OURS, sources, HOPPER_SMS)
    if gpu in HOPPER:
        return level(there, rows).of(law, transfer=0.0 if gpu == OURS else TRANSFER_ERROR)
    return replace(
        law, backward_ratio=_over_table(there, rows), backward_error=LATENT_BACKWARD_ERROR
    )


def _over_table(law: AttentionFit, rows: Sequence[AttentionRow]) -> float:
    """Return what our rows take backward over the table's law forward."""
    found = level(law, rows)
    return rounded(found.times * found.backward_ratio, 2)


def _told_of_latent(sources: Sources) -> dict[str, str]:
    there, rows = _served_latent(OURS, sources, HOPPER_SMS), our_rows(sources, LATENT)
    found = level(there, rows)
    return {
        "level": f"{found.times:.2f}", "ratio": f"{found.backward_ratio:.2f}",
        "apart": f"{found.backward_error:.0%}", "over": f"{_over_table(there, rows):.1f}",
    }  # fmt: skip


@cache
def _served_latent(gpu: str, sources: Sources, sm_count: int) -> AttentionFit:
    """Return the forward law of an inference server's latent attention."""
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
    return fit_forward(rows, sm_count=sm_count)


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
