"""Slices of sequences: where they are cut, and what their ops are."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise, product

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError, ScheduleError
from simulator.greedy import order_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.issue_order import LayerOrder
from simulator.ops import Attention, Gemm, Pointwise
from simulator.plan import (
    FRONT,
    MEGATRON,
    SLICE_BALANCES,
    TILE,
    SliceBalance,
    SlicePlan,
    check_plan_fits,
    sequence_spans,
)
from simulator.schedule import Op, Schedule, check_order
from simulator.schedules import fixed_order
from simulator.shapes import Shapes
from simulator.specs import RECOMPUTE, ClusterSpec, ModelSpec, Workload
from tests.unit.simulator.cases import bundled_profile, cost_model, random_model, with_cost
from tests.unit.simulator.small_models import value_bytes

PLAIN = ModelSpec(
    name="plain", num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, intermediate_size=96, vocab_size=128,
    max_position_embeddings=4096, hidden_act="silu", gated_mlp=True, norm="rmsnorm",
    position_embedding="rope", attention_bias=False, mlp_bias=False,
)  # fmt: skip
JOB = Workload(seq_length=24, micro_batch_size=2)
ALONG = SlicePlan(row_slices=3, order="intra", wgrad="eager", slice_dim="sequence")


def work(model: ModelSpec, span: range) -> float:
    """FLOPs of a span of positions, forward and backward, one position after the other."""
    linear = 6.0 * model.linear_parameters
    score = 3.5 * 4 * model.num_attention_heads * model.head_dim
    return sum(linear + score * (position + 0.5) for position in span)


def schedule_of(
    plan: SlicePlan, model: ModelSpec = PLAIN, job: Workload = JOB, order: LayerOrder | None = None
) -> Schedule:
    return build_schedule(model, job, ClusterSpec(tp=2), plan, order)


def schedule_flops(schedule: Schedule) -> int:
    return sum(op.signature.flops for op in schedule.ops())


def ops_of(schedule: Schedule, role: str) -> list[Op]:
    """The ops of layer 0 with that role."""
    return [op for op in schedule.ops() if op.role == role and op.layer == 0]


@pytest.mark.parametrize("seed", range(60))
def test_spans_cover_the_sequence_in_whole_units(seed: int) -> None:
    rng = random.Random(seed)
    slices, multiple = rng.randint(1, 8), rng.choice((1, 2, 4, 8))
    length = multiple * rng.randint(slices, 4000)
    balance = rng.choice(SLICE_BALANCES)
    spans = sequence_spans(random_model(rng, 2, 2), length, slices, multiple, balance)
    assert [position for span in spans for position in span] == list(range(length))
    assert len(spans) == slices
    assert all(len(span) > 0 and span.start % multiple == 0 for span in spans)


def random_cut(seed: int) -> tuple[ModelSpec, int, int, int, int]:
    """A model, a length, slices, the multiple, and between which positions cuts may fall: tiles
    where a slice is 16 of them or more."""
    rng = random.Random(seed)
    slices, multiple = rng.randint(2, 5), rng.choice((1, 2, 6, 8))
    length = rng.randint(512 * slices, 20_000) // multiple * multiple
    tile = math.lcm(multiple, 128)
    grain = tile if length // slices >= 16 * tile else multiple
    return random_model(rng, 2, 2), length, slices, multiple, grain


def test_random_cuts_are_of_both_kinds() -> None:
    cuts = [random_cut(seed) for seed in range(40)]
    assert 5 < sum(grain > multiple for *_, multiple, grain in cuts) < 35


@pytest.mark.parametrize("seed", range(40))
def test_balanced_slices_have_equal_work(seed: int) -> None:
    """Each of a slice's two cuts is at most half a grain away from its place."""
    model, length, slices, multiple, grain = random_cut(seed)
    spans = sequence_spans(model, length, slices, multiple, "balanced")
    shares = [work(model, span) for span in spans]
    assert all(span.start % grain == 0 for span in spans)
    most = grain * work(model, range(length - 1, length))
    assert max(abs(share - sum(shares) / slices) for share in shares) <= most
    assert all(len(a) >= len(b) - grain for a, b in pairwise(spans))


