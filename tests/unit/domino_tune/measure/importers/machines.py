"""Machines that imported rows are compared with."""

from __future__ import annotations

from simulator.profile import Machine

H100 = Machine(
    gpu="H100 SXM 80 GB", gpus_per_node=8, gpu_memory_gib=80.0, sm_count=132,
    peak_tflops={"bf16": 989.4, "fp16": 989.4, "fp32": 66.9}, memory_bandwidth_gb_s=3350.0,
    backend="nccl", l2_mb=50.0,
)  # fmt: skip
LAPTOP = Machine(
    gpu="CPU", gpus_per_node=2, gpu_memory_gib=8.0, sm_count=2, peak_tflops={"fp32": 0.05},
    memory_bandwidth_gb_s=12.0, backend="gloo",
)  # fmt: skip
