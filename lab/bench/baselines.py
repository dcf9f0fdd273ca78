"""When Domino pays: its best cut over Megatron-LM.

Megatron-LM is trained with sequence parallelism, or without where that is faster. Memory is not
looked at: pipelines and replicas decide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.search.rivals import rival_plans
from domino_tune.store.profiles import list_profiles, load_profile
from domino_tune.verbs.resolve import baseline_no_sp, baseline_plan
from lab.bench.cases import fastest, half_width, interval, spread, time_ms
from simulator.case import Case
from simulator.confidence import Confidence
from simulator.dtypes import Fp8Recipe
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.slicing import SEQUENCE_ROW_SLICES, SLICE_BALANCES
from simulator.specs import ClusterSpec, Workload

JOBS: Final = {
    "gpt3-6.7b": 2048, "gpt3-13b": 2048, "gpt3-175b": 2048, "llama2-7b": 4096,
    "llama2-13b": 4096, "llama3-8b": 8192, "llama3-70b": 8192, "qwen3-32b": 8192,
}  # fmt: skip
"""Model -> the length of the sequences that it was trained with."""
DEGREES: Final = (2, 4, 8)
TP: Final = 8
PROFILES: Final = [found.name for found in list_profiles() if found.origin == "bundled"]
MACHINES: Final = ("h100-dgx", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72")
TOKENS: Final = 16_384
"""Of one micro-batch: two sequences of the longest length, which row slices need."""
LONG: Final = tuple(product(("llama3-8b", "llama3-70b", "llama3-405b"), (8_192, 32_768, 131_072)))
"""(model, tokens of the single sequence of a micro-batch)."""
FORMATS_ON: Final = "h100-dgx"
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


def machines() -> list[Table]:
    """Return what a GPU of each machine trains of eight models, in BF16 and in FP8."""
    return [
        Table(
            title=f"Tokens a second and GPU, BF16 and FP8 (tensorwise), TP {TP}, Megatron-LM",
            columns=("model", *(f">{name}" for name in MACHINES)),
            rows=[
                (model, *(" ".join(_rates(name, model)) for name in MACHINES)) for model in JOBS
            ],
            notes=[f"{TOKENS:,} tokens a micro-batch, one replica, sequence parallelism."],
        )
    ]  # fmt: skip


def _rates(profile: str, model: str) -> Iterator[str]:
    for recipe in ("none", "tensorwise"):
        plain = case_of(profile, model, TP)
        case = replace(plain, workload=replace(plain.workload, fp8_recipe=recipe))
        seconds = 1e-9 * predict(case, baseline_plan(case)).makespan_ns
        yield f"{case.tokens / seconds / TP:,.0f}"


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
    columns = [
        SlicePlan(row_slices=1, attn_col_slices=c, mlp_col_slices=c, sequence_parallel=mode)
        for c in (2, 4)
    ]
    return [*greedy, inter, *columns]


# One sequence a micro-batch: only columns can be cut, or positions -------------------------------


def sequence_slices() -> list[Table]:
    """Return what slices of one long sequence gain, least, median and most of all jobs."""
    return [
        Table(
            title=f"Gain with slices of the sequence at TP {TP}, of {len(LONG)} jobs: stacks of "
            f"{LAYERS} layers, one sequence a micro-batch, both with SP",
            columns=("profile", ">least", ">median", ">most"),
            rows=[
                (profile, *(f"{one}x" for one in spread(gains, ".3f")))
                for profile in PROFILES
                for gains in ([sliced(long_case(profile, *job))[0] for job in LONG],)
            ],
            notes=[
                "Attention behind earlier keys is assumed to take its share of the whole "
                "sequence's. No GPU has run slices of sequences yet."
            ],
        )
    ]


def sliced(case: Case) -> tuple[float, SlicePlan]:
    """Return what slices of the sequence gain, over the profile's CTA counts, and the best cut."""
    plans = [
        SlicePlan(
            row_slices=rows, merge_wgrad=merge, sequence_parallel=True, slice_dim="sequence",
            slice_balance=balance, comm_ctas=ctas,
        )
        for rows, balance, merge, ctas in product(
            SEQUENCE_ROW_SLICES, SLICE_BALANCES, (False, True), case.comm_ctas_choices
        )
    ]  # fmt: skip
    best_ns, plan = fastest(case, plans)
    return predict(case, baseline_plan(case)).makespan_ns / best_ns, plan


