"""What the closed form's estimate says each order exposes, and its sums, from durations of ops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.bounds import Bounds
from simulator.build import build_schedule
from simulator.case import Case
from simulator.cost import CostModel
from simulator.estimate import Estimates
from simulator.greedy import order_of
from simulator.lookup import Provenance
from simulator.ops import Gemm
from simulator.plan import MEGATRON, Order, SlicePlan, WgradPlacement
from simulator.predict import predict
from simulator.profile import LaunchSection
from simulator.schedule import COMPUTE
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.unit.simulator.cases import bundled_profile, cost_model, with_cost

MODEL = ModelSpec(
    name="gpt", num_hidden_layers=5, hidden_size=2048, num_attention_heads=32,
    num_key_value_heads=32, head_dim=64, intermediate_size=8192, vocab_size=50257,
    max_position_embeddings=4096, hidden_dropout=0.1,
)  # fmt: skip


def case_of(batch: int = 4, dp: int = 1, micros: int = 1, tp: int = 8) -> Case:
    """Without contention and launches; GPUs on several nodes, so all-reduces are long."""
    work = Workload(seq_length=512, micro_batch_size=batch, grad_accumulation=micros)
    cluster = ClusterSpec(tp=tp, dp=dp)
    case = Case(model=MODEL, workload=work, cluster=cluster, profile=bundled_profile())
    return with_cost(case, cost_model(0.0, True))


def plan_of(
    order: Order, wgrad: WgradPlacement = "eager", rows: int = 2, *, merged: bool = False
) -> SlicePlan:
    return SlicePlan(row_slices=rows, order=order, wgrad=wgrad, merge_wgrad=merged)


def layer_ns(case: Case, plan: SlicePlan) -> Counter[str]:
    """Time of the ops of one layer by role, all slices."""
    spent: Counter[str] = Counter()
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    for op in schedule.ops():
        if op.layer == 2 and op.role.startswith(("attn.", "mlp.")):
            spent[op.role] += case.cost.duration_ns(op.signature)
    return spent


@pytest.mark.parametrize(("rows", "tp"), [(2, 2), (4, 2), (2, 8)])
def test_intra_exposes_the_last_all_reduces_of_a_layer(rows: int, tp: int) -> None:
    """Forward: the last slice's, beside the other slices' residuals. Backward: the same, beside its
    own wgrads (the row-parallel ones where they are deferred) and the other slices' norms."""
    case = case_of(tp=tp)
    layers = case.model.num_hidden_layers
    form = Estimates(case)
    for wgrad, merged in (("eager", False), ("deferred", False), ("eager", True)):
        plan = plan_of("intra", wgrad, rows, merged=merged)  # type: ignore[arg-type]
        spent, others = layer_ns(case, plan), (rows - 1) / rows
        forward = spent["mlp.fc2.ar"] / rows - others * spent["mlp.residual"]
        behind = spent["attn.qkv_wgrad"] + spent["attn.qkv_wgrad.x"]
        if wgrad == "deferred":
            behind += spent["attn.proj_wgrad"]
        share = 1.0 if merged else 1 / rows
        backward = spent["attn.qkv_dgrad.ar"] / rows
        backward -= share * behind + others * spent["attn.norm_bwd"]
        exposed = max(0.0, forward) + max(0.0, backward)
        base = form.prior_ns(replace(SlicePlan(row_slices=rows), merge_wgrad=merged))
        assert form.prior_ns(plan) - base == pytest.approx(layers * exposed, abs=0.01)
        assert exposed > 0 or tp == 2


def test_paper_exposes_both_blocks_all_reduces() -> None:
    case, rows = case_of(), 2
    form, plan = Estimates(case), plan_of("paper")
    spent = layer_ns(case, plan)
    half = {role: time_ns / rows for role, time_ns in spent.items()}
    forward = max(0.0, half["mlp.fc2.ar"] - half["mlp.residual"])
    forward += max(0.0, half["attn.proj.ar"] - half["attn.residual"] - half["mlp.norm"])
    backward = sum(
        max(0.0, half[f"{linear}_dgrad.ar"] - half[f"{linear}_wgrad"] - half[f"{block}.norm_bwd"])
        for block, linear in (("attn", "attn.qkv"), ("mlp", "mlp.fc1"))
    )
    inter = form.prior_ns(plan_of("inter"))
    assert min(forward, backward) > 0
    expected = case.model.num_hidden_layers * (forward + backward)
    assert form.prior_ns(plan) - inter == pytest.approx(expected, abs=0.01)
    deferred = form.prior_ns(plan_of("paper", "deferred"))
    assert deferred < form.prior_ns(plan)


