"""Random programs for property tests: steps without a schedule behind them."""

from __future__ import annotations

import random

from simulator.contention import (
    CollectiveFamily,
    ComputeContention,
    ComputeFamily,
    Contention,
    ContentionFit,
    MemoryQueue,
    SizeContention,
    Slowdown,
)
from simulator.cpu_hosts import NO_TIMES, IdleTimes, ResumeFit, ResumeRow, SkewFit, SkewRow
from simulator.implementation import LAUNCH_ORDERS
from simulator.ops import Pointwise
from simulator.program import FIRST, REST, WORK_UNIT, Loop, Program, Step
from simulator.schedule import OpTemplate, Repeat, Schedule, Segment
from simulator.waves import OPEN

FAMILIES = (
    None, ComputeFamily("gemm"), ComputeFamily("attention"),
    ComputeFamily("pointwise", 900), CollectiveFamily(1, 8), CollectiveFamily(1, 8, 4),
    CollectiveFamily(2, 8, 16), CollectiveFamily(1, 8, 0, 3), CollectiveFamily(2, 8, 0, 4000),
)  # fmt: skip
COMPUTE_FAMILIES = (1, 2, 3)
COMM_FAMILIES = (4, 5, 6, 7, 8)
MOST_IDLE_NS = 200


def random_contention(rng: random.Random) -> Contention:
    """A contention law with random strength, half of them by size; one in four is off."""
    if rng.random() < 0.25:
        return Contention(None)
    laws = tuple(
        ComputeContention(
            family=family,
            sms_per_cta=rng.choice((0.0, 1.0, 1.85)),
            factor=1 + rng.random(),
            error=0.1,
        )
        for family in ("gemm", "attention", "pointwise")
    )
    fit = ContentionFit(
        sm_count=rng.choice((108, 132)), default_ctas=rng.choice((8, 16, 24)), compute=laws,
        collective=Slowdown(factor=1 + rng.random() / 2, error=0.1),
        same_links=Slowdown(factor=1 + rng.random(), error=0.1),
        other_links=Slowdown(factor=1.0 + rng.random() / 10, error=0.1),
        memory=MemoryQueue(
            attained_gb_s=1000.0, busiest=0.95, wait=0.1, by_cta=0.05, error=0.1
        ) if rng.random() < 0.5 else None,
        by_size=random_sizes(rng) if rng.random() < 0.5 else (),
    )  # fmt: skip
    return Contention(fit)


def random_sizes(rng: random.Random) -> tuple[SizeContention, ...]:
    """Factors by size, not always of every family."""
    families = ("gemm", "attention", "pointwise")
    return tuple(
        SizeContention(
            bytes=size,
            compute={f: 1 + rng.random() for f in rng.sample(families, rng.randint(1, 3))},
            collective_factor=1 + rng.random(),
        )
        for size in sorted(rng.sample((1, 2, 5, 9, 1000, 9000), rng.randint(1, 3)))
    )


def random_skew(rng: random.Random, unit_us: float) -> SkewFit:
    """Waits after stretches of around ``unit_us`` of compute."""
    rows, beside = (
        tuple(
            SkewRow(unit_us * length, unit_us * rng.choice((0.0, rng.random())))
            for length in sorted(rng.sample((0.1, 0.5, 1.0, 3.0, 20.0), rng.randint(least, 4)))
        )
        for least in (1, 0)
    )
    return SkewFit(slowest_factor=1 + rng.random() / 5, rows=rows, beside=beside, error=0.02)


def random_resume(rng: random.Random, unit_us: float) -> ResumeFit | None:
    """What is lost after waits of around ``unit_us``; None for one in two."""
    if rng.random() < 0.5:
        return None
    lengths = sorted(rng.sample((0.1, 0.5, 1.0, 3.0, 20.0), rng.randint(1, 4)))
    rows = tuple(ResumeRow(unit_us * length, unit_us * rng.random()) for length in lengths)
    return ResumeFit(
        rows=rows, recovery_us=unit_us * rng.choice((0.2, 1.0, 5.0)), error=0.1, samples=1
    )


