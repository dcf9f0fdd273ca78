"""Recomputation of single modules: what plays again, when, and what need not be kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.memory import peak_memory
from simulator.model_flops import executed_flops, model_flops
from simulator.modules import Modules
from simulator.overlap import EP_OVERLAP
from simulator.plan import MEGATRON, check_plan_fits
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.schedule import check_order
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile

MODEL: Final = replace(
    MODELS["deepseek-v3"], num_hidden_layers=6, first_k_dense_replace=3, num_nextn_predict_layers=0
)
CLUSTER: Final = ClusterSpec(tp=1, dp=8, ep=8)
TOKENS: Final = 4096


def work_of(modules: Modules, **told: Any) -> Workload:
    return Workload(
        seq_length=TOKENS, micro_batch_size=1, grad_accumulation=2,
        data_parallel="distributed-optimizer",
        **{"recompute": "selective" if modules else "none", "recompute_modules": modules, **told},
    )  # fmt: skip


def case_of(modules: Modules, layers: int = 6, **told: Any) -> Case:
    return Case(
        model=replace(MODEL, num_hidden_layers=layers), workload=work_of(modules, **told),
        cluster=CLUSTER, profile=bundled_profile(),
    )  # fmt: skip


def kept(modules: Modules) -> int:
    """Bytes that one more layer with experts keeps."""
    one, more = (peak_memory(case_of(modules, n), MEGATRON).activations for n in (6, 7))
    return more - one


@pytest.mark.parametrize(
    ("modules", "elements"),
    [
        (("moe_act",), 8 * 2048),
        (("layernorm",), 2 * 7168),
        (("mla_up_proj",), 128 * (2 * 192 + 128) + 1536 + 512),
        (("shared_experts",), 3 * 2048),
    ],
)
def test_what_a_layer_does_not_keep(modules: Modules, elements: int) -> None:
    """Elements of a token, in BF16: rows of its eight experts, the norms' outputs, the heads'
    queries, keys and values with the latent vectors' norms, and what is inside a shared expert."""
    saved = kept(()) - kept(modules)
    assert saved == pytest.approx(2 * TOKENS * elements, abs=1 << 16)


def test_time_goes_up_by_what_plays_again() -> None:
    times = {
        modules: predict(case_of(modules), MEGATRON).makespan_ns
        for modules in ((), ("moe_act",), ("mla_up_proj",), ("moe",))
    }
    assert times[()] < times["moe_act",] < times["mla_up_proj",] < times["moe",]


def test_what_plays_again_is_executed_and_no_part_of_the_models_flops() -> None:
    plain, whole, core = (case_of(modules) for modules in ((), ("moe",), ("core_attn",)))
    assert model_flops(whole) == model_flops(plain)
    active = 9 * 3 * 7168 * 2048  # eight experts and the shared one
    more = executed_flops(whole) - executed_flops(plain)
    assert more == 2 * 3 * active * whole.tokens
    assert executed_flops(core) > executed_flops(plain)
    assert executed_flops(case_of(("layernorm",))) == executed_flops(plain)


def roles(modules: Modules, layer: int, **told: Any) -> list[str]:
    """Roles of the last micro-batch's ops of a layer; three are dense, three have experts."""
    schedule = build_schedule(MODEL, work_of(modules, **told), CLUSTER, MEGATRON)
    check_order(schedule)
    return [op.role for op in schedule.ops() if op.layer == layer and op.micro == 1]


def again(found: list[str]) -> list[str]:
    return [role.removesuffix(".again") for role in found if role.endswith(".again")]


def test_the_experts_activation_follows_the_dgrad_that_its_wgrad_waits_for() -> None:
    found = roles(("moe_act",), 4)
    assert again(found) == ["mlp.act"]
    assert found[found.index("mlp.act.again") - 1] == "mlp.fc2_dgrad"
    assert not again(roles(("moe_act",), 1))


def test_products_up_to_the_heads_play_before_the_cores_backward() -> None:
    found = roles(("mla_up_proj",), 4)
    assert again(found) == ["attn.q_norm", "attn.kv_norm", "attn.q_up", "attn.kv_up", "attn.rope"]
    assert found[found.index("attn.rope.again") + 1] == "attn.core_attn_bwd"


def test_experts_play_again_with_their_exchange() -> None:
    assert {"mlp.dispatch", "mlp.combine", "mlp.shared_fc1"} <= set(again(roles(("moe",), 4)))
    assert "mlp.norm" not in again(roles(("moe",), 4))
    assert again(roles(("mlp",), 1)) == ["mlp.fc1", "mlp.act", "mlp.fc2"]


def test_casts_of_what_is_discarded_play_again() -> None:
    found = roles(("layernorm", "moe_act"), 4, fp8_recipe="mxfp8")
    assert {"attn.norm.cast", "mlp.shared.in.cast", "mlp.act.cast"} <= set(again(found))


@pytest.mark.parametrize(
    ("model", "told", "message"),
    [
        (MODEL, {"recompute_modules": ("norm",)}, "norm"),
        (MODEL, {"recompute": "full", "recompute_modules": ("mlp",)}, "--recompute selective"),
        (MODEL, {"recompute_modules": ("moe", "moe_act")}, "moe_act within it"),
        (
            MODEL, {"recompute_modules": ("layernorm",), "fp8_recipe": "delayed"},
            "Delayed scaling",
        ),
        (
            MODEL,
            {"recompute_modules": ("shared_experts",), "moe_shared_expert_overlap": True},
            "moe_shared_expert_overlap=false",
        ),
        (MODELS["llama3-8b"], {"recompute_modules": ("moe_act",)}, "is of experts"),
        (MODELS["mixtral-8x7b"], {"recompute_modules": ("mla_up_proj",)}, "latent attention"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_again(model: Any, told: dict[str, Any], message: str) -> None:
    cluster = CLUSTER if model.num_experts else ClusterSpec(tp=1)
    with pytest.raises(InputError, match=message):
        Case(
            model=model, workload=work_of((), **{"recompute": "selective", **told}),
            cluster=cluster, profile=bundled_profile(),
        )  # fmt: skip


def test_two_micro_batches_beside_each_other_have_modules_but_no_whole_experts() -> None:
    plan = replace(MEGATRON, strategy=EP_OVERLAP)
    chosen: Modules = ("moe_act", "mla_up_proj", "layernorm", "mlp")
    assert predict(case_of(chosen), plan).makespan_ns > predict(case_of(()), plan).makespan_ns
    with pytest.raises(InfeasiblePlanError, match="leave moe out"):
        check_plan_fits(plan, MODEL, work_of(("moe",)), CLUSTER)
