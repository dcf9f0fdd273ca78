"""Drawn machines: intervals hold what machines with the profile's errors take, and no less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from domino_tune.store.profiles import load_profile
from domino_tune.verbs.machines import DRAWS, Machines, interval_of, machines_of
from domino_tune.verbs.resolve import Chosen, baseline_plan
from domino_tune.verbs.simulate import simulate_plan
from simulator.case import Case
from simulator.cpu_hosts import ResumeFit, ResumeRow, SkewFit
from simulator.draws import FAMILIES, PLAN_ERROR, Draw, Family
from simulator.implementation import IMPLEMENTATIONS
from simulator.lookup import Provenance
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.profile import Profile, ResumeSection, SkewSection
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile, hot_profile

SLICED = SlicePlan(row_slices=2)
MADE_UP = Provenance(kind="measured", source="a test")


def case_of(
    profile: Profile | str = "h100-dgx", implementation: str = "megatron-te",
    cluster: ClusterSpec | None = None, sequences: int = 4, **work: Any,
) -> Case:  # fmt: skip
    known = load_profile(profile) if isinstance(profile, str) else profile
    workload = Workload(
        seq_length=1024, micro_batch_size=sequences,
        implementation=IMPLEMENTATIONS[implementation], **work,
    )  # fmt: skip
    return Case(
        model=replace(MODELS["gpt3-1.3b"], num_hidden_layers=4), workload=workload,
        cluster=cluster or ClusterSpec(tp=4), profile=known,
    )  # fmt: skip


def drawn(case: Case, plan: SlicePlan = MEGATRON) -> Machines:
    return machines_of(case, {"": Chosen.of(case, plan)})


def width(case: Case, plan: SlicePlan = MEGATRON) -> float:
    low_ns, high_ns = interval_of(case, Chosen.of(case, plan))
    return (high_ns - low_ns) / (high_ns + low_ns)


@pytest.mark.parametrize("plan", [MEGATRON, SLICED], ids=["whole", "sliced"])
@pytest.mark.parametrize("profile", [bundled_profile(), hot_profile()], ids=["free", "capped"])
def test_a_tenth_of_machines_that_are_played_is_below_and_a_tenth_above(
    profile: Profile, plan: SlicePlan
) -> None:
    """Machines whose families are off at random, each played. One standard error of sections taken
    as a whole, as intervals once were, holds two thirds at best. Draws have the simulator's own
    error and those of signatures, too, so a little less may be outside."""
    case = case_of(profile, cluster=ClusterSpec(tp=4, cuda_graph=True), sequences=8)
    chosen, random, count = Chosen.of(case, plan), np.random.default_rng(7), 160
    low_ns, high_ns = interval_of(case, chosen)
    times_ns = np.empty(count)
    for number in range(count):
        z: dict[Family, float] = {one: float(random.standard_normal()) for one in FAMILIES}
        machine = case.drawn(Draw(z))
        times_ns[number] = predict(machine, plan, chosen.order).makespan_ns
    for outside in (times_ns < low_ns, times_ns > high_ns):
        assert 0.04 <= outside.mean() <= 0.16


def test_an_interval_does_not_depend_on_what_is_compared() -> None:
    case = case_of()
    chosen = Chosen.of(case, SLICED)
    plans = {"megatron": Chosen.of(case, baseline_plan(case)), "domino": chosen}
    assert machines_of(case, plans).interval_ns("domino") == interval_of(case, chosen)
    alone, judged = (simulate_plan(case, chosen, judged=way) for way in (None, map_in_turn))
    assert judged.verdict is not None
    assert alone.verdict is None
    assert alone.interval_ms == judged.interval_ms


def map_in_turn(function: Any, items: Any) -> Any:
    return ((item, lambda item=item: function(item)) for item in items)


def test_an_interval_is_around_the_prediction() -> None:
    for sequences in (2, 16):
        case = case_of(sequences=sequences)
        low_ns, high_ns = interval_of(case, Chosen.of(case, SLICED))
        assert low_ns < predict(case, SLICED).makespan_ns < high_ns


def test_a_profile_without_errors_leaves_the_simulators_own() -> None:
    case = case_of()
    known = drawn(case)
    nothing = {name: dict.fromkeys(changes, 0.0) for name, changes in known.families.items()}
    sure = replace(known, families=nothing, other_side={}, own={"": {}})
    logs = np.log(sure.times_ns("") / sure.nominal_ns[""])
    assert len(logs) == DRAWS
    assert logs.std() == pytest.approx(PLAN_ERROR, rel=0.05)


@pytest.mark.parametrize("section", ["attention", "gemm", "collectives"])
def test_less_sure_look_ups_widen_the_interval(section: str) -> None:
    def with_error(error: float) -> Profile:
        profile = bundled_profile()
        part: Any = profile.section(section)
        known = replace(part.provenance, kind="assumed", error=error)
        return replace(profile, **{section: replace(part, provenance=known)})

    cluster = ClusterSpec(tp=4, cuda_graph=True)
    sure, unsure = (width(case_of(with_error(error), cluster=cluster)) for error in (0.05, 0.9))
    assert unsure > 1.05 * sure


def test_a_hidden_collective_that_may_be_exposed_widens_the_interval() -> None:
    """The factor of collectives is off no op of the critical path, but the plan depends on it."""
    profile = bundled_profile()
    section = profile.section("contention")

    def wrong_by(error: float) -> Profile:
        slow = replace(section.fit.collective, error=error)
        return replace(
            profile, contention=replace(section, fit=replace(section.fit, collective=slow))
        )

    cluster = ClusterSpec(tp=4, cuda_graph=True)
    sure, unsure = (
        width(case_of(wrong_by(e), cluster=cluster, sequences=16), SLICED) for e in (0.0, 3.0)
    )
    assert unsure > 1.05 * sure


def test_a_clock_that_power_holds_is_not_sure() -> None:
    free, held = (
        case_of(one, cluster=ClusterSpec(tp=4, cuda_graph=True), sequences=16)
        for one in (bundled_profile(), hot_profile())
    )
    assert "power" not in drawn(free).families or not drawn(free).families["power"][""]
    assert drawn(held).families["power"][""] > 0.01
    assert width(held) > width(free)


def test_cpu_hosts_that_are_unequal_and_sleep_are_less_sure() -> None:
    known, resume = bundled_profile(), ResumeFit(
        rows=(ResumeRow(50.0, 20.0),), recovery_us=50.0, error=0.4, samples=1
    )  # fmt: skip

    def hosts(error: float) -> Case:
        skew = SkewFit(slowest_factor=1.05, error=error)
        return case_of(replace(
            known, skew=SkewSection(fit=skew, provenance=MADE_UP),
            resume=ResumeSection(fit=replace(resume, error=error), provenance=MADE_UP),
        ))  # fmt: skip

    assert "hosts" not in drawn(case_of(known)).families
    sure, unsure = (drawn(hosts(error)).families["hosts"][""] for error in (0.0, 0.2))
    assert (sure, 0.1 < unsure < 0.2) == (0.0, True)


# Test unknowns ------------------------------------------------------------------------------------
# What a profile does not know about a job widens its interval upwards, and nothing else does.


def test_an_unknown_adds_what_the_iteration_takes_with_it() -> None:
    case = case_of("a100-sxm", "megatron-2022", sequences=16)
    machines = drawn(case)
    assert 0.08 < machines.longer("")["kernels"] < 0.15  # compute alone, 15 % longer
    ends = machines.interval_ns("", with_unknown=False)
    low_ns, high_ns = machines.interval_ns("")
    assert high_ns > 1.03 * ends[1]
    assert low_ns >= ends[0]


def test_nothing_unknown_widens_nothing() -> None:
    machines = drawn(case_of("h100-dgx", "megatron-te"))
    assert machines.longer("") == {}
    assert machines.interval_ns("") == machines.interval_ns("", with_unknown=False)


def test_a_host_matters_where_layers_are_short() -> None:
    def share(sequences: int) -> float:
        return drawn(case_of("a100-sxm", "megatron-2022", sequences=sequences)).longer("")["host"]

    assert share(1) > 0.4
    assert share(32) < 0.05
