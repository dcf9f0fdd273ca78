"""torchtitan's TOML, compared with the fields of its config."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.results.files import ExportResult
from domino_tune.verbs.plan import export_plan, export_text
from simulator.errors import InfeasiblePlanError
from simulator.plan import MEGATRON
from simulator.specs import ClusterSpec, Workload
from tests.support.plans import (
    ASYNC_TP,
    DOMINO,
    FUSED,
    SHARDED,
    USERBUFFERS,
    WORKLOAD,
    on,
    plan_file,
)

V: dict[str, Any] = {"pp_schedule": "dualpipev"}
TWO = ClusterSpec(tp=4, dp=2)
FLOAT: Final = ("bfloat16", "float32")
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "training": {
        "local_batch_size": int, "global_batch_size": int, "seq_len": int, "dtype": FLOAT,
        "mixed_precision_param": FLOAT,
    },
    "parallelism": {
        "data_parallel_replicate_degree": int, "data_parallel_shard_degree": int,
        "fsdp_reshard_after_forward": ("default", "always", "never"),
        "tensor_parallel_degree": int, "enable_async_tensor_parallel": bool,
        "pipeline_parallel_degree": int, "pipeline_parallel_schedule": str,
        "pipeline_parallel_microbatch_size": int, "pipeline_parallel_layers_per_stage": int,
        "pipeline_parallel_first_stage_less_layers": int,
        "pipeline_parallel_last_stage_less_layers": int, "module_fqns_per_model_part": list,
        "context_parallel_degree": int,
        "context_parallel_rotate_method": ("allgather", "alltoall"),
    },
    "activation_checkpoint": {
        "mode": ("selective", "full", "memory_budget", "none"), "selective_ac_option": str,
    },
    "compile": {"enable": bool, "components": list},
    "model": {"converters": list},
    "quantize.linear.float8": {
        "enable_fsdp_float8_all_gather": bool, "precompute_float8_dynamic_scale_for_fsdp": bool,
        "filter_fqns": list,
    },
}  # fmt: skip
"""Section -> field -> its type, or its values: torchtitan/config/job_config.py of 0.2.2."""


def exported(*args: Any, **named: Any) -> ExportResult:
    return export_plan(plan_file(*args, **named), "torchtitan")


def sections(*args: Any, **named: Any) -> dict[str, Any]:
    """Return the sections as torchtitan reads them; raise ValueError for an unknown field
    or value.
    """
    made = exported(*args, **named)
    found = tomllib.loads(made.document)
    assert tomllib.loads(export_text(made)) == found
    if "quantize" in found:
        found[FLOAT8] = found.pop("quantize")["linear"]["float8"]
    for section, values in found.items():
        for name, value in values.items():
            allowed = FIELDS[section][name]
            fits = value in allowed if isinstance(allowed, tuple) else type(value) is allowed
            if not fits:
                raise ValueError(f"{section}.{name} is {value!r}")
    return found


FLOAT8: Final = "quantize.linear.float8"


def said(*args: Any, **named: Any) -> str:
    return "\n".join(exported(*args, **named).notes)


def test_tensor_parallelism() -> None:
    found = sections(workload=on("torch"))
    assert found["training"] == {
        "local_batch_size": 2, "global_batch_size": 8, "seq_len": 4096, "dtype": "bfloat16",
    }  # fmt: skip
    parallelism = found["parallelism"]
    assert parallelism["tensor_parallel_degree"] == 8
    assert parallelism["enable_async_tensor_parallel"] is False
    assert found["activation_checkpoint"] == {"mode": "none"}
    assert found["compile"]["enable"] is False  # the prediction has PyTorch's own kernels
    assert parallelism["pipeline_parallel_degree"] == 1
    assert "pipeline_parallel_schedule" not in parallelism
    assert "no fp32 weights" in said(workload=on("torch"))


def test_async_tensor_parallelism_is_compiled() -> None:
    found = sections(ASYNC_TP, workload=on("torch"))
    assert found["parallelism"]["enable_async_tensor_parallel"] is True
    assert found["compile"] == {"enable": True, "components": ["model", "loss"]}


@pytest.mark.parametrize(
    ("sharing", "gathers"),
    [
        ("replicas", False), ("fsdp", False), ("distributed-optimizer", False),
        ("distributed-optimizer", True),
    ],
)  # fmt: skip
def test_layers_in_fp8_are_converted(sharing: Any, gathers: bool) -> None:
    quantized = replace(
        on("torch"), fp8_recipe="tensorwise", data_parallel=sharing, fp8_param_gather=gathers
    )
    found = sections(workload=quantized, cluster=TWO)
    assert found["model"] == {"converters": [FLOAT8]}
    assert found[FLOAT8]["filter_fqns"] == ["output"]
    assert found[FLOAT8]["enable_fsdp_float8_all_gather"] is gathers
    assert found["compile"]["enable"] is True
    assert "name and flavor to [model], those of" in said(workload=quantized)
    assert "model" not in sections()


@pytest.mark.parametrize(
    ("workload", "is_compiled"),
    [
        (WORKLOAD, True),
        (on("megatron-te", rope_fusion=False), False),
        (replace(on("torch"), recompute="per-op"), True),
        (replace(on("torch"), recompute="full"), False),
    ],
    ids=["fused passes", "not all are", "single ops again", "whole layers again"],
)
def test_what_is_compiled(workload: Workload, is_compiled: bool) -> None:
    assert sections(workload=workload)["compile"]["enable"] is is_compiled


@pytest.mark.parametrize(
    ("data_parallel", "replicate", "shard", "reshard"),
    [
        ("replicas", 2, 1, None),
        ("fsdp", 1, 2, "always"),
        ("distributed-optimizer", 1, 2, "never"),
    ],
)
def test_replicas(data_parallel: Any, replicate: int, shard: int, reshard: str | None) -> None:
    workload = replace(WORKLOAD, data_parallel=data_parallel)
    found = sections(workload=workload, cluster=TWO)
    parallelism = found["parallelism"]
    assert parallelism["data_parallel_replicate_degree"] == replicate
    assert parallelism["data_parallel_shard_degree"] == shard
    assert parallelism.get("fsdp_reshard_after_forward") == reshard
    assert ("mixed_precision_param" in found["training"]) == (shard == 2)
    assert found["training"]["global_batch_size"] == 16


def test_pipelines() -> None:
    cluster = ClusterSpec(tp=2, pp=2, vpp=2)
    workload = replace(WORKLOAD, overlap_p2p=True, recompute="full")
    found = sections(workload=workload, cluster=cluster)
    assert found["training"]["local_batch_size"] == 8  # all micro-batches of a step
    parallelism = found["parallelism"]
    assert parallelism["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert parallelism["pipeline_parallel_microbatch_size"] == 2
    assert parallelism["pipeline_parallel_layers_per_stage"] == 8
    assert parallelism["pipeline_parallel_first_stage_less_layers"] == 0
    assert parallelism["pipeline_parallel_last_stage_less_layers"] == 0
    assert found["activation_checkpoint"] == {"mode": "full"}
    folded = sections(workload=replace(on("torch"), **V), cluster=cluster)
    assert folded["parallelism"]["pipeline_parallel_schedule"] == "DualPipeV"
    assert folded["compile"]["enable"] is False
    uneven = replace(WORKLOAD, pp_layers=(17, 15), pp_schedule="gpipe")
    parallelism = sections(workload=uneven, cluster=ClusterSpec(tp=2, pp=2))["parallelism"]
    assert parallelism["pipeline_parallel_schedule"] == "GPipe"
    first, last = parallelism["module_fqns_per_model_part"]
    assert first == ["tok_embeddings", *(f"layers.{layer}" for layer in range(17))]
    assert last == [*(f"layers.{layer}" for layer in range(17, 32)), "norm", "output"]
    assert "pipeline_parallel_layers_per_stage" not in parallelism


def test_recomputation_per_op() -> None:
    found = sections(SHARDED, workload=replace(WORKLOAD, recompute="per-op"))
    assert found["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}


def test_context_parallelism() -> None:
    found = sections(cluster=ClusterSpec(tp=2, cp=2))
    assert found["parallelism"]["context_parallel_rotate_method"] == "alltoall"
    assert found["training"]["mixed_precision_param"] == "bfloat16"  # it shards weights
    alone = sections(cluster=ClusterSpec(tp=1))["training"]  # one rank, under autocast
    assert alone["mixed_precision_param"] == "bfloat16"


def test_a_domino_plan_says_what_running_unsliced_costs() -> None:
    assert "1,234.6 ms as planned, 1,345.7 ms unsliced" in said(DOMINO)
    assert sections(DOMINO) == sections(SHARDED)


@pytest.mark.parametrize(
    ("plan", "workload", "cluster", "message"),
    [
        (USERBUFFERS, {}, ClusterSpec(tp=8), "cannot run strategy 'userbuffers'"),
        (FUSED, {}, ClusterSpec(tp=8), "cannot run strategy 'fused'"),
        (MEGATRON, {}, ClusterSpec(tp=8), "with --sequence-parallel"),
        (SHARDED, {"dtype": "fp16"}, ClusterSpec(tp=8), "--dtype bf16 or fp32"),
        (SHARDED, {"moments_dtype": "bf16"}, ClusterSpec(tp=8), "--set moments_dtype=fp32"),
        (SHARDED, {"recompute": "selective"}, ClusterSpec(tp=8), "attention core alone"),
        (SHARDED, {"recompute": "full", "recompute_layers": 2}, ClusterSpec(tp=8), "first layers"),
        (SHARDED, {"cp_comm": "a2a"}, ClusterSpec(tp=2, cp=2), "--cp-comm p2p"),
        (SHARDED, {"pp_schedule": "zero-bubble"}, ClusterSpec(tp=2, pp=2), "zero-bubble"),
        (ASYNC_TP, V, ClusterSpec(tp=2, pp=2, vpp=2), "DualPipeV under torch.compile"),
    ],
)
def test_what_torchtitan_does_not_run(
    plan: Any, workload: dict[str, Any], cluster: ClusterSpec, message: str
) -> None:
    with pytest.raises(InfeasiblePlanError, match=message) as caught:
        exported(plan, workload=replace(WORKLOAD, **workload), cluster=cluster)
    assert caught.value.reason == "target"
