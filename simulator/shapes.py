"""Shapes of one rank's share: what each fragment of a plan computes, moves and keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.ops import Collective, Gemm, Layout, Pointwise
from simulator.plan import SlicePlan, row_slice_sizes
from simulator.specs import ClusterSpec, ModelSpec, Workload, padded_vocab_size

GRAD_BYTES = 4
"""Bytes of a main gradient (fp32), whatever the activations' dtype."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """A model's shard on one of ``cluster.tp`` ranks, cut as ``plan`` says."""

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    plan: SlicePlan

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Sequences of each row slice."""
        return row_slice_sizes(self.workload.micro_batch_size, self.plan.row_slices)

    @cached_property
    def communicates(self) -> bool:
        """Whether tensor-parallel collectives exist at all."""
        return self.cluster.tp > 1 and self.plan.strategy != "no_comm"

    @cached_property
    def has_out_grad(self) -> bool:
        """Whether bias + dropout + residual has a backward op: it has not with neither of both."""
        return self.model.hidden_dropout > 0

    @cached_property
    def element(self) -> int:
        """Bytes of an activation element."""
        return self.workload.dtype_bytes

    def tokens(self, row: int) -> int:
        """Tokens of row slice ``row``; of all of them for −1."""
        sequences = self.workload.micro_batch_size if row < 0 else self.rows[row]
        return sequences * self.workload.seq_length

    def width(self, block: str, part: str) -> int:
        """Columns on this rank of a block's A output (``a``) or core output (``core``)."""
        model, tp = self.model, self.cluster.tp
        whole = {
            ("attn", "a"): model.qkv_size,
            ("attn", "core"): model.attention_size,
            ("mlp", "a"): model.fc1_size,
            ("mlp", "core"): model.intermediate_size,
        }[block, part]
        return whole // tp

    def hidden_bytes(self, row: int) -> int:
        """Bytes of one [tokens, hidden] activation of slice ``row``."""
        return self.tokens(row) * self.model.hidden_size * self.element

    def mask_bytes(self, row: int) -> int:
        """Bytes of a dropout mask over [tokens, hidden]; none without dropout."""
        return self.tokens(row) * self.model.hidden_size if self.model.hidden_dropout else 0

    def gemm(
        self, m: int, n: int, k: int, layout: Layout, *, accumulate: bool = False,
        bias: bool = False,
    ) -> Gemm:  # fmt: skip
        """A GEMM in the workload's dtype."""
        return Gemm(m, n, k, layout, self.workload.dtype, accumulate, bias=bias)

    def has_bias(self, block: str) -> bool:
        """Whether a block's linears have biases."""
        return self.model.attention_bias if block == "attn" else self.model.mlp_bias

    def pointwise(self, name: str, read: int, written: int, pieces: int = 1) -> Pointwise:
        """A pointwise op in the workload's dtype."""
        return Pointwise(name, read, written, self.workload.dtype, pieces)

    def tp_all_reduce(self, size_bytes: int, dtype: str = "") -> Collective:
        """An all-reduce over the tensor-parallel group."""
        nodes, per_node = self.cluster.tp_group
        return Collective(
            "all_reduce", size_bytes, nodes, per_node, self.plan.comm_ctas,
            dtype or self.workload.dtype,
        )  # fmt: skip

    def dp_all_reduce(self, parameters: int) -> Collective:
        """An all-reduce of fp32 gradients over the data-parallel group."""
        nodes, per_node = self.cluster.dp_group
        return Collective("all_reduce", parameters * GRAD_BYTES, nodes, per_node, 0, "fp32")

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of one layer on this rank: matrices and A biases are cut, the rest is not."""
        m, tp = self.model, self.cluster.tp
        h = m.hidden_size
        cut = h * (m.qkv_size + m.attention_size + m.fc1_size + m.intermediate_size)
        cut += m.qkv_size * m.attention_bias + m.fc1_size * m.mlp_bias
        whole = h * (m.attention_bias + m.mlp_bias) + 2 * h * (2 if m.norm == "layernorm" else 1)
        return cut // tp + whole

    @cached_property
    def edge_parameters(self) -> int:
        """Parameters outside the layers on this rank: tables, positions, final norm."""
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
