"""Notes on what the numbers of a job rest on, and on what its framework would refuse."""

from __future__ import annotations

from typing import Final

from simulator.profile import Profile
from simulator.specs import ClusterSpec, Workload


def job_notes(
    workload: Workload, cluster: ClusterSpec, profile: Profile, sequence_parallel: bool | None
) -> list[str]:
    """Return notes on what the numbers of a job's math rest on."""
    return [
        *_math_notes(workload, profile), *_attention_notes(workload),
        *_quantization_notes(workload), *_row_notes(workload, cluster, sequence_parallel),
    ]  # fmt: skip


ROWS: Final = {"mxfp8": 32, "nvfp4": 16}
"""Recipe -> by what the rows of a quantized operand divide in TransformerEngine, if not by 8
(pytorch/utils.py: assert_dim_for_fp8_exec; tensor/mxfp8_tensor.py: MXFP8Quantizer)."""


def _row_notes(
    workload: Workload, cluster: ClusterSpec, sequence_parallel: bool | None
) -> list[str]:
    """Return a note where a rank has a number of tokens that TransformerEngine refuses."""
    if workload.fp8_recipe == "none" or not workload.implementation.name.startswith("megatron"):
        return []
    length = workload.seq_length // cluster.cp
    shards = sequence_parallel is not False and length % cluster.tp == 0
    rows = length * workload.micro_batch_size // (cluster.tp if shards else 1)
    unit = ROWS.get(workload.fp8_recipe, 8)
    if rows % unit == 0:
        return []
    how = "with" if shards else "without"
    return [
        f"A rank has {rows:,} tokens {how} sequence parallelism, which do not divide by {unit} as "
        f"TransformerEngine wants it for {workload.fp8_recipe}: it would refuse this job."
    ]


def _attention_notes(workload: Workload) -> list[str]:
    """Return a note on attention that is not one kernel because of its dtype."""
    how = workload.implementation
    if workload.flash_attention or not how.flash_attention:
        return []
    return [
        f"Attention in {workload.dtype} keeps its scores in memory with {how.name}: its attention "
        "in one kernel is of bf16 and fp16 alone."
    ]


def _quantization_notes(workload: Workload) -> list[str]:
    """Return a note on what a recipe's numbers rest on."""
    if workload.fp8_recipe == "none":
        return []
    return [
        f"Layers in {workload.fp8_recipe}: products of backward are taken for forward ones of "
        "their shape, copies across for casts by the byte, and power for BF16's; all assumed."
    ]


def _math_notes(workload: Workload, profile: Profile) -> list[str]:
    """Return a note on which units multiply fp32 on a GPU, and how their rate is known."""
    machine, math = profile.machine, workload.math
    if workload.dtype != "fp32" or machine.backend != "nccl":
        return []
    units = "tensor cores multiply fp32 in TF32" if math == "tf32" else "CUDA cores multiply fp32"
    other = str(math != "tf32").lower()
    timed = profile.gemm is not None and any(row.dtype == math for row in profile.gemm.rows)
    known = "timed" if timed else "those of bf16 by the ratio of the peaks, which is assumed"
    return [
        f"With {workload.implementation.label} {units} ({machine.peaks[math]:,.4g} TFLOP/s); rates "
        f"are {known}. For the other way set tf32={other} of the implementation."
    ]
