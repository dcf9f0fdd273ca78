"""Grouped GEMMs: by rows an expert and experts, at the level of a trainer's calls."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.errors import ProfileError
from simulator.lookup.grouped import GroupedFit, GroupedLaw, GroupedRow, Times
from simulator.ops import Gemm, Layout
from simulator.profile import GroupedGemms
from simulator.provenance import Provenance

GPUS = ("h100-dgx", "h200-sxm", "b200-sxm", "gb200-nvl72", "gb300-nvl72", "b300-sxm")
HOPPER = ("h100-dgx", "h200-sxm")
WORDS = Provenance(kind="fitted", source="a test")


def fits(name: str) -> dict[str, GroupedFit]:
    """The laws of a bundled profile, by dtype."""
    return {fit.dtype: fit for fit in load_profile(name).section("gemm").grouped.fits}


@pytest.mark.parametrize("name", GPUS)
def test_every_dtype_has_a_law(name: str) -> None:
    more = () if name in HOPPER else ("mxfp8", "nvfp4")
    assert set(fits(name)) == {"bf16", "fp8_block", "fp8_tensor", *more}


@pytest.mark.parametrize(
    ("name", "layout"), list(itertools.product(GPUS, ("forward", "dgrad", "wgrad")))
)
def test_more_rows_take_longer_but_less_each(name: str, layout: Layout) -> None:
    table = load_profile(name).gemm_table()

    def us(rows: int, dtype: str) -> float:
        one = Gemm(rows, 3072, 4096, layout, dtype, groups=16)
        if layout == "wgrad":
            one = one._replace(m=3072, n=4096, k=rows, accumulate=True)
        return table.estimate(one).duration_us

    for dtype in fits(name):
        times = [(rows, us(rows, dtype)) for rows in (128, 256, 512, 1024, 2048, 4096, 8192)]
        for (few, less), (many, more) in itertools.pairwise(times):
            assert less < more
            assert more / many <= 1.15 * less / few  # long calls meet the power cap


@pytest.mark.parametrize("name", GPUS)
def test_one_group_is_a_gemm(name: str) -> None:
    profile = load_profile(name)
    section = profile.section("gemm")
    plain = replace(profile, gemm=replace(section, grouped=None)).gemm_table()
    for one in (Gemm(4096, 4096, 4096), Gemm(512, 1536, 2048, "dgrad", "fp8_tensor")):
        assert profile.gemm_table().estimate(one) == plain.estimate(one)
        assert profile.gemm_table().shares(one) == plain.shares(one)


@pytest.mark.parametrize("name", GPUS)
def test_a_call_is_about_as_long_as_a_gemm_an_expert(name: str) -> None:
    table = load_profile(name).gemm_table()
    one = Gemm(2048, 4096, 4096)
    grouped = table.estimate(one._replace(groups=16))
    assert grouped.duration_us == pytest.approx(16 * table.estimate(one).duration_us, rel=0.35)
    assert grouped.source == ("fitted" if name in ("b200-sxm", *HOPPER) else "assumed")
    assert 0.07 <= grouped.error <= 0.3


def test_a_profile_without_a_law_takes_a_gemm_a_group() -> None:
    table = load_profile("a100-sxm").gemm_table()
    one = Gemm(1024, 4096, 4096)
    grouped = table.estimate(one._replace(groups=8))
    assert grouped.duration_us == pytest.approx(8 * table.estimate(one).duration_us)
    assert (grouped.source, grouped.error > 0.25) == ("assumed", True)
    assert table.shares(one._replace(groups=8)) == table.shares(one)


def test_a_timed_call_is_looked_up() -> None:
    table = load_profile("b200-sxm").gemm_table()
    found = table.estimate(Gemm(1024, 4096, 7168, groups=32))
    assert found.duration_us == pytest.approx(1869, rel=0.001)
    assert found.source == "measured"
    adds = table.estimate(Gemm(4096, 7168, 128, "wgrad", accumulate=True, groups=256))
    assert adds.duration_us == pytest.approx(11035, rel=0.001)


def test_few_rows_an_expert_wait_for_weights_and_sums() -> None:
    table = load_profile("h100-dgx").gemm_table()
    _, flops, memory = table.shares(Gemm(32, 4096, 7168, groups=64))
    assert memory > flops
    _, flops, memory = table.shares(Gemm(4096, 4096, 7168, groups=8))
    assert flops > memory
    plain = table.estimate(Gemm(4096, 7168, 128, "wgrad", groups=64)).duration_us
    adds = table.estimate(Gemm(4096, 7168, 128, "wgrad", accumulate=True, groups=64)).duration_us
    assert adds > 1.5 * plain


def test_far_from_the_timings_is_less_sure() -> None:
    table = load_profile("b200-sxm").gemm_table()
    near = table.estimate(Gemm(2000, 4096, 4096, groups=16))
    far = table.estimate(Gemm(64_000, 4096, 4096, groups=16))
    assert far.source == "extrapolated"
    assert far.error > near.error + 0.05


def test_the_law_is_joined_tiles_and_bytes() -> None:
    fit = fits("h100-dgx")["bf16"]
    law = GroupedLaw(fit, 132)
    alike = Times(1.0, 1.0)
    four = law.parts(Gemm(1024, 4096, 4096, groups=4), times=alike)
    eight = law.parts(Gemm(1024, 4096, 4096, groups=8), times=alike)
    assert eight.flops_us == pytest.approx(2 * four.flops_us, rel=0.1)
    assert four.total_us == pytest.approx(four.fixed_us + four.flops_us + four.memory_us)


def test_impossible_laws_are_refused() -> None:
    fit = fits("h100-dgx")["bf16"]
    with pytest.raises(ProfileError, match="times must be of forward, dgrad, wgrad"):
        replace(fit, times={"forward": Times(1.0, 1.0)})
    with pytest.raises(ProfileError, match="ranges must be of groups"):
        replace(fit, ranges={"m": (1, 2)})
    with pytest.raises(ProfileError, match="must be > 0"):
        replace(fit, times={**fit.times, "dgrad": Times(0.0, 1.0)})
    with pytest.raises(ProfileError, match="sorted by dtype"):
        GroupedGemms(fits=(fit, fit), provenance=WORDS)
    row = GroupedRow(4, 8, 8, 8, "forward", "bf16", False, 1.0, 0.0, 1)
    with pytest.raises(ProfileError, match="repeats"):
        GroupedGemms(rows=(row, row), provenance=WORDS)
    with pytest.raises(ProfileError, match="groups must be a whole number"):
        GroupedGemms(rows=(row._replace(groups=0),), provenance=WORDS)
