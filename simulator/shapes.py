"""Shapes on one rank: sizes of the GEMMs, messages and activations of a plan's fragments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.ops import Collective, CollectiveKind, Gemm, Layout, Pointwise
from simulator.plan import SlicePlan, row_slice_sizes
from simulator.specs import ClusterSpec, ModelSpec, Workload, padded_vocab_size

GRAD_BYTES = 4
"""Bytes of one main-gradient element: fp32 for every activation dtype."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """A model's shard on one of ``cluster.tp`` ranks, sliced by ``plan``."""

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    plan: SlicePlan

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Number of sequences in each row slice."""
        return row_slice_sizes(self.workload.micro_batch_size, self.plan.row_slices)

    @cached_property
    def communicates(self) -> bool:
        """Whether tensor-parallel collectives exist."""
        return self.cluster.tp > 1 and self.plan.strategy != "no_comm"

    @cached_property
    def shards_tokens(self) -> bool:
        """Whether each rank holds 1/tp of the tokens of every slice between the blocks."""
        return self.cluster.tp > 1 and self.plan.sequence_parallel

    @cached_property
    def has_residual_bwd(self) -> bool:
        """Whether bias + dropout + residual has a backward op: only dropout needs one."""
        return self.model.hidden_dropout > 0

    @cached_property
    def element(self) -> int:
        """Bytes of one activation element."""
        return self.workload.dtype_bytes

    def tokens(self, row: int) -> int:
        """Return the number of tokens in row slice ``row``, or in all slices for −1."""
        sequences = self.workload.micro_batch_size if row < 0 else self.rows[row]
        return sequences * self.workload.seq_length

    def width(self, fragment: str) -> int:
        """Return this rank's output columns of ``fragment`` (qkv, core_attn, fc1 or act)."""
        model = self.model
        whole = {
            "qkv": model.qkv_size,
            "core_attn": model.attention_size,
            "fc1": model.fc1_size,
            "act": model.intermediate_size,
        }[fragment]
        return whole // self.cluster.tp

    def hidden_bytes(self, row: int) -> int:
        """Return the bytes of one [tokens, hidden] activation of slice ``row``."""
        return self.tokens(row) * self.model.hidden_size * self.element

    def residual_bytes(self, row: int) -> int:
        """Return the bytes of slice ``row`` between the blocks: [tokens / tp, hidden] with sequence
        parallelism, else [tokens, hidden]."""
        return self.hidden_bytes(row) // (self.cluster.tp if self.shards_tokens else 1)

    def mask_bytes(self, row: int) -> int:
        """Return the bytes of the dropout mask of ``residual_bytes``; 0 without dropout."""
        return self.residual_bytes(row) // self.element if self.model.hidden_dropout else 0

    def gemm(
        self, m: int, n: int, k: int, layout: Layout, *, accumulate: bool = False,
        bias: bool = False,
    ) -> Gemm:  # fmt: skip
        """Return the signature of C[m, n] = A[m, k] · B[k, n] in the workload's dtype."""
        return Gemm(m, n, k, layout, self.workload.dtype, accumulate, bias=bias)

    def has_bias(self, block: str) -> bool:
        """Return whether the linears of ``block`` (attn or mlp) have biases."""
        return self.model.attention_bias if block == "attn" else self.model.mlp_bias

    def pointwise(self, name: str, read: int, written: int, pieces: int = 1) -> Pointwise:
        """Return a pointwise signature in the workload's dtype; ``read``, ``written`` in bytes."""
        return Pointwise(name, read, written, self.workload.dtype, pieces)

    def tp_all_reduce(self, size_bytes: int, dtype: str = "") -> Collective:
        """Return an all-reduce of ``size_bytes`` over the tensor-parallel group."""
        return self.tp_collective("all_reduce", size_bytes, dtype)

    def tp_collective(self, op: CollectiveKind, size_bytes: int, dtype: str = "") -> Collective:
        """Return a collective over the tensor-parallel group; ``size_bytes`` is the full tensor."""
        nodes, per_node = self.cluster.tp_group
        return Collective(
            op, size_bytes, nodes, per_node, self.plan.comm_ctas, dtype or self.workload.dtype
        )

    def dp_all_reduce(self, parameters: int) -> Collective:
        """Return an all-reduce of ``parameters`` fp32 gradients over the data-parallel group."""
        nodes, per_node = self.cluster.dp_group
        return Collective("all_reduce", parameters * GRAD_BYTES, nodes, per_node, 0, "fp32")

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of a layer on this rank; norms and row-parallel biases are not sharded."""
        m, tp = self.model, self.cluster.tp
        h = m.hidden_size
        cut = h * (m.qkv_size + m.attention_size + m.fc1_size + m.intermediate_size)
        cut += m.qkv_size * m.attention_bias + m.fc1_size * m.mlp_bias
        whole = h * (m.attention_bias + m.mlp_bias) + 2 * h * (2 if m.norm == "layernorm" else 1)
        return cut // tp + whole

    @cached_property
    def whole_parameters(self) -> int:
        """Parameters that every rank holds whole and applies to its share of the tokens.

        With sequence parallelism their gradients are partial sums: those of the norms, and the
        biases behind the reduce-scatters.
        """
        m = self.model
        norm = m.hidden_size * (2 if m.norm == "layernorm" else 1)
        biases = m.hidden_size * (m.attention_bias + m.mlp_bias)
        return m.num_hidden_layers * (2 * norm + biases) + norm

    @cached_property
    def edge_parameters(self) -> int:
        """Parameters outside the layers on this rank: embeddings, positions, final norm."""
        m = self.model
        tables = 1 if m.tie_word_embeddings else 2
        vocab = padded_vocab_size(m, self.cluster) // self.cluster.tp
        positions = m.max_position_embeddings * (m.position_embedding == "learned")
        norm = 2 if m.norm == "layernorm" else 1
        return m.hidden_size * (tables * vocab + positions + norm)

    @cached_property
    def rank_parameters(self) -> int:
        """All parameters on this rank."""
        return self.model.num_hidden_layers * self.layer_parameters + self.edge_parameters