@pytest.mark.parametrize("seed", range(40))
def test_even_slices_have_equal_length(seed: int) -> None:
    model, length, slices, multiple, grain = random_cut(seed)
    spans = sequence_spans(model, length, slices, multiple, "even")
    assert all(abs(len(span) - length / slices) <= grain for span in spans)


@pytest.mark.parametrize("seed", range(40))
def test_front_slices_have_falling_work(seed: int) -> None:
    """Of n slices the first has 1.5 times the last one's work: shares 3, …, 2 of 2.5·n."""
    model, length, slices, multiple, grain = random_cut(seed)
    spans = sequence_spans(model, length, slices, multiple, "front")
    shares = [work(model, span) for span in spans]
    most = grain * work(model, range(length - 1, length))
    wanted = [(3 - i / (slices - 1)) / (2.5 * slices) * sum(shares) for i in range(slices)]
    assert all(abs(a - b) <= most for a, b in zip(shares, wanted, strict=True))


def test_front_slices_in_detail() -> None:
    assert FRONT == 1.5
    spans = sequence_spans(PLAIN, 2040, 4, 1, "front")
    shares = [work(PLAIN, span) for span in spans]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] / shares[-1] == pytest.approx(1.5, rel=0.01)
    assert shares[1] - shares[2] == pytest.approx(shares[2] - shares[3], rel=0.05)


