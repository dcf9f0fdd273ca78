"""Two small models whose sizes all differ, so that no size can be mistaken for another."""

from __future__ import annotations

from simulator.build import build_schedule
from simulator.plan import SlicePlan
from simulator.schedule import Op, Schedule
from simulator.specs import ClusterSpec, ModelSpec, Workload

TP = 2
GPT = ModelSpec(
    name="gpt", num_hidden_layers=3, hidden_size=40, num_attention_heads=6, num_key_value_heads=6,
    head_dim=8, intermediate_size=84, vocab_size=300, max_position_embeddings=7,
    hidden_dropout=0.1, mlp_bias=False,
)  # fmt: skip
"""Dropout, biases in the attention block alone; padded vocabulary 512."""
LLAMA = ModelSpec(
    name="llama", num_hidden_layers=3, hidden_size=40, num_attention_heads=6,
    num_key_value_heads=2, head_dim=8, intermediate_size=84, vocab_size=300,
    max_position_embeddings=7, hidden_act="silu", gated_mlp=True, norm="rmsnorm",
    position_embedding="rope", tie_word_embeddings=False, attention_bias=False, mlp_bias=True,
)  # fmt: skip
"""Grouped queries, SwiGLU, RoPE, an LM head of its own; biases in the MLP block alone."""
CUT = SlicePlan(
    row_slices=2, attn_col_slices=2, mlp_col_slices=4, attn_dgrad_slices=4, mlp_dgrad_slices=2,
    order="intra", wgrad="eager",
)  # fmt: skip


def workload(model: ModelSpec, grad_accumulation: int = 1) -> Workload:
    """Row slices of 2 and 1 sequences of 5 tokens; GPT computes in bf16, Llama in fp32."""
    dtype = "bf16" if model.name == "gpt" else "fp32"
    return Workload(
        seq_length=5, micro_batch_size=3, grad_accumulation=grad_accumulation,
        dtype=dtype,  # type: ignore[arg-type]
    )  # fmt: skip


def schedule_of(
    model: ModelSpec, plan: SlicePlan = CUT, *, dp: int = 1, tp: int = TP, micros: int = 1
) -> Schedule:
    """The schedule of a small model on two ranks."""
    cluster = ClusterSpec(tp=tp, dp=dp)
    return build_schedule(model, workload(model, micros), cluster, plan)


def ops_of(schedule: Schedule, layer: int = 1, row: int = 0) -> dict[str, Op]:
    """The ops of one slice of one layer by name, without ``l1.s0.``."""
    prefix = f"l{layer}.s{row}."
    return {op.name.removeprefix(prefix): op for op in schedule.ops() if op.name.startswith(prefix)}


def edges_of(schedule: Schedule) -> dict[str, Op]:
    """The ops outside the layers by name, where there is one micro-batch."""
    return {op.name: op for op in schedule.ops() if not op.role.startswith(("attn.", "mlp."))}


def value_bytes(schedule: Schedule) -> dict[str, int]:
    """Bytes of every value, by its name within the layer."""
    ops = (t for part in schedule.parts for s in part.segments for t in s.templates)
    return {str(ref): size for t in ops for ref, size in zip(t.writes, t.sizes, strict=True)}


def sizes_of(schedule: Schedule) -> dict[str, int]:
    """Bytes of every value that takes memory, by its name within the layer."""
    return {name: size for name, size in value_bytes(schedule).items() if size}
