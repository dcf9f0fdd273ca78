"""When Domino pays: its best cut over Megatron-LM.

Megatron-LM is trained with sequence parallelism, or without where that is faster. Memory is not
looked at: pipelines and replicas decide it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.profiles import list_profiles, load_profile
from domino_tune.verbs.resolve import baseline_no_sp, baseline_plan
from lab.bench.cases import fastest, half_width, interval, spread
from simulator.case import Case
from simulator.confidence import Confidence
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.slicing import SEQUENCE_ROW_SLICES, SLICE_BALANCES
from simulator.specs import ClusterSpec, Workload
from simulator.units import MS_PER_NS

JOBS: Final = {
    "gpt3-6.7b": 2048, "gpt3-13b": 2048, "gpt3-175b": 2048, "llama2-7b": 4096,
    "llama2-13b": 4096, "llama3-8b": 8192, "llama3-70b": 8192, "qwen3-32b": 8192,
}  # fmt: skip
"""Model -> the length of the sequences that it was trained with."""
DEGREES: Final = (2, 4, 8)
TP: Final = 8
PROFILES: Final = [found.name for found in list_profiles() if found.origin == "bundled"]
TOKENS: Final = 16_384
"""Of one micro-batch: two sequences of the longest length, which row slices need."""
LONG: Final = tuple(product(("llama3-8b", "llama3-70b", "llama3-405b"), (8_192, 32_768, 131_072)))
"""(model, tokens of the single sequence of a micro-batch)."""
LAYERS: Final = 8
"""Of a long sequence's stack, instead of all. The embedding and the head, which are not sliced
alike, weigh more in it than in the model: its gains are a little larger."""


class Gain(NamedTuple):
    """One job: the best Domino over the best Megatron-LM, its cut, and how sure its time is."""

    gain: float
    plan: SlicePlan
    known: Confidence


def baselines() -> list[Table]:
    """Return a summary a profile and TP degree, then a row a job."""
    gains = {job: gain_of(case_of(*job)) for job in product(PROFILES, JOBS, DEGREES)}
    groups = {
        (profile, tp): [gains[profile, model, tp] for model in JOBS]
        for profile, tp in product(PROFILES, DEGREES)
    }
    return [
        Table(
            title="Domino over Megatron-LM, eight models: least … median … most",
            columns=("profile", ">tp", ">gain"),
            rows=[
                (profile, str(tp), " … ".join(spread((one.gain for one in found), ".2f")))
                for (profile, tp), found in groups.items()
            ],
        ),
        Table(
            title=f"Each job: {TOKENS:,} tokens a micro-batch, one replica, bf16",
            columns=("profile", "model", ">tp", ">gain", "best cut", ">time ±", "confidence"),
            rows=[
                (
                    profile, model, str(tp), f"{one.gain:.3f}x", one.plan.label,
                    f"±{half_width(one.known):.0%}", one.known.level,
                )
                for (profile, model, tp), one in gains.items()
            ],
            notes=["Gains are predictions: no GPU has run Domino with sequence parallelism yet."],
        ),
    ]  # fmt: skip


def case_of(profile: str, model: str, tp: int) -> Case:
    """Return the job of one micro-batch."""
    return _case(profile, model, tp, JOBS[model], TOKENS // JOBS[model])


def long_case(profile: str, model: str, length: int) -> Case:
    """Return the job of one micro-batch of one sequence."""
    case = _case(profile, model, TP, length, 1)
    positions = max(length, case.model.max_position_embeddings)
    stack = replace(case.model, num_hidden_layers=LAYERS, max_position_embeddings=positions)
    return replace(case, model=stack)


def _case(profile: str, model: str, tp: int, length: int, sequences: int) -> Case:
    return Case(
        model=MODELS[model],
        workload=Workload(
            seq_length=length,
            micro_batch_size=sequences,
            implementation=IMPLEMENTATIONS["megatron-te"],
        ),
        cluster=ClusterSpec(tp=tp),
        profile=load_profile(profile),
    )


def gain_of(case: Case) -> Gain:
    """Return what the best of the usual cuts gains, with sequence parallelism or without."""
    base_ns, _ = fastest(case, [baseline_plan(case), baseline_no_sp(case)])
    best_ns, plan = fastest(case, [*cuts(case, True), *cuts(case, False)])
    return Gain(base_ns / best_ns, plan, interval(case, plan))


def cuts(case: Case, mode: bool) -> list[SlicePlan]:
    """Return the cuts that are worth trying: few slices, in greedy and in DeepSpeed's order."""
    rows = [r for r in (2, 3, 4) if r <= case.workload.micro_batch_size]
    merges = (False, True) if case.workload.merges_wgrads else (False,)
    greedy = [
        SlicePlan(
            row_slices=r, attn_col_slices=columns, mlp_col_slices=columns, attn_dgrad_slices=1,
            mlp_dgrad_slices=1, merge_wgrad=merge, comm_ctas=cta, sequence_parallel=mode,
        )
        for r, columns, merge, cta in product(rows, (1, 2), merges, case.comm_ctas_choices)
    ]  # fmt: skip
    inter = SlicePlan(order="inter", wgrad="deferred", sequence_parallel=mode)
    return [*greedy, inter, *_columns(mode)]


