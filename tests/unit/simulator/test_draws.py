"""Draws of a machine: what they move, what they leave, and what a calibration says of them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from domino_tune.store.profiles import load_profile
from simulator.bounds import Bounds
from simulator.case import Case
from simulator.contention import ContentionFit
from simulator.cost import CostModel
from simulator.draws import (
    FAMILIES,
    MOST_FACTOR,
    NOMINAL,
    OWN_SHARE,
    PARTS,
    CalibratedPart,
    Calibration,
    Draw,
    Family,
    families_of,
    family_of,
)
from simulator.engine import play
from simulator.errors import ProfileError
from simulator.lookup import Provenance
from simulator.lookup.collectives import gathered_us, scattered_us
from simulator.lookup.expected import TILE_FUSED
from simulator.ops import Attention, Collective, Fused, Gemm, Pointwise, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import played, played_pipeline, predict
from simulator.profile import Profile
from simulator.specs import ClusterSpec, Workload
from tests.support import pipeline_engine as engine
from tests.unit.simulator.cases import (
    KINDS,
    hot_profile,
    random_case,
    random_cost,
    random_plan,
    with_cost,
)
from tests.unit.simulator.small_models import GPT

H100 = load_profile("h100-dgx")
SIGNATURES: Mapping[Signature, Family] = {
    Gemm(4096, 4096, 1024): "gemm_forward",
    Gemm(4096, 1024, 4096, layout="dgrad"): "gemm_dgrad",
    Gemm(4096, 4096, 1024, layout="wgrad", accumulate=True): "gemm_wgrad",
    Attention(2, 8, 8, 2048, 128): "attention",
    Pointwise("layernorm", 1 << 24, 1 << 24): "pointwise",
    Collective("all_reduce", 1 << 24, 1, 8): "collective",
    Collective("peer_copy", 1 << 21, 1, 8): "peer_copy",
    Collective("all_reduce", 1 << 24, 2, 8): "collective_between_nodes",
}
GEMM, GATHER = Gemm(8192, 4096, 1024), Collective("all_gather", 1 << 24, 1, 8)
SCATTER = GATHER._replace(op="reduce_scatter")
INTERLEAVED = SlicePlan(row_slices=2, order="greedy", wgrad="fill")


def case_of(profile: Profile = H100, *, layers: int = 4, micros: int = 2, **cluster: Any) -> Case:
    model = replace(
        GPT, num_hidden_layers=layers, hidden_size=1024, num_attention_heads=8,
        num_key_value_heads=8, head_dim=128, intermediate_size=4096, max_position_embeddings=1024,
    )  # fmt: skip
    work = Workload(seq_length=1024, micro_batch_size=2, grad_accumulation=micros)
    at = ClusterSpec(**{"tp": 4, **cluster})
    return Case(model=model, workload=work, cluster=at, profile=profile)


def calibrated(profile: Profile, **factors: float) -> Profile:
    """The profile with these factors of its parts, each 3 % unsure, and 2 ms an iteration."""
    parts = tuple(
        CalibratedPart(part=name, factor=factor, error=0.03)
        for name, factor in sorted(factors.items())
    )
    told = Calibration(
        parts=parts, constant_ms=2.0, runs=4, base=profile.name,
        provenance=Provenance(kind="fitted", source="a test"),
    )  # fmt: skip
    return replace(profile, calibration=told)


@pytest.mark.parametrize("z", [-1.5, 1.0, 2.0])
@pytest.mark.parametrize("family", SIGNATURES.values())
def test_a_draw_moves_all_look_ups_of_its_family_and_no_others(family: Family, z: float) -> None:
    nominal = CostModel(H100)
    drawn = nominal.drawn(Draw({family: z}))
    for signature, its_family in SIGNATURES.items():
        assert families_of(signature) == (family_of(signature),) == (its_family,)
        known, there = nominal.estimate(signature), drawn.estimate(signature)
        assert known.error > 0
        times = (1 + known.error) ** z if its_family == family else 1.0
        assert there.duration_us == pytest.approx(times * known.duration_us, rel=1e-12)
        assert (there.source, there.error) == (known.source, known.error)
    assert drawn.launch == nominal.launch
    assert drawn.contention.fit == nominal.contention.fit
    assert drawn.power == nominal.power


def test_every_family_but_those_of_laws_has_look_ups() -> None:
    laws = {
        "contention", "contention_of_collectives", "contention_of_links", "hosts", "launch",
        "power", "tile_fused",
    }  # fmt: skip
    assert set(SIGNATURES.values()) | laws == set(FAMILIES)
    assert {family for families in PARTS.values() for family in families} == set(FAMILIES) - {
        "contention", "contention_of_collectives", "contention_of_links", "hosts", "tile_fused",
    }  # fmt: skip


@pytest.mark.parametrize("z", [-1.0, 0.5, 2.0])
def test_a_draw_of_contention_moves_its_part_of_the_law(z: float) -> None:
    nominal = CostModel(load_profile("h200-sxm"))
    fit = nominal.contention.fit
    assert fit is not None
    of_compute = _fit(nominal.drawn(Draw({"contention": z})))
    assert (of_compute.collective, of_compute.same_links) == (fit.collective, fit.same_links)
    for law, before in zip(of_compute.compute, fit.compute, strict=True):
        assert law.factor == pytest.approx(max(1.0, before.factor * (1 + before.error) ** z))
    of_collectives = _fit(nominal.drawn(Draw({"contention_of_collectives": z})))
    slower = (1 + fit.collective.error) ** z
    assert of_collectives.collective.factor == pytest.approx(
        max(1.0, fit.collective.factor * slower)
    )
    assert of_collectives.compute == fit.compute


def _fit(cost: CostModel) -> ContentionFit:
    assert cost.contention.fit is not None
    return cost.contention.fit


def test_a_slower_host_spends_as_much_more_on_every_launch() -> None:
    nominal = CostModel(H100)
    drawn = nominal.drawn(Draw({"launch": -2.0})).launch
    times = (1 + nominal.launch.error) ** -2.0
    assert times < 1
    less_ns = round((1 - times) * min(nominal.launch.cost_ns.values()))
    assert less_ns > 0
    assert drawn.cost_ns == {
        kind: cost_ns - less_ns for kind, cost_ns in nominal.launch.cost_ns.items()
    }
    assert (drawn.mode, drawn.error) == (nominal.launch.mode, nominal.launch.error)


def test_a_draw_of_power_moves_what_every_kind_of_op_draws() -> None:
    case = case_of(hot_profile())
    drawn = case.drawn(Draw({"power": 1.0}))
    assert case.power is not None
    assert drawn.power is not None
    for one, before in zip(drawn.power.families, case.power.families, strict=True):
        error = math.hypot(before.error, case.power.own_error)
        assert one.draw_w == pytest.approx(before.draw_w * (1 + error))
        assert one.error == before.error
    assert drawn.power.cap_w == case.power.cap_w
    hotter, usual = (played(one, MEGATRON).power for one in (drawn, case))
    assert hotter is not None
    assert usual is not None
    assert hotter.clock_mhz < usual.clock_mhz


def test_a_cap_holds_on_a_drawn_machine_too() -> None:
    case = case_of(power_cap_w=400.0)
    law = case.drawn(Draw({"power": 1.0})).power
    assert law is not None
    assert law.cap_w == 400.0


@pytest.mark.parametrize("seed", range(20))
def test_the_nominal_draw_changes_nothing(seed: int) -> None:
    case, plan = _random(seed)
    assert predict(case.drawn(NOMINAL), plan) == predict(case, plan)


@pytest.mark.parametrize(
    ("collective", "moving", "formula"),
    [(GATHER, "peer_copy", gathered_us), (SCATTER, "collective", scattered_us)],
)
def test_a_fused_kernel_follows_from_its_parts(
    collective: Collective, moving: Family, formula: Any
) -> None:
    fused = Fused(GEMM, collective)
    moved = collective._replace(op="all_to_all")
    if moving == "peer_copy":
        moved = collective._replace(op="peer_copy", size_bytes=collective.size_bytes // 8)
    assert families_of(fused) == ("gemm_forward", moving, "tile_fused")
    nominal = CostModel(H100)
    for family in FAMILIES:
        drawn = nominal.drawn(Draw({family: 2.0}))
        gemm_us, moved_us = (np.array([drawn.estimate(one).duration_us]) for one in (GEMM, moved))
        there = drawn.estimate(fused)
        whole_us = formula(GEMM, gemm_us, moved_us, 8, _fit(nominal).sm_count)
        own = (1 + TILE_FUSED.error) ** 2 if family == "tile_fused" else 1.0
        assert there.duration_us == own * whole_us[0]
        moves = there.duration_us != nominal.estimate(fused).duration_us
        assert moves == (family in families_of(fused)), family


def _random(seed: int) -> tuple[Case, SlicePlan]:
    rng = random.Random(seed)
    case = random_case(rng, layers=4, micros=3, cost=random_cost(rng))
    return case, random_plan(rng, case, rng.choice(KINDS))


def _draw(seed: int) -> Draw:
    rng = random.Random(seed)
    return Draw({family: rng.gauss(0, 1) for family in FAMILIES})


@pytest.mark.sampled(count=10)
@pytest.mark.parametrize("seed", range(40))
def test_engines_agree_on_drawn_machines(seed: int) -> None:
    case, plan = _random(seed)
    drawn = case.drawn(_draw(seed))
    found = played(drawn, plan)
    timeline = play(found.schedule, found.program)
    assert timeline.makespan_ns == found.totals.makespan_ns
    cuda_graph = case.cost.launch.mode == "none"
    anew = CostModel(case.profile, factors=case.factors, cuda_graph=cuda_graph).drawn(_draw(seed))
    assert predict(with_cost(case, anew), plan) == predict(drawn, plan)


@pytest.mark.parametrize("seed", range(6))
def test_engines_agree_on_drawn_pipelines(seed: int) -> None:
    case = case_of(hot_profile() if seed % 2 else H100, micros=4, tp=2, pp=2).drawn(_draw(seed))
    found = played_pipeline(case, INTERLEAVED)
    assert engine.play(found.program) == found.run


@pytest.mark.sampled(count=4)
@pytest.mark.parametrize("cluster", [{}, {"tp": 2, "pp": 2}, {"tp": 2, "pp": 2, "vpp": 2}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_on_drawn_machines(seed: int, cluster: dict[str, Any]) -> None:
    for profile in (hot_profile(), replace(H100, power=None)):
        for case in (
            case_of(profile, **cluster),
            case_of(calibrated(profile, gemm=0.8), **cluster),
        ):
            drawn = case.drawn(_draw(seed))
            found = Bounds(drawn)
            for rows in (1, 2):
                plan = replace(INTERLEAVED, row_slices=rows)
                bound_ns, found_ns = found.lower_bound_ns(plan), predict(drawn, plan).makespan_ns
                assert 0.5 * found_ns < bound_ns + case.constant_ns
                assert bound_ns <= found_ns


def test_bounds_of_a_pipeline_are_those_of_its_drawn_machine() -> None:
    """Compute twice as fast must bring the bound below that of the profile's machine."""
    case = case_of(replace(H100, power=None), tp=2, pp=2, micros=8)
    fast = case.drawn(Draw(factors=dict.fromkeys(SIGNATURES.values(), 0.5)))
    assert fast.busiest.cost is fast.cost
    bounds = [Bounds(one).lower_bound_ns(INTERLEAVED) for one in (case, fast)]
    assert bounds[1] < 0.7 * bounds[0]


