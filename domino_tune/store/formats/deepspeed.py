"""What makes DeepSpeed's Domino (DeepSpeedExamples/training/DeepSpeed-Domino) run a plan."""

from __future__ import annotations

from domino_tune.store.formats.megatron import megatron_arguments
from domino_tune.store.plans import PlanFile


def deepspeed_arguments(plan_file: PlanFile) -> tuple[list[str], dict[str, bool]]:
    """Return (arguments of its pretrain_gpt.py, fields of the Domino config to set in code).

    The plan must be one that DeepSpeed can run.
    """
    arguments = megatron_arguments(plan_file.model, plan_file.workload, plan_file.cluster)
    intra = plan_file.plan.order == "intra"
    return [*arguments, "--no-gradient-accumulation-fusion"], {"domino_intra_layer_overlap": intra}
