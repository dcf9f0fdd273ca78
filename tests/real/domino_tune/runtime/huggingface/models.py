"""Small models of every family, as ``transformers`` makes them, and plans for them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

import torch
import transformers

from domino_tune.store.formats.hf_config import from_hf_config
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.greedy import order_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import MEGATRON, SlicePlan
from simulator.profile import Profile
from simulator.specs import ClusterSpec, Workload

VOCAB: Final = 150
SEQUENCES: Final = 4
LENGTH: Final = 16
_SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_SCALED: Final = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_GPT2: Final[dict[str, Any]] = {
    "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": VOCAB, "n_positions": 64,
    "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
CONFIGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {**_SHAPE, "tie_word_embeddings": False, "rope_scaling": _SCALED}),
    "llama-biased": ("Llama", {**_SHAPE, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {**_SHAPE, "sliding_window": None, "vocab_size": VOCAB + 1}),
    "qwen2": ("Qwen2", {**_SHAPE, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**_SHAPE, "head_dim": 16}),
    "gpt2": ("GPT2", _GPT2),
}
"""Name -> family's class, and its config."""
PLANS: Final[dict[str, SlicePlan]] = {
    "unsliced": MEGATRON,
    "unsliced sp": replace(MEGATRON, sequence_parallel=True),
    "rows": SlicePlan(row_slices=2, attn_col_slices=2, mlp_col_slices=2),
    "rows sp": SlicePlan(row_slices=2, mlp_col_slices=2, sequence_parallel=True),
    "inter": SlicePlan(row_slices=2, order="inter", wgrad="eager"),
    "sequences": SlicePlan(row_slices=2, slice_dim="sequence"),
    "sequences sp": SlicePlan(row_slices=3, slice_dim="sequence", sequence_parallel=True),
}


def model_of(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Return a model with random weights, the same each time."""
    kind, config = CONFIGS[name]
    made = getattr(transformers, f"{kind}Config")(**{**config, **options})
    head = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, head)(made)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases begin as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
    model.tie_weights()
    return model.to(dtype)


def plan_for(model: Any, plan: SlicePlan, tp: int, *, dp: int = 1, **workload: Any) -> PlanFile:
    """Return a plan file for ``model``; greedy orders are planned for the bundled H100 profile."""
    spec = from_hf_config(model.config.to_dict(), name=model.config.model_type).spec
    work = Workload(seq_length=LENGTH, micro_batch_size=SEQUENCES, dtype="fp32", **workload)
    priced = replace(work, implementation=IMPLEMENTATIONS["megatron-te"])  # as tune does
    cluster = ClusterSpec(tp=tp, dp=dp)
    case = Case(
        model=spec, workload=replace(work, dtype="bf16"), cluster=cluster, profile=_profile()
    )
    return PlanFile(
        model=spec, workload=priced, cluster=cluster, profile=ProfileRef.of(_profile()), plan=plan,
        order=order_of(case, plan),
        predicted=Predicted(
            iteration_ms=1.0, baseline_ms=1.0, no_comm_ms=1.0, peak_memory_gib=1.0
        ),
    )  # fmt: skip


@cache
def _profile() -> Profile:
    return load_profile("h100-dgx")


def batch(number: int = 0, sequences: int = SEQUENCES) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels; the loss ignores some of the labels."""
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(VOCAB, (sequences, LENGTH), generator=generator)
    labels = ids.clone()
    labels[0, :5] = -100
    return ids, labels
