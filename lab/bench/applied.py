"""A plan applied to a Hugging Face model, in steps of a user's loop on two real ranks."""

from __future__ import annotations

import importlib.util
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.runtime.launch.launch import LaunchSpec, run_job
from domino_tune.store.plans import PlanFile, Predicted, ProfileRef
from domino_tune.store.profiles import load_profile
from lab.fidelity.settings import MODELS
from lab.verdict import Check, SkippedError, at_most, check_table, reported
from simulator.case import Case
from simulator.ordering import order_of
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec

OVER_RUNTIME: Final = 1.03
OVER_DTENSOR: Final = 1.05
ROUNDS: Final = 40
LAYERS: Final = 4
LINKS: Final = {"loopback": None, "500 Mbit/s": 5 * 10**8}
JOB: Final = "lab.bench.applied_job:compare"
PLAN: Final = SlicePlan(row_slices=2, merge_wgrad=True)
RESAMPLES: Final = 2000


def applied() -> list[Table]:
    """Return ratios of step times at TP 2 on this machine's CPU. Skip without torch and
    transformers."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise SkippedError(f"no {name}; pip install {name}")
    checks = []
    for link, bits_per_s in LINKS.items():
        rounds = _rounds(bits_per_s)
        checks += _checks(link, rounds, capped=bits_per_s is not None)
    what = f"Steps of llama-small with {LAYERS} layers, {PLAN.label}, {ROUNDS} rounds"
    return [check_table(what, checks)]


def _rounds(bits_per_s: int | None) -> list[dict[str, Any]]:
    model, workload = MODELS["llama-small"]
    model = replace(model, num_hidden_layers=LAYERS)
    cluster = ClusterSpec(tp=2, ranks_per_node=1)
    profile = load_profile("h100-dgx")
    case = Case(
        model=model, workload=replace(workload, dtype="bf16"), cluster=ClusterSpec(tp=2),
        profile=profile,
    )  # fmt: skip
    plans = {
        name: PlanFile(
            model=model, workload=workload, cluster=ClusterSpec(tp=2), plan=plan,
            order=order_of(case, plan), profile=ProfileRef.of(profile),
            predicted=Predicted(
                iteration_ms=1.0, baseline_ms=1.0, no_comm_ms=1.0, peak_memory_gib=1.0
            ),
        ).to_json()
        for name, plan in (("plan", PLAN), ("unsliced", MEGATRON))
    }  # fmt: skip
    payload = {
        "model": asdict(model), "workload": asdict(workload), "cluster": asdict(cluster),
        "rounds": ROUNDS, **plans,
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    run_job(JOB, payload, LaunchSpec(tp=2, emulate_link_bits_per_s=bits_per_s),
            on_message=found.append)  # fmt: skip
    return [message for message in found if message["kind"] == "round"]


def _checks(link: str, rounds: Sequence[dict[str, Any]], *, capped: bool) -> list[Check]:
    pairs = (
        ("the plan: applied / in the runtime's own loop", "applied", "runtime", OVER_RUNTIME),
        ("unsliced: applied / DTensor", "unsliced", "dtensor", OVER_DTENSOR),
    )
    checks = []
    for what, one, other, limit in pairs:
        middle, shown = _ratio([(r[one], r[other]) for r in rounds])
        checks.append(at_most(f"{link}, {what}", limit, middle, unit="×", digits=3))
        checks.append(reported("  its median lies in", shown))
    middle, shown = _ratio([(r["applied"], r["dtensor"]) for r in rounds])
    name = f"{link}, the plan, applied / DTensor"
    limited = at_most(name, 1.0, middle, unit="×", digits=3)
    checks.append(limited if capped else reported(name, limited.measured))
    checks.append(reported("  its median lies in", shown))
    return checks


def _ratio(pairs: Sequence[tuple[int, int]]) -> tuple[float, str]:
    """Return the median ratio of pairs from the same round, and where it lies in 95 of 100 draws
    of as many rounds."""
    ratios = [one / other for one, other in pairs]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    low, high = (medians[round(share * (RESAMPLES - 1))] for share in (0.025, 0.975))
    return statistics.median(ratios), f"{low:.3f} – {high:.3f}"
