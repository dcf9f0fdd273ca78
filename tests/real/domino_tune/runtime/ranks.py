"""One rank of a team of gloo ranks: ``python -m tests.real.domino_tune.runtime.ranks RANK FOLDER``.

All ranks start once and play every job. A job of one or two ranks is played by one of the smaller
teams, several at a time.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch
import torch.distributed as dist

from domino_tune.runtime.executor import FUNCTIONS, PERSISTENT, Executor, StepResult
from domino_tune.runtime.lanes.lane import ThreadLane
from domino_tune.runtime.ops import State
from domino_tune.runtime.parameters import Parameters
from simulator.build import build_schedule
from simulator.schedule import COMPUTE, DP, TP, Op
from simulator.shapes import Shapes
from tests.real.domino_tune.runtime.jobs import Job, RankResult, Tensors, batch
from tests.support.plain_torch import PlainModel

WORLD: Final = 4
SECONDS: Final = 60
DTYPES: Final = {
    "fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip


class Groups:
    """Process groups by their ranks; every rank makes all of them, in one order."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        members = [(0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3)]
        # A group a lane: two lanes never share one.
        self._made = {
            (lane, ranks): dist.new_group(list(ranks), timeout=timedelta(seconds=SECONDS))
            for ranks in members
            for lane in (TP, DP)
        }

    def group(self, lane: int, first: int, step: int, count: int) -> dist.ProcessGroup:
        found: dist.ProcessGroup = self._made[lane, tuple(range(first, first + step * count, step))]
        return found


@dataclass(frozen=True, kw_only=True)
class Place:
    """This rank's place in a team that starts at rank ``first``; ranks fill TP-first."""

    rank: int
    first: int
    job: Job

    @property
    def tp_rank(self) -> int:
        return (self.rank - self.first) % self.job.tp

    @property
    def dp_rank(self) -> int:
        return (self.rank - self.first) // self.job.tp

    def group(self, lane: int, groups: Groups) -> dist.ProcessGroup | None:
        tp, dp = self.job.tp, self.job.dp
        if lane == TP and tp > 1:
            return groups.group(TP, self.first + self.dp_rank * tp, 1, tp)
        if lane == DP and dp > 1:
            return groups.group(DP, self.first + self.tp_rank, tp, dp)
        return None


def play_job(place: Place, groups: Groups) -> RankResult:
    """Train, and look at everything that must hold on the way."""
    job = place.job
    with patch("simulator.optimizer.DP_BUCKET_PARAMETERS", job.bucket_parameters):
        schedule = build_schedule(job.model, job.workload, job.cluster, job.plan, job.order)
    state = new_state(job, place.tp_rank, place.dp_rank)
    made = ((lane, place.group(lane, groups)) for lane in (TP, DP))
    lanes = {lane: ThreadLane(group, str(lane)) for lane, group in made if group is not None}
    result = RankResult(tp_rank=place.tp_rank, dp_rank=place.dp_rank)
    executor = Executor(schedule, state, lanes)
    for step in range(job.steps):
        own = job.sequences * job.grad_accumulation
        rows = slice(place.dp_rank * own, (place.dp_rank + 1) * own)
        tokens, targets = batch(job, step)
        with patch.dict(FUNCTIONS, {"step.adam": recording_adam(result)}):
            seen = executor.run_step(tokens[rows], targets[rows])
        result.losses.append(seen.loss)
        result.norms.append(seen.grad_norm)
        result.problems += _problems(state, seen, executor.ops)
    for lane in lanes.values():
        lane.close()
    result.parameters = shards_of(state, state.trained.main)
    return result


def new_state(job: Job, tp_rank: int = 0, dp_rank: int = 0, device: str = "cpu") -> State:
    """A rank's fresh state."""
    parameters = Parameters(
        job.model, job.cluster, tp_rank, dtype=DTYPES[job.dtype], device=torch.device(device),
        seed=job.training.seed,
    )  # fmt: skip
    shapes = Shapes(model=job.model, workload=job.workload, cluster=job.cluster, plan=job.plan)
    return State(
        shapes=shapes, parameters=parameters, training=job.training, tp_rank=tp_rank,
        dp_rank=dp_rank, train=job.train,
    )  # fmt: skip


