"""What hides the exchange of experts' tokens, and how much: models by profiles by ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.search.rivals import paired_plans
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import Chosen, place
from domino_tune.verbs.verdict import drawn_times_ns, middle_of
from lab.verdict import table
from simulator.case import Case
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, MoeDispatcher, Workload

NAMES: Final = (
    "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "deepseek-v2", "deepseek-v3",
    "gpt-oss-120b",
)  # fmt: skip
PROFILES: Final[dict[str, MoeDispatcher]] = {
    "h100-dgx": "deepep", "b200-sxm": "deepep", "gb200-nvl72": "hybridep",
}  # fmt: skip
"""Profile -> the dispatcher that its recipes have."""
RANKS: Final = (8, 16, 32, 64)
LAYERS: Final = 8
"""Layers of each model: a stage's, beside which embedding and head count little."""
MICROS: Final = 8
SEQUENCE: Final = 4096
SIZE: Final = 2
"""Sequences of a micro-batch, so that it can be cut in two."""


def hiding() -> list[Table]:
    """Return by how much each way speeds up a step, and the middle 80 % of drawn machines."""
    jobs = product(NAMES, PROFILES, RANKS)
    return [
        table(
            f"What hides the exchange: {LAYERS} layers, {MICROS} micro-batches of {SIZE} × "
            f"{SEQUENCE:,}, TP 1, bf16",
            "model|profile|>EP|>exchange|two micro-batches|Domino, 2 slices|shared expert",
            [(*job, *_ways(*job)) for job in jobs if MODELS[job[0]].num_experts % job[2] == 0],
            "exchange: its exposed share of Megatron-LM's step. Others: times as fast as that, and "
            "the middle 80 % of 2,000 machines drawn from the profile's errors. Tokens by "
            f"{', '.join(f'{one} on {profile}' for profile, one in PROFILES.items())}.",
        )
    ]


def _ways(name: str, profile: str, ranks: int) -> tuple[str, ...]:
    case = _case(name, profile, ranks)
    alone, cells = predict(case, MEGATRON), []
    plans = {"": MEGATRON, "pairs": paired_plans(case)[0], "domino": SlicePlan(row_slices=2)}
    chosen = {way: Chosen.of(case, plan) for way, plan in plans.items()}
    drawn = drawn_times_ns(case, chosen)
    for way in ("pairs", "domino"):
        low, high = middle_of(drawn[""] / drawn[way])
        gain = alone.makespan_ns / predict(case, plans[way], chosen[way].order).makespan_ns
        cells.append(f"{gain:.2f} ({low:.2f}–{high:.2f})")
    shared = ""
    if case.model.shared_expert_intermediate_size:
        beside = replace(case.workload, moe_shared_expert_overlap=True)
        with_it = predict(replace(case, workload=beside), MEGATRON)
        shared = f"{alone.makespan_ns / with_it.makespan_ns:.2f}"
    return f"{alone.exposed_ns / alone.makespan_ns:.0%}", *cells, shared


def _case(name: str, profile: str, ranks: int) -> Case:
    """Return layers of a model whose experts are divided among ``ranks``."""
    known, model = load_profile(profile), MODELS[name]
    model = replace(
        model, num_hidden_layers=LAYERS, num_nextn_predict_layers=0,
        first_k_dense_replace=min(1, model.first_k_dense_replace),
    )  # fmt: skip
    cluster = place(ClusterSpec(tp=1, dp=ranks, ep=ranks, ranks_per_node=1 << 30), known, None)
    work = Workload(
        seq_length=SEQUENCE, micro_batch_size=SIZE, grad_accumulation=MICROS,
        data_parallel="distributed-optimizer", moe_dispatcher=PROFILES[profile],
        implementation=IMPLEMENTATIONS["megatron-te"],
    )  # fmt: skip
    return Case(model=model, profile=known, cluster=cluster, workload=work)
