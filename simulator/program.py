"""Program: a schedule compiled with a cost model (``simulator.compiler``), as both engines play it.

An op has no name here: it is (lane, work, family, waits, launch). Comm lanes are FIFO, so a wait is
a count: ``(lane, behind)`` means "all steps issued on ``lane`` so far, except the last ``behind``,
must be done". A count relative to the op is the same in every repetition, so a program keeps the
schedule's loops.

A GEMM that leaves SMs free in its last wave is two steps: its full waves, and its last wave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from simulator.contention import SCALE, Contention, ContentionFamily
from simulator.cpu_hosts import NO_TIMES, IdleTimes, ResumeFit
from simulator.implementation import LaunchOrder
from simulator.ops import Signature
from simulator.waves import OPEN

WORK_UNIT: Final = 1024
"""Units per ns: remaining work is an integer in 1/1024 ns of the op run alone."""
WHOLE, FIRST, REST = 0, 1, 2


class Step(NamedTuple):
    """One op, or a collective's wait for later ranks: ``family`` 0, because it occupies its lane
    but slows nothing. ``work`` in 1/1024 ns; ``waits`` as in the module's docstring; ``launch_ns``
    is the host's cost of issuing the op. ``room``: SMs that compute leaves to a collective that
    finds it in flight. ``needs``: SMs that a collective needs to start; 0 if it has them already,
    from waiting for later ranks or because they are kept free, or takes none. ``part``: FIRST of a
    compute op in two steps, or REST, which follows it at once; else WHOLE. ``number``: that of its
    signature in the program, -1 for a wait. ``idle``: what a collective saves and pays after its
    lane idled. ``stops``: the host issues nothing more until a compute op is done."""

    lane: int
    work: int
    family: int
    waits: tuple[tuple[int, int], ...]
    launch_ns: int
    room: int = OPEN
    needs: int = 1
    part: int = WHOLE
    number: int = -1
    idle: IdleTimes = NO_TIMES
    stops: bool = False


@dataclass(frozen=True, kw_only=True)
class Loop:
    """``count`` repetitions of ``body``: of steps, or of loops (micro-batches contain layers)."""

    body: tuple[Step, ...] | tuple[Loop, ...]
    count: int = 1

    def steps(self) -> tuple[Step, ...]:
        """Return every step, unrolled."""
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
    """Input of the engines. ``families[f]`` is the contention family with number f; 0 is idle.

    ``queue_depth``: how many compute ops the host may be ahead; 0 turns the host lane off.
    ``launch_order``: who is first on a GPU (``simulator.implementation``). ``resume``: what compute
    loses after a wait. ``signatures``: by the numbers in the steps. ``most_idle_ns``: the idle time
    of a lane beyond which more changes nothing.
    """

    root: Loop
    lanes: int
    families: tuple[ContentionFamily | None, ...]
    contention: Contention
    queue_depth: int
    launch_order: LaunchOrder = "comm_first"
    resume: ResumeFit | None = None
    signatures: tuple[Signature, ...] = ()
    most_idle_ns: int = 0


class Rates(dict[tuple[int, ...], tuple[int, ...]]):
    """Cache: slowdown × SCALE of each lane, by the families in flight on all lanes (0: idle)."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._families = program.families
        self._contention = program.contention

    def __missing__(self, in_flight: tuple[int, ...]) -> tuple[int, ...]:
        families = tuple(self._families[f] for f in in_flight)
        slowdowns = self[in_flight] = self._contention.slowdowns(families)
        assert all(rate >= SCALE for rate in slowdowns)
        return slowdowns


def spans_of_ops(
    steps: Sequence[Step], spans: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the starts and the ends of ops, in ns, from the spans of steps. A wait for later ranks
    is the beginning of the op after it, a REST the end of the op before it."""
    starts: list[int] = []
    ends: list[int] = []
    for index, (step, (start, end)) in enumerate(zip(steps, spans, strict=True)):
        if step.part == REST:
            ends[-1] = end
        elif step.family:
            waited = index > 0 and not steps[index - 1].family
            starts.append(spans[index - 1][0] if waited else start)
            ends.append(end)
    return tuple(starts), tuple(ends)
