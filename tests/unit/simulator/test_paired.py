"""Two micro-batches beside each other: legal orders, the same ops, engines, pipelines."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from simulator.bounds import Bounds
from simulator.build import build_schedule
from simulator.case import Case
from simulator.compiler import repriced
from simulator.curves import Prices
from simulator.errors import InfeasiblePlanError
from simulator.greedy import order_of
from simulator.memory import peak_bytes
from simulator.overlap import EP_OVERLAP
from simulator.pipeline.build import Pieces, PipelineBuilder, pieces_of
from simulator.pipeline.orders import ORDERS, in_pairs
from simulator.plan import MEGATRON, SlicePlan, check_pairs
from simulator.predict import busiest_schedule, played_pipeline, predict, simulate
from simulator.ranks import Layers, Shared
from simulator.schedule import COMPUTE, EP, Op, check_order
from simulator.specs import MOE_DISPATCHERS
from tests.unit.simulator.test_experts import DEEPSEEK, QWEN, case_of, random_cases

PAIRED = replace(MEGATRON, strategy=EP_OVERLAP)
DELAYED = replace(PAIRED, wgrad="deferred")
PLANS = pytest.mark.parametrize("plan", [PAIRED, DELAYED], ids=lambda plan: plan.label)


def job(model: Any = QWEN, **more: Any) -> Case:
    told: dict[str, Any] = {"grad_accumulation": 4, "overlap_p2p": more.get("pp", 1) > 1, **more}
    return case_of(model, **told)


def ops_of(case: Case, plan: SlicePlan) -> list[Op]:
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    check_order(schedule)
    return list(schedule.ops())


@PLANS
@pytest.mark.parametrize("model", [QWEN, DEEPSEEK], ids=lambda model: model.name)
@pytest.mark.parametrize("dispatcher", [one for one in MOE_DISPATCHERS if one != "allgather"])
def test_pairs_are_legal_and_play_what_single_passes_do(
    plan: SlicePlan, model: Any, dispatcher: str
) -> None:
    case = job(model, moe_dispatcher=dispatcher)
    mine, alone = ops_of(case, plan), ops_of(case, MEGATRON)
    assert sorted(map(repr, mine)) == sorted(map(repr, alone))
    assert simulate(case, plan).makespan_ns == predict(case, plan).makespan_ns


@PLANS
@pytest.mark.parametrize("recipe", ["none", "mxfp8"])
def test_modules_that_are_computed_again_have_their_places(plan: SlicePlan, recipe: str) -> None:
    modules = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
    more = {"recompute": "selective", "recompute_modules": modules, "fp8_recipe": recipe}
    case = job(DEEPSEEK, moe_dispatcher="hybridep", **more)
    mine, alone = ops_of(case, plan), ops_of(case, MEGATRON)
    assert sorted(map(repr, mine)) == sorted(map(repr, alone))


def test_parts_take_turns_as_megatron_has_them() -> None:
    """combine_bwd | dispatch_fwd → dispatch_bwd | combine_fwd beside attn_fwd | mlp_bwd → mlp_fwd |
    attn_bwd (TransformerLayerSchedulePlan.run)."""
    ops = ops_of(job(), DELAYED)
    first, last = (
        next(i for i, op in enumerate(ops) if (op.micro, op.layer, op.role) == named)
        for named in ((1, 2, "mlp.combine_bwd"), (1, 1, "mlp.combine_bwd"))
    )
    told = ("attn.core_attn", "attn.core_attn_bwd", "mlp.fc1", "mlp.fc1_dgrad", "mlp.fc1_wgrad")
    layer = [
        (op.micro, op.role) for op in ops[first:last]
        if op.role in told or (op.lane == EP and not op.role.endswith("_probs"))
    ]  # fmt: skip
    assert layer == [
        (1, "mlp.combine_bwd"), (2, "attn.core_attn"), (2, "mlp.dispatch"), (1, "mlp.fc1_dgrad"),
        (1, "mlp.dispatch_bwd"), (1, "mlp.fc1_wgrad"), (2, "mlp.fc1"), (2, "mlp.combine"),
        (1, "attn.core_attn_bwd"),
    ]  # fmt: skip


def test_weight_gradients_precede_the_exchange_unless_they_wait() -> None:
    roles = [op.role for op in ops_of(job(), PAIRED) if (op.micro, op.layer) == (1, 2)]
    assert roles.index("mlp.fc1_wgrad") < roles.index("mlp.dispatch_bwd")


def test_layers_that_go_back_are_counted_from_the_last() -> None:
    ops = [op for op in ops_of(job(), PAIRED) if op.lane == COMPUTE]
    beside = [
        (one.layer, other.layer)
        for one, other in pairwise(
            op for op in ops if op.role in ("attn.core_attn", "mlp.fc1_dgrad")
        )
        if (one.micro, other.micro) == (3, 2)
    ]
    assert beside == [(0, 3), (1, 2), (2, 1), (3, 0)]


def test_exchanges_hide_behind_the_other_micro_batch() -> None:
    case = job(grad_accumulation=16, dp=16, ep=16)
    alone, pairs = (predict(case, plan) for plan in (MEGATRON, PAIRED))
    assert pairs.makespan_ns < alone.makespan_ns
    assert pairs.exposed_ns < alone.exposed_ns / 2
    assert 0 < peak_bytes(case, PAIRED) / peak_bytes(case, MEGATRON) - 1 < 0.5


def test_bounds_are_below_times_of_random_cases() -> None:
    found = 0
    for case in random_cases(0, 300):
        try:
            check_pairs(case.model, case.workload, case.cluster)
        except InfeasiblePlanError:
            continue
        bounds = Bounds(case)
        for plan in (PAIRED, DELAYED):
            own = replace(plan, sequence_parallel=case.modes[0])
            time_ns = predict(case, own).makespan_ns
            assert bounds.lower_bound_ns(own) <= time_ns
            assert bounds.any_order_ns([own])[0] <= time_ns
            found += 1
    assert found > 4


def test_bounds_of_pairs_hold_where_a_layout_before_had_one_micro_batch() -> None:
    """Layouts share what layers take; a step of one micro-batch has no pairs."""
    for case in random_cases(0, 300):
        if case.workload.grad_accumulation < 2 or not usual_pairs(case):
            continue
        alone = replace(case, workload=replace(case.workload, grad_accumulation=1))
        layers, plan = Layers(Shared(Prices.of(case))), usual_pairs(case)[0]
        Bounds(alone, layers).any_order_ns([replace(plan, strategy="megatron")])
        assert Bounds(case, layers).any_order_ns([plan]) == Bounds(case).any_order_ns([plan])
        return
    raise AssertionError("no random case has pairs")


def usual_pairs(case: Case) -> list[SlicePlan]:
    try:
        check_pairs(case.model, case.workload, case.cluster)
    except InfeasiblePlanError:
        return []
    return [replace(PAIRED, sequence_parallel=case.modes[0])]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ep": 1}, "--ep of 2 or more"),
        ({"moe_dispatcher": "allgather"}, "not allgather"),
        ({"recompute": "full"}, "--recompute none"),
        ({"pp": 2}, "--vpp of 2 or more"),
        ({"grad_accumulation": 1}, "one micro-batch a step"),
        ({"model": replace(DEEPSEEK, num_nextn_predict_layers=2)}, "one further prediction"),
        ({"model": DEEPSEEK, "moe_shared_expert_overlap": True}, "shared expert"),
    ],
)
def test_what_cannot_run_beside_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InfeasiblePlanError, match=said):
        predict(job(**changed), PAIRED)


# Pipelines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "vpp", "micros"), [(2, 2, 4), (4, 3, 8), (2, 5, 6)])
def test_pairs_are_of_different_passes_after_one_forward_more(
    pp: int, vpp: int, micros: int
) -> None:
    for mine, usual in zip(in_pairs(pp, vpp, micros), ORDERS["1f1b"](pp, vpp, micros), strict=True):
        assert sorted(one[:3] for one in mine) == sorted(one[:3] for one in usual)
        ahead = [
            next(i for i, one in enumerate(order) if one.kind == "B") for order in (mine, usual)
        ]
        assert ahead[0] in (ahead[1], ahead[1] + 1)
        for one, other in pairwise(mine):
            if one.kind == "F" and one.beside:
                assert (other.kind, other.micro, other.chunk) == ("B", *one.beside)
                assert other.beside == (one.micro, one.chunk)
                assert (one.micro, one.chunk) != (other.micro, other.chunk)


def piped(**more: Any) -> tuple[Case, Pieces]:
    case = job(replace(QWEN, num_hidden_layers=8), pp=2, vpp=2, **more)
    return case, pieces_of(case, PAIRED)


def test_a_pair_takes_what_its_ops_take_and_each_pass_a_share_of_it() -> None:
    case, pieces = piped()
    builder = PipelineBuilder(pieces, case.cost)
    paired = [one for one in pieces.counts(0) if one.beside and one.part == "forward"]
    assert paired
    for piece in paired:
        ahead, back = piece.pair
        other = back._replace(beside=ahead)
        whole = repriced(pieces.schedule(piece), case.cost).led(case.cost).totals
        shares = builder.played(piece), builder.played(other)
        assert sum(one.makespan_ns for one in shares) == whole.makespan_ns
        alone = sum(builder.played(one).makespan_ns for one in (ahead, back))
        assert whole.makespan_ns < alone


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_pipelines_gain_and_record_every_op_once(schedule: str) -> None:
    case, _ = piped(grad_accumulation=8, pp_schedule=schedule)
    alone, pairs = (played_pipeline(case, plan) for plan in (MEGATRON, PAIRED))
    assert pairs.iteration_ns < alone.iteration_ns
    names = [op.name for op in busiest_schedule(case, PAIRED).ops()]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(op.name for op in busiest_schedule(case, MEGATRON).ops())
