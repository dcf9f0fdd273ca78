"""The verdict: certain if nothing is uncertain, the same every time, and true to the
machine drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest

from domino_tune.base.tables import Table
from domino_tune.requests import SimulateRequest
from domino_tune.results import to_json
from domino_tune.results.from_json import simulated_from_json
from domino_tune.results.simulate import Contestant, SimulateResult, Verdict
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.machines import DRAWS
from domino_tune.verbs.resolve import Chosen, baseline_plan, plan_of, resolve
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.verdict import _text, contestants_of, verdict_of
from simulator.case import Case
from simulator.draws import FAMILIES, PLAN_ERROR, CalibratedPart, Calibration, Draw, Family
from simulator.errors import InputError
from simulator.greedy import order_of
from simulator.lookup import Provenance
from simulator.memory import peak_bytes
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.profile import Profile
from simulator.usable import percent
from tests.support.room import with_gib, with_room

SMALL: Final[dict[str, Any]] = {
    "model": "gpt3-6.7b", "profile": "h100-dgx", "tp": 8, "seq_length": 2048,
    "micro_batch_size": 2, "overrides": ("num_hidden_layers=4",),
}  # fmt: skip
ALONE: Final[dict[str, Any]] = {"sequence_parallel": False, "implementation": "domino-tune"}
"""Domino and Megatron without rivals, with kernels that the profile has timed."""


@cache
def h100() -> Profile:
    return load_profile("h100-dgx")


def case_of(profile: Profile | None = None, **given: Any) -> Case:
    case = resolve(SimulateRequest(**{**SMALL, **given}))
    return replace(case, profile=profile) if profile else case


def chosen_of(case: Case, **given: Any) -> Chosen:
    return Chosen.of(case, plan_of(SimulateRequest(**{**SMALL, **given}), None, case))


def judged(case: Case) -> Verdict:
    return verdict_of(case, chosen_of(case))


@cache
def small() -> Verdict:
    return judged(case_of())


@cache
def simulated() -> SimulateResult:
    return simulate(SimulateRequest(**SMALL))


def exact(known: Profile) -> Profile:
    """Return the profile without any error."""
    assert known.gemm
    assert known.attention
    assert known.attention.fit
    assert known.pointwise
    assert known.collectives
    assert known.contention
    assert known.launch
    assert known.power
    sure = Provenance(kind="fitted", source="a test", error=0.0)
    law = known.contention.fit
    return replace(
        known,
        machine=replace(known.machine, l2_mb=0.0),  # no roof that lifts a look-up
        gemm=replace(known.gemm, fits=tuple(replace(one, error=0.0) for one in known.gemm.fits)),
        attention=replace(
            known.attention, fit=replace(known.attention.fit, error=0.0, backward_error=0.0)
        ),
        pointwise=replace(
            known.pointwise, fits=tuple(replace(one, error=0.0) for one in known.pointwise.fits)
        ),
        collectives=replace(
            known.collectives,
            fits=tuple(replace(one, error=0.0) for one in known.collectives.fits),
        ),
        contention=replace(
            known.contention,
            provenance=sure,
            fit=replace(
                law, compute=tuple(replace(one, error=0.0) for one in law.compute),
                collective=replace(law.collective, error=0.0),
                same_links=replace(law.same_links, error=0.0),
                other_links=replace(law.other_links, error=0.0),
            ),
        ),
        launch=replace(known.launch, provenance=sure),
        power=replace(
            known.power, clock_spread=0.0,
            families=tuple(replace(one, error=0.0) for one in known.power.families),
        ),
    )  # fmt: skip


def calibrated(known: Profile, constant_ms: float) -> Profile:
    told = Calibration(
        parts=(CalibratedPart(part="gemm", factor=1.1, error=0.04),), constant_ms=constant_ms,
        runs=4, base=known.name, provenance=Provenance(kind="fitted", source="a test"),
    )  # fmt: skip
    return replace(known, calibration=told)


def by_strategy(verdict: Verdict) -> dict[str, Contestant]:
    return {one.strategy: one for one in verdict.contestants}


def test_the_same_case_has_the_same_verdict() -> None:
    assert json.dumps(to_json(judged(case_of()))) == json.dumps(to_json(small()))


def test_all_strategies_are_compared_and_the_baseline_comes_first() -> None:
    names = [one.strategy for one in small().contestants]
    assert names == ["megatron", "domino", "userbuffers", "async-tp", "fused"]
    assert [one.plan.strategy for one in small().contestants] == names
    baseline = small().contestants[0]
    assert (baseline.speedup, baseline.low, baseline.high) == (1.0, 1.0, 1.0)
    assert baseline.plan == baseline_plan(case_of())
    assert baseline.name == "Megatron with sequence parallelism"


def test_chances_sum_to_one_over_the_plans_that_fit() -> None:
    assert sum(one.chance for one in small().contestants) == pytest.approx(1.0)
    for one in small().contestants:
        assert one.fits
        assert one.low <= one.speedup <= one.high
        assert one.chance * DRAWS == pytest.approx(round(one.chance * DRAWS))


def test_times_are_those_of_the_prediction() -> None:
    case, baseline = case_of(), small().contestants[0]
    for name, chosen in contestants_of(case, chosen_of(case)).items():
        one = by_strategy(small())[name]
        assert one.plan == chosen.plan
        assert one.iteration_ms * 1e6 == pytest.approx(
            predict(case, chosen.plan, chosen.order).makespan_ns
        )
        assert one.speedup == pytest.approx(baseline.iteration_ms / one.iteration_ms)


@pytest.mark.parametrize("tp", [2, 8])
def test_without_look_up_errors_only_the_simulators_own_is_left(tp: int) -> None:
    """A tenth of the draws of two plans' difference lies beyond 1.28 standard errors."""
    verdict = judged(case_of(exact(h100()), **ALONE, tp=tp))
    baseline, *others = verdict.contestants
    assert (baseline.low, baseline.high) == (1.0, 1.0)
    assert others
    for one in others:
        half = math.log(one.high / one.low) / 2
        assert half == pytest.approx(1.2816 * math.sqrt(2) * PLAN_ERROR, rel=0.06)
        assert math.sqrt(one.high * one.low) == pytest.approx(one.speedup, rel=0.002)
    assert verdict.unsure == {}
    assert "unsure: nothing" in verdict.table().notes[0]


