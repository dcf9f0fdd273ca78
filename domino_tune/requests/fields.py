"""Fields that several requests share: the workload, the plan, the ranks.

``None`` means "not given": the value then comes from the plan file, if there is one, else from the
default that the help text names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domino_tune.requests.options import check_options, option
from simulator.implementation import KEYS, NAMES
from simulator.plan import (
    MAX_COL_SLICES,
    MAX_CTAS,
    MAX_ROW_SLICES,
    ORDERS,
    STRATEGIES,
    WGRAD_PLACEMENTS,
)
from simulator.slicing import SLICE_BALANCES, SLICE_DIMS
from simulator.specs import (
    CP_COMM,
    DATA_PARALLEL,
    DTYPE_BYTES,
    FP8_RECIPES,
    GRAD_DTYPES,
    PIPELINE_SCHEDULES,
    RECOMPUTE,
    TP_COLLECTIVES,
)

BACKENDS = ("gloo", "nccl")
NEEDED: Final = ("model", "profile", "tp", "seq_length", "micro_batch_size")
"""Fields of a workload that have no default; a plan file may give them."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Base of all requests: checks that each field's option allows its value."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class WorkloadFields(Request):
    """The model, the machine, the ranks and the batch."""

    model: str | None = option(
        "Preset (see `models`), a Hugging Face config.json, or a model file.",
        flag="--model", metavar="NAME|FILE", default=None,
    )  # fmt: skip
    profile: str | None = option(
        "Profile of the machine: a name (see `profiles list`) or a file.",
        flag="--profile", metavar="NAME|FILE", default=None,
    )  # fmt: skip
    tp: int | None = option(
        "Tensor-parallel ranks.", flag="--tp", metavar="N", default=None, minimum=1
    )
    dp: int | None = option(
        "Data-parallel replicas (default 1).", flag="--dp", metavar="N", default=None, minimum=1
    )
    pp: int | None = option(
        "Pipeline stages (default 1).", flag="--pp", metavar="N", default=None, minimum=1
    )
    vpp: int | None = option(
        "Virtual pipeline stages of a rank, interleaved (default 1).",
        flag="--vpp", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    pp_schedule: str | None = option(
        "Order of a pipeline's passes (default 1f1b; interleaved with --vpp).",
        flag="--pp-schedule", choices=PIPELINE_SCHEDULES, default=None,
    )  # fmt: skip
    pp_layers: str | None = option(
        "Layers of each (virtual) stage, like 10,10,9,9 (default: equal).",
        flag="--pp-layers", metavar="N,N,…", default=None,
    )  # fmt: skip
    overlap_p2p: bool | None = option(
        "Messages between stages run alongside compute (default: as Megatron's schedule has it).",
        flag="--overlap-p2p", default=None,
    )  # fmt: skip
    cp: int | None = option(
        "Context-parallel ranks, which share each sequence (default 1).",
        flag="--cp", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    cp_comm: str | None = option(
        "How context-parallel ranks exchange keys and values (default p2p, a ring).",
        flag="--cp-comm", choices=CP_COMM, default=None,
    )  # fmt: skip
    nodes: int | None = option(
        "Nodes of the ranks, in Megatron's order tp, cp, dp, pp (default: as few as possible).",
        flag="--nodes", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    seq_length: int | None = option(
        "Tokens of one sequence.", flag="--seq-length", metavar="N", default=None, minimum=1
    )
    micro_batch_size: int | None = option(
        "Sequences of one micro-batch.",
        flag="--micro-batch-size", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    grad_accumulation: int | None = option(
        "Micro-batches of one iteration (default 1).",
        flag="--grad-accumulation", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    dtype: str | None = option(
        "Type of activations and weights (default bf16).",
        flag="--dtype", choices=tuple(DTYPE_BYTES), default=None,
    )  # fmt: skip
    cuda_graph: bool = option(
        "Launches take no time, as under CUDA graphs.", flag="--cuda-graph", default=False
    )
    power_cap: str | None = option(
        "Power limit that the GPUs are set to (default the profile's); it decides their clock.",
        flag="--power-cap", metavar="WATTS", default=None,
    )  # fmt: skip
    clock_mhz: int | None = option(
        "Clock that the GPUs are locked to; under the power limit it may be lower.",
        flag="--clock-mhz", metavar="MHZ", default=None, minimum=1,
    )  # fmt: skip
    memory_margin: str | None = option(
        "Memory of each GPU to leave free, like 4GiB or 5% (default 0).",
        flag="--memory-margin", metavar="SIZE", default=None,
    )  # fmt: skip
    data_parallel: str | None = option(
        "What replicas share (default distributed-optimizer; replicas with objective measure).",
        flag="--data-parallel", choices=DATA_PARALLEL, default=None,
    )  # fmt: skip
    overlap_grad_reduce: bool | None = option(
        "Reduce gradients alongside backward, in buckets (default on).",
        flag="--overlap-grad-reduce", default=None,
    )  # fmt: skip
    overlap_param_gather: bool | None = option(
        "Gather updated parameters alongside forward, in buckets (default on).",
        flag="--overlap-param-gather", default=None,
    )  # fmt: skip
    grad_dtype: str | None = option(
        "Type of main gradients and of their sums (default fp32).",
        flag="--grad-dtype", choices=GRAD_DTYPES, default=None,
    )  # fmt: skip
    recompute: str | None = option(
        "What backward computes again instead of keeping it: each layer; the attention core, "
        "which saves nothing with flash attention; or per-op, every second matmul and what is "
        "cheap, as torchtitan has it (default none).",
        flag="--recompute", choices=RECOMPUTE, default=None,
    )  # fmt: skip
    recompute_layers: int | None = option(
        "Recompute only in this many of the first layers (default all).",
        flag="--recompute-layers", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    fp8_recipe: str | None = option(
        "How linear layers are quantized: Megatron's --fp8-recipe, or --fp4-recipe for nvfp4 "
        "(default none: they multiply in --dtype).",
        flag="--fp8-recipe", choices=FP8_RECIPES, default=None,
    )  # fmt: skip
    num_layers_at_start_in_bf16: int | None = option(
        "First layers that are not quantized (default 0).",
        flag="--num-layers-at-start-in-bf16", metavar="N", default=None, minimum=0,
        maximum=1000,
    )  # fmt: skip
    num_layers_at_end_in_bf16: int | None = option(
        "Last layers that are not quantized (default 0).",
        flag="--num-layers-at-end-in-bf16", metavar="N", default=None, minimum=0,
        maximum=1000,
    )  # fmt: skip
    fp8_param_gather: bool | None = option(
        "Keep and gather the parameters of quantized layers in FP8 (default off).",
        flag="--fp8-param-gather", default=None,
    )  # fmt: skip
    implementation: str | None = option(
        "Whose kernels train (default megatron-te; domino-tune where the profile times only the "
        "kernels of this project's runtime).",
        flag="--implementation", choices=NAMES, default=None,
    )  # fmt: skip
    implementation_set: tuple[str, ...] = option(
        f"Change one key of the implementation; may be repeated. Keys: {', '.join(KEYS)}.",
        flag="--implementation-set", metavar="KEY=VALUE", default=(),
    )  # fmt: skip
    tp_backward_overlap: bool | None = option(
        "Without Domino, backward's gathers and sums overlap GEMMs (default by implementation).",
        flag="--tp-backward-overlap", default=None,
    )  # fmt: skip
    tp_collectives: str | None = option(
        "Kernels of tensor-parallel collectives inside a node (default nccl).",
        flag="--tp-collectives", choices=TP_COLLECTIVES, default=None,
    )  # fmt: skip
    sequence_parallel: bool | None = option(
        "Each rank holds 1/tp of the tokens between the blocks, as Megatron's flag does (default: "
        "where tp divides the sequences and the profile times gathers; `tune` tries both).",
        flag="--sequence-parallel", default=None,
    )  # fmt: skip
    overrides: tuple[str, ...] = option(
        "Override a field of the model, by its Hugging Face name; may be repeated.",
        flag="--set", metavar="FIELD=VALUE", default=(),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanFields(WorkloadFields):
    """The plan: from a plan file, or from these fields."""

    plan: str | None = option(
        "Plan file of `tune --out`; it also gives the workload that no option gives.",
        flag="--plan", metavar="FILE", default=None,
    )  # fmt: skip
    strategy: str | None = option(
        "How to overlap (default domino).", flag="--strategy", choices=STRATEGIES, default=None
    )
    row_slices: int | None = option(
        "Row slices of the micro-batch (default 2).",
        flag="--row-slices", metavar="N", default=None, minimum=1, maximum=MAX_ROW_SLICES,
    )  # fmt: skip
    slice_dim: str | None = option(
        "What a row slice is: whole sequences (batch), or positions of all of them (sequence) "
        "(default batch; `tune` tries both where the micro-batch is one sequence).",
        flag="--slice-dim", choices=SLICE_DIMS, default=None,
    )  # fmt: skip
    slice_balance: str | None = option(
        "Slices of sequences: of equal work, of equal length, or with more work in the first ones "
        "(default balanced).",
        flag="--slice-balance", choices=SLICE_BALANCES, default=None,
    )  # fmt: skip
    col_slices: int | None = option(
        "Column slices of both blocks (default 1).",
        flag="--col-slices", metavar="N", default=None, minimum=1, maximum=MAX_COL_SLICES,
    )  # fmt: skip
    attn_col_slices: int | None = option(
        "Column slices of the attention block.",
        flag="--attn-col-slices", metavar="N", default=None, minimum=1, maximum=MAX_COL_SLICES,
    )  # fmt: skip
    mlp_col_slices: int | None = option(
        "Column slices of the MLP block.",
        flag="--mlp-col-slices", metavar="N", default=None, minimum=1, maximum=MAX_COL_SLICES,
    )  # fmt: skip
    attn_dgrad_slices: int | None = option(
        "Pieces of the attention block's dgrad (default: its column slices).",
        flag="--attn-dgrad-slices", metavar="N", default=None, minimum=1, maximum=MAX_COL_SLICES,
    )  # fmt: skip
    mlp_dgrad_slices: int | None = option(
        "Pieces of the MLP block's dgrad (default: its column slices).",
        flag="--mlp-dgrad-slices", metavar="N", default=None, minimum=1, maximum=MAX_COL_SLICES,
    )  # fmt: skip
    order: str | None = option(
        "Issue order (default greedy).", flag="--order", choices=ORDERS, default=None
    )
    wgrad: str | None = option(
        "Placement of weight gradients (default fill for greedy, else eager).",
        flag="--wgrad", choices=WGRAD_PLACEMENTS, default=None,
    )  # fmt: skip
    merge_wgrad: bool = option(
        "One weight-gradient GEMM over all row slices.", flag="--merge-wgrad", default=False
    )
    comm_ctas: int | None = option(
        "NCCL CTAs of tensor-parallel collectives (default: NCCL's choice).",
        flag="--comm-ctas", metavar="N", default=None, minimum=0, maximum=MAX_CTAS,
    )  # fmt: skip
    tp_comm_overlap: tuple[str, ...] = option(
        "How strategy userbuffers, async-tp or fused hides a GEMM's collective, like "
        "fc2_fprop=pipeline:8:16 (chunks, SMs) or proj_dgrad=none; may be repeated.",
        flag="--tp-comm-overlap", metavar="GEMM=METHOD", default=(),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RanksFields(Request):
    """Real ranks: how many start here, and how they communicate."""

    backend: str | None = option(
        "Backend of collectives (default nccl where NVIDIA's driver is installed and no link is "
        "emulated, else gloo).",
        flag="--backend", choices=BACKENDS, default=None,
    )  # fmt: skip
    nproc_per_node: int | None = option(
        "Ranks to start on this machine (default all, or none under torchrun or Slurm).",
        flag="--nproc-per-node", metavar="N", default=None, minimum=1,
    )  # fmt: skip
    emulate_link: str | None = option(
        "Put the ranks on two emulated hosts with a link of this rate, like 1gbit (Linux, gloo).",
        flag="--emulate-link", metavar="RATE", default=None,
    )  # fmt: skip
