"""What-if factors by hand: which share of an op's time each of them scales."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cost import CostModel, Factors
from simulator.cpu_hosts import SkewFit, SkewRow
from simulator.errors import InputError
from simulator.lookup import Provenance
from simulator.lookup.attention import AttentionFit
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.gemm import GemmFit
from simulator.lookup.pointwise import PointwiseFit
from simulator.ops import Attention, Collective, Gemm, Pointwise
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    GemmSection,
    LaunchSection,
    Machine,
    PointwiseSection,
    Profile,
    SkewSection,
)

BY_HAND = Provenance(kind="fitted", source="this test")
RANGE = {"m": (1, 10**6), "n": (1, 10**6), "k": (1, 10**6)}
PROFILE = Profile(
    name="by-hand",
    created="2025-01-31",
    machine=Machine(
        gpu="G", gpus_per_node=8, gpu_memory_gib=80.0, sm_count=100, peak_tflops={"bf16": 1.0},
        memory_bandwidth_gb_s=1.0, backend="nccl",
    ),
    gemm=GemmSection(
        fits=(
            GemmFit(
                law="roofline", layout="forward", dtype="bf16", error=0.1, ranges=RANGE,
                params={"fixed_us": 10.0, "flops_per_us": 1e5, "bytes_per_us": 1e3},
            ),
        ),
        provenance=BY_HAND,
    ),
    attention=AttentionSection(
        fit=AttentionFit(
            sm_count=100, head_dim=64, fixed_us=5.0, row_ns=2.0, tflops=400.0, tile_tflops=200.0,
            blend=1.0, backward_ratio=3.0, min_seq=1, max_seq=4096, error=0.05,
            backward_error=0.07,
        ),
        provenance=BY_HAND,
    ),
    pointwise=PointwiseSection(
        fits=(
            PointwiseFit(
                names=("gelu",), fixed_us=2.0, small_gb_s=1.0, knee_bytes=10**6, large_gb_s=1.0,
                max_bytes=10**9, error=0.04,
            ),
        ),
        provenance=BY_HAND,
    ),
    collectives=CollectiveSection(
        fits=(
            CollectiveFit(
                op="all_reduce", nodes=1, per_node=8, latency_us=10.0, us_per_mib=(40.0,),
                min_bytes=1, max_bytes=1 << 30, error=0.02,
            ),
        ),
        provenance=BY_HAND,
    ),
)  # fmt: skip
GEMM = Gemm(100, 100, 100)  # 10 fixed, 20 of FLOPs, 60 of bytes
GELU = Pointwise("gelu", 3000, 1000)  # 2 fixed, 4 of bytes
RING = Collective("all_reduce", 1 << 20, 1, 8)  # 10 of latency, 40 of bytes


def us(signature: Gemm | Pointwise | Collective | Attention, **changes: float) -> float:
    cost = CostModel(PROFILE, factors=Factors(**changes))
    return cost.estimate(signature).duration_us


@pytest.mark.parametrize(
    ("changes", "gemm", "gelu"),
    [
        ({}, 90.0, 6.0), ({"gpu_flops": 2.0}, 80.0, 6.0), ({"memory_bandwidth": 2.0}, 60.0, 4.0),
        ({"gpu_flops": 2.0, "memory_bandwidth": 2.0}, 50.0, 4.0),
        ({"gpu_flops": 0.5, "memory_bandwidth": 4.0}, 65.0, 3.0),
        ({"compute_speed": 2.0}, 45.0, 3.0),
        ({"compute_speed": 0.5, "gpu_flops": 2.0}, 160.0, 12.0),
        ({"link_bandwidth": 2.0, "link_latency": 3.0}, 90.0, 6.0),
    ],
    ids=str,
)  # fmt: skip
def test_each_rate_scales_its_own_share(
    changes: dict[str, float], gemm: float, gelu: float
) -> None:
    assert us(GEMM, **changes) == pytest.approx(gemm)
    assert us(GELU, **changes) == pytest.approx(gelu)


def test_attention_has_all_three_shares() -> None:
    op = Attention(2, 3, 3, 1000, 64)
    fixed, flops, memory = PROFILE.attention_table().shares(op)
    assert us(op, gpu_flops=2.0) == pytest.approx(fixed + flops / 2 + memory)
    assert us(op, memory_bandwidth=4.0) == pytest.approx(fixed + flops + memory / 4)


@pytest.mark.parametrize(
    ("changes", "ring"),
    [
        ({}, 50.0), ({"link_bandwidth": 2.0}, 30.0), ({"link_latency": 3.0}, 70.0),
        ({"link_bandwidth": 2.0, "link_latency": 2.0}, 40.0),
        ({"link_bandwidth": 0.5, "link_latency": 0.5}, 85.0),
        ({"gpu_flops": 2.0, "compute_speed": 2.0}, 50.0),
    ],
    ids=str,
)  # fmt: skip
def test_links_scale_latency_and_bytes(changes: dict[str, float], ring: float) -> None:
    assert us(RING, **changes) == pytest.approx(ring)


def test_ops_take_as_long_as_the_slowest_rank_and_collectives_do_not() -> None:
    skew = SkewFit(slowest_factor=1.5, rows=(SkewRow(100.0, 20.0),), error=0.0)
    slow = CostModel(replace(PROFILE, skew=SkewSection(fit=skew, provenance=BY_HAND)))
    assert slow.estimate(GEMM).duration_us == pytest.approx(135.0)
    assert slow.estimate(RING).duration_us == pytest.approx(50.0)


def test_durations_are_whole_nanoseconds_and_at_least_one() -> None:
    cost = CostModel(PROFILE)
    assert cost.duration_ns(GEMM) == 90_000
    assert cost.duration_ns(Collective("all_reduce", 1 << 20, 1, 1)) == 1
    assert cost.duration_ns(Pointwise("gelu", 3001, 0)) == 5001


@pytest.mark.parametrize(
    ("name", "low"),
    [
        ("link_bandwidth", 1e-5), ("gpu_flops", 1e-3), ("memory_bandwidth", 1e-3),
        ("link_latency", 0.0), ("contention", 0.0),
    ],
)  # fmt: skip
def test_factors_are_taken_up_to_their_limits(name: str, low: float) -> None:
    assert Factors(**{name: low}) != Factors(**{name: 1e3})
    for wrong in (low - 1e-6, 1000.1):
        with pytest.raises(InputError, match=rf"{name} must be a factor from") as caught:
            Factors(**{name: wrong})
        assert ("0 meaning off" in str(caught.value)) is (name == "contention")


@pytest.mark.parametrize(
    ("mode", "speed", "costs"),
    [("async", 1.0, 7000), ("async", 2.0, 7000), ("inline", 2.0, 3500), ("none", 1.0, None)],
)
def test_launches_inside_an_op_follow_its_speed(mode: str, speed: float, costs: int | None) -> None:
    section = LaunchSection(
        mode=mode,  # type: ignore[arg-type]
        cost_us={"gemm": 7.0}, queue_depth=9, provenance=replace(BY_HAND, kind="measured"),
    )  # fmt: skip
    profile = replace(PROFILE, launch=section)
    launch = CostModel(profile, factors=Factors(compute_speed=speed)).launch
    assert launch.mode == mode
    assert launch.cost_ns == ({} if costs is None else {"gemm": costs})
    if costs is not None:
        assert launch.queue_depth == 9
    assert CostModel(profile, cuda_graph=True).launch.mode == "none"
    assert CostModel(PROFILE).launch.mode == "none"
