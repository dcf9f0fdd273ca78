"""The law of power: found again from loads that a law itself leaves, run by run."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.measure.laws import (
    COMPUTE,
    LEAST_ERROR,
    MIXED,
    REST,
    Resumption,
    WaitStretch,
    idle_lane_law,
    lacking_loads,
    power_law,
    resume_law,
)
from domino_tune.measure.machine import this_machine
from domino_tune.measure.probe_set import ProbeSet
from domino_tune.measure.profiling import add_message
from domino_tune.store.profiles import dump_profile, load_profile, parse_profile
from simulator.cpu_hosts import IdleLane
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import Collective
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


# A link's bucket and the time of waking are found again in collectives that follow them -----------

SIZES = (4, 3_000, 28_672, 49_152, 98_304, 393_216, 1_572_864)
LAW = IdleLane(burst_bytes=23_170, burst_us=230.0, wake_us=90.0, error=0.1, samples=1)


def rows(law: IdleLane, nodes: int = 2) -> list[CollectiveRow]:
    """Gathers and scatters; a larger one is timed less well."""
    rng, found = random.Random(3), []
    for op in ("all_gather", "reduce_scatter"):
        for size in SIZES:
            sent = Collective(op, size, nodes, 2 // nodes).bus_bytes
            saved = law.saved_us(sent) if nodes > 1 else 0.0
            spread = 5 + size / 30_000
            median = 100 + law.wake_us + sent / 60
            found.append(
                CollectiveRow(
                    op=op, nodes=nodes, per_node=2 // nodes, bytes=size, median_us=median,
                    spread_us=spread, samples=10,
                    behind_us=median + saved - law.wake_us + rng.uniform(-spread, spread),
                )
            )  # fmt: skip
    return found


def test_the_law_is_found() -> None:
    law = idle_lane_law(rows(LAW))
    assert law is not None
    assert law.burst_bytes == pytest.approx(LAW.burst_bytes, rel=0.2)
    assert law.burst_us == pytest.approx(LAW.burst_us, rel=0.1)
    assert law.wake_us == pytest.approx(LAW.wake_us, rel=0.15)
    assert 0 < law.error < 0.1
    assert law.samples == 10 * 2 * len(SIZES)


@pytest.mark.parametrize(("burst_us", "wake_us"), [(230.0, 0.0), (0.0, 90.0)])
def test_one_of_both_may_be_nothing(burst_us: float, wake_us: float) -> None:
    law = idle_lane_law(rows(replace(LAW, burst_us=burst_us, wake_us=wake_us)))
    assert law is not None
    assert law.burst_us == pytest.approx(burst_us, abs=25)
    assert law.wake_us == pytest.approx(wake_us, abs=25)


def test_links_inside_a_node_have_no_bucket() -> None:
    law = idle_lane_law(rows(LAW, nodes=1))
    assert law is not None
    assert law.burst_us == 0
    assert law.wake_us == pytest.approx(LAW.wake_us, rel=0.1)


def test_where_it_makes_no_difference_there_is_no_law() -> None:
    assert idle_lane_law(rows(replace(LAW, burst_us=0.0, wake_us=0.0))) is None
    assert idle_lane_law([]) is None
    plain = CollectiveRow(op="all_gather", nodes=2, per_node=1, bytes=8, median_us=1.0)
    assert idle_lane_law([plain]) is None


# The law of the cost of waits is recovered from steps that follow it ------------------------------

DURATIONS_US = (40.0, 3000.0, 200.0, 2500.0, 90.0, 4000.0, 4000.0)


def stretch(idle_us: float, cost_us: float, recovery_us: float, rng: random.Random) -> WaitStretch:
    """Return ops after a wait, each up to 2 % off its usual time."""
    ops, owed = [], cost_us
    for usual in rng.sample(DURATIONS_US, len(DURATIONS_US)):
        paid = owed * usual / (usual + recovery_us)
        ops.append(Resumption(usual, paid + usual * rng.uniform(-0.02, 0.02)))
        owed -= paid
    return WaitStretch(idle_us + rng.uniform(0, 50), tuple(ops))


@pytest.mark.parametrize("recovery_us", [1000.0, 4000.0])
def test_costs_and_recovery_are_found(recovery_us: float) -> None:
    rng = random.Random(7)
    costs = {1e-3: 100.0, 4e-3: 300.0, 16e-3: 900.0}
    found = resume_law(
        {
            pause: [stretch(pause * 1e6, cost, recovery_us, rng) for _ in range(80)]
            for pause, cost in costs.items()
        }
    )
    assert found.recovery_us == recovery_us
    assert [row.extra_us for row in found.rows] == pytest.approx(list(costs.values()), rel=0.15)
    assert [row.idle_us for row in found.rows] == pytest.approx([1e3, 4e3, 16e3], rel=0.06)
    assert found.samples == 240


def test_hiccups_of_the_machine_are_left_out() -> None:
    rng = random.Random(8)
    stretches = [stretch(1000.0, 200.0, 1000.0, rng) for _ in range(60)]
    hiccup = WaitStretch(1000.0, (Resumption(3000.0, 50_000.0),))
    (row,) = resume_law({1e-3: [*stretches, hiccup, hiccup]}).rows
    assert row.extra_us == pytest.approx(200.0, rel=0.2)


def test_a_wait_costs_nothing_rather_than_less() -> None:
    gains = WaitStretch(1000.0, (Resumption(3000.0, -20.0),))
    assert resume_law({1e-3: [gains]}).rows[0].extra_us == 0.0


def costing(*costs_us: float) -> float:
    """Return the law's error if waits cost these amounts, in this order."""
    rng = random.Random(9)
    return resume_law({1e-3: [stretch(1000.0, cost, 1000.0, rng) for cost in costs_us]}).error


def test_the_error_is_by_how_much_halves_differ() -> None:
    assert costing(*[900.0] * 60) == LEAST_ERROR
    assert costing(*[600.0] * 30, *[1400.0] * 30) == pytest.approx(0.4, abs=0.05)  # it drifts
    assert costing(*[600.0, 1400.0] * 30) == pytest.approx(0.4, abs=0.05)  # ranks differ
    assert costing(*[0.0, 900.0] * 30) == pytest.approx(1.0, abs=0.1)


def test_the_error_of_nothing_is_all_of_it() -> None:
    assert resume_law({}).error == 1.0
    assert costing(-50.0) == 1.0
