"""Arguments that make DeepSpeed's Domino run a plan (training/DeepSpeed-Domino in its examples)."""

from __future__ import annotations

from domino_tune.store.formats.megatron import megatron_arguments
from domino_tune.store.plans import PlanFile
from simulator.plan import SlicePlan


def deepspeed_arguments(plan_file: PlanFile, plan: SlicePlan) -> tuple[list[str], dict[str, bool]]:
    """Return arguments of its pretrain_gpt.py, and fields of the Domino config to set in code.

    ``plan``: the file's, in an order that DeepSpeed has. Raise InfeasiblePlanError as
    ``megatron_arguments``.
    """
    arguments = megatron_arguments(plan_file.model, plan_file.workload, plan_file.cluster)
    intra = plan.order == "intra"
    return [*arguments, "--no-gradient-accumulation-fusion"], {"domino_intra_layer_overlap": intra}
