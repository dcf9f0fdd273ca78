"""The clock of an iteration: the largest that keeps the cap, in both engines, below every bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.case import Case
from simulator.clock import burden_of
from simulator.compiler import Repriced, compile_program
from simulator.cost import Change
from simulator.draws import Draw
from simulator.engine import play
from simulator.errors import InputError
from simulator.lookup import check_values
from simulator.ops import Gemm
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.power import STEP_MHZ
from simulator.predict import played, predict
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.specs import ClusterSpec, Workload
from tests.support.by_hand import totals
from tests.unit.simulator.cases import bundled_profile, hot_profile, uneven_profile

SLICED = SlicePlan(row_slices=2, sequence_parallel=True)
LLAMA = MODELS["llama2-7b"]


def hot_case(cap_w: float = 0.0, clock_mhz: int = 0, micros: int = 1) -> Case:
    return Case(
        model=LLAMA,
        workload=Workload(seq_length=2048, micro_batch_size=4, grad_accumulation=micros),
        cluster=ClusterSpec(tp=8, power_cap_w=cap_w, clock_mhz=clock_mhz),
        profile=hot_profile(),
    )


def mean_w(case: Case, plan: SlicePlan, clock_mhz: int) -> float:
    """Return the power of the passes of ``plan`` when it is really played at a clock."""
    run = played(case, plan)
    assert case.power is not None
    burden = burden_of(run.schedule, case.cost, case.power)
    cost = case.cost.at_clock(clock_mhz)
    makespan_ns = totals(compile_program(run.schedule, cost)).makespan_ns
    step_ns = burden.load(clock_mhz, in_step=True).alone_ns
    drawn_j = sum(burden.load(clock_mhz).drawn_j.values())
    return case.power.idle_w + drawn_j / (makespan_ns - step_ns) / 1e-9


@pytest.mark.parametrize("plan", [MEGATRON, SLICED, NO_COMM], ids=lambda plan: plan.label)
@pytest.mark.parametrize("cap_w", [300.0, 450.0, 600.0])
def test_the_clock_is_the_largest_that_keeps_the_cap(plan: SlicePlan, cap_w: float) -> None:
    case = hot_case(cap_w)
    power = played(case, plan).power
    assert power is not None
    assert mean_w(case, plan, power.clock_mhz) <= cap_w
    assert mean_w(case, plan, power.clock_mhz + STEP_MHZ) > cap_w * 0.999


def test_both_engines_agree_and_the_shortcut_changes_nothing() -> None:
    case = hot_case(micros=3)
    for plan in (MEGATRON, SLICED):
        run = played(case, plan)
        assert play(run.schedule, run.program).makespan_ns == run.totals.makespan_ns
        assert totals(run.program, shortcut=False) == run.totals


def test_hidden_communication_costs_clock() -> None:
    case = hot_case()
    baseline_plan = replace(MEGATRON, sequence_parallel=True)
    baseline, sliced = played(case, baseline_plan), played(case, SLICED)
    assert baseline.power is not None
    assert sliced.power is not None
    assert sliced.power.clock_mhz < baseline.power.clock_mhz
    free = replace(case, profile=bundled_profile())
    free_gain = predict(free, baseline_plan).makespan_ns / predict(free, SLICED).makespan_ns
    gain = baseline.totals.makespan_ns / sliced.totals.makespan_ns
    assert free_gain > 1.05 > gain


def test_more_power_is_never_slower() -> None:
    times = [predict(hot_case(cap_w), SLICED).makespan_ns for cap_w in range(200, 1000, 50)]
    assert times == sorted(times, reverse=True)
    free = replace(hot_case(), profile=bundled_profile())
    assert times[-1] == predict(free, SLICED).makespan_ns


def test_a_locked_clock_is_kept_where_power_allows_it() -> None:
    free, held = played(hot_case(5000.0, 1200), SLICED), played(hot_case(300.0, 1200), SLICED)
    assert free.power is not None
    assert held.power is not None
    assert free.power.clock_mhz == 1200 > held.power.clock_mhz


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (ClusterSpec(tp=8, power_cap_w=100.0), "idle"),
        (ClusterSpec(tp=8, clock_mhz=100), "clock must be from"),
        (ClusterSpec(tp=8, clock_mhz=9000), "clock must be from"),
    ],
)
def test_limits_that_no_gpu_has_are_refused(cluster: ClusterSpec, said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(hot_case(), cluster=cluster)


def test_a_profile_without_the_law_refuses_limits_and_tells_nothing() -> None:
    case = replace(hot_case(), profile=bundled_profile())
    assert played(case, SLICED).power is None
    with pytest.raises(InputError, match="no power section"):
        replace(case, cluster=ClusterSpec(tp=8, power_cap_w=500.0))


def test_numbers_of_the_law_are_checked_for_size() -> None:
    check_values("power", "power", hot_profile().power)


def test_another_law_of_contention_is_kept_at_other_clocks() -> None:
    cost = hot_case().cost.at_clock(1200)
    fit = cost.contention.fit
    assert fit is not None
    drawn = cost.drawn(Draw({"contention_of_collectives": 2.0}))
    assert drawn.change.clock_mhz == 1200
    for found in (drawn, drawn.at_clock(1100)):
        assert found.contention.fit == fit.off("collectives", 2.0)


def test_no_clock_is_as_timed_and_a_draw_keeps_its_clock() -> None:
    cost, gemm = hot_case().cost, Gemm(4096, 4096, 4096)
    slow = cost.at_clock(900)
    assert slow.at_clock(0) is cost.at_clock(0) is cost
    assert slow.at_clock(900) is slow
    assert cost.slowed_ns(gemm) == (0, "measured")
    assert slow.slowed_ns(gemm)[0] == slow.duration_ns(gemm) - cost.duration_ns(gemm) > 0
    assert slow.energy_j(gemm) < cost.energy_j(gemm)
    draw = Draw(factors={"gemm_forward": 1.5})
    assert slow.drawn(draw).change == Change(draws=(draw,), clock_mhz=900)
    assert slow.drawn(draw).estimate(gemm) == cost.drawn(draw).at_clock(900).estimate(gemm)


@pytest.mark.parametrize("plan", [MEGATRON, SLICED], ids=lambda plan: plan.label)
def test_a_program_at_another_clock_is_what_would_be_compiled(plan: SlicePlan) -> None:
    case = hot_case(micros=3)
    schedule = played(case, plan).schedule
    slow, fast = (case.cost.at_clock(mhz) for mhz in (900, 1800))
    again = Repriced(schedule, slow).program(fast)
    assert again.root == compile_program(schedule, fast).root
    assert again.families == compile_program(schedule, fast).families


@pytest.mark.parametrize("plan", [MEGATRON, SLICED], ids=lambda plan: plan.label)
@pytest.mark.parametrize("profile", [hot_profile(), uneven_profile()], ids=["hot", "uneven"])
def test_a_program_beside_another_law_is_what_would_be_compiled(
    plan: SlicePlan, profile: Profile
) -> None:
    case = replace(hot_case(micros=3), profile=profile)
    schedule = played(case, plan).schedule
    other = case.cost.drawn(Draw({"contention": 1.0, "contention_of_collectives": -1.0}))
    again = Repriced(schedule, case.cost).program(other)
    compiled = compile_program(schedule, other)
    assert (again.root, again.families) == (compiled.root, compiled.families)
    assert totals(again) == totals(compiled) != totals(compile_program(schedule, case.cost))
