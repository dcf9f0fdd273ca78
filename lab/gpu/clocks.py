"""Power and clock while a GPU does one thing for some seconds: steps, one family of ops, nothing.

Steps are CUDA graphs back to back: unsliced and in two slices beside emulated collectives, and
without communication. What a family draws, and how a step's energy divides, follow from these; the
law of the power cap (``simulator.power``) is then held against the clocks of plans that played no
part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from domino_tune.measure.gpu.replays import family_replay
from domino_tune.measure.power_law import COMPUTE, REST
from domino_tune.runtime.lanes.emulated_lanes import EmulatedLanes
from domino_tune.runtime.lanes.pace_rows import paces_of
from domino_tune.store.profiles import load_profile
from lab.gpu.cases import PLANS, PlayedPlan
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.sustained import Step, captured_step
from lab.gpu.timing import lasting
from simulator.build import build_schedule
from simulator.cost import CostModel

SECONDS: Final = 11.0
REST_SECONDS: Final = 4.0
PACES_FROM: Final = "h200-sxm"
"""Profile whose collectives are emulated."""


def clock_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield rest, every plan, and every family alone."""

    def case(name: str, measure: Callable[[], Row], *, withheld: bool = False) -> GpuCase:
        return GpuCase(name, SECONDS + 3, lambda: {"withheld": withheld, **measure()})

    yield case(REST, lambda: lasting(stage.device, None, REST_SECONDS))
    for one in PLANS:
        yield case(one.name, partial(_plan_row, stage, one), withheld=one.withheld)
    for family in COMPUTE:
        yield case(f"{family} alone", partial(_family_row, stage, family))


def _family_row(stage: Stage, family: str) -> Row:
    return lasting(stage.device, family_replay(family), SECONDS)


def _plan_row(stage: Stage, one: PlayedPlan) -> Row:
    step = plan_step(stage, one)
    row = lasting(stage.device, step.replay, SECONDS)
    step.require_numbers()
    return row


def plan_step(stage: Stage, one: PlayedPlan) -> Step:
    """Return a step of the plan beside emulated collectives, as a graph."""
    case, lanes = one.case, None
    session = case.session(stage.device)
    if one.communicates:
        schedule = build_schedule(session.model, case.workload, case.cluster, one.plan)
        paces = paces_of(CostModel(load_profile(PACES_FROM)), [(one.plan.comm_ctas, schedule)])
        lanes = EmulatedLanes([list(row) for row in paces], stage.device).of(one.plan.comm_ctas)
    return captured_step(session, session.executor(one.plan, None, lanes))
