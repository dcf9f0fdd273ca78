"""An independent answer with admission: instants one by one, without contention, host and loops.

At each instant steps end, then everything starts that may, in any order, until nothing more does. A
collective ends no sooner than its work, plus the saving of an idle link, after the last one of its
lane, and later by the time that it takes to wake its lane. It shares no code with the engines; a
step's fields are its only input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulator.implementation import LaunchOrder
from simulator.program import REST, WORK_UNIT, Step

Span = tuple[int, int]


def admission_schedule(steps: Sequence[Step], lanes: int, order: LaunchOrder) -> list[Span]:
    """Return start and end of every step, in ns."""
    scheduler = _Scheduler(steps, lanes, order)
    while scheduler.instant():
        pass
    return [scheduler.spans[index] for index in range(len(steps))]


class _Scheduler:
    def __init__(self, steps: Sequence[Step], lanes: int, order: LaunchOrder) -> None:
        self.steps = steps
        self.order = order
        self.now = 0
        self.next = 0  # the first step that the compute lane has not reached
        self.began = 0  # when the compute op in flight did
        self.spans: dict[int, Span] = {}
        self.in_flight: dict[int, int] = {}  # lane -> step
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in range(lanes)]
        self.issued, self.done = [0] * lanes, [0] * lanes
        self.moved = [float("-inf")] * lanes  # the end of the last collective that moved bytes

    def instant(self) -> bool:
        """Play one instant and go to the next; return whether there is one."""
        for lane, index in list(self.in_flight.items()):
            if self.spans[index][1] == self.now:
                del self.in_flight[lane]
                self.done[lane] += 1
                if self.steps[index].family:
                    self.moved[lane] = self.now
        while self._compute_goes_on() or self._one_gets_in():
            pass
        if not self.in_flight:
            return False
        self.now = min(self.spans[index][1] for index in self.in_flight.values())
        return True

    def _compute_goes_on(self) -> bool:
        """Hand over the next collective, or start the next step of compute."""
        if 0 in self.in_flight or self.next == len(self.steps):
            return False
        step = self.steps[self.next]
        if step.lane:
            self.queues[step.lane].append((self.next, self.now))
            self.issued[step.lane] += 1
        elif step.part == REST:
            self._start(self.next)
        else:
            if any(self.done[lane] < self.issued[lane] - behind for lane, behind in step.waits):
                return False
            waiting = [self.steps[index] for queue in self.queues for index, _ in queue]
            if self.order == "ordered" and any(one.needs for one in waiting):
                return False
            self.began = self.now
            self._start(self.next)
        self.next += 1
        return True

    def _one_gets_in(self) -> bool:
        """Start one collective, the first of a lane without one."""
        for lane, queue in enumerate(self.queues):
            if queue and lane not in self.in_flight and self._is_admitted(*queue[0]):
                self._start(queue.popleft()[0])
                return True
        return False

    def _is_admitted(self, index: int, ready: int) -> bool:
        if 0 not in self.in_flight:
            return True
        if self.steps[index].needs <= self.steps[self.in_flight[0]].room:
            return True
        first = self.order != "free" or ready < self.now
        return self.began == self.now and first

    def _start(self, index: int) -> None:
        step = self.steps[index]
        self.in_flight[step.lane] = index
        began = max(self.now, self.moved[step.lane] + step.idle.saved_ns)
        began += min(self.now - self.moved[step.lane], step.idle.wake_ns)
        self.spans[index] = self.now, int(began) + step.work // WORK_UNIT