def test_without_attention_work_is_length() -> None:
    """Weights of front slices: 1.5, 1.25, 1 of 3.75; or 1.5, 1 of 2.5."""
    model = replace(
        PLAIN, hidden_size=8192, num_attention_heads=1, num_key_value_heads=1, head_dim=1
    )
    for slices in (2, 3, 4, 5):
        even = sequence_spans(model, 1200, slices, 1, "even")
        assert sequence_spans(model, 1200, slices, 1, "balanced") == even
        assert {len(span) for span in even} == {1200 // slices}
    front = (range(24), range(24, 44), range(44, 60))
    assert sequence_spans(model, 60, 3, 1, "front") == front
    assert sequence_spans(model, 60, 2, 1, "front") == (range(36), range(36, 60))


@pytest.mark.parametrize("balance", SLICE_BALANCES)
def test_the_most_slices_have_one_unit_each(balance: SliceBalance) -> None:
    model = replace(PLAIN, num_attention_heads=4096)
    spans = sequence_spans(model, 40, 5, 8, balance)
    assert [span.start for span in spans] == [0, 8, 16, 24, 32]
    assert sequence_spans(model, 40, 1, 8, balance) == (range(40),)


def test_even_slices_and_those_of_long_sequences() -> None:
    assert sequence_spans(PLAIN, 10, 3, 1, "even") == (range(3), range(3, 7), range(7, 10))
    assert TILE == 128
    for more, whole in ((-8, False), (0, True)):  # of 16 tiles a slice
        long = sequence_spans(PLAIN, 16 * 2 * 128 + more, 2, 8, "balanced")
        assert (long[0].stop % 128 == 0) == whole
        assert len(long[0]) > len(long[1])


def test_a_cut_by_hand() -> None:
    """A token's linears are 600 FLOPs forward and backward, a score 14: half of the work of 100
    positions, 65,000, is done where 600·x + 7·x² is that: at 62.6."""
    model = replace(
        PLAIN, hidden_size=1, num_attention_heads=1, num_key_value_heads=1, head_dim=1,
        intermediate_size=32,
    )  # fmt: skip
    assert model.linear_parameters == 3 + 1 + 64 + 32 == 100
    (first, _) = sequence_spans(model, 100, 2, 1, "balanced")
    assert pytest.approx((600 * 100 + 7 * 100**2) / 2, rel=1e-3) == 600 * 62.58 + 7 * 62.58**2
    assert first == range(63)


def test_two_balanced_slices_in_the_schedule() -> None:
    """A position's linears are 6·30,720 FLOPs, a score 3.5·4·64: half of the work of 240 positions
    is done at 141.4. With sequence parallelism each of two ranks takes half of a slice: 142."""
    assert PLAIN.linear_parameters == 64 * 128 + 64 * 64 + 64 * 192 + 96 * 64 == 30_720
    half = 184_320 * 141.4 + 448 * 141.4**2
    assert half == pytest.approx((184_320 * 240 + 448 * 240**2) / 2, rel=1e-3)
    job, plan = replace(JOB, seq_length=240), replace(ALONG, row_slices=2)
    for mode, cut in ((False, 141), (True, 142)):
        schedule = schedule_of(replace(plan, sequence_parallel=mode), job=job)
        first = Attention(2, 2, 1, cut, 16)
        shapes = {0: first, 1: first._replace(seq=240 - cut, kv_seq=240)}
        found = {op.slice: op.signature for op in ops_of(schedule, "attn.core_attn")}
        assert found == shapes
        found = {op.slice: op.signature for op in ops_of(schedule, "attn.core_attn_bwd")}
        assert found == {row: one._replace(direction="backward") for row, one in shapes.items()}
        (qkv,) = {op.signature for op in ops_of(schedule, "attn.qkv") if op.slice == 0}
        assert isinstance(qkv, Gemm)
        assert (qkv.m, qkv.n, qkv.k) == (2 * cut, 64, 64)


def test_scores_in_memory_meet_the_keys_of_earlier_slices() -> None:
    """Two sequences, two heads a rank, 8 positions: 32 rows of queries in each slice."""
    job = replace(JOB, implementation=IMPLEMENTATIONS["megatron-2022"])
    assert not job.implementation.flash_attention
    schedule = schedule_of(replace(ALONG, slice_balance="even"), job=job)
    found = {}
    for role in ("attn.scores", "attn.core_attn", "attn.values_bwd", "attn.softmax_grad"):
        shapes = [op.signature for op in ops_of(schedule, role)]
        assert all(isinstance(shape, Gemm) for shape in shapes)
        found[role] = [shape[:3] for shape in shapes]
    to_scores, to_heads = ([(32, *(8 * n, 16)[::d]) for n in (1, 2, 3)] for d in (1, -1))
    assert found["attn.scores"] == to_scores
    assert found["attn.core_attn"] == to_heads
    assert found["attn.softmax_grad"] == to_scores[::-1]
    assert found["attn.values_bwd"] == to_heads[::-1]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ("attn.qkv.rope",)),
        ({"position_embedding": "learned"}, ("attn.qkv",)),
        ({"qk_norm": True}, ("attn.qk.rope", "attn.qkv")),
        ({"qk_norm": True, "position_embedding": "learned"}, ("attn.qk", "attn.qkv")),
    ],
    ids=str,
)
def test_attention_reads_earlier_keys_and_values(
    changes: dict[str, object], names: tuple[str, ...]
) -> None:
    """Forward as they are rotated, backward as they are kept; where rows are whole sequences, of
    its own alone."""
    model = replace(PLAIN, **changes)  # type: ignore[arg-type]
    kept = {name.removesuffix(".rope") for name in names}
    batch = SlicePlan(order="intra", wgrad="eager")
    for plan, first in ((ALONG, [0, 0, 0]), (batch, [0, 1])):
        schedule = schedule_of(plan, model)
        check_order(schedule)
        for role, wanted in (("attn.core_attn", set(names)), ("attn.core_attn_bwd", kept)):
            for op in ops_of(schedule, role):
                of = f"l0.s{op.slice}.attn.core_attn"
                read = {value for value in op.reads if ".d." not in value and value != of}
                rows = range(first[op.slice], op.slice + 1)
                assert read == {f"l0.s{row}.{name}" for row in rows for name in wanted}