def moved(case: Case, family: Family) -> float:
    """Return how much a standard error of a family moves the logarithm of Domino's speed-up."""
    plans = {"megatron": Chosen.of(case, baseline_plan(case)), "domino": chosen_of(case)}
    drawn = case.drawn(Draw({family: 1.0}))
    usual_ns, drawn_ns = (
        {name: predict(at, one.plan, one.order).makespan_ns for name, one in plans.items()}
        for at in (case, drawn)
    )
    logs = {name: math.log(drawn_ns[name] / usual_ns[name]) for name in plans}
    return abs(logs["domino"] - logs["megatron"])


def test_what_makes_it_unsure_is_what_a_drawn_machine_does() -> None:
    """One or two micro-batches are played in full."""
    case = case_of(grad_accumulation=2)
    verdict = judged(case)
    assert set(verdict.unsure) <= set(FAMILIES)
    for family in FAMILIES:
        assert verdict.unsure.get(family, 0.0) == pytest.approx(moved(case, family), abs=1e-9)
    assert list(verdict.unsure.values()) == sorted(verdict.unsure.values(), reverse=True)


@pytest.mark.parametrize("constant_ms", [0.0, 40.0])
def test_many_micro_batches_are_like_the_first_and_the_last(constant_ms: float) -> None:
    """The constant of a calibrated iteration does not grow as fewer micro-batches are played. Hosts
    are left out: how far ahead they are changes from one micro-batch to the next."""
    case = case_of(calibrated(h100(), constant_ms), grad_accumulation=12, dp=2, cuda_graph=True)
    assert case.constant_ns == 1e6 * constant_ms
    verdict = judged(case)
    largest = list(verdict.unsure)[:3]
    for family in largest:
        there = moved(case, family)  # type: ignore[arg-type]
        assert verdict.unsure[family] == pytest.approx(there, rel=0.25, abs=2e-4)


def test_a_pipeline_is_judged_by_its_busiest_rank() -> None:
    verdict = judged(case_of(tp=2, pp=2, grad_accumulation=4))
    assert sum(one.chance for one in verdict.contestants) == pytest.approx(1.0)
    assert all(one.low < one.speedup < one.high for one in verdict.contestants[1:])
    assert verdict.contestants[0].iteration_ms * 1e6 == pytest.approx(
        predict(case_of(tp=2, pp=2, grad_accumulation=4), verdict.contestants[0].plan).makespan_ns
    )


