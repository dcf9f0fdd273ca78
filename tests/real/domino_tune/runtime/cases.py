"""All jobs that the ranks play, by kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from domino_tune.runtime.launch_spec import PLAYED_RECOMPUTE
from domino_tune.store.profiles import load_profile
from simulator.cost import CostModel
from simulator.greedy import plan_order
from simulator.issue_order import LayerOrder
from simulator.plan import MEGATRON, NO_COMM, SLICE_BALANCES, SlicePlan
from simulator.shapes import Shapes
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, ODD, QWEN, TRAINING, Job
from tests.real.domino_tune.runtime.models import random_job
from tests.real.domino_tune.runtime.orders import random_order

DEGREES: Final = (1, 2, 4)
MODELS: Final = (GPT, LLAMA)
SMOOTH: Final = replace(TRAINING, adam_eps=1e-5)
"""Adam divides small gradients, and those that should be zero (of key biases), by their size, and
so their rounding noise: 1e-8 shows it, and how much depends on the CPU."""
GREEDY: Final = SlicePlan(row_slices=2)
SLICED: Final = SlicePlan(
    row_slices=3, attn_col_slices=2, mlp_col_slices=4, attn_dgrad_slices=3, mlp_dgrad_slices=1,
)  # fmt: skip
PLANS: Final = (
    MEGATRON,
    *(
        SlicePlan(order=order, wgrad=wgrad)
        for order in ("inter", "paper", "intra")
        for wgrad in ("eager", "deferred")
    ),
    SlicePlan(order="inter", wgrad="eager", merge_wgrad=True),
    SlicePlan(order="paper", wgrad="eager", merge_wgrad=True),
    replace(SLICED, order="intra", wgrad="eager"),
    replace(SLICED, order="intra", wgrad="deferred", mlp_dgrad_slices=2),
    SlicePlan(row_slices=4, order="intra", wgrad="eager", merge_wgrad=True),
    SlicePlan(row_slices=1, mlp_col_slices=4, attn_dgrad_slices=2, order="intra", wgrad="eager"),
    GREEDY,
    SLICED,
    SlicePlan(row_slices=5, attn_col_slices=2, merge_wgrad=True),
)
"""Every strategy, order and placement; five sequences make every sliced plan uneven but one."""
FEW: Final = 10
"""Of a kind with fewer jobs, all are played by default."""
OF_EIGHT: Final = (0, 1, 4)
"""Places, of every eight jobs, of those that are played by default."""
SHUFFLED: Final = SlicePlan(row_slices=3, attn_col_slices=2, mlp_col_slices=2)


@cache
def all_jobs() -> dict[str, list[Job]]:
    """Kind → jobs; names are unique."""
    kinds = {
        "orders": _orders(), "fp32": _fp32(), "replicas": _replicas(), "options": _options(),
        "sharded": _sharded(), "sequences": _sequences(), "recomputed": _recomputed(),
        "normed": _normed(), "shuffled": _shuffled(), "random": _random(), "half": _half(),
        "no_comm": _no_comm(), "plain": _plain(),
    }  # fmt: skip
    named = {
        kind: [
            replace(_planned(job), name=f"{kind} {i} {job.model.name} tp{job.tp} {job.plan.label}")
            for i, job in enumerate(jobs)
        ]
        for kind, jobs in kinds.items()
    }
    return named


def few_jobs() -> dict[str, list[Job]]:
    """Kind → the jobs played by default; every model, team, dtype and order is among them."""
    return {
        kind: jobs
        if len(jobs) < FEW
        else [job for at, job in enumerate(jobs) if at % 8 in OF_EIGHT]
        for kind, jobs in all_jobs().items()
    }


def _planned(job: Job) -> Job:
    """The job with the greedy planner's order where its plan wants one."""
    if job.order or job.plan.strategy != "domino" or job.plan.order != "greedy":
        return job
    return replace(job, order=greedy_order(job))


def greedy_order(job: Job) -> LayerOrder:
    """Planned for the bundled H100 profile, which knows bf16."""
    return plan_order(_shapes(replace(job, dtype="bf16")), _cost())


@cache
def _cost() -> CostModel:
    return CostModel(load_profile("h100-dgx"))


