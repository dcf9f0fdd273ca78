"""Fields that several requests share: the workload, the plan, the ranks.

``None`` means "not given": the value then comes from the plan file, if there is one, else from the
default that the help text names.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from domino_tune.requests.options import (
    Count,
    FileName,
    Request,
    Text,
    Texts,
    common,
    job,
    machine,
    slicing,
)
from simulator.dtypes import Dtype, Fp8Recipe, GradDtype, MomentsDtype
from simulator.implementation import KEYS
from simulator.modules import RECOMPUTE_MODULES
from simulator.ops import TpCollectives
from simulator.plan import (
    MAX_COL_SLICES,
    MAX_CTAS,
    MAX_ROW_SLICES,
    Order,
    SliceBalance,
    SliceDim,
    Strategy,
    WgradPlacement,
)
from simulator.specs import ContextComm, DataParallel, MoeDispatcher, PipelineSchedule, Recompute

NEEDED: Final = ("model", "profile", "tp", "seq_length", "micro_batch_size")
"""Fields of a workload that have no default; a plan file may give them."""
Backend = Literal["gloo", "nccl"]
ImplementationName = Literal["megatron-te", "megatron-2022", "torch", "domino-tune"]
RowSlices = Annotated[int, Field(ge=1, le=MAX_ROW_SLICES)]
ColSlices = Annotated[int, Field(ge=1, le=MAX_COL_SLICES)]
Ctas = Annotated[int, Field(ge=0, le=MAX_CTAS)]
FewLayers = Annotated[int, Field(ge=0, le=1000)]


class JobFields(Request):
    """The model, the machine, and how ranks divide the work, except the batch of one layout."""

    model: Annotated[FileName | None, common(
        "Preset (see `models`), a Hugging Face config.json, or a model file.",
        metavar="NAME|FILE")] = None  # fmt: skip
    profile: Annotated[FileName | None, common(
        "Profile of the machine: a name (see `profiles list`) or a file.",
        metavar="NAME|FILE")] = None  # fmt: skip
    tp: Annotated[Count | None, common("Tensor-parallel ranks.")] = None
    dp: Annotated[Count | None, common("Data-parallel replicas (default 1).")] = None
    pp: Annotated[Count | None, common("Pipeline stages (default 1).")] = None
    vpp: Annotated[Count | None, job(
        "Virtual pipeline stages of a rank, interleaved (default 1).")] = None  # fmt: skip
    pp_schedule: Annotated[PipelineSchedule | None, job(
        "Order of a pipeline's passes (default 1f1b; interleaved with --vpp; dualpipev: --vpp 2).",
        rare=True)] = None  # fmt: skip
    overlap_p2p: Annotated[bool | None, job(
        "Messages between stages run alongside compute (default: as Megatron's schedule has it).",
        rare=True)] = None  # fmt: skip
    cp: Annotated[Count | None, job(
        "Context-parallel ranks, which share each sequence (default 1).")] = None  # fmt: skip
    cp_comm: Annotated[ContextComm | None, job(
        "How context-parallel ranks exchange keys and values (default p2p, a ring).",
        rare=True)] = None  # fmt: skip
    ep: Annotated[Count | None, job(
        "Expert-parallel ranks, among which experts are divided (default 1).")] = None  # fmt: skip
    etp: Annotated[Count | None, job(
        "Ranks that share each expert, among tp × cp × dp (default tp).",
        rare=True)] = None  # fmt: skip
    moe_dispatcher: Annotated[MoeDispatcher | None, job(
        "How tokens come to the ranks of their experts (default alltoall).",
        rare=True)] = None  # fmt: skip
    moe_dispatcher_sms: Annotated[Ctas | None, job(
        "SMs that deepep and hybridep hold (default Megatron-LM's: 20 and 16).",
        rare=True)] = None  # fmt: skip
    moe_imbalance: Annotated[Text | None, job(
        "Tokens of the rank whose experts have the most, over the mean (default 1.0, forced "
        "balance).", metavar="FACTOR", rare=True)] = None  # fmt: skip
    moe_shared_expert_overlap: Annotated[bool | None, job(
        "The shared expert runs while tokens are on their way (default off).",
        rare=True)] = None  # fmt: skip
    nodes: Annotated[Count | None, machine(
        "Nodes of the ranks, in Megatron's order tp, cp, dp, pp (default: as few as possible)."
        )] = None  # fmt: skip
    seq_length: Annotated[Count | None, common("Tokens of one sequence.")] = None
    micro_batch_size: Annotated[Count | None, common(
        "Sequences of one micro-batch.")] = None  # fmt: skip
    dtype: Annotated[Dtype | None, job(
        "Type of activations and weights (default bf16).")] = None  # fmt: skip
    cuda_graph: Annotated[bool, machine(
        "Launches take no time, as under CUDA graphs.")] = False  # fmt: skip
    cuda_graph_scope: Annotated[Text | None, job(
        "Parts of layers that CUDA graphs replay: attn, moe_router, moe_preprocess (default none).",
        metavar="A,B", rare=True)] = None  # fmt: skip
    power_cap: Annotated[Text | None, machine(
        "Power limit that the GPUs are set to (default the profile's); it decides their clock.",
        metavar="WATTS")] = None  # fmt: skip
    clock_mhz: Annotated[Count | None, machine(
        "Clock that the GPUs are locked to; under the power limit it may be lower.",
        metavar="MHZ", rare=True)] = None  # fmt: skip
    gpu_hour: Annotated[Text | None, machine(
        "Price of a GPU for an hour, in any currency: answers then have costs.",
        metavar="PRICE")] = None  # fmt: skip
    run_tokens: Annotated[Text | None, machine(
        "Tokens of a whole run, like 15e12, whose cost is asked for with --gpu-hour.",
        metavar="TOKENS", rare=True)] = None  # fmt: skip
    memory_margin: Annotated[Text | None, machine(
        "Memory of each GPU to leave free, like 4GiB or 5% (default 0).",
        metavar="SIZE")] = None  # fmt: skip
    data_parallel: Annotated[DataParallel | None, job(
        "What replicas share (default distributed-optimizer; replicas where plans are measured)."
        )] = None  # fmt: skip
    overlap_grad_reduce: Annotated[bool | None, job(
        "Reduce gradients alongside backward, in buckets (default on).",
        rare=True)] = None  # fmt: skip
    overlap_param_gather: Annotated[bool | None, job(
        "Gather updated parameters alongside forward, in buckets (default on).",
        rare=True)] = None  # fmt: skip
    grad_dtype: Annotated[GradDtype | None, job(
        "Type of main gradients and of their sums (default fp32).", rare=True)] = None  # fmt: skip
    moments_dtype: Annotated[MomentsDtype | None, job(
        "Type of Adam's moments; below fp32 by Megatron's precision-aware optimizer (default "
        "fp32).", rare=True)] = None  # fmt: skip
    recompute: Annotated[Recompute | None, job(
        "What backward computes again instead of keeping it: each layer; the attention core, "
        "which saves nothing with flash attention; or per-op, every second matmul and what is "
        "cheap, as torchtitan has it (default none).")] = None  # fmt: skip
    recompute_modules: Annotated[Text | None, job(
        f"Modules that --recompute selective computes again: {', '.join(RECOMPUTE_MODULES)} "
        "(default core_attn).", metavar="A,B", rare=True)] = None  # fmt: skip
    recompute_layers: Annotated[Count | None, job(
        "Recompute only in this many of the first layers of each stage (default all).",
        rare=True)] = None  # fmt: skip
    fp8_recipe: Annotated[Fp8Recipe | None, job(
        "How linear layers are quantized: Megatron's --fp8-recipe, or --fp4-recipe for nvfp4 "
        "(default none: they multiply in --dtype).")] = None  # fmt: skip
    num_layers_at_start_in_bf16: Annotated[FewLayers | None, job(
        "First layers that are not quantized (default 0).", rare=True)] = None  # fmt: skip
    num_layers_at_end_in_bf16: Annotated[FewLayers | None, job(
        "Last layers that are not quantized (default 0).", rare=True)] = None  # fmt: skip
    fp8_param_gather: Annotated[bool | None, job(
        "Keep and gather the parameters of quantized layers in FP8 (default off).",
        rare=True)] = None  # fmt: skip
    implementation: Annotated[ImplementationName | None, job(
        "Whose kernels train (default megatron-te; domino-tune where the profile times only the "
        "kernels of this project's runtime).")] = None  # fmt: skip
    implementation_set: Annotated[Texts, job(
        f"Change one key of the implementation; may be repeated. Keys: {', '.join(KEYS)}.",
        metavar="KEY=VALUE", rare=True)] = ()  # fmt: skip
    tp_backward_overlap: Annotated[bool | None, job(
        "Without Domino, backward's gathers and sums overlap GEMMs (default by implementation).",
        rare=True)] = None  # fmt: skip
    tp_collectives: Annotated[TpCollectives | None, machine(
        "Kernels of tensor-parallel collectives inside a node (default nccl).",
        rare=True)] = None  # fmt: skip
    sequence_parallel: Annotated[bool | None, job(
        "Each rank holds 1/tp of the tokens between the blocks, as Megatron's flag does (default: "
        "where tp divides the sequences and the profile times gathers; `tune` tries both)."
        )] = None  # fmt: skip
    overrides: Annotated[Texts, job(
        "Override a field of the model, by its Hugging Face name; may be repeated.",
        metavar="FIELD=VALUE", flag="--set", rare=True)] = ()  # fmt: skip


class WorkloadFields(JobFields):
    """One layout: the model, the machine, the ranks and the batch."""

    grad_accumulation: Annotated[Count | None, common(
        "Micro-batches of one iteration (default 1).")] = None  # fmt: skip
    pp_layers: Annotated[Text | None, job(
        "Layers of each (virtual) stage, like 10,10,9,9 (default: equal).",
        metavar="N,N,…", rare=True)] = None  # fmt: skip


class CutFields(WorkloadFields):
    """How the layout is cut."""

    strategy: Annotated[Strategy | None, slicing("How to overlap (default domino).")] = None
    row_slices: Annotated[RowSlices | None, slicing(
        "Row slices of the micro-batch (default 2).")] = None  # fmt: skip
    slice_dim: Annotated[SliceDim | None, slicing(
        "What a row slice is: whole sequences (batch), or positions of all of them (sequence) "
        "(default batch; `tune` tries both where the micro-batch is one sequence)."
        )] = None  # fmt: skip
    slice_balance: Annotated[SliceBalance | None, slicing(
        "Slices of sequences: of equal work, of equal length, or with more work in the first ones "
        "(default balanced).", rare=True)] = None  # fmt: skip
    col_slices: Annotated[ColSlices | None, slicing(
        "Column slices of both blocks (default 1).")] = None  # fmt: skip
    attn_col_slices: Annotated[ColSlices | None, slicing(
        "Column slices of the attention block.", rare=True)] = None  # fmt: skip
    mlp_col_slices: Annotated[ColSlices | None, slicing(
        "Column slices of the MLP block.", rare=True)] = None  # fmt: skip
    attn_dgrad_slices: Annotated[ColSlices | None, slicing(
        "Pieces of the attention block's dgrad (default: its column slices).",
        rare=True)] = None  # fmt: skip
    mlp_dgrad_slices: Annotated[ColSlices | None, slicing(
        "Pieces of the MLP block's dgrad (default: its column slices).",
        rare=True)] = None  # fmt: skip
    order: Annotated[Order | None, slicing("Issue order (default greedy).")] = None
    wgrad: Annotated[WgradPlacement | None, slicing(
        "Placement of weight gradients (default fill for greedy, else eager).",
        rare=True)] = None  # fmt: skip
    merge_wgrad: Annotated[bool, slicing(
        "One weight-gradient GEMM over all row slices.", rare=True)] = False  # fmt: skip
    comm_ctas: Annotated[Ctas | None, slicing(
        "NCCL CTAs of tensor-parallel collectives (default: NCCL's choice).",
        rare=True)] = None  # fmt: skip
    tp_comm_overlap: Annotated[Texts, slicing(
        "How strategy userbuffers, async-tp or fused hides a GEMM's collective, like "
        "fc2_fprop=pipeline:8:16 (chunks, SMs) or proj_dgrad=none; may be repeated.",
        metavar="GEMM=METHOD", rare=True)] = ()  # fmt: skip


class PlanFields(CutFields):
    """The plan: from a plan file, or from the fields of a cut."""

    plan: Annotated[FileName | None, slicing(
        "Plan file of `tune --out`; it also gives the workload that no option gives.",
        metavar="FILE")] = None  # fmt: skip


class RanksFields(Request):
    """Real ranks: how many start here, and how they communicate."""

    backend: Annotated[Backend | None, machine(
        "Backend of collectives (default nccl where NVIDIA's driver is installed and no link is "
        "emulated, else gloo).")] = None  # fmt: skip
    nproc_per_node: Annotated[Count | None, machine(
        "Ranks to start on this machine (default all, or none under torchrun or Slurm)."
        )] = None  # fmt: skip
    emulate_link: Annotated[Text | None, machine(
        "Put the ranks on two emulated hosts with a link of this rate, like 1gbit (Linux, gloo).",
        metavar="RATE")] = None  # fmt: skip
