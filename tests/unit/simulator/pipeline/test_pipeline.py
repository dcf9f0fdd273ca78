"""Pipelines of real cases: times, memory of stages, and what cannot be cut."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile
from simulator.bounds import Bounds
from simulator.case import Case
from simulator.errors import InputError
from simulator.implementation import IMPLEMENTATIONS
from simulator.memory import peak_bytes, stage_memory
from simulator.ops import Pointwise
from simulator.pipeline.build import pieces_of
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import played_pipeline, predict, rank_schedule, scheduled
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.support import pipeline_engine as engine

SP = replace(MEGATRON, sequence_parallel=True)


@cache
def piped(pp: int = 4, vpp: int = 1, tp: int = 4, dp: int = 1, **given: Any) -> Case:
    """GPT-3 13B on H100s; ``cp`` and fields of the workload may be given."""
    cluster = ClusterSpec(tp=tp, dp=dp, pp=pp, vpp=vpp, cp=given.pop("cp", 1))
    asked = {"seq_length": 2048, "micro_batch_size": 1, "grad_accumulation": 8, **given}
    return Case(
        model=MODELS["gpt3-13b"], workload=Workload(**asked), cluster=cluster,
        profile=load_profile("h100-dgx"),
    )  # fmt: skip


CASES: list[dict[str, Any]] = [
    {}, {"vpp": 2}, {"vpp": 5, "overlap_p2p": True}, {"dp": 2}, {"pp_schedule": "gpipe"},
    {"pp_schedule": "zero-bubble", "dp": 2}, {"dp": 2, "data_parallel": "distributed-optimizer"},
    {"pp": 8, "recompute": "full"},
    {"recompute": "selective", "recompute_modules": ("layernorm", "mlp")},
    {"recompute": "selective", "recompute_modules": ("mlp",), "pp_schedule": "zero-bubble"},
    {"cp": 2}, {"pp_layers": (11, 10, 10, 9)},
    {"tp": 1, "pp_schedule": "zero-bubble"}, {"grad_accumulation": 3},
    {"vpp": 2, "pp_schedule": "dualpipev", "dp": 2},
    {"vpp": 2, "pp_schedule": "dualpipev", "grad_accumulation": 11, "recompute": "full"},
    {"pp": 2, "vpp": 2, "pp_schedule": "dualpipev", "pp_layers": (12, 10, 10, 8)},
]  # fmt: skip
PLANS = [SP, SlicePlan(), SlicePlan(sequence_parallel=True, row_slices=1), NO_COMM]


@pytest.mark.sampled
@pytest.mark.parametrize("given", CASES, ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_the_record_plays_what_is_predicted(given: dict[str, Any], plan: SlicePlan) -> None:
    case = piped(**{"micro_batch_size": 2, **given})
    found = played_pipeline(case, plan)
    assert engine.play(found.program) == found.run
    for times in found.ranks:
        assert min(times) >= 0
        work = times.compute_ns + times.exposed_ns + times.bubble_ns
        assert work <= found.run.makespan_ns
    names = [op.name for op in scheduled(case, plan).ops()]
    assert len(names) == len(set(names))


def test_a_stage_has_its_share_of_the_work() -> None:
    """Without communication, at one clock, the stages' compute adds up to that of one rank."""
    alone, case = (
        replace(one, profile=replace(one.profile, power=None)) for one in (piped(pp=1), piped())
    )
    whole = predict(alone, NO_COMM)
    found = played_pipeline(case, NO_COMM)
    total = sum(times.compute_ns for times in found.ranks)
    assert total == pytest.approx(whole.compute_ns, rel=0.01)


def test_more_virtual_stages_wait_less_and_hold_more() -> None:
    times = [predict(piped(vpp=vpp), NO_COMM).makespan_ns for vpp in (1, 2, 5)]
    assert times == sorted(times, reverse=True)
    held = [peak_bytes(piped(vpp=vpp), NO_COMM) for vpp in (1, 2, 5)]
    assert held[0] < held[1]


def test_zero_bubble_is_faster_where_nothing_else_hides_communication() -> None:
    plain, zero = piped(tp=1), piped(tp=1, pp_schedule="zero-bubble")
    assert predict(zero, MEGATRON).makespan_ns < predict(plain, MEGATRON).makespan_ns


def test_earlier_stages_hold_more_micro_batches() -> None:
    memory = [sum(stage) for stage in stage_memory(piped(pp=8), SP)]
    middle = memory[1:-1]
    assert middle == sorted(middle, reverse=True)
    each = {one - other for one, other in pairwise(middle)}
    assert len(each) == 1, "a micro-batch more a stage"


def test_gpipe_holds_every_micro_batch() -> None:
    few, many = (piped(pp_schedule="gpipe", grad_accumulation=n) for n in (8, 16))
    longer = stage_memory(many, SP)[1].activations - stage_memory(few, SP)[1].activations
    one = piped(pp_schedule="1f1b")
    kept = stage_memory(one, SP)[1].activations - stage_memory(one, SP)[2].activations
    assert longer == 8 * kept


def test_recomputation_holds_less() -> None:
    assert peak_bytes(piped(recompute="full"), SP) < peak_bytes(piped(), SP)


def test_a_tied_table_is_summed_over_the_first_and_the_last_stage() -> None:
    case = piped()
    assert case.model.tie_word_embeddings
    untied = replace(case, model=replace(case.model, tie_word_embeddings=False))
    assert played_pipeline(case, SP).program.tied_ns > 0
    assert played_pipeline(untied, SP).program.tied_ns == 0
    assert played_pipeline(case, NO_COMM).program.tied_ns == 0


