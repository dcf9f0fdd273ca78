"""What hides the exchange of experts' tokens, and how much: models by profiles by ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.search.rivals import paired_plans
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import Chosen, place
from domino_tune.verbs.verdict import drawn_times_ns, middle_of
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
DOMINO: Final = SlicePlan(row_slices=2)


def hiding() -> list[Table]:
    """Return by how much each way speeds up a step, and the middle 80 % of drawn machines."""
    rows = [row for name in NAMES for profile in PROFILES for row in _rows(name, profile)]
    return [
        Table(
            title=f"What hides the exchange: {LAYERS} layers, {MICROS} micro-batches of {SIZE} × "
            f"{SEQUENCE:,}, TP 1, bf16",
            columns=(
                "model", "profile", ">EP", ">exchange", "two micro-batches", "Domino, 2 slices",
                "shared expert",
            ),
            rows=rows,
            notes=(
                "exchange: its exposed share of Megatron-LM's step. Others: times as fast as that, "
                "and the middle 80 % of 2,000 machines drawn from the profile's errors. Tokens by "
                f"{', '.join(f'{one} on {profile}' for profile, one in PROFILES.items())}.",
            ),
        )
    ]  # fmt: skip


def _rows(name: str, profile: str) -> Iterator[tuple[str, ...]]:
    for ranks in RANKS:
        if MODELS[name].num_experts % ranks == 0:
            case = case_of(name, profile, ranks)
            alone = predict(case, MEGATRON)
            pairs = paired_plans(case)[0]
            gains = _gains(case, {"pairs": pairs, "domino": DOMINO})
            yield (
                name, profile, str(ranks), f"{alone.exposed_ns / alone.makespan_ns:.0%}",
                gains["pairs"], gains["domino"], _shared(case, alone.makespan_ns),
            )  # fmt: skip


def _gains(case: Case, plans: dict[str, SlicePlan]) -> dict[str, str]:
    every = {"alone": MEGATRON, **plans}
    chosen = {name: Chosen.of(case, plan) for name, plan in every.items()}
    drawn = drawn_times_ns(case, chosen)
    times = {name: predict(case, one.plan, one.order).makespan_ns for name, one in chosen.items()}
    found = {}
    for name in plans:
        low, high = middle_of(drawn["alone"] / drawn[name])
        found[name] = f"{times['alone'] / times[name]:.2f} ({low:.2f}–{high:.2f})"
    return found


def _shared(case: Case, alone_ns: int) -> str:
    """Return the gain of a shared expert that runs beside the exchange; none without one."""
    if not case.model.shared_expert_intermediate_size:
        return ""
    work = replace(case.workload, moe_shared_expert_overlap=True)
    return f"{alone_ns / predict(replace(case, workload=work), MEGATRON).makespan_ns:.2f}"


def case_of(name: str, profile: str, ranks: int) -> Case:
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
