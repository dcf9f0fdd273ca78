"""Settings: the models, links and plans that a report covers by default.

There are three kinds: without sequence parallelism, with it, and slices of single sequences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import llama_model
from simulator.specs import ModelSpec, Workload

LINKS: Final = ("500mbit", "1gbit", "2gbit", "4gbit")


def _gpt(name: str, hidden: int, layers: int) -> ModelSpec:
    return ModelSpec(
        name=name, num_hidden_layers=layers, hidden_size=hidden,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64, head_dim=64,
        intermediate_size=4 * hidden, vocab_size=2048, max_position_embeddings=1024,
    )  # fmt: skip


def _llama(name: str, hidden: int, layers: int) -> ModelSpec:
    return llama_model(
        name, layers, hidden, hidden // 64, hidden // 128, hidden * 11 // 4,
        vocab=2048, positions=1024,
    )  # fmt: skip


MODELS: Final[dict[str, tuple[ModelSpec, Workload]]] = {
    spec.name: (spec, Workload(seq_length=seq, micro_batch_size=batch, dtype="fp32"))
    for spec, seq, batch in (
        (_gpt("gpt-small", 512, 2), 192, 4),
        (_gpt("gpt-wide", 768, 2), 96, 4),
        (_llama("llama-small", 512, 2), 192, 4),
        (_llama("llama-wide", 768, 2), 96, 4),
    )
}
"""Model and workload by name, small enough to run hundreds of times on two cores."""

PLANS: Final[dict[str, SlicePlan]] = {
    "baseline": MEGATRON,
    "inter": SlicePlan(row_slices=2, order="inter", wgrad="eager"),
    "paper": SlicePlan(row_slices=2, order="paper", wgrad="eager"),
    "intra": SlicePlan(row_slices=2, order="intra", wgrad="deferred"),
    "rows": SlicePlan(row_slices=4),
    "columns": SlicePlan(
        row_slices=1, attn_col_slices=2, mlp_col_slices=2, order="intra", wgrad="eager"
    ),
    "hybrid": SlicePlan(row_slices=2, attn_col_slices=2, mlp_col_slices=2),
}
"""Plans that run for each model and link, beside the plan that `tune` chooses."""
SHARDED: Final = {
    name: replace(PLANS[name], sequence_parallel=True)
    for name in ("baseline", "inter", "intra", "rows", "hybrid")
}
ALONG: Final[dict[str, SlicePlan]] = {
    "baseline": MEGATRON,
    "inter": SlicePlan(order="inter", wgrad="eager", slice_dim="sequence"),
    "two": SlicePlan(slice_dim="sequence"),
    "three": SlicePlan(row_slices=3, merge_wgrad=True, slice_dim="sequence", slice_balance="even"),
    "two sp": SlicePlan(slice_dim="sequence", sequence_parallel=True),
}


class Kind(NamedTuple):
    """One report. ``sequence_parallel``: what `tune` is asked for; None leaves it the choice."""

    title: str
    models: dict[str, tuple[ModelSpec, Workload]]
    plans: dict[str, SlicePlan]
    sequence_parallel: bool | None


def _single(job: tuple[ModelSpec, Workload]) -> tuple[ModelSpec, Workload]:
    spec, work = job
    length = work.seq_length * work.micro_batch_size
    return spec, replace(work, seq_length=length, micro_batch_size=1)


KINDS: Final[dict[str, Kind]] = {
    "plain": Kind("Fidelity", MODELS, PLANS, False),
    "sharded": Kind("Fidelity with sequence parallelism", MODELS, SHARDED, True),
    "sequences": Kind(
        "Fidelity of slices of one sequence",
        {name: _single(job) for name, job in MODELS.items()}, ALONG, None,
    ),
}  # fmt: skip
ALWAYS_TWO: Final = "inter"
"""The plan of DeepSpeed's Domino on every machine."""
TUNED: Final = "tuned"
BASELINE: Final = "baseline"