def test_a_v_has_the_table_and_the_head_on_one_rank() -> None:
    case = piped(vpp=2, pp_schedule="dualpipev", dp=2)
    assert played_pipeline(case, SP).program.tied_ns == 0
    pieces = pieces_of(case, SP)
    first, last = case.chunks[0]
    assert first.embedding
    assert last.head
    assert case.busiest_rank == 0
    summed = sum(held.whole for number in (0, 1) for held in pieces.bucket_sizes(0, number))
    assert summed == pieces.step_shapes(0).held.whole, "the table once"
    assert [pieces.first_layer(rank, chunk) for rank in range(4) for chunk in (0, 1)] == [
        0, 35, 5, 30, 10, 25, 15, 20,
    ]  # fmt: skip


def test_a_v_waits_and_holds_less_than_interleaved_stages() -> None:
    usual = piped(vpp=2, tp=1)
    folded = piped(vpp=2, tp=1, pp_schedule="dualpipev")
    assert predict(folded, MEGATRON).makespan_ns < predict(usual, MEGATRON).makespan_ns
    assert peak_bytes(folded, MEGATRON) < peak_bytes(usual, MEGATRON)


def test_the_bound_has_no_messages() -> None:
    program = played_pipeline(piped(dp=2), NO_COMM).program
    assert {one.duration_ns for one in program.messages} == {0}
    assert not any(task.buckets_ns for tasks in program.ranks for task in tasks)


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("overlaps", [True, False])
def test_the_bound_is_not_above_what_hides_its_passes(vpp: int, overlaps: bool) -> None:
    """Passes over gradients before their sums run beside later passes of a pipeline."""
    case = piped(
        dp=4, tp=1, vpp=vpp, overlap_grad_reduce=overlaps,
        implementation=IMPLEMENTATIONS["megatron-te"],
    )  # fmt: skip
    assert predict(case, NO_COMM).makespan_ns <= predict(case, MEGATRON).makespan_ns
    assert Bounds(case).any_order_ns([NO_COMM])[0] <= predict(case, NO_COMM).makespan_ns


def test_only_the_first_chunk_has_several_buckets() -> None:
    program = played_pipeline(piped(dp=2), SP).program
    counts = [max(len(task.buckets_ns) for task in tasks) for tasks in program.ranks]
    assert counts[0] > 1
    assert counts[1:] == [1, 1, 1]


def test_each_chunk_clears_its_gradients_once() -> None:
    case = piped(vpp=2, tp=1, implementation=IMPLEMENTATIONS["megatron-te"])
    pieces = pieces_of(case, MEGATRON)
    for rank in range(4):
        cleared = [
            t.signature.bytes_written
            for t in rank_schedule(pieces, rank).templates()
            if t.role == "zero_grads" and isinstance(t.signature, Pointwise)
        ]
        assert len(cleared) == 2
        assert sum(cleared) == 4 * pieces.step_shapes(rank).held.whole


def test_the_first_backward_overwrites_gradients_that_nothing_clears() -> None:
    for schedule, first in (("1f1b", 0), ("gpipe", 7)):
        case = piped(pp_schedule=schedule)
        pieces = pieces_of(case, MEGATRON)
        firsts = [
            action.micro
            for action in pieces.actions[1]
            if action.kind == "B" and pieces.piece(1, action).first
        ]
        assert firsts == [first]


def test_waits_for_gathers_are_communication_and_no_bubble() -> None:
    usual = {"dp": 16, "data_parallel": "distributed-optimizer"}
    early, late = (
        played_pipeline(piped(**usual, overlap_param_gather=overlaps), SP)
        for overlaps in (True, False)
    )
    assert early.ranks[0].bubble_ns == pytest.approx(late.ranks[0].bubble_ns, rel=0.01)


def test_the_busiest_rank_has_the_head() -> None:
    case = piped()
    pieces = pieces_of(case, SP)
    assert case.busiest_rank == 3
    roles = {t.role for t in rank_schedule(pieces, 3).templates()}
    assert "head.logits" in roles
    assert "embed" not in roles


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pp": 3, "tp": 1}, "num_hidden_layers = 40 is not divisible by pp = 3"),
        ({"vpp": 3}, "num_hidden_layers = 40 is not divisible by pp × vpp = 12"),
        ({"pp_layers": (10, 10, 10)}, "must give 4 counts, .* got 10,10,10"),
        ({"pp_layers": (40, 0, 0, 0)}, "each 1 or more"),
        ({"pp": 1, "pp_layers": (40,)}, "give --pp 2 or more"),
        ({"vpp": 2, "pp_schedule": "gpipe"}, "gpipe has one stage a rank"),
        ({"pp_schedule": "dualpipev"}, "has two stages a rank, got vpp = 1; use --vpp 2"),
        ({"vpp": 2, "pp_schedule": "dualpipev", "grad_accumulation": 7}, "of the 8 stages, got"),
        ({"vpp": 2, "grad_accumulation": 6}, "grad_accumulation = 6 is not divisible by pp = 4"),
        ({"dp": 2, "data_parallel": "fsdp"}, "use distributed-optimizer"),
    ],
)  # fmt: skip
def test_what_cannot_be_piped_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        piped(**given)


def test_virtual_stages_need_a_pipeline() -> None:
    with pytest.raises(InputError, match="vpp = 2 needs a pipeline"):
        ClusterSpec(tp=1, vpp=2)
