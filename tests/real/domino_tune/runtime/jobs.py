"""Training runs to compare: what each rank executes, named, as plain data."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from domino_tune.runtime.ops import Training
from simulator.issue_order import LayerOrder
from simulator.optimizer import DP_BUCKET_PARAMETERS
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Recompute, Workload

TRAINING: Final = Training(seed=5, learning_rate=1e-2, clip_norm=0.25)
"""Steps are large and clipping bites (gradient norms are near 1)."""
STEPS: Final = 3

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Job:
    """``steps`` optimizer steps of one plan. ``order`` is explicit where the plan has none."""

    name: str
    model: ModelSpec
    tp: int = 1
    dp: int = 1
    sequences: int = 5
    seq_length: int = 6
    grad_accumulation: int = 1
    dtype: str = "fp64"
    plan: SlicePlan = MEGATRON
    order: LayerOrder | None = None
    training: Training = TRAINING
    steps: int = STEPS
    train: bool = True
    bucket_parameters: int = DP_BUCKET_PARAMETERS
    recompute: Recompute = "none"
    recompute_layers: int = 0

    @property
    def workload(self) -> Workload:
        return Workload(
            seq_length=self.seq_length, micro_batch_size=self.sequences,
            grad_accumulation=self.grad_accumulation, dtype=self.dtype,  # type: ignore[arg-type]
            recompute=self.recompute, recompute_layers=self.recompute_layers,
        )  # fmt: skip

    @property
    def cluster(self) -> ClusterSpec:
        return ClusterSpec(tp=self.tp, dp=self.dp)

    @property
    def global_sequences(self) -> int:
        return self.sequences * self.grad_accumulation * self.dp

    @property
    def unsliced(self) -> Job:
        """What every cut of this job must equal: one process, one batch, fp64."""
        return replace(
            self, name="", tp=1, dp=1, sequences=self.global_sequences, grad_accumulation=1,
            dtype="fp64", plan=MEGATRON, order=None, bucket_parameters=0, recompute="none",
            recompute_layers=0,
        )  # fmt: skip


@dataclass(kw_only=True)
class RankResult:
    """What one rank saw. ``gradients`` are those of each step before clipping; shards all."""

    tp_rank: int
    dp_rank: int
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    parameters: Tensors = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def batch(job: Job, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of all replicas, [sequences, seq_length] each."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"batch {step}".encode()))
    shape = (2, job.global_sequences, job.seq_length)
    tokens, targets = torch.randint(job.model.vocab_size, shape, generator=generator)
    return tokens, targets


_SHARED: Final[dict[str, Any]] = {
    "num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 4, "head_dim": 8,
    "intermediate_size": 40, "vocab_size": 150, "max_position_embeddings": 9,
}  # fmt: skip
GPT: Final = ModelSpec(name="gpt", num_key_value_heads=4, hidden_dropout=0.2, **_SHARED)
LLAMA: Final = ModelSpec(
    name="llama", num_key_value_heads=4, hidden_act="silu", gated_mlp=True, norm="rmsnorm",
    position_embedding="rope", tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
    **{**_SHARED, "num_attention_heads": 8},
)  # fmt: skip
QWEN: Final = replace(
    LLAMA, name="qwen", qk_norm=True, attention_bias=True, proj_bias=False,
    rope_scaling_factor=8.0, original_max_position_embeddings=32,
)  # fmt: skip
"""Norms of queries and keys, a bias of qkv alone, and angles that are scaled as in Llama 3.1."""
ODD: Final = ModelSpec(
    name="odd", num_key_value_heads=4, hidden_act="relu", norm="rmsnorm", mlp_bias=False,
    position_embedding="none", tie_word_embeddings=False, **{**_SHARED, "num_hidden_layers": 1},
)  # fmt: skip
"""One layer, biases in attention only, no positions: what the two families do not have."""
