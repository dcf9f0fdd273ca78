"""What makes DeepSpeed's Domino (DeepSpeedExamples/training/DeepSpeed-Domino) run a plan."""

from __future__ import annotations

from dataclasses import replace

from domino_tune.formats.megatron import megatron_arguments
from domino_tune.planfile import PlanFile
from domino_tune.search import enumerate_plans
from simulator.errors import InfeasiblePlanError


def check_deepspeed(plan_file: PlanFile) -> None:
    """Raise InfeasiblePlanError (``target``) unless DeepSpeed at edaa722 can run the plan.

    It runs two equal row slices without column slices in its own two orders, each weight gradient
    beside its dgrad, of GPT models: just the plans that ``tune --target deepspeed`` searches.
    """
    runnable = enumerate_plans(plan_file.model, plan_file.workload, target="deepspeed")
    if replace(plan_file.plan, comm_ctas=0) in runnable:
        return
    raise InfeasiblePlanError(
        f"DeepSpeed cannot run {plan_file.plan.label}: it has 2 row slices, 1 column slice, order "
        "inter or intra, wgrad eager. Find its best plan with `tune --target deepspeed`.",
        reason="target",
    )


def deepspeed_arguments(plan_file: PlanFile) -> tuple[list[str], dict[str, bool]]:
    """(arguments of its pretrain_gpt.py, fields of the Domino config to set in code).

    Raises InfeasiblePlanError (``target``) for a plan that it cannot run.
    """
    check_deepspeed(plan_file)
    arguments = megatron_arguments(plan_file.model, plan_file.workload, plan_file.cluster)
    intra = plan_file.plan.order == "intra"
    return [*arguments, "--no-gradient-accumulation-fusion"], {"domino_intra_layer_overlap": intra}
