"""The B200 profile is what the published tables say, in our laws."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from lab.fits.attention import b200_attention, b200_rows
from lab.fits.blackwell import gemm_rows, rates_gb_s
from lab.fits.common import Sources
from simulator.lookup.collective_law import MIB
from simulator.lookup.gemm import GemmRow
from simulator.ops import Attention, Collective, CollectiveKind, Gemm, Pointwise
from tests.conftest import DATA

SOURCES = Sources(DATA, DATA.parent / "measurements")
PROFILE = load_profile("b200-sxm")
FOLDS = 5


def weight_of(row: GemmRow) -> tuple[int, int]:
    """(out, in) of the linear layer whose GEMM it is."""
    return {
        "forward": (row.n, row.k), "dgrad": (row.k, row.n), "wgrad": (row.m, row.n)
    }[row.layout]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "limit"), [("forward", 0.135), ("dgrad", 0.09), ("wgrad", 0.09)]
)
def test_layers_that_were_withheld_are_looked_up(layout: str, limit: float) -> None:
    """All GEMMs of a fifth of the weights are withheld at a time; gradients that add in fp32."""
    section = PROFILE.section("gemm")
    weights = sorted({weight_of(row) for row in section.rows})
    random.Random(0).shuffle(weights)
    errors = []
    for fold in range(FOLDS):
        out = set(weights[fold::FOLDS])
        known = tuple(row for row in section.rows if weight_of(row) not in out)
        table = replace(PROFILE, gemm=replace(section, rows=known)).gemm_table()
        errors += [
            abs(table.estimate(row.signature).duration_us / row.median_us - 1)
            for row in section.rows
            if weight_of(row) in out and (row.layout, row.accumulate) == (layout, layout == "wgrad")
        ]
    assert len(errors) == 144
    assert statistics.fmean(errors) < limit
    assert statistics.median(errors) < 0.09


def test_a_published_gemm_is_looked_up_as_published() -> None:
    estimate = PROFILE.gemm_table().estimate(Gemm(4096, 10240, 8192))
    assert (estimate.duration_us, estimate.source) == (473.401, "measured")
    assert estimate.error == 0.21  # as far as its sources differ
    assert PROFILE.section("gemm").rows == gemm_rows(SOURCES)
    adding = Gemm(10240, 8192, 4096, "wgrad", accumulate=True)
    assert PROFILE.gemm_table().estimate(adding).duration_us == 510.782
    overwriting = adding._replace(accumulate=False)  # the row that adds to bf16
    assert PROFILE.gemm_table().estimate(overwriting).duration_us == 474.920


def test_weight_gradients_that_were_timed_twice_scatter_as_stated() -> None:
    by_signature = {row.signature: row.median_us for row in gemm_rows(SOURCES)}
    ratios = [
        us / by_signature[signature._replace(accumulate=False)]
        for signature, us in by_signature.items()
        if signature.accumulate and signature._replace(accumulate=False) in by_signature
    ]
    middle = statistics.median(ratios)
    robust = 1.4826 * statistics.median(abs(ratio / middle - 1) for ratio in ratios)
    assert len(ratios) == 82
    assert 1.05 < middle < 1.08  # 4 bytes more for each element, at k = 4,096: 6 % at 8 TB/s
    assert robust / 2**0.5 == pytest.approx(0.04, abs=0.004)


def test_attention_is_the_table_without_the_hosts_gaps() -> None:
    rows = b200_rows(SOURCES)
    fit, gap_us = b200_attention(rows, 148)
    bundled = PROFILE.section("attention").fit
    assert replace(fit, row_ns=0.0) == replace(bundled, row_ns=0.0)
    assert max(fit.row_ns, bundled.row_ns) < 1e-12  # none; its digits hang on the processor
    assert 40 < gap_us < 60
    for direction, limit in (("forward", 0.08), ("backward", 0.15)):
        errors = []
        for row in rows:
            if row.direction == direction:
                us = PROFILE.attention_table().estimate(row.signature).duration_us
                errors.append(abs(us / (row.median_us - gap_us * (direction == "forward")) - 1))
        assert len(errors) == 13
        assert statistics.fmean(errors) < limit


def test_contiguity_changes_attention_by_little() -> None:
    contiguous = {row.signature: row.median_us for row in b200_rows(SOURCES)}
    others = b200_rows(SOURCES, contiguous=False)
    more = [row.median_us / contiguous[row.signature] - 1 for row in others]
    assert len(more) == 18
    assert statistics.fmean(more) == pytest.approx(0.01, abs=0.002)
    assert max(more) < 0.055


def test_attention_of_one_head_alone_is_its_longest_tile() -> None:
    few, many = (
        PROFILE.attention_table().estimate(Attention(1, heads, heads, 4096, 128)).duration_us
        for heads in (1, 64)
    )
    assert few < 60
    assert 4 * few < many


@pytest.mark.parametrize(
    ("op", "ranks", "mib", "us"),
    [
        # 64 MiB: 67,108,864 bytes × 2 × 7/8 over 0.7424 of 900 GiB/s; 5.5183 × 7 × 2 + 22.2316
        ("all_reduce", 8, 64, 163.696 + 99.4878),
        ("all_reduce", 2, 64, 93.541 + 33.2682),
        ("all_gather", 4, 16, 19.333 + 50.6533),
        ("reduce_scatter", 8, 256, 361.10 + 81.7879),
        # 900 GiB/s × 1.4517 counts both directions
        ("send_recv", 2, 64, 95.673 + 16.0668),
    ],
)
def test_collectives_are_the_authors_formulas(
    op: CollectiveKind, ranks: int, mib: int, us: float
) -> None:
    estimate = PROFILE.collective_table().estimate(Collective(op, mib * MIB, 1, ranks))
    assert estimate.duration_us == pytest.approx(us, rel=1e-4)
    assert estimate.source == ("assumed" if op == "send_recv" else "fitted")


@pytest.mark.parametrize("mib", [1, 64, 1024])
def test_no_collective_is_faster_than_nvlink(mib: int) -> None:
    """A rank sends and receives 900 GB/s; a switch that reduces halves what all-reduces send."""
    for op, ranks, share in (
        ("all_reduce", 8, 1.0), ("all_gather", 8, 7 / 8), ("reduce_scatter", 2, 1 / 2),
        ("send_recv", 2, 1.0),
    ):  # fmt: skip
        size = mib * MIB
        us = PROFILE.collective_table().estimate(Collective(op, size, 1, ranks)).duration_us  # type: ignore[arg-type]
        assert share * size / us / 1e3 < 900


def test_several_nodes_are_assumed() -> None:
    estimate = PROFILE.collective_table().estimate(Collective("all_reduce", 64 * MIB, 2, 8))
    assert estimate.source == "assumed"


def test_streaming_ops_have_the_published_rate_and_no_launch() -> None:
    rates = rates_gb_s(SOURCES)
    assert rates["default"] == pytest.approx(8000 * 1.073741824 * 0.666, rel=1e-4)
    table = PROFILE.pointwise_table()
    size = 1 << 29
    for name, rate in (
        ("rmsnorm", "default"), ("fused_cross_entropy", "ce_fusion"),
        ("unfused_cross_entropy", "ce"),
    ):  # fmt: skip
        us = table.estimate(Pointwise(name, size, size)).duration_us
        assert us - 2 * size / rates[rate] / 1e3 == pytest.approx(2.883, abs=0.1)
    assert table.estimate(Pointwise("adam", size, size)).source == "assumed"
