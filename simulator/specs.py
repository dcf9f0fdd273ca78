"""The model, the batch and the ranks of a training job: ModelSpec, Workload, ClusterSpec."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from simulator.dtypes import (
    DTYPE_BYTES,
    FP8_RECIPES,
    GRAD_DTYPES,
    MATH_OF,
    MOMENTS_DTYPES,
    Dtype,
    Fp8Recipe,
    GradDtype,
    MomentsDtype,
)
from simulator.errors import MOST, InputError, require_divisible, require_positive_int, unknown_name
from simulator.hashing import hashed_once
from simulator.implementation import DOMINO_TUNE, Implementation
from simulator.model_sizes import ModelSizes
from simulator.modules import (
    CORE_ALONE,
    GRAPH_SCOPES,
    RECOMPUTE_MODULES,
    GraphScope,
    Modules,
    check_recomputation,
)
from simulator.ops import TpCollectives

MAY_BE_0: Final = frozenset({
    "sliding_window", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank",
    "qk_rope_head_dim", "v_head_dim", "num_nextn_predict_layers",
})  # fmt: skip
"""Sizes of a model that are 0 where it has no such thing."""


@hashed_once
@dataclass(frozen=True, kw_only=True)
class ModelSpec(ModelSizes):
    """Shape of a decoder-only transformer; fields have their Hugging Face names.

    ``gated_mlp`` means gate and up projections (SwiGLU, GeGLU), so fc1 has twice the outputs.
    ``hidden_dropout`` > 0 adds one mask byte per element to bias + dropout + residual.
    ``attention_bias``: qkv has a bias, and proj, too, unless ``proj_bias`` is off.
    ``rope_scaling_factor`` above 1 stretches low rotary frequencies as Llama 3.1 does, by the three
    numbers behind it. ``qk_norm``: queries and keys are normalised per head. ``post_norm``: a norm
    behind each block, too, before the residual is added. ``sliding_window``: tokens that a token
    attends to; 0 means all. A ``…_logit_softcapping`` of 0 means none. Experts clamp both
    halves of fc1 at a ``swiglu_limit`` above 0.
    ``num_experts`` above 0: each layer but the ``first_k_dense_replace`` first ones has this many
    gated MLPs of ``moe_intermediate_size``, of which a token goes through ``num_experts_per_tok``
    and through the shared one, where ``shared_expert_intermediate_size`` is not 0.
    ``kv_lora_rank`` above 0: latent attention (arXiv 2405.04434); queries and keys then have
    ``head_dim`` elements, ``qk_rope_head_dim`` of them rotated, and values ``v_head_dim``;
    queries, too, come from a latent vector where ``q_lora_rank`` is not 0.
    ``num_nextn_predict_layers``: layers of multi-token prediction behind the last one.
    Raise InputError for values that no model can have.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: Literal["gelu", "silu", "relu"] = "gelu"
    gated_mlp: bool = False
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position_embedding: Literal["learned", "rope", "none"] = "learned"
    tie_word_embeddings: bool = True
    attention_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    rope_theta: float = 10000.0
    rope_scaling_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    qk_norm: bool = False
    post_norm: bool = False
    scaled_embeddings: bool = False
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    sliding_window: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    first_k_dense_replace: int = 0
    swiglu_limit: float = 0.0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_nextn_predict_layers: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not (field.name in MAY_BE_0 and value == 0):
                require_positive_int("model", field.name, value)
            finite = isinstance(value, int | float) and 0 <= value <= sys.float_info.max
            if field.type == "float" and not finite:
                raise InputError(f"model.{field.name} must be a finite number ≥ 0, got {value!r}.")
        for rate in (self.hidden_dropout, self.attention_dropout):
            if rate >= 1:
                raise InputError(f"A dropout rate must be in [0, 1), got {rate!r}.")
        require_divisible(
            "num_attention_heads", self.num_attention_heads,
            "num_key_value_heads", self.num_key_value_heads,
        )  # fmt: skip
        self._check_experts()
        self._check_latent_attention()