def _shapes(job: Job) -> Shapes:
    return Shapes(model=job.model, workload=job.workload, cluster=job.cluster, plan=job.plan)


def _orders() -> Iterator[Job]:
    """Four ranks share two cores: they get half the jobs, and two layers."""
    for index, plan in enumerate(PLANS):
        for model in MODELS:
            yield Job(name="", model=model, tp=1, plan=plan)
            yield Job(name="", model=model, tp=2, plan=plan)
        yield Job(name="", model=replace(MODELS[index % 2], num_hidden_layers=2), tp=4, plan=plan)


def _fp32() -> Iterator[Job]:
    for tp in DEGREES:
        for model, plan in ((GPT, SLICED), (LLAMA, PLANS[1]), (LLAMA, SLICED)):
            model = model if tp < 4 else replace(model, num_hidden_layers=2)
            yield Job(name="", model=model, tp=tp, plan=plan, dtype="fp32", training=SMOOTH)


def _replicas() -> Iterator[Job]:
    """Gradient accumulation, replicas and their buckets: of one layer, two, or all in one."""
    for tp, dp, micros in ((2, 1, 3), (1, 2, 1), (1, 4, 2), (2, 2, 1), (2, 2, 2)):
        cells = ((GPT, GREEDY, 1), (GPT, PLANS[2], 9_000), (LLAMA, MEGATRON, 10**9))
        for model, plan, bucket in cells:
            yield Job(
                name="", model=model, tp=tp, dp=dp, sequences=3, grad_accumulation=micros,
                plan=plan, bucket_parameters=bucket,
            )  # fmt: skip


def _options() -> Iterator[Job]:
    """Evaluation, clipping that does not bite or is off, and a model of neither family."""
    for tp in (1, 2):
        yield Job(name="", model=GPT, tp=tp, plan=SLICED, train=False)
        for clip in (0.0, 1e3):
            training = replace(TRAINING, clip_norm=clip)
            yield Job(name="", model=LLAMA, tp=tp, plan=GREEDY, training=training)
        yield Job(name="", model=ODD, tp=tp, plan=SLICED)


def _sharded() -> Iterator[Job]:
    """With sequence parallelism, all orders: gathers and scatters, and sums of norms' gradients."""
    for index, plan in enumerate(PLANS):
        model, tp = MODELS[index % 2], 4 if index % 3 == 2 else 2
        model = model if tp == 2 else replace(model, num_hidden_layers=2)
        sharded = replace(plan, sequence_parallel=True)
        yield Job(name="", model=model, tp=tp, plan=sharded, seq_length=8)
    for model in MODELS:
        for micros, bucket in ((1, 9_000), (2, 10**9)):
            yield Job(
                name="", model=model, tp=2, dp=2, sequences=3, seq_length=8,
                grad_accumulation=micros, plan=replace(GREEDY, sequence_parallel=True),
                bucket_parameters=bucket,
            )  # fmt: skip


def _sequences() -> Iterator[Job]:
    """Slices of sequences: uneven ones, several sequences, with sequence parallelism or without."""
    cuts = (
        (GREEDY, "balanced", 1),
        (replace(SLICED, slice_dim="sequence"), "front", 2),
        (SlicePlan(order="inter", wgrad="deferred"), "even", 1),
        (SlicePlan(row_slices=4, order="intra", wgrad="eager", merge_wgrad=True), "balanced", 3),
        (SlicePlan(row_slices=3, mlp_col_slices=2, merge_wgrad=True), "balanced", 1),
    )
    for index, (plan, balance, sequences) in enumerate(cuts):
        along = replace(plan, slice_dim="sequence", slice_balance=balance)  # type: ignore[arg-type]
        for model in MODELS:
            for tp in (1, 2):
                sharded = tp == 2 and index % 2 == 0
                yield Job(
                    name="", model=model, tp=tp, sequences=sequences, seq_length=9 - (tp == 2),
                    plan=replace(along, sequence_parallel=sharded),
                )  # fmt: skip
        model = replace(MODELS[index % 2], num_hidden_layers=2)
        yield Job(
            name="", model=model, tp=2, dp=2, sequences=1, seq_length=8, grad_accumulation=2,
            plan=replace(along, sequence_parallel=index % 2 == 1), bucket_parameters=1,
        )  # fmt: skip
    four = SlicePlan(slice_dim="sequence", sequence_parallel=True)
    yield Job(name="", model=LLAMA, tp=4, sequences=1, seq_length=8, plan=four)


