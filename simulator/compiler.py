"""The compiler: a schedule and a cost model become a program.

Values have names in a schedule, and a program counts. So the compiler follows who writes what on
which lane, through loops: it takes repetitions one by one until all further ones wait alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simulator.contention import Family
from simulator.cost import CostModel
from simulator.errors import ScheduleError
from simulator.idle_lane import IdleTimes
from simulator.launch import Launch
from simulator.ops import Collective, Signature
from simulator.program import FIRST, REST, WHOLE, WORK_UNIT, Loop, Program, Step
from simulator.schedule import COMPUTE, LANES, OpTemplate, Schedule, Segment
from simulator.skew_count import Counted, SkewCount
from simulator.waves import OPEN, room_beside


def compile_program(schedule: Schedule, cost: CostModel) -> Program:
    """Return the program of ``schedule``: every op with its duration and its waits.

    Raise ScheduleError if a collective reads a result of another comm lane.
    """
    return _Compiler(cost, max(schedule.lanes()) + 1, schedule).program(schedule)


def retimed(program: Program, schedule: Schedule, cost: CostModel) -> Program:
    """Return what ``compile_program`` makes of ``schedule``; ``program`` was made at another clock.

    Waits for later ranks depend on durations: with them the schedule is compiled anew.
    """
    if cost.skew is not None:
        return compile_program(schedule, cost)
    compiler = _Compiler(cost, program.lanes, schedule)
    numbers = [compiler.numbers_of(signature) for signature in program.signatures]
    works = [[own.work_of(part) for part in (WHOLE, FIRST, REST)] for own in numbers]

    def timed(item: Step | Loop) -> Any:
        if isinstance(item, Loop):
            return Loop(body=tuple([timed(one) for one in item.body]), count=item.count)
        # _replace takes longer
        lane, _, _, waits, launch_ns, room, needs, part, number, idle = item
        work, family = works[number][part], numbers[number].family
        return Step(lane, work, family, waits, launch_ns, room, needs, part, number, idle)

    return replace(program, root=timed(program.root), families=tuple(compiler.families))


def slowed(program: Program, schedule: Schedule, cost: CostModel) -> Program:
    """Return what ``compile_program`` makes of ``schedule``; ``program`` was made with another law
    of contention that knows the same families.

    Waits for later ranks depend on the law: with them the schedule is compiled anew.
    """
    if cost.skew is not None:
        return compile_program(schedule, cost)
    return replace(program, contention=cost.contention)


class _Numbers(NamedTuple):
    """The parts of a step that its signature decides. ``waves`` of a GEMM that leaves room in the
    last of them."""

    work: int
    family: int
    launch_ns: int
    room: int
    needs: int
    waves: int
    number: int
    idle: IdleTimes

    def work_of(self, part: int) -> int:
        """Return the work of a part of the op: FIRST is all waves but the last, in whole ns."""
        first = self.work // WORK_UNIT * (self.waves - 1) // self.waves * WORK_UNIT
        return (self.work, first, self.work - first)[part]


class _Run(NamedTuple):
    """A value that ``times`` repetitions write: repetition n at layer + n·step, as collective
    number first + n·per of its lane."""

    layer: int
    step: int
    times: int
    lane: int
    first: int
    per: int


def _sign(segment: Segment) -> int:
    """Return by how much the layer number changes when the offset grows by 1."""
    return 1 if segment.mirror < 0 else -1


def _issue_alike(repetitions: Sequence[tuple[Step, ...]]) -> bool:
    """Return whether repetitions issue the same steps: a collective is one, or two if it is late.
    A wait counts all steps since the repetition that it waits for."""
    return len({tuple(step.lane for step in steps) for steps in repetitions}) == 1


class _Compiler:
    def __init__(self, cost: CostModel, lanes: int, schedule: Schedule) -> None:
        self.cost = cost
        self.lanes = lanes
        self.launch: Launch = cost.launch
        self.families: dict[Family | None, int] = {None: 0}
        self.numbers: dict[Signature, _Numbers] = {}
        self.issued = [0] * lanes
        self.waited = [0] * lanes
        self.written: dict[tuple[int, str], tuple[int, int]] = {}
        self.runs: dict[str, list[_Run]] = {}
        self.comm_names: set[str] = set()
        self.skew = SkewCount(cost, lanes)
        self.least_needs = self._least_needs(schedule)

    def program(self, schedule: Schedule) -> Program:
        parts = []
        for part in schedule.parts:
            self.written.clear()
            self.runs.clear()
            self.comm_names.clear()
            self.skew = SkewCount(self.cost, self.lanes)
            loops = tuple(loop for segment in part.segments for loop in self._segment(segment))
            parts.append(Loop(body=loops, count=part.count))
        admits_late = self.cost.contention.admits_late
        return Program(
            root=Loop(body=tuple(parts)),
            lanes=self.lanes,
            families=tuple(self.families),
            contention=self.cost.contention,
            queue_depth=self.launch.queue_depth if self.launch.mode == "async" else 0,
            launch_order=schedule.launch_order if admits_late else "comm_first",
            resume=self.cost.resume,
            signatures=tuple(self.numbers),
            most_idle_ns=max((own.idle.matter_for_ns for own in self.numbers.values()), default=0),
        )

    def _least_needs(self, schedule: Schedule) -> int:
        """Return the fewest SMs that a collective waits for: less room than that is none."""
        needs = {
            self._needs(template.signature)
            for part in schedule.parts
            for segment in part.segments
            for template in segment.templates
        }
        return min(needs - {0}, default=OPEN)

    def _segment(self, segment: Segment) -> list[Loop]:
        """Return single repetitions while their waits still differ, then one loop of the rest."""
        settled = min(segment.count, self._settled_after(segment))
        head: list[tuple[Step, ...]] = []
        lanes = {template.lane for template in segment.templates} - {COMPUTE}
        before: tuple[object, ...] | None = None
        counted = self.skew.counted
        while len(head) < segment.count and (
            len(head) < settled
            or before != self.skew.state(lanes)
            or not _issue_alike(head[1 - settled :])
        ):
            before, counted = self.skew.state(lanes), self.skew.counted
            head.append(self._repetition(segment, len(head)))
        rest = segment.count - len(head)
        if rest:
            self._repeat_last(segment, len(head) - 1, rest, head[-1], counted)
        loops: list[Loop] = []
        for index, steps in enumerate(head):
            count = 1 + (rest if index == len(head) - 1 else 0)
            if loops and loops[-1].body == steps:
                loops[-1] = Loop(body=steps, count=loops[-1].count + count)
            else:
                loops.append(Loop(body=steps, count=count))
        return loops

    def _settled_after(self, segment: Segment) -> int:
        """Return the number of repetitions after which all others wait like the last of them.

        Reads of the loop's own values settle after as many repetitions as they come later; one more
        settles which of these waits an earlier op has done. A value from before the loop is read at
        another distance each time: unless all such values were waited for, nothing settles.
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
                distances = [place - position for place in written.get(ref.name, ())]
                own = [layers for layers in distances if layers >= 0 and layers % stride == 0]
                latest = max([latest, *(layers // stride for layers in own)])
                if not own and ref.name in older:
                    return segment.count
        return latest + 2

    def _repeat_last(
        self, segment: Segment, last: int, times: int, steps: tuple[Step, ...], counted: Counted
    ) -> None:
        """Record what ``times`` more repetitions like number ``last`` issue, write and wait for;
        ``counted`` is the compute counted before it."""
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
        self.skew.repeat(counted, times, [lane for lane in range(self.lanes) if not per[lane]])

    def _repetition(self, segment: Segment, repetition: int) -> tuple[Step, ...]:
        base, sign = segment.layer(repetition, 0), _sign(segment)
        steps: list[Step] = []
        for template in segment.templates:
            steps += self._steps(template, base + sign * template.offset)
        return tuple(steps)

    def _steps(self, template: OpTemplate, layer: int) -> tuple[Step, ...]:
        lane = template.lane
        waits = self._waits(template, layer)
        numbers = self.numbers_of(template.signature)
        work, family, launch_ns, room, needs, _, number, idle = numbers
        wait_ns = 0
        if self.cost.skew is not None:
            wait_ns = self.skew.add(
                lane, work // WORK_UNIT, self.cost.family(template.signature), waits
            )
        self.issued[lane] += 1 + (wait_ns > 0)
        if lane != COMPUTE:
            for ref in template.writes:
                self.written[layer + ref.layer, ref.name] = (lane, self.issued[lane])
        if wait_ns:
            late = Step(lane, wait_ns * WORK_UNIT, 0, waits, launch_ns, needs=needs)
            moves = Step(lane, work, family, (), 0, needs=0, number=number, idle=idle)
            return late, moves
        first = numbers.work_of(FIRST)
        if not first:
            return (Step(lane, work, family, waits, launch_ns, room, needs, WHOLE, number, idle),)
        return (
            Step(lane, first, family, waits, launch_ns, 0, part=FIRST, number=number),
            Step(lane, work - first, family, (), 0, room, part=REST, number=number),
        )

    def _waits(self, template: OpTemplate, layer: int) -> tuple[tuple[int, int], ...]:
        """Return the waits that no earlier op has done: only a value's first reader waits."""
        needed: dict[int, int] = {}
        for ref in template.reads:
            writer = self.written.get((layer + ref.layer, ref.name))
            if writer is None and ref.name in self.runs:
                writer = self._in_run(layer + ref.layer, ref.name)
            if writer is not None and writer[1] > needed.get(writer[0], self.waited[writer[0]]):
                needed[writer[0]] = writer[1]
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

    def numbers_of(self, signature: Signature) -> _Numbers:
        """Return the numbers of a signature, made at its first step."""
        numbers = self.numbers.get(signature)
        if numbers is None:
            cost = self.cost
            family = self.families.setdefault(cost.family(signature), len(self.families))
            duration_ns, idle = cost.awake_ns(signature), cost.idle_times(signature)
            launch_ns = self.launch.of(signature) if self.launch.mode != "none" else 0
            inline_ns = launch_ns if self.launch.mode == "inline" else 0
            if isinstance(signature, Collective):  # a lane that is awake goes on by itself
                idle = idle._replace(wake_ns=idle.wake_ns + inline_ns)
            else:
                duration_ns += inline_ns
            waves, room = room_beside(signature, cost.contention, self.least_needs)
            numbers = self.numbers[signature] = _Numbers(
                duration_ns * WORK_UNIT, family, launch_ns, room, self._needs(signature), waves,
                len(self.numbers), idle,
            )  # fmt: skip
        return numbers

    def _needs(self, signature: Signature) -> int:
        if not isinstance(signature, Collective) or signature.needs_no_room:
            return 0
        return self.cost.contention.sms_of(self.cost.family(signature))
