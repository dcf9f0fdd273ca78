"""What a tuning space needs is what gets measured: every signature of its plans, and no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from domino_tune.measure.coverage import (
    CONTENTION_CUTS,
    CPU,
    CTAS,
    GPU,
    PROBE_LAYERS,
    coverage,
    cta_counts,
    model_free_probes,
)
from domino_tune.measure.machine import this_machine
from domino_tune.measure.probe_set import ProbeSet, signatures
from domino_tune.search.space import enumerate_plans
from simulator.build import build_schedule
from simulator.case import Case
from simulator.cost import CostModel
from simulator.errors import InputError
from simulator.greedy import order_of
from simulator.ops import Attention, Collective, Gemm
from simulator.plan import MEGATRON
from simulator.sharding import check_shardable
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.support.probing import LLAMA, TINY, empty, timed

MEMORY = 1 << 33
ON_TWO = ClusterSpec(tp=2, ranks_per_node=2)
ON_FOUR = ClusterSpec(tp=2, dp=2, ranks_per_node=2)
DEEP = replace(TINY, num_hidden_layers=7)
STRIDE = 151
"""Of the space's plans, every how manieth is looked at; prime, so that all axes are met."""


def job(batch: int, micros: int = 1) -> Workload:
    return Workload(seq_length=32, micro_batch_size=batch, grad_accumulation=micros, dtype="fp32")


def sources(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, probes: ProbeSet
) -> Counter:  # type: ignore[type-arg]
    """How the signatures of plans of the tuning space are looked up, counted."""
    case = Case(model=model, workload=workload, cluster=cluster, profile=timed(probes))
    cost = case.cost
    found = {
        template.signature
        for plan in list(enumerate_plans(model, workload))[::STRIDE]
        for part in build_schedule(model, workload, cluster, plan, order_of(case, plan)).parts
        for segment in part.segments
        for template in segment.templates
    }
    return Counter(cost.estimate(signature).source for signature in found)


@pytest.mark.sampled(count=4)
@pytest.mark.parametrize("micros", [1, 3])
@pytest.mark.parametrize(
    ("model", "batch", "cluster"),
    [
        (TINY, 1, ON_TWO), (TINY, 3, ON_TWO), (TINY, 11, ON_TWO), (LLAMA, 5, ON_TWO),
        (TINY, 4, ON_FOUR), (LLAMA, 2, ON_FOUR), (DEEP, 3, ON_FOUR),
    ],
)  # fmt: skip
def test_every_signature_of_the_space_is_measured(
    model: ModelSpec, batch: int, cluster: ClusterSpec, micros: int
) -> None:
    """Greedy orders, merged weight gradients, own dgrad pieces and uneven slices among them."""
    probes = coverage(model, job(batch), cluster, memory_bytes=MEMORY)
    found = sources(model, job(batch, micros), cluster, probes)
    assert set(found) == {"measured"}
    assert found["measured"] > 20


def test_what_is_cut_short_by_time_is_interpolated() -> None:
    """Only the plans of one column piece were measured: the others lie between or near them."""
    probes = coverage(TINY, job(4), ON_TWO, memory_bytes=MEMORY)
    few = [p for p in probes.cases[0].plans if p.attn_col_slices in (1, 8)]
    cases = (replace(probes.cases[0], plans=tuple(few)), *probes.cases[1:])
    ops = {op for case in cases for plan in case.plans for op in case.signatures(plan)}
    cut = replace(probes, cases=cases, ops=frozenset(ops) & probes.ops)
    assert cut.ops < probes.ops
    assert set(sources(TINY, job(4), ON_TWO, cut)) == {"measured", "interpolated"}


def test_the_plans_that_win_come_first_and_none_adds_nothing() -> None:
    probes = coverage(TINY, job(8), ON_TWO, memory_bytes=MEMORY)
    first = probes.cases[0].plans
    plain = [p for p in first if not p.sequence_parallel]
    assert [p.slices[:2] for p in plain[:4]] == [(1, 1), (2, 1), (4, 1), (8, 1)]
    assert [p.sequence_parallel for p in first[:4]] == [True, False, True, False]
    seen: set[object] = set()
    for case in probes.cases:
        for plan in case.plans:
            fresh = case.signatures(plan) & probes.ops - seen
            assert fresh
            seen |= fresh
    assert seen == probes.ops
    assert len(set(probes.collectives)) == len(probes.collectives)
    assert probes.collectives[0].size_bytes == 8 * 32 * 64 * 4  # the baseline's own


