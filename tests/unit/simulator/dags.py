"""Random schedules: named ops with random reads, in loops up and down a stack, legal by making.

They reach what no builder of ours writes (yet): values read two repetitions later, from earlier
loops, by collectives of their own lane; several writes an op; strides; lanes without waits.
A value that nothing writes is an input of the iteration: nobody waits for it.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from simulator.contention import Contention
from simulator.cost import CostModel
from simulator.cpu_hosts import NO_TIMES, CpuHosts, IdleTimes, ResumeFit, SkewFit
from simulator.launch import Launch
from simulator.ops import Collective, Pointwise, Signature
from simulator.schedule import COMPUTE, OpTemplate, Repeat, Schedule, Segment
from simulator.values import Ref
from tests.unit.simulator.programs import random_contention, random_resume, random_skew

SIZES = 12
"""Distinct signatures a lane: few, so that ties in time occur."""


class TableCost(CostModel):
    """Durations drawn from a seed, a signature's own size in bytes apart."""

    def __init__(
        self,
        durations_ns: dict[Signature, int],
        contention: Contention,
        launch: Launch,
        skew: SkewFit | None = None,
        resume: ResumeFit | None = None,
        idle: dict[Signature, IdleTimes] | None = None,
    ):
        self.durations = durations_ns
        self.contention = contention
        self.launch = launch
        self.cpu = CpuHosts(skew=skew, resume=resume)
        self.idle = idle or {}
        self.kept = {}

    def duration_ns(self, signature: Signature) -> int:
        return self.durations[signature]

    def idle_times(self, signature: Signature) -> IdleTimes:
        return self.idle.get(signature, NO_TIMES)


class RandomDag(NamedTuple):
    """A schedule and what its ops cost, with and without contention, skew and costs of waits."""

    schedule: Schedule
    cost: TableCost


class _Written(NamedTuple):
    """A value that templates of an order write: its name, and where relative to the repetition."""

    ref: Ref
    lane: int
    offset: int
    place: int


def random_dag(seed: int, *, contention: bool = False) -> RandomDag:
    """A small schedule of one to three lanes, and a cost model with or without a host lane; with
    ``contention``, skew too in three of four."""
    rng = random.Random(seed)
    lanes = rng.choice((1, 2, 2, 3, 3))
    micros = rng.choice((1, 1, 1, 2, 3, 5))
    schedule = Schedule(parts=_parts(rng, lanes, micros), micros=micros)
    most_ns = rng.choice((3, 40, 1000))
    durations: dict[Signature, int] = {
        signature: rng.randint(1, most_ns) for lane in range(lanes) for signature in _choices(lane)
    }
    law = random_contention(rng) if contention else Contention(None)
    skew = random_skew(rng, most_ns / 1000) if contention and rng.random() < 0.75 else None
    launch, resume = _launch(rng, most_ns), random_resume(rng, most_ns / 1000)
    idle = _idle_times(rng, durations, most_ns) if rng.random() < 0.5 else None
    return RandomDag(schedule, TableCost(durations, law, launch, skew, resume, idle))


def _idle_times(
    rng: random.Random, durations_ns: dict[Signature, int], most_ns: int
) -> dict[Signature, IdleTimes]:
    """What collectives save and pay after their lane idled: one of the two, or both."""
    saves, wakes = rng.choice(((True, False), (False, True), (True, True)))
    return {
        signature: IdleTimes(
            rng.randint(0, most_ns) if saves else 0, rng.randrange(duration_ns) if wakes else 0
        )
        for signature, duration_ns in durations_ns.items()
        if isinstance(signature, Collective)
    }


def _launch(rng: random.Random, most_ns: int) -> Launch:
    mode = rng.choice(("none", "none", "async", "inline"))
    costs = {"pointwise": rng.randint(0, most_ns), "collective": rng.randint(0, most_ns)}
    depth = rng.choice((1, 2, 3, 8, 20, 1024))
    if mode == "none":
        return Launch(mode="none")
    return Launch(mode="async" if mode == "async" else "inline", cost_ns=costs, queue_depth=depth)


def _parts(rng: random.Random, lanes: int, micros: int) -> tuple[Repeat, ...]:
    """Micro-batches: the first alone, the middle ones alike, the last alone."""
    counts = [1] if micros == 1 else [1, micros - 2, 1] if micros > 2 else [1, 1]
    parts, first = [], 0
    for count in counts:
        segments = _Orders(rng, lanes).segments()
        parts.append(Repeat(segments=tuple(segments), count=count, first_micro=first))
        first += count
    return tuple(parts)