def test_an_order_that_is_not_sliced_exposes_nothing_more() -> None:
    form = Estimates(case_of())
    for order in ("intra", "paper", "inter"):
        assert form.prior_ns(plan_of(order, rows=1)) == form.prior_ns(MEGATRON)


@pytest.mark.parametrize("micros", [1, 3])
def test_on_one_rank_estimate_bound_and_engine_are_the_sum_of_all_ops(micros: int) -> None:
    """Nothing is reduced and nobody waits. But in the closed form slice 0 overwrites gradients in
    each micro-batch; the engine adds in later ones."""
    case, plan = case_of(tp=1, micros=micros), plan_of("intra")
    cost, more_ns = case.cost, 0
    schedule = build_schedule(case.model, case.workload, case.cluster, plan)
    for op in schedule.ops():
        gemm = op.signature
        if isinstance(gemm, Gemm) and gemm.layout == "wgrad" and op.micro and op.slice == 0:
            plain = gemm._replace(accumulate=False)
            more_ns += cost.duration_ns(gemm) - cost.duration_ns(plain)
    total = predict(case, plan).makespan_ns - more_ns
    assert Bounds(case).any_order_ns([plan])[0] == pytest.approx(total, rel=1e-7)
    assert Estimates(case).prior_ns(plan) == pytest.approx(total, rel=1e-7)


def test_without_overlap_the_bound_is_near_the_engine() -> None:
    """In Megatron-LM's order each forward all-reduce stands alone; backward it hides its wgrads."""
    case = case_of()
    bound, time = Bounds(case).any_order_ns([MEGATRON])[0], predict(case, MEGATRON).makespan_ns
    assert 0.9 * time < bound <= time


@pytest.mark.parametrize(("dp", "tp"), [(2, 4), (8, 1)])
def test_replicas_expose_what_backward_does_not_hide(dp: int, tp: int) -> None:
    """At least the edges' gradients, which come last."""
    alone, many = case_of(tp=tp), case_of(tp=tp, dp=dp)
    plan = plan_of("inter")
    cost = many.cost
    shapes = Shapes(model=MODEL, workload=many.workload, cluster=many.cluster, plan=plan)
    whole = cost.duration_ns(shapes.dp_reduction(shapes.held.whole))
    last = cost.duration_ns(shapes.dp_reduction(shapes.edge_parameters))
    more = Estimates(many).prior_ns(plan) - Estimates(alone).prior_ns(plan)
    assert last <= more + 1 <= whole


def test_a_host_that_is_slower_than_the_devices_decides() -> None:
    """A millisecond an op: bound and estimate are the launches of the layers. What the profile does
    not name costs nothing."""
    provenance = Provenance(kind="measured", source="a test")
    costs = dict.fromkeys(("gemm", "attention", "pointwise"), 1000.0)
    profile = replace(
        bundled_profile(), launch=LaunchSection(mode="async", cost_us=costs, provenance=provenance)
    )
    case = with_cost(case_of(micros=2), CostModel(profile))
    plan = plan_of("intra")
    schedule = build_schedule(case.model, case.workload, case.cluster, plan)
    layers = [op for op in schedule.ops() if op.role.startswith(("attn.", "mlp."))]
    ops = [op for op in layers if op.lane == COMPUTE]
    host_ns = len(ops) * 1_000_000
    assert Bounds(case).any_order_ns([plan])[0] == pytest.approx(host_ns, rel=1e-8)
    edges = Estimates(case_of(micros=2)).prior_ns(plan)
    assert host_ns < Estimates(case).prior_ns(plan) < host_ns + edges


def test_a_launch_inside_an_op_is_a_part_of_it() -> None:
    provenance = Provenance(kind="measured", source="a test")
    costs = dict.fromkeys(("gemm", "attention", "pointwise"), 100.0)
    launch = LaunchSection(mode="inline", cost_us=costs, provenance=provenance)
    case = case_of(tp=1)
    slow = with_cost(case, CostModel(replace(case.cost.profile, launch=launch, contention=None)))
    plan = plan_of("intra")
    schedule = build_schedule(case.model, case.workload, case.cluster, plan)
    compute = sum(op.lane == COMPUTE for op in schedule.ops())
    for form in (lambda c: Estimates(c).prior_ns(plan), lambda c: predict(c, plan).makespan_ns):
        assert form(slow) - form(case) == pytest.approx(compute * 100_000, rel=1e-6)
