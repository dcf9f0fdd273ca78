"""Domino where the micro-batch is one sequence: slices of the sequence, over Megatron-LM with
sequence parallelism.

Without slices of the sequence only columns can be cut. Eight layers stand for the whole stack, so
that the embedding and the head, which are not sliced alike, weigh more than in the model: its gains
are a little larger. Memory is not looked at: pipelines, context parallelism and replicas decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from operator import itemgetter
from statistics import median
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import baseline_plan
from lab.bench.baselines import PROFILES
from simulator.case import Case
from simulator.confidence import confidence_of
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import SlicePlan
from simulator.predict import played, predict, unsure_clocks
from simulator.presets import MODELS
from simulator.record import record
from simulator.slicing import SEQUENCE_ROW_SLICES, SLICE_BALANCES
from simulator.specs import ClusterSpec, Workload
from simulator.units import MS_PER_NS

NAMES: Final = ("llama3-8b", "llama3-70b", "llama3-405b")
LENGTHS: Final = (8_192, 32_768, 131_072)
TP: Final = 8
LAYERS: Final = 8
Job = tuple[str, str, int]
JOBS: Final[tuple[Job, ...]] = tuple(product(PROFILES, NAMES, LENGTHS))
"""(profile, model, tokens of the sequence)."""


class Found(NamedTuple):
    """One job. ``columns``, ``along``: the gain of the best plan without slices of the sequence,
    and with them; ``plan``: the latter; ``width``: half of its interval, relative; ``exposed``: the
    shares of the baseline's iteration and of the plan's."""

    baseline_ns: int
    columns: float
    along: float
    plan: SlicePlan
    width: float
    exposed: tuple[float, float]


def sequence_slices(jobs: Sequence[Job] = JOBS) -> list[Table]:
    """Return a summary a profile, then a row a job."""
    found = [best(case_of(*job)) for job in jobs]
    return [_summary(jobs, found), _jobs(jobs, found)]


def case_of(profile: str, model: str, length: int) -> Case:
    """Return the job of one micro-batch."""
    layers = replace(
        MODELS[model], num_hidden_layers=LAYERS,
        max_position_embeddings=max(length, MODELS[model].max_position_embeddings),
    )  # fmt: skip
    workload = Workload(
        seq_length=length, micro_batch_size=1, implementation=IMPLEMENTATIONS["megatron-te"]
    )
    return Case(
        model=layers, workload=workload, cluster=ClusterSpec(tp=TP), profile=load_profile(profile)
    )


def best(case: Case) -> Found:
    """Return what the usual cuts gain."""
    base = predict(case, baseline_plan(case))
    columns_ns, _ = _fastest(case, _columns())
    along_ns, plan = _fastest(case, _along())
    run = played(case, plan)
    timeline = record(run.schedule, run.program)
    known = confidence_of(timeline, run.cost, unsure_clocks(case, run))
    return Found(
        baseline_ns=base.makespan_ns,
        columns=base.makespan_ns / columns_ns,
        along=base.makespan_ns / along_ns,
        plan=plan,
        width=(known.high_ns - known.low_ns) / (known.high_ns + known.low_ns),
        exposed=(
            base.exposed_ns / base.makespan_ns,
            run.totals.exposed_ns / run.totals.makespan_ns,
        ),
    )


def _columns() -> list[SlicePlan]:
    return [
        SlicePlan(row_slices=1, attn_col_slices=count, mlp_col_slices=count, sequence_parallel=True)
        for count in (2, 4)
    ]


def _along() -> list[SlicePlan]:
    return [
        SlicePlan(
            row_slices=rows, merge_wgrad=merge, sequence_parallel=True, slice_dim="sequence",
            slice_balance=balance,
        )
        for rows, balance, merge in product(
            SEQUENCE_ROW_SLICES, SLICE_BALANCES, (False, True)
        )
    ]  # fmt: skip


def _fastest(case: Case, plans: list[SlicePlan]) -> tuple[int, SlicePlan]:
    """Return time and plan of the first of the fastest, over the profile's CTA counts."""
    choices = [replace(plan, comm_ctas=ctas) for plan in plans for ctas in case.comm_ctas_choices]
    return min(((predict(case, plan).makespan_ns, plan) for plan in choices), key=itemgetter(0))


def _summary(jobs: Sequence[Job], found: list[Found]) -> Table:
    gains: dict[str, list[float]] = {}
    for (profile, _, _), one in zip(jobs, found, strict=True):
        gains.setdefault(profile, []).append(one.along)
    return Table(
        title=f"Gain with slices of the sequence at TP {TP}, of all jobs",
        columns=("profile", ">least", ">median", ">most"),
        rows=[
            (name, *(f"{of(values):.3f}x" for of in (min, median, max)))
            for name, values in gains.items()
        ],
    )


def _jobs(jobs: Sequence[Job], found: list[Found]) -> Table:
    return Table(
        title=f"Stacks of {LAYERS} layers, one sequence a micro-batch, TP {TP}, bf16, both with SP",
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
            for (profile, model, length), one in zip(jobs, found, strict=True)
        ],
        notes=[
            "columns only, sequence: the baseline's time over the best cut's. The interval is of "
            "that cut's iteration time; errors of look-ups move the baseline, too.",
            "Attention behind earlier keys is assumed to take its share of the whole sequence's.",
            "No GPU has run slices of sequences yet.",
        ],
    )  # fmt: skip
