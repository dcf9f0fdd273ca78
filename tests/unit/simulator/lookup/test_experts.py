"""Grouped GEMMs: by rows an expert and experts, at the level of a trainer's calls."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import Provenance
from simulator.lookup.experts import (
    DEFAULT_SMS,
    GroupedFit,
    GroupedLaw,
    GroupedRow,
    Times,
    network_bytes,
    reached,
)
from simulator.ops import Collective, CollectiveKind, Gemm, Layout
from simulator.profile import GroupedGemms

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


# Dispatch and combine -----------------------------------------------------------------------------
# By bytes, ranks, nodes and the SMs that they hold.

MB = 1_000_000
ROW = 14336
"""Bytes of a token of DeepSeek-V3."""
OPS: tuple[CollectiveKind, ...] = tuple(DEFAULT_SMS)
NODES = (*HOPPER, "b200-sxm", "b300-sxm")
RACKS = ("gb200-nvl72", "gb300-nvl72")


def us(name: str, c: Collective) -> float:
    """What a bundled profile says."""
    return load_profile(name).collective_table().estimate(c).duration_us


@pytest.mark.parametrize(("name", "op"), list(itertools.product((*NODES, *RACKS), OPS)))
def test_more_bytes_take_longer_and_more_sms_no_longer(name: str, op: CollectiveKind) -> None:
    for nodes, per_node in ((1, 8), (1, 32)) if name in RACKS else ((1, 8), (2, 8), (4, 8)):
        one = Collective(op, 200 * MB, nodes, per_node, row_bytes=ROW)
        assert us(name, one) < us(name, one._replace(size_bytes=400 * MB))
        few, some, many = (us(name, one._replace(ctas=sms)) for sms in (2, 10, 20))
        assert few > some
        assert many <= 1.05 * some


@pytest.mark.parametrize(("name", "op"), list(itertools.product((*NODES, *RACKS), OPS)))
def test_short_rows_take_longer_by_the_byte(name: str, op: CollectiveKind) -> None:
    long = Collective(op, 200 * MB, 1, 8, 16, row_bytes=ROW)
    assert us(name, long) <= us(name, long._replace(row_bytes=4096)) < 2.6 * us(name, long)


@pytest.mark.parametrize(
    ("hidden", "tokens", "op", "row_bytes", "measured_us"),
    [
        (2048, 32768, "deepep_combine", 4096, 2490.0),
        (7168, 32768, "deepep_combine", 14336, 5082.0),
        (2048, 32768, "deepep_dispatch", 2112, 1935.0),
    ],
)  # fmt: skip
def test_rows_of_each_model_are_near_their_timing(
    hidden: int, tokens: int, op: CollectiveKind, row_bytes: int, measured_us: float
) -> None:
    size = round(tokens * 5.3 * row_bytes)  # 24 SMs of a B200: deepep_one_node.csv.gz
    found = us("b200-sxm", Collective(op, size, 1, 8, 24, row_bytes=row_bytes))
    assert found == pytest.approx(measured_us, rel=0.15), hidden


@pytest.mark.parametrize("op", OPS)
def test_no_number_of_sms_is_the_librarys_own(op: CollectiveKind) -> None:
    one = Collective(op, 200 * MB, 1, 8)
    assert us("b200-sxm", one) == us("b200-sxm", one._replace(ctas=DEFAULT_SMS[op]))


@pytest.mark.parametrize(
    ("tokens", "op", "copy_bytes", "measured_us"),
    [(4096, "deepep_dispatch", 7392, 492.2), (4096, "deepep_combine", 14336, 982.7)],
)
def test_deepep_in_a_node_is_near_its_row(
    tokens: int, op: CollectiveKind, copy_bytes: int, measured_us: float
) -> None:
    size = round(tokens * 5.27 * copy_bytes)  # top-8 of 256 experts on 8 ranks
    one = Collective(op, size, 1, 8, 20, row_bytes=copy_bytes)
    found = load_profile("h100-dgx").collective_table().estimate(one)
    assert found.duration_us == pytest.approx(measured_us, rel=0.15)
    assert (found.source, 0.05 < found.error < 0.2) == ("fitted", True)


def test_on_blackwell_the_error_reaches_the_later_version() -> None:
    size = round(8192 * 5.27 * 14336)
    one = Collective("deepep_combine", size, 1, 8, 24, row_bytes=ROW)
    found = load_profile("b200-sxm").collective_table().estimate(one)
    assert (1 - found.error) * found.duration_us <= 1.06 * size / 675e3


def test_the_network_carries_a_copy_a_node() -> None:
    assert reached(1) == 1
    assert reached(8) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    two = Collective("deepep_dispatch", 100 * MB, 2, 8)
    assert network_bytes(two) == pytest.approx(100 * MB * reached(2) / reached(16) / 2)
    assert network_bytes(two._replace(nodes=4)) < 100 * MB * 0.75 * reached(4) / 7
    eight = us("h100-dgx", two._replace(nodes=8))
    assert eight >= network_bytes(two._replace(nodes=8)) / 42.5e3


def test_four_nodes_of_deepep_are_bound_by_the_nics() -> None:
    size = round(4096 * 7.18 * 7392)  # 844 and 1,801 us on 2 and 4 nodes: deepep_nodes.csv.gz
    assert us("h100-dgx", Collective("deepep_dispatch", size, 4, 8, 20)) == pytest.approx(
        1801, rel=0.05
    )


@pytest.mark.parametrize("ranks", [8, 12, 16, 36, 64, 72])
def test_a_rack_is_one_domain(ranks: int) -> None:
    table = load_profile("gb200-nvl72").collective_table()
    found = table.estimate(Collective("hybridep_dispatch", 400 * MB, 1, ranks, row_bytes=ROW))
    assert 500 < found.duration_us < 1200


def test_hybridep_in_a_hopper_node_is_deepeps() -> None:
    one = Collective("hybridep_combine", 200 * MB, 1, 8)
    found = load_profile("h100-dgx").collective_table().estimate(one)
    other = us("h100-dgx", one._replace(op="deepep_combine", ctas=16))
    assert (found.duration_us, found.source) == (other, "assumed")


def test_an_a100_has_no_deepep() -> None:
    table = load_profile("a100-sxm").collective_table()
    with pytest.raises(MissingSectionError, match="dispatcher `alltoall`"):
        table.estimate(Collective("deepep_dispatch", MB, 1, 8))
    assert table.estimate(Collective("all_to_all", MB, 1, 8)).source == "fitted"


def test_an_all_to_all_over_nodes_is_bound_by_each_ranks_nic() -> None:
    one = Collective("all_to_all", 400 * MB, 4, 8)
    wire_us = 400 * MB * 3 / 4 / 42.5e3
    assert us("h100-dgx", one) == pytest.approx(wire_us, rel=0.02)
