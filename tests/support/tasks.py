"""Tasks of tests, small enough to be quick, and what comes of them undisturbed."""

from __future__ import annotations

from functools import cache
from typing import Any

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.service.tasks import work
from domino_tune.service.tasks.quantum import QuantumResult
from domino_tune.service.tasks.task import Task
from domino_tune.store.models import LoadedModel
from domino_tune.store.profiles import load_profile
from domino_tune.store.shelf import Pinned
from tests.support.runs import TINY

SHELF = Pinned(profile=load_profile("h100-dgx"), model=LoadedModel(spec=TINY))
WORKLOAD: dict[str, Any] = {
    "model": "tiny", "profile": "h100-dgx", "tp": 2, "seq_length": 256, "micro_batch_size": 2,
    "cuda_graph": True,  # launches of so small a model would hide what cuts differ by
}  # fmt: skip


def tune_task(**options: Any) -> bytes:
    """A tune of a tiny model."""
    return Task.of("tune", TuneRequest(**{**WORKLOAD, **options}), SHELF).to_bytes()


def longer_task(seed: int = 0) -> bytes:
    """A tune of 40 evaluations; tasks of different seeds share no work."""
    return tune_task(search="random", trials=40, seed=seed)


def layout_task(**options: Any) -> bytes:
    """A search of a tiny model's layouts on two GPUs."""
    one = ("tp", "micro_batch_size")
    asked = {name: value for name, value in WORKLOAD.items() if name not in one}
    request = TuneRequest(**{**asked, "gpus": 2, "global_batch_size": 4, **options})
    return Task.of("layout", request, SHELF).to_bytes()


def scale_task(**options: Any) -> bytes:
    """A search of a tiny model's layouts on two, three and four GPUs; three divide nothing."""
    one = ("tp", "micro_batch_size")
    asked = {name: value for name, value in WORKLOAD.items() if name not in one}
    asked |= {"tp": 2, "recompute": "none", "global_batch_size": 4, "sweep": "gpus=2,3,4"}
    return Task.of("scale", TuneRequest(**{**asked, **options}), SHELF).to_bytes()


def sweep_task(**options: Any) -> bytes:
    """A sweep of a tiny model over four link speeds."""
    asked = {**WORKLOAD, "sweep": "link_bandwidth=0.25x,0.5x,2x,4x", **options}
    return Task.of("sweep", WhatIfRequest(**asked), SHELF).to_bytes()


@cache
def undisturbed(task: bytes) -> QuantumResult:
    """Return the last quantum of a job that nobody interrupts."""
    return finish(task, work.resume(), 1e9)


def finish(task: bytes, state: bytes, budget_s: float) -> QuantumResult:
    """Return the last quantum of a job, from ``state`` on."""
    while (quantum := work.advance(task, state, budget_s)).result is None:
        state = quantum.state
    return quantum


def paused_everywhere(
    task: bytes, state: bytes, forget: bool
) -> tuple[QuantumResult, list[QuantumResult]]:
    """Return the last quantum, and all before it; none does more than one step."""
    before: list[QuantumResult] = []
    while (quantum := work.advance(task, state, 0.0)).result is None:
        before.append(quantum)
        state = quantum.state
        if forget:
            work.forget()
    return quantum, before


@cache
def paused(task: bytes) -> tuple[QuantumResult, list[QuantumResult]]:
    """Return the last quantum of a job in one worker, and all before it. What the worker remembers
    of the job may be gone since."""
    return paused_everywhere(task, work.resume(), forget=False)


TUNES = {
    "exhaustive": tune_task(),
    "exhaustive, three row slices": tune_task(micro_batch_size=3, seq_length=128),
    "bayes": tune_task(search="bayes", trials=9, seed=3),
    "random": tune_task(search="random", trials=12),
    "micro-batches": tune_task(
        search="random", trials=3, grad_accumulation=2, tune_also=("micro_batch_size",)
    ),
    "deepspeed": tune_task(target="deepspeed"),
}
SWEEPS = {
    "links": sweep_task(),
    "one that cannot be": sweep_task(sweep="tp=2,7"),
    "changed too": sweep_task(change=("gpu_flops=2x",)),
    "retuned": sweep_task(
        retune=True, sweep="link_bandwidth=0.5x", micro_batch_size=1, row_slices=1
    ),
}
LAYOUTS = {
    "two GPUs": layout_task(),
    "a fixed tp": layout_task(tp=2, gpus=4, recompute="none"),
    "no tp": layout_task(tp=1, gpus=4, recompute="none"),
}
SCALE = scale_task()
EVERYTHING = (
    TUNES
    | {"scale": SCALE}
    | {f"sweep of {name}": task for name, task in SWEEPS.items()}
    | {f"layouts of {name}": task for name, task in LAYOUTS.items()}
)
LONG = (
    "exhaustive, three row slices", "bayes", "deepspeed", "sweep of retuned",
    "layouts of a fixed tp",
)  # fmt: skip
"""Those that take many seconds."""
