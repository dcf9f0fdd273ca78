"""Rivals: the same mathematics as Megatron's, other ways to move the same bytes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.lookup.collectives import BARRIER_US, gathered_us, scattered_us
from simulator.ops import Collective, Fused, Gemm
from simulator.overlap import CHOICES, GEMMS, RIVALS, RUNS_IN, Overlap, gemms_of, overlap_of
from simulator.plan import MEGATRON, STRATEGIES, SlicePlan
from simulator.predict import predict
from simulator.schedule import TP
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.unit.contracts.schedule_contract import (
    Built,
    Check,
    critical_path_is_a_chain,
    every_value_has_a_size,
    flops_equal_the_baselines,
    is_acyclic_and_complete,
    order_survives_as_text,
    timeline_adds_up,
)
from tests.unit.simulator.cases import bundled_profile, random_case, random_cost, with_cost

CONTRACT: Final[tuple[Check, ...]] = (
    flops_equal_the_baselines, is_acyclic_and_complete, every_value_has_a_size, timeline_adds_up,
    critical_path_is_a_chain, order_survives_as_text,
)  # fmt: skip
MODEL: Final = ModelSpec(
    name="toy", num_hidden_layers=2, hidden_size=1024, num_attention_heads=16,
    num_key_value_heads=16, head_dim=64, intermediate_size=4096, vocab_size=32000,
    max_position_embeddings=2048,
)  # fmt: skip
WORK: Final = Workload(seq_length=2048, micro_batch_size=2)


def plan_of(strategy: str, *told: str) -> SlicePlan:
    return replace(
        MEGATRON,
        strategy=strategy,  # type: ignore[arg-type]
        sequence_parallel=True,
        tp_comm_overlap=told,
    )


def case_of(tp: int = 4) -> Case:
    return Case(model=MODEL, workload=WORK, cluster=ClusterSpec(tp=tp), profile=bundled_profile())


@cache
def built(strategy: str) -> tuple[Built, ...]:
    """Random cases in which the strategy can run, with random methods."""
    found: list[Built] = []
    seed = 0
    while len(found) < 12:
        seed += 1
        rng = random.Random(f"{strategy} {seed}")
        case = random_case(rng, layers=4, micros=2, cost=random_cost(rng))
        tp = rng.choice((2, 4, 8))
        told = tuple(
            f"{gemm}={rng.choice(_choices(strategy, gemm)).text}"
            for gemm in rng.sample(GEMMS, rng.randint(0, 4))
        )
        plan = plan_of(strategy, *told)
        try:
            cluster = replace(case.cluster, tp=tp, ranks_per_node=8)
            case = with_cost(replace(case, cluster=cluster), case.cost)
            build_schedule(case.model, case.workload, case.cluster, plan)
        except (InputError, InfeasiblePlanError):
            continue
        found.append(Built(case=case, plan=plan))
    return tuple(found)


def _choices(strategy: str, gemm: str) -> list[Overlap]:
    return [how for kind, how in CHOICES[strategy] if gemm in gemms_of(kind)]


@pytest.mark.parametrize("strategy", RIVALS)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_every_rival(strategy: str, check: Check) -> None:
    for one in built(strategy):
        check(one)


@pytest.mark.parametrize("strategy", RIVALS)
def test_without_any_method_a_rival_is_the_baseline(strategy: str) -> None:
    case = case_of()
    none = plan_of(strategy, *(f"{gemm}=none" for gemm in GEMMS))
    assert predict(case, none) == predict(case, replace(MEGATRON, sequence_parallel=True))


@pytest.mark.parametrize("strategy", RIVALS)
def test_each_gemm_moves_its_whole_tensor_once(strategy: str) -> None:
    case = case_of()
    schedule = build_schedule(MODEL, WORK, case.cluster, plan_of(strategy))
    moved: Counter[str] = Counter()
    for op in schedule.ops():
        signature, share = op.signature, case.cluster.tp - 1
        if isinstance(signature, Fused):
            moved[op.role] += signature.collective.size_bytes * share
        elif isinstance(signature, Collective) and op.lane == TP and op.layer == 0:
            times = case.cluster.tp if signature.op == "peer_copy" else share
            moved[op.role.removesuffix(".copy").removesuffix(".rs")] += signature.size_bytes * times
    tensor = WORK.tokens * MODEL.hidden_size * 2 * (case.cluster.tp - 1)
    layers = MODEL.num_hidden_layers if strategy == "fused" else 1
    for gemm in GEMMS:
        linear, way = gemm.split("_")
        block = "attn" if linear in ("qkv", "proj") else "mlp"
        role = f"{block}.{linear}" + ("_dgrad" if way == "dgrad" else "")
        assert moved[role] == layers * tensor, role


def test_copy_engines_take_no_sms_and_wait_for_none() -> None:
    cost = case_of().cost
    copy = Collective("peer_copy", 1 << 20, 1, 4)
    assert copy.needs_no_room
    assert Collective("reduce_scatter", 1 << 20, 1, 4, reserved_sms=8).needs_no_room
    assert not Collective("reduce_scatter", 1 << 20, 1, 4).needs_no_room
    gemm = Gemm(4096, 4096, 4096)
    beside_copy = cost.contention.slowdowns((cost.family(gemm), cost.family(copy)))
    gather = Collective("all_gather", 4 << 20, 1, 4)
    beside_nccl = cost.contention.slowdowns((cost.family(gemm), cost.family(gather)))
    assert beside_copy[0] < beside_nccl[0]
    steps = 3 * (cost.estimate(copy).duration_us - 5.0)
    whole = cost.estimate(gather).duration_us
    assert 0.5 * whole < steps < whole


def test_a_fused_gather_waits_only_for_its_first_rows() -> None:
    gemm = Gemm(8192, 7168, 8192)
    alone, at_once = np.array([14 * 90.0 * (64 * 28 / 132) / 14]), np.zeros(1)
    assert gathered_us(gemm, alone, at_once, 8, 132) == pytest.approx(14 * 90.0 + BARRIER_US)
    slow = gathered_us(gemm, alone, at_once + 1000, 8, 132)
    assert slow == pytest.approx(7 * 1000 + 90.0 * 2 + BARRIER_US, rel=0.02)
    assert scattered_us(gemm, alone, at_once + 400, 8, 132) == pytest.approx(
        1260 + 400 + BARRIER_US
    )


def test_a_fused_kernel_draws_no_more_than_its_parts() -> None:
    profile = bundled_profile()
    assert profile.power is None
    case = case_of()
    signature = Fused(Gemm(8192, 3072, 1024), Collective("all_gather", 16 << 20, 1, 4))
    longer = case.cost.estimate(signature).duration_us
    assert longer > case.cost.estimate(signature.gemm).duration_us


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (("fc3_fprop=none",), "Unknown GEMM"),
        (("fc1_fprop=ring",), "Unknown method"),
        (("fc1_fprop=pipeline:4:8",), "cannot run fc1_fprop by 'pipeline'"),
        (("fc2_fprop=ring_exchange",), "cannot run fc2_fprop by 'ring_exchange'"),
        (("fc2_fprop=push",), "cannot run fc2_fprop by 'push'"),
        (("fc2_fprop=pipeline:4:8:2",), "at most 2 numbers"),
        (("fc1_fprop=ring_exchange:3",), "1 or 2 chunks at a time"),
        (("qkv_dgrad=bulk:fp8",), "at most 1 numbers"),
        (("fc2_fprop=pipeline:x",), "at most 2 numbers"),
        (("fc2_fprop=pipeline:0",), "1 … 32 chunks"),
        (("fc1_dgrad=bulk:99",), "1 … 64 SMs"),
    ],
)
def test_bad_methods_are_refused(told: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_of("userbuffers", *told)


def test_methods_are_of_rivals_alone() -> None:
    with pytest.raises(InputError, match="is of strategies userbuffers"):
        replace(MEGATRON, tp_comm_overlap=("fc1_fprop=none",))
    with pytest.raises(InputError, match="needs --sequence-parallel"):
        replace(MEGATRON, strategy="async-tp")
    assert overlap_of("megatron", (), "fc1_fprop") == Overlap("none")


@pytest.mark.parametrize("tp", [1, 16])
def test_rivals_need_a_group_inside_a_node(tp: int) -> None:
    case = case_of(tp)
    with pytest.raises(InfeasiblePlanError, match="inside one node") as caught:
        predict(case, plan_of("userbuffers"))
    assert caught.value.reason == "strategy"


def test_chunks_must_divide_the_tokens() -> None:
    case = replace(case_of(), workload=replace(WORK, seq_length=100, micro_batch_size=1))
    with pytest.raises(InfeasiblePlanError, match="do not divide"):
        predict(case, plan_of("userbuffers", "fc2_fprop=pipeline:3:8"))


def test_every_strategy_says_where_it_runs() -> None:
    assert set(RUNS_IN) == set(STRATEGIES) - {"no_comm"}


def ring_of(together: int) -> list[tuple[int, int]]:
    """Return (tokens, 0) of each GEMM of fc1 and (0, bytes) of each copy."""
    plan = plan_of("userbuffers", f"fc1_fprop=ring_exchange:{together}")
    found = []
    for op in build_schedule(MODEL, WORK, ClusterSpec(tp=4), plan).ops():
        signature = op.signature
        if op.layer == 0 and op.role == "mlp.fc1" and isinstance(signature, Gemm):
            found.append((signature.m, 0))
        if op.layer == 0 and op.role == "mlp.fc1.copy" and isinstance(signature, Collective):
            found.append((0, signature.size_bytes))
    return found


def test_a_ring_takes_two_chunks_at_a_time_behind_a_first_exchange_of_one() -> None:
    tokens, chunk = 4096 // 4, 4096 // 4 * 1024 * 2
    assert sorted(ring_of(1)) == sorted([(tokens, 0)] * 4 + [(0, chunk)] * 3)
    assert sorted(ring_of(2)) == sorted([(2 * tokens, 0)] * 2 + [(0, chunk), (0, 2 * chunk)])


def test_a_pipeline_sums_in_fp8_where_the_scale_is_known() -> None:
    def scattered(recipe: str) -> set[int]:
        work = replace(WORK, fp8_recipe=recipe)  # type: ignore[arg-type]
        plan = plan_of("userbuffers", "fc2_fprop=pipeline:4:8:fp8")
        ops = build_schedule(MODEL, work, ClusterSpec(tp=4), plan).ops()
        return {
            op.signature.size_bytes
            for op in ops
            if op.role == "mlp.fc2.rs" and isinstance(op.signature, Collective)
        }

    piece = 4096 // 4 * 1024
    assert (scattered("none"), scattered("delayed")) == ({2 * piece}, {piece})
    with pytest.raises(InfeasiblePlanError, match="--fp8-recipe delayed, not tensorwise"):
        scattered("tensorwise")


def test_numbers_of_a_method_are_in_its_text() -> None:
    told = ("fc1_fprop=ring_exchange:2", "fc2_fprop=pipeline:4:8:fp8", "qkv_dgrad=bulk:2")
    plan = plan_of("userbuffers", *told)
    for text in told:
        gemm, _, method = text.partition("=")
        assert overlap_of(plan.strategy, plan.tp_comm_overlap, gemm).text == method
