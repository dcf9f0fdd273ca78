"""Durations from a profile, and what changes do to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.contention import CollectiveFamily, ComputeFamily
from simulator.cost import NO_FACTORS, CostModel, Factors
from simulator.errors import InputError, MissingSectionError
from simulator.ops import Attention, Collective, Gemm, Pointwise, Signature
from simulator.profile import Profile

GEMM = Gemm(8192, 5120, 2560)
OPS: tuple[Signature, ...] = (
    GEMM,
    GEMM._replace(layout="wgrad", accumulate=True),
    Attention(16, 5, 5, 1024, 128),
    Attention(16, 5, 5, 1024, 128, direction="backward"),
    Pointwise("layernorm", 1 << 26, 1 << 26),
    Collective("all_reduce", 1 << 26, 1, 8),
)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("h100-dgx")


def test_durations_are_whole_nanoseconds_of_the_estimate(profile: Profile) -> None:
    cost = CostModel(profile)
    for op in OPS:
        assert cost.duration_ns(op) == round(1000 * cost.estimate(op).duration_us)
    assert cost.duration_ns(Collective("all_reduce", 8, 1, 1)) == 1


def test_unit_changes_change_nothing(profile: Profile) -> None:
    plain, same = CostModel(profile), CostModel(profile, factors=Factors())
    assert [plain.estimate(op) for op in OPS] == [same.estimate(op) for op in OPS]
    assert Factors() == NO_FACTORS


def test_everything_twice_as_fast_leaves_only_the_fixed_part(profile: Profile) -> None:
    factors = Factors(gpu_flops=2.0, memory_bandwidth=2.0, link_bandwidth=2.0, link_latency=0.5)
    plain, fast = CostModel(profile), CostModel(profile, factors=factors)
    for op in OPS:
        before, after = plain.estimate(op).duration_us, fast.estimate(op).duration_us
        assert before / 2 <= after * (1 + 1e-9)
        assert after < 0.7 * before


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (Factors(link_bandwidth=4.0), (False, False, False, False, False, True)),
        (Factors(link_latency=4.0), (False, False, False, False, False, True)),
        (Factors(gpu_flops=4.0), (True, True, True, True, False, False)),
        (Factors(memory_bandwidth=4.0), (True, True, True, True, True, False)),
        (Factors(contention=0.0), (False,) * 6),
    ],
)
def test_each_change_moves_its_own_ops(
    profile: Profile, change: Factors, moved: tuple[bool, ...]
) -> None:
    plain, changed = CostModel(profile), CostModel(profile, factors=change)
    assert tuple(plain.estimate(op) != changed.estimate(op) for op in OPS) == moved


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_flops": 0.0}, {"link_bandwidth": -1.0}, {"contention": float("nan")},
        {"link_bandwidth": 1e-300}, {"memory_bandwidth": 1e-200}, {"link_latency": 1e300},
        {"contention": 1e300}, {"gpu_flops": 1001.0}, {"link_latency": -0.1},
    ],
)  # fmt: skip
def test_impossible_changes_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(changes))}.*from .* to 1000"):
        Factors(**changes)


def test_families(profile: Profile) -> None:
    cost = CostModel(profile)
    families = [cost.family(op) for op in OPS]
    gemm, attention, pointwise = map(ComputeFamily, ("gemm", "attention", "pointwise"))
    assert families == [gemm, gemm, attention, attention, pointwise, CollectiveFamily(1, 8)]


def test_what_streams_is_counted_where_collectives_wait_for_memory() -> None:
    cost = CostModel(load_profile("h200-sxm"))
    add = Pointwise("add", 2 * 83_886_080, 83_886_080)
    gb_s = 3 * 83_886_080 // cost.duration_ns(add)
    assert 4000 < gb_s < 4800
    assert cost.family(add) == ComputeFamily("pointwise", gb_s)
    assert CostModel(load_profile("h100-dgx")).family(add) == ComputeFamily("pointwise")


def test_cuda_graphs_launch_for_free(profile: Profile) -> None:
    assert CostModel(profile).launch.mode == "async"
    assert CostModel(profile).launch.cost_ns["gemm"] > 0
    graph = CostModel(profile, cuda_graph=True).launch
    assert (graph.mode, graph.cost_ns) == ("none", {})


def test_a_profile_without_contention_slows_nothing(profile: Profile) -> None:
    cost = CostModel(replace(profile, contention=None, launch=None))
    assert cost.contention.is_off
    assert cost.launch.mode == "none"


def test_a_missing_section_is_refused_when_it_is_needed(profile: Profile) -> None:
    cost = CostModel(replace(profile, attention=None))
    cost.estimate(GEMM)
    with pytest.raises(MissingSectionError, match="'attention'"):
        cost.estimate(OPS[2])