def test_attention_meets_the_keys_of_earlier_slices() -> None:
    plan = replace(ALONG, slice_balance="even")
    schedule = schedule_of(plan)
    for role in ("attn.core_attn", "attn.core_attn_bwd"):
        found = {op.slice: op.signature for op in ops_of(schedule, role)}
        shapes = [found[row] for row in range(3)]
        assert all(isinstance(one, Attention) for one in shapes)
        assert [(one.seq, one.kv_seq) for one in shapes] == [(8, 0), (8, 16), (8, 24)]  # type: ignore[union-attr]
        (whole,) = (op.signature for op in ops_of(schedule_of(MEGATRON), role))
        assert sum(one.flops for one in shapes) == whole.flops
        assert schedule_flops(schedule) == schedule_flops(schedule_of(MEGATRON))


def test_gradients_of_keys_and_values_are_summed() -> None:
    """Two sequences, one of two kv heads a rank: keys and values of a position are 64 elements.
    The last slice writes 16 positions in fp32, the middle one adds to 8 and takes 8, the first
    takes 8."""
    ops = ops_of(schedule_of(replace(ALONG, slice_balance="even")), "attn.kv_bwd")
    assert [op.slice for op in ops] == [2, 1, 0]
    each = 8 * 2 * 2 * 16
    moved = []
    for op in ops:
        assert isinstance(op.signature, Pointwise)
        moved.append((op.signature.bytes_read / each, op.signature.bytes_written / each))
    assert moved == [(2 * 2, 2 * 4), (2 + 4 + 4 + 2, 4 + 2), (4 + 2, 2)]


def test_backward_walks_from_the_last_slice() -> None:
    for plan in (ALONG, SlicePlan(order="inter", wgrad="eager", slice_dim="sequence")):
        schedule = schedule_of(plan)
        check_order(schedule)
        rows = [op.slice for op in ops_of(schedule, "attn.core_attn_bwd")]
        assert tuple(rows) == plan.rows_back == tuple(reversed(range(plan.row_slices)))
    assert SlicePlan(row_slices=3).rows_back == (0, 1, 2)


def test_the_other_way_is_refused() -> None:
    """Backward that walks slices of a sequence as it walks a batch's reads sums to come."""
    order = fixed_order(ALONG)
    turned = tuple(
        token._replace(slice=2 - token.slice) if token.slice >= 0 else token
        for token in order.backward.tokens
    )
    wrong = replace(order, backward=replace(order.backward, tokens=turned))
    with pytest.raises(ScheduleError, match=r"attn\.kv_bwd' reads '.*kv_grad' before"):
        check_order(schedule_of(ALONG, order=wrong))


@pytest.mark.sampled
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("order", ["greedy", "intra"])
def test_orders_of_slices_are_legal(recompute: str, order: str) -> None:
    for rows, balance, merge, mode, name in product(
        (2, 3, 4), ("even", "front"), (False, True), (False, True), ("domino-tune", "megatron-2022")
    ):
        if recompute == "per-op" and not mode:
            continue
        plan = SlicePlan(
            row_slices=rows, attn_col_slices=2, merge_wgrad=merge, sequence_parallel=mode,
            slice_dim="sequence", slice_balance=balance, order=order,  # type: ignore[arg-type]
            wgrad="fill" if order == "greedy" else "deferred",
        )  # fmt: skip
        job = replace(JOB, recompute=recompute, implementation=IMPLEMENTATIONS[name])  # type: ignore[arg-type]
        case = Case(model=PLAIN, workload=job, cluster=ClusterSpec(tp=2), profile=bundled_profile())
        found = order_of(with_cost(case, cost_model(1.0, False)), plan)
        schedule = schedule_of(plan, job=job, order=found)
        check_order(schedule)
        assert [op.slice for op in ops_of(schedule, "attn.kv_bwd")] == list(plan.rows_back)


@pytest.mark.parametrize("balance", SLICE_BALANCES)
def test_forward_keeps_as_much_as_without_slices(balance: SliceBalance) -> None:
    """Of a token each of two layers keeps x, y and two norms of 64, qkv of 64, core of 32, fc1 of
    96 and act of 48; the head the last x."""
    plan = replace(ALONG, slice_balance=balance)
    by_hand = 48 * 2 * (2 * (4 * 64 + 64 + 32 + 96 + 48) + 64)
    assert kept_bytes(schedule_of(MEGATRON)) == kept_bytes(schedule_of(plan)) == by_hand


