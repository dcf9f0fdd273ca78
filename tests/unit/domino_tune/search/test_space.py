""""""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from domino_tune.search import SEARCHES
from domino_tune.search.problem import SearchOptions
from domino_tune.search.space import Pool, SpaceSpec, encode, enumerate_plans, restrict
from simulator.errors import InfeasiblePlanError
from simulator.plan import ORDERS, SLICINGS, SlicePlan, check_plan_fits
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.unit.domino_tune.search.bumpy import MODEL, SMALL, BumpyProblem, space_of

WORKLOAD = Workload(seq_length=512, micro_batch_size=6)
CLUSTER = ClusterSpec(tp=2)
ODD_WIDTH = replace(MODEL, hidden_size=1020)
MOE = replace(
    MODEL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=1024, gated_mlp=True
)


def brute_force(model: ModelSpec, workload: Workload, spec: SpaceSpec) -> tuple[int, Counter[str]]:
    """Feasible plans, duplicates included, and reasons, by the simulator's own checks."""
    feasible, reasons = 0, Counter[str]()
    axes = (
        spec.orders, spec.wgrads, spec.merge_wgrads, spec.comm_ctas, spec.sequence_parallels,
        spec.slicings,
    )  # fmt: skip
    for (rows, attn, mlp, attn_d, mlp_d), choice in product(spec.cuts, product(*axes)):
        order, wgrad, merge_wgrad, comm_ctas, sequence_parallel, (dim, balance) = choice
        if dim == "sequence" and rows not in spec.sequence_row_slices:
            continue
        try:
            plan = SlicePlan(
                row_slices=rows, attn_col_slices=attn, mlp_col_slices=mlp,
                attn_dgrad_slices=attn_d, mlp_dgrad_slices=mlp_d, order=order, wgrad=wgrad,
                merge_wgrad=merge_wgrad, comm_ctas=comm_ctas, sequence_parallel=sequence_parallel,
                slice_dim=dim, slice_balance=balance,
            )  # fmt: skip
            check_plan_fits(plan, model, workload, CLUSTER)
            feasible += 1
        except InfeasiblePlanError as error:
            reasons[error.reason] += 1
    return feasible, reasons


@pytest.mark.parametrize("model", [MODEL, ODD_WIDTH])
@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        SpaceSpec(row_slices=(1, 2, 7), col_slices=(1, 3), dgrad_slices=(1, 8), comm_ctas=(0, 8)),
        SpaceSpec(row_slices=(2, 8), orders=("inter", "paper"), wgrads=("eager",)),
        replace(SMALL, sequence_parallels=(True, False)),
        replace(SMALL, orders=ORDERS, slicings=SLICINGS, sequence_row_slices=(2, 8)),
    ],
)
def test_counts_agree_with_the_simulators_checks(model: ModelSpec, spec: SpaceSpec) -> None:
    feasible, reasons = brute_force(model, WORKLOAD, spec)
    space = enumerate_plans(model, WORKLOAD, tp=CLUSTER.tp, spec=spec)
    duplicates = space.infeasible["duplicate"]
    assert len(space) + duplicates == feasible
    assert space.infeasible - Counter(duplicate=duplicates) == reasons
    assert space.size == feasible + reasons.total()


def test_slices_of_a_sequence_have_a_position_at_least() -> None:
    """With sequence parallelism each rank has one of each slice: 4 slices of 8 on 2 ranks."""
    spec = replace(
        SMALL, row_slices=(4, 8), slicings=SLICINGS, sequence_row_slices=(4, 8),
        sequence_parallels=(True, False),
    )  # fmt: skip
    short = Workload(seq_length=8, micro_batch_size=1)
    feasible, reasons = brute_force(MODEL, short, spec)
    space = enumerate_plans(MODEL, short, tp=CLUSTER.tp, spec=spec)
    assert {(plan.row_slices, plan.sequence_parallel) for plan in space} == {
        (4, True), (4, False), (8, False),
    }  # fmt: skip
    assert len(space) + space.infeasible["duplicate"] == feasible
    assert space.infeasible["rows"] == reasons["rows"]