def test_a_deep_model_is_probed_on_a_short_stack_and_its_optimizer_whole() -> None:
    probes = coverage(DEEP, job(2), ON_TWO, memory_bytes=MEMORY)
    layers = [case.model.num_hidden_layers for case in probes.cases]
    assert set(layers[:-1]) == {PROBE_LAYERS}
    assert layers[-1] == DEEP.num_hidden_layers
    whole = signatures(DEEP, job(2), ON_TWO, MEGATRON)
    assert {s for s in whole if not isinstance(s, Collective)} <= probes.ops
    short_on_memory = coverage(DEEP, job(2), ON_TWO, memory_bytes=1 << 10)
    assert {c.model.num_hidden_layers for c in short_on_memory.cases} == {PROBE_LAYERS}


def test_a_model_that_does_not_shard_is_refused() -> None:
    with pytest.raises(InputError, match="not divisible by tp = 3"):
        coverage(TINY, job(2), ClusterSpec(tp=3), memory_bytes=MEMORY)


def test_what_is_known_is_not_measured_again() -> None:
    probes = coverage(TINY, job(3), ON_TWO, memory_bytes=MEMORY)
    assert probes.lacking(empty(), 20, 2) == probes
    assert probes.lacking(timed(probes), 20, 2).is_empty
    assert not probes.lacking(timed(probes, samples=5), 20, 2).is_empty


@pytest.mark.parametrize("lost", ["skew", "resume"])
def test_where_only_waits_are_unknown_two_plans_are_played_for_them(lost: str) -> None:
    probes = coverage(TINY, job(3), ON_TWO, memory_bytes=MEMORY)
    profile = replace(timed(probes), **{lost: None})  # type: ignore[arg-type]
    left = probes.lacking(profile, 20, 2)
    assert (left.ops, left.collectives, left.contention) == (frozenset(), (), None)
    ((first, sliced),) = [case.plans for case in left.cases if case.plans]
    assert (first, sliced.row_slices) == (probes.cases[0].plans[0], 2)
    assert left.payload(20, None)["cases"][0]["rounds"] > 0
    assert not left.is_empty
    assert probes.lacking(profile, 20, 1).is_empty  # nobody to wait for
    gpu = replace(profile, machine=replace(profile.machine, backend="nccl"))
    assert probes.lacking(gpu, 20, 2).is_empty  # a stream does not sleep


def test_only_plans_with_something_lacking_are_played_again() -> None:
    probes = coverage(TINY, job(4), ON_TWO, memory_bytes=MEMORY)
    lost = next(
        op for op in sorted(probes.ops, key=repr)
        if isinstance(op, Gemm) and sum(op in c.signatures(p) for c in probes.cases
                                        for p in c.plans) == 1
    )  # fmt: skip
    left = probes.lacking(timed(replace(probes, ops=probes.ops - {lost})), 20, 2)
    assert left.ops == {lost}
    assert sum(len(case.plans) for case in left.cases) == 1
    assert left.collectives == ()
    assert left.contention == probes.contention  # measured beside whatever else is
    assert len(left.cases) == len(probes.cases)  # contention names its case by number


def test_what_has_the_fewest_timings_comes_first() -> None:
    probes = coverage(TINY, job(4), ON_TWO, memory_bytes=MEMORY)
    case = probes.cases[0]
    last = case.plans[-1]
    rare = case.signatures(last) & probes.ops - case.signatures(case.plans[0])
    reduced = probes.collectives[-1]
    others = replace(
        probes, ops=probes.ops - rare,
        collectives=tuple(c for c in probes.collectives if c != reduced),
    )  # fmt: skip
    left = probes.lacking(timed(others, samples=5), 20, 2)
    first = next(plan for plan in left.cases[0].plans)
    assert case.signatures(first) & rare
    assert left.collectives[0] == reduced
    assert len(left.cases[0].plans) == len(case.plans)


def test_cases_without_work_are_not_played() -> None:
    probes = coverage(TINY, job(4), ON_TWO, memory_bytes=MEMORY)
    idle = replace(probes, cases=tuple(replace(c, plans=()) for c in probes.cases))
    rounds = [case["rounds"] for case in idle.payload(20, None)["cases"]]
    assert rounds == [probes.cases[0].rounds(20), *[0] * (len(rounds) - 1)]
    nothing = replace(idle, collectives=(), contention=None)
    assert {case["rounds"] for case in nothing.payload(20, None)["cases"]} == {0}


