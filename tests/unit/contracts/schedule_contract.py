"""What every builder and order promises (docs/ARCHITECTURE.md), as checks of one case.

The test class runs them on some random cases of every kind, scripts/bench on a thousand or more.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeGuard

from simulator.bounds import Bounds
from simulator.build import build_schedule
from simulator.case import Case
from simulator.compiler import compile_program
from simulator.cost import CostModel
from simulator.greedy import order_of
from simulator.issue_order import IssueOrder, LayerOrder, parse_issue_order
from simulator.ops import Collective, Fused, Gemm, Signature
from simulator.plan import MEGATRON, Order, SlicePlan
from simulator.predict import predict, simulate
from simulator.schedule import COMPUTE, EP, Op, Schedule, Timeline, check_order, is_weight
from tests.support.by_hand import totals
from tests.unit.simulator.cases import cost_model, random_case, random_cost, random_plan, with_cost

Payload = Counter[tuple[int, str, str]]
"""By lane, kind of collective and dtype."""
FIXED_ORDERS: Final[tuple[Order, ...]] = ("intra", "inter", "paper")


@dataclass(frozen=True, kw_only=True)
class Built:
    """One random case of a kind, and everything that is made of it."""

    case: Case
    plan: SlicePlan

    @cached_property
    def order(self) -> LayerOrder:
        return order_of(self.case, self.plan)

    @cached_property
    def schedule(self) -> Schedule:
        case = self.case
        return build_schedule(case.model, case.workload, case.cluster, self.plan, self.order)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self.schedule.ops())

    @cached_property
    def baseline(self) -> tuple[Op, ...]:
        case = self.case
        return tuple(build_schedule(case.model, case.workload, case.cluster, self.unsliced).ops())

    @property
    def unsliced(self) -> SlicePlan:
        """The baseline of the plan's mode."""
        return replace(MEGATRON, sequence_parallel=self.plan.sequence_parallel)

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.case, self.plan, self.order)

    @cached_property
    def calm(self) -> Built:
        """The same without contention; its order is this one's."""
        eager = self.case.cost.launch.mode != "none"
        calm = cost_model(0.0, not eager)
        other = Built(case=with_cost(self.case, calm), plan=self.plan)
        other.__dict__["order"] = self.order
        return other


def random_built(kind: str, seed: int) -> Built:
    """Case number ``seed`` of ``kind``."""
    rng = random.Random(f"{kind} {seed}")
    case = random_case(rng, layers=4, micros=2, cost=random_cost(rng))
    return Built(case=case, plan=random_plan(rng, case, kind))


def flops_equal_the_baselines(built: Built) -> None:
    """Slicing neither adds nor drops computation, in each of forward, dgrad and wgrad; but where
    scores are in memory, slices of sequences leave out blocks that the mask would hide, and a
    product of experts has whole rows of each: at least one, the nearest to the mean."""
    found, whole = _flops(built.ops), _flops(built.baseline)
    masked = not built.case.workload.flash_attention
    if masked and built.plan.slices_sequences:
        fewer, all_of_them = found.pop("gemm forward"), whole.pop("gemm forward")
        assert fewer < all_of_them
    assert found == whole
    flops, a_row = _flops_of_experts(built.ops)
    whole_flops, whole_row = _flops_of_experts(built.baseline)
    assert flops.keys() == whole_flops.keys()
    for role, number in flops.items():
        assert abs(number - whole_flops[role]) <= a_row[role] + whole_row[role]


def payload_equals_the_baselines(built: Built) -> None:
    """Each lane reduces, gathers and scatters the same bytes of each dtype; or none at all. Each
    slice tells how many tokens of its own each expert gets, and sends them whole rows."""
    got, calls = _payload(built.ops)
    expected, whole_calls = _payload(built.baseline)
    if built.plan.strategy == "no_comm":
        assert not got
        return
    assert got.keys() == expected.keys()
    row_bytes = built.case.model.hidden_size * built.case.workload.dtype_bytes
    for key, size in got.items():
        rows = calls[key] + whole_calls[key] if key[0] == EP else 0
        assert abs(size - expected[key]) <= rows * row_bytes


def is_acyclic_and_complete(built: Built) -> None:
    """What is read was written before (or is a weight); values once; op names are unique."""
    check_order(built.schedule)
    written: set[str] = set()
    for op in built.ops:
        assert all(name in written or is_weight(name) for name in op.reads)
        assert written.isdisjoint(op.writes)
        written.update(op.writes)
    assert len({op.name for op in built.ops}) == len(built.ops) == len(built.schedule)


def every_value_has_a_size(built: Built) -> None:
    """Ops know the bytes of all values that they write, of aliases and events as 0."""
    for part in built.schedule.parts:
        for segment in part.segments:
            for template in segment.templates:
                assert len(template.sizes) == len(template.writes)
                assert min(template.sizes) >= 0


def uncut_takes_the_baselines_time(built: Built) -> None:
    """One row and one column slice: every fixed order is the baseline's; greedy no slower, but for
    the stack's ends, where it has no wgrads of a layer before to fill a layer's all-reduces with.

    Greedy is compared without contention, launches and replicas: its planner leaves these out.
    The baseline overlaps in backward, as every order of Domino does.
    """
    how = replace(built.case.workload.implementation, tp_backward_overlap=True)
    case = with_cost(
        replace(built.case, workload=replace(built.case.workload, implementation=how)),
        built.case.cost,
    )
    baseline = predict(case, built.unsliced)
    mode = built.plan.sequence_parallel
    for order in FIXED_ORDERS:
        plan = SlicePlan(row_slices=1, order=order, wgrad="eager", sequence_parallel=mode)
        assert predict(case, plan) == baseline
    greedy = SlicePlan(row_slices=1, order="greedy", wgrad="fill", sequence_parallel=mode)
    if case.model.num_experts:  # they need their ranks
        return
    alone = replace(case.cluster, dp=1)
    calm = with_cost(replace(case, cluster=alone), cost_model(0.0, True))
    unsliced = predict(calm, built.unsliced)
    a_layer_ns = unsliced.comm_ns // calm.model.num_hidden_layers
    assert predict(calm, greedy).makespan_ns <= unsliced.makespan_ns + a_layer_ns