def _columns(mode: bool) -> list[SlicePlan]:
    return [
        SlicePlan(row_slices=1, attn_col_slices=c, mlp_col_slices=c, sequence_parallel=mode)
        for c in (2, 4)
    ]


# One sequence a micro-batch: only columns can be cut, or positions -------------------------------


class Sliced(NamedTuple):
    """One job. ``columns``, ``along``: the gain of the best plan without slices of the sequence,
    and with them; ``plan``: the latter; ``width``: half of its interval, relative; ``exposed``: the
    shares of the baseline's iteration and of the plan's."""

    baseline_ns: int
    columns: float
    along: float
    plan: SlicePlan
    width: float
    exposed: tuple[float, float]


def sequence_slices() -> list[Table]:
    """Return a summary a profile, then a row a job."""
    found = {
        (profile, *job): sliced(long_case(profile, *job)) for profile in PROFILES for job in LONG
    }
    return [
        Table(
            title=f"Gain with slices of the sequence at TP {TP}, of all jobs",
            columns=("profile", ">least", ">median", ">most"),
            rows=[
                (name, *(f"{one}x" for one in spread(gains, ".3f")))
                for name in PROFILES
                for gains in ([found[name, *job].along for job in LONG],)
            ],
        ),
        Table(
            title=f"Stacks of {LAYERS} layers, one sequence a micro-batch, TP {TP}, bf16, both "
            "with SP",
            columns=(
                "profile", "model", ">tokens", ">baseline ms", ">exposed", ">columns only",
                ">sequence", ">time ±", ">exposed", "best cut",
            ),
            rows=[
                (
                    profile, model, f"{length:,}", f"{one.baseline_ns * MS_PER_NS:,.1f}",
                    f"{one.exposed[0]:.0%}", f"{one.columns:.3f}x", f"{one.along:.3f}x",
                    f"{one.width:.0%}", f"{one.exposed[1]:.0%}", one.plan.label,
                )
                for (profile, model, length), one in found.items()
            ],
            notes=[
                "columns only, sequence: the baseline's time over the best cut's. The interval is "
                "of that cut's iteration time; errors of look-ups move the baseline, too.",
                "Attention behind earlier keys is assumed to take its share of the whole "
                "sequence's.",
                "No GPU has run slices of sequences yet.",
            ],
        ),
    ]  # fmt: skip


def sliced(case: Case) -> Sliced:
    """Return what the usual cuts gain, over the profile's CTA counts."""
    along = [
        SlicePlan(
            row_slices=rows, merge_wgrad=merge, sequence_parallel=True, slice_dim="sequence",
            slice_balance=balance,
        )
        for rows, balance, merge in product(SEQUENCE_ROW_SLICES, SLICE_BALANCES, (False, True))
    ]  # fmt: skip
    (columns_ns, _), (along_ns, plan) = (
        fastest(
            case, [replace(p, comm_ctas=ctas) for p in plans for ctas in case.comm_ctas_choices]
        )
        for plans in (_columns(True), along)
    )
    base, best = predict(case, baseline_plan(case)), predict(case, plan)
    return Sliced(
        baseline_ns=base.makespan_ns,
        columns=base.makespan_ns / columns_ns,
        along=base.makespan_ns / along_ns,
        plan=plan,
        width=half_width(interval(case, plan)),
        exposed=(base.exposed_ns / base.makespan_ns, best.exposed_ns / best.makespan_ns),
    )
