"""SlicePlan: values, which orders exist for which cut, and what fits a model and a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import MEGATRON, NO_COMM, SlicePlan, batch_slice_sizes, check_plan_fits
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

CLUSTER = ClusterSpec(tp=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategy": "dominos"}, "Did you mean 'domino'"),
        ({"order": "gredy"}, "Did you mean 'greedy'"),
        ({"wgrad": "later"}, "Known: deferred, eager, fill"),
        ({"row_slices": 0}, "row_slices must be a whole number ≥ 1"),
        ({"row_slices": 17}, "row_slices must be 1 … 16, got 17"),
        ({"mlp_col_slices": 2.0}, "mlp_col_slices must be a whole number"),
        ({"attn_dgrad_slices": 32}, "attn_dgrad_slices must be 1 … 16"),
        ({"comm_ctas": -1}, "comm_ctas must be 0"),
        ({"strategy": "megatron"}, "strategy 'megatron' is unsliced"),
        ({"strategy": "no_comm", "row_slices": 1, "merge_wgrad": True}, "is unsliced"),
    ],
    ids=str,
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SlicePlan(**values)


@pytest.mark.parametrize("order", ["inter", "paper"])
@pytest.mark.parametrize("cut", [{"row_slices": 3}, {"row_slices": 2, "mlp_col_slices": 2}])
def test_published_orders_exist_for_two_rows(order: Any, cut: dict[str, int]) -> None:
    with pytest.raises(InfeasiblePlanError, match="2 row slices and 1 column slice") as caught:
        SlicePlan(order=order, wgrad="eager", **cut)  # type: ignore[arg-type]
    assert caught.value.reason == "order"


@pytest.mark.parametrize(("order", "wgrad"), [("greedy", "eager"), ("intra", "fill")])
def test_fill_belongs_to_greedy_alone(order: Any, wgrad: Any) -> None:
    with pytest.raises(InfeasiblePlanError, match="'fill' belongs to order 'greedy'") as caught:
        SlicePlan(order=order, wgrad=wgrad)
    assert caught.value.reason == "wgrad"


def test_dgrad_pieces_follow_the_columns_unless_told() -> None:
    plan = SlicePlan(attn_col_slices=4, mlp_col_slices=2, mlp_dgrad_slices=1)
    assert plan.slices == (2, 4, 2, 4, 1)
    assert plan.cut == "2x4/2 dgrad 4/1"
    assert SlicePlan(attn_col_slices=4).cut == "2x4/1"


def test_labels_name_the_plan() -> None:
    assert (MEGATRON.label, NO_COMM.label) == ("megatron", "no_comm")
    assert SlicePlan().label == "domino 2x1/1 greedy wgrad=fill"
    full = SlicePlan(merge_wgrad=True, comm_ctas=8, mlp_dgrad_slices=4)
    assert full.label == "domino 2x1/1 dgrad 1/4 greedy wgrad=fill merged ctas=8"


@given(st.integers(1, 64), st.integers(1, 16))
def test_rows_are_as_even_as_can_be(batch: int, rows: int) -> None:
    sizes = batch_slice_sizes(batch, rows)
    assert (len(sizes), sum(sizes)) == (rows, batch)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


def test_sequence_parallelism_needs_sequences_that_tp_divides() -> None:
    plan = SlicePlan(sequence_parallel=True)
    check_plan_fits(plan, MODELS["gpt3-13b"], Workload(seq_length=64, micro_batch_size=3), CLUSTER)
    odd = Workload(seq_length=63, micro_batch_size=4)
    with pytest.raises(InfeasiblePlanError, match="tp = 2 divides, got 63; use --no-seq") as caught:
        check_plan_fits(plan, MODELS["gpt3-13b"], odd, CLUSTER)
    assert caught.value.reason == "tokens"
    check_plan_fits(SlicePlan(), MODELS["gpt3-13b"], odd, CLUSTER)
    with pytest.raises(InputError, match="sequence_parallel must be true or false, got 1"):
        SlicePlan(sequence_parallel=1)  # type: ignore[arg-type]


def test_too_few_sequences_are_infeasible() -> None:
    workload = Workload(seq_length=64, micro_batch_size=3)
    check_plan_fits(SlicePlan(row_slices=3), MODELS["gpt3-13b"], workload, CLUSTER)
    with pytest.raises(InfeasiblePlanError, match="micro_batch_size = 3; use row_slices ≤ 3") as c:
        check_plan_fits(SlicePlan(row_slices=4), MODELS["gpt3-13b"], workload, CLUSTER)
    assert c.value.reason == "rows"


def test_hidden_must_divide_by_the_pieces() -> None:
    workload = Workload(seq_length=64, micro_batch_size=3)
    plan = SlicePlan(mlp_col_slices=3)
    with pytest.raises(InfeasiblePlanError, match=r"mlp_col_slices = 3; .* 2 and 4") as caught:
        check_plan_fits(plan, MODELS["gpt3-13b"], workload, CLUSTER)
    assert caught.value.reason == "hidden"


@pytest.mark.parametrize("most", [{"row_slices": 16}, {"attn_col_slices": 16}, {"comm_ctas": 64}])
def test_the_largest_values_are_taken_and_one_more_is_not(most: dict[str, int]) -> None:
    assert SlicePlan(**most).strategy == "domino"  # type: ignore[arg-type]
    with pytest.raises(InputError, match=next(iter(most))):
        SlicePlan(**{name: value + 1 for name, value in most.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["attn_col_slices", "mlp_col_slices", "attn_dgrad_slices", "mlp_dgrad_slices"]
)
def test_every_count_is_checked(name: str) -> None:
    workload = Workload(seq_length=64, micro_batch_size=3)
    for wrong, message in ((17, f"{name} must be 1 … 16, got 17"), (-1, f"{name} must be a whole")):
        with pytest.raises(InputError, match=message):
            SlicePlan(**{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(InfeasiblePlanError, match=rf"{name} = 7; nearest that work: 5 and 8"):
        check_plan_fits(SlicePlan(**{name: 7}), MODELS["gpt3-13b"], workload, CLUSTER)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is unsliced"):
        SlicePlan(strategy="megatron", row_slices=1, **{name: 2})  # type: ignore[arg-type]


def test_a_hidden_size_is_the_largest_number_of_pieces() -> None:
    model = replace(MODELS["gpt3-13b"], hidden_size=7)
    with pytest.raises(InfeasiblePlanError, match="work: 1 and 7"):
        check_plan_fits(
            SlicePlan(mlp_col_slices=4), model, Workload(seq_length=8, micro_batch_size=2), CLUSTER
        )


@pytest.mark.parametrize("order", ["inter", "paper"])
@pytest.mark.parametrize("rows", [1, 2])
def test_published_orders_may_be_uncut(order: Any, rows: int) -> None:
    assert SlicePlan(order=order, wgrad="deferred", row_slices=rows).slices[0] == rows


def test_a_plan_is_two_rows_and_greedy_unless_told() -> None:
    plan = SlicePlan()
    assert (plan.slices, plan.strategy, plan.order) == ((2, 1, 1, 1, 1), "domino", "greedy")
    assert (plan.wgrad, plan.merge_wgrad, plan.comm_ctas) == ("fill", False, 0)
    assert MEGATRON.slices == NO_COMM.slices == (1, 1, 1, 1, 1)
    assert SlicePlan(attn_col_slices=4, mlp_col_slices=2).slices == (2, 4, 2, 4, 2)
