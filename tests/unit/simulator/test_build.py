"""What the builder refuses, and where data-parallel buckets and micro-batches stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.build import build_schedule, check_layer_order
from simulator.errors import InfeasiblePlanError, InputError, ScheduleError
from simulator.issue_order import IssueOrder, LayerOrder, Token
from simulator.ops import Gemm
from simulator.optimizer import DP_BUCKET_PARAMETERS
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.presets import MODELS
from simulator.schedule import DP, TP, Op, Schedule, check_order
from simulator.schedules import fixed_order
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.small_models import value_bytes

MODEL = MODELS["gpt3-1.3b"]
WORK = Workload(seq_length=128, micro_batch_size=4)
NODE = ClusterSpec(tp=8)
INTRA = SlicePlan(row_slices=2, order="intra", wgrad="eager")


def build(
    plan: SlicePlan = INTRA, work: Workload = WORK, cluster: ClusterSpec = NODE,
    order: LayerOrder | None = None,
) -> Schedule:  # fmt: skip
    return build_schedule(MODEL, work, cluster, plan, order)


def dp_ops(schedule: Schedule) -> list[Op]:
    return [op for op in schedule.ops() if op.lane == DP]


def test_greedy_needs_its_explicit_order() -> None:
    with pytest.raises(ScheduleError, match="needs its explicit order"):
        build(SlicePlan())


def test_an_order_of_another_plan_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"once per layer.*plan it again"):
        check(fixed_order(replace(INTRA, row_slices=4)))


def check(order: LayerOrder) -> None:
    check_layer_order(MODEL, WORK, NODE, INTRA, order)


def test_an_order_from_outside_that_reads_before_it_writes_is_refused() -> None:
    order = fixed_order(INTRA)
    backwards = IssueOrder(tokens=order.forward.tokens[::-1])
    with pytest.raises(ScheduleError, match="before it is written"):
        check(replace(order, forward=backwards))


@pytest.mark.parametrize("layers", [0, 1, 7, 24])
def test_an_order_from_outside_may_compute_many_layers_again(layers: int) -> None:
    """It is checked on a short stack, which has fewer layers than these."""
    again = replace(WORK, recompute="full", recompute_layers=layers)
    check_layer_order(MODEL, again, NODE, INTRA, fixed_order(INTRA, "full"))
    forward = fixed_order(INTRA)
    with pytest.raises(ScheduleError):
        check_layer_order(MODEL, again, NODE, INTRA, forward)


def test_an_order_from_outside_may_not_reach_far() -> None:
    order = fixed_order(INTRA)
    first, *rest = order.forward.tokens
    far = IssueOrder(tokens=(first.shifted(1_000_000_000), *rest))
    with pytest.raises(ScheduleError, match="1000000000 layers away"):
        check(replace(order, forward=far))


def test_check_order_sees_an_order_that_reads_before_it_writes() -> None:
    order = fixed_order(INTRA)
    schedule = build(order=replace(order, forward=IssueOrder(tokens=order.forward.tokens[::-1])))
    with pytest.raises(ScheduleError, match="before it is written; issue its writer first"):
        check_order(schedule)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InfeasiblePlanError):
        build(replace(INTRA, row_slices=5))
    with pytest.raises(InputError, match=r"num_attention_heads = 16 .* tp = 32"):
        build(cluster=ClusterSpec(tp=32))


def test_no_comm_has_no_collectives_and_one_rank_no_tensor_parallel_ones() -> None:
    assert build(NO_COMM, cluster=ClusterSpec(tp=8, dp=2)).lanes() == (0,)
    assert build(cluster=ClusterSpec(tp=1, dp=8)).lanes() == (0, DP)
    assert build(cluster=ClusterSpec(tp=8, dp=2)).lanes() == (0, TP, DP)


@pytest.mark.parametrize("plan", [MEGATRON, INTRA, SlicePlan(order="inter", wgrad="deferred")])
def test_buckets_hold_every_gradient_once(plan: SlicePlan) -> None:
    cluster = ClusterSpec(tp=4, dp=2)
    ops = dp_ops(build(plan, cluster=cluster))
    shapes = Shapes(model=MODEL, workload=WORK, cluster=cluster, plan=plan)
    sizes = [op.signature.size_bytes for op in ops if op.signature.kind == "collective"]
    assert sum(sizes) == 4 * shapes.held.whole
    assert len(sizes) > 3
    assert min(sizes[:-1]) >= 4 * DP_BUCKET_PARAMETERS
    assert ops[-1].role == "step.dp.ar"
    schedule = build(plan, cluster=cluster)
    assert {value_bytes(schedule)[name] for name in ("grad.dp", "step.dp")} == {0}, "in place"


def test_buckets_are_reduced_in_the_last_micro_batch_only() -> None:
    schedule = build(work=replace(WORK, grad_accumulation=5), cluster=ClusterSpec(tp=4, dp=2))
    assert [part.count for part in schedule.parts] == [1, 3, 1]
    assert {op.micro for op in dp_ops(schedule)} == {4}


def test_small_stacks_reduce_all_gradients_at_the_end() -> None:
    tiny = replace(MODEL, hidden_size=64, intermediate_size=256, head_dim=4, num_hidden_layers=3)
    schedule = build_schedule(tiny, WORK, ClusterSpec(tp=1, dp=8), INTRA)
    assert [op.role for op in dp_ops(schedule)] == ["step.dp.ar"]


def test_gradients_overwrite_once_and_accumulate_after() -> None:
    schedule = build(work=replace(WORK, grad_accumulation=2))
    adds = [
        op.signature.accumulate
        for op in schedule.ops()
        if op.role == "mlp.fc1_wgrad" and op.layer == 3 and isinstance(op.signature, Gemm)
    ]
    assert adds == [False, True, True, True]


def test_an_order_may_reach_four_repetitions_and_no_further() -> None:
    order = fixed_order(INTRA)
    for reach in (4, -4):
        check(replace(order, forward=IssueOrder(tokens=shifted(order, reach))))
    for reach in (5, -5):
        with pytest.raises(ScheduleError, match=r"token 5 layers away .* at most 4 is"):
            check(replace(order, forward=IssueOrder(tokens=shifted(order, reach))))


def shifted(order: LayerOrder, layers: int) -> tuple[Token, ...]:
    return tuple(token.shifted(layers) for token in order.forward.tokens)


@pytest.mark.parametrize("plan", [MEGATRON, INTRA, SlicePlan(order="inter", wgrad="deferred")])
def test_buckets_are_as_small_as_may_be_and_follow_their_last_gradient(plan: SlicePlan) -> None:
    """Of the fewest layers with 40 million gradients; nothing stands between a bucket and the last
    op that adds to it. Layers come from the top of the stack."""
    cluster = ClusterSpec(tp=4, dp=2)
    shapes = Shapes(model=MODEL, workload=WORK, cluster=cluster, plan=plan)
    ops = list(build(plan, cluster=cluster).ops())
    buckets = [(index, op) for index, op in enumerate(ops) if op.role == "dp.ar"]
    layers = -(-DP_BUCKET_PARAMETERS // shapes.layer_parameters)
    assert len(buckets) == MODEL.num_hidden_layers // layers
    for number, (index, op) in enumerate(buckets):
        low = MODEL.num_hidden_layers - layers * (number + 1)
        assert (op.layer, op.slice, op.name) == (low, -1, f"l{low}.dp.ar")
        read = {(name.partition(".")[0], name.rpartition(".")[2]) for name in op.reads}
        assert {layer for layer, _ in read} == {f"l{low + i}" for i in range(layers)}
        assert len(op.reads) == 4 * layers
        before = ops[index - 1]
        assert before.layer == low
        assert before.role.endswith(("_wgrad", "norm_bwd"))
        behind = [o for o in ops[index:] if o.layer == low and o.role.startswith(("attn.", "mlp."))]
        assert not [o for o in behind if o.role.endswith(("_wgrad", "norm_bwd"))]


def test_layers_beyond_the_last_bucket_are_reduced_with_the_edges() -> None:
    cluster = ClusterSpec(tp=4, dp=2)
    shapes = Shapes(model=MODEL, workload=WORK, cluster=cluster, plan=MEGATRON)
    layers = -(-DP_BUCKET_PARAMETERS // shapes.layer_parameters)
    rest = MODEL.num_hidden_layers % layers or layers
    odd = replace(MODEL, num_hidden_layers=MODEL.num_hidden_layers - rest + 1)
    last = dp_ops(build_schedule(odd, WORK, cluster, MEGATRON))[-1]
    assert last.role == "step.dp.ar"
    assert last.signature.kind == "collective"
    assert last.signature.size_bytes == 4 * (shapes.layer_parameters + shapes.edge_parameters)
    assert [name for name in last.reads if name.startswith("l0.grad.mlp.fc1")]
    assert not [name for name in last.reads if name.startswith("l1.grad.mlp.fc1")]
    assert [name for name in last.reads if name.endswith("grad.dp")] == [
        f"l{layer}.grad.dp" for layer in range(1, odd.num_hidden_layers, layers)
    ]


@pytest.mark.parametrize(
    ("micros", "parts"), [(1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (9, [1, 7, 1])]
)
def test_equal_micro_batches_stand_together(micros: int, parts: list[int]) -> None:
    schedule = build(work=replace(WORK, grad_accumulation=micros))
    assert [part.count for part in schedule.parts] == parts
    assert schedule.micros == micros
    assert sorted({op.micro for op in schedule.ops()}) == list(range(micros))


def test_whole_repetitions_of_an_order_are_one_segment() -> None:
    """``inter`` reaches a layer back and a layer ahead, so two repetitions at each end have only a
    part of their tokens, and 22 of 24 layers are alike. The other tokens of these are the edges':
    the embedding, the head and its gradient, the embedding's gradient. Alone stand the sums of the
    loss and the step; without moved tokens the edges do, too."""
    inter = build(SlicePlan(order="inter", wgrad="eager"))
    counts = [segment.count for segment in inter.parts[0].segments]
    assert counts == [1, 1, 22, 1, 1, 1, 1, 1, 22, 1, 1, 1]
    assert [segment.count for segment in build().parts[0].segments] == [1, 24, 1, 1, 1, 24, 1, 1]
