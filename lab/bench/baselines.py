"""When Domino pays: its best cut over Megatron-LM, with and without sequence parallelism.

Megatron-LM is trained with sequence parallelism, so that is the baseline. The column without it is
what papers compare with. Memory is not looked at: pipelines and replicas decide it.
"""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from statistics import median
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.profiles import list_profiles, load_profile
from domino_tune.verbs.resolve import baseline_no_sp, baseline_plan
from simulator.case import Case
from simulator.confidence import Confidence, confidence_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import SlicePlan
from simulator.predict import played, predict, unsure_clocks
from simulator.presets import MODELS
from simulator.record import record
from simulator.specs import ClusterSpec, Workload

JOBS: Final = {
    "gpt3-6.7b": 2048, "gpt3-13b": 2048, "gpt3-175b": 2048, "llama2-7b": 4096,
    "llama2-13b": 4096, "llama3-8b": 8192, "llama3-70b": 8192, "qwen3-32b": 8192,
}  # fmt: skip
"""Model -> the length of the sequences that it was trained with."""
TP: Final = (2, 4, 8)
PROFILES: Final = [found.name for found in list_profiles() if found.origin == "bundled"]
TOKENS: Final = 16_384
"""Of one micro-batch: two sequences of the longest length, which row slices need."""


class Gain(NamedTuple):
    """One job. ``sharded``, ``whole``: Domino over Megatron-LM, both with sequence parallelism, or
    both without. ``overall``: the best Domino over the best Megatron-LM."""

    sharded: float
    whole: float
    overall: float
    plan: SlicePlan
    confidence: Confidence


def baselines() -> list[Table]:
    """Return a row a job, and a summary a profile."""
    rows, gains = [], dict[tuple[str, int], list[Gain]]()
    for profile, name, tp in product(PROFILES, JOBS, TP):
        gain = gain_of(case_of(profile, name, tp))
        gains.setdefault((profile, tp), []).append(gain)
        rows.append((profile, name, str(tp), *_columns(gain)))
    return [_summary(gains), _jobs(rows)]


def case_of(profile: str, model: str, tp: int) -> Case:
    """Return the job of one micro-batch."""
    length = JOBS[model]
    return Case(
        model=MODELS[model],
        workload=Workload(
            seq_length=length,
            micro_batch_size=TOKENS // length,
            implementation=IMPLEMENTATIONS["megatron-te"],
        ),
        cluster=ClusterSpec(tp=tp),
        profile=load_profile(profile),
    )


def gain_of(case: Case) -> Gain:
    """Return what the best of the usual cuts gains; each mode has its own baseline."""
    base_ns = [_time_ns(case, plan) for plan in (baseline_plan(case), baseline_no_sp(case))]
    sharded, whole = (_fastest(case, mode) for mode in (True, False))
    best_ns, plan = min(sharded, whole, key=itemgetter(0))
    found = played(case, plan)
    timeline = record(found.schedule, found.program)
    return Gain(
        sharded=base_ns[0] / sharded[0],
        whole=base_ns[1] / whole[0],
        overall=min(base_ns) / best_ns,
        plan=plan,
        confidence=confidence_of(timeline, found.cost, unsure_clocks(case, found)),
    )


def cuts(case: Case, mode: bool) -> list[SlicePlan]:
    """Return the cuts that are worth trying: few slices, in greedy and in DeepSpeed's order."""
    rows = [r for r in (2, 3, 4) if r <= case.workload.micro_batch_size]
    ctas = case.comm_ctas_choices
    greedy = [
        SlicePlan(
            row_slices=r, attn_col_slices=columns, mlp_col_slices=columns, attn_dgrad_slices=1,
            mlp_dgrad_slices=1, merge_wgrad=merge, comm_ctas=cta, sequence_parallel=mode,
        )
        for r, columns, merge, cta in product(rows, (1, 2), (False, True), ctas)
    ]  # fmt: skip
    inter = SlicePlan(order="inter", wgrad="deferred", sequence_parallel=mode)
    columns = [
        SlicePlan(row_slices=1, attn_col_slices=c, mlp_col_slices=c, sequence_parallel=mode)
        for c in (2, 4)
    ]
    return [*greedy, inter, *columns]


def _fastest(case: Case, mode: bool) -> tuple[int, SlicePlan]:
    """Return the time and the plan of the first of the fastest cuts."""
    return min(((_time_ns(case, plan), plan) for plan in cuts(case, mode)), key=itemgetter(0))


def _time_ns(case: Case, plan: SlicePlan) -> int:
    return predict(case, plan).makespan_ns


def _columns(gain: Gain) -> tuple[str, ...]:
    known = gain.confidence
    middle = (known.high_ns + known.low_ns) / 2
    width = (known.high_ns - known.low_ns) / 2 / middle
    return (
        f"{gain.overall:.3f}x", f"{gain.sharded:.3f}x", f"{gain.whole:.3f}x", gain.plan.label,
        f"±{width:.0%}", known.level,
    )  # fmt: skip


def _summary(gains: dict[tuple[str, int], list[Gain]]) -> Table:
    return Table(
        title="Domino over Megatron-LM, eight models: least … median … most",
        columns=("profile", ">tp", ">over the baseline (with SP)", ">both without SP"),
        rows=[
            (
                profile, str(tp), _range([gain.overall for gain in found]),
                _range([gain.whole for gain in found]),
            )
            for (profile, tp), found in gains.items()
        ],
    )  # fmt: skip


def _range(values: list[float]) -> str:
    return f"{min(values):.2f} … {median(values):.2f} … {max(values):.2f}"


def _jobs(rows: list[tuple[str, ...]]) -> Table:
    return Table(
        title=f"Each job: {TOKENS:,} tokens a micro-batch, one replica, bf16",
        columns=(
            "profile", "model", ">tp", ">gain", ">both with SP", ">both without", "best cut",
            ">time ±", "confidence",
        ),
        rows=rows,
        notes=["Gains are predictions: no GPU has run Domino with sequence parallelism yet."],
    )  # fmt: skip
