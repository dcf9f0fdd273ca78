"""What is trained, on what batch, on how many ranks: ModelSpec, Workload, ClusterSpec."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Final, Literal

from simulator.errors import InputError

Dtype = Literal["bf16", "fp16", "fp32", "fp64"]
DTYPE_BYTES: Final[dict[str, int]] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}

MOST: Final = 10**12  # no size of a model or a job comes near; products of sizes stay manageable


def require_positive_int(owner: str, name: str, value: object) -> None:
    """Raise InputError unless ``value`` is an int from 1 to MOST (bool is not an int here)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = "less" if isinstance(value, int) and value < -MOST else repr(value)
        raise InputError(f"{owner}.{name} must be a whole number ≥ 1, got {shown}.")
    if value > MOST:
        raise InputError(f"{owner}.{name} must be at most {MOST}, got more.")


def require_divisible(what: str, value: int, by_what: str, by: int) -> None:
    """Raise InputError naming both numbers and the nearest multiples when ``by`` ∤ ``value``."""
    if value % by:
        below, above = value // by * by, (value // by + 1) * by
        nearest = f"{below} or {above}" if below else str(above)
        raise InputError(
            f"{what} = {value} is not divisible by {by_what} = {by}; nearest multiples: {nearest}."
        )


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder-only transformer; fields carry their Hugging Face names.

    ``gated_mlp`` means gate and up projections (SwiGLU), so fc1 has twice the outputs.
    ``hidden_dropout`` > 0 adds a mask byte an element to bias + dropout + residual.
    Raises InputError on values that no model can have.
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
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
    def qkv_size(self) -> int:
        """Outputs of the fused qkv projection (all ranks together)."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def attention_size(self) -> int:
        """Inputs of the attention output projection (all ranks together)."""
        return self.num_attention_heads * self.head_dim

    @property
    def fc1_size(self) -> int:
        """Outputs of the first MLP projection: twice the ffn size when gated."""
        return self.intermediate_size * (2 if self.gated_mlp else 1)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer (all ranks together)."""
        h = self.hidden_size
        norms = 2 * h * (2 if self.norm == "layernorm" else 1)
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
        final_norm = h * (2 if self.norm == "layernorm" else 1)
        return self.num_hidden_layers * self.layer_parameters + tables + positions + final_norm


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One optimizer step of one data-parallel replica.

    ``micro_batch_size`` sequences of ``seq_length`` tokens, ``grad_accumulation`` times.
    """

    seq_length: int
    micro_batch_size: int
    grad_accumulation: int = 1
    dtype: Dtype = "bf16"

    def __post_init__(self) -> None:
        for name in ("seq_length", "micro_batch_size", "grad_accumulation"):
            require_positive_int("workload", name, getattr(self, name))
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
    """Ranks and where they sit. Ranks fill nodes TP-first, ``ranks_per_node`` to a node.

    A group is described as (nodes, per_node): how many nodes it spans and ranks on each.
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
        """All ranks."""
        return self.tp * self.dp

    @property
    def nodes(self) -> int:
        """Nodes in use."""
        return math.ceil(self.world_size / self.ranks_per_node)

    @property
    def tp_group(self) -> tuple[int, int]:
        """(nodes, ranks on each) of one tensor-parallel group."""
        per_node = min(self.tp, self.ranks_per_node)
        return self.tp // per_node, per_node

    @property
    def dp_group(self) -> tuple[int, int]:
        """(nodes, ranks on each) of one data-parallel group: ranks ``tp`` apart."""
        per_node = min(self.dp, max(1, self.ranks_per_node // self.tp))
        return self.dp // per_node, per_node


def _nearest_tp(common: int, cluster: ClusterSpec) -> list[int]:
    """Divisors of ``common`` next to the cluster's tp that fill whole nodes, or part of one."""
    per_node = cluster.ranks_per_node
    whole = (n for n in range(1, common + 1) if n <= per_node or n % per_node == 0)
    works = [n for n in whole if common % n == 0]
    return [
        *[n for n in works if n < cluster.tp][-1:],
        *[n for n in works if n > cluster.tp][:1],
    ]


SHARDED: Final = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def _heads_hint(model: ModelSpec, tp: int) -> str:
    """Which head counts would shard, where the heads are what does not."""
    if (
        model.num_attention_heads % tp == 0
        or model.num_key_value_heads != model.num_attention_heads
    ):
        return ""
    hidden = model.hidden_size
    if model.intermediate_size % tp:
        return ""
    works = [n for n in range(tp, hidden + 1, tp) if hidden % n == 0]
    below = [n for n in works if n < model.num_attention_heads][-1:]
    above = [n for n in works if n > model.num_attention_heads][:1]
    options = " or ".join(f"--set num_attention_heads={n}" for n in below + above)
    return f" Or try {options}." if options else ""


def check_shardable(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless heads, kv heads, ffn and qkv sizes divide by tp.

    The vocabulary needs no check: it is padded to a multiple of 128 × tp, as Megatron does.
    """
    tp = cluster.tp
    sizes = (model.num_attention_heads, model.num_key_value_heads, model.intermediate_size)
    for name, size in zip(SHARDED, sizes, strict=True):
        if size % tp:
            near = " or ".join(map(str, _nearest_tp(math.gcd(*sizes), cluster)))
            fix = f"nearest tp that divides the model's heads, kv heads and ffn: {near}"
            if name == "intermediate_size":  # alone free to be any multiple
                fix += f"; nearest multiples: {size // tp * tp or tp} or {(size // tp + 1) * tp}"
            hint = _heads_hint(model, tp)
            raise InputError(f"{name} = {size} is not divisible by tp = {tp}; {fix}.{hint}")
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
    """Vocabulary rounded up to a multiple of 128 × tp (Megatron-LM's rule)."""
    unit = 128 * cluster.tp
    return math.ceil(model.vocab_size / unit) * unit
