"""Small pipeline programs: the orders of a schedule, with the same times on every rank."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.compiler import NEVER_NS
from simulator.pipeline.orders import Wiring, wiring
from simulator.pipeline.program import Message, PipelineProgram, PipelineTask
from simulator.specs import PIPELINE_SCHEDULES, WGRADS_APART, PipelineSchedule

Ranks = tuple[tuple[PipelineTask, ...], ...]


def program(ranks: Ranks, messages: tuple[Message, ...], **rules: Any) -> PipelineProgram:
    """A program of these tasks and messages."""
    tasks = [task for rank in ranks for task in rank]
    wires = Wiring(
        [[task.action for task in rank] for rank in ranks],
        np.array([(task.reads, task.sends) for task in tasks], np.int64).reshape(-1, 2),
        np.array([(*one[1:], 0) for one in messages], np.int64).reshape(-1, 4),
    )
    nothing = (0,) * len(ranks)
    usual = {"rendezvous": False, "blocking": False, "summed_ns": nothing, "updated_ns": nothing}
    return PipelineProgram(
        wires=wires,
        passes=np.array([(task.duration_ns, *task[6:9]) for task in tasks], np.int64),
        of_task=np.arange(len(tasks), dtype=np.int64),
        behind=np.array([task.behind for task in tasks], np.int64),
        message_ns=np.array([one.duration_ns for one in messages], np.int64),
        gathers_ns={i: task.gathers_ns for i, task in enumerate(tasks) if task.gathers_ns},
        buckets_ns={i: task.buckets_ns for i, task in enumerate(tasks) if task.buckets_ns},
        **{**usual, **rules},
    )


def program_of(
    schedule: PipelineSchedule, pp: int, vpp: int, micros: int, times_ns: Mapping[str, int],
    message_ns: int = 0,
) -> PipelineProgram:  # fmt: skip
    """The program of a schedule whose passes take ``times_ns`` each, by the kind of action."""
    wires = wiring(schedule, pp, vpp, micros)
    ranks = tuple(
        tuple(
            PipelineTask(one.action, times_ns[one.action.kind], one.reads, one.sends)
            for one in wired
        )
        for wired in wires.ranks
    )
    messages = tuple(
        Message(message_ns, one.link, one.sender, one.receiver) for one in wires.messages
    )
    return program(ranks, messages)


def random_program(seed: int) -> PipelineProgram:
    """A program with times of its own on every task and message, buckets, gathers and a step."""
    rng = random.Random(seed)
    schedule = rng.choice(PIPELINE_SCHEDULES)
    pp = rng.randint(2, 5)
    vpp = {"1f1b": rng.choice((1, 2, 3)), "dualpipev": 2}.get(schedule, 1)
    micros = pp * rng.randint(1, 3) if vpp > 1 else rng.randint(1, 9)
    if schedule == "dualpipev":
        micros += pp
    plain = program_of(schedule, pp, vpp, micros, dict.fromkeys("FBIW", 1))
    blocking = schedule not in WGRADS_APART and rng.random() < 0.6
    slow = 0 if blocking else rng.choice((0, 30, 90, 140))
    return program(
        tuple(_timed_rank(number, plain, rng, slow) for number in range(pp)),
        tuple(one._replace(duration_ns=rng.randint(0, 40)) for one in plain.messages),
        blocking=blocking,
        rendezvous=blocking and vpp == 1,
        summed_ns=tuple(rng.randint(0, 20) for _ in range(pp)),
        updated_ns=tuple(rng.randint(0, 20) for _ in range(pp)),
        tied_ns=rng.choice((0, 7)),
    )


def _timed_rank(
    number: int, plain: PipelineProgram, rng: random.Random, slow: int
) -> tuple[PipelineTask, ...]:
    """A rank's tasks; ``slow``: the most ns in which its host issues one, 0 without hosts."""
    first, tasks = plain.numbers(number).start, []
    for index, task in enumerate(plain.ranks[number]):
        timed = _timed(task, rng)
        if slow:
            issued_ns = rng.randint(0, slow)
            timed = timed._replace(
                late_ns=max(timed.duration_ns, issued_ns) + rng.randint(0, 9), issued_ns=issued_ns,
                held_ns=rng.choice((NEVER_NS, rng.randint(0, timed.duration_ns))),
                behind=rng.choice((-1, first + rng.randrange(index))) if index else -1,
            )  # fmt: skip
        tasks.append(timed)
    return tuple(tasks)


def _timed(task: PipelineTask, rng: random.Random) -> PipelineTask:
    gathers = rng.randint(1, 3) if task.action.kind == "F" and rng.random() < 0.2 else 0
    buckets = rng.randint(1, 3) if task.action.kind != "F" and rng.random() < 0.2 else 0
    return task._replace(
        duration_ns=rng.randint(0, 100),
        gathers_ns=tuple(rng.randint(0, 60) for _ in range(gathers)),
        buckets_ns=tuple(rng.randint(0, 60) for _ in range(buckets)),
    )