def test_a_calibration_multiplies_durations_and_replaces_errors() -> None:
    plain = CostModel(H100)
    case = case_of(calibrated(H100, gemm=1.2, collective=0.9, launch=2.0, power=1.1))
    for signature, family in SIGNATURES.items():
        part = next(name for name, families in PARTS.items() if family in families)
        factor = {"gemm": 1.2, "collective": 0.9}.get(part)
        known, told = plain.estimate(signature), case.cost.estimate(signature)
        if factor is None:
            assert told == known
        else:
            assert told.duration_us == pytest.approx(factor * known.duration_us)
            assert told.error == pytest.approx(math.hypot(0.03, OWN_SHARE * known.error))
            assert told.source == known.source
    launch, law = case.cost.launch, case.power
    usual_ns = plain.launch.cost_ns
    least_ns = min(usual_ns.values())
    assert launch.cost_ns == {kind: cost_ns + least_ns for kind, cost_ns in usual_ns.items()}
    assert launch.error == 0.03
    assert law is not None
    assert H100.power is not None
    for one, before in zip(law.families, H100.power.families, strict=True):
        assert one.draw_w == pytest.approx(1.1 * before.draw_w)
        assert one.error == 0.03


def test_launches_are_not_less_sure_than_the_profile_says() -> None:
    known = CostModel(H100).launch
    assert known.off(1.0, 5.0) == known
    assert known.off(1.0, known.error / 2).error == known.error / 2


