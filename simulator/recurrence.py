"""The fast engine: a bare recurrence over a Program, with the semantics of simulator.engine.

Semantics. Every lane is FIFO. A collective is issued when all compute ops before it are done, and
starts when its lane is free. A compute op waits, where it stands, for the collectives it reads;
everything behind it waits too. The host issues ops one by one in the total order; none starts
before it was issued.

Admission. A collective that finds compute in flight starts if it ``needs`` no more SMs than the
step leaves ``room``; else it waits for the end of the step. A GEMM's full waves leave none, and its
last wave, a step of its own that follows at once, the SMs that have no tile. Where a collective
without room is ready at the instant at which an op starts, the program's launch order says who is
first. ``comm_first``: the collective. ``free``: the op, unless the collective was ready before that
instant. ``ordered``: the op starts when all collectives issued before it have started.

Idle lanes. A collective takes longer by what it does not save and by what it pays for waking, as
its lane idled (``simulator.idle_lane``). While it waits for later ranks its link is idle.

Resuming. An op that starts behind a wait pays what the wait costs (``simulator.resume``): its work
is more by that.

Contention. Between two instants at which any step starts or ends, rates are constant. At each such
instant the work done is subtracted from every op in flight, rounded down to 1/1024 ns; the end of
a step is rounded up to whole ns. Both engines use this rule, so they agree to the nanosecond.

Periodic shortcut. At the end of each repetition of a loop the whole state is taken relative to
now. If it occurred before, whole periods are added up instead of played (simulator.host says when
the host's lead allows this). The result is the same to the nanosecond.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from simulator.contention import SCALE
from simulator.host import Host, HostMark
from simulator.idle_lane import LONG_AGO_NS, NO_TIMES, IdleTimes
from simulator.kernels import player
from simulator.kernels.program_arrays import arrays_of
from simulator.program import FIRST, REST, WORK_UNIT, Loop, Program, Rates, Step
from simulator.resume import Resumed

_SHIFT = (WORK_UNIT * SCALE).bit_length() - 1
assert 1 << _SHIFT == WORK_UNIT * SCALE
_NEVER = 1 << 100


class Totals(NamedTuple):
    """Sums over an iteration, all in ns.

    ``comm_ns``: time with a collective in flight; ``exposed_ns``: its part with compute idle.
    ``compute_ns``: time with a compute op running. ``lane_ns``: time in flight of each
    comm lane; the compute lane's entry is 0.
    """

    makespan_ns: int
    compute_ns: int
    comm_ns: int
    exposed_ns: int
    lane_ns: tuple[int, ...]


def longer(sums: Totals, constant_ns: int) -> Totals:
    """Return the sums of an iteration that takes a constant more, in which nothing runs."""
    return sums._replace(makespan_ns=sums.makespan_ns + constant_ns)


def totals(program: Program, *, shortcut: bool = True) -> Totals:
    """Play ``program`` and return its sums; ``shortcut`` skips repetitions with an equal state."""
    arrays = arrays_of(program)
    state = arrays and arrays[0].play(arrays[1], shortcut=shortcut)
    if state is not None and arrays is not None:
        return sums_of(state, program.lanes)
    return recurrence_totals(program, shortcut=shortcut)


def sums_of(state, lanes):
    lane_ns = state[player.LANE_NS : player.LANE_NS + lanes].tolist()
    compute_ns, comm_ns, exposed_ns = state[:3].tolist()
    return Totals(int(state[player.NOW]), compute_ns, comm_ns, exposed_ns, tuple(lane_ns))


def recurrence_totals(program: Program, *, shortcut: bool = True) -> Totals:
    machine = Machine(program, shortcut)
    machine.run(program.root)
    machine.drain()
    return Totals(
        machine.now, machine.compute, machine.comm, machine.exposed, tuple(machine.lane_ns)
    )


class _Waiting(NamedTuple):
    """A collective in front of its lane: ready at ``ready_ns``, issued by the host at
    ``issued_at``."""

    work: int
    family: int
    issued_at: int
    ready_ns: int
    needs: int
    idle: IdleTimes

    def later(self, elapsed_ns: int) -> _Waiting:
        """Return the same, some time later."""
        return self._replace(
            issued_at=self.issued_at + elapsed_ns, ready_ns=self.ready_ns + elapsed_ns
        )


class Flight:
    """One comm lane: the collective in flight since ``began_ns``, of family 0 if there is none, and
    the queue behind it. ``moved_until_ns``: the end of the last one."""

    __slots__ = ("began_ns", "done", "family", "issued", "moved_until_ns", "queue", "work")

    def __init__(self) -> None:
        self.work = 0
        self.family = 0
        self.began_ns = 0
        self.moved_until_ns = LONG_AGO_NS
        self.issued = 0
        self.done = 0
        self.queue: deque[_Waiting] = deque()


class Machine:
    """State at ``now``: the compute lane is idle, work in flight is what remains at ``now``."""

    def __init__(self, program: Program, shortcut: bool) -> None:
        self.shortcut = shortcut
        self.now = 0
        self.compute = self.comm = self.exposed = 0
        self.lane_ns = [0] * program.lanes
        self.flights = [Flight() for _ in range(program.lanes)]
        self.comm_flights = self.flights[1:]
        self.rates = Rates(program)
        self.host = Host(program.queue_depth)
        self.resumed = Resumed(program.resume)
        self.ordered = program.launch_order == "ordered"
        self.free = program.launch_order == "free"
        self.most_idle_ns = program.most_idle_ns

    def run(self, loop: Loop, *, nested: bool = False) -> None:
        """Play a loop; skip periods if the state repeats. ``nested``: an outer loop may skip."""
        seen: dict[tuple[object, ...], Mark] = {}
        repetition = 0
        leaf = not loop.body or isinstance(loop.body[0], Step)
        while repetition < loop.count:
            if leaf:
                self._play(loop.body)  # type: ignore[arg-type]
            else:
                for inner in loop.body:
                    self.run(inner, nested=nested or loop.count > 1)  # type: ignore[arg-type]
            repetition += 1
            if self.shortcut and repetition < loop.count:
                state = self._state()
                mark = seen.get(state)
                seen[state] = Mark(
                    repetition, self.host.mark(self.now, whole_micro=not leaf), self._sums()
                )
                if mark is not None:
                    repetition += self._skip(mark, repetition, loop.count - repetition, nested)

    def drain(self) -> None:
        """Play until all collectives have ended."""
        while any(f.work or f.queue for f in self.comm_flights):
            self._idle(None)

    # One repetition -----------------------------------------------------------------------------

    def _play(self, steps: tuple[Step, ...]) -> None:
        flights, host = self.flights, self.host
        timed = host.depth > 0
        # GPUs lose nothing behind a wait, and searches play many of their steps.
        run = self._compute if self.resumed.law is None else self._resume
        for lane, work, family, waits, launch_ns, room, needs, part, _, idle in steps:
            if part == REST:
                run(work, family, room, rest=True)
                if timed:
                    host.ended(self.now)
                continue
            issued_at = host.issue(lane, launch_ns) if timed else 0
            if lane:
                flight = flights[lane]
                flight.issued += 1
                flight.queue.append(_Waiting(work, family, issued_at, self.now, needs, idle))
                continue
            for waited, behind in waits:
                flight = flights[waited]
                needed = flight.issued - behind
                while flight.done < needed:
                    self._idle(None)
            if issued_at > self.now:
                host.binds()
                while self.now < issued_at:
                    self._idle(issued_at)
            if self.ordered:
                self._start_all()
            run(work, family, room)
            if timed and part != FIRST:
                host.ended(self.now)

    def _resume(self, work: int, family: int, room: int, *, rest: bool = False) -> None:
        """Run one step of compute, with what it pays for the last wait."""
        work += self.resumed.paid_ns(self.now, work // WORK_UNIT) * WORK_UNIT
        self._compute(work, family, room, rest=rest)
        self.resumed.busy_until_ns = self.now

    def _start_all(self) -> None:
        """Wait, with compute idle, until every collective that was issued has started."""
        self._start()
        while self._is_awaited():
            self._idle(None)
            self._start()

    def _is_awaited(self) -> bool:
        """Return whether a collective that was issued and needs SMs has not started."""
        for flight in self.comm_flights:  # a loop: any() takes three times as long
            for one in flight.queue:
                if one.needs:
                    return True
        return False

    def _start(self, before_ns: int | None = None, room: int = 0) -> tuple[bool, int]:
        """Start what can start; return whether a lane is in flight, and the next start (ns).

        ``before_ns``: only collectives that were ready before, or that need no more than ``room``
        SMs, can start.
        """
        active, pending = False, 0
        for flight in self.comm_flights:
            if not flight.work and flight.queue:
                first = flight.queue[0]
                if first.issued_at > self.now:
                    self.host.binds()
                    pending = min(pending or first.issued_at, first.issued_at)
                elif before_ns is None or first.needs <= room or first.ready_ns < before_ns:
                    flight.work, flight.family = first.work, first.family
                    if first.idle != NO_TIMES:
                        idle_ns = self.now - flight.moved_until_ns
                        flight.work += first.idle.more_ns(idle_ns) * WORK_UNIT
                    flight.began_ns = self.now
                    flight.queue.popleft()
            if flight.work:
                active = True
        return active, pending

    def _compute(self, work: int, family: int, room: int, *, rest: bool = False) -> None:
        """Run one step of compute while the comm lanes go on; ``rest`` of an op in flight."""
        before_ns = -1 if rest else self.now if self.free else None
        while True:
            active, _ = self._start(before_ns, room)  # what waits for the host is behind this op
            before_ns = -1
            if not active:
                elapsed = -(-work * SCALE >> _SHIFT)
                self.now += elapsed
                self.compute += elapsed
                return
            rates = self.rates[(family, *[flight.family for flight in self.comm_flights])]
            ends = -(-work * rates[0] >> _SHIFT)
            elapsed = self._next_end(rates, ends)
            self.compute += elapsed
            self._advance(elapsed, rates)
            if elapsed == ends:
                return
            work -= (elapsed << _SHIFT) // rates[0]

    def _idle(self, until: int | None) -> None:
        """Let comm lanes run to their next event, or to ``until``, with compute idle."""
        active, pending = self._start()
        limits = [moment - self.now for moment in (pending, until) if moment]
        rates = self.rates[(0, *[flight.family for flight in self.comm_flights])]
        elapsed = self._next_end(rates, min(limits, default=_NEVER))
        assert elapsed < _NEVER
        if active:
            self.exposed += elapsed
        self._advance(elapsed, rates)

    def _next_end(self, rates: tuple[int, ...], elapsed: int) -> int:
        """Return the time until the next collective ends (ns), at most ``elapsed``."""
        for index, flight in enumerate(self.comm_flights, 1):
            if flight.work and (left := -(-flight.work * rates[index] >> _SHIFT)) < elapsed:
                elapsed = left
        return elapsed

    def _advance(self, elapsed: int, rates: tuple[int, ...]) -> None:
        busy = False
        for index, flight in enumerate(self.comm_flights, 1):
            if flight.work:
                busy = True
                self.lane_ns[index] += elapsed
                left = flight.work - (elapsed << _SHIFT) // rates[index]
                if left <= 0:
                    self._end(index, flight, self.now + elapsed)
                else:
                    flight.work = left
        if busy:
            self.comm += elapsed
        self.now += elapsed

    def _end(self, lane: int, flight: Flight, end_ns: int) -> None:
        """End the collective in flight on a lane."""
        if flight.family:  # else it waited, and the link was idle
            flight.moved_until_ns = end_ns
        flight.work = flight.family = 0
        flight.done += 1

    # Periodic shortcut --------------------------------------------------------------------------

    def _state(self) -> tuple[object, ...]:
        # A repetition ends with the last compute op, so compute was busy until now.
        return self.resumed.owed_ns, *(
            (f.work, f.family, f.issued - f.done, self._idle_ns(f),
             tuple((w, k, max(0, at - self.now), ready < self.now, needs, idle)
                   for w, k, at, ready, needs, idle in f.queue))
            for f in self.comm_flights
        )  # fmt: skip

    def _idle_ns(self, flight: Flight) -> int:
        """Return for how long a lane's link was idle, as far as that still matters."""
        moving = flight.work and flight.family
        return 0 if moving else min(self.most_idle_ns, self.now - flight.moved_until_ns)

    def _sums(self) -> tuple[int, ...]:
        return (
            self.compute, self.comm, self.exposed, *self.lane_ns,
            *(f.issued for f in self.flights), *(f.done for f in self.flights),
        )  # fmt: skip

    def _skip(self, mark: Mark, repetition: int, remaining: int, nested: bool) -> int:
        """Add up whole periods like the one since ``mark``; return the repetitions skipped."""
        period = repetition - mark.repetition
        times = remaining // period
        if not times or not self.host.may_skip(mark.host, self.now):
            return 0
        elapsed = self.now - mark.host.now_ns
        grown = [a + (a - b) * times for a, b in zip(self._sums(), mark.sums, strict=True)]
        self.compute, self.comm, self.exposed = grown[:3]
        lanes = len(self.flights)
        self.lane_ns = grown[3 : 3 + lanes]
        for index, flight in enumerate(self.flights):
            flight.issued = grown[3 + lanes + index]
            flight.done = grown[3 + 2 * lanes + index]
            flight.queue = deque(one.later(times * elapsed) for one in flight.queue)
            flight.moved_until_ns += times * elapsed
        self.host.skip(mark.host, times, elapsed, nested=nested)
        self.now += times * elapsed
        self.resumed.busy_until_ns = self.now
        return times * period


class Mark(NamedTuple):
    """The start of a period."""

    repetition: int
    host: HostMark
    sums: tuple[int, ...]
