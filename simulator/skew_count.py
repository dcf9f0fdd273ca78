"""Counts, along the issue order, the compute behind which a collective waits for later ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simulator.contention import SCALE, Family
from simulator.cost import CostModel
from simulator.schedule import COMPUTE


class Flight(NamedTuple):
    """A collective that is taken to be in flight: what is left of it alone, ns."""

    left_ns: int
    family: Family


class Counted(NamedTuple):
    """Compute since each lane's last collective, ns: alone, and beside collectives."""

    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...]


class SkewCount:
    """Compute since each lane's last collective, where all its ranks met.

    Flights are counted off as compute goes by, each at its slowdown; what compute waits for has
    landed, and so has what is followed by another on its lane. This is less than the engines do,
    and the same in every repetition of a loop. The count begins anew with each micro-batch, so that
    all middle ones are alike; compute behind a lane's last collective of the micro-batch before is
    not counted. Where compute beside collectives was not measured apart, all of it counts as alone.
    """

    def __init__(self, cost: CostModel, lanes: int) -> None:
        self.cost = cost
        self.alone_ns = [0] * lanes
        self.beside_ns = [0] * lanes
        self.splits = cost.skew is not None and bool(cost.skew.beside)
        self.flights: list[Flight | None] = [None] * lanes

    def state(self, lanes: Iterable[int]) -> tuple[object, ...]:
        """Return what decides how ops count that issue collectives on ``lanes``, if on any."""
        counts = [(self.alone_ns[lane], self.beside_ns[lane]) for lane in lanes]
        return *self.flights, *counts

    @property
    def counted(self) -> Counted:
        """Return the counts of all lanes."""
        return Counted(tuple(self.alone_ns), tuple(self.beside_ns))

    def add(
        self, lane: int, duration_ns: int, family: Family, waits: Iterable[tuple[int, int]]
    ) -> int:
        """Add an op; return the ns that it waits for later ranks, 0 for a compute op.

        ``waits``: (lane, number of its collectives that may still be in flight).
        """
        if lane != COMPUTE:
            wait_ns = self.cost.wait_ns(self.alone_ns[lane], self.beside_ns[lane])
            self.alone_ns[lane] = self.beside_ns[lane] = 0
            self.flights[lane] = Flight(duration_ns, family) if self.splits else None
            return wait_ns
        for waited, behind in waits:
            if not behind:
                self.flights[waited] = None
        self._compute(duration_ns, family)
        return 0

    def repeat(self, before: Counted, times: int, lanes: Iterable[int]) -> None:
        """Add to ``lanes`` what was counted since ``before``, ``times`` more."""
        for lane in lanes:
            self.alone_ns[lane] += times * (self.alone_ns[lane] - before.alone_ns[lane])
            self.beside_ns[lane] += times * (self.beside_ns[lane] - before.beside_ns[lane])

    def _compute(self, left_ns: int, family: Family) -> None:
        beside_ns = 0
        while left_ns and any(self.flights):
            flying = [flight and flight.family for flight in self.flights[1:]]
            rates = self.cost.contention.slowdowns((family, *flying))
            elapsed_ns = min(
                -(-left_ns * rates[0] // SCALE),
                *(
                    -(-flight.left_ns * rate // SCALE)
                    for flight, rate in zip(self.flights, rates, strict=True)
                    if flight
                ),
            )
            for lane, flight in enumerate(self.flights):
                if flight:
                    still_ns = flight.left_ns - elapsed_ns * SCALE // rates[lane]
                    self.flights[lane] = flight._replace(left_ns=still_ns) if still_ns > 0 else None
            left_ns = max(0, left_ns - elapsed_ns * SCALE // rates[0])
            beside_ns += elapsed_ns
        self.alone_ns = [held + left_ns for held in self.alone_ns]
        self.beside_ns = [held + beside_ns for held in self.beside_ns]
