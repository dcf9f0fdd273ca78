"""A case's memory and tokens, units, and the words of errors."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from simulator.case import Case, Price, cost_of
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import InfeasiblePlanError, InputError, unknown_name
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile

CASE = Case(
    model=MODELS["gpt3-13b"],
    workload=Workload(seq_length=1024, micro_batch_size=4, grad_accumulation=3),
    cluster=ClusterSpec(tp=8, dp=2),
    profile=bundled_profile(),
)


def test_tokens_are_those_of_all_micro_batches_and_replicas() -> None:
    assert CASE.tokens == 1024 * 4 * 3 * 2


def test_a_plan_may_need_all_that_is_recommended_and_no_byte_more() -> None:
    memory = CASE.memory
    CASE.check_memory(MEGATRON, memory.sure_bytes)
    with pytest.raises(InfeasiblePlanError, match=r"fits .* with a chance of 79 %:") as caught:
        CASE.check_memory(MEGATRON, memory.sure_bytes + 1)
    assert caught.value.reason == "memory below 80 %"
    with pytest.raises(InfeasiblePlanError, match=r"GiB are usable, and up to") as caught:
        CASE.check_memory(MEGATRON, memory.usable_bytes + 1)
    assert caught.value.reason == "memory"
    assert pickle.loads(pickle.dumps(caught.value)).reason == "memory"


def test_shapes_are_of_plans_that_fit() -> None:
    assert CASE.shapes(SlicePlan(row_slices=4)).rows == (1, 1, 1, 1)
    with pytest.raises(InfeasiblePlanError):
        CASE.shapes(SlicePlan(row_slices=5))
    with pytest.raises(InputError, match="tp = 3"):
        replace(CASE, cluster=ClusterSpec(tp=3))


def test_units() -> None:
    assert 2_500_000 * MS_PER_NS == 2.5
    assert GIB == 1024**3


def test_unknown_names_are_told_with_the_nearest_one() -> None:
    known = ["inter", "intra", "paper"]
    assert str(unknown_name("order", "intr", known)) == (
        "Unknown order 'intr'. Did you mean 'intra'? Known: inter, intra, paper."
    )
    assert str(unknown_name("order", "xyz", reversed(known))) == (
        "Unknown order 'xyz'. Known: inter, intra, paper."
    )


# What training costs, by hand ---------------------------------------------------------------------


def test_a_step_tokens_and_a_run_cost_gpu_hours() -> None:
    """64 GPUs for 9 s at 2.00 an hour are 0.32; 4 million tokens a step, 1e12 in 250,000 steps."""
    cost = cost_of(Price(2.0, 15e12), 9.0, 64, 4_000_000)
    assert cost is not None
    assert cost.step == pytest.approx(0.32)
    assert cost.trillion_tokens == pytest.approx(80_000.0)
    assert cost.run == pytest.approx(1_200_000.0)
    assert cost.run_days == pytest.approx(15e12 / 4e6 * 9 / 86_400)


def test_nothing_is_priced_without_a_price_and_no_run_without_tokens() -> None:
    assert cost_of(None, 9.0, 64, 4_000_000) is None
    cost = cost_of(Price(2.0), 9.0, 64, 4_000_000)
    assert cost is not None
    assert (cost.run_tokens, cost.run, cost.run_days) == (None, None, None)
