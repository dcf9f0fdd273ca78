"""Shapes on one rank: sizes of the GEMMs, messages and activations of a plan's fragments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from simulator.dtypes import DTYPE_BYTES, MATH_BYTES
from simulator.implementation import FUSED, LaunchOrder
from simulator.ops import MULTIMEM, Collective, CollectiveKind, Gemm, Layout, Pointwise
from simulator.plan import (
    SlicePlan,
    batch_slice_sizes,
    check_plan_fits,
    sequence_spans,
    slice_multiple,
)
from simulator.sharding import Held, padded_vocab_size
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.stack import LayerKind, is_uniform, kinds, reads_columns

GRAD_BYTES = 4
"""Bytes of one main-gradient element: fp32 for every activation dtype."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """A model's shard on one of ``cluster.tp`` ranks, sliced by ``plan``.

    ``embedding``, ``head``: whether the rank has the embedding, and the final norm, head and loss.
    In a pipeline only the first and the last stage do, and ``model`` has the stage's layers.
    ``fp8_any_layout``: as the machine says.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    plan: SlicePlan
    embedding: bool = True
    head: bool = True
    fp8_any_layout: bool = False

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Number of sequences in each row slice."""
        batch, count = self.workload.micro_batch_size, self.plan.row_slices
        return (batch,) * count if self.plan.slices_sequences else batch_slice_sizes(batch, count)

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """Positions of each row slice's sequences; with context parallelism as many as this rank
        has of them."""
        length, plan = self.workload.seq_length // self.cluster.cp, self.plan
        if not plan.slices_sequences:
            return (range(length),) * plan.row_slices
        multiple = slice_multiple(plan, self.cluster)
        return sequence_spans(self.model, length, plan.row_slices, multiple, plan.slice_balance)

    def pieces(self, *, backward: bool) -> tuple[int, ...]:
        """Return the column pieces that the ops of a pass depend on: its own, and in backward those
        of forward's products where it plays them again or reads them."""
        plan = self.plan
        columns = plan.attn_col_slices, plan.mlp_col_slices
        if not backward:
            return columns
        reads = reads_columns(self.model, self.workload)
        return plan.attn_dgrad_slices, plan.mlp_dgrad_slices, *(columns if reads else ())

    @cached_property
    def communicates(self) -> bool:
        """Whether tensor-parallel collectives exist."""
        return self.cluster.tp > 1 and self.plan.strategy != "no_comm"

    @cached_property
    def launch_order(self) -> LaunchOrder:
        """Who gets the SMs first where a collective and a compute op become ready together."""
        return self.workload.implementation.starts(cuda_graph=self.cluster.cuda_graph)

    @cached_property
    def shards_tokens(self) -> bool:
        """Whether each rank holds 1/tp of the tokens of every slice between the blocks."""
        return self.cluster.tp > 1 and self.plan.sequence_parallel

    @cached_property
    def exchanges_context(self) -> bool:
        """Whether ranks of a context-parallel group exchange keys and values."""
        return self.cluster.cp > 1 and self.plan.strategy != "no_comm"

    @cached_property
    def exchanges_experts(self) -> bool:
        """Whether tokens go to experts of other ranks."""
        ranks = self.cluster.ep * self.cluster.expert_tp
        return self.model.num_experts > 0 and ranks > 1 and self.plan.strategy != "no_comm"

    @cached_property
    def moves_experts_most(self) -> bool:
        """Whether the exchange of experts moves more than the tensor-parallel group does."""
        return self.exchanges_experts and self.model.num_experts_per_tok >= self.cluster.tp

    @cached_property
    def has_residual_bwd(self) -> bool:
        """Whether bias + dropout + residual has a backward op: only dropout needs one."""
        return self.model.hidden_dropout > 0

    @cached_property
    def element(self) -> int:
        """Bytes of one activation element."""
        return self.workload.dtype_bytes

    @cached_property
    def heads(self) -> int:
        """Query heads on this rank."""
        return self.model.num_attention_heads // self.cluster.tp

    @cached_property
    def kv_heads(self) -> int:
        """Key-value heads on this rank: one, where there are fewer than ranks."""
        return max(1, self.model.num_key_value_heads // self.cluster.tp)

    def of(self, kind: LayerKind) -> Shapes:
        """Return the shapes of a stack of one kind of layer; of a uniform stack these."""
        if is_uniform(self.model, self.workload):
            return self
        model, work = kind.model(self.model), kind.of(self.workload)
        return replace(self, model=model, workload=work)

    @property
    def kinds(self) -> tuple[tuple[int, Shapes], ...]:
        """The number of layers of each kind, and their shapes."""
        return tuple((layers, one or self) for layers, one in self._kinds)

    @cached_property
    def _kinds(self) -> tuple[tuple[int, Shapes | None], ...]:
        """The same with None for these shapes, which would else keep themselves."""
        found = (
            (layers, self.of(kind)) for kind, layers in kinds(self.model, self.workload).items()
        )
        return tuple((layers, None if one is self else one) for layers, one in found)

    @cached_property
    def kv_copies(self) -> int:
        """Ranks that hold the same key-value head."""
        return max(1, self.cluster.tp // self.model.num_key_value_heads)

    @cached_property
    def activation(self) -> str:
        """The op between the two products of an MLP."""
        return "swiglu" if self.model.gated_mlp else self.model.hidden_act

    def tokens(self, row: int) -> int:
        """Return the number of tokens in row slice ``row``, or in all slices for −1."""
        if row < 0:
            return self.workload.micro_batch_size * self.workload.seq_length // self.cluster.cp
        return self.rows[row] * len(self.spans[row])

    def kv_elements(self, row: int, positions: int) -> int:
        """Return this rank's elements of the keys and values of ``positions`` of each sequence of
        slice ``row``."""
        each = self.model.head_dim + self.model.value_size
        return self.rows[row] * positions * self.kv_heads * each

    def kv_bytes(self, row: int) -> int:
        """Return the bytes of the keys and values of this rank's tokens of slice ``row``."""
        return self.kv_elements(row, len(self.spans[row])) * self.element

    def width(self, fragment: str) -> int:
        """Return this rank's output columns of ``fragment`` (qkv, core_attn, fc1 or act)."""
        model, tp = self.model, self.cluster.tp
        return {
            "qkv": (self.heads + self.kv_heads) * model.head_dim + self.kv_heads * model.value_size,
            "core_attn": self.heads * model.value_size,
            "fc1": model.fc1_size // tp,
            "act": model.intermediate_size // tp,
        }[fragment]

    def hidden_bytes(self, row: int) -> int:
        """Return the bytes of one [tokens, hidden] activation of slice ``row``."""
        return self.tokens(row) * self.model.hidden_size * self.element

    def residual_bytes(self, row: int) -> int:
        """Return the bytes of slice ``row`` between the blocks: [tokens / tp, hidden] with sequence
        parallelism, else [tokens, hidden]."""
        return self.hidden_bytes(row) // (self.cluster.tp if self.shards_tokens else 1)

    def width_bytes(self, fragment: str, row: int) -> int:
        """Return the bytes that ``fragment`` writes for slice ``row``."""
        return self.tokens(row) * self.width(fragment) * self.element

    def qk_bytes(self, row: int) -> int:
        """Return the bytes of queries and keys, which RoPE rotates in place."""
        return self.tokens(row) * (self.heads + self.kv_heads) * self.model.head_dim * self.element

    def score_bytes(self, row: int) -> int:
        """Return the bytes of all scores of slice ``row``, where they are in memory."""
        return self.tokens(row) * self.heads * self.spans[row].stop * self.element

    def score_mask_bytes(self, row: int) -> int:
        """Return the bytes of the scores' dropout mask; 0 without dropout."""
        return self.score_bytes(row) // self.element if self.model.attention_dropout else 0

    def mask_bytes(self, row: int) -> int:
        """Return the bytes of the dropout mask of ``residual_bytes``; 0 without dropout."""
        return self.residual_bytes(row) // self.element if self.model.hidden_dropout else 0

    def gemm(
        self, m: int, n: int, k: int, layout: Layout, *, accumulate: bool = False,
        bias: bool = False,
    ) -> Gemm:  # fmt: skip
        """Return the signature of C[m, n] = A[m, k] · B[k, n] as the workload multiplies."""
        return Gemm(m, n, k, layout, self.workload.math, accumulate, bias=bias)

    def linear(self, m: int, n: int, k: int, layout: Layout, *, bias: bool = False) -> Gemm:
        """Return the signature of a product of the layers' linears."""
        return Gemm(m, n, k, layout, self.workload.linear_math, bias=bias)

    def gradient_sum(self, elements: int) -> Pointwise:
        """Return the sum of ``elements`` gradients in the activations' dtype into main ones."""
        read = elements * (self.element + self.grad_bytes)
        return self.pointwise("grad_add", read, elements * self.grad_bytes)

    def pointwise(self, name: str, read: int, written: int, pieces: int = 1) -> Pointwise:
        """Return a pointwise signature in the workload's dtype; ``read``, ``written`` in bytes of
        one fused kernel. The implementation may need more."""
        made_of = self.workload.implementation.kernels(name)
        if made_of is not FUSED:
            name = made_of.law or name
            read, written = round(read * made_of.read), round(written * made_of.written)
        return Pointwise(name, read, written, self.workload.dtype, pieces, made_of.number)

    def tp_all_reduce(self, size_bytes: int, dtype: str = "") -> Collective:
        """Return an all-reduce of ``size_bytes`` over the tensor-parallel group."""
        return self.tp_collective("all_reduce", size_bytes, dtype)

    def tp_collective(self, op: CollectiveKind, size_bytes: int, dtype: str = "") -> Collective:
        """Return a collective over the tensor-parallel group; ``size_bytes`` is the full tensor."""
        nodes, per_node = self.cluster.tp_group
        if self.workload.tp_collectives == "multimem":
            op = MULTIMEM[op]
        return Collective(
            op, size_bytes, nodes, per_node, self.plan.comm_ctas, dtype or self.workload.dtype,
            self.workload.implementation.nccl_algo,
        )  # fmt: skip

    @cached_property
    def reduces(self) -> bool:
        """Whether data-parallel collectives exist."""
        return self.replicas > 1 and self.plan.strategy != "no_comm"

    @cached_property
    def replicas(self) -> int:
        """The most ranks that hold the same parameters: those of experts may be others."""
        cluster = self.cluster
        return max(cluster.replicas, cluster.expert_replicas * (self.model.num_experts > 0))

    @cached_property
    def shards_optimizer(self) -> bool:
        """Whether each replica updates its share of the parameters."""
        return self.replicas > 1 and self.workload.data_parallel != "replicas"

    @cached_property
    def shards_parameters(self) -> bool:
        """Whether replicas keep shards of the parameters and gather each layer's (FSDP)."""
        return self.cluster.replicas > 1 and self.workload.data_parallel == "fsdp"

    @cached_property
    def grad_bytes(self) -> int:
        """Bytes of one main gradient."""
        return DTYPE_BYTES[self.workload.grad_dtype]

    @cached_property
    def optimizer_parameters(self) -> int:
        """Parameters that this rank's optimizer updates."""
        if not self.shards_optimizer:
            return self.held.whole
        return math.ceil(self.held.rest / self.cluster.replicas) + self.optimizer_experts

    @cached_property
    def optimizer_experts(self) -> int:
        """Those of them that are of routed experts."""
        replicas = self.cluster.expert_replicas if self.shards_optimizer else 1
        return math.ceil(self.held.experts / replicas)

    def dp_reduction(self, parameters: int, *, experts: bool = False) -> Collective:
        """Return the sum of ``parameters`` gradients over the data-parallel group: an all-reduce,
        or a reduce-scatter where the optimizer is sharded."""
        op: CollectiveKind = "reduce_scatter" if self.shards_optimizer else "all_reduce"
        nodes, per_node = self.cluster.expert_dp_group if experts else self.cluster.dp_group
        size, dtype = parameters * self.grad_bytes, self.workload.grad_dtype
        algo = self.workload.implementation.nccl_algo
        return Collective(op, size, nodes, per_node, 0, dtype, algo)

    def dp_gather(self, parameters: int, edge: int = 0, *, experts: bool = False) -> Collective:
        """Return the all-gather of ``parameters``, which the replicas hold in shards; ``edge``:
        those of them outside the layers."""
        nodes, per_node = self.cluster.expert_dp_group if experts else self.cluster.dp_group
        work = self.workload
        width = MATH_BYTES[work.linear_math] if work.fp8_param_gather else self.element
        size = edge * self.element + round((parameters - edge) * width)
        return Collective("all_gather", size, nodes, per_node, 0, work.dtype)

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of a layer on this rank but those of routed experts; norms, row-parallel
        biases and routers are not sharded."""
        m, h = self.model, self.model.hidden_size
        sharded = self.width("qkv") * m.attention_bias
        sharded += self.width("fc1") * m.mlp_bias * (m.num_experts == 0)
        norms = m.block_norm_parameters + m.qk_norm_parameters + m.latent_norm_parameters
        biases = m.has_bias("proj") + (m.has_bias("fc2") and not m.num_experts)
        rest = sharded + h * biases + norms + m.router_parameters
        return self.linear_parameters - self.expert_parameters + rest

    @cached_property
    def layer(self) -> Held:
        """Parameters of a layer on this rank."""
        return Held(self.layer_parameters, self.expert_parameters)

    @cached_property
    def held(self) -> Held:
        """All parameters on this rank."""
        layers = sum((one.layer * count for count, one in self.kinds), Held(0))
        return layers + Held(self.edge_parameters)

    @cached_property
    def expert_parameters(self) -> int:
        """Elements of a layer's routed experts on this rank; 0 without experts."""
        return self.local_experts * self.expert_size

    @cached_property
    def expert_size(self) -> int:
        """Parameters of one routed expert on this rank."""
        wide, narrow = map(self.expert_width, ("fc1", "act"))
        biases = (wide + self.model.hidden_size) * self.model.mlp_bias
        return self.model.hidden_size * (wide + narrow) + biases

    @cached_property
    def local_experts(self) -> int:
        """Routed experts of a layer on this rank."""
        return self.model.num_experts // self.cluster.ep

    def expert_width(self, fragment: str) -> int:
        """Return this rank's output columns of an expert's ``fragment`` (fc1 or act)."""
        return self._wide(self.model.moe_intermediate_size // self.cluster.expert_tp, fragment)

    def shared_width(self, fragment: str) -> int:
        """Return the same of the shared expert."""
        each = self.model.shared_expert_intermediate_size // self.cluster.tp
        return self._wide(each, fragment)

    def _wide(self, each: int, fragment: str) -> int:
        return each * (2 if fragment == "fc1" and self.model.gated_mlp else 1)

    def routed_rows(self, row: int) -> int:
        """Return how many rows of slice ``row`` the experts of the rank with the most get: each
        token goes to ``num_experts_per_tok`` of them."""
        kept = self.residual_tokens(row) * self.model.num_experts_per_tok * self.cluster.expert_tp
        return round(kept * self.workload.moe_imbalance)

    def residual_tokens(self, row: int) -> int:
        """Return this rank's tokens of slice ``row`` between the blocks."""
        return self.tokens(row) // (self.cluster.tp if self.shards_tokens else 1)

    def grouped(self, rows: int, n: int, k: int, layout: Layout) -> Gemm:
        """Return the products of ``rows`` rows, divided among this rank's experts: [rows, k] by
        [k, n] of each, or in a wgrad [n, rows] by [rows, k]."""
        groups = self.local_experts
        each = max(1, round(rows / groups))
        m, k, n = (n, each, k) if layout == "wgrad" else (each, k, n)
        return self.linear(m, n, k, layout)._replace(groups=groups)

    @cached_property
    def linear_parameters(self) -> int:
        """Elements of a layer's weight matrices on this rank."""
        m, h = self.model, self.model.hidden_size
        attention = sum(n * k for n, k in self.attention_weights.values())
        if not m.num_experts:
            return attention + h * (self.width("fc1") + self.width("act"))
        shared = h * (self.shared_width("fc1") + self.shared_width("act"))
        return attention + shared + self.expert_parameters

    @cached_property
    def attention_weights(self) -> dict[str, tuple[int, int]]:
        """Name of each weight matrix of attention -> its outputs and inputs on this rank."""
        m, h, heads = self.model, self.model.hidden_size, self.heads
        proj = {"proj": (h, self.width("core_attn"))}
        if not m.kv_lora_rank:
            return {"qkv": (self.width("qkv"), h), **proj}
        nope = m.head_dim - m.qk_rope_head_dim
        queries = {"q": (heads * m.head_dim, m.q_lora_rank or h)}
        if m.q_lora_rank:
            queries = {"q_down": (m.q_lora_rank, h), "q_up": queries["q"]}
        return {
            **queries, "kv_down": (m.kv_lora_rank + m.qk_rope_head_dim, h),
            "kv_up": (heads * (nope + self.model.value_size), m.kv_lora_rank), **proj,
        }  # fmt: skip

    @cached_property
    def dummy_parameters(self) -> int:
        """Elements of one weight of each shape in a layer, where a rank's experts have the same."""
        return self.linear_parameters - max(0, self.local_experts - 1) * self.expert_size

    @cached_property
    def quantized_parameters(self) -> int:
        """Elements of the weights of quantized layers on this rank."""
        return sum(layers * shapes.linear_parameters for layers, shapes in self._quantized_kinds)

    @cached_property
    def quantized_experts(self) -> int:
        """Those of them that are of routed experts."""
        return sum(layers * shapes.expert_parameters for layers, shapes in self._quantized_kinds)

    @property
    def _quantized_kinds(self) -> Iterator[tuple[int, Shapes]]:
        return (one for one in self.kinds if one[1].workload.fp8_recipe != "none")

    @cached_property
    def partial_parameters(self) -> int:
        """Parameters that every rank holds whole, and of whose gradients it has a part of the sum.

        The norms of queries and keys see this rank's heads alone. With sequence parallelism other
        norms, and the biases after the reduce-scatters, see this rank's share of the tokens.
        """
        m = self.model
        partial = m.stacked_layers * (m.qk_norm_parameters + m.latent_norm_parameters)
        downs = (n * k for name, (n, k) in self.attention_weights.items() if "down" in name)
        partial += m.stacked_layers * sum(downs)
        if self.shards_tokens:
            routers = sum(layers * one.model.num_experts for layers, one in self.kinds)
            partial += m.hidden_size * routers
            biases = m.hidden_size * m.row_parallel_biases
            partial += m.stacked_layers * (m.block_norm_parameters + biases)
            partial += m.hidden_size * m.norm_vectors * self.head
        return partial

    @cached_property
    def copied_parameters(self) -> int:
        """Weights and biases of this rank's key-value heads, which ``kv_copies`` ranks hold."""
        m = self.model
        width = 2 * self.kv_heads * m.head_dim
        return m.stacked_layers * (m.hidden_size + m.attention_bias) * width

    def copies_all_reduce(self) -> Collective:
        """Return the all-reduce of ``copied_parameters``' gradients over ranks with the same head.

        Those ranks follow each other, so they share a node where they fit on one.
        """
        copies, node = self.kv_copies, self.cluster.domain
        per_node = copies if copies <= node else math.gcd(copies, node)
        size, dtype = self.copied_parameters * self.grad_bytes, self.workload.grad_dtype
        return Collective(
            "all_reduce", size, copies // per_node, per_node, self.plan.comm_ctas, dtype,
            self.workload.implementation.nccl_algo,
        )  # fmt: skip

    @cached_property
    def edge_parameters(self) -> int:
        """Parameters outside the layers on this rank: embeddings, positions, final norm."""
        m = self.model
        positions = m.max_position_embeddings * (m.position_embedding == "learned")
        ahead = positions * self.embedding
        behind = m.norm_vectors * self.head
        predicting = m.num_nextn_predict_layers * self.head
        behind += predicting * (2 * m.hidden_size // self.cluster.tp + 3 * m.norm_vectors)
        return self.tables * self.table_parameters + m.hidden_size * (ahead + behind)

    @cached_property
    def tables(self) -> int:
        """Number of this rank's tables over the vocabulary: a tied head shares the embedding's."""
        tied = self.model.tie_word_embeddings and self.embedding
        # Further predictions look up embeddings, too, in a copy of the table.
        predicts = self.head and not self.embedding and self.model.num_nextn_predict_layers > 0
        copied = predicts and not self.model.tie_word_embeddings
        return self.embedding + (self.head and not tied) + copied

    @cached_property
    def table_parameters(self) -> int:
        """Parameters of one table over the vocabulary on this rank."""
        rows = padded_vocab_size(self.model, self.cluster) // self.cluster.tp
        return rows * self.model.hidden_size


@lru_cache(maxsize=64)
def shapes_of(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan, *,
    embedding: bool = True, head: bool = True, fp8_any_layout: bool = False,
) -> Shapes:  # fmt: skip
    """Return the shapes of a rank; the last ones are kept, with all that was asked of them.

    Raise InfeasiblePlanError if the plan does not fit the model or the batch.
    """
    check_plan_fits(plan, model, workload, cluster)
    return Shapes(
        model=model, workload=workload, cluster=cluster, plan=plan, embedding=embedding, head=head,
        fp8_any_layout=fp8_any_layout,
    )  # fmt: skip
