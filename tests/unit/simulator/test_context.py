"""Context parallelism: the same work in shares, exchanged in three ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.engine import play
from simulator.errors import InfeasiblePlanError, InputError
from simulator.memory import peak_bytes
from simulator.ops import Attention, Collective
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import played, scheduled
from simulator.presets import MODELS
from simulator.schedule import CP, OpTemplate, check_order
from simulator.specs import CP_COMM, ClusterSpec, ContextComm, Workload

SP = replace(MEGATRON, sequence_parallel=True)


def shared(cp: int, how: ContextComm = "p2p", **given: Any) -> Case:
    """Llama 3 8B with sequences of 8,192 tokens."""
    work = Workload(seq_length=8192, micro_batch_size=2, cp_comm=how, **given)
    return Case(
        model=MODELS["llama3-8b"], workload=work, cluster=ClusterSpec(tp=2, cp=cp),
        profile=load_profile("h100-dgx"),
    )  # fmt: skip


def templates(case: Case, plan: SlicePlan = SP) -> list[OpTemplate]:
    return list(scheduled(case, plan).templates())


def attention_flops(case: Case, direction: str) -> int:
    signatures = [t.signature for t in templates(case)]
    return sum(
        one.flops for one in signatures if isinstance(one, Attention) and one.direction == direction
    )


@pytest.mark.sampled("how", "plan")
@pytest.mark.parametrize("how", CP_COMM)
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("plan", [SP, NO_COMM, SlicePlan(), SlicePlan(sequence_parallel=True)])
def test_schedules_are_sound_and_both_engines_agree(
    how: ContextComm, cp: int, recompute: str, plan: SlicePlan
) -> None:
    case = shared(cp, how, recompute=recompute)
    found = played(case, plan)
    check_order(found.schedule)
    assert play(found.schedule, found.program).makespan_ns == found.totals.makespan_ns


@pytest.mark.parametrize("how", CP_COMM)
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_ranks_share_the_attention_equally(how: ContextComm, cp: int, direction: str) -> None:
    """A gather's chunks are counted with their own block half, so a little more is left."""
    share = attention_flops(shared(cp, how), direction) * cp
    assert share == pytest.approx(attention_flops(shared(1), direction), rel=0.001)


@pytest.mark.parametrize("how", CP_COMM)
def test_bytes_that_are_exchanged(how: ContextComm) -> None:
    """Of a layer's keys and values, KV bytes a rank: a ring passes them cp − 1 times, in backward
    with their gradients; gathers are of cp·KV; an exchange moves q, k, v and the output."""
    case, cp = shared(4, how), 4
    shapes = case.shapes(SP)
    kv, context = shapes.kv_bytes(-1) // 1, shapes.width_bytes("core_attn", -1)
    moved = [t.signature for t in templates(case) if t.lane == CP]
    assert all(isinstance(one, Collective) for one in moved)
    total = sum(one.size_bytes for one in moved if isinstance(one, Collective))
    each = {
        "p2p": 3 * (cp - 1) * kv,
        "all_gather": 3 * cp * kv,
        "a2a": 2 * (kv + 2 * context),
    }[how]
    assert total == case.model.num_hidden_layers * each


def test_the_bound_exchanges_nothing() -> None:
    for how in CP_COMM:
        assert not any(t.lane == CP for t in templates(shared(4, how), NO_COMM))


def test_ranks_hold_less() -> None:
    held = [peak_bytes(shared(cp), SP) for cp in (1, 2, 4)]
    assert held == sorted(held, reverse=True)
    activations = held[0] - held[1]
    assert held[1] - held[2] == pytest.approx(activations / 2, rel=0.05)


def test_gradients_are_summed_over_dp_and_cp() -> None:
    sums = [t.signature for t in templates(shared(4)) if t.role.startswith(("dp.", "step.dp"))]
    assert {one.ranks for one in sums if isinstance(one, Collective)} == {4}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cp": 3}, "seq_length = 8192 is not divisible by 2 × cp = 6"),
        (
            {"cp": 8, "how": "a2a"},
            "divide by 4 at most; use a --cp that divides 4, or --cp-comm p2p",
        ),
        ({"cp": 2, "recompute": "selective"}, "use --recompute none or full"),
    ],
)
def test_what_cannot_be_shared_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shared(**given)


def test_slices_of_sequences_are_refused() -> None:
    with pytest.raises(InfeasiblePlanError, match="not simulated with context parallelism"):
        shared(2).shapes(SlicePlan(slice_dim="sequence"))
