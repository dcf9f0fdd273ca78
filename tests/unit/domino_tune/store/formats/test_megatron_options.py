"""Experts, latent attention and further predictions in exports, and in logs of what they ran."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import pytest
import yaml

from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.store.formats.megatron import megatron_arguments, megatron_notes
from domino_tune.store.formats.megatron_bridge import bridge_settings
from domino_tune.store.formats.megatron_log import read_megatron_log
from domino_tune.verbs.plan import export_plan, export_text
from domino_tune.verbs.resolve import resolve
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.overlap import EP_OVERLAP, GEMMS
from simulator.plan import SlicePlan, WgradPlacement
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, ModelSpec, MoeDispatcher, Workload
from tests.support.megatron_options import parsed
from tests.support.plans import (
    ASYNC_TP,
    DOMINO,
    SHARDED,
    USERBUFFERS,
    WORKLOAD,
    plan_file,
    told,
)
from tests.unit.domino_tune.store.formats.test_megatron_log import LLAMA, log

EP4 = ClusterSpec(tp=2, dp=4, ep=4, etp=1)
WORK = replace(WORKLOAD, data_parallel="distributed-optimizer")
MIXTRAL, V3 = MODELS["mixtral-8x7b"], MODELS["deepseek-v3"]
MIXTRAL_LOG: dict[str, Any] = {
    **LLAMA, "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 14336,
    "moe_layer_freq": 1, "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall",
    "moe_shared_expert_intermediate_size": None, "expert_model_parallel_size": 4,
    "expert_tensor_parallel_size": 1, "tensor_model_parallel_size": 2, "kv_lora_rank": 32,
    "v_head_dim": 128, "moe_router_force_load_balancing": True, "moe_router_dtype": "fp32",
}  # fmt: skip


def told_to_megatron(
    model: ModelSpec, workload: Workload = WORK, cluster: ClusterSpec = EP4
) -> dict[str, Any]:
    return parsed([*megatron_arguments(model, workload, cluster), "--sequence-parallel"])


def case_of(arguments: dict[str, Any]) -> Case:
    row = read_megatron_log(log(arguments), "run.log")
    return resolve(request_from_text(SimulateRequest, {**row.options, "profile": "h100-dgx"}))


def test_megatron_is_told_of_experts() -> None:
    told = told_to_megatron(MIXTRAL)
    assert (told["num_experts"], told["moe_router_topk"]) == (8, 2)
    assert told["moe_ffn_hidden_size"] == 14336
    assert (told["expert_model_parallel_size"], told["expert_tensor_parallel_size"]) == (4, 1)
    assert told["moe_token_dispatcher_type"] == "alltoall"
    assert told["moe_grouped_gemm"]
    assert told["moe_permute_fusion"]
    apart = replace(WORK.implementation, moe_permute_fusion=False)
    assert "moe_permute_fusion" not in told_to_megatron(
        MIXTRAL, replace(WORK, implementation=apart)
    )
    assert not {"multi_latent_attention", "moe_layer_freq", "mtp_num_layers"} & told.keys()
    shared = told_to_megatron(MIXTRAL, cluster=replace(EP4, etp=0, ep=2))
    assert shared["expert_tensor_parallel_size"] == 2


@pytest.mark.parametrize(("width", "beside"), [(None, False), (2048, True)])
def test_a_shared_expert_is_beside_tokens_where_there_is_one(
    width: int | None, beside: bool
) -> None:
    """Megatron-LM ignores the argument where there is none."""
    told = {
        **MIXTRAL_LOG, "moe_shared_expert_overlap": True,
        "moe_shared_expert_intermediate_size": width,
    }  # fmt: skip
    assert case_of(told).workload.moe_shared_expert_overlap == beside


def test_megatron_is_told_of_deepseek() -> None:
    told = told_to_megatron(V3)
    assert told["moe_layer_freq"] == "([0]*3+[1]*58)"
    assert told["moe_shared_expert_intermediate_size"] == 2048
    assert told["mtp_num_layers"] == 1
    assert (told["q_lora_rank"], told["kv_lora_rank"]) == (1536, 512)
    assert (told["qk_head_dim"], told["qk_pos_emb_head_dim"], told["v_head_dim"]) == (128, 64, 128)
    assert told["multi_latent_attention"]
    assert told["qk_layernorm"]
    assert not {"kv_channels", "num_query_groups"} & told.keys()
    assert "q_lora_rank" not in told_to_megatron(replace(V3, q_lora_rank=0))


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_flex_dispatchers_have_a_backend(dispatcher: MoeDispatcher) -> None:
    told = told_to_megatron(MIXTRAL, replace(WORK, moe_dispatcher=dispatcher))
    assert told["moe_token_dispatcher_type"] == "flex"
    assert told["moe_flex_dispatcher_backend"] == dispatcher
    assert f"moe_{dispatcher}_num_sms" not in told
    held = told_to_megatron(
        MIXTRAL, replace(WORK, moe_dispatcher=dispatcher, moe_dispatcher_sms=24)
    )
    assert held[f"moe_{dispatcher}_num_sms"] == 24


def test_a_shared_expert_beside_the_exchange_is_told() -> None:
    assert "moe_shared_expert_overlap" not in told_to_megatron(V3)
    beside = replace(WORK, moe_shared_expert_overlap=True)
    assert told_to_megatron(V3, beside)["moe_shared_expert_overlap"]


def test_stages_of_a_layout_end_with_further_predictions() -> None:
    model = replace(V3, num_hidden_layers=5, first_k_dense_replace=1)
    told = told_to_megatron(model, replace(WORK, pp_layers=(3, 2)), replace(EP4, pp=2))
    assert told["pipeline_model_parallel_layout"] == "Ettt|ttmL"


def test_bridge_is_told_the_same() -> None:
    settings = bridge_settings(plan_file(SHARDED, V3, WORK, EP4))
    assert settings["model.num_moe_experts"] == 256
    assert settings["model.moe_layer_freq"] == [0] * 3 + [1] * 58
    assert settings["model.multi_latent_attention"] is True
    assert settings["model.qk_layernorm"] is True
    assert settings["model.moe_permute_fusion"] is True
    apart = replace(WORK.implementation, moe_permute_fusion=False)
    plain = bridge_settings(plan_file(SHARDED, V3, replace(WORK, implementation=apart), EP4))
    assert plain["model.moe_permute_fusion"] is False
    assert settings["model.mtp_num_layers"] == 1
    assert settings["model.expert_model_parallel_size"] == 4


@pytest.mark.parametrize("wgrad", ["eager", "deferred"])
def test_micro_batches_beside_each_other_are_told_and_read(wgrad: WgradPlacement) -> None:
    plan = replace(SHARDED, strategy=EP_OVERLAP, wgrad=wgrad)
    cluster, late = replace(EP4, tp=1), wgrad == "deferred"
    file = plan_file(replace(plan, sequence_parallel=False), MIXTRAL, WORK, cluster)
    told = parsed(list(export_plan(file, "megatron").arguments))
    assert told["overlap_moe_expert_parallel_comm"]
    assert told.get("delay_wgrad_compute", False) == late
    options = read_megatron_log(
        log({**MIXTRAL_LOG, "overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": late}),
        "run.log",
    ).options
    assert options["strategy"] == EP_OVERLAP
    assert options.get("wgrad", "eager") == wgrad


def test_balance_is_told() -> None:
    def notes(workload: Workload) -> str:
        return " ".join(megatron_notes(plan_file(SHARDED, MIXTRAL, workload, EP4)))

    assert "--moe-router-force-load-balancing" in notes(WORK)
    assert "1.3 times the mean" in notes(replace(WORK, moe_imbalance=1.3))


@pytest.mark.parametrize("to", ["torchtitan", "deepspeed", "te-userbuffers"])
def test_others_refuse(to: str) -> None:
    plan = replace(SHARDED, strategy="userbuffers") if to == "te-userbuffers" else SHARDED
    with pytest.raises(InfeasiblePlanError) as refused:
        export_plan(plan_file(plan, MIXTRAL, WORK, EP4), to)
    assert refused.value.reason == "target"


@pytest.mark.parametrize(
    ("told", "fused"),
    [({"moe_permute_fusion": True}, True), ({"moe_permute_fusion": False}, False), ({}, False)],
)
def test_a_log_tells_whether_permutation_is_fused(told: dict[str, bool], fused: bool) -> None:
    """Versions that do not print it have no such kernel."""
    plain = {name: value for name, value in MIXTRAL_LOG.items() if name != "moe_permute_fusion"}
    case = case_of({**plain, **told})
    assert case.workload.implementation.moe_permute_fusion == fused


def test_a_log_of_mixtral_is_read() -> None:
    case = case_of(MIXTRAL_LOG)
    model = case.model
    assert (model.num_experts, model.num_experts_per_tok) == (8, 2)
    assert (model.moe_intermediate_size, model.first_k_dense_replace) == (14336, 0)
    assert (model.kv_lora_rank, model.v_head_dim) == (0, 0)
    assert (case.cluster.ep, case.cluster.expert_tp) == (4, 1)
    assert case.workload.moe_dispatcher == "alltoall"
    as_tp = {**MIXTRAL_LOG, "expert_tensor_parallel_size": None, "expert_model_parallel_size": 2}
    assert case_of(as_tp).cluster.expert_tp == 2
    usual = {**MIXTRAL_LOG, "moe_ffn_hidden_size": None}
    assert case_of(usual).model.moe_intermediate_size == 14336


def test_a_log_of_deepseek_is_read() -> None:
    told = {
        **MIXTRAL_LOG, "multi_latent_attention": True, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "moe_layer_freq": [0] * 3 + [1] * 29,
        "moe_shared_expert_intermediate_size": 2048, "mtp_num_layers": 1, "qk_layernorm": True,
        "group_query_attention": False, "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep", "kv_channels": 128,
    }  # fmt: skip
    case = case_of(told)
    model = case.model
    assert (model.q_lora_rank, model.kv_lora_rank, model.head_dim) == (0, 512, 192)
    assert (model.qk_rope_head_dim, model.v_head_dim, model.qk_norm) == (64, 128, False)
    assert (model.first_k_dense_replace, model.num_nextn_predict_layers) == (3, 1)
    assert model.shared_expert_intermediate_size == 2048
    assert (case.workload.moe_dispatcher, case.workload.moe_dispatcher_sms) == ("hybridep", 0)
    assert case_of({**told, "moe_hybridep_num_sms": 32}).workload.moe_dispatcher_sms == 32
    of_others = {**MIXTRAL_LOG, "moe_hybridep_num_sms": 16, "moe_deepep_num_sms": 20}
    assert case_of(of_others).workload.moe_dispatcher_sms == 0


def test_balance_that_was_not_forced_is_told() -> None:
    assert read_megatron_log(log(MIXTRAL_LOG), "run.log").note == ""
    free = {**MIXTRAL_LOG, "moe_router_force_load_balancing": False}
    assert "tokens are taken to be balanced" in read_megatron_log(log(free), "run.log").note


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2, which is not simulated"),
        ({"moe_layer_freq": [1, 0, 1]}, "moe_layer_freq = [1, 0, 1]"),
        ({"moe_token_dispatcher_type": "alltoall_seq"}, "moe_token_dispatcher_type = alltoall_seq"),
        ({"moe_grouped_gemm": False}, "moe_grouped_gemm = False"),
        ({"moe_expert_capacity_factor": 1.0}, "moe_expert_capacity_factor = 1.0"),
        ({"multi_latent_attention": True, "qk_head_dim": None}, "qk_head_dim = None"),
    ],
)
def test_runs_that_are_not_simulated_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read_megatron_log(log({**MIXTRAL_LOG, **change}), "run.log")


# The YAML of userbuffers, read as TransformerEngine reads it --------------------------------------

METHODS: Final = {
    "ring_exchange": ["qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"],
    "pipeline": ["proj_fprop", "fc2_fprop"],
    "bulk": ["qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"],
}
KEYS: Final = {
    "method": str, "num_sm": int, "cga_size": int, "set_sm_margin": bool, "num_splits": int,
    "aggregate": bool, "atomic_gemm": bool, "use_ce": bool, "fp8_buf": bool,
}  # fmt: skip
SUMS: Final = ["proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad"]


def initialized(text: str) -> dict[str, dict[str, Any]]:
    """Return each GEMM's config as ``initialize_ub`` makes it (transformer_engine/pytorch/module/
    base.py at fecb10b); raise ValueError where it raises."""
    config = yaml.safe_load(text)
    sums, known = list(SUMS), {name for names in METHODS.values() for name in names}
    if not config.keys() <= known:
        raise ValueError(f"no such GEMMs: {config.keys() - known}")
    for name in ("qkv_dgrad", "fc1_dgrad"):
        if config.get(name, {}).get("method", "bulk") != "bulk":
            wgrad = name.replace("dgrad", "wgrad")
            if wgrad in config:
                raise ValueError(f"{wgrad} beside a dgrad that is not bulk")
            sums.remove(wgrad)
            sums.append(name)
    made = {}
    for usual, names in METHODS.items():
        for name in names:
            told_here = config.get(name, {})
            for key, value in told_here.items():
                if type(value) is not KEYS[key]:
                    raise ValueError(f"{name}.{key} is {value!r}")
            method = told_here.get("method", usual)
            if method == "pipeline" and name not in sums:
                raise ValueError(f"{name}: pipeline is not for gathers")
            made[name] = {
                "num_sm": 1 if method == "ring_exchange" else 16,
                "num_splits": 4 if method == "pipeline" else 0,
                "set_sm_margin": False,
                **told_here,
                "method": method,
                "told": name in config,
            }
    return made


def exported(plan: SlicePlan) -> dict[str, dict[str, Any]]:
    made = export_plan(plan_file(plan), "te-userbuffers")
    assert made.arguments == ()
    # The file is also what a terminal shows, with comments before it.
    assert initialized(export_text(made)) == initialized(made.document)
    return initialized(made.document)


def test_the_usual_methods() -> None:
    made = exported(USERBUFFERS)
    assert all(entry["told"] for entry in made.values())
    for method, names in METHODS.items():
        assert {made[name]["method"] for name in names} == {method}
    assert made["fc1_fprop"]["num_sm"] == 1
    assert (made["fc2_fprop"]["num_splits"], made["fc2_fprop"]["num_sm"]) == (4, 16)
    margins = {name: entry["set_sm_margin"] for name, entry in made.items()}
    assert margins == {name: name not in METHODS["ring_exchange"] for name in margins}


def test_methods_of_single_gemms() -> None:
    made = exported(told(USERBUFFERS, "fc2_fprop=pipeline:8:24", "fc1_dgrad=bulk:8"))
    assert (made["fc2_fprop"]["num_splits"], made["fc2_fprop"]["num_sm"]) == (8, 24)
    assert (made["proj_fprop"]["num_splits"], made["proj_fprop"]["num_sm"]) == (4, 16)
    assert made["fc1_dgrad"]["num_sm"] == made["fc1_wgrad"]["num_sm"] == 8
    assert made["qkv_dgrad"]["num_sm"] == 16


def test_a_dgrad_that_sums_in_a_pipeline_has_no_bulk_wgrad() -> None:
    made = exported(told(USERBUFFERS, "fc1_dgrad=pipeline:2:8", "qkv_dgrad=pipeline"))
    assert made["fc1_dgrad"]["method"] == "pipeline"
    assert not made["fc1_wgrad"]["told"]


def test_gemms_without_overlap_are_left_out_and_said() -> None:
    plan = told(USERBUFFERS, "fc1_fprop=none", "qkv_dgrad=none")
    assert {name for name, entry in exported(plan).items() if not entry["told"]} == {
        "fc1_fprop", "qkv_dgrad", "qkv_wgrad",
    }  # fmt: skip
    (note,) = export_plan(plan_file(plan), "te-userbuffers").notes
    assert "linear_fc1.ub_overlap_ag_fprop" in note
    assert "linear_qkv.ub_bulk_dgrad and ub_bulk_wgrad" in note
    nothing = told(USERBUFFERS, *(f"{gemm}=none" for gemm in GEMMS))
    assert not any(entry["told"] for entry in exported(nothing).values())


@pytest.mark.parametrize("plan", [SHARDED, DOMINO, ASYNC_TP])
def test_other_strategies_are_refused(plan: SlicePlan) -> None:
    with pytest.raises(InfeasiblePlanError, match="of strategy userbuffers") as caught:
        export_plan(plan_file(plan), "te-userbuffers")
    assert caught.value.reason == "target"


def test_a_method_that_transformer_engine_has_not() -> None:
    with pytest.raises(InfeasiblePlanError, match="no bulk overlap for fc2_fprop"):
        export_plan(plan_file(told(USERBUFFERS, "fc2_fprop=bulk:8")), "te-userbuffers")
