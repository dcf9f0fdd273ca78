"""Sequence parallelism against Megatron-LM's rules: what is gathered, scattered, sharded, kept.

Expected numbers are products of the sizes in ``small_models``, with sequences of eight tokens.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile
from simulator.build import build_schedule
from simulator.case import Case
from simulator.errors import InputError
from simulator.implementation import DOMINO_TUNE
from simulator.memory import peak_bytes, static_memory
from simulator.ops import Collective, Pointwise
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import predict, simulate
from simulator.presets import MODELS
from simulator.schedule import COMPUTE, TP, Op, Schedule, is_layer_role
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.unit.simulator.small_models import CUT, GPT, LLAMA, edges_of, ops_of

SHARDED = replace(MEGATRON, sequence_parallel=True)
CUT_SHARDED = replace(CUT, sequence_parallel=True)
RANKS, HIDDEN, TOKENS = 2, 40, 2 * 8
X = TOKENS * HIDDEN * 2
"""Bytes of [tokens, hidden] of the first slice, in bf16."""
LONG = replace(GPT, max_position_embeddings=8)
LLAMA_BF16 = replace(LLAMA, name="gpt")


def schedule_of(model: ModelSpec, plan: SlicePlan, tp: int = RANKS, dp: int = 1) -> Schedule:
    work = Workload(seq_length=8, micro_batch_size=3)
    return build_schedule(model, work, ClusterSpec(tp=tp, dp=dp), plan)


def collectives(ops: dict[str, Op]) -> dict[str, tuple[str, int]]:
    """(op, bytes of the full tensor) by name, in issue order."""
    return {
        name: (op.signature.op, op.signature.size_bytes)
        for name, op in ops.items()
        if isinstance(op.signature, Collective)
    }


def test_a_layer_of_megatron_gathers_six_times_and_scatters_four() -> None:
    """Forward a gather and a scatter a block; backward two gathers and a scatter a block: of the
    incoming gradient, and of the norm's output, which the wgrad needs whole."""
    whole = 3 * 8 * HIDDEN * 2
    assert collectives(ops_of(schedule_of(LLAMA_BF16, SHARDED))) == {
        "attn.norm.ag": ("all_gather", whole),
        "attn.proj.rs.0": ("reduce_scatter", whole),
        "mlp.norm.ag": ("all_gather", whole),
        "mlp.fc2.rs.0": ("reduce_scatter", whole),
        "mlp.residual_bwd.ag": ("all_gather", whole),
        "mlp.norm.ag_bwd": ("all_gather", whole),
        "mlp.fc1_dgrad.rs.0": ("reduce_scatter", whole),
        "attn.residual_bwd.ag": ("all_gather", whole),
        "attn.norm.ag_bwd": ("all_gather", whole),
        "attn.qkv_dgrad.rs.0": ("reduce_scatter", whole),
    }


