"""Frameworks: which of them run the best plan, and the best plan that each of the others runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from domino_tune.results.simulate import SimulateResult
from domino_tune.results.tune import RunsThere
from domino_tune.search import search_exhaustive
from domino_tune.search.problem import SearchOptions
from domino_tune.search.simulated import SimulatedPlans, space_of
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.errors import InfeasiblePlanError
from simulator.overlap import EP_OVERLAP
from simulator.plan import SlicePlan
from simulator.usable import SURE

MEGATRON_LM: Final = ("megatron", "userbuffers")
"""Strategies of the verdict that Megatron-LM runs."""
UNSLICED: Final = ("baseline", "baseline_no_sp")
"""Variants that slice nothing; all frameworks run the one without sequence parallelism."""


class _Found(NamedTuple):
    plan: SlicePlan
    iteration_ms: float


def frameworks_of(case: Case, best: SimulateResult) -> tuple[RunsThere, ...]:
    """Return for each framework the best plan of ``case`` that it runs; ``best`` is the best of
    all.

    DeepSpeed has a Domino of its own, for some models and cuts, and no sequence parallelism.
    """
    compared = best.verdict.contestants if best.verdict else ()
    in_megatron = [
        _Found(one.plan, one.iteration_ms)
        for one in compared
        if one.recommended and one.strategy in MEGATRON_LM
    ]
    everywhere = [
        _Found(best.plans[name], one.iteration_ms)
        for name, one in best.variants.items()
        if name in UNSLICED and one.fits_chance >= SURE and not best.plans[name].sequence_parallel
    ]
    # Of DeepSpeed's experts nothing is known here.
    in_deepspeed = [] if case.model.num_experts else [*everywhere, *_own_domino(case)]
    return (
        _runs_there("Megatron-LM", case, best, [*everywhere, *in_megatron]),
        _runs_there("DeepSpeed", case, best, in_deepspeed),
    )


def _runs_there(
    framework: str, case: Case, best: SimulateResult, found: Sequence[_Found]
) -> RunsThere:
    """Return the best of the plans ``found``, which are those that the framework runs."""
    there = min(found, key=lambda one: one.iteration_ms, default=None)
    runs_best = best.plan in (one.plan for one in found)
    if runs_best:
        there = _Found(best.plan, best.iteration_ms)
    asked = None if there is None else _request(there.plan, case)
    return RunsThere(
        framework=framework,
        runs_best=runs_best,
        plan=there and there.plan,
        iteration_ms=there and there.iteration_ms,
        speedup=there and best.baseline_ms / there.iteration_ms,
        route=asked and asked[0],
        request=asked and asked[1],
    )


def _own_domino(case: Case) -> list[_Found]:
    """Return the best plan of DeepSpeed's Domino; [] if it cannot run the workload, or no
    plan fits.
    """
    try:
        plans = SimulatedPlans(case=case, plans=space_of(case, "deepspeed"))
        best = search_exhaustive(plans, SearchOptions()).best
    except InfeasiblePlanError:
        return []
    return [_Found(best.plan, best.iteration_ns * MS_PER_NS)]


def _request(plan: SlicePlan, case: Case) -> tuple[str, dict[str, Any]] | None:
    """Return where to ask for the plan, and the fields to change; None for the baseline, which
    every answer contains.
    """
    if plan.strategy == "megatron":
        return None
    batch = {
        "micro_batch_size": case.workload.micro_batch_size,
        "grad_accumulation": case.workload.grad_accumulation,
    }
    if plan.strategy == "domino":
        return "tunes", {**batch, "target": "deepspeed"}
    told: dict[str, Any] = {"strategy": plan.strategy}
    if plan.strategy == EP_OVERLAP:
        told["wgrad"] = plan.wgrad
    else:
        told["tp_comm_overlap"] = list(plan.tp_comm_overlap)
    return "simulations", {**batch, **told, "sequence_parallel": plan.sequence_parallel}
