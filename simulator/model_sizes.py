"""What follows from the shape of a model: sizes of its linears, and its parameters."""

from __future__ import annotations

from typing import Final, Literal

from simulator.errors import InputError, require_positive_int

EXTRAS: Final = (
    "qk_norm", "post_norm", "scaled_embeddings", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip
"""Fields of what GPT and Llama do not have."""
MTP_NORMS: Final = 3
"""Norms of a layer of multi-token prediction beside its blocks': of the hidden state, of the
embedding, and of what it gives to the head."""


class ModelSizes:
    """Base of ModelSpec, which has these fields and says what they mean.

    All sizes are over all ranks. A layer is dense, or it has experts; those of multi-token
    prediction are as the last one. Parameters are all but those of routers' biases.
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
    gated_mlp: bool
    norm: Literal["layernorm", "rmsnorm"]
    position_embedding: Literal["learned", "rope", "none"]
    tie_word_embeddings: bool
    attention_bias: bool
    proj_bias: bool
    mlp_bias: bool
    qk_norm: bool
    post_norm: bool
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    first_k_dense_replace: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    v_head_dim: int
    num_nextn_predict_layers: int

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the EXTRAS that this model has."""
        return tuple(name for name in EXTRAS if getattr(self, name))

    @property
    def dense_layers(self) -> int:
        """Layers with one MLP, which come first."""
        return self.first_k_dense_replace if self.num_experts else self.num_hidden_layers

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.num_hidden_layers - self.dense_layers

    @property
    def stacked_layers(self) -> int:
        """Layers that are trained, those of multi-token prediction among them."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def predicts_with_experts(self) -> bool:
        """Whether layers of multi-token prediction have experts, as the last layer has."""
        return self.expert_layers > 0

    @property
    def qkv_size(self) -> int:
        """Outputs of the fused qkv projection; latent attention has none."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def value_size(self) -> int:
        """Elements of one head's values."""
        return self.v_head_dim or self.head_dim

    @property
    def attention_size(self) -> int:
        """Inputs of the attention output projection."""
        return self.num_attention_heads * self.value_size

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
    def latent_norm_parameters(self) -> int:
        """Parameters of one layer's norms of the vectors that latent attention keeps."""
        return (self.q_lora_rank + self.kv_lora_rank) * self.norm_vectors

    def has_bias(self, linear: str) -> bool:
        """Return whether ``linear`` (qkv, proj, fc1 or fc2) has a bias; experts' are fc1, fc2."""
        if linear in ("fc1", "fc2"):
            return self.mlp_bias
        return self.attention_bias and (linear == "qkv" or self.proj_bias)

    @property
    def row_parallel_biases(self) -> int:
        """How many of a layer's two row-parallel linears have a bias."""
        return self.has_bias("proj") + self.has_bias("fc2")

    @property
    def attention_linear_parameters(self) -> int:
        """Elements of the weight matrices of one layer's attention."""
        h, heads = self.hidden_size, self.num_attention_heads
        if not self.kv_lora_rank:
            return h * (self.qkv_size + self.attention_size)
        queries = heads * self.head_dim
        of_queries = self.q_lora_rank * (h + queries) if self.q_lora_rank else h * queries
        keys_and_values = heads * (self.head_dim - self.qk_rope_head_dim + self.v_head_dim)
        down = h * (self.kv_lora_rank + self.qk_rope_head_dim)
        return of_queries + down + self.kv_lora_rank * keys_and_values + h * self.attention_size

    @property
    def linear_parameters(self) -> int:
        """Elements of one dense layer's weight matrices."""
        mlp = self.hidden_size * (self.fc1_size + self.intermediate_size)
        return self.attention_linear_parameters + mlp

    @property
    def expert_linear_parameters(self) -> int:
        """Elements of one expert's two weight matrices."""
        return self._mlp(self.moe_intermediate_size)

    @property
    def shared_expert_parameters(self) -> int:
        """Elements of the shared expert's two weight matrices; 0 without one."""
        return self._mlp(self.shared_expert_intermediate_size)

    @property
    def router_parameters(self) -> int:
        """Elements of one router's weight matrix."""
        return self.hidden_size * self.num_experts

    @property
    def active_linear_parameters(self) -> int:
        """Elements of the weight matrices of an expert layer that a token meets; without the
        router's."""
        experts = self.num_experts_per_tok * self.expert_linear_parameters
        return self.attention_linear_parameters + experts + self.shared_expert_parameters

    @property
    def has_expert_biases(self) -> bool:
        """Whether experts' linears have biases."""
        return self.mlp_bias and self.num_experts > 0

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert, with its biases."""
        biases = self.moe_intermediate_size * (2 if self.gated_mlp else 1) + self.hidden_size
        return self.expert_linear_parameters + biases * self.mlp_bias

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense layer."""
        mlp = self.linear_parameters - self.attention_linear_parameters
        biases = self.fc1_size * self.mlp_bias + self.hidden_size * self.has_bias("fc2")
        return self._attention_and_norms + mlp + biases

    @property
    def expert_layer_parameters(self) -> int:
        """Parameters of one layer with all its experts."""
        return self._beside_experts + self.num_experts * self.expert_parameters

    @property
    def mtp_layer_parameters(self) -> int:
        """Parameters of one layer of multi-token prediction; it shares embedding and head."""
        experts = self.predicts_with_experts
        layer = self.expert_layer_parameters if experts else self.layer_parameters
        return self._mtp_edge + layer

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        layers = self.dense_layers * self.layer_parameters
        layers += self.expert_layers * self.expert_layer_parameters
        further = self.num_nextn_predict_layers * self.mtp_layer_parameters
        return layers + further + self._edges

    def _mlp(self, ffn: int) -> int:
        return self.hidden_size * ffn * (3 if self.gated_mlp else 2)

    @property
    def _attention_and_norms(self) -> int:
        norms = self.block_norm_parameters + self.qk_norm_parameters + self.latent_norm_parameters
        biases = self.qkv_size * self.attention_bias + self.hidden_size * self.has_bias("proj")
        return self.attention_linear_parameters + biases + norms

    @property
    def _beside_experts(self) -> int:
        return self._attention_and_norms + self.router_parameters + self.shared_expert_parameters

    @property
    def _mtp_edge(self) -> int:
        h = self.hidden_size
        return 2 * h * h + MTP_NORMS * h * self.norm_vectors

    @property
    def _edges(self) -> int:
        h = self.hidden_size
        tables = self.vocab_size * h * (1 if self.tie_word_embeddings else 2)
        positions = self.max_position_embeddings * h * (self.position_embedding == "learned")
        return tables + positions + h * self.norm_vectors

    def _check_experts(self) -> None:
        if not self.num_experts:
            _refuse_alone(
                self, "needs experts: set num_experts, too", "num_experts_per_tok",
                "moe_intermediate_size", "shared_expert_intermediate_size",
                "first_k_dense_replace",
            )  # fmt: skip
            return
        for name in ("num_experts_per_tok", "moe_intermediate_size"):
            require_positive_int("With experts, model", name, getattr(self, name))
        for name, most in (
            ("num_experts_per_tok", "num_experts"), ("first_k_dense_replace", "num_hidden_layers")
        ):  # fmt: skip
            if getattr(self, name) > getattr(self, most):
                raise InputError(
                    f"model.{name} = {getattr(self, name)} is above {most} = "
                    f"{getattr(self, most)}; set it to at most that."
                )
        if not self.gated_mlp:
            raise InputError(
                f"{self.name} has experts, which are simulated as gated MLPs; set gated_mlp=true."
            )

    def _check_latent_attention(self) -> None:
        if not self.kv_lora_rank:
            _refuse_alone(
                self, "is of latent attention: set kv_lora_rank, too", "q_lora_rank",
                "qk_rope_head_dim", "v_head_dim",
            )  # fmt: skip
            return
        for name in ("qk_rope_head_dim", "v_head_dim"):
            require_positive_int("With kv_lora_rank, model", name, getattr(self, name))
        if self.head_dim <= self.qk_rope_head_dim:
            raise InputError(
                f"With kv_lora_rank, model.head_dim is that of queries and keys, of which "
                f"qk_rope_head_dim = {self.qk_rope_head_dim} elements are rotated; got head_dim = "
                f"{self.head_dim}, set it to more."
            )
        if self.num_key_value_heads != self.num_attention_heads:
            raise InputError(
                f"With kv_lora_rank each head has keys and values of its own; set "
                f"num_key_value_heads={self.num_attention_heads}, got {self.num_key_value_heads}."
            )
        other = [name for name in ("attention_bias", "qk_norm") if getattr(self, name)]
        if other:
            raise InputError(
                f"Latent attention is simulated without {' and '.join(other)}; set "
                f"{', '.join(f'{name}=false' for name in other)}, or kv_lora_rank=0."
            )


def _refuse_alone(model: ModelSizes, why: str, *names: str) -> None:
    """Raise InputError if one of these sizes, which need another one, is not 0."""
    for name in names:
        if value := getattr(model, name):
            raise InputError(f"model.{name} = {value} {why}, or leave it 0.")
