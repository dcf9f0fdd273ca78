"""What every rank does while plans are validated: play them in turn, again and again.

Plans alternate inside one run, so that what disturbs the machine disturbs them all alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from domino_tune.measure.traffic import SILENT
from domino_tune.planfile import order_from_json
from domino_tune.runtime.groups import RankContext
from domino_tune.runtime.lanes import Lane
from domino_tune.runtime.session import Session
from simulator.plan import SlicePlan

WARM_UP = 2


def validate(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Play every plan ``rounds`` times. Payload: model, workload, cluster, plans (each with its
    plan and order), rounds. Rank 0 reports every step's makespan (the slowest rank's)."""
    session = Session.of(context, payload)
    executors = [
        session.executor(SlicePlan(**entry["plan"]), order_from_json(entry["order"]), _lanes(entry))
        for entry in payload["plans"]
    ]
    for step in range(WARM_UP + int(payload["rounds"])):
        for index, executor in enumerate(executors):
            context.barrier()
            result = executor.run_step(*session.batch)
            timeline = result.timeline
            makespans = context.all_gather_objects(timeline.makespan_ns)
            if step < WARM_UP:
                continue
            context.report(
                {
                    "kind": "step",
                    "plan": index,
                    "makespan_ns": max(makespans),
                    "loss": result.loss,
                    "start_ns": timeline.start_ns,
                    "end_ns": timeline.end_ns,
                }
            )


def _lanes(entry: Mapping[str, Any]) -> Mapping[int, Lane] | None:
    return SILENT if entry["plan"]["strategy"] == "no_comm" else None