def test_a_chosen_rival_is_compared_as_it_was_given() -> None:
    told = {"strategy": "userbuffers", "tp_comm_overlap": ("fc2_fprop=pipeline:8:8",)}
    case = case_of()
    chosen = chosen_of(case, **told)
    verdict = verdict_of(case, chosen)
    found = by_strategy(verdict)
    assert set(found) == {"megatron", "userbuffers", "async-tp", "fused"}
    assert found["userbuffers"].plan == chosen.plan
    assert verdict.unsure


def test_the_baseline_as_the_chosen_plan_leaves_nothing_unsure() -> None:
    case = case_of(**ALONE)
    verdict = verdict_of(case, Chosen.of(case, baseline_plan(case)))
    assert [(one.strategy, one.chance) for one in verdict.contestants] == [("megatron", 1.0)]
    assert verdict.text == (
        "Do not use Domino here: Megatron with sequence parallelism is the fastest in 100% of "
        "draws."
    )
    assert verdict.unsure == {}


def test_a_chosen_plan_of_megatron_is_compared_in_its_own_mode() -> None:
    """Few tokens go faster without sequence parallelism: no row, and no plan file, is slower."""
    case = case_of(seq_length=512)
    chosen = Chosen.of(case, MEGATRON)
    verdict = verdict_of(case, chosen)
    first, *rivals = verdict.contestants
    assert (first.plan, first.name, first.speedup) == (MEGATRON, "Megatron", 1.0)
    assert {one.strategy for one in rivals} == {"userbuffers", "async-tp", "fused"}
    for one in rivals:
        assert one.speedup == pytest.approx(first.iteration_ms / one.iteration_ms)


def test_a_plan_that_does_not_fit_has_no_chance() -> None:
    """Memory between the lowest peak and a higher one."""
    case = case_of(micro_batch_size=4)
    peaks = {
        name: peak_bytes(case, one.plan, one.order)
        for name, one in contestants_of(case, chosen_of(case)).items()
    }
    low, high = min(peaks.values()), max(peaks.values())
    assert low < high
    verdict = judged(with_room(case, (low + high) // 2))
    found = by_strategy(verdict)
    assert {name for name, one in found.items() if one.recommended} == {
        name for name, peak in peaks.items() if peak <= (low + high) / 2
    }
    assert sum(one.chance for one in found.values()) == pytest.approx(1.0)
    for row, one in zip(verdict.table().rows, verdict.contestants, strict=True):
        less = f"fits: {percent(one.fits_chance)}" if one.fits else "does not fit"
        assert (less in row) is not one.recommended
        assert one.recommended or not one.chance
    nowhere = judged(with_gib(case, 0.01))
    assert nowhere.text == "No plan fits the memory with a chance of 80 % or more."
    assert {one.chance for one in nowhere.contestants} == {0.0}
    assert nowhere.table().marked == ()


def contestant(strategy: str, name: str, speedup: float, chance: float, **more: Any) -> Contestant:
    made = Contestant(
        strategy=strategy, name=name, plan=SlicePlan(), iteration_ms=100 / speedup, speedup=speedup,
        low=speedup - 0.02, high=speedup + 0.03, chance=chance, fits=True,
        fits_chance=1.0, runs_in="here",
    )  # fmt: skip
    return replace(made, **more)


def field(megatron: float, domino: float, rival: float, **baseline: Any) -> list[Contestant]:
    """Return the contestants with these chances."""
    return [
        contestant("megatron", "Megatron", 1.0, megatron, **baseline),
        contestant("domino", "Domino", 1.05, domino),
        contestant("userbuffers", "userbuffers", 1.08, rival),
    ]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: field(0.05, 0.75, 0.2),
            "Use Domino in 2 row slices: 1.05 times as fast as Megatron (1.03–1.08), the fastest "
            "in 75% of draws. Next: userbuffers 1.08x (20%).",
        ),
        (
            lambda: field(0.05, 0.25, 0.7),
            "Use userbuffers: 1.08 times as fast as Megatron (1.06–1.11), the fastest in 70% of "
            "draws. Next: Domino 1.05x (25%).",
        ),
        (
            lambda: field(0.05, 0.4, 0.55),
            "It is open which is fastest. userbuffers: 1.08 times as fast as Megatron (1.06–1.11), "
            "ahead in 55% of draws. Next: Domino 1.05x (40%).",
        ),
        (
            lambda: field(0.8, 0.15, 0.05),
            "Do not use Domino here: Megatron is the fastest in 80% of draws. Next: "
            "Domino 1.05x (15%), userbuffers 1.08x (5%).",
        ),
        (
            lambda: field(0.45, 0.3, 0.25),
            "Nothing is clearly faster: Megatron is the fastest in 45% of draws. Next: "
            "Domino 1.05x (30%), userbuffers 1.08x (25%).",
        ),
        (
            lambda: field(0.0, 0.9, 0.1, fits=False, fits_chance=0.0),
            "Use Domino in 2 row slices: 1.05 times as fast as Megatron (1.03–1.08), which does "
            "not fit, the fastest in 90% of draws. Next: userbuffers 1.08x (10%).",
        ),
        (
            lambda: field(0.0, 0.9, 0.1, fits_chance=0.799),
            "Use Domino in 2 row slices: 1.05 times as fast as Megatron (1.03–1.08), which fits "
            "with a chance of 79 %, the fastest in 90% of draws. Next: userbuffers 1.08x (10%).",
        ),
    ],
)  # fmt: skip
def test_the_answer_in_words(made: Callable[[], list[Contestant]], said: str) -> None:
    assert _text(made()) == said