def random_steps(rng: random.Random, count: int, lanes: int, launch_ns: int) -> tuple[Step, ...]:
    """Steps whose waits are legal in any repetition: they reach back less than what they issue."""
    steps: list[Step] = []
    issued = [0] * lanes
    waited = [0] * lanes
    stops = rng.random() < 0.4
    for _ in range(count):
        cost = rng.randint(0, launch_ns)
        if lanes > 1 and rng.random() < 0.4:
            lane = rng.randrange(1, lanes)
            alone = Step(
                lane, rng.randint(1, 300) * WORK_UNIT, rng.choice(COMM_FAMILIES), (), cost,
                needs=rng.choice((1, 1, 4, 16)),
                idle=IdleTimes(
                    rng.choice((0, 0, 50, MOST_IDLE_NS)), rng.choice((0, 0, 70, MOST_IDLE_NS))
                ),
            )  # fmt: skip
            steps.append(alone)
            issued[lane] += 1
            if rng.random() < 0.3:
                family = rng.choice((0, alone.family))
                steps[-1] = alone._replace(family=family, idle=NO_TIMES)
                steps.append(alone._replace(launch_ns=0, needs=0))
                issued[lane] += 1
            continue
        waits = []
        for lane in range(1, lanes):
            if issued[lane] > waited[lane] and rng.random() < 0.4:
                waited[lane] = rng.randint(waited[lane] + 1, issued[lane])
                waits.append((lane, issued[lane] - waited[lane]))
        whole = Step(
            0, rng.randint(1, 300) * WORK_UNIT, rng.choice(COMPUTE_FAMILIES), tuple(waits), cost,
            rng.choice((0, 1, 4, 16, OPEN, OPEN)), stops=stops and rng.random() < 0.15,
        )  # fmt: skip
        steps += _in_two(rng, whole) if rng.random() < 0.4 else [whole]
    return tuple(steps)


def _in_two(rng: random.Random, whole: Step) -> list[Step]:
    """An op with full waves and a last one."""
    rest = rng.randint(1, 300) * WORK_UNIT
    return [
        whole._replace(room=0, part=FIRST, stops=False),
        whole._replace(work=rest, waits=(), launch_ns=0, part=REST),
    ]


def random_loop(rng: random.Random, lanes: int, launch_ns: int, most: int = 12) -> Loop:
    """Micro-batches of layers of steps."""

    def leaf() -> Loop:
        steps = random_steps(rng, rng.randint(1, most), lanes, launch_ns)
        return Loop(body=steps, count=rng.choice((1, 1, 2, 5, 30)))

    parts = []
    for _ in range(rng.randint(1, 3)):
        body = tuple(leaf() for _ in range(rng.randint(1, 3)))
        parts.append(Loop(body=body, count=rng.choice((1, 1, 2, 6))))
    return Loop(body=tuple(parts))


def random_program(seed: int) -> Program:
    """A program drawn from ``seed``: lanes, contention, host and loops."""
    rng = random.Random(seed)
    lanes = rng.choice((1, 2, 2, 3))
    launch_ns = rng.choice((0, 0, 20, 150, 400))
    depth = rng.choice((1, 4, 16, 64, 1024)) if launch_ns else 0
    return Program(
        root=random_loop(rng, lanes, launch_ns), lanes=lanes, families=FAMILIES,
        contention=random_contention(rng), queue_depth=depth,
        launch_order=rng.choice(LAUNCH_ORDERS), resume=random_resume(rng, 0.2),
        most_idle_ns=MOST_IDLE_NS,
    )  # fmt: skip


def program_schedule(program: Program) -> Schedule:
    """A schedule with an op for every step that is no wait and none's REST, for a timeline."""
    templates = tuple(
        OpTemplate(f"step{index}", -1, Pointwise("copy", 0, 0), step.lane, 0, (), ())
        for index, step in enumerate(program.root.steps())
        if step.family and step.part != REST
    )
    return Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),))
