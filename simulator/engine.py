"""The engine of record: a Program played by SimPy, one process a lane and one for the host.

Semantics are those of simulator.recurrence, told here the way they happen: the compute process
walks the total order and hands each collective to its lane once all compute before it is done;
a comm process plays its lane in order; the host process issues ops ahead of them both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Final

import simpy

from simulator.contention import SCALE
from simulator.program import WORK_UNIT, Program, Step
from simulator.schedule import COMPUTE, Schedule
from simulator.timeline import Timeline

_UNIT: Final = WORK_UNIT * SCALE
_Process = Generator[simpy.Event, Any, None]


def play(schedule: Schedule, program: Program) -> Timeline:
    """Simulate ``program``, which was compiled from ``schedule``."""
    engine = _Engine(program)
    engine.run()
    return Timeline(schedule=schedule, start_ns=tuple(engine.starts), end_ns=tuple(engine.ends))


class _Lane:
    """What a lane has in flight, and what waits in front of it."""

    __slots__ = ("arrival", "done", "ends_at", "family", "finished", "issued", "queue", "reached",
                 "target", "work")  # fmt: skip

    def __init__(self) -> None:
        self.work = 0
        self.family = 0
        self.ends_at = -1
        self.finished: simpy.Event | None = None
        self.queue: deque[int] = deque()
        self.arrival: simpy.Event | None = None
        self.issued = 0
        self.done = 0
        self.target = 0
        self.reached: simpy.Event | None = None


class _Engine:
    def __init__(self, program: Program) -> None:
        self.env = simpy.Environment()
        self.steps: tuple[Step, ...] = tuple(program.root.steps())
        self.lanes = [_Lane() for _ in range(program.lanes)]
        self.rates = program.rates()
        self.settled_at = 0
        self.in_flight: tuple[int, ...] = (0,) * program.lanes
        self.starts = [0] * len(self.steps)
        self.ends = [0] * len(self.steps)
        self.depth = program.queue_depth
        self.host_issued = 0
        self.compute_done = 0
        self.host_waiters: list[tuple[int, simpy.Event]] = []
        self.queue_freed: simpy.Event | None = None

    def run(self) -> None:
        """Play to the end of every process (abandoned timers may outlive them)."""
        processes = [self.env.process(self._compute_lane())]
        counts = [0] * len(self.lanes)
        for step in self.steps:
            counts[step.lane] += 1
        for lane in range(1, len(self.lanes)):
            processes.append(self.env.process(self._comm_lane(lane, counts[lane])))
        if self.depth:
            self.env.process(self._host())
        self.env.run(until=simpy.AllOf(self.env, processes))

    # Lanes --------------------------------------------------------------------------------------

    def _compute_lane(self) -> _Process:
        env, lanes = self.env, self.lanes
        mine = lanes[COMPUTE]
        for index, step in enumerate(self.steps):
            if step.lane:
                self._hand_over(lanes[step.lane], index)
                continue
            for waited, behind in step.waits:
                lane = lanes[waited]
                lane.target = lane.issued - behind
                if lane.done < lane.target:
                    lane.reached = env.event()
                    self._settle()
                    yield lane.reached
            if self.depth and self.host_issued <= index:
                self._settle()
                yield self._issue_of(index)
            yield self._start(mine, index, step)
            self.compute_done += 1
            if self.queue_freed is not None:
                self.queue_freed.succeed()
                self.queue_freed = None
        self._settle()

    def _hand_over(self, lane: _Lane, index: int) -> None:
        lane.issued += 1
        lane.queue.append(index)
        if lane.arrival is not None:
            lane.arrival.succeed()
            lane.arrival = None

    def _comm_lane(self, number: int, count: int) -> _Process:
        lane = self.lanes[number]
        for _ in range(count):
            if not lane.queue:
                self._settle()
                lane.arrival = self.env.event()
                yield lane.arrival
            index = lane.queue.popleft()
            if self.depth and self.host_issued <= index:
                self._settle()
                yield self._issue_of(index)
            yield self._start(lane, index, self.steps[index])
            lane.done += 1
            if lane.reached is not None and lane.done >= lane.target:
                lane.reached.succeed()
                lane.reached = None
        self._settle()

    # Host ---------------------------------------------------------------------------------------

    def _host(self) -> _Process:
        compute_issued = 0
        for step in self.steps:
            if step.lane == COMPUTE:
                while compute_issued - self.compute_done >= self.depth:
                    self.queue_freed = self.env.event()
                    yield self.queue_freed
                compute_issued += 1
            if step.launch_ns:
                yield self.env.timeout(step.launch_ns)
            self.host_issued += 1
            if self.host_waiters:
                self._wake_issued()

    def _issue_of(self, index: int) -> simpy.Event:
        event = self.env.event()
        self.host_waiters.append((index, event))
        return event

    def _wake_issued(self) -> None:
        for waiter in list(self.host_waiters):
            if waiter[0] < self.host_issued:
                self.host_waiters.remove(waiter)
                waiter[1].succeed()

    # Work in flight -----------------------------------------------------------------------------

    def _start(self, lane: _Lane, index: int, step: Step) -> simpy.Event:
        """Put an op in flight; the event fires when it ends."""
        self.starts[index] = self.env.now  # type: ignore[assignment]
        finished = self.env.event()
        lane.finished = finished
        finished.callbacks.append(lambda _: self._ended(index))
        self._settle(lane, step)
        return finished

    def _ended(self, index: int) -> None:
        self.ends[index] = self.env.now  # type: ignore[assignment]

    def _settle(self, starting: _Lane | None = None, step: Step | None = None) -> None:
        """Count the work done since the last change, then re-rate what is in flight."""
        now = int(self.env.now)
        elapsed = now - self.settled_at
        if elapsed:
            self._give_up(elapsed)
            self.settled_at = now
        if starting is not None and step is not None:
            starting.work, starting.family = step.work, step.family
        self.in_flight = tuple([lane.family if lane.work > 0 else 0 for lane in self.lanes])
        rates = self.rates(self.in_flight)
        for lane, rate in zip(self.lanes, rates, strict=True):
            if lane.work > 0:
                ends_at = now - (-lane.work * rate // _UNIT)
                if ends_at != lane.ends_at:
                    lane.ends_at = ends_at
                    timer = self.env.timeout(ends_at - now, (lane, ends_at))
                    timer.callbacks.append(self._timer)

    def _give_up(self, elapsed: int) -> None:
        rates = self.rates(self.in_flight)
        for lane, family, rate in zip(self.lanes, self.in_flight, rates, strict=True):
            if family:
                lane.work -= elapsed * _UNIT // rate

    def _timer(self, event: Any) -> None:
        """A planned end has come; if the op was re-rated since, another timer stands for it."""
        lane, ends_at = event.value
        if lane.ends_at != ends_at or lane.finished is None:
            return
        lane.ends_at = -1
        self._account(lane)
        finished, lane.finished = lane.finished, None
        finished.succeed()

    def _account(self, lane: _Lane) -> None:
        now = int(self.env.now)
        if now != self.settled_at:
            self._give_up(now - self.settled_at)
            self.settled_at = now
        lane.work = 0
        self.in_flight = tuple([x.family if x.work > 0 else 0 for x in self.lanes])