DataParallel = Literal["replicas", "distributed-optimizer", "fsdp"]
TP_COLLECTIVES: Final[tuple[TpCollectives, ...]] = get_args(TpCollectives)
Recompute = Literal["none", "selective", "per-op", "full"]
RECOMPUTE: Final[tuple[Recompute, ...]] = get_args(Recompute)
DATA_PARALLEL: Final[tuple[DataParallel, ...]] = ("replicas", "distributed-optimizer", "fsdp")
PipelineSchedule = Literal["1f1b", "gpipe", "zero-bubble", "dualpipev"]
PIPELINE_SCHEDULES: Final[tuple[PipelineSchedule, ...]] = get_args(PipelineSchedule)
WGRADS_APART: Final[tuple[PipelineSchedule, ...]] = ("zero-bubble", "dualpipev")
"""Schedules in which gradients of weights may be a pass of their own."""
ContextComm = Literal["p2p", "all_gather", "a2a"]
MoeDispatcher = Literal["allgather", "alltoall", "deepep", "hybridep"]
MOE_DISPATCHERS: Final[tuple[MoeDispatcher, ...]] = get_args(MoeDispatcher)
CP_COMM: Final[tuple[ContextComm, ...]] = get_args(ContextComm)


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Workload:
    """One optimizer step of one data-parallel replica.

    ``grad_accumulation`` micro-batches of ``micro_batch_size`` sequences of ``seq_length`` tokens.
    ``data_parallel``: what replicas share. ``replicas``: gradients are all-reduced.
    ``distributed-optimizer`` (Megatron-LM): optimizer state is sharded; gradients are
    reduce-scattered, parameters all-gathered, in buckets. ``fsdp`` (PyTorch's FSDP2): all is
    sharded, and gathered layer by layer. ``overlap_grad_reduce``, ``overlap_param_gather``: beside
    compute, not at the iteration's end. ``grad_dtype``: of main gradients and their sums.
    ``moments_dtype``: of Adam's moments; below fp32 it is Megatron-LM's precision-aware optimizer.
    ``recompute``: what backward computes again instead of keeping it: each layer's whole forward
    pass (``full``), modules of it (``selective``), or torchtitan's choice of single ops
    (``per-op``). ``recompute_modules``: which, where it is not the attention core alone.
    ``recompute_layers``: in this many of the first layers of each
    (virtual) stage; 0 means all.
    ``implementation``: which kernels do it.
    ``tp_collectives``: NCCL's, or multimem kernels inside a node.
    ``pp_schedule``: the order of a pipeline's forwards and backwards; ``1f1b`` with several virtual
    stages a rank is Megatron-LM's interleaved one, ``dualpipev`` DeepSeek's. ``pp_layers``: layers
    of each (virtual) stage, where they are not equal. ``overlap_p2p``: messages between stages run
    beside compute.
    ``cp_comm``: how ranks of a context-parallel group exchange keys and values.
    ``fp8_recipe``: the format in which the layers' linears multiply; attention, head and norms
    stay in ``dtype``. ``num_layers_at_start_in_bf16``, ``num_layers_at_end_in_bf16``: layers that
    are not quantized. ``fp8_param_gather``: parameters of quantized layers are kept, and gathered
    from replicas, in FP8.
    ``moe_dispatcher``: how tokens come to the ranks of their experts; ``moe_dispatcher_sms``: SMs
    that its kernels hold, 0 for Megatron-LM's default. ``moe_imbalance``: tokens of
    the rank with the most over the mean; 1 where routing is forced to balance.
    ``moe_shared_expert_overlap``: the shared expert runs while tokens are on their way.
    ``cuda_graph_scope``: parts of layers that CUDA graphs replay, by Megatron-LM's names.
    """

    seq_length: int
    micro_batch_size: int
    grad_accumulation: int = 1
    dtype: Dtype = "bf16"
    data_parallel: DataParallel = "replicas"
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    grad_dtype: GradDtype = "fp32"
    moments_dtype: MomentsDtype = "fp32"
    recompute: Recompute = "none"
    recompute_modules: Modules = ()
    recompute_layers: int = 0
    implementation: Implementation = DOMINO_TUNE
    tp_collectives: TpCollectives = "nccl"
    pp_schedule: PipelineSchedule = "1f1b"
    pp_layers: tuple[int, ...] = ()
    overlap_p2p: bool = False
    cp_comm: ContextComm = "p2p"
    fp8_recipe: Fp8Recipe = "none"
    num_layers_at_start_in_bf16: int = 0
    num_layers_at_end_in_bf16: int = 0
    fp8_param_gather: bool = False
    moe_dispatcher: MoeDispatcher = "alltoall"
    moe_dispatcher_sms: int = 0
    moe_imbalance: float = 1.0
    moe_shared_expert_overlap: bool = False
    cuda_graph_scope: tuple[GraphScope, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seq_length", "micro_batch_size", "grad_accumulation"):
            require_positive_int("workload", name, getattr(self, name))
        object.__setattr__(self, "pp_layers", tuple(self.pp_layers))  # JSON has lists
        for names, known_names, option in (
            ("cuda_graph_scope", GRAPH_SCOPES, "--cuda-graph-scope"),
            ("recompute_modules", RECOMPUTE_MODULES, "--recompute-modules"),
        ):
            object.__setattr__(self, names, tuple(getattr(self, names)))
            for name in getattr(self, names):
                if name not in known_names:
                    raise unknown_name(option, name, known_names)
        for name, known in (
            ("data_parallel", DATA_PARALLEL), ("grad_dtype", GRAD_DTYPES),
            ("moments_dtype", MOMENTS_DTYPES),
            ("recompute", RECOMPUTE), ("tp_collectives", TP_COLLECTIVES),
            ("pp_schedule", PIPELINE_SCHEDULES), ("cp_comm", CP_COMM),
            ("fp8_recipe", FP8_RECIPES), ("moe_dispatcher", MOE_DISPATCHERS),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise unknown_name(f"workload.{name}", str(getattr(self, name)), known)
        for name in ("recompute_layers", "moe_dispatcher_sms"):
            if getattr(self, name):
                require_positive_int("workload", name, getattr(self, name))
        check_recomputation(
            self.recompute, self.recompute_layers, self.recompute_modules, self.fp8_recipe
        )
        if self.dtype not in DTYPE_BYTES:
            raise InputError(
                f"workload.dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}."
            )
        if not 1 <= self.moe_imbalance <= MOST:
            raise InputError(
                "workload.moe_imbalance must be a number ≥ 1, the tokens of the rank with the most "
                f"over the mean; got {self.moe_imbalance!r}."
            )
        self._check_quantization()

    def _check_quantization(self) -> None:
        ends = self.num_layers_at_start_in_bf16, self.num_layers_at_end_in_bf16
        if min(ends) < 0:
            raise InputError(f"Layers in BF16 at the start and at the end are ≥ 0, got {ends}.")
        if self.fp8_recipe == "none":
            if any(ends) or self.fp8_param_gather:
                raise InputError(
                    "Layers in BF16 at the start or end, and --fp8-param-gather, need a recipe: "
                    "add --fp8-recipe, or leave them out."
                )
            return
        if self.dtype != "bf16":
            raise InputError(
                f"Quantized layers keep everything else in BF16, got --dtype {self.dtype}; use "
                "--dtype bf16."
            )
        if any(ends) and self.fp8_recipe == "delayed":
            raise InputError(
                "Delayed scaling quantizes all layers, as in Megatron-LM; use another recipe, or "
                "leave out the layers in BF16."
            )

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one activation element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def modules(self) -> Modules:
        """Modules that backward computes again."""
        if self.recompute != "selective":
            return ()
        return self.recompute_modules or CORE_ALONE

    @property
    def math(self) -> str:
        """In what matrices are multiplied: the dtype, or TF32."""
        return "tf32" if self.dtype == "fp32" and self.implementation.tf32 else self.dtype

    @property
    def flash_attention(self) -> bool:
        """Whether softmax(QKᵀ)V is one kernel. TransformerEngine has kernels for 16 bits alone
        (pytorch/attention/dot_product_attention/utils.py: get_attention_backend); PyTorch has one
        for fp32, too."""
        how = self.implementation
        return how.flash_attention and (self.dtype_bytes == 2 or how.has_fp32_attention)

    @property
    def merges_wgrads(self) -> bool:
        """Whether one GEMM may make a weight's gradient from all slices: not where each slice has
        scales of its own."""
        return self.fp8_recipe == "none"

    @property
    def linear_math(self) -> str:
        """In what the layers' linears multiply."""
        return MATH_OF.get(self.fp8_recipe, self.math)

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.seq_length * self.micro_batch_size


@hashed_once
@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Ranks, their nodes and NVLink domains. Ranks fill both in Megatron-LM's order: tp, cp, dp,
    pp, with ``ranks_per_node`` on each node.

    ``ranks_per_domain``: ranks that NVLink connects, those of several nodes in a rack (NVL72); 0: a
    node is a domain. A group is written as (domains, per_domain): the domains that it spans, which
    are nodes as a rule, and its ranks on each. Between domains it uses the network.
    ``vpp``: virtual pipeline stages of a rank.
    ``ep``: ranks among which experts are divided, ``etp``: ranks that share each of them (0: tp).
    They are those of a stage once more, in the order etp, ep, replicas of the experts.
    ``power_cap_w``, ``clock_mhz``: limits that the GPUs are set to; 0 leaves them as they are.
    """

    tp: int
    dp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    ranks_per_node: int = 8
    ranks_per_domain: int = 0
    cuda_graph: bool = False
    power_cap_w: float = 0.0
    clock_mhz: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "pp", "vpp", "cp", "ep", "ranks_per_node"):
            require_positive_int("cluster", name, getattr(self, name))
        for name in ("power_cap_w", "clock_mhz"):
            limit = getattr(self, name)
            if not 0 <= limit <= MOST:
                raise InputError(f"cluster.{name} must be from 0 to {MOST:g}, got {limit!r}.")
        if self.vpp > 1 and self.pp == 1:
            raise InputError(f"vpp = {self.vpp} needs a pipeline: give --pp 2 or more.")
        if self.ranks_per_domain and self.ranks_per_domain % self.ranks_per_node:
            raise InputError(
                f"ranks_per_domain must be 0 or a multiple of ranks_per_node = "
                f"{self.ranks_per_node}, got {self.ranks_per_domain}."
            )
        self._check_experts()
        if self.world_size > self.domain:
            self._check_groups()
        elif self.tp > self.domain:
            require_divisible("tp", self.tp, self._ranks_per, self.domain)

    @property
    def domain(self) -> int:
        """Ranks that NVLink connects."""
        return self.ranks_per_domain or self.ranks_per_node

    @property
    def _ranks_per(self) -> str:
        return "ranks per NVLink domain" if self.ranks_per_domain else "ranks per node"

    def _check_experts(self) -> None:
        if self.etp:
            require_positive_int("cluster", "etp", self.etp)
        if self.ep == 1 and self.expert_tp == self.tp:
            return
        ranks, product = self.stage_ranks, self.expert_tp * self.ep
        if ranks % product:
            raise InputError(
                f"Experts are divided among the ranks of a stage: etp {self.expert_tp} × ep "
                f"{self.ep} = {product} must divide tp × cp × dp = {ranks}; use "
                f"{self._fewer_experts(ranks)}."
            )
        if product > self.domain:
            require_divisible("etp × ep", product, self._ranks_per, self.domain)
        elif ranks > self.domain:
            require_divisible(self._ranks_per, self.domain, "etp × ep", product)

    def _fewer_experts(self, ranks: int) -> str:
        """Return how they would be divided; ``ep`` has to divide the number of experts, too."""
        fewer = f"an --ep that divides {ranks // self.expert_tp} and the number of experts"
        if ranks % self.ep == 0:
            most = ranks // self.ep
            other = f", or {fewer}" if ranks % self.expert_tp == 0 else ""
            return f"--set etp=1{f' or another divisor of {most}' * (most > 1)}{other}"
        if ranks % self.expert_tp == 0:
            return fewer
        return (
            f"an etp and an --ep that divides the number of experts, whose product divides {ranks}"
        )

    def _check_groups(self) -> None:
        """Raise InputError unless each group fills a part of a domain, or whole domains."""
        domain, size, name = self.domain, 1, ""
        require_divisible(self.levels, self.world_size, self._ranks_per, domain)
        for level in ("tp", "cp", "dp"):
            ranks = getattr(self, level)
            size, name = size * ranks, f"{name} × {level}" if name else level
            if ranks > 1 and size <= domain:
                require_divisible(self._ranks_per, domain, name, size)
            elif ranks > 1:
                require_divisible(name, size, self._ranks_per, domain)

    @property
    def levels(self) -> str:
        """Return the sizes as ``tp 8 × dp 2 × pp 4``; of cp and pp only where they divide."""
        sizes = {name: getattr(self, name) for name in ("tp", "cp", "dp", "pp")}
        return " × ".join(
            f"{name} {size}" for name, size in sizes.items() if name in ("tp", "dp") or size > 1
        )

    @property
    def world_size(self) -> int:
        """Number of ranks: tp × cp × dp × pp."""
        return self.stage_ranks * self.pp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage: tp × cp × dp."""
        return self.tp * self.cp * self.dp

    @property
    def nodes(self) -> int:
        """Number of nodes in use."""
        return math.ceil(self.world_size / self.ranks_per_node)

    @property
    def domains(self) -> int:
        """Number of NVLink domains in use."""
        return math.ceil(self.world_size / self.domain)

    @property
    def tp_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of one tensor-parallel group."""
        return self._group(self.tp, 1)

    @property
    def world_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of all ranks."""
        return self.domains, self.world_size // self.domains

    @property
    def cp_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of one context-parallel group: every ``tp``-th rank."""
        return self._group(self.cp, self.tp)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters: dp × cp."""
        return self.dp * self.cp

    @property
    def dp_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of the ranks that hold the same parameters."""
        return self._group(self.replicas, self.tp)

    @property
    def expert_tp(self) -> int:
        """Ranks that share each expert."""
        return self.etp or self.tp

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return self.stage_ranks // (self.expert_tp * self.ep)

    @property
    def ep_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of the ranks among which experts are divided."""
        return self._group(self.ep, self.expert_tp)

    @property
    def expert_tp_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of the ranks that share each expert."""
        return self._group(self.expert_tp, 1)

    @property
    def expert_world_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of the ranks that together have all experts once."""
        return self._group(self.expert_tp * self.ep, 1)

    @property
    def expert_dp_group(self) -> tuple[int, int]:
        """(domains, ranks on each) of the ranks that hold the same experts."""
        return self._group(self.expert_replicas, self.expert_tp * self.ep)

    def p2p_group(self, stage: int) -> tuple[int, int]:
        """Return (domains, ranks on each) of a rank of ``stage`` and its partner in the next stage;
        the last stage's is in the first."""
        domain, ranks = self.domain, self.stage_ranks
        last = stage == self.pp - 1
        crosses = self.domains > 1 if last else ranks >= domain or (stage + 1) * ranks % domain == 0
        return (2, 1) if crosses else (1, 2)

    def _group(self, ranks: int, stride: int) -> tuple[int, int]:
        per_domain = min(ranks, max(1, self.domain // stride))
        return ranks // per_domain, per_domain
