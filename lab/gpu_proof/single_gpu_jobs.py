"""The jobs of a rank that is alone on its GPU, for ``scripts/gpu-proof``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from domino_tune.measure.op_rows import signature_from
from domino_tune.measure.probes.launch import issue_us, mean_costs_us
from domino_tune.runtime.lanes.emulated import EmulatedStreamLane
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.session import Session
from lab.gpu.ops import OpsCase, play_case, slice_plans
from lab.gpu.state import heat
from lab.gpu_proof.reference_job import rounds_alone
from lab.gpu_proof.taken_apart import break_down
from simulator.plan import MEGATRON, SlicePlan

PACE: Final = Pace(duration_ns=20_000, ctas=16)
"""Pace of the collectives whose launches are timed."""


def ops(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Report a ``plan`` message of the slicings of the payload's model, workload and cluster,
    without the ops that are ``known``, after about ``seconds``. Then, on a GPU, the launch costs.
    """
    session = _session(context, payload)
    case = OpsCase(
        model=session.model, workload=session.workload, tp=session.cluster.tp,
        plans=slice_plans(session.workload.micro_batch_size),
    )  # fmt: skip
    known = {signature_from(plain) for plain in payload["known"]}
    message = play_case(session, case, known, time.monotonic() + payload["seconds"])
    context.report(message)
    if context.device.type == "cuda" and message["complete"]:
        context.report({"kind": "launch", "cost_us": _launch_us(session)})


def _launch_us(session: Session) -> dict[str, float]:
    """Return the launch costs of a sliced step's compute ops and of an emulated collective, µs."""
    plan = SlicePlan(row_slices=min(2, session.workload.micro_batch_size), order="intra",
                     wgrad="eager")  # fmt: skip
    lane = EmulatedStreamLane(lambda _: PACE)
    costs = {**mean_costs_us(session, plan), "collective": issue_us(lane, session.context.device)}
    lane.close()
    return costs


def speed(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Report the breakdown of each of ``plans`` over ``steps`` steps, and as many rounds of the
    layers compared with plain torch ones."""
    session = _session(context, payload)
    for plan in payload["plans"]:
        found = break_down(session, SlicePlan(**plan), payload["steps"])
        context.report({"kind": "spent", **asdict(found)})
    _heat(session)
    for one in rounds_alone(session, payload["steps"]):
        context.report({"kind": "round", **asdict(one)})


def _session(context: RankContext, payload: Mapping[str, Any]) -> Session:
    """Return a session for timing only: weights are drawn on the device and constant. A first step
    has been played, and the GPU has the clock of long runs."""
    session = Session.of(context, payload)
    training = replace(session.training, learning_rate=0.0)
    session = replace(session, training=training, exact_weights=False)
    session.executor(MEGATRON, None).run_step(*session.batch)
    _heat(session)
    return session


def _heat(session: Session) -> None:
    """Bring a GPU to the clock of long runs."""
    if session.context.device.type == "cuda":
        heat()
    session.context.beat()
