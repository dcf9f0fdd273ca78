"""The baseline: Megatron-LM as it is trained, with the choices that Domino has."""

from __future__ import annotations

from dataclasses import replace

from simulator.case import Case
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict


def baseline_plan(case: Case) -> SlicePlan:
    """Return the unsliced plan that speedups are over, whatever mode the plans of ``case`` have.

    It has sequence parallelism where the machine and the batch allow it.
    """
    return _fastest(case, case.shards_tokens)


def baseline_no_sp(case: Case) -> SlicePlan:
    """Return the unsliced plan without sequence parallelism."""
    return _fastest(case, False)


def _fastest(case: Case, sequence_parallel: bool) -> SlicePlan:
    """Return the unsliced plan with the CTAs that suit it best; of equals, NCCL's choice."""
    choices = case.profile.comm_ctas_choices(*case.cluster.tp_group)
    plans = [
        replace(MEGATRON, sequence_parallel=sequence_parallel, comm_ctas=ctas) for ctas in choices
    ]
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: (predict(case, plan).makespan_ns, plan.comm_ctas))