def test_draws_of_a_calibrated_machine_go_by_what_is_left_unsure() -> None:
    case = case_of(calibrated(H100, gemm=1.2))
    drawn = case.drawn(Draw({"gemm_forward": 1.0}))
    left = case.cost.estimate(GEMM)
    assert drawn.cost.estimate(GEMM).duration_us == pytest.approx(
        left.duration_us * (1 + left.error)
    )


@pytest.mark.parametrize("cluster", [{}, {"tp": 2, "pp": 2}], ids=str)
@pytest.mark.parametrize("plan", [MEGATRON, INTERLEAVED], ids=["megatron", "domino"])
def test_every_calibrated_iteration_takes_the_constant_more(
    plan: SlicePlan, cluster: dict[str, Any]
) -> None:
    factors = {"gemm": 1.1, "attention": 0.8, "pointwise": 1.3, "collective": 1.05}
    profile = calibrated(H100, **factors)
    assert profile.calibration is not None
    case = case_of(profile, **cluster)
    plain = case_of(**cluster).drawn(profile.calibration.as_draw())
    assert plain.constant_ns == 0
    assert case.constant_ns == 2_000_000
    found, without = predict(case, plan), predict(plain, plan)
    assert found == without._replace(makespan_ns=without.makespan_ns + 2_000_000)
    assert played(case, plan).totals.makespan_ns == found.makespan_ns


