"""Program: a schedule compiled against a cost model, as both engines play it.

Names are gone: every op is (lane, work, family, waits, launch). Waits are counted, because comm
lanes are FIFO: ``(lane, behind)`` means "all steps issued on ``lane`` so far but the last
``behind`` must be done". Counted from the op itself, waits are the same in every repetition, so a
program keeps the schedule's loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from simulator.contention import SCALE, Contention
from simulator.cost import CostModel, Launch
from simulator.errors import ScheduleError
from simulator.ops import Signature
from simulator.schedule import COMPUTE, LANES, OpTemplate, Schedule, Segment

WORK_UNIT: Final = 1024
"""Remaining work is an integer in 1/1024 ns of the op run alone."""


class Step(NamedTuple):
    """One op of a program, or what it waits for ranks that come later: then ``family`` is 0, for it
    keeps its lane and slows nothing. ``work`` in 1/1024 ns; ``waits`` as in the module's docstring;
    ``launch_ns`` is the host's cost of issuing it."""

    lane: int
    work: int
    family: int
    waits: tuple[tuple[int, int], ...]
    launch_ns: int


@dataclass(frozen=True, kw_only=True)
class Loop:
    """``count`` times ``body``: steps, or loops within loops (micro-batches hold layers)."""

    body: tuple[Step, ...] | tuple[Loop, ...]
    count: int = 1

    def steps(self) -> tuple[Step, ...]:
        """Every step, unrolled."""
        once: list[Step] = []
        for item in self.body:
            if isinstance(item, Loop):
                once += item.steps()
            else:
                once.append(item)
        return tuple(once * self.count)

    def __len__(self) -> int:
        return self.count * sum(len(item) if isinstance(item, Loop) else 1 for item in self.body)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What the engines play. ``families[f]`` is the contention family of number f, 0 is idle.

    ``queue_depth`` bounds how many compute ops the host may be ahead; 0 switches the host lane off.
    """

    root: Loop
    lanes: int
    families: tuple[str | None, ...]
    contention: Contention
    queue_depth: int


class Rates(dict[tuple[int, ...], tuple[int, ...]]):
    """Slow-down × SCALE of each lane by the family in flight on each (0: idle), looked up once."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._families = program.families
        self._contention = program.contention

    def __missing__(self, in_flight: tuple[int, ...]) -> tuple[int, ...]:
        names = tuple(self._families[f] for f in in_flight)
        found = self[in_flight] = self._contention.slowdowns(names)
        assert all(rate >= SCALE for rate in found)
        return found


