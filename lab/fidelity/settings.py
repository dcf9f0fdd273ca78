"""Settings: the models, links and plans that a report covers by default (``settings.toml``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from lab import told
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import llama_model
from simulator.specs import ModelSpec, Workload

TOLD: Final[dict[str, Any]] = told(__file__)
LINKS: Final[list[str]] = TOLD["links"]
ALWAYS_TWO: Final = "inter"
"""The plan of DeepSpeed's Domino on every machine."""
TUNED: Final = "tuned"
BASELINE: Final = "baseline"
Job = tuple[ModelSpec, Workload]


class Kind(NamedTuple):
    """One report. ``sequence_parallel``: what `tune` is asked for; None leaves it the choice."""

    title: str
    models: dict[str, Job]
    plans: dict[str, SlicePlan]
    sequence_parallel: bool | None

    @classmethod
    def of(cls, name: str) -> Kind:
        """Return a kind of the file."""
        one = TOLD[name]
        mode, plans = one.get("sequence_parallel"), {BASELINE: MEGATRON}
        plans |= {plan: SlicePlan(**fields) for plan, fields in one["plans"].items()}
        if mode:
            plans = {plan: replace(x, sequence_parallel=True) for plan, x in plans.items()}
        single = {model: _single(*job) for model, job in MODELS.items()}
        return cls(one["title"], single if name == "sequences" else MODELS, plans, mode)


def _model(name: str, hidden: int, layers: int) -> ModelSpec:
    heads = hidden // 64
    if name.startswith("llama"):
        return llama_model(name, layers, hidden, heads, heads // 2, hidden * 11 // 4,
                           vocab=2048, positions=1024)  # fmt: skip
    return ModelSpec(
        name=name, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=heads, head_dim=64, intermediate_size=4 * hidden, vocab_size=2048,
        max_position_embeddings=1024,
    )  # fmt: skip


def _single(spec: ModelSpec, work: Workload) -> Job:
    length = work.seq_length * work.micro_batch_size
    return spec, replace(work, seq_length=length, micro_batch_size=1)


MODELS: Final[dict[str, Job]] = {
    name: (_model(name, *size), Workload(seq_length=seq, micro_batch_size=batch, dtype="fp32"))
    for name, *size, seq, batch in TOLD["models"]
}
KINDS: Final[dict[str, Kind]] = {name: Kind.of(name) for name in ("plain", "sharded", "sequences")}
