"""Laws of mixture-of-experts layers, on what was withheld from them."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.facts import SOURCES
from lab.fits.bundled import BUNDLED
from lab.fits.grouped import COLUMNS, layers, served
from lab.fits.grouped_rows import trained_rows
from lab.verdict import at_most, check_table, reported
from simulator.lookup.grouped import GroupedLaw
from simulator.profile import GemmSection, Profile

WITHHELD: Final = 0.08
NOTES: Final = (
    "Forward of a rank's routed experts in inference servers, at most 16,384 tokens of the group, "
    "each model withheld from the fit; layers with a kernel that was not searched well left out.",
)


def grouped() -> list[Table]:
    """Return the errors of grouped GEMMs on withheld models, by GPU and math."""
    checks = []
    for profile in _with_grouped():
        gpu, machine = profile.name.partition("-")[0], profile.machine
        for dtype in COLUMNS:
            if dtype in machine.peak_tflops:
                found = served(layers(gpu, dtype, SOURCES), dtype, machine.sm_count)
                what = f"{profile.name}, {dtype}, {found.layers} layers"
                checks.append(at_most(what, WITHHELD, found.error))
    return [check_table("Grouped GEMMs, models withheld", checks, NOTES)]


def others() -> list[Table]:
    """Return the errors of a trainer's level, of dispatch and combine, and of latent attention."""
    checks, b200 = [], load_profile("b200-sxm")
    fits = {fit.dtype: fit for fit in b200.section("gemm").grouped.fits}
    law = GroupedLaw(fits["bf16"], b200.machine.sm_count)
    for layout in ("forward", "dgrad", "wgrad"):
        off = [
            abs(law.parts(row.signature).total_us / row.median_us - 1)
            for row in trained_rows(SOURCES)
            if row.layout == layout
        ]
        what = f"b200-sxm, {layout} of {len(off)} of TransformerEngine's calls, by the law"
        checks.append(reported(what, f"{fmean(off):.1%}"))
    for name in BUNDLED:
        profile = load_profile(name)
        for op in ("all_to_all", "deepep_dispatch", "deepep_combine", "hybridep_dispatch"):
            mine = [fit.error for fit in profile.section("collectives").fits if fit.op == op]
            if mine:
                mean, worst = fmean(mine), max(mine)
                checks.append(reported(f"{name}, {op}", f"{mean:.1%}, at most {worst:.0%}"))
        for latent in profile.section("attention").others:
            what = f"{name}, attention of {latent.dims[0]} and {latent.dims[1]}, lengths withheld"
            checks.append(reported(what, f"{latent.error:.1%}"))
    return [check_table("Other laws of experts: the errors that profiles state", checks)]


def _with_grouped() -> list[Profile]:
    found = []
    for name in BUNDLED:
        profile = load_profile(name)
        section: GemmSection = profile.section("gemm")
        if section.grouped is not None:
            found.append(profile)
    return found
