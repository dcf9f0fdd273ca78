"""Bounds are closed forms: held against what is really built, and quick for any question."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from api import bounds
from api.generate import Wire
from api.problems import ProblemError
from api.schemas import LayoutBody, SimulateBody, SweepBody, TuneBody
from domino_tune.requests import TuneRequest
from domino_tune.requests.options import MOST
from domino_tune.search.simulated import space_of
from domino_tune.store.shelf import DISK
from domino_tune.verbs.layouts import base_of
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.tune import cases_to_tune
from simulator.build import build_schedule
from simulator.case import Case
from simulator.ordering import order_of
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.specs import CP_COMM, ClusterSpec


def setup_of(**given: Any) -> Case:
    asked: dict[str, Any] = {
        "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 4, "seq_length": 1024,
        "micro_batch_size": 4, **given,
    }  # fmt: skip
    return resolve(TuneRequest(**asked))


@pytest.mark.parametrize("model", ["gpt3-1.3b", "llama2-7b"])
@pytest.mark.parametrize(
    "given",
    [
        {}, {"tp": 1}, {"tp": 1, "dp": 2}, {"dp": 2, "data_parallel": "replicas"},
        {"grad_accumulation": 3, "dp": 2},
        {"grad_accumulation": 3, "dp": 2, "data_parallel": "fsdp"}, {"recompute": "full"},
        {"recompute": "selective"},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "plan",
    [
        MEGATRON, NO_COMM, SlicePlan(), SlicePlan(row_slices=4, merge_wgrad=True),
        SlicePlan(row_slices=3, slice_dim="sequence"),
        SlicePlan(row_slices=3, attn_col_slices=4, mlp_col_slices=2, mlp_dgrad_slices=8),
        SlicePlan(row_slices=2, order="inter", wgrad="eager"),
        SlicePlan(row_slices=3, sequence_parallel=True),
    ],
)  # fmt: skip
def test_ops_are_those_of_the_schedule(model: str, given: dict[str, Any], plan: SlicePlan) -> None:
    case = setup_of(model=model, **given)
    case = replace(case, model=replace(case.model, num_hidden_layers=6))
    made = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    work = case.workload
    counted = bounds.schedule_ops(case.model, case.cluster, plan, work.grad_accumulation, work)
    assert len(made) <= counted <= len(made) + 4 * (case.model.num_hidden_layers + 1)


@pytest.mark.parametrize("how", CP_COMM)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("plan", [MEGATRON, NO_COMM, SlicePlan(sequence_parallel=True)])
def test_ops_where_ranks_share_sequences(how: str, recompute: str, plan: SlicePlan) -> None:
    case = setup_of(cp=4, cp_comm=how, recompute=recompute)
    made = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    counted = bounds.schedule_ops(case.model, case.cluster, plan, 1, case.workload)
    assert len(made) <= counted <= len(made) + 4 * (case.model.num_hidden_layers + 1)


def test_pipelines_that_are_too_long() -> None:
    bounds.check_setup(setup_of(pp=8, vpp=3, grad_accumulation=4096))
    deep = ("num_hidden_layers=192",)
    long = setup_of(pp=64, tp=1, grad_accumulation=8192, overrides=deep)
    bounds.check_setup(long, MEGATRON)
    refused("#/grad_accumulation", replace(long, cluster=replace(long.cluster, pp=192)), MEGATRON)


@pytest.mark.parametrize(
    ("tp", "fields"),
    [
        (4, ("qk_norm=true", "post_norm=true")), (1, ("qk_norm=true",)),
        (4, ("final_logit_softcapping=30", "scaled_embeddings=true")), (8, ("num_kv_heads=2",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("plan", [MEGATRON, NO_COMM, SlicePlan(sequence_parallel=True)])
def test_ops_of_other_models(tp: int, fields: tuple[str, ...], plan: SlicePlan) -> None:
    case = setup_of(tp=tp, overrides=fields)
    made = build_schedule(case.model, case.workload, case.cluster, plan, order_of(case, plan))
    counted = bounds.schedule_ops(case.model, case.cluster, plan, 1, case.workload)
    assert counted - case.workload.implementation.scale_grads == len(made)  # with one replica


@pytest.mark.parametrize("given", [{}, {"tp": 8}, {"micro_batch_size": 16}])
def test_a_search_is_counted_as_it_is_enumerated(given: dict[str, int]) -> None:
    case = setup_of(**given)
    assert bounds.search_size(case, ()) == space_of(case, None).size


def test_every_micro_batch_size_counts() -> None:
    case = setup_of(grad_accumulation=16)
    sizes = [space_of(one, None).size for one in cases_to_tune(case, ("micro_batch_size",))]
    assert bounds.search_size(case, ("micro_batch_size",)) == sum(sizes)
    assert len(sizes) == len((1, 2, 4, 8, 16, 32, 64))


def test_what_users_ask_for_is_allowed() -> None:
    large = setup_of(
        model="gpt3-175b", tp=8, dp=16, grad_accumulation=192, seq_length=2048, micro_batch_size=8
    )
    bounds.check_setup(large)
    huge = setup_of(model="llama3-405b", tp=8, dp=128, grad_accumulation=256, seq_length=8192)
    bounds.check_setup(huge, SlicePlan(row_slices=4), sweep="link_bandwidth=1x,2x,4x")
    bounds.check_setup(setup_of(grad_accumulation=8), tune_also=("micro_batch_size",))


def refused(pointer: str, *args: Any, **named: Any) -> None:
    with pytest.raises(ProblemError) as caught:
        bounds.check_setup(*args, **named)
    assert caught.value.status == 422
    assert [fault.pointer for fault in caught.value.faults] == [pointer]


def test_questions_that_are_too_large() -> None:
    deep = setup_of(overrides=("num_hidden_layers=4096",), grad_accumulation=4, micro_batch_size=16)
    refused("#/model", deep)
    refused("#/model", setup_of(overrides=("vocab_size=999999999",)))
    refused("#/grad_accumulation", setup_of(grad_accumulation=100_000))
    refused("#/grad_accumulation", setup_of(grad_accumulation=8192, micro_batch_size=4096))
    refused("#/dp", setup_of(dp=1 << 21))
    batch = setup_of(micro_batch_size=1, grad_accumulation=5040)
    refused("#/tune_also", batch, tune_also=("micro_batch_size",))


def layouts_of(**given: Any) -> tuple[Case, TuneRequest]:
    """A search of layouts, and the case that they divide."""
    asked: dict[str, Any] = {
        "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 1024, "gpus": 8,
        "global_batch_size": 16, **given,
    }  # fmt: skip
    request = TuneRequest(**asked)
    return base_of(request, DISK), request


@pytest.mark.parametrize(
    "given",
    [
        {}, {"gpus": 1, "global_batch_size": 1 << 20}, {"gpus": 8, "global_batch_size": 1 << 13},
        {"model": "llama3-70b", "gpus": 512, "global_batch_size": 2048, "seq_length": 4096},
        {"model": "llama3-405b", "gpus": 16384, "global_batch_size": 2048, "seq_length": 8192},
        {"model": "llama3-405b", "gpus": 16384, "global_batch_size": 128, "seq_length": 1 << 17},
        {"model": "llama3-405b", "gpus": 1 << 16, "global_batch_size": 1 << 16,
         "seq_length": 8192},
    ],
)  # fmt: skip
def test_layouts_that_users_ask_for_are_allowed(given: dict[str, Any]) -> None:
    bounds.check_layouts(*layouts_of(**given))


MANY = {
    "model": "llama3-405b", "gpus": 55440, "global_batch_size": 55440, "seq_length": 1 << 17,
}  # fmt: skip
DEEP = ("num_hidden_layers=4096", "hidden_size=256")


@pytest.mark.parametrize(
    ("given", "pointer", "instead", "allowed"),
    [
        (MANY, "#/gpus", "fix some of tp, cp, pp", {"tp": 8, "cp": 1, "pp": 63}),
        (
            {"global_batch_size": 1 << 16}, "#/global_batch_size", "a smaller global_batch_size",
            {"dp": 4},
        ),
        ({"overrides": DEEP}, "#/model", "a larger pp", {"pp": 8}),
        ({"overrides": ("vocab_size=999999999",)}, "#/model", "ask for less", {"overrides": ()}),
    ],
)  # fmt: skip
def test_layouts_that_take_too_long(
    given: dict[str, Any], pointer: str, instead: str, allowed: dict[str, Any]
) -> None:
    with pytest.raises(ProblemError, match=instead) as caught:
        bounds.check_layouts(*layouts_of(**given))
    assert caught.value.status == 422
    assert [fault.pointer for fault in caught.value.faults] == [pointer]
    bounds.check_layouts(*layouts_of(**{**given, **allowed}))


def test_ops_are_those_of_all_that_is_looked_at() -> None:
    deep = setup_of(
        overrides=("num_hidden_layers=300",), tp=1, grad_accumulation=32, micro_batch_size=2
    )
    bounds.check_setup(deep)
    refused("#/model", deep, tune_also=("micro_batch_size",))
    refused("#/model", deep, changes=("micro_batch_size=16",))
    refused("#/model", deep, sweep="micro_batch_size=2x,8x")
    flat = setup_of(overrides=("num_hidden_layers=600",), tp=1, micro_batch_size=16)
    plan = SlicePlan(row_slices=16, attn_col_slices=4, mlp_col_slices=4)
    cluster = ClusterSpec(tp=2)
    most = bounds.schedule_ops(flat.model, cluster, plan, 1, flat.workload) - 1
    bounds.check_setup(flat, plan, most_ops=most)
    for tp in ("tp=2", "tp=4x"):
        refused("#/model", flat, plan, changes=(tp,), most_ops=most)


def test_every_accumulation_that_is_tuned_is_bounded() -> None:
    batch = setup_of(micro_batch_size=4, grad_accumulation=4096)
    bounds.check_setup(batch)
    refused("#/tune_also", batch, tune_also=("micro_batch_size",))


@pytest.mark.parametrize("body", [TuneBody, LayoutBody, SimulateBody, SweepBody])
def test_the_description_has_the_limit_of_every_number(body: type[Wire]) -> None:
    schema = body.model_json_schema()["properties"]
    numbers = {
        name: kind
        for name, said in schema.items()
        for kind in [said, *said.get("anyOf", ())]
        if kind.get("type") == "integer"
    }
    for name, kind in numbers.items():
        assert kind["maximum"] <= bounds.COUNTS.get(name, kind["maximum"])
        assert kind["maximum"] != MOST, f"{name} has no limit of its own"
        with pytest.raises(ValidationError) as caught:
            body.model_validate({name: kind["maximum"] + 1})
        assert (name,) in [one["loc"][:1] for one in caught.value.errors()]


def test_what_others_refuse_is_left_to_them() -> None:
    bounds.check_fields(
        SimpleNamespace(
            tp=8, overrides=["nonsense", "no_field=3", "hidden_size=x", "rope_theta=1e300"],
            plan={"model": 1, "order": {"forward": []}, "cluster": {"tp": "x"}},
        )
    )  # fmt: skip
