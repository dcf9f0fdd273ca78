"""The greedy planner: deterministic, legal for every cut, and no worse than what it replaces."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.cost import CostModel
from simulator.greedy import order_of, plan_order
from simulator.issue_order import FORWARD_FRAGMENTS, backward_fragments, check_issue_order
from simulator.plan import SlicePlan
from simulator.predict import predict, simulate
from simulator.presets import MODELS
from simulator.schedule import check_order
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import (
    bundled_profile,
    cost_model,
    random_case,
    random_plan,
    with_cost,
)

UNEVEN = SlicePlan(row_slices=4, attn_col_slices=2, mlp_dgrad_slices=2)


def case_of(name: str = "gpt3-13b", tp: int = 8, micro_batch_size: int = 8) -> Case:
    return with_cost(
        Case(
            model=MODELS[name],
            workload=Workload(seq_length=1024, micro_batch_size=micro_batch_size),
            cluster=ClusterSpec(tp=tp),
            profile=bundled_profile(),
        ),
        cost_model(0.0, True),
    )


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("block", range(0, 60, 20))
def test_orders_are_legal_and_whole_for_every_cut(block: int) -> None:
    for seed in range(block, block + 20):
        rng = random.Random(seed)
        case = random_case(rng, layers=6, micros=2, cost=cost_model(1.0, False))
        plan = random_plan(rng, case, "greedy fill")
        order = order_of(case, plan)
        assert order.forward.stride == order.backward.stride == 1
        check_issue_order(order.forward, plan, FORWARD_FRAGMENTS)
        backward = backward_fragments(case.workload.recompute, case.workload.modules)
        check_issue_order(order.backward, plan, backward)
        check_order(build_schedule(case.model, case.workload, case.cluster, plan, order))


def test_uneven_slices_are_planned() -> None:
    case = case_of(micro_batch_size=7)
    assert case.shapes(UNEVEN).rows == (2, 2, 2, 1)
    timeline = simulate(case, UNEVEN)
    assert timeline.breakdown.hidden_comm_fraction > 0.5


def test_a_fresh_cost_model_gives_the_same_order() -> None:
    case = case_of()
    shapes = case.shapes(UNEVEN)
    fresh = CostModel(bundled_profile(), factors=case.factors)
    assert plan_order(shapes, fresh) == plan_order(shapes, case.cost)


@pytest.mark.parametrize("name", ["gpt3-13b", "llama2-70b"])
@pytest.mark.parametrize("tp", [4, 8])
@pytest.mark.parametrize("cut", [(1, 1, 1), (1, 2, 2), (2, 1, 1), (3, 2, 1), (4, 1, 2)])
def test_no_slower_than_intra_without_contention(
    name: str, tp: int, cut: tuple[int, int, int]
) -> None:
    case = case_of(name, tp)
    plan = SlicePlan(
        row_slices=cut[0], attn_col_slices=cut[1], mlp_col_slices=cut[1],
        attn_dgrad_slices=cut[2], mlp_dgrad_slices=cut[2],
    )  # fmt: skip
    greedy = predict(case, plan).makespan_ns
    for wgrad in ("eager", "deferred"):
        intra = replace(plan, order="intra", wgrad=wgrad)
        assert greedy <= predict(case, intra).makespan_ns


def test_weight_gradients_fill_waits_no_later_than_the_next_layer() -> None:
    """A slice's wgrad is issued before the layer after next begins its backward."""
    case = case_of()
    plan = SlicePlan(row_slices=2)
    ops = list(
        build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan)).ops()
    )
    place = {op.name: index for index, op in enumerate(ops)}
    for layer in range(2, case.model.num_hidden_layers):
        begun = place[f"l{layer - 2}.s0.attn.proj_dgrad"]
        for name in ("attn.qkv_wgrad", "attn.proj_wgrad", "mlp.fc1_wgrad", "mlp.fc2_wgrad"):
            assert all(place[f"l{layer}.s{row}.{name}"] < begun for row in (0, 1))


def test_nothing_is_put_off_where_nothing_is_reduced() -> None:
    backward = order_of(case_of(tp=1), SlicePlan(row_slices=1)).backward
    tokens = [
        str(token) for token in backward.tokens if token.fragment.startswith(("fc1_", "qkv_"))
    ]
    assert tokens == [
        "mlp.fc1_wgrad:0+0", "mlp.fc1_dgrad.0:0+0", "attn.qkv_wgrad:0+0", "attn.qkv_dgrad.0:0+0",
    ]  # fmt: skip
