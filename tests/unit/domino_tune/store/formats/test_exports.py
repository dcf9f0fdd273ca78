"""What exports to frameworks have in common: what concerns no rank of a job changes nothing, and
each assumption that a framework cannot express is one note.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.results.files import ExportResult
from domino_tune.verbs.plan import export_plan
from simulator.plan import SlicePlan
from simulator.presets import MODELS
from simulator.specs import ClusterSpec
from tests.support.plans import ASYNC_TP, CLUSTER, USERBUFFERS, WORKLOAD, on, plan_file, told

BASES: Final[dict[str, dict[str, Any]]] = {
    "megatron": {"workload": WORKLOAD},
    "megatron-bridge": {"workload": WORKLOAD},
    "torchtitan": {"workload": on("torch")},
    "deepspeed": {
        "workload": replace(on("torch"), seq_length=2048), "model": MODELS["gpt3-2.7b"],
        "plan": SlicePlan(row_slices=2, order="inter", wgrad="eager"),
    },
}  # fmt: skip
"""A plan of tensor parallelism alone, in the kernels of each target."""
TWO: Final = ClusterSpec(tp=4, dp=2)
NOTHING: Final = tuple(
    f"{gemm}_{way}=none" for gemm in ("qkv", "proj", "fc1", "fc2") for way in ("fprop", "dgrad")
)


def exported(to: str, workload: dict[str, Any], **named: Any) -> ExportResult:
    base = BASES[to]
    return export_plan(
        plan_file(**{**base, **named, "workload": replace(base["workload"], **workload)}), to
    )


@pytest.mark.parametrize("to", BASES)
@pytest.mark.parametrize(
    "workload",
    [
        {"data_parallel": "fsdp"}, {"data_parallel": "distributed-optimizer"},
        {"overlap_grad_reduce": False}, {"overlap_param_gather": False}, {"overlap_p2p": True},
        {"pp_schedule": "zero-bubble"}, {"cp_comm": "a2a"},
    ],
    ids=str,
)  # fmt: skip
def test_what_replicas_or_stages_would_do_is_not_said_of_a_job_without(
    to: str, workload: dict[str, Any]
) -> None:
    assert exported(to, workload) == exported(to, {})


@pytest.mark.parametrize(
    ("to", "workload", "named", "words"),
    [
        ("megatron", {}, {"cluster": replace(CLUSTER, power_cap_w=500.0)}, ["limited to 500 W"]),
        ("megatron", {}, {"cluster": replace(CLUSTER, clock_mhz=1400)}, ["locked to 1400 MHz"]),
        ("megatron", {"tp_collectives": "multimem"}, {}, ["no multimem collectives"]),
        ("megatron", {"implementation": on("torch").implementation}, {}, ["kernels of torch"]),
        ("megatron", {}, {"plan": told(USERBUFFERS, *NOTHING)}, []),
        ("megatron", {}, {"plan": USERBUFFERS}, ["--to te-userbuffers"]),
        ("megatron-bridge", {}, {"plan": told(USERBUFFERS, *NOTHING)}, []),
        ("megatron-bridge", {}, {"plan": told(USERBUFFERS, "fc1_fprop=none")},
         ["ub_overlap_ag_fprop"]),
        ("megatron-bridge", {}, {"cluster": replace(CLUSTER, cuda_graph=True)}, ["one CUDA graph"]),
        ("megatron-bridge", {"implementation": on("torch").implementation}, {},
         ["kernels of torch"]),
        ("megatron-bridge",
         {"overlap_grad_reduce": False, "data_parallel": "distributed-optimizer"}, {"cluster": TWO},
         ["--overlap-param-gather is left out"]),
        ("torchtitan", {}, {"plan": told(ASYNC_TP, "fc1_fprop=none")}, ["which GEMMs overlap"]),
        ("torchtitan", {}, {"cluster": TWO}, []),
        ("torchtitan", {"data_parallel": "distributed-optimizer"}, {"cluster": TWO},
         ["no distributed optimizer"]),
        ("torchtitan", {"data_parallel": "fsdp"}, {"cluster": TWO}, []),
        ("torchtitan", {"data_parallel": "fsdp", "grad_dtype": "bf16"}, {"cluster": TWO},
         ["sums gradients in fp32"]),
        ("torchtitan", {}, {"cluster": ClusterSpec(tp=4, cp=2)}, ["shards parameters"]),
        ("torchtitan", {"data_parallel": "fsdp"}, {"cluster": ClusterSpec(tp=4, cp=2)}, []),
        ("torchtitan", {"dtype": "fp32"}, {}, []),
        ("torchtitan", {}, {"cluster": ClusterSpec(tp=1)}, []),
        ("torchtitan", {}, {"cluster": replace(CLUSTER, cuda_graph=True)}, ["CUDA graphs"]),
        ("torchtitan", {"tp_collectives": "multimem"}, {}, ["no multimem collectives"]),
        ("torchtitan", {"implementation": WORKLOAD.implementation}, {}, ["kernels of megatron-te"]),
        ("deepspeed", {}, {"cluster": TWO}, ["after the backward pass"]),
        ("deepspeed", {"overlap_grad_reduce": False}, {"cluster": TWO}, []),
        ("deepspeed", {}, {"cluster": replace(CLUSTER, cuda_graph=True)}, ["no CUDA graph"]),
        ("deepspeed", {"implementation": WORKLOAD.implementation}, {}, ["kernels of megatron-te"]),
    ],
)  # fmt: skip
def test_what_a_framework_cannot_express_is_one_note(
    to: str, workload: dict[str, Any], named: dict[str, Any], words: list[str]
) -> None:
    usual = exported(to, {}).notes
    added = [note for note in exported(to, workload, **named).notes if note not in usual]
    assert len(added) == len(words)
    assert all(word in note for word, note in zip(words, added, strict=True))