@pytest.mark.parametrize(
    ("part", "factor", "error", "said"),
    [
        ("gem", 1.0, 0.1, "no part 'gem'"),
        ("gemm", 0.0, 0.1, "factor of gemm must be from 0.01 to 100, got 0.0"),
        ("gemm", 2 * MOST_FACTOR, 0.1, "factor of gemm must be from"),
        ("gemm", math.inf, 0.1, "must be a finite number"),
        ("gemm", 1.0, -0.1, "error of gemm must be a finite number ≥ 0"),
        ("gemm", 1.0, 1e300, "error of gemm must be from 0 to 10"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    part: str, factor: float, error: float, said: str
) -> None:
    with pytest.raises(ProfileError, match=said):
        CalibratedPart(part=part, factor=factor, error=error)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"constant_ms": -1.0}, "constant_ms must be a finite number"),
        ({"constant_ms": 1e300}, "constant_ms must be from 0 to 1e"),
        ({"runs": 0}, "runs must be a whole number"),
    ],
)
def test_calibrations_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    told = calibrated(H100, gemm=1.0).calibration
    assert told is not None
    with pytest.raises(ProfileError, match=said):
        replace(told, **changes)
    with pytest.raises(ProfileError, match="sorted by part, each once"):
        replace(told, parts=told.parts * 2)
