"""The engine of record: SimPy plays a Program, with one process per lane.

The semantics are those of ``simulator.kernels.player``. The compute process goes through the total
order and hands each collective to its lane when all compute before it is done; a comm process plays
its lane in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Final

import simpy

from simulator.contention import SCALE
from simulator.cpu_hosts import LONG_AGO_NS, Resumed
from simulator.program import FIRST, REST, WORK_UNIT, Program, Rates, Step, spans_of_ops
from simulator.schedule import COMPUTE, Schedule, Timeline
from simulator.waves import OPEN

_UNIT: Final = WORK_UNIT * SCALE
_Process = Generator[simpy.Event, Any, None]


def play(schedule: Schedule, program: Program) -> Timeline:
    """Return the timeline of ``program``, which was compiled from ``schedule``."""
    engine = _Engine(program)
    engine.run()
    spans = list(zip(engine.starts, engine.ends, strict=True))
    starts, ends = spans_of_ops(engine.steps, spans)
    return Timeline(schedule=schedule, start_ns=starts, end_ns=ends)


class _Finish(simpy.Event):
    """The end of an op. Its time moves with contention, so timers fire it, not the event queue."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None

    def fire(self) -> None:
        """Resume the waiting processes at once; the lane's next op uses the same event."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(self)


class _Lane:
    """A lane: its op in flight, and the queue in front of it."""

    __slots__ = ("admitted", "arrival", "done", "ends_at", "family", "finished", "issued",
                 "moved_until", "queue", "rate", "reached", "target", "timer_at", "unstarted",
                 "work")  # fmt: skip

    def __init__(self, env: simpy.Environment) -> None:
        self.work = 0
        self.family = 0
        self.rate = SCALE
        self.ends_at: float = -1
        self.timer_at: float = -1
        self.finished = _Finish(env)
        self.queue: deque[int] = deque()
        self.arrival: simpy.Event | None = None
        self.issued = 0
        self.done = 0
        self.target = 0
        self.reached: simpy.Event | None = None
        self.unstarted = 0
        self.moved_until = LONG_AGO_NS  # the end of its last collective
        self.admitted: simpy.Event | None = None


class _Engine:
    def __init__(self, program: Program) -> None:
        self.env = simpy.Environment()
        self.steps = program.root.steps()
        self.lanes = [_Lane(self.env) for _ in range(program.lanes)]
        self.rates = Rates(program)
        self.resumed = Resumed(program.resume)
        self.settled_at: float = 0
        self.starts = [0] * len(self.steps)
        self.ends = [0] * len(self.steps)
        self.depth = program.queue_depth
        self.compute_ends: list[int] = []
        self.compute_issued = 0
        self.held = 0  # the compute op that the host waits for
        self.issue_times: list[int] = []
        self.order = program.launch_order
        self.ready_at = [0] * len(self.steps)
        self.room = OPEN  # SMs that the compute in flight leaves
        self.began_at = -1  # when the compute op in flight started
        self.all_started: simpy.Event | None = None

    def run(self) -> None:
        """Play to the end of every process; timers that are no longer needed may remain."""
        counts = [0] * len(self.lanes)
        for step in self.steps:
            counts[step.lane] += 1
        processes = [self.env.process(self._compute_lane())]
        for lane in range(1, len(self.lanes)):
            processes.append(self.env.process(self._comm_lane(lane, counts[lane])))
        self.env.run(until=simpy.AllOf(self.env, processes))

    # Lanes --------------------------------------------------------------------------------------

    def _compute_lane(self) -> _Process:
        env, lanes = self.env, self.lanes
        for index, step in enumerate(self.steps):
            if step.lane:
                self._hand_over(lanes[step.lane], index)
                continue
            if step.part == REST:
                yield from self._compute(index, step)
                continue
            for waited, behind in step.waits:
                lane = lanes[waited]
                lane.target = lane.issued - behind
                if lane.done < lane.target:
                    lane.reached = env.event()
                    self._settle()
                    yield lane.reached
            if self.depth and self._issued_at(index) > env.now:
                self._settle()
                yield env.timeout(self._issued_at(index) - env.now)
            while self.order == "ordered" and any(lane.unstarted for lane in lanes):
                self.all_started = env.event()
                self._settle()
                yield self.all_started
            self.began_at = int(env.now)
            yield from self._compute(index, step)
        self._settle()

    def _compute(self, index: int, step: Step) -> _Process:
        """Play a step of compute, then wake the lanes that waited for its end."""
        self.room = step.room
        paid_ns = self.resumed.paid_ns(int(self.env.now), step.work // WORK_UNIT)
        longer = step._replace(work=step.work + paid_ns * WORK_UNIT)
        yield self._start(self.lanes[COMPUTE], index, longer)
        self.ends[index] = now = self.resumed.busy_until_ns = int(self.env.now)
        if step.part != FIRST:
            self.compute_ends.append(now)
            self.room = OPEN
        for lane in self.lanes:
            if lane.admitted is not None:
                lane.admitted.succeed()
                lane.admitted = None

    def _is_shut_out(self, index: int) -> bool:
        """Return whether a collective cannot get in beside the op in flight."""
        if self.steps[index].needs <= self.room:
            return False
        now = int(self.env.now)
        late = self.ready_at[index] >= now if self.order == "free" else False
        return self.began_at < now or late

    def _hand_over(self, lane: _Lane, index: int) -> None:
        lane.issued += 1
        lane.unstarted += self.steps[index].needs > 0
        self.ready_at[index] = int(self.env.now)
        lane.queue.append(index)
        if lane.arrival is not None:
            lane.arrival.succeed()
            lane.arrival = None

    def _comm_lane(self, number: int, count: int) -> _Process:
        env, lane = self.env, self.lanes[number]
        for _ in range(count):
            if not lane.queue:
                self._settle()
                lane.arrival = env.event()
                yield lane.arrival
            index = lane.queue.popleft()
            if self.depth and self._issued_at(index) > env.now:
                self._settle()
                yield env.timeout(self._issued_at(index) - env.now)
            while self._is_shut_out(index):
                self._settle()
                lane.admitted = env.event()
                yield lane.admitted
            lane.unstarted -= self.steps[index].needs > 0
            if self.all_started is not None and not any(one.unstarted for one in self.lanes):
                self.all_started.succeed()
                self.all_started = None
            yield self._start(lane, index, self._longer(lane, self.steps[index]))
            self.ends[index] = int(env.now)
            if lane.family:  # else it waited, and the link was idle
                lane.moved_until = int(env.now)
            lane.done += 1
            if lane.reached is not None and lane.done >= lane.target:
                lane.reached.succeed()
                lane.reached = None
        self._settle()

    def _longer(self, lane: _Lane, step: Step) -> Step:
        """Return a collective with the time that it fails to save, and the cost of waking its lane,
        added."""
        idle_ns = int(self.env.now) - lane.moved_until
        more_ns = step.idle.more_ns(idle_ns)
        return step._replace(work=step.work + more_ns * WORK_UNIT) if more_ns else step

    def _issued_at(self, index: int) -> int:
        """Return the time (ns) at which the host issues an op. All compute before it must be done.

        The host needs no process, because nothing happens at its times unless a lane waits for one
        of them. At most ``depth`` compute ops are issued and not done, and none
        after one that stops the host.
        """
        times = self.issue_times
        if len(times) <= index:
            self._issue_ahead(times)
        return times[index]

    def _issue_ahead(self, times: list[int]) -> None:
        """Issue as many ops as the queue has room for now."""
        now = times[-1] if times else 0
        ends, depth = self.compute_ends, self.depth
        for index in range(len(times), len(self.steps)):
            step = self.steps[index]
            if step.part != REST and self.held:
                if self.held > len(ends):
                    return
                now, self.held = max(now, ends[self.held - 1]), 0
            if step.lane == COMPUTE and step.part != REST:
                freed = self.compute_issued - depth
                if freed >= len(ends):
                    return
                if freed >= 0 and ends[freed] > now:
                    now = ends[freed]
                self.compute_issued += 1
            now += step.launch_ns
            times.append(now)
            if step.stops:
                self.held = self.compute_issued

    # Work in flight -----------------------------------------------------------------------------

    def _start(self, lane: _Lane, index: int, step: Step) -> _Finish:
        """Put an op in flight; return the event that fires when it ends."""
        self.starts[index] = int(self.env.now)
        self._settle(lane, step)
        return lane.finished

    def _settle(self, starting: _Lane | None = None, step: Step | None = None) -> None:
        """Subtract the work done since the last change, then set new rates for ops in flight.

        Every process calls this before it starts an op or begins to wait, so each instant at which
        an op starts or ends is covered.
        """
        now, lanes = self.env.now, self.lanes
        units = int(now - self.settled_at) * _UNIT
        self.settled_at = now
        in_flight = []
        for lane in lanes:
            if lane.work > 0:
                lane.work -= units // lane.rate
            if lane is starting and step is not None:
                lane.work, lane.family = step.work, step.family
            in_flight.append(lane.family if lane.work > 0 else 0)
        rates = self.rates[tuple(in_flight)]
        for lane, rate in zip(lanes, rates, strict=True):
            if lane.work > 0:
                lane.rate = rate
                lane.ends_at = ends_at = now - (-lane.work * rate // _UNIT)
                if ends_at < lane.timer_at or lane.timer_at < now:
                    self._set_timer(lane, now)

    def _set_timer(self, lane: _Lane, now: float) -> None:
        lane.timer_at = lane.ends_at
        self.env.timeout(lane.ends_at - now, lane).callbacks.append(self._timer)

    def _timer(self, event: Any) -> None:
        """Fire the lane's end if it is now. If it has moved, set a timer unless one is set."""
        lane: _Lane = event.value
        now = self.env.now
        if lane.timer_at == now:
            lane.timer_at = -1
        if lane.ends_at == now:
            lane.ends_at = -1
            lane.finished.fire()
        elif lane.ends_at > now and lane.timer_at < now:
            self._set_timer(lane, now)