def test_the_text_names_the_fastest() -> None:
    best = max(small().contestants, key=lambda one: one.chance)
    worth = f"{best.name}: {best.speedup:.2f} times as fast as Megatron with sequence parallelism"
    assert f"{worth} ({best.low:.2f}–{best.high:.2f})" in small().text
    domino = by_strategy(small())["domino"]
    assert f"Domino {domino.speedup:.2f}x ({domino.chance:.0%})" in small().text


def test_the_baseline_wins_where_slices_cost_more_than_they_hide() -> None:
    verdict = judged(case_of(model="gpt3-1.3b", seq_length=256, tp=2, **ALONE, cuda_graph=True))
    assert verdict.text.startswith("Do not use Domino here: Megatron with sequence parallelism is ")
    assert verdict.contestants[0].chance >= 0.6


def test_a_simulation_has_the_verdict_on_the_other_side_too() -> None:
    here = simulated()
    assert here.verdict == small()
    there = simulated_from_json(json.loads(json.dumps(to_json(here))))
    assert there.verdict is not None
    assert json.dumps(to_json(there)) == json.dumps(to_json(here))
    assert _rows(there.verdict.table()) == _rows(small().table())


def _rows(table: Table) -> object:
    return table.title, table.rows, table.marked, table.notes


@pytest.mark.parametrize("strategy", ["userbuffers", "async-tp", "fused"])
def test_what_a_machine_cannot_run_is_neither_compared_nor_asked_for(strategy: str) -> None:
    known = load_profile("h200-sxm")
    cpus = replace(known, power=None, machine=replace(known.machine, backend="gloo"))
    case = case_of(cpus)
    assert set(contestants_of(case, chosen_of(case))) == {"megatron", "domino"}
    asked = SimulateRequest(**{**SMALL, "row_slices": None, "strategy": strategy})
    with pytest.raises(InputError, match=f"{strategy} is of GPUs, and profile 'h200-sxm' is of"):
        plan_of(asked, None, case)
    rival = plan_of(asked, None, case_of())
    file = replace(simulated().plan_file, plan=rival, order=order_of(case_of(), rival))
    with pytest.raises(InputError, match="is of GPUs"):
        plan_of(SimulateRequest(profile="x"), file, case)


def test_an_unknown_network_is_the_same_for_all_that_are_compared() -> None:
    """A factor on all compute moves only times; one on the network moves the speed-up a little."""
    case = case_of(load_profile("a100-sxm"), dp=2, implementation="megatron-2022")
    verdict = judged(case)
    assert {"network", "host"} <= set(verdict.unsure)
    assert verdict.unsure.get("kernels", 0.0) < 0.02  # of 12 % that both take longer
    assert math.isclose(sum(one.chance for one in verdict.contestants), 1.0)
    baseline, *others = verdict.contestants
    assert (baseline.low, baseline.high) == (1.0, 1.0)
    assert all(one.low < one.speedup < one.high for one in others)
