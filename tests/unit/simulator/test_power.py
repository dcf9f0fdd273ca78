"""The law of power: draws, elasticities, and the clock at which timings were taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.store.files import bundled_names
from domino_tune.store.profiles import load_profile
from simulator.errors import ProfileError
from simulator.lookup import Provenance
from simulator.power import FAMILIES, NUMBERS, STEP_MHZ, FamilyPower, PowerSection, RowClock


def law(**changes: Any) -> PowerSection:
    families = tuple(
        FamilyPower(family=name, draw_w=draw_w, elasticity=elastic, kind="assumed", error=0.1)
        for name, draw_w, elastic in zip(
            FAMILIES, (800.0, 700.0, 200.0, 100.0), (1.0, 0.5, 0.0, 0.0), strict=True
        )
    )
    made = PowerSection(
        boost_mhz=2000, cap_w=700.0, idle_w=100.0, exponent=2.0, clock_spread=0.05,
        families=families,
        row_clocks=(
            RowClock("attention", 0.0, 1800.0), RowClock("gemm", 0.0, 1800.0),
            RowClock("gemm", 100.0, 1800.0), RowClock("gemm", 10_000.0, 1600.0),
        ),
        kinds=dict.fromkeys(NUMBERS, "assumed"),
        provenance=Provenance(kind="assumed", source="a test"),
    )  # fmt: skip
    return replace(made, **changes)


def stretch(known: PowerSection, family: str, timed_us: float, clock_mhz: int) -> float:
    return known.stretch(family, known.timed_mhz(family, timed_us), clock_mhz)


def draw_w(known: PowerSection, timed_us: float, clock_mhz: int) -> float:
    return known.draw_w("gemm", known.timed_mhz("gemm", timed_us), clock_mhz)


def test_the_clock_of_a_timing_falls_with_the_logarithm_of_its_duration() -> None:
    known = law()
    clocks = [known.timed_mhz("gemm", us) for us in (1.0, 100.0, 1000.0, 10_000.0, 1e6)]
    assert clocks == pytest.approx([1800, 1800, 1700, 1600, 1600])
    assert known.timed_mhz("pointwise", 5.0) == 2000
    steps = law(row_clocks=(RowClock("gemm", 0.0, 1800.0), RowClock("gemm", 1.0, 1600.0)))
    assert [steps.timed_mhz("gemm", us) for us in (0.5, 1.0)] == [1800, 1600]


def test_an_op_is_never_faster_than_it_was_timed() -> None:
    known = law()
    for family in FAMILIES:
        for us in (5.0, 50_000.0):
            factors = [stretch(known, family, us, mhz) for mhz in known.clocks()]
            assert factors == sorted(factors)
            assert factors[0] == 1.0


def test_what_the_clock_decides_is_stretched_by_its_elasticity() -> None:
    known = law()
    assert stretch(known, "gemm", 50.0, 900) == pytest.approx(2.0)
    assert stretch(known, "gemm", 50_000.0, 800) == pytest.approx(2.0)
    assert stretch(known, "attention", 50.0, 900) == pytest.approx(1.5)
    assert stretch(known, "pointwise", 50.0, 900) == stretch(known, "collective", 50.0, 900) == 1


def test_the_draw_goes_with_the_clock_that_an_op_really_has() -> None:
    known = law()
    assert draw_w(known, 50.0, 1000) == pytest.approx(200.0)
    assert draw_w(known, 50.0, 2000) == pytest.approx(800 * 0.81)


def test_clocks_descend_in_steps_from_boost_or_from_the_lock() -> None:
    known = law()
    assert known.clocks()[0] == 2000
    assert known.clocks()[1] == 2000 - STEP_MHZ
    assert known.clocks(1500)[0] == 1500
    assert known.clocks(5000)[0] == 2000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"boost_mhz": 0}, "boost_mhz"),
        ({"idle_w": 0.0}, "idle_w"),
        ({"clock_spread": 1.0}, "clock_spread"),
        ({"cap_w": 100.0}, "above idle_w"),
        ({"exponent": 0.5}, "exponent"),
        ({"row_clocks": (RowClock("gemm", 0.0, 2500.0),)}, "above boost_mhz"),
        ({"row_clocks": (RowClock("gemm", -1.0, 1500.0),)}, "from_us"),
        ({"kinds": {}}, "kinds"),
        ({"families": ()}, "families"),
        ({"row_clocks": (RowClock("gemm", 5.0, 1.0), RowClock("gemm", 0.0, 1.0))}, "sorted"),
        ({"row_clocks": (RowClock("dma", 5.0, 1.0),)}, "family"),
        ({"gemm_mhz": {"nvfp4": 0.0}}, "gemm_mhz"),
        ({"gemm_draw": {"fp8_tensor": 0.0}}, "gemm_draw"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        law(**changes)


def test_fp8_has_a_clock_of_its_own_where_its_bursts_were_timed_at_another() -> None:
    known = load_profile("gb200-nvl72").power
    assert known is not None
    clocks = {math: known.timed_mhz("gemm", 500.0, math) for math in ("bf16", "mxfp8", "nvfp4")}
    assert clocks == {"bf16": 1766, "mxfp8": 1721, "nvfp4": 1607}
    assert known.timed_mhz("attention", 500.0) == 1766


@pytest.mark.parametrize("name", bundled_names())
def test_gemms_without_end_keep_the_cap_at_the_clock_of_record(name: str) -> None:
    known = load_profile(name).power
    assert known is not None
    lasting = {"h100-dgx": 1470, "h200-sxm": 1470, "a100-sxm": 1275}.get(name, 1459)
    watts = known.idle_w + draw_w(known, 1e6, lasting)
    assert 0.98 * known.cap_w <= watts <= 1.002 * known.cap_w


def test_fp8_draws_what_it_draws_beside_bf16() -> None:
    known = law(gemm_draw={"fp8_tensor": 1.2})
    mhz = known.boost_mhz
    bf16, fp8 = (known.draw_w("gemm", mhz, mhz, math) for math in ("bf16", "fp8_tensor"))
    assert bf16 == known.family("gemm").draw_w
    assert fp8 == pytest.approx(1.2 * bf16)
    assert known.boost_w("gemm", "fp8_tensor") == fp8
    assert known.draw_w("attention", mhz, mhz, "") == known.family("attention").draw_w