def recording_adam(result: RankResult):  # type: ignore[no-untyped-def]
    adam = FUNCTIONS["step.adam"]

    def record(state: State, op: Op) -> None:
        result.gradients.append(shards_of(state, state.parameters.grad / state.loss_scale))
        adam(state, op)

    return record


def shards_of(state: State, flat: torch.Tensor) -> Tensors:
    """Copies of a flat buffer's parts, by parameter name."""
    shards, start = {}, 0
    for spec in state.parameters.specs:
        shape = spec.local_shape(state.parameters.tp)
        end = start + int(torch.Size(shape).numel())
        shards[spec.name] = flat[start:end].view(shape).clone()
        start = end
    assert start == flat.numel()
    return shards


def _problems(state: State, seen: StepResult, ops: Sequence[Op]) -> list[str]:
    found = []
    if seen.launched != tuple(op.name for op in ops):
        found.append("the launch order is not the schedule's")
    if state.values:
        found.append(f"values outlive the step: {sorted(state.values)}")
    if not set(state.saved) <= PERSISTENT:
        found.append(f"saved tensors outlive the step: {sorted(set(state.saved) - PERSISTENT)}")
    return found + _timeline_problems(seen, ops)


def _timeline_problems(seen: StepResult, ops: Sequence[Op]) -> list[str]:
    """Lanes are FIFO; a collective starts after all compute issued before it; readers wait."""
    lane_end: dict[int, int] = {}
    written: dict[str, int] = {}
    found = []
    for op, start, end in zip(ops, seen.timeline.start_ns, seen.timeline.end_ns, strict=True):
        earliest = max(lane_end.get(op.lane, 0), lane_end.get(COMPUTE, 0))
        if op.lane == COMPUTE:
            earliest = max(earliest, *(written.get(name, 0) for name in op.reads), 0)
        if not earliest <= start <= end:
            found.append(f"{op.name} ran too early")
        lane_end[op.lane] = end
        written.update(dict.fromkeys(op.writes, end))
    return found


def play_plain(place: Place, groups: Groups) -> RankResult:
    """The plain layers on this team: output and gradients, of the input too."""
    state = new_state(place.job, place.tp_rank)
    weights = {
        name: weight.clone().requires_grad_() for name, weight in state.parameters.weights.items()
    }
    plain = PlainModel(model=place.job.model, weights=weights, group=place.group(TP, groups))
    result = RankResult(tp_rank=place.tp_rank, dp_rank=0)
    result.parameters, gradients = plain_pass(plain, place.job)
    result.gradients.append(gradients)
    return result


def plain_pass(plain: PlainModel, job: Job) -> tuple[Tensors, Tensors]:
    """({"y": output of the layers}, gradients of the input "x" and of the layers' weights)."""
    generator = torch.Generator().manual_seed(1)
    shape = (2, job.sequences * job.seq_length, job.model.hidden_size)
    x, dy = torch.randn(shape, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    y = plain.layers(x, job.seq_length)
    used = {"x": x, **{n: w for n, w in plain.weights.items() if n.startswith("l")}}
    gradients = torch.autograd.grad(y, list(used.values()), dy)
    return {"y": y.detach()}, dict(zip(used, gradients, strict=True))


def _play_all(rank: int, jobs: Sequence[Job]) -> dict[str, RankResult]:
    groups = Groups(rank)
    results = {}
    for size in (1, 2, 4):
        team, teams = rank // size, WORLD // size
        mine = [job for job in jobs if job.tp * job.dp == size][team::teams]
        for job in mine:
            play = play_plain if job.name.startswith("plain") else play_job
            results[job.name] = play(Place(rank=rank, first=team * size, job=job), groups)
    return results


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    jobs = pickle.loads((folder / "jobs").read_bytes())
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD,
        timeout=timedelta(seconds=SECONDS),
    )  # fmt: skip
    results = _play_all(rank, jobs)
    torch.save(results, folder / f"rank{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