def spans_of_ops(
    steps: Sequence[Step], spans: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """When ops start and end, from when steps do: a wait for later ranks is the beginning of the op
    behind it."""
    starts: list[int] = []
    ends: list[int] = []
    for index, (step, (start, end)) in enumerate(zip(steps, spans, strict=True)):
        if step.family:
            waited = index > 0 and not steps[index - 1].family
            starts.append(spans[index - 1][0] if waited else start)
            ends.append(end)
    return tuple(starts), tuple(ends)


def compile_program(schedule: Schedule, cost: CostModel) -> Program:
    """Give every op its duration and its waits.

    Raises ScheduleError if a collective reads a result of another comm lane.
    """
    return _Compiler(cost, max(schedule.lanes()) + 1).program(schedule)


class _Run(NamedTuple):
    """A value that ``times`` repetitions wrote: the n-th at layer + n·step, as collective number
    first + n·per of its lane."""

    layer: int
    step: int
    times: int
    lane: int
    first: int
    per: int


def _sign(segment: Segment) -> int:
    """Layers that a template with an offset of 1 is away from one with 0."""
    return 1 if segment.mirror < 0 else -1


class _Compiler:
    def __init__(self, cost: CostModel, lanes: int) -> None:
        self.cost = cost
        self.lanes = lanes
        self.launch: Launch = cost.launch
        self.families: dict[str | None, int] = {None: 0}
        self.numbers: dict[Signature, tuple[int, int, int]] = {}
        self.issued = [0] * lanes
        self.waited = [0] * lanes
        self.written: dict[tuple[int, str], tuple[int, int]] = {}
        self.runs: dict[str, list[_Run]] = {}
        self.comm_names: set[str] = set()
        self.computed_ns = [0] * lanes

    def program(self, schedule: Schedule) -> Program:
        parts = []
        for part in schedule.parts:
            self.written.clear()
            self.runs.clear()
            self.comm_names.clear()
            self.computed_ns = [0] * self.lanes
            loops = tuple(loop for segment in part.segments for loop in self._segment(segment))
            parts.append(Loop(body=loops, count=part.count))
        return Program(
            root=Loop(body=tuple(parts)),
            lanes=self.lanes,
            families=tuple(self.families),
            contention=self.cost.contention,
            queue_depth=self.launch.queue_depth if self.launch.mode == "async" else 0,
        )

    def _segment(self, segment: Segment) -> list[Loop]:
        """The first repetitions alone where they wait otherwise than the rest; then a loop."""
        settled = min(segment.count, self._settled_after(segment))
        head = [self._repetition(segment, r) for r in range(settled)]
        rest = segment.count - len(head)
        if rest:
            self._repeat_last(segment, len(head) - 1, rest, head[-1])
        loops: list[Loop] = []
        for index, steps in enumerate(head):
            count = 1 + (rest if index == len(head) - 1 else 0)
            if loops and loops[-1].body == steps:
                loops[-1] = Loop(body=steps, count=loops[-1].count + count)
            else:
                loops.append(Loop(body=steps, count=count))
        return loops

    def _settled_after(self, segment: Segment) -> int:
        """Repetitions after which all wait like the last of them.

        What the loop itself wrote is found from as many repetitions on as it is read later; one
        more settles which of these waits an earlier op has done. What stood before the loop is
        read at another distance each time: unless all of that was waited for, nothing settles.
        """
        sign, stride = _sign(segment), segment.stride
        written: dict[str, list[int]] = {}
        for template in segment.templates:
            if template.lane != COMPUTE:
                for ref in template.writes:
                    written.setdefault(ref.name, []).append(template.offset + sign * ref.layer)
        was_open = any(a < b for a, b in zip(self.waited[1:], self.issued[1:], strict=True))
        older = self.comm_names.copy() if was_open else ()
        self.comm_names.update(written)
        latest = 0
        for template in segment.templates:
            for ref in template.reads:
                if ref.name not in written and ref.name not in older:
                    continue
                position = template.offset + sign * ref.layer
                later = [place - position for place in written.get(ref.name, ())]
                mine = [away for away in later if away >= 0 and away % stride == 0]
                latest = max([latest, *(away // stride for away in mine)])
                if not mine and ref.name in older:
                    return segment.count
        return latest + 2

    def _repeat_last(
        self, segment: Segment, last: int, times: int, steps: tuple[Step, ...]
    ) -> None:
        """Count and name what ``times`` more repetitions like number ``last`` would issue."""
        per = [0] * self.lanes
        for step in steps:
            per[step.lane] += 1
        sign = _sign(segment)
        for template in segment.templates:
            for ref in template.writes if template.lane != COMPUTE else ():
                layer = segment.layer(last, template.offset) + ref.layer
                count = self.written[layer, ref.name][1]
                self.runs.setdefault(ref.name, []).append(
                    _Run(
                        layer,
                        sign * segment.stride,
                        times,
                        template.lane,
                        count,
                        per[template.lane],
                    )
                )
        waited = {lane for step in steps for lane, _ in step.waits}
        for lane in range(self.lanes):
            self.issued[lane] += times * per[lane]
            if lane in waited:
                self.waited[lane] += times * per[lane]
        self._compute_more(times, steps, per)

    def _compute_more(self, times: int, steps: tuple[Step, ...], per: list[int]) -> None:
        """Lanes on which nothing is issued meanwhile see the compute of all repetitions."""
        once_ns = sum(step.work // WORK_UNIT for step in steps if step.lane == COMPUTE)
        for lane in range(self.lanes):
            if not per[lane]:
                self.computed_ns[lane] += times * once_ns

    def _repetition(self, segment: Segment, repetition: int) -> tuple[Step, ...]:
        base, sign = segment.layer(repetition, 0), _sign(segment)
        steps: list[Step] = []
        for template in segment.templates:
            steps += self._steps(template, base + sign * template.offset)
        return tuple(steps)

    def _steps(self, template: OpTemplate, layer: int) -> tuple[Step, ...]:
        lane = template.lane
        numbers = self.numbers.get(template.signature)
        if numbers is None:
            numbers = self.numbers[template.signature] = self._numbers(template.signature)
        waits = self._waits(template, layer) if self.lanes > 1 else ()
        work, family, launch_ns = numbers
        wait_ns = 0 if self.cost.skew is None else self._skew_ns(lane, work // WORK_UNIT)
        self.issued[lane] += 1 + (wait_ns > 0)
        if lane != COMPUTE:
            for ref in template.writes:
                self.written[layer + ref.layer, ref.name] = (lane, self.issued[lane])
        if not wait_ns:
            return (Step(lane, work, family, waits, launch_ns),)
        late = Step(lane, wait_ns * WORK_UNIT, 0, waits, launch_ns)
        return late, Step(lane, work, family, (), 0)

    def _skew_ns(self, lane: int, duration_ns: int) -> int:
        """How long an op waits for other ranks: a collective, for those that come to it later.

        It ends a stretch that began at the lane's collective before it: there all ranks met. At a
        micro-batch's start counting begins anew, so that all in the middle are alike; what was
        computed behind a lane's last collective before it is left out.
        """
        if lane == COMPUTE:
            self.computed_ns = [elapsed_ns + duration_ns for elapsed_ns in self.computed_ns]
            return 0
        elapsed_ns, self.computed_ns[lane] = self.computed_ns[lane], 0
        return self.cost.wait_ns(elapsed_ns)

    def _waits(self, template: OpTemplate, layer: int) -> tuple[tuple[int, int], ...]:
        """Waits that no earlier op has done already: the first reader waits, nobody else."""
        needed: dict[int, int] = {}
        for ref in template.reads:
            found = self.written.get((layer + ref.layer, ref.name))
            if found is None and ref.name in self.runs:
                found = self._in_run(layer + ref.layer, ref.name)
            if found is not None and found[1] > needed.get(found[0], self.waited[found[0]]):
                needed[found[0]] = found[1]
        if not needed:
            return ()
        if template.lane != COMPUTE:
            if set(needed) != {template.lane}:
                raise ScheduleError(
                    f"Collective {template.role!r} reads a result of another comm lane; put a "
                    f"compute op between them. Lanes: {', '.join(LANES)}."
                )
            return ()
        for lane, count in needed.items():
            self.waited[lane] = count
        return tuple((lane, self.issued[lane] - count) for lane, count in sorted(needed.items()))

    def _in_run(self, layer: int, name: str) -> tuple[int, int] | None:
        for run in self.runs[name]:
            repetition, off_beat = divmod(layer - run.layer, run.step)
            if not off_beat and 1 <= repetition <= run.times:
                return run.lane, run.first + repetition * run.per
        return None

    def _numbers(self, signature: Signature) -> tuple[int, int, int]:
        family = self.families.setdefault(self.cost.family(signature), len(self.families))
        duration_ns = self.cost.duration_ns(signature)
        launch_ns = self.launch.cost_ns.get(signature.kind, 0) if self.launch.mode != "none" else 0
        if self.launch.mode == "inline":
            duration_ns += launch_ns
        return duration_ns * WORK_UNIT, family, launch_ns
