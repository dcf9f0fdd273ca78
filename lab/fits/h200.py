"""The bundled H200 profile, from our own measurements of one GPU (``measurements/``).

A node's collectives come from the bundled H100 profile: both GPUs have the same NVLink.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lab.fits.common import OURS, Sources
from lab.fits.contention import beside_law
from lab.fits.h100 import STATE, STATE_NOTE, h100_collectives
from lab.fits.launch import launch_section
from lab.fits.measured import MACHINE, attained_gb_s, attention_section, h200_ops
from lab.fits.power import Cap, capped_section
from simulator.contention import ContentionFit
from simulator.profile import ContentionSection, Profile
from simulator.provenance import Provenance

CAP: Final = Cap(boost_mhz=1980, cap_w=700.0, boost_kind="measured", seen=True)
ASSUMED_COLLECTIVES: Final = 0.1
"""Expected error of an H100's collective on an H200."""


def h200_profile(sources: Sources) -> Profile:
    """Return the profile of our records; collectives, which one GPU cannot show, are H100's."""
    ops, collectives, contention = (
        h200_ops(sources), h100_collectives(sources), h200_contention(sources)
    )  # fmt: skip
    return replace(
        ops,
        attention=attention_section(ops),
        collectives=replace(
            collectives,
            provenance=replace(
                collectives.provenance,
                kind="assumed",
                error=ASSUMED_COLLECTIVES,
                note="Taken over from h100-dgx: H200 nodes have the same NVLink, NVSwitch and "
                f"network. There: {collectives.provenance.note}",
            ),
        ),
        contention=ContentionSection(
            fit=contention,
            provenance=Provenance(
                kind="fitted",
                source=OURS,
                error=contention.law("gemm").error,
                note=_contention_note(contention),
            ),
        ),
        launch=launch_section(sources.ours("launch")),
        power=capped_section(sources, CAP, STATE, STATE_NOTE),
    )


def h200_contention(sources: Sources) -> ContentionFit:
    """Return the law of our records."""
    attained = attained_gb_s(h200_ops(sources))
    return beside_law(
        sources.ours("contention"), sm_count=MACHINE.sm_count, attained_gb_s=attained
    )  # fmt: skip


def _contention_note(fit: ContentionFit) -> str:
    errors = ", ".join(f"{one.family} {one.error:.1%}" for one in fit.compute)
    assert fit.memory is not None
    return (
        "Ops beside an emulated collective (C CTAs that stream through HBM), C = 1 to 32. Errors "
        f"with each op left out: {errors}. A GEMM loses the same time by a CTA however long it is: "
        "its last wave. Beside GEMMs and attention these collectives lasted as long as the ops "
        "that they met: they get in when such an op ends, or in a GEMM's last wave where that "
        "leaves them SMs (simulator.waves). Beside pointwise ops they wait for memory: "
        f"{fit.memory.error:.1%} with each op left out. Assumed: that all this holds below 70 us, "
        "and that NCCL's CTAs wait as these do; the collective's own factor, A100's, which is with "
        f"these waits {fit.collective.error:.0%} off on average beside pointwise ops; two "
        "collectives sharing links half speed each, not sharing them 1.1 times."
    )