def _choices(lane: int) -> list[Signature]:
    if lane == COMPUTE:
        return [Pointwise("copy", size, size, awaited=size % 6 == 5) for size in range(SIZES)]
    return [Collective("all_reduce", size, lane, 8) for size in range(SIZES)]


class _Orders:
    """Draws the orders of one micro-batch; each reads its own values and those of earlier ones."""

    def __init__(self, rng: random.Random, lanes: int) -> None:
        self.rng = rng
        self.lanes = lanes
        self.earlier: list[_Written] = []

    def segments(self) -> list[Segment]:
        found = []
        for order in range(self.rng.randint(1, 4)):
            found += self._order(order)
        return found

    def _order(self, order: int) -> list[Segment]:
        """An order's repetitions: partial ones, a loop of whole ones, partial ones."""
        rng = self.rng
        stride = rng.choice((1, 1, 1, 2, 3))
        mirror = rng.choice((-1, -1, rng.randint(0, 12)))
        templates = self._templates(order, stride, mirror)
        if rng.random() < 0.25:
            return [Segment(templates=templates, first=rng.randint(-2, 12), mirror=mirror)]
        repetition, segments = 0, []
        for count, partial in (
            (rng.randint(0, 2), True),
            (rng.choice((1, 2, 3, 4, 5, 9, 17)), False),
            (rng.randint(0, 2), True),
        ):
            repeats = [count] if not partial else [1] * count
            for repeat in repeats:
                inside = tuple(t for t in templates if rng.random() < 0.6) if partial else templates
                if inside and repeat:
                    segments.append(
                        Segment(
                            templates=inside, count=repeat, first=repetition * stride,
                            stride=stride, mirror=mirror,
                        )
                    )  # fmt: skip
                repetition += repeat
        return segments

    def _templates(self, order: int, stride: int, mirror: int) -> tuple[OpTemplate, ...]:
        rng, count, sign = self.rng, self.rng.randint(1, 9), 1 if mirror < 0 else -1
        plain = [self._plain(order, index, stride) for index in range(count)]
        plain += self._copies(plain, stride)
        mine = [
            _Written(ref, t.lane, t.offset, index)
            for index, t in enumerate(plain)
            for ref in t.writes
        ]
        templates = []
        for index, template in enumerate(plain):
            reads = [
                self._own_read(template, index, written, stride, sign)
                for written in self._some(mine)
                if written.lane in (COMPUTE, template.lane) or template.lane == COMPUTE
            ]
            reads += [
                written.ref.at(rng.randint(-3, 3))
                for written in self._some(self.earlier)
                if written.lane in (COMPUTE, template.lane) or template.lane == COMPUTE
            ]
            templates.append(template._replace(reads=tuple(dict.fromkeys(reads))))
        self.earlier += mine
        return tuple(templates)

    def _some(self, values: list[_Written]) -> list[_Written]:
        return self.rng.sample(values, min(len(values), self.rng.choice((0, 0, 1, 1, 2))))

    def _plain(self, order: int, index: int, stride: int) -> OpTemplate:
        """A template that reads nothing yet. Its role makes its ops' names unique."""
        rng = self.rng
        lane = rng.randrange(1, self.lanes) if self.lanes > 1 and rng.random() < 0.4 else COMPUTE
        writes = tuple(
            Ref(f"v{order}.{index}.{value}", layer=rng.choice((0, 0, 0, -1, 1)))
            for value in range(rng.choice((0, 1, 1, 1, 2)))
        )
        return OpTemplate(
            f"attn.{order}.{index}", -1, rng.choice(_choices(lane)), lane,
            rng.randint(-1, stride), (), writes,
        )  # fmt: skip

    def _copies(self, plain: list[OpTemplate], stride: int) -> list[OpTemplate]:
        """The same ops at the stride's other layers, as an order over several layers has them."""
        rng = self.rng
        if stride == 1 or rng.random() < 0.4:
            return []
        return [
            t.shifted(layers) for layers in range(1, stride) for t in plain if rng.random() < 0.8
        ]

    def _own_read(
        self, reader: OpTemplate, index: int, written: _Written, stride: int, sign: int
    ) -> Ref:
        """Reads what the order wrote ``back`` repetitions ago: none where it was written before."""
        back = self.rng.choice((0, 0, 1, 1, 2, 4))
        if not back and written.place >= index:
            back = 1
        away = written.offset - reader.offset - back * stride
        return written.ref.at(written.ref.layer + sign * away)
