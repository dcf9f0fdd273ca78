"""Totals: the sums of a play by the compiled player."""

from __future__ import annotations

from typing import NamedTuple

from simulator.kernels.program_arrays import State


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

    @classmethod
    def of(cls, state: State) -> Totals:
        """Return the sums of a play that ended in ``state``."""
        return cls(*state.sums, state.lane_ns)

    def with_constant(self, constant_ns: int) -> Totals:
        """Return the sums of an iteration that takes a constant more, in which nothing runs."""
        return self._replace(makespan_ns=self.makespan_ns + constant_ns)