# Two formats -------------------------------------------------------------------------------------


def formats() -> list[Table]:
    """Return what Domino and the best rival gain for eight models, in BF16 and in FP8."""
    return [
        Table(
            title=f"Speed-up over Megatron-LM with sequence parallelism on {FORMATS_ON}",
            columns=("model", ">tp", ">Domino, BF16", ">best rival", ">Domino, FP8", ">best rival"),
            rows=[
                (model, str(tp), *_format(model, tp, "none"), *_format(model, tp, "tensorwise"))
                for model, tp in product(JOBS, (4, 8))
            ],
            notes=[f"{TOKENS:,} tokens a micro-batch; FP8: one scale a tensor (tensorwise). ±: "
                   "half of the interval of the iteration."],
        )
    ]  # fmt: skip


def _format(model: str, tp: int, recipe: Fp8Recipe) -> tuple[str, str]:
    """Return the cells of a job's linear layers in a recipe."""
    plain = case_of(FORMATS_ON, model, tp)
    case = replace(plain, workload=replace(plain.workload, fp8_recipe=recipe))
    found, base = gain_of(case), predict(case, baseline_plan(case)).makespan_ns
    rivals = {
        name: base / predict(case, plan).makespan_ns for name, plan in rival_plans(case).items()
    }
    best = max(rivals, key=rivals.__getitem__)
    return f"{found.gain:.2f} ±{half_width(found.known):.0%}", f"{rivals[best]:.2f} {best}"


# What the power cap takes: hidden communication leaves the energy of an iteration as it was and its
# time shorter, so power rises; where the cap holds the clock, part of the gain goes to a lower one.

SHARES: Final = (0.6, 0.7, 0.85, 1.0, 1.15)
"""Caps, as shares of each GPU's own."""
Plans = tuple[SlicePlan, SlicePlan]


def power() -> list[Table]:
    """Return a row a job and profile, then two jobs under several caps."""
    return [
        Table(
            title=f"What power takes of Domino's gain at TP {TP}, both with SP",
            columns=("profile", "model", ">gain, clock free", ">under the cap", ">taken"),
            rows=[_capped(*job) for job in product(PROFILES, JOBS)],
            notes=["Draws are known at one clock of one H200; what stands on them is assumed."],
        ),
        Table(
            title="The same plans' gain by the cap, as a share of the GPU's own",
            columns=("profile", "model", *(f">{share:.0%}" for share in SHARES)),
            rows=[_caps(*job) for job in product(PROFILES, ("gpt3-13b", "llama3-70b"))],
        ),
    ]


def plans_of(case: Case) -> Plans:
    """Return the baseline and the best usual cut at the profile's own cap, both with SP."""
    return baseline_plan(case), fastest(case, cuts(case, True))[1]


def gain_between(case: Case, plans: Plans) -> float:
    """Return how much faster the second plan is."""
    return time_ms(case, plans[0]) / time_ms(case, plans[1])


def _capped(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    plans = plans_of(case)
    unheld = replace(case, profile=replace(case.profile, power=None))
    free, gain = gain_between(unheld, plans), gain_between(case, plans)
    taken = f"{(free - gain) / (free - 1):.0%}" if free > 1 else "–"
    return profile, model, f"{free:.3f}x", f"{gain:.3f}x", taken


def _caps(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    assert case.profile.power is not None
    plans, gains = plans_of(case), []
    for share in SHARES:
        cap_w = float(round(share * case.profile.power.cap_w))
        held = replace(case, cluster=replace(case.cluster, power_cap_w=cap_w))
        gains.append(f"{gain_between(held, plans):.3f}x")
    return profile, model, *gains
