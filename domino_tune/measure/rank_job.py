"""What every rank does while a machine is profiled. Rank 0 reports, the parent keeps the file.

All ranks play the same run at the same time, since they share memory bandwidth and caches in
training too; what is reported is the mean of the ranks' medians.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from domino_tune.measure.traffic import SILENT, Traffic
from domino_tune.runtime.clock import clock_for
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.groups import RankContext
from domino_tune.runtime.lanes import ThreadLane
from domino_tune.runtime.session import Session
from simulator.ops import Collective, Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, DP, TP
from simulator.schedules import fixed_order

Samples = dict[Signature, list[int]]
WARM_UP = 2


def profile(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Time ops run by run, then collectives, then both at once.

    Payload: model, workload, cluster (fields of the specs), plans, collectives, samples (wanted
    per signature), sections to measure.
    """
    session = Session.of(context, payload)
    samples = int(payload["samples"])
    for collective in payload["collectives"]:
        _time_collective(context, Collective(*collective), samples)
    for fields in payload["plans"]:
        _time_plan(session, SlicePlan(**fields), samples)
    for case in payload["contention"]:
        _time_contention(session, SlicePlan(**case["plan"]), int(case["size_bytes"]), samples)


def _time_plan(session: Session, plan: SlicePlan, samples: int) -> None:
    executor = session.executor(plan, fixed_order(plan), SILENT)
    found, overhead_ns = _play(session, executor, samples)
    session.context.report(
        {
            "kind": "plan",
            "plan": plan.label,
            "ops": _gathered(session.context, found),
            "overhead_us": overhead_ns / 1e3,
        }
    )


def _play(session: Session, executor: Executor, samples: int) -> tuple[Samples, float]:
    """Durations by signature over enough steps, and the executor's own cost per op, in ns."""
    found: Samples = defaultdict(list)
    overheads = []
    steps = _steps(executor, samples)
    for step in range(WARM_UP + steps):
        session.context.barrier()
        timeline = executor.run_step(*session.batch).timeline
        session.context.beat()
        if step < WARM_UP:
            continue
        busy = 0
        for op, start, end in zip(executor.ops, timeline.start_ns, timeline.end_ns, strict=True):
            if op.lane == COMPUTE:
                found[op.signature].append(end - start)
                busy += end - start
        overheads.append((timeline.makespan_ns - busy) / len(executor.ops))
    return found, statistics.median(overheads)


def _steps(executor: Executor, samples: int) -> int:
    """Steps that give the rarest op of a layer ``samples`` timings, within reason."""
    layers = executor.state.shapes.model.num_hidden_layers
    return max(3, -(-samples // layers))


def _gathered(context: RankContext, found: Samples) -> list[dict[str, Any]]:
    """One row a signature: mean over ranks of the median, spread and number of samples."""
    mine = {
        signature: (statistics.median(times), _spread(times), len(times))
        for signature, times in found.items()
    }
    ranks = context.all_gather_objects(mine)
    return [
        {
            "signature": [signature.kind, *signature],
            "median_us": statistics.fmean(rank[signature][0] for rank in ranks) / 1e3,
            "spread_us": max(rank[signature][1] for rank in ranks) / 1e3,
            "samples": sum(rank[signature][2] for rank in ranks),
        }
        for signature in mine
    ]


def _spread(times: list[int]) -> float:
    """Half of the range that holds the middle half."""
    if len(times) < 4:
        return (max(times) - min(times)) / 2
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2


def _time_collective(context: RankContext, collective: Collective, samples: int) -> None:
    """Through the runtime's own lane, all ranks at once, nothing else running."""
    group_ranks = context.tp if collective.ranks == context.tp else context.dp
    lane = context.lanes[TP if group_ranks == context.tp else DP]
    tensor = torch.zeros(max(1, collective.size_bytes // 4), device=context.device)
    clock = clock_for(context.device)
    spans, hand_overs = [], []
    for step in range(WARM_UP + samples):
        context.barrier()
        clock.start()
        issued = clock.tick()
        handle = lane.issue("probe", tensor, "sum")
        handle.wait()
        resumed = clock.tick()
        clock.stop()
        context.beat()
        if step >= WARM_UP:
            begin, end = (clock.at_ns(tick) for tick in handle.ticks())
            spans.append(end - begin)
            hand_overs.append(clock.at_ns(resumed) - clock.at_ns(issued) - spans[-1])
    ranks = context.all_gather_objects(
        (statistics.median(spans), _spread(spans), statistics.median(hand_overs))
    )
    context.report(
        {
            "kind": "collective",
            "signature": list(collective),
            "median_us": statistics.fmean(rank[0] for rank in ranks) / 1e3,
            "spread_us": max(rank[1] for rank in ranks) / 1e3,
            "hand_over_us": statistics.fmean(rank[2] for rank in ranks) / 1e3,
            "samples": len(spans) * len(ranks),
        }
    )


def _time_contention(session: Session, plan: SlicePlan, size_bytes: int, samples: int) -> None:
    """The same run alone and beside all-reduces that never stop; and those, alone and beside."""
    context = session.context
    executor = session.executor(plan, fixed_order(plan), SILENT)
    alone, _ = _play(session, executor, samples)
    lane = context.lanes[TP]
    assert isinstance(lane, ThreadLane)
    with Traffic(lane.group, size_bytes) as idle:
        time.sleep(0.5)
    with Traffic(lane.group, size_bytes) as traffic:
        beside, _ = _play(session, executor, samples)
    totals: dict[str, list[float]] = {
        kind: [0.0, 0.0] for kind in ("gemm", "attention", "pointwise")
    }
    for signature, times in alone.items():
        total = totals[signature.kind]
        total[0] += statistics.median(times) * len(times)
        total[1] += statistics.median(beside[signature]) * len(times)
    stretch = statistics.median(traffic.durations_ns[1:-1] or traffic.durations_ns)
    calm = statistics.median(idle.durations_ns[1:-1] or idle.durations_ns)
    mine = {kind: total[1] / total[0] for kind, total in totals.items() if total[0]}
    ranks = context.all_gather_objects((mine, stretch / calm))
    context.report(
        {
            "kind": "contention",
            "size_bytes": size_bytes,
            "compute": {kind: statistics.fmean(rank[0][kind] for rank in ranks) for kind in mine},
            "collective": statistics.fmean(rank[1] for rank in ranks),
        }
    )