def kept_bytes(schedule: Schedule) -> int:
    """Bytes of the values that forward wrote and the head or backward read."""
    ops = list(schedule.ops())
    head = next(at for at, op in enumerate(ops) if op.role.startswith("head."))
    written = {value for op in ops[:head] for value in op.writes}
    kept = written & {value for op in ops[head:] for value in op.reads}
    sizes = value_bytes(schedule)
    return sum(sizes[value.partition(".")[2]] for value in kept)


def test_backward_holds_one_sum_of_the_gradients_of_keys_and_values() -> None:
    """That of the last slice, in fp32, for 16 positions of two sequences; others add in place. What
    a slice gives to earlier positions is in bf16 until it is added."""
    schedule = schedule_of(replace(ALONG, slice_balance="even"))
    sizes = {name: size for name, size in value_bytes(schedule).items() if ".kv" in name}
    one = 2 * 2 * 16  # two sequences, a key and a value of one head
    assert sizes == {
        "d.s2.attn.kv": 16 * one * 2, "d.s1.attn.kv": 8 * one * 2,
        "d.s2.attn.kv_grad": 16 * one * 4, "d.s1.attn.kv_grad": 0,
    }  # fmt: skip
    readers = {
        row: [op.name for op in schedule.ops() if f"l0.d.s{row}.attn.kv_grad" in op.reads]
        for row in (2, 1)
    }
    assert readers == {
        2: ["l0.s1.attn.kv_bwd", "l0.s0.attn.kv_bwd"], 1: ["l0.s0.attn.kv_bwd"]
    }  # fmt: skip


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InfeasiblePlanError, match="order 'paper' walks"):
        SlicePlan(order="paper", wgrad="eager", slice_dim="sequence")
    with pytest.raises(InputError, match="slice_balance 'even' is of slices of sequences"):
        SlicePlan(slice_balance="even")
    assert SlicePlan(slice_dim="sequence", slice_balance="even").slice_balance == "even"
    for name, value in (("slice_dim", "tokens"), ("slice_balance", "odd")):
        with pytest.raises(InputError, match=f"nknown {name}"):
            SlicePlan(**{name: value})  # type: ignore[arg-type]
    many = SlicePlan(row_slices=16, slice_dim="sequence", sequence_parallel=True)
    with pytest.raises(
        InfeasiblePlanError, match="needs sequences of 32 tokens or more, 2 a slice"
    ):
        check_plan_fits(many, PLAIN, JOB, ClusterSpec(tp=2))
    check_plan_fits(replace(many, row_slices=12), PLAIN, JOB, ClusterSpec(tp=2))
    with pytest.raises(InfeasiblePlanError, match="micro-batch, or --slice-dim sequence"):
        check_plan_fits(SlicePlan(row_slices=3), PLAIN, JOB, ClusterSpec(tp=2))


@pytest.mark.parametrize("balance", SLICE_BALANCES)
def test_slices_hold_all_tokens(balance: SliceBalance) -> None:
    plan = replace(ALONG, slice_balance=balance)
    shapes = Shapes(model=PLAIN, workload=JOB, cluster=ClusterSpec(tp=2), plan=plan)
    assert sum(shapes.tokens(row) for row in range(3)) == shapes.tokens(-1) == 48
    assert shapes.rows == (2, 2, 2)


def test_the_share_of_full_blocks() -> None:
    square = Attention(1, 2, 2, 8, 16)
    behind = square._replace(kv_seq=24)
    assert (square.full_share, behind.full_share) == (0.0, 16 / 20)
    assert square._replace(causal=False).full_share == 1.0
    assert behind.flops == 4 * 2 * 16 * (8 * 24 - 32)
    assert behind._replace(direction="backward").flops == behind.flops * 5 // 2
