"""Profiles of Blackwell are what their tables say, and say what the tables lack."""

from __future__ import annotations

import statistics

import pytest

from domino_tune.store.assumptions import assumptions
from domino_tune.store.profiles import load_profile
from lab.fits.blackwell import gemm_rows, sources_differ
from lab.fits.common import Sources
from lab.fits.quantized import Casts, no_slower_than_larger
from simulator.lookup.gemm_law import make_law
from simulator.lookup.gemm_table import StoredCurves
from simulator.ops import Collective, Gemm
from tests.conftest import DATA

SOURCES = Sources(DATA, DATA.parent / "measurements")
OWN = ("b300-sxm", "gb200-nvl72", "gb300-nvl72")
RACKS = ("gb200-nvl72", "gb300-nvl72")
WITHHELD = 0.04


@pytest.mark.parametrize("name", [*OWN, "b200-sxm"])
def test_a_pair_that_was_withheld_is_looked_up(name: str) -> None:
    profile = load_profile(name)
    for fit in profile.section("gemm").fits:
        law = make_law(fit.law, fit.params, profile.machine.sm_count)
        assert StoredCurves(fit.curves, law).leave_out_error < WITHHELD, fit.dtype


@pytest.mark.parametrize("name", OWN)
def test_a_bf16_row_is_looked_up_as_it_was_timed(name: str) -> None:
    table = load_profile(name).gemm_table()
    rows = SOURCES.rows(f"fp8/{name.partition('-')[0]}_gemm_fp8.csv.gz")[::97]
    off = [abs(table.estimate(Gemm(*row[:3])).duration_us / row.bf16_us - 1) for row in rows]
    assert statistics.fmean(off) < 0.02


def test_an_fp8_call_is_its_cast_and_its_gemm() -> None:
    table, casts = load_profile("gb200-nvl72").gemm_table(), Casts("gb200", SOURCES)
    (row,) = SOURCES.rows("fp8/gb200_gemm_fp8.csv.gz", m=8192, n=8192, k=8192)
    gemm = table.estimate(Gemm(8192, 8192, 8192, dtype="fp8_tensor"))
    whole = gemm.duration_us + casts.us("fp8_tensor", 8192, 8192)
    assert whole == pytest.approx(row.fp8_tensor_us, rel=0.03)
    assert gemm.source == "fitted"
    alike = table.estimate(Gemm(8192, 8192, 8192, dtype="mxfp8"))
    assert (alike.duration_us, alike.source, alike.error) == (gemm.duration_us, "assumed", 0.1)


def test_a_searched_kernel_is_no_slower_than_that_of_a_larger_gemm() -> None:
    rows = [(1, 8, 8, 9.0), (2, 8, 8, 7.0), (1, 16, 8, 8.0), (2, 16, 8, 10.0)]
    assert [row[3] for row in no_slower_than_larger(rows)] == [7.0, 7.0, 8.0, 10.0]


def test_sources_of_a_b200s_gemms_differ_by_more_than_the_clock() -> None:
    assert sources_differ(SOURCES, gemm_rows(SOURCES)) == (1.37, 1.13)
    listed = [one.what for one in assumptions(load_profile("b200-sxm")) if one.where == "gemm"]
    assert any("1.37 times as fast" in what for what in listed)
    assert any("80 of 514 rows fit the L2" in what for what in listed)


@pytest.mark.parametrize("name", RACKS)
def test_a_racks_links_are_those_of_a_node(name: str) -> None:
    table = load_profile(name).collective_table()
    node = load_profile("b300-sxm").collective_table()
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        tray, there = (
            one.estimate(Collective(op, 1 << 29, 1, 4)).duration_us for one in (table, node)
        )
        assert tray == pytest.approx(there, rel=0.02)
        far = table.estimate(Collective(op, 1 << 30, 1, 72))
        assert far.duration_us > table.estimate(Collective(op, 1 << 30, 1, 8)).duration_us
        assert far.source == ("extrapolated" if name == "gb200-nvl72" else "assumed")


def test_a_rack_beyond_its_tray_is_assumed_on_gb300() -> None:
    of_8 = Collective("all_reduce", 1 << 26, 1, 8)
    own, other = (load_profile(name).collective_table().estimate(of_8) for name in RACKS)
    assert (own.source, other.source) == ("fitted", "assumed")
    assert own.duration_us == other.duration_us
    assert other.error == 0.1
