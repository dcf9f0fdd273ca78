"""Real ranks: what a request launches, and whether the machine is the profile's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, cast

from domino_tune.base.units import parse_quantity
from domino_tune.measure.machine import machine_of, ranks_per_node
from domino_tune.measure.same_machine import differences
from domino_tune.requests import RanksFields
from domino_tune.runtime.launch_spec import CTA_SETTINGS, Backend, LaunchSpec
from simulator.case import Case
from simulator.errors import InputError
from simulator.profile import Machine
from simulator.specs import ModelSpec

BITS: Final = 8
PATIENCE: Final = 5
"""A step may take this many times what was predicted before it counts as a hang."""


def launch_spec(request: RanksFields, *, tp: int, dp: int = 1, lone: bool = False) -> LaunchSpec:
    """The launch of ``tp`` · ``dp`` ranks, or of the first of them alone. Raises InputError on what
    cannot be started."""
    link = request.emulate_link
    rate = parse_quantity("--emulate-link", link, ("bytes/s",)).value if link else None
    return LaunchSpec(
        tp=tp,
        dp=dp,
        backend=cast("Backend", request.backend or default_backend(emulated=rate is not None)),
        emulate_link_bits_per_s=None if rate is None else round(rate * BITS),
        nproc_per_node=request.nproc_per_node,
        lone=lone,
    )


def default_backend(*, emulated: bool) -> Backend:
    """nccl where NVIDIA's driver is installed and no link is emulated, else gloo."""
    return "nccl" if shutil.which("nvidia-smi") and not emulated else "gloo"


def patient(spec: LaunchSpec, longest_ns: float) -> LaunchSpec:
    """``spec`` with patience for steps that are predicted to take up to ``longest_ns``."""
    return replace(spec, hang_timeout_s=max(spec.hang_timeout_s, PATIENCE * longest_ns * 1e-9))


def check_runnable(model: ModelSpec, remedy: str = "Give --set attention_dropout=0.") -> None:
    """Raise InputError for a model that real ranks do not run; ``remedy`` says what to do."""
    if model.attention_dropout > 0:
        raise InputError(
            f"{model.name} has attention_dropout = {model.attention_dropout}, which real ranks do "
            f"not run: sliced attention would need masks that slicing does not change. {remedy}"
        )


def check_comm_ctas(
    counts: Iterable[int], backend: Backend, env: Mapping[str, str] = os.environ
) -> None:
    """Raise InputError where plans with these ``comm_ctas`` would not run with them: on gloo, and
    where the environment asks NCCL for another count."""
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
                f"{name}={value} in the environment stands above a plan's comm_ctas = {asked[0]}: "
                f"NCCL would not follow the plan. Unset {name}."
            )


def check_machine(case: Case, spec: LaunchSpec, *, force: bool) -> list[str]:
    """What makes this another machine than the profile's, and another placing of ranks than the
    one predicted; raises InputError unless forced."""
    found = differences(case.profile.machine, _machine(case, spec))
    if found and not force:
        raise InputError(
            f"Profile {case.profile.name!r} is of another machine ({'; '.join(found)}): its "
            "predictions are not of what would be measured. Give --profile with one that was "
            "measured here, or --force to go on."
        )
    if spec.lone:
        return found
    cluster, here = case.cluster, ranks_per_node(spec)
    planned = min(cluster.ranks_per_node, cluster.world_size)
    if planned != here:
        found.append(f"ranks on a node: predicted with {planned}, here {here}")
        if not force:
            raise InputError(
                f"What is predicted has {planned} of its {cluster.world_size} ranks on a node, and "
                f"here {here} share one: collectives would take another way. Start the ranks on "
                f"{cluster.nodes} nodes, plan for these, or give --force to go on."
            )
    return found


def _machine(case: Case, spec: LaunchSpec) -> Machine:
    """This machine; for a rank that is alone, among the ranks and on the link of the profile's."""
    if not spec.lone:
        return machine_of(spec)
    profiled, here = case.profile.machine, machine_of(spec)
    link = {k: v for k, v in profiled.details.items() if k == "link_bits_per_s"}
    return replace(here, gpus_per_node=profiled.gpus_per_node, details={**here.details, **link})
