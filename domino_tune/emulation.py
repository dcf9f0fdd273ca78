"""What is predicted, and what is put in, where one rank runs and collectives are emulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from domino_tune.case import Setup
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.paces import PaceRow, paces_of
from simulator.plan import SlicePlan
from simulator.timeline import Timeline


def as_emulated(setup: Setup, spec: LaunchSpec) -> Setup:
    """What is predicted for a rank that is alone: it waits for nobody, and on CPU its collectives
    are waits, which slow nothing down."""
    alone = replace(setup.profile, skew=None)
    return replace(
        setup, profile=replace(alone, contention=None) if spec.backend == "gloo" else alone
    )


def plan_paces(
    setup: Setup, plans: Sequence[SlicePlan], timelines: Sequence[Timeline]
) -> list[PaceRow]:
    """What the collectives of ``plans`` take alone, by the profile."""
    schedules = [
        (plan.comm_ctas, timeline.schedule) for plan, timeline in zip(plans, timelines, strict=True)
    ]
    return paces_of(setup.case.cost, schedules)