def test_fewer_timings_are_enough_where_ranks_play_few_rounds() -> None:
    """Ranks play each plan so often that an op of every layer is timed as often as asked."""
    probes = coverage(TINY, job(1), ON_TWO, memory_bytes=MEMORY)
    rounds = probes.cases[0].rounds(20)
    assert rounds == 10
    profile = timed(probes, samples=rounds)
    assert probes.lacking(profile, 20, ranks=1).ops == frozenset()
    assert probes.lacking(profile, 20, ranks=2).ops == probes.ops


def test_payload_is_what_ranks_read() -> None:
    probes = coverage(TINY, job(2), ON_TWO, memory_bytes=MEMORY)
    payload = probes.payload(7, 60.0)
    assert set(payload) == {"cases", "collectives", "contention", "loads", "seconds"}
    assert payload["cases"][0]["rounds"] == probes.cases[0].rounds(7)
    assert payload["cases"][0]["model"]["hidden_size"] == 64
    assert payload["cases"][0]["plans"][0]["strategy"] == "megatron"
    size = 32 * 64 * 4
    messages = [Collective(*message) for message in payload["contention"]["messages"]]
    for op in ("all_reduce", "reduce_scatter", "all_gather"):
        found = [m.size_bytes for m in messages if m.op == op]
        assert found == [size // cut for cut in CONTENTION_CUTS]
    assert {m.ctas for m in messages} == {0}
    alone = probes.without_collectives().payload(7, None)
    assert (alone["collectives"], alone["contention"]) == ([], None)


def test_cta_counts_are_measured_over_nccl_unless_a_setting_fixes_them() -> None:
    assert cta_counts(this_machine(8, "nccl", {})) == CTAS == (1, 2, 4, 8, 16, 32)
    assert cta_counts(this_machine(8, "gloo", {})) == ()
    assert cta_counts(this_machine(8, "nccl", {"NCCL_MAX_CTAS": "4"})) == ()


def test_every_cta_count_is_asked_of_the_tensor_parallel_group() -> None:
    without = coverage(TINY, job(4), ON_FOUR, memory_bytes=MEMORY)
    probes = coverage(TINY, job(4), ON_FOUR, memory_bytes=MEMORY, ctas=CTAS)
    known = without.collectives
    assert probes.collectives[: len(known)] == known
    asked = probes.collectives[len(known) :]
    assert {(c.nodes, c.per_node) for c in asked} == {ON_FOUR.tp_group}
    assert {c.ctas for c in asked} == set(CTAS)
    assert {c.op for c in asked} == {"all_reduce", "all_gather", "reduce_scatter"}
    largest = max(c.size_bytes for c in known if (c.nodes, c.per_node) == ON_FOUR.tp_group)
    least = min(c.size_bytes for c in known if (c.nodes, c.per_node) == ON_FOUR.tp_group)
    for count in CTAS:
        sizes = [c.size_bytes for c in asked if c.ctas == count and c.op == "all_reduce"]
        assert sizes[0] == largest
        assert sizes[-1] == least
        assert len(set(sizes)) == len(sizes) == 4
    assert probes.contention is not None
    assert [message.ctas for message in probes.contention.messages] == [*CTAS, 0]
    assert {message.op for message in probes.contention.messages} == {"all_reduce"}
    assert probes.lacking(timed(probes), 20, 2).is_empty
    found = sources(TINY, job(4), ON_FOUR, probes)
    assert set(found) == {"measured"}


def test_plans_with_cta_counts_are_looked_up_between_what_was_measured() -> None:
    probes = coverage(TINY, job(4), ON_TWO, memory_bytes=MEMORY, ctas=(4,))
    profile = timed(probes)
    assert profile.comm_ctas_choices(*ON_TWO.tp_group) == (0, 4)
    cost = CostModel(profile)
    few = [c._replace(ctas=4) for c in probes.collectives if c.ctas == 0]
    assert {cost.estimate(c).source for c in few} <= {"measured", "interpolated"}


def test_a_gpu_alone_is_timed_beside_emulated_collectives() -> None:
    alone = ClusterSpec(tp=1)
    probes = coverage(TINY, job(4), alone, memory_bytes=MEMORY, ctas=CTAS)
    assert probes.contention is not None
    assert [(one.ranks, one.ctas) for one in probes.contention.messages] == [(1, c) for c in CTAS]
    assert probes.collectives == ()
    assert coverage(TINY, job(4), alone, memory_bytes=MEMORY).contention is None


# The general grid ---------------------------------------------------------------------------------
# Models of two styles that shard, fit, and messages for every group.


@pytest.mark.sampled
@pytest.mark.parametrize("grid", [CPU, GPU])
@pytest.mark.parametrize("tp", [1, 2, 3, 8])
def test_its_models_shard_over_any_number_of_ranks(grid, tp: int) -> None:  # type: ignore[no-untyped-def]
    cluster = ClusterSpec(tp=tp)
    profile = empty()
    roomy = replace(profile, machine=replace(profile.machine, gpu_memory_gib=1000.0))
    probes = model_free_probes(grid, cluster, "fp32", roomy)
    assert len(probes.cases) == 2 * len(grid.hidden_sizes) * len(grid.batches)
    for case in probes.cases:
        check_shardable(case.model, case.workload, cluster)
    assert {case.model.norm for case in probes.cases} == {"layernorm", "rmsnorm"}
    assert (probes.contention is None) == (tp == 1)


def test_messages_are_log_spaced_for_every_group() -> None:
    probes = model_free_probes(CPU, ClusterSpec(tp=2, dp=4, ranks_per_node=4), "fp32", empty())
    sizes = {c.size_bytes for c in probes.collectives}
    assert sizes == {1 << power for power in range(12, 27)}
    assert {(c.nodes, c.per_node) for c in probes.collectives} == {(1, 2), (2, 2)}
    kinds = {(c.op, c.nodes, c.per_node) for c in probes.collectives}
    gathers = {("all_gather", 1, 2), ("reduce_scatter", 1, 2)}
    assert kinds == {("all_reduce", 1, 2), ("all_reduce", 2, 2), *gathers}
    assert len(probes.collectives) == len(kinds) * len(sizes)
    coarse = [c.size_bytes for c in probes.collectives[: 5 * len(kinds) : len(kinds)]]
    assert coarse == [4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20]


def test_one_rank_sends_nothing() -> None:
    assert model_free_probes(CPU, ClusterSpec(tp=1), "fp32", empty()).collectives == ()


def test_token_counts_are_log_spaced() -> None:
    probes = model_free_probes(CPU, ClusterSpec(tp=1), "fp32", empty())
    gemms = {op.m for op in probes.ops if isinstance(op, Gemm) and op.layout == "forward"}
    assert {128, 256, 512, 1024} <= gemms
    cores = {(op.seq, op.kv_seq) for op in probes.ops if isinstance(op, Attention)}
    assert cores == {(128, 0), (512, 0), (64, 0), (64, 128), (256, 0), (256, 512)}


def test_what_does_not_fit_is_left_out() -> None:
    profile = empty()
    small = replace(profile, machine=replace(profile.machine, gpu_memory_gib=0.25))
    fewer = model_free_probes(CPU, ClusterSpec(tp=1), "fp32", small).cases
    assert 0 < len(fewer) < len(model_free_probes(CPU, ClusterSpec(tp=1), "fp32", profile).cases)
    assert max(case.model.hidden_size for case in fewer) < max(CPU.hidden_sizes)


def test_a_rank_with_hardly_any_memory_is_told_so() -> None:
    profile = empty()
    none = replace(profile, machine=replace(profile.machine, gpu_memory_gib=0.01))
    with pytest.raises(InputError, match=r"0\.01 GiB, too little .* --for-model"):
        model_free_probes(CPU, ClusterSpec(tp=1), "fp32", none)


def test_over_nccl_cta_counts_are_measured_too() -> None:
    profile = empty()
    on_gpus = replace(profile, machine=replace(profile.machine, backend="nccl"))
    probes = model_free_probes(CPU, ClusterSpec(tp=2), "fp32", on_gpus)
    assert {c.ctas for c in probes.collectives} == {0, 1, 2, 4, 8, 16, 32}
    assert probes.contention is not None
    assert [message.ctas for message in probes.contention.messages] == [1, 2, 4, 8, 16, 32, 0]
