"""Real torch on this machine's CPU: a plan applied to a Hugging Face model beside the runtime's own
loop and DTensors, and what an eager host spends on a kernel.

A slow baseline would make every speedup look too good. Each round runs all that is compared.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.measure.machine import cpu_name
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from domino_tune.store.profiles import load_profile
from lab.fidelity.settings import MODELS
from lab.verdict import Check, SkippedError, at_most, check_table, reported
from simulator.case import Case
from simulator.ordering import order_of
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

RUNTIME_LIMIT: Final = 1.03
DTENSOR_LIMIT: Final = 1.05
ROUNDS: Final = 40
LAYERS: Final = 4
PLAN: Final = SlicePlan(row_slices=2, merge_wgrad=True)
RESAMPLES: Final = 2000
ZERO: Final = Predicted(iteration_ms=1.0, baseline_ms=1.0, no_comm_ms=1.0, peak_memory_gib=1.0)


def need(*modules: str) -> None:
    """Raise SkippedError where one of ``modules`` is not installed."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise SkippedError(f"no {name}; pip install 'domino_tune[runtime]' transformers")


def applied() -> list[Table]:
    """Return time ratios of steps of a user's loop at TP 2."""
    need("torch", "transformers")
    model, workload = MODELS["llama-small"]
    model = replace(model, num_hidden_layers=LAYERS)
    payload = {
        "model": asdict(model), "workload": asdict(workload),
        "cluster": asdict(ClusterSpec(tp=2, ranks_per_node=1)), "rounds": ROUNDS,
        "plan": _file(model, workload, PLAN), "unsliced": _file(model, workload, MEGATRON),
    }  # fmt: skip
    checks = []
    for link, bits_per_s in {"loopback": None, "500 Mbit/s": 5 * 10**8}.items():
        rounds: list[dict[str, Any]] = []
        spec = LaunchSpec(tp=2, emulate_link_bits_per_s=bits_per_s)
        run_job("lab.bench.applied_job:compare", payload, spec, on_message=rounds.append)
        checks += [
            *_compared(f"{link}, the plan: applied / in the runtime's own loop", rounds,
                       "applied", "runtime", RUNTIME_LIMIT),
            *_compared(f"{link}, unsliced: applied / DTensor", rounds, "unsliced", "dtensor",
                       DTENSOR_LIMIT),
            *_compared(f"{link}, the plan, applied / DTensor", rounds, "applied", "dtensor",
                       1.0 if bits_per_s else None),
        ]  # fmt: skip
    what = f"Steps of llama-small with {LAYERS} layers, {PLAN.label}, {ROUNDS} rounds"
    return [check_table(what, checks)]


def _file(model: ModelSpec, workload: Workload, plan: SlicePlan) -> Mapping[str, Any]:
    """Return a plan file of ``plan``, ordered by the bundled H100 profile."""
    profile, cluster = load_profile("h100-dgx"), ClusterSpec(tp=2)
    case = Case(
        model=model, workload=replace(workload, dtype="bf16"), cluster=cluster, profile=profile
    )
    return PlanFile(
        model=model, workload=workload, cluster=cluster, plan=plan, order=order_of(case, plan),
        profile=ProfileRef.of(profile), predicted=ZERO,
    ).to_json()  # fmt: skip


def _compared(
    what: str, rounds: Sequence[Mapping[str, int]], one: str, other: str, limit: float | None
) -> list[Check]:
    """Return the median ratio of pairs from the same round, and where it lies in 95 of 100 draws
    of as many rounds."""
    ratios = [found[one] / found[other] for found in rounds]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    low, high = (medians[round(share * (RESAMPLES - 1))] for share in (0.025, 0.975))
    middle = statistics.median(ratios)
    return [
        at_most(what, limit, middle, unit="×", digits=3) if limit
        else reported(what, f"{middle:.3f} ×"),
        reported("  its median lies in", f"{low:.3f} – {high:.3f}"),
    ]  # fmt: skip


def host() -> list[Table]:
    """Return the host's time of Megatron-LM's layer of 2022, and a kernel's share of it."""
    need("torch")
    from lab.bench.host_job import measure

    passes = measure()
    launch = load_profile("a100-sxm").launch
    assert launch is not None
    driver_us = launch.cost_us["pointwise"]
    spent_us, kernels = map(sum, zip(*passes.values(), strict=True))
    return [
        Table(
            title=f"Host time of a checkpointed layer in eager PyTorch, on {cpu_name()}",
            columns=("pass", ">us a layer", ">kernels", ">us a kernel"),
            rows=[
                *(
                    (what, f"{us:,.0f}", str(count), f"{us / count:.1f}")
                    for what, (us, count) in passes.items()
                ),
                ("both", f"{spent_us:,.0f}", "", f"{spent_us / kernels:.1f}"),
            ],
            notes=[
                "Tensors have a few elements, so this is Python, PyTorch's dispatcher and "
                "autograd. A GPU's driver comes on top of it: the profile's "
                f"{driver_us:g} us a kernel, so {(spent_us + kernels * driver_us) * 1e-3:.1f} ms "
                "a layer in all."
            ],
        )
    ]