def _recomputed() -> Iterator[Job]:
    """Backward computes again: all layers, or the first of them; batch and sequence slices."""
    along = SlicePlan(row_slices=3, slice_dim="sequence")
    for recompute in PLAYED_RECOMPUTE[1:]:
        for index, plan in enumerate((MEGATRON, PLANS[1], SLICED, along, PLANS[5])):
            for layers in (0, 2):
                sharded = (index + layers // 2) % 2 == 0
                yield Job(
                    name="", model=MODELS[(index + layers // 2) % 2], tp=2, seq_length=8,
                    plan=replace(plan, sequence_parallel=sharded), recompute=recompute,
                    recompute_layers=layers, grad_accumulation=1 + index % 2, sequences=3,
                )  # fmt: skip


def _normed() -> Iterator[Job]:
    """Norms of queries and keys, whose gradients every rank has a part of."""
    along = SlicePlan(row_slices=3, slice_dim="sequence")
    for tp in (1, 2):
        for plan in (MEGATRON, SLICED, PLANS[5]):
            yield Job(name="", model=QWEN, tp=tp, plan=plan, grad_accumulation=tp)
    for sharded in (False, True):
        for sequences in (1, 2):
            plan = replace(along, sequence_parallel=sharded)
            yield Job(name="", model=QWEN, tp=2, plan=plan, sequences=sequences, seq_length=8)
        plan = replace(GREEDY, sequence_parallel=sharded)
        for recompute in PLAYED_RECOMPUTE[1:]:
            yield Job(name="", model=QWEN, tp=2, plan=plan, seq_length=8, recompute=recompute)
    yield Job(name="", model=QWEN, tp=4, plan=replace(GREEDY, sequence_parallel=True), seq_length=8)


def _shuffled() -> Iterator[Job]:
    teams = ((2, 1), (4, 1), (2, 1), (1, 1), (2, 1), (2, 2))
    for seed in range(12):
        rng = random.Random(seed)
        tp, dp = teams[seed % 6]
        job = Job(name="", model=MODELS[seed % 4 // 2], tp=tp, dp=dp, plan=SHUFFLED)
        yield replace(job, order=random_order(_shapes(job), rng), bucket_parameters=1)
    for seed in range(12, 24):
        rng = random.Random(seed)
        plan = replace(SHUFFLED, sequence_parallel=seed % 3 > 0)
        if seed % 2:
            plan = replace(plan, slice_dim="sequence", slice_balance=rng.choice(SLICE_BALANCES))
        job = Job(
            name="", model=MODELS[seed % 4 // 2], tp=2, dp=1 + (seed % 5 == 0), plan=plan,
            sequences=3, seq_length=8,
        )  # fmt: skip
        yield replace(job, order=random_order(_shapes(job), rng), bucket_parameters=1)


def _random() -> Iterator[Job]:
    for seed in range(16):
        rng = random.Random(seed)
        job = random_job(rng)
        if job.plan.strategy == "domino" and seed % 3 == 0:
            shuffled = replace(job.plan, order="greedy", wgrad="fill")
            job = replace(job, plan=shuffled)
            job = replace(job, order=random_order(_shapes(job), rng))
        yield job


def _half() -> Iterator[Job]:
    for model in MODELS:
        for dtype in ("bf16", "fp16"):
            yield Job(name="", model=model, tp=2, plan=SLICED, dtype=dtype)
        along = SlicePlan(slice_dim="sequence", sequence_parallel=True)
        yield Job(name="", model=model, tp=2, plan=along, dtype="bf16", seq_length=8)


def _no_comm() -> Iterator[Job]:
    for model in MODELS:
        yield Job(name="", model=model, tp=2, plan=NO_COMM)


def _plain() -> Iterator[Job]:
    """Played by the plain layers, without a plan."""
    for tp in (2, 4):
        for model in (GPT, LLAMA, ODD):
            yield Job(name="", model=replace(model, hidden_dropout=0.0), tp=tp)
