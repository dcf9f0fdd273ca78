"""Small pipeline programs: the orders of a schedule, with the same times on every rank."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from simulator.pipeline.orders import ORDERS, Action
from simulator.pipeline.program import Message, PipelineProgram, Task
from simulator.specs import PIPELINE_SCHEDULES, PipelineSchedule


def program_of(
    schedule: PipelineSchedule, pp: int, vpp: int, micros: int, times_ns: Mapping[str, int],
    message_ns: int = 0,
) -> PipelineProgram:  # fmt: skip
    """The program of a schedule whose passes take ``times_ns`` each, F, B and perhaps W."""
    wires = _Wires(pp, pp * vpp, message_ns)
    ranks = tuple(
        tuple(Task(action, times_ns[action.kind], *wires.ends(rank, action)) for action in actions)
        for rank, actions in enumerate(ORDERS[schedule](pp, vpp, micros))
    )
    return PipelineProgram(
        ranks=ranks, messages=tuple(wires.messages), rendezvous=False, blocking=False,
        summed_ns=(0,) * pp, updated_ns=(0,) * pp,
    )  # fmt: skip


class _Wires:
    def __init__(self, pp: int, stages: int, message_ns: int) -> None:
        self.pp, self.stages, self.message_ns = pp, stages, message_ns
        self.messages: list[Message] = []
        self.numbers: dict[tuple[str, int, int], int] = {}

    def ends(self, rank: int, action: Action) -> tuple[int, int]:
        """The messages that the action reads and sends."""
        kind, micro, stage = action.kind, action.micro, action.chunk * self.pp + rank
        if kind == "W":
            return -1, -1
        step, first, last = (1, 0, self.stages - 1) if kind == "F" else (-1, self.stages - 1, 0)
        reads = -1 if stage == first else self._number(kind, stage - step, step, micro)
        return reads, -1 if stage == last else self._number(kind, stage, step, micro)

    def _number(self, kind: str, stage: int, step: int, micro: int) -> int:
        key = kind, stage, micro
        if key not in self.numbers:
            self.numbers[key] = len(self.messages)
            sender, receiver = stage % self.pp, (stage + step) % self.pp
            link = sender * self.pp + receiver
            self.messages.append(Message(self.message_ns, link, sender, receiver))
        return self.numbers[key]


def random_program(seed: int) -> PipelineProgram:
    """A program with times of its own on every task and message, buckets, gathers and a step."""
    rng = random.Random(seed)
    schedule = rng.choice(PIPELINE_SCHEDULES)
    pp = rng.randint(2, 5)
    vpp = rng.choice((1, 2, 3)) if schedule == "1f1b" else 1
    micros = pp * rng.randint(1, 3) if vpp > 1 else rng.randint(1, 9)
    plain = program_of(schedule, pp, vpp, micros, dict.fromkeys("FBW", 1))
    blocking = schedule != "zero-bubble" and rng.random() < 0.6
    return replace(
        plain,
        ranks=tuple(tuple(_timed(task, rng) for task in tasks) for tasks in plain.ranks),
        messages=tuple(one._replace(duration_ns=rng.randint(0, 40)) for one in plain.messages),
        blocking=blocking,
        rendezvous=blocking and vpp == 1,
        summed_ns=tuple(rng.randint(0, 20) for _ in range(pp)),
        updated_ns=tuple(rng.randint(0, 20) for _ in range(pp)),
        tied_ns=rng.choice((0, 7)),
    )


def _timed(task: Task, rng: random.Random) -> Task:
    gathers = rng.randint(1, 3) if task.action.kind == "F" and rng.random() < 0.2 else 0
    buckets = rng.randint(1, 3) if task.action.kind != "F" and rng.random() < 0.2 else 0
    return task._replace(
        duration_ns=rng.randint(0, 100),
        gathers_ns=tuple(rng.randint(0, 60) for _ in range(gathers)),
        buckets_ns=tuple(rng.randint(0, 60) for _ in range(buckets)),
    )