def path_and_bound_are_below_the_makespan(built: Built) -> None:
    """Longest chain of named values and the bound ≤ makespan, contention or not."""
    for each in (built, built.calm):
        makespan = each.timeline.makespan_ns
        assert longest_chain_ns(each.ops, each.case.cost) <= makespan
        assert Bounds(each.case).lower_bound_ns(each.plan) <= makespan


def serial_sum_is_above_the_makespan(built: Built) -> None:
    """Without contention nothing is worse than one op after another, launches in between."""
    calm = built.calm
    cost = calm.case.cost
    serial = sum(cost.duration_ns(op.signature) for op in calm.ops)
    launches = sum(cost.launch.of(op.signature) for op in calm.ops)
    assert calm.timeline.makespan_ns <= serial + launches


def timeline_adds_up(built: Built) -> None:
    """Breakdown and roles sum to what they should; the fast engine says the same."""
    timeline, parts = built.timeline, built.timeline.breakdown
    assert parts.compute_ns + parts.exposed_comm_ns + parts.idle_ns == parts.makespan_ns
    assert 0 <= parts.exposed_comm_ns <= parts.comm_ns
    spent = sum(b - a for a, b in zip(timeline.start_ns, timeline.end_ns, strict=True))
    assert sum(timeline.by_role.values()) == spent
    assert predict(built.case, built.plan, built.order)[:4] == parts[:4]


def critical_path_is_a_chain(built: Built) -> None:
    """Its ops follow each other up to the end; without a host lane, gapless from 0."""
    timeline, path = built.timeline, built.timeline.critical_path
    assert timeline.end_ns[path[-1]] == timeline.makespan_ns
    gaps = [timeline.start_ns[path[0]]] + [
        timeline.start_ns[b] - timeline.end_ns[a] for a, b in pairwise(path)
    ]
    assert min(gaps) >= 0
    if built.case.cost.launch.mode == "none":
        assert max(gaps) == 0


def order_survives_as_text(built: Built) -> None:
    """A plan file's tokens give the same schedule."""
    back = LayerOrder(forward=_through_text(built.order.forward),
                      backward=_through_text(built.order.backward))  # fmt: skip
    assert back == built.order
    case = built.case
    again = build_schedule(case.model, case.workload, case.cluster, built.plan, back)
    assert again == built.schedule
    assert totals(compile_program(again, case.cost)).makespan_ns == built.timeline.makespan_ns


Check = Callable[[Built], None]
CONTRACT: Final[tuple[Check, ...]] = (
    flops_equal_the_baselines, payload_equals_the_baselines, is_acyclic_and_complete,
    every_value_has_a_size, uncut_takes_the_baselines_time, path_and_bound_are_below_the_makespan,
    serial_sum_is_above_the_makespan, timeline_adds_up, critical_path_is_a_chain,
    order_survives_as_text,
)  # fmt: skip


def longest_chain_ns(ops: tuple[Op, ...], cost: CostModel) -> int:
    """Longest path along named values with durations alone, in ns: lanes and host left out."""
    done: dict[str, int] = {}
    longest = 0
    for op in ops:
        end = max((done.get(name, 0) for name in op.reads), default=0)
        end += cost.duration_ns(op.signature)
        done.update(dict.fromkeys(op.writes, end))
        longest = max(longest, end)
    return longest


def _flops(ops: tuple[Op, ...]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for op in ops:
        signature = _product(op)
        if signature.flops and not _is_of_experts(signature):
            way = getattr(signature, "layout", None) or getattr(signature, "direction", "")
            sums[f"{signature.kind} {way}"] += signature.flops
    return sums


def _flops_of_experts(ops: tuple[Op, ...]) -> tuple[Counter[str], Counter[str]]:
    """FLOPs of each role's products, and of one row an expert in each of them."""
    flops: Counter[str] = Counter()
    a_row: Counter[str] = Counter()
    for op in ops:
        if _is_of_experts(gemm := _product(op)):
            flops[op.role] += gemm.flops
            a_row[op.role] += gemm.flops // (gemm.k if gemm.layout == "wgrad" else gemm.m)
    return flops, a_row


def _product(op: Op) -> Signature:
    return op.signature.gemm if isinstance(op.signature, Fused) else op.signature


def _is_of_experts(signature: Signature) -> TypeGuard[Gemm]:
    return isinstance(signature, Gemm) and signature.groups > 1


def _payload(ops: tuple[Op, ...]) -> tuple[Payload, Payload]:
    """Bytes of each kind of collective, and calls."""
    sums, calls = Payload(), Payload()
    for op in ops:
        if isinstance(op.signature, Collective) and not op.role.startswith("mlp.counts"):
            assert op.lane != COMPUTE
            key = op.lane, op.signature.op, op.signature.dtype
            sums[key] += op.signature.size_bytes
            calls[key] += 1
    return sums, calls


def _through_text(order: IssueOrder) -> IssueOrder:
    return parse_issue_order(order.to_strings(), order.stride)
