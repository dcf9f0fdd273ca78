"""Reports of ranks become a profile, in whatever order they arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.measure.machine import this_machine
from domino_tune.measure.profiling import add_message
from domino_tune.store.profiles import dump_profile, parse_profile
from simulator.contention import CollectiveFamily
from simulator.cost import CostModel
from simulator.ops import Collective, Gemm
from simulator.profile import Profile
from tests.support.probing import empty

GEMM = Gemm(64, 32, 16, "forward", "fp32", bias=True)
REDUCE = Collective("all_reduce", 4096, 2, 1, 0, "fp32")
PLAN: dict[str, Any] = {
    "kind": "plan",
    "overhead_us": 18.0,
    "overhead_samples": 9,
    "ops": [{"signature": ["gemm", *GEMM], "median_us": 5.5, "spread_us": 0.5, "samples": 20}],
}
COLLECTIVE: dict[str, Any] = {
    "kind": "collective", "signature": list(REDUCE), "median_us": 200.0, "spread_us": 3.0,
    "hand_over_us": 50.0, "samples": 20,
}  # fmt: skip


@pytest.mark.parametrize("messages", [(PLAN, COLLECTIVE), (COLLECTIVE, PLAN)])
def test_launch_costs_are_kept_whichever_comes_first(messages: tuple[dict[str, Any], ...]) -> None:
    profile = Profile(name="here", created="2026-11-20", machine=this_machine(1, "gloo", {}))
    for message in messages:
        profile = add_message(profile, message)
    assert profile.launch is not None
    assert profile.launch.cost_us == {
        "gemm": 18.0, "attention": 18.0, "pointwise": 18.0, "collective": 50.0,
    }  # fmt: skip
    cost = CostModel(profile)
    assert cost.estimate(GEMM).duration_us == 5.5
    assert cost.estimate(REDUCE).duration_us == 200.0
    assert {cost.estimate(GEMM).source, cost.estimate(REDUCE).source} == {"measured"}


def test_collectives_behind_each_other_tell_what_an_idle_lane_changes() -> None:
    profile = Profile(name="here", created="2026-11-20", machine=this_machine(1, "gloo", {}))
    profile = add_message(profile, COLLECTIVE)
    assert profile.collectives is not None
    assert profile.collectives.idle_lane is None
    profile = add_message(profile, {**COLLECTIVE, "samples": 40, "behind_us": 250.0})
    assert profile.collectives is not None
    assert profile.collectives.rows[0].behind_us == 250.0
    assert profile.collectives.idle_lane is not None
    assert profile.collectives.idle_lane.saved_us(4096) == pytest.approx(50.0)
    assert CostModel(profile).idle_times(REDUCE) == (50_000, 0)
    assert parse_profile(dump_profile(profile), source="here") == profile


def test_launches_of_a_gpu_are_measured_apart() -> None:
    """Its ops and collectives say nothing about them, and reported values stay, whatever
    follows.
    """
    launch = {"gemm": 6.0, "attention": 9.0, "pointwise": 5.0, "collective": 14.0}
    plan = {name: value for name, value in PLAN.items() if name != "overhead_us"}
    reduce = {name: value for name, value in COLLECTIVE.items() if name != "hand_over_us"}
    messages = [plan, reduce, {"kind": "launch", "cost_us": launch}]
    profile = Profile(name="here", created="2026-11-20", machine=this_machine(1, "nccl", {}))
    for count in (1, 2):
        profile = add_message(profile, messages[count - 1])
        assert profile.launch is None
    for message in (messages[2], plan, reduce):
        profile = add_message(profile, message)
    assert profile.launch is not None
    assert profile.launch.mode == "async"
    assert profile.launch.cost_us == launch
    cost = CostModel(profile)
    assert cost.estimate(GEMM).duration_us == 5.5
    assert cost.launch.cost_ns["collective"] == 14_000


def test_contention_by_cta_count_is_of_the_machines_sms() -> None:
    machine = replace(this_machine(8, "nccl", {}), sm_count=132)
    profile = Profile(name="here", created="2026-11-20", machine=machine)
    assert add_message(profile, {"kind": "contention", "rows": []}) is profile
    rows = [
        {"op": "all_reduce", "size_bytes": 1 << 26, "ctas": ctas,
         "compute": {"gemm": 132 / (132 - ctas)}, "collective": 1.1, "spread": 0.01, "samples": 2}
        for ctas in (1, 8, 32)
    ]  # fmt: skip
    profile = add_message(profile, {"kind": "contention", "rows": rows})
    assert profile.contention is not None
    (law,) = profile.contention.fit.compute
    assert law.sms_per_cta == pytest.approx(1.0, rel=1e-3)
    assert law.factor == pytest.approx(1.0, abs=1e-3)
    assert CostModel(profile).family(REDUCE) == CollectiveFamily(2, 1)  # no size in it


def test_timings_of_an_earlier_run_count() -> None:
    before = add_message(add_message(empty(), PLAN), COLLECTIVE)
    again = before
    for samples in (10, 60):  # a run reports everything it knows so far, repeatedly
        ops = [{**PLAN["ops"][0], "median_us": 9.5, "spread_us": 1.5, "samples": samples}]
        again = add_message(again, {**PLAN, "ops": ops}, before)
        reduce = {**COLLECTIVE, "median_us": 240.0, "samples": samples, "hand_over_us": 1.0}
        again = add_message(again, reduce, before)
    assert again.gemm is not None
    assert again.collectives is not None
    (gemm,), (reduced,) = again.gemm.rows, again.collectives.rows
    assert (gemm.median_us, gemm.spread_us, gemm.samples) == pytest.approx((8.5, 1.25, 80))
    assert (reduced.median_us, reduced.samples) == pytest.approx((230.0, 80))


def test_what_hangs_on_no_signature_gives_way_only_to_more_samples() -> None:
    """A later run may have only a few plans and collectives left, unlike those before."""
    skew = {
        "kind": "skew",
        "slowest": 1.02,
        "step_excess": 0.01,
        "rows": [[128.0, 2.0]],
        "beside": [],
        "error": 0.01,
        "samples": 9,
    }
    before = empty()
    resume = {
        "kind": "resume",
        "rows": [[9.0, 2.0]],
        "recovery_us": 500.0,
        "error": 0.2,
        "samples": 9,
    }
    for message in (PLAN, COLLECTIVE, skew, resume):
        before = add_message(before, message)
    assert before.launch is not None
    assert before.skew is not None
    assert (before.skew.fit.slowest_factor, before.skew.fit.error) == (1.02, 0.01)
    other = {**skew, "slowest": 1.5}
    recovered = {**resume, "recovery_us": 99.0}
    for message in (
        {**PLAN, "overhead_us": 99.0}, {**COLLECTIVE, "hand_over_us": 99.0}, other, recovered,
    ):  # fmt: skip
        after = add_message(before, message, before)
        assert (after.launch, after.skew, after.resume) == (
            before.launch, before.skew, before.resume,
        )  # fmt: skip
    more = add_message(before, {**PLAN, "overhead_us": 99.0, "overhead_samples": 10}, before)
    assert more.launch is not None
    assert (more.launch.cost_us["gemm"], more.launch.cost_us["collective"]) == (99.0, 50.0)
    better = add_message(before, {**other, "samples": 10}, before)
    assert better.skew is not None
    assert (better.skew.fit.slowest_factor, better.skew.fit.step_excess) == (1.5, 0.01)
    later = add_message(better, {**other, "step_excess": None, "samples": 11}, before)
    assert later.skew is not None
    assert later.skew.fit.step_excess == 0.01
    better = add_message(better, {**recovered, "samples": 10}, before)
    assert better.resume is not None
    assert better.resume.fit.recovery_us == 99.0
    assert parse_profile(dump_profile(better), source="a test") == better


def test_one_gpu_tells_when_a_collective_gets_in() -> None:
    profile = Profile(name="here", created="2026-11-20", machine=this_machine(1, "nccl", {}))
    row = {"op": "all_reduce", "size_bytes": 1 << 26, "ctas": 8, "emulated": True,
           "compute": {"gemm": 1.1, "pointwise": 1.2}, "collective": 1.1, "spread": 0.01,
           "samples": 2}  # fmt: skip
    waits = {"gemm": [0.8], "attention": [0.9], "pointwise": [0.0]}
    message = {"kind": "contention", "rows": [row], "waits": waits}
    found = add_message(profile, message).contention
    assert found is not None
    assert [(law.family, law.fills) for law in found.fit.compute] == [
        ("gemm", True), ("pointwise", False),
    ]  # fmt: skip
    assert "emulated" in found.provenance.note
