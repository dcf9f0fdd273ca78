"""How experts fit on ranks: what must divide what, and what needs experts."""

from __future__ import annotations

from simulator.errors import InputError
from simulator.modules import OF_EXPERTS
from simulator.specs import ClusterSpec, ModelSpec, Workload, require_divisible

FUSED: tuple[str, ...] = ("deepep", "hybridep")
"""Dispatchers of Megatron-LM's ``flex`` type, which need ranks to send to."""


def check_experts(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    """Raise InputError unless the experts divide among the ranks.

    A stage's tp × cp × dp ranks are grouped once more for experts: etp ranks share each expert, and
    ep such groups have whole experts each. So ep divides the experts, etp the width of one, and tp
    the shared expert's. Context-parallel ranks count like any others.
    """
    if not model.num_experts:
        _refuse_without_experts(model, workload, cluster)
        return
    if workload.data_parallel == "fsdp":
        raise InputError(
            "--data-parallel fsdp with experts is not simulated; use distributed-optimizer."
        )
    if workload.recompute == "per-op":
        raise InputError(
            "--recompute per-op chooses among ops of dense layers; with experts use --recompute "
            "none, selective or full."
        )
    if workload.moe_shared_expert_overlap and "shared_experts" in workload.modules:
        raise InputError(
            "A shared expert that runs while tokens are on their way is not computed again, as in "
            "Megatron-LM; leave shared_experts out of recompute_modules, or give --set "
            "moe_shared_expert_overlap=false."
        )
    require_divisible("num_experts", model.num_experts, "ep", cluster.ep)
    require_divisible(
        "moe_intermediate_size", model.moe_intermediate_size,
        "etp" if cluster.etp else "etp, which is tp unless it is given,", cluster.expert_tp,
    )  # fmt: skip
    require_divisible(
        "shared_expert_intermediate_size", model.shared_expert_intermediate_size, "tp", cluster.tp
    )
    if workload.moe_imbalance > cluster.ep:
        raise InputError(
            f"--moe-imbalance is the tokens of the rank with the most over the mean, which is at "
            f"most ep = {cluster.ep}; got {workload.moe_imbalance:g}, lower it, or raise --ep."
        )
    if workload.moe_dispatcher_sms and workload.moe_dispatcher not in FUSED:
        raise InputError(
            f"moe_dispatcher_sms is of {' and '.join(FUSED)}, whose kernels hold SMs as told; got "
            f"{workload.moe_dispatcher_sms} with {workload.moe_dispatcher}. Leave it out, or use "
            f"--moe-dispatcher {FUSED[0]}."
        )
    if workload.moe_dispatcher in FUSED and cluster.ep * cluster.expert_tp == 1:
        raise InputError(
            f"--moe-dispatcher {workload.moe_dispatcher} sends tokens between ranks, but ep × etp "
            "is 1; use --ep 2 or more, or --moe-dispatcher alltoall."
        )


def _refuse_without_experts(model: ModelSpec, workload: Workload, cluster: ClusterSpec) -> None:
    given = {
        f"--ep {cluster.ep}": cluster.ep > 1,
        f"--etp {cluster.etp}": cluster.etp > 0,
        f"--moe-imbalance {workload.moe_imbalance:g}": workload.moe_imbalance != 1,
        f"moe_dispatcher_sms={workload.moe_dispatcher_sms}": workload.moe_dispatcher_sms > 0,
    }
    given |= {
        f"recompute_modules={name}": name in workload.recompute_modules for name in OF_EXPERTS
    }
    found = [text for text, is_given in given.items() if is_given]
    if found:
        raise InputError(
            f"{', '.join(found)} is of experts, and {model.name} has none; leave it out, or use a "
            "model with experts, such as mixtral-8x7b."
        )
