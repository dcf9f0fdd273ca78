"""Real ranks: the launch of a request, and checks that they can run what is predicted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from domino_tune.base.units import parse_quantity
from domino_tune.measure.machine import differences, machine_of, ranks_per_node
from domino_tune.requests.fields import RanksFields
from domino_tune.runtime.launch_spec import (
    CTA_SETTINGS,
    Backend,
    LaunchSpec,
    check_heads,
    check_played,
    refuse_unplayed,
)
from simulator.case import Case
from simulator.errors import InputError
from simulator.implementation import DOMINO_TUNE
from simulator.profile import Machine
from simulator.specs import ModelSpec, Workload

BITS: Final = 8
PATIENCE: Final = 5
"""A step that takes this many times its predicted time counts as a hang."""


def launch_spec(
    request: RanksFields, *, tp: int, dp: int = 1, single_rank: bool = False
) -> LaunchSpec:
    """Return the launch of ``tp`` · ``dp`` ranks, or of rank 0 alone. Raise InputError."""
    link = request.emulate_link
    rate = parse_quantity("--emulate-link", link, ("bytes/s",)).value if link else None
    return LaunchSpec(
        tp=tp,
        dp=dp,
        backend=request.backend or default_backend(emulated=rate is not None),
        emulate_link_bits_per_s=None if rate is None else round(rate * BITS),
        nproc_per_node=request.nproc_per_node,
        single_rank=single_rank,
    )


def default_backend(*, emulated: bool) -> Backend:
    """Return nccl if NVIDIA's driver is installed and no link is emulated, else gloo."""
    return "nccl" if shutil.which("nvidia-smi") and not emulated else "gloo"


def patient(spec: LaunchSpec, longest_ns: float) -> LaunchSpec:
    """Return ``spec`` with a hang timeout that fits steps of up to ``longest_ns`` predicted ns."""
    return replace(spec, hang_timeout_s=max(spec.hang_timeout_s, PATIENCE * longest_ns * 1e-9))


def check_runnable(
    model: ModelSpec, tp: int, remedy: str = "Give --set attention_dropout=0."
) -> None:
    """Raise InputError for a model that ``tp`` real ranks cannot run; ``remedy`` is the advice on
    attention dropout."""
    if model.attention_dropout > 0:
        raise InputError(
            f"{model.name} has attention_dropout = {model.attention_dropout}, which real ranks do "
            f"not run: sliced attention would need masks that slicing does not change. {remedy}"
        )
    unplayed = [name for name in model.extras if name != "qk_norm" or model.norm != "rmsnorm"]
    if model.gated_mlp and model.hidden_act != "silu":
        unplayed.append(f"a gated MLP with {model.hidden_act}")
    unplayed += [
        words
        for words, found in {
            "experts": model.num_experts, "latent attention": model.kv_lora_rank,
            "multi-token prediction": model.num_nextn_predict_layers,
        }.items()
        if found
    ]  # fmt: skip
    if unplayed:
        raise InputError(
            f"{model.name} has {', '.join(unplayed)}, which real ranks do not play yet: they play "
            "GPT and Llama layers. Use simulate, tune or whatif without real runs, or a model "
            "without these."
        )
    check_heads(model, tp, "Use")


def check_predicted_here(case: Case, remedy: str) -> None:
    """Raise InputError for features of a prediction that the runtime does not play; ``remedy``
    starts the advice."""
    workload = case.workload
    check_played(workload, case.cluster, remedy)
    missing = {
        "bf16 gradients (--grad-dtype fp32)": workload.grad_dtype != "fp32",
        f"moments in {workload.moments_dtype} (--set moments_dtype=fp32)": (
            workload.moments_dtype != "fp32"
        ),
        f"the kernels of {workload.implementation.label} (--implementation domino-tune)": (
            workload.implementation != DOMINO_TUNE
        ),
    }
    refuse_unplayed(missing, remedy)


def with_own_kernels(workload: Workload) -> Workload:
    """Return the workload as the runtime runs it."""
    return replace(workload, implementation=DOMINO_TUNE)


def kernel_notes(workload: Workload) -> list[str]:
    """Return a note if a plan was made for other kernels than the runtime's."""
    if workload.implementation == DOMINO_TUNE:
        return []
    return [
        f"The plans were made for {workload.implementation.label}; they run with the kernels of "
        "this project's runtime, and predictions are of those."
    ]


def check_comm_ctas(
    counts: Iterable[int], backend: Backend, env: Mapping[str, str] = os.environ
) -> None:
    """Raise InputError if gloo or the environment makes these ``comm_ctas`` impossible."""
    asked = sorted(set(counts) - {0})
    if not asked:
        return
    if backend == "gloo":
        raise InputError(
            f"comm_ctas = {asked[0]} is a number of NCCL CTAs, which gloo does not have; run with "
            "--backend nccl, or make plans with comm_ctas 0 from a profile measured over gloo."
        )
    others = {name: env[name] for name in CTA_SETTINGS if name in env}
    for name, value in others.items():
        if asked != [int(value) if value.isdecimal() else None]:
            raise InputError(
                f"{name}={value} in the environment overrides a plan's comm_ctas = {asked[0]}: "
                f"NCCL would not follow the plan. Unset {name}."
            )


def check_machine(case: Case, spec: LaunchSpec, *, force: bool) -> list[str]:
    """Return differences from the predicted machine and ranks per node.

    Raise InputError for a difference unless ``force``.
    """
    found = differences(case.profile.machine, _machine(case, spec))
    if found and not force:
        raise InputError(
            f"Profile {case.profile.name!r} is of another machine ({'; '.join(found)}): its "
            "predictions are not for this machine. Give --profile with one that was measured here, "
            "or --force to go on."
        )
    if spec.single_rank:
        return found
    cluster, here = case.cluster, ranks_per_node(spec)
    planned = min(cluster.ranks_per_node, cluster.world_size)
    if planned != here:
        found.append(f"ranks on a node: predicted with {planned}, here {here}")
        if not force:
            raise InputError(
                f"The prediction has {planned} of its {cluster.world_size} ranks on a node, but "
                f"here {here} share one: collectives would use other links. Start the ranks on "
                f"{cluster.nodes} nodes, plan for these nodes, or give --force to go on."
            )
    return found


def _machine(case: Case, spec: LaunchSpec) -> Machine:
    """Return this machine; for a single rank, with the profile's GPUs per node and link."""
    if not spec.single_rank:
        return machine_of(spec)
    profiled, here = case.profile.machine, machine_of(spec)
    link = {k: v for k, v in profiled.details.items() if k == "link_bits_per_s"}
    return replace(here, gpus_per_node=profiled.gpus_per_node, details={**here.details, **link})
