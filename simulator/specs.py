"""The model, the batch and the ranks of a training job: ModelSpec, Workload, ClusterSpec."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from simulator.errors import InputError, unknown_name
from simulator.implementation import DOMINO_TUNE, Implementation
from simulator.ops import TpCollectives

Dtype = Literal["bf16", "fp16", "fp32", "fp64"]
DTYPE_BYTES: Final[dict[str, int]] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}

EXTRAS: Final = (
    "qk_norm", "post_norm", "scaled_embeddings", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip
"""Fields of what GPT and Llama do not have."""
MOST: Final = 10**12  # far above any real size, but products of sizes stay manageable


def require_positive_int(owner: str, name: str, value: object) -> None:
    """Raise InputError unless ``value`` is an int from 1 to MOST (bool is not an int here)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = "less" if isinstance(value, int) and value < -MOST else repr(value)
        raise InputError(f"{owner}.{name} must be a whole number ≥ 1, got {shown}.")
    if value > MOST:
        raise InputError(f"{owner}.{name} must be at most {MOST}, got more.")


def require_divisible(what: str, value: int, by_what: str, by: int) -> None:
    """Raise InputError, with the nearest multiples, unless ``by`` divides ``value``."""
    if value % by:
        below, above = value // by * by, (value // by + 1) * by
        nearest = f"{below} or {above}" if below else str(above)
        raise InputError(
            f"{what} = {value} is not divisible by {by_what} = {by}; nearest multiples: {nearest}."
        )


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder-only transformer; fields have their Hugging Face names.

    ``gated_mlp`` means gate and up projections (SwiGLU, GeGLU), so fc1 has twice the outputs.
    ``hidden_dropout`` > 0 adds one mask byte per element to bias + dropout + residual.
    ``qk_norm``: queries and keys are normalised per head. ``post_norm``: a norm behind each block,
    too, before the residual is added. ``sliding_window``: tokens that a token attends to; 0 means
    all. A ``…_logit_softcapping`` of 0 means none.
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
    mlp_bias: bool = True
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qk_norm: bool = False
    post_norm: bool = False
    scaled_embeddings: bool = False
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    sliding_window: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not (field.name == "sliding_window" and value == 0):
                require_positive_int("model", field.name, value)
            if field.type == "float" and not (
                isinstance(value, int | float) and 0 <= value <= sys.float_info.max
            ):
                raise InputError(f"model.{field.name} must be a finite number ≥ 0, got {value!r}.")
        for rate in (self.hidden_dropout, self.attention_dropout):
            if not 0 <= rate < 1:
                raise InputError(f"A dropout rate must be in [0, 1), got {rate!r}.")
        require_divisible(
            "num_attention_heads", self.num_attention_heads,
            "num_key_value_heads", self.num_key_value_heads,
        )  # fmt: skip

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the EXTRAS that this model has."""
        return tuple(name for name in EXTRAS if getattr(self, name))

    @property
    def qkv_size(self) -> int:
        """Outputs of the fused qkv projection, over all ranks."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def attention_size(self) -> int:
        """Inputs of the attention output projection, over all ranks."""
        return self.num_attention_heads * self.head_dim

    @property
    def fc1_size(self) -> int:
        """Outputs of the first MLP projection: twice the ffn size when gated."""
        return self.intermediate_size * (2 if self.gated_mlp else 1)

    @property
    def norm_vectors(self) -> int:
        """Parameters of a norm per element: a scale, and a LayerNorm's shift."""
        return 2 if self.norm == "layernorm" else 1

    @property
    def block_norm_parameters(self) -> int:
        """Parameters of one layer's norms before its blocks, and behind them where it has such."""
        return (4 if self.post_norm else 2) * self.hidden_size * self.norm_vectors

    @property
    def qk_norm_parameters(self) -> int:
        """Parameters of one layer's norms of queries and of keys, which all heads share."""
        return 2 * self.head_dim * self.norm_vectors * self.qk_norm

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, over all ranks."""
        h = self.hidden_size
        norms = self.block_norm_parameters + self.qk_norm_parameters
        attention = h * self.qkv_size + self.attention_size * h
        mlp = h * self.fc1_size + self.intermediate_size * h
        bias = (self.qkv_size + h) * self.attention_bias + (self.fc1_size + h) * self.mlp_bias
        return attention + mlp + bias + norms

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        h = self.hidden_size
        tables = self.vocab_size * h * (1 if self.tie_word_embeddings else 2)
        positions = self.max_position_embeddings * h * (self.position_embedding == "learned")
        final_norm = h * self.norm_vectors
        return self.num_hidden_layers * self.layer_parameters + tables + positions + final_norm


DataParallel = Literal["replicas", "distributed-optimizer", "fsdp"]
GradDtype = Literal["fp32", "bf16"]
TP_COLLECTIVES: Final[tuple[TpCollectives, ...]] = get_args(TpCollectives)
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
DATA_PARALLEL: Final[tuple[DataParallel, ...]] = ("replicas", "distributed-optimizer", "fsdp")
GRAD_DTYPES: Final[tuple[GradDtype, ...]] = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One optimizer step of one data-parallel replica.

    ``grad_accumulation`` micro-batches of ``micro_batch_size`` sequences of ``seq_length`` tokens.
    ``data_parallel``: what replicas share. ``replicas``: gradients are all-reduced.
    ``distributed-optimizer`` (Megatron-LM): optimizer state is sharded; gradients are
    reduce-scattered, parameters all-gathered, in buckets. ``fsdp`` (PyTorch's FSDP2): all is
    sharded, and gathered layer by layer. ``overlap_grad_reduce``, ``overlap_param_gather``: beside
    compute, not at the iteration's end. ``grad_dtype``: of main gradients and their sums.
    ``recompute``: what backward computes again instead of keeping it: each layer's whole forward
    pass (``full``), or the attention core (``selective``). ``recompute_layers``: in so many of the
    first layers; 0 means all. ``implementation``: which kernels do it.
    ``tp_collectives``: NCCL's, or multimem kernels inside a node.
    """

    seq_length: int
    micro_batch_size: int
    grad_accumulation: int = 1
    dtype: Dtype = "bf16"
    data_parallel: DataParallel = "replicas"
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    grad_dtype: GradDtype = "fp32"
    recompute: Recompute = "none"
    recompute_layers: int = 0
    implementation: Implementation = DOMINO_TUNE
    tp_collectives: TpCollectives = "nccl"

    def __post_init__(self) -> None:
        for name in ("seq_length", "micro_batch_size", "grad_accumulation"):
            require_positive_int("workload", name, getattr(self, name))
        for name, known in (
            ("data_parallel", DATA_PARALLEL), ("grad_dtype", GRAD_DTYPES),
            ("recompute", RECOMPUTE), ("tp_collectives", TP_COLLECTIVES),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise unknown_name(f"workload.{name}", str(getattr(self, name)), known)
        if self.recompute_layers:
            require_positive_int("workload", "recompute_layers", self.recompute_layers)
            if self.recompute == "none":
                raise InputError(
                    "--recompute-layers needs --recompute full or selective: add one, or leave "
                    "it out."
                )
        if self.dtype not in DTYPE_BYTES:
            raise InputError(
                f"workload.dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}."
            )

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one activation element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.seq_length * self.micro_batch_size


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Ranks and their nodes. Ranks fill nodes TP-first, ``ranks_per_node`` on each node.

    A group is written as (nodes, per_node): the nodes that it spans and its ranks on each.
    """

    tp: int
    dp: int = 1
    ranks_per_node: int = 8
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "ranks_per_node"):
            require_positive_int("cluster", name, getattr(self, name))
        if self.world_size > self.ranks_per_node:
            require_divisible("tp × dp", self.world_size, "ranks per node", self.ranks_per_node)
        if self.tp <= self.ranks_per_node:
            if self.world_size > self.ranks_per_node:
                require_divisible("ranks per node", self.ranks_per_node, "tp", self.tp)
        else:
            require_divisible("tp", self.tp, "ranks per node", self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Number of ranks: tp × dp."""
        return self.tp * self.dp

    @property
    def nodes(self) -> int:
        """Number of nodes in use."""
        return math.ceil(self.world_size / self.ranks_per_node)

    @property
    def tp_group(self) -> tuple[int, int]:
        """(nodes, ranks per node) of one tensor-parallel group."""
        per_node = min(self.tp, self.ranks_per_node)
        return self.tp // per_node, per_node

    @property
    def world_group(self) -> tuple[int, int]:
        """(nodes, ranks per node) of all ranks."""
        return self.nodes, self.world_size // self.nodes

    @property
    def dp_group(self) -> tuple[int, int]:
        """(nodes, ranks per node) of one data-parallel group: every ``tp``-th rank."""
        per_node = min(self.dp, max(1, self.ranks_per_node // self.tp))
        return self.dp // per_node, per_node


def _nearest_tp(model: ModelSpec, cluster: ClusterSpec) -> list[int]:
    """Return the tp that work, next to the cluster's, and fill part of a node or whole nodes."""
    per_node, kv_heads = cluster.ranks_per_node, model.num_key_value_heads
    common = math.gcd(model.num_attention_heads, model.intermediate_size)
    whole = (n for n in range(1, common + 1) if n <= per_node or n % per_node == 0)
    works = [n for n in whole if common % n == 0 and _shares_kv_heads(kv_heads, n)]
    return [
        *[n for n in works if n < cluster.tp][-1:],
        *[n for n in works if n > cluster.tp][:1],
    ]


def _shares_kv_heads(kv_heads: int, tp: int) -> bool:
    """Return whether each of ``tp`` ranks gets whole kv heads, or several ranks the same one."""
    return kv_heads % tp == 0 or tp % kv_heads == 0


def _heads_hint(model: ModelSpec, tp: int) -> str:
    """Return a hint with head counts that shard, or "" where the heads are not all of the problem.

    Where kv heads are equal to heads and tp divides the ffn, it is the heads that do not shard.
    """
    hidden = model.hidden_size
    if model.num_key_value_heads != model.num_attention_heads or model.intermediate_size % tp:
        return ""
    works = [n for n in range(tp, hidden + 1, tp) if hidden % n == 0]
    below = [n for n in works if n < model.num_attention_heads][-1:]
    above = [n for n in works if n > model.num_attention_heads][:1]
    options = " or ".join(f"--set num_attention_heads={n}" for n in below + above)
    return f" Or try {options}." if options else ""


def check_shardable(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless the model shards over tp ranks, and its sequences are not too long.

    tp divides heads and ffn. It divides the kv heads, too, or is a multiple of them: then several
    ranks hold the same kv head. The vocabulary needs no check: it is padded to a multiple of
    128 × tp, as in Megatron-LM.
    """
    tp, kv_heads = cluster.tp, model.num_key_value_heads
    for name in ("num_attention_heads", "intermediate_size"):
        size = getattr(model, name)
        if size % tp:
            fix = _tp_hint(model, cluster)
            if name == "intermediate_size":  # it may be any multiple of tp
                fix += f"; nearest multiples: {size // tp * tp or tp} or {(size // tp + 1) * tp}"
            hint = _heads_hint(model, tp)
            raise InputError(f"{name} = {size} is not divisible by tp = {tp}; {fix}.{hint}")
    if not _shares_kv_heads(kv_heads, tp):
        raise InputError(
            f"num_key_value_heads = {kv_heads} is neither a multiple nor a divisor of tp = {tp}; "
            f"{_tp_hint(model, cluster)}."
        )
    _check_length(model, workload)
    if workload.recompute_layers > model.num_hidden_layers:
        raise InputError(
            f"--recompute-layers = {workload.recompute_layers}, but {model.name} has "
            f"{model.num_hidden_layers} layers; give at most that many."
        )


def _tp_hint(model: ModelSpec, cluster: ClusterSpec) -> str:
    near = " or ".join(map(str, _nearest_tp(model, cluster)))
    kv_heads = ", and is a divisor or a multiple of its kv heads"
    grouped = kv_heads if model.num_key_value_heads != model.num_attention_heads else ""
    return f"nearest tp that divides the model's heads and ffn{grouped}: {near}"


def recomputed_layers(model: ModelSpec, workload: Workload) -> int:
    """Return how many of the first layers backward computes again."""
    if workload.recompute == "none":
        return 0
    return workload.recompute_layers or model.num_hidden_layers


def _check_length(model: ModelSpec, workload: Workload) -> None:
    """Raise InputError for sequences beyond the learned positions or the sliding window."""
    if 0 < model.sliding_window < workload.seq_length:
        raise InputError(
            f"{model.name} has a sliding window of {model.sliding_window} tokens, shorter than "
            f"--seq-length {workload.seq_length}; attention in a window is not simulated. Give "
            f"--seq-length {model.sliding_window} or less, or --set sliding_window=0 to price "
            "attention over the whole sequence."
        )
    if (
        model.position_embedding == "learned"
        and workload.seq_length > model.max_position_embeddings
    ):
        raise InputError(
            f"seq_length = {workload.seq_length} is above max_position_embeddings = "
            f"{model.max_position_embeddings}; lower it, or raise the model's with "
            f"--set max_position_embeddings={workload.seq_length}."
        )


def padded_vocab_size(model: ModelSpec, cluster: ClusterSpec) -> int:
    """Return the vocabulary size, rounded up to a multiple of 128 × tp (Megatron-LM's rule)."""
    unit = 128 * cluster.tp
    return math.ceil(model.vocab_size / unit) * unit
