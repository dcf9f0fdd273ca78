"""FP8 on Hopper is what the tables and our H100's records say."""

from __future__ import annotations

import statistics

import pytest

from domino_tune.store.profiles import load_profile
from lab.fits.common import Sources
from lab.fits.quantized import LAYOUTS, beside, with_lasting
from simulator.lookup.gemm import GemmFit
from simulator.lookup.gemm_law import make_law
from simulator.lookup.gemm_table import StoredCurves
from simulator.ops import Gemm
from simulator.power import PowerSection
from tests.conftest import DATA

SOURCES = Sources(DATA, DATA.parent / "measurements")
HOPPER = ("h100-dgx", "h200-sxm")
MATHS = ("fp8_block", "fp8_tensor")
WITHHELD = 0.04


def fits_of(name: str) -> dict[str, GemmFit]:
    return {one.dtype: one for one in load_profile(name).section("gemm").fits if one.curves}


def power_of(name: str) -> PowerSection:
    found: PowerSection = load_profile(name).section("power")
    return found


@pytest.mark.parametrize("name", HOPPER)
@pytest.mark.parametrize("math", MATHS)
def test_a_pair_that_was_withheld_is_looked_up(name: str, math: str) -> None:
    fit = fits_of(name)[math]
    assert fit.curves is not None
    law = make_law(fit.law, fit.params, load_profile(name).machine.sm_count)
    assert StoredCurves(fit.curves, law).leave_out_error < WITHHELD


@pytest.mark.parametrize("name", HOPPER)
def test_products_of_backward_are_those_of_our_records(name: str) -> None:
    profile = load_profile(name)
    for math, fit in fits_of(name).items():
        found = list(beside(fit, profile.machine, SOURCES.ours("fp8", name)))
        assert [one.layout for one in found] == list(LAYOUTS)
        assert {one.layout: one.times for one in fit.backward} == {
            one.layout: one.times for one in found[1:]
        }
        assert fit.error >= found[0].error(1.0), math


def test_a_backward_gemm_is_fitted_and_takes_its_times_as_long() -> None:
    table = load_profile("h100-dgx").gemm_table()
    forward, dgrad = (
        table.estimate(Gemm(8192, 8192, 8192, layout, "fp8_block"))
        for layout in ("forward", "dgrad")
    )
    known = next(one for one in fits_of("h100-dgx")["fp8_block"].backward if one.layout == "dgrad")
    assert dgrad.duration_us == pytest.approx(known.times * forward.duration_us)
    assert dgrad.source == "fitted"
    assert dgrad.error == pytest.approx(forward.error + known.error)


def test_the_law_of_power_is_that_of_the_lasting_loads() -> None:
    for name in HOPPER:
        stored = power_of(name)
        found = with_lasting(stored, SOURCES.ours("fp8", name))
        assert (found.gemm_draw, found.gemm_mhz) == (stored.gemm_draw, stored.gemm_mhz)


@pytest.mark.parametrize("name", HOPPER)
def test_loads_that_last_keep_the_clocks_that_were_recorded_beside_bf16s(name: str) -> None:
    law = power_of(name)

    def kept_mhz(math: str) -> int:
        most = law.cap_w - law.idle_w
        return next(mhz for mhz in law.clocks() if law.draw_w("gemm", mhz, mhz, math) <= most)

    clocks = {
        row["case"]: row["clock_mhz"] for row in SOURCES.ours("fp8", name) if "lasting_ns" in row
    }
    for math, recipe in (("fp8_tensor", "tensorwise"), ("fp8_block", "blockwise")):
        measured = clocks[f"lasting {recipe}"] / clocks["lasting bf16"]
        assert kept_mhz(math) / kept_mhz("bf16") == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("name", HOPPER)
def test_a_lasting_load_takes_as_long_as_it_was_recorded(name: str) -> None:
    law, table = power_of(name), load_profile(name).gemm_table()
    row = next(one for one in SOURCES.ours("fp8", name) if one["case"] == "lasting tensorwise")
    tokens, out, wide = row["shape"]
    each = (
        table.estimate(Gemm(tokens, out, wide, "forward", "fp8_tensor")),
        table.estimate(Gemm(tokens, wide, out, "dgrad", "fp8_tensor")),
        table.estimate(Gemm(out, wide, tokens, "wgrad", "fp8_tensor")),
    )
    most = law.cap_w - law.idle_w
    kept = next(mhz for mhz in law.clocks() if law.draw_w("gemm", mhz, mhz, "fp8_tensor") <= most)
    slower = law.stretch("gemm", law.timed_mhz("gemm", 600.0, "fp8_tensor"), kept)
    us = slower * row["calls"] * statistics.fmean(one.duration_us for one in each)
    assert us == pytest.approx(1e-3 * row["lasting_ns"], rel=0.04)