def test_the_whole_space() -> None:
    space = space_of(SpaceSpec())
    assert space.size == 16 * 4**4 * 4 * 3 * 2 == 98_304
    assert len(space) == 23_816
    assert len(set(space)) == len(space)


def test_every_plan_passes_the_simulators_checks() -> None:
    for plan in enumerate_plans(ODD_WIDTH, WORKLOAD):
        check_plan_fits(plan, ODD_WIDTH, WORKLOAD, CLUSTER)


def test_the_unsliced_plan_is_there_once_an_order_that_differs() -> None:
    spec = SpaceSpec(row_slices=(1,), col_slices=(1,), dgrad_slices=())
    assert [plan.label for plan in space_of(spec)] == [
        "domino 1x1/1 greedy wgrad=fill",
        "domino 1x1/1 intra wgrad=eager",
        "domino 1x1/1 intra wgrad=deferred",
    ]


def test_a_twin_outside_the_space_is_no_duplicate() -> None:
    spec = SpaceSpec(
        row_slices=(1,), col_slices=(1,), dgrad_slices=(), orders=("paper",), wgrads=("eager",),
        merge_wgrads=(True,),
    )  # fmt: skip
    assert [plan.order for plan in space_of(spec)] == ["paper"]


def test_tied_dgrad_slices_follow_the_columns() -> None:
    assert {plan.slices[1:3] == plan.slices[3:5] for plan in space_of(SMALL)} == {True}


def test_no_plan_merges_weight_gradients_where_the_workload_or_experts_forbid_it() -> None:
    spec = replace(SMALL, merge_wgrads=(False, True))
    scaled = replace(WORKLOAD, fp8_recipe="blockwise")
    for model, workload, merges in (
        (MODEL, WORKLOAD, {False, True}), (MODEL, scaled, {False}), (MOE, WORKLOAD, {False}),
    ):  # fmt: skip
        found = enumerate_plans(model, workload, spec=spec)
        assert {plan.merge_wgrad for plan in found} == merges


def test_slices_of_a_space() -> None:
    space = space_of(SMALL)
    assert space[2:4] == (space[2], space[3])
    assert space[-1] == list(space)[-1]


def test_a_result_within_its_space_counts_everything() -> None:
    space = space_of(SMALL)
    problem = BumpyProblem(plans=space, limit_bytes=43 * 10**9)
    result = SEARCHES["exhaustive"](problem, SearchOptions())
    whole = result.within(space)
    assert whole.space_size == space.size
    assert whole.infeasible["memory"] == result.infeasible["memory"]
    assert whole.infeasible["order"] == space.infeasible["order"]
    assert whole.pruned + len(whole.trials) + sum(whole.infeasible.values()) == space.size


class TestDeepSpeed:
    def test_its_two_orders_of_one_cut(self) -> None:
        space = enumerate_plans(MODEL, WORKLOAD, target="deepspeed")
        assert [(plan.slices, plan.order) for plan in space] == [
            ((2, 1, 1, 1, 1), "inter"),
            ((2, 1, 1, 1, 1), "intra"),
        ]

    @pytest.mark.parametrize(
        ("change", "culprit"),
        [
            ({"gated_mlp": True}, "MLP"),
            ({"norm": "rmsnorm"}, "rmsnorm"),
            ({"num_key_value_heads": 4}, "grouped-query"),
            ({"qk_norm": True, "post_norm": True}, "qk_norm, post_norm"),
        ],
    )
    def test_refuses_models_it_cannot_run(self, change: dict[str, object], culprit: str) -> None:
        model = replace(MODEL, **change)  # type: ignore[arg-type]
        with pytest.raises(InfeasiblePlanError, match=culprit) as caught:
            enumerate_plans(model, WORKLOAD, target="deepspeed")
        assert caught.value.reason == "target"

    def test_refuses_an_odd_batch(self) -> None:
        odd = Workload(seq_length=512, micro_batch_size=3)
        with pytest.raises(InfeasiblePlanError, match="odd micro_batch_size = 3"):
            enumerate_plans(MODEL, odd, target="deepspeed")


