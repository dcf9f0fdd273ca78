"""Is what would be measured here what a profile predicts?"""

from __future__ import annotations

from dataclasses import replace

from domino_tune.case import Setup
from domino_tune.measure.machine import machine_of, ranks_per_node
from domino_tune.measure.same_machine import differences
from domino_tune.runtime.launch_spec import LaunchSpec
from simulator.errors import InputError
from simulator.profile import Machine


def check_machine(setup: Setup, spec: LaunchSpec, *, force: bool) -> list[str]:
    """What makes this another machine than the profile's, and another placing of ranks than the
    one predicted; raises InputError unless forced."""
    found = differences(setup.profile.machine, _machine(setup, spec))
    if found and not force:
        raise InputError(
            f"Profile {setup.profile.name!r} is of another machine ({'; '.join(found)}): its "
            "predictions are not of what would be measured. Give --profile with one that was "
            "measured here, or --force to go on."
        )
    if spec.lone:
        return found
    cluster, here = setup.cluster, ranks_per_node(spec)
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


def _machine(setup: Setup, spec: LaunchSpec) -> Machine:
    """This machine; for a rank that is alone, among the ranks and on the link of the profile's."""
    if not spec.lone:
        return machine_of(spec)
    profiled, here = setup.profile.machine, machine_of(spec)
    link = {k: v for k, v in profiled.details.items() if k == "link_bits_per_s"}
    return replace(here, gpus_per_node=profiled.gpus_per_node, details={**here.details, **link})
