"""The law of power: found again from loads that a law itself leaves, run by run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.measure.collect import add_message
from domino_tune.measure.machine import this_machine
from domino_tune.measure.power_law import COMPUTE, MIXED, REST, lacking_loads, power_law
from domino_tune.measure.probe_set import ProbeSet
from domino_tune.store.profiles import dump_profile, load_profile, parse_profile
from simulator.power import PowerSection
from simulator.profile import Profile

ALL = (REST, MIXED, *COMPUTE)
BOOST_MHZ, CAP_W, IDLE_W, BURST_MHZ = 1980, 700.0, 100.0, 1744.0
DRAWS = {"gemm": 1100.0, "attention": 900.0, "pointwise": 420.0}
ELASTICITY = {"gemm": 0.9, "attention": 0.8}
"""Of pointwise ops the clock did not tell any."""
NOTHING = ProbeSet(
    cases=(), collectives=(), contention=None, ops=frozenset(), loads=ALL
)  # fmt: skip


def load(name: str) -> dict[str, Any]:
    """What a GPU of that law would record; with exponent 2."""
    if name == REST:
        return {"load": name, "clock_mhz": 345.0, "power_w": IDLE_W}
    if name == MIXED:
        return {"load": name, "elasticity": ELASTICITY}
    mhz = BOOST_MHZ * min(1.0, ((CAP_W - IDLE_W) / DRAWS[name]) ** 0.5)
    watts = IDLE_W + DRAWS[name] * (mhz / BOOST_MHZ) ** 2
    return {"load": name, "clock_mhz": mhz, "power_w": watts, "burst_mhz": BURST_MHZ}


def message(*names: str) -> dict[str, Any]:
    loads = [load(name) for name in names]
    return {"kind": "power", "boost_mhz": BOOST_MHZ, "cap_w": CAP_W, "loads": loads}


def empty() -> Profile:
    return Profile(name="here", created="2026-11-26", machine=this_machine(1, "nccl", {}))


def law_of(profile: Profile) -> PowerSection:
    assert profile.power is not None
    return profile.power


def test_a_law_is_found_again_load_by_load() -> None:
    profile = empty()
    for count in range(1, len(ALL) + 1):  # a message tells all that its run knows so far
        profile = add_message(profile, message(*ALL[:count]))
        assert (profile.power is None) == ("gemm" not in ALL[:count])
    law = law_of(profile)
    assert (law.boost_mhz, law.cap_w, law.idle_w) == (BOOST_MHZ, CAP_W, IDLE_W)
    for family, draw_w in DRAWS.items():
        one = law.family(family)
        assert one.draw_w == pytest.approx(draw_w, rel=1e-3)
        assert one.elasticity == ELASTICITY.get(family, 0.0)
        assert one.kind == "fitted"
    assert law.family("collective").kind == "assumed"
    assert law.timed_mhz("gemm", 5.0) == law.timed_mhz("attention", 5e3) == BURST_MHZ
    assert law.kinds["idle_w"] == law.kinds["cap_w"] == "measured"
    assert law.kinds["exponent"] == "assumed"
    assert parse_profile(dump_profile(profile), source="a test") == profile


def test_another_run_goes_on_where_the_last_one_ended() -> None:
    profile = empty()
    assert NOTHING.lacking(profile, 20, 1).loads == ALL
    before = add_message(profile, message(REST, MIXED, "gemm"))
    left = NOTHING.lacking(before, 20, 1)
    assert left.loads == ("attention", "pointwise")
    assert not left.is_empty
    assert left.payload(20, None)["loads"] == ["attention", "pointwise"]
    after = add_message(before, message("attention"), before)
    assert law_of(after).family("gemm") == law_of(before).family("gemm")
    assert law_of(after).family("attention").elasticity == ELASTICITY["attention"]
    after = add_message(after, message("attention", "pointwise"), before)
    assert law_of(after) == law_of(add_message(empty(), message(*ALL)))
    assert NOTHING.lacking(after, 20, 1).is_empty
    assert replace(NOTHING, loads=()).lacking(empty(), 20, 1).is_empty  # no bindings, or no GPU


def test_what_no_load_tells_stays() -> None:
    known = load_profile("h200-sxm").power
    assert known is not None
    assert power_law({}, {}, known) == known
    assert lacking_loads(known) == ("attention", "pointwise")
    found = power_law({}, {"gemm": 1.3, "attention": -0.1}, known)  # noise beyond what can be
    assert [found.family(name).elasticity for name in COMPUTE[:2]] == [1.0, 0.0]


def test_a_burst_is_not_above_boost() -> None:
    told = message(REST, "gemm")
    told["loads"][1]["burst_mhz"] = 2100.0
    assert law_of(add_message(empty(), told)).timed_mhz("gemm", 5.0) == BOOST_MHZ