def test_a_space_for_deepspeed() -> None:
    """Two equal halves of the batch, in two orders, with sequence parallelism off."""
    found = space_of(restrict(replace(SMALL, sequence_parallels=(True, False)), MODEL, WORKLOAD,
                              "deepspeed"))  # fmt: skip
    assert {plan.label for plan in found} == {
        "domino 2x1/1 inter wgrad=eager", "domino 2x1/1 intra wgrad=eager",
    }  # fmt: skip
    assert restrict(SMALL, MODEL, WORKLOAD, None) is SMALL


@pytest.mark.parametrize(
    ("model", "micro", "spec", "problem"),
    [
        ({}, 6, {"sequence_parallels": (True,)}, "sequence parallelism"),
        ({}, 5, {}, "an odd micro_batch_size = 5"),
        ({"gated_mlp": True, "hidden_act": "silu"}, 6, {}, "MLP"),
        ({"hidden_act": "relu"}, 6, {}, "MLP"),
        ({"norm": "rmsnorm"}, 6, {}, "rmsnorm"),
        ({"num_key_value_heads": 1}, 6, {}, "grouped-query attention"),
        ({"qk_norm": True}, 6, {}, "qk_norm"),
    ],
)
def test_what_deepspeed_cannot_run(
    model: dict[str, Any], micro: int, spec: dict[str, Any], problem: str
) -> None:
    job = replace(WORKLOAD, micro_batch_size=micro)
    with pytest.raises(InfeasiblePlanError, match=f"cannot run .*{problem}") as caught:
        restrict(replace(SMALL, **spec), replace(MODEL, **model), job, "deepspeed")
    assert caught.value.reason == "target"


def test_latent_attention_has_no_pieces_of_its_dgrad() -> None:
    model = replace(MODELS["deepseek-v3"], num_hidden_layers=4)
    plans = enumerate_plans(model, Workload(seq_length=1024, micro_batch_size=4))
    assert {plan.attn_dgrad_slices for plan in plans} == {1}
    assert plans.infeasible["hidden"]


# Plans as points ----------------------------------------------------------------------------------
# Exponents of two, one-hot names, each axis from 0 to 1.


def test_counts_are_exponents_between_the_least_and_the_most() -> None:
    plans = [SlicePlan(row_slices=rows, attn_col_slices=8 // rows) for rows in (1, 2, 8)]
    points = encode(plans)
    assert points[:, 0].tolist() == [0.0, 1 / 3, 1.0]
    assert points[:, 1].tolist() == [1.0, 2 / 3, 0.0]
    assert points[:, 2].tolist() == points[:, 1].tolist(), "dgrads follow the columns"
    assert points.shape == (3, 3), "what all plans share has no column"


def test_nccls_own_choice_stands_below_one_cta() -> None:
    points = encode([SlicePlan(comm_ctas=ctas) for ctas in (0, 1, 2, 8)])
    assert points.ravel().tolist() == [0.0, 0.25, 0.5, 1.0]


def test_names_are_one_hot_and_merging_is_zero_or_one() -> None:
    plans = [
        SlicePlan(order="intra", wgrad="eager"),
        SlicePlan(order="inter", wgrad="eager"),
        SlicePlan(order="paper", wgrad="eager", merge_wgrad=True),
    ]
    assert encode(plans).tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]]


def test_equal_plans_are_one_point() -> None:
    assert encode([SlicePlan(), SlicePlan()]).tolist() == [[0.0], [0.0]]


def test_a_pool_knows_times_from_their_logarithms() -> None:
    logs = np.log(np.array([1e6, 2e6]))
    plans = (SlicePlan(), SlicePlan(row_slices=4))
    pool = Pool(plans=plans, points=encode(plans), log_prior=logs, sensitivity=np.ones((2, 1)))
    assert np.allclose(pool.times_ns, [1e6, 2e6])