def test_each_slice_and_each_piece_has_its_own() -> None:
    found = collectives(ops_of(schedule_of(LONG, CUT_SHARDED)))
    assert {name: size for name, (op, size) in found.items() if op == "reduce_scatter"} == {
        **{f"attn.proj.rs.{j}": X // 2 for j in range(2)},
        **{f"mlp.fc2.rs.{j}": X // 4 for j in range(4)},
        **{f"mlp.fc1_dgrad.rs.{j}": X // 2 for j in range(2)},
        **{f"attn.qkv_dgrad.rs.{j}": X // 4 for j in range(4)},
    }
    gathered = [name for name, (op, _) in found.items() if op == "all_gather"]
    assert len(gathered) == 6
    assert {found[name][1] for name in gathered} == {X}


def test_what_waits_for_what() -> None:
    """A norm's output is gathered for the wgrad beside the dgrad, whose sum is scattered beside the
    wgrad; all other gathers are read by the next GEMM."""
    ops = ops_of(schedule_of(LONG, SHARDED))
    assert list(ops)[-6:] == [
        "attn.core_attn_bwd", "attn.norm.ag_bwd", "attn.qkv_dgrad.0", "attn.qkv_dgrad.rs.0",
        "attn.qkv_wgrad", "attn.norm_bwd",
    ]  # fmt: skip
    again = ops["attn.norm.ag_bwd"].writes[0]
    assert again in ops["attn.qkv_wgrad"].reads
    assert again not in ops["attn.qkv_dgrad.0"].reads
    assert ops["attn.norm.ag"].writes[0] in ops["attn.qkv"].reads
    gradient = ops["attn.residual_bwd.ag"].writes[0]
    assert gradient in ops["attn.proj_dgrad"].reads
    assert gradient in ops["attn.proj_wgrad"].reads
    assert ops["attn.qkv_dgrad.rs.0"].writes[0] in ops["attn.norm_bwd"].reads


def test_ops_between_the_blocks_move_a_share_of_the_tokens() -> None:
    whole, shared = (ops_of(schedule_of(LONG, plan)) for plan in (MEGATRON, SHARDED))
    for name in ("norm", "residual", "residual_bwd", "norm_bwd"):
        for block in ("attn", "mlp"):
            one, other = whole[f"{block}.{name}"].signature, shared[f"{block}.{name}"].signature
            assert isinstance(one, Pointwise)
            assert isinstance(other, Pointwise)
            assert (other.bytes_read, other.bytes_written) == (
                one.bytes_read // RANKS, one.bytes_written // RANKS
            )  # fmt: skip
    same = [name for name, op in whole.items() if op.signature.kind in ("gemm", "attention")]
    assert all(whole[name].signature == shared[name].signature for name in same)


def test_the_edges_scatter_and_gather_too() -> None:
    """Learned positions are added to all tokens first, so a GPT's embedding is all-reduced."""
    llama = edges_of(schedule_of(LLAMA_BF16, SHARDED))
    whole = 3 * 8 * HIDDEN * 2
    found = collectives(llama)
    assert found["s0.embed.rs"] == ("reduce_scatter", whole)
    assert found["s0.head.norm.ag"] == found["s0.head.norm.ag_bwd"] == ("all_gather", whole)
    assert found["s0.head.logits_dgrad.rs"] == ("reduce_scatter", whole)
    assert found["s0.embed_bwd.ag"] == ("all_gather", whole)
    assert found["s0.loss.max.ar"][0] == found["s0.loss.sum.ar"][0] == "all_reduce"
    gpt = collectives(edges_of(schedule_of(LONG, SHARDED)))
    assert gpt["s0.embed.ar"] == ("all_reduce", whole)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (LONG, 3 * (2 * 2 * HIDDEN + HIDDEN) + 2 * HIDDEN),
        (LLAMA, 3 * (2 * HIDDEN + HIDDEN) + HIDDEN),
    ],
)
def test_partial_gradients_are_summed_before_the_step(model: ModelSpec, parameters: int) -> None:
    """Norms, and the biases after the scatters (GPT's proj, Llama's fc2), in fp32."""
    ops = edges_of(schedule_of(model, SHARDED))
    summed = ops["step.tp.ar"]
    assert summed.signature == Collective("all_reduce", 4 * parameters, 1, 2, 0, "fp32")
    assert summed.writes[0] in ops["step.grad_norm"].reads
    assert "step.tp.ar" not in edges_of(schedule_of(model, MEGATRON))


def test_one_rank_and_no_communication_have_no_collectives() -> None:
    for schedule in (
        schedule_of(LONG, SHARDED, tp=1),
        schedule_of(LONG, replace(NO_COMM, sequence_parallel=True)),
    ):
        assert schedule.lanes() == (COMPUTE,)
    assert ops_of(schedule_of(LONG, SHARDED, tp=1)) == ops_of(schedule_of(LONG, MEGATRON, tp=1))


def gpt_case(tp: int = 8, sequence_parallel: bool | None = None, **work: Any) -> Case:
    workload = replace(Workload(seq_length=1024, micro_batch_size=8), **work)
    return Case(
        model=MODELS["gpt3-13b"], workload=workload, cluster=ClusterSpec(tp=tp),
        profile=load_profile("h100-dgx"), sequence_parallel=sequence_parallel,
    )  # fmt: skip


def test_a_layer_keeps_34_bytes_an_element_divided_by_tp() -> None:
    """Korthikanti et al. (arXiv 2205.05198) count 34·s·b·h/tp with selective recomputation: all but
    the softmax, which attention does not keep here either."""
    case = gpt_case()
    deeper = replace(case, model=replace(case.model, num_hidden_layers=41))
    kept = [peak_bytes(c, SHARDED) - sum(static_memory(c, SHARDED)) for c in (case, deeper)]
    unit = case.workload.tokens * case.model.hidden_size
    assert kept[1] - kept[0] == unit * 34 // 8


def test_slices_hide_gathers_and_scatters() -> None:
    """Greedy issues a slice's next gather while the last slice computes: more is hidden than the
    order ``intra`` can, whose gathers begin their blocks."""
    how = replace(DOMINO_TUNE, launch_order="comm_first")
    case = gpt_case(seq_length=2048, micro_batch_size=4, implementation=how)
    greedy = simulate(case, SlicePlan(sequence_parallel=True)).breakdown
    intra = SlicePlan(order="intra", wgrad="eager", sequence_parallel=True)
    assert greedy.hidden_comm_fraction > 0.9
    assert simulate(case, intra).breakdown.hidden_comm_fraction < 0.6
    assert greedy.makespan_ns < predict(case, SHARDED).makespan_ns < predict(case, MEGATRON)[0]


def test_both_modes_are_asked_for_unless_one_is_fixed() -> None:
    assert gpt_case().modes == (True, False)
    assert gpt_case(sequence_parallel=True).modes == (True,)
    assert gpt_case(sequence_parallel=False).modes == (False,)
    assert gpt_case(sequence_parallel=False).shards_tokens, "the baseline still has it"
    assert gpt_case(tp=1, sequence_parallel=True).modes == (False,), "accepted, without effect"
    assert gpt_case(seq_length=1023).modes == (False,)
    with pytest.raises(InputError, match="seq_length = 1023 is not divisible by tp = 8"):
        gpt_case(seq_length=1023, sequence_parallel=True)


def test_a_profile_without_gathers_keeps_to_all_reduces_unless_asked() -> None:
    case = gpt_case()
    section = case.profile.collectives
    assert section is not None
    fits = tuple(fit for fit in section.fits if fit.op == "all_reduce")
    rows = tuple(row for row in section.rows if row.op == "all_reduce")
    only = replace(case.profile, collectives=replace(section, fits=fits, rows=rows))
    plain = replace(case, profile=only)
    assert not plain.shards_tokens
    assert plain.modes == (False,)
    asked = replace(plain, sequence_parallel=True)
    assert asked.modes == (True,)
    gather = asked.shapes(SHARDED).tp_collective("all_gather", 1 << 26)
    assert asked.cost.estimate(gather).source == "assumed"


def test_layers_alternate_lanes_like_megatrons_trace() -> None:
    """Each collective of an unsliced layer is issued right after the op whose value it takes."""
    ops = [op for op in schedule_of(LONG, SHARDED).ops() if is_layer_role(op.role)]
    for before, op in pairwise(ops):
        if op.lane == TP and not op.role.endswith("ag_bwd"):
            assert op.reads[0] in before.writes
