"""Collectives: time by op, group, bytes and CTAs; and of kernels that fuse one with its GEMM.

The law of one (op, group, CTAs) is piecewise α–β: a latency, then a cost per MiB that changes at
knots (NCCL switches protocol and algorithm there). Groups that were not timed are estimated from
timed groups, and marked as such.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.errors import MissingSectionError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    MAX_REACH,
    Estimate,
    Source,
    expected,
    reach,
    require_choice,
    require_count,
    require_number,
    require_positive,
    row_error,
    widened,
)
from simulator.lookup.collective_law import COLLECTIVES, CollectiveFit, CollectiveLaw, GroupKey
from simulator.lookup.experts import DEFAULT_SMS, ExpertExchange
from simulator.ops import MULTIMEM, Collective, CollectiveKind, Gemm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EXCHANGE: Final = 1.13
"""Time of an all-to-all over that of an all-gather with as many bytes: the efficiencies of both on
a B200 node, 0.6735 and 0.5968 (SimuMax @4dcaae5, data/measured/b200)."""
PEER_COPY_LATENCY_US: Final = 5.0
"""Of one copy to another GPU of the node, with the signals before and behind it (assumed)."""
_ALL_LATENCY_BYTES: Final = 16 << 10


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
    """One timing: ``bytes`` is the full tensor, ``ctas`` 0 is NCCL's choice; ``behind_us`` is that
    of one right after another, 0 if it was not timed."""

    op: CollectiveKind
    nodes: int
    per_node: int
    ctas: int = 0
    bytes: int
    median_us: float
    spread_us: float = 0.0
    samples: int = 1
    behind_us: float = field(default=0.0, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = f"collectives row {self.key}"
        require_choice(owner, "op", self.op, COLLECTIVES)
        for name in ("nodes", "per_node", "bytes", "samples"):
            require_count(owner, name, getattr(self, name))
        require_count(owner, "ctas", self.ctas, low=0)
        require_positive(owner, "median_us", self.median_us)
        require_number(owner, "spread_us", self.spread_us)
        require_number(owner, "behind_us", self.behind_us)

    @property
    def signature(self) -> Collective:
        """Return the collective that was timed."""
        return Collective(self.op, self.bytes, self.nodes, self.per_node, self.ctas)

    @property
    def group(self) -> GroupKey:
        """Key of the row's group: op, nodes, ranks per node, CTAs."""
        return self.op, self.nodes, self.per_node, self.ctas

    @property
    def key(self) -> tuple[str, int, int, int, int]:
        """Sort key: the group, then the bytes."""
        return *self.group, self.bytes


def _lowest(min_bytes: int) -> int:
    """Return the least size in range: 1 if timings reach messages that are all latency."""
    return 1 if min_bytes <= _ALL_LATENCY_BYTES else min_bytes


class CollectiveTable:
    """Look-up of collectives on any group; raise MissingSectionError if no timing is related."""

    def __init__(
        self,
        rows: Iterable[CollectiveRow] = (),
        fits: Iterable[CollectiveFit] = (),
        *,
        table_error: float = expected.COLLECTIVE_TABLE.error,
        nic_gb_s: float | None = None,
        nic_latency_us: float | None = None,
    ) -> None:
        self._rows: dict[GroupKey, list[CollectiveRow]] = {}
        for row in rows:
            self._rows.setdefault(row.group, []).append(row)
        self._fits = {fit.group: fit for fit in fits}
        self._table_error = table_error
        self._nic_gb_s = nic_gb_s
        self._nic_latency_us = nic_latency_us
        self._exchange = ExpertExchange(self._fits, nic_gb_s, nic_latency_us)

    def estimate(self, collective: Collective) -> Estimate:
        """Return the duration alone on the machine; one rank costs nothing."""
        law = self._law(collective)
        return Estimate(law.total_us, law.source, law.error)

    def shares(self, collective: Collective) -> tuple[float, float]:
        """Return (latency, transfer) in µs; they sum to the estimate's duration."""
        law = self._law(collective)
        return law.latency_us, law.transfer_us

    def groups(self) -> list[GroupKey]:
        """Return every (op, nodes, ranks per node, CTAs) with rows or a fit, sorted, but those of
        experts' dispatches."""
        return sorted(group for group in {*self._rows, *self._fits} if group[0] not in DEFAULT_SMS)

    def _law(self, c: Collective) -> CollectiveLaw:
        if c.ranks == 1:
            return CollectiveLaw(0.0, 0.0, "measured", 0.0)
        if c.op in DEFAULT_SMS:
            return self._exchange.law(c)
        if c.algo == "ring":
            return self._ring(c)
        known = self._known(c)
        if known is not None:
            return known
        if c.ctas:
            return self._with_ctas(c)
        for attempt in (
            self._from_sibling_op,
            self._from_other_groups,
            self._from_wires,
            self._from_one_group,
        ):
            law = attempt(c)
            if law is not None:
                return law
        raise MissingSectionError(
            f"The profile times no collective like {c.op} on {c.nodes}×{c.per_node} ranks; it has "
            f"{', '.join(f'{o} {n}×{p}' for o, n, p, _ in self.groups()) or 'none'}. Import some "
            f"with `profiles import`, or use a group it has."
        )

    def _ring(self, c: Collective) -> CollectiveLaw:
        """Return the law without NVSwitch's sums: a ring all-reduce is a scatter and a gather.

        It has one latency. NCCL's own choice is not slower than a ring.
        """
        chosen = self._law(c._replace(algo="auto"))
        if c.op != "all_reduce":
            return chosen
        halves = [
            self._law(c._replace(op=op, algo="auto")) for op in ("reduce_scatter", "all_gather")
        ]
        if any(law.source == "assumed" for law in halves):  # taken from this all-reduce
            return chosen.scaled(1.0, max(chosen.error, expected.COLLECTIVE_HALF.error))
        transfer = sum(law.transfer_us for law in halves)
        ring = CollectiveLaw(
            max(law.latency_us for law in halves), transfer, "assumed",
            max(expected.COLLECTIVE_RING.error, *(law.error for law in halves)),
        )  # fmt: skip
        return max(ring, chosen, key=lambda law: law.total_us)

    def _known(self, c: Collective) -> CollectiveLaw | None:
        """Return the law from rows or a fit of the same group."""
        group = (c.op, c.nodes, c.per_node, c.ctas)
        if group in self._rows:
            return self._from_rows(self._rows[group], c.size_bytes)
        fit = self._fits.get(group)
        if fit is None:
            return None
        far = reach(c.size_bytes, _lowest(fit.min_bytes), fit.max_bytes)
        source, error = widened(fit.kind, fit.error, far)
        return CollectiveLaw(fit.latency_us, fit.transfer_us(c.size_bytes), source, error)

    def _from_rows(self, rows: Sequence[CollectiveRow], size: int) -> CollectiveLaw:
        """Return the row of that size, else the α–β line through its two neighbours."""
        sizes = [row.bytes for row in rows]
        index = bisect_left(sizes, size)
        latency = rows[0].median_us
        if index < len(rows) and sizes[index] == size:
            row = rows[index]
            low = min(latency, row.median_us)
            return CollectiveLaw(low, row.median_us - low, "measured", row_error(row))
        if index == 0 or len(rows) == 1:
            ratio = max(1.0, size / sizes[-1])
            source, error = self._row_source(size, sizes)
            return CollectiveLaw(latency, latency * (ratio - 1), source, error)
        index = min(index, len(rows) - 1)
        left, right = rows[index - 1], rows[index]
        slope = (right.median_us - left.median_us) / (right.bytes - left.bytes)
        beyond = size > right.bytes
        total = left.median_us + slope * (size - left.bytes)
        total = max(total, right.median_us) if beyond else total
        source, error = self._row_source(size, sizes)
        return CollectiveLaw(min(latency, total), max(0.0, total - latency), source, error)

    def _row_source(self, size: int, sizes: Sequence[int]) -> tuple[Source, float]:
        how_far = reach(size, _lowest(sizes[0]), sizes[-1])
        if how_far <= MAX_REACH:
            return "interpolated", self._table_error
        return widened("fitted", self._table_error, how_far)

    def _from_sibling_op(self, c: Collective) -> CollectiveLaw | None:
        """Return the law of another op, scaled to a gather, scatter, broadcast, exchange or send.

        A ring all-reduce is a reduce-scatter and an all-gather, so each is half of it. A broadcast
        moves n/(n − 1) of the bytes of an all-gather of the same tensor. In an all-to-all a rank
        sends and receives (n − 1)/n of its tensor, as in an all-gather of that size, but more
        slowly. Sending B bytes from one rank to another equals an all-gather of 2B between two
        ranks. Copy engines that bring B bytes from each rank to another one, all at once, are as
        fast as a step of an all-gather; each copy has a latency of its own.
        """
        if c.op in ("all_gather", "reduce_scatter"):
            law = self._known(c._replace(op="all_reduce"))
            return law.scaled(0.5, max(expected.COLLECTIVE_HALF.error, law.error)) if law else None
        if c.op == "broadcast":
            law = self._law(c._replace(op="all_gather"))
            return law.scaled(
                c.ranks / (c.ranks - 1), max(expected.COLLECTIVE_RELATED.error, law.error)
            )
        if c.op == "all_to_all" and c.nodes == 1:
            law = self._law(c._replace(op="all_gather"))
            return law.scaled(EXCHANGE, max(expected.COLLECTIVE_RELATED.error, law.error))
        if c.op == "peer_copy":
            whole = self._law(c._replace(op="all_gather", size_bytes=c.size_bytes * c.ranks))
            step_us = whole.transfer_us / (c.ranks - 1)
            error = max(expected.PEER_COPY.error, whole.error)
            return CollectiveLaw(PEER_COPY_LATENCY_US, step_us, "assumed", error)
        if c.op == "send_recv":
            pair = (1, 2) if c.nodes == 1 else (2, 1)
            law = self._law(Collective("all_gather", 2 * c.size_bytes, *pair))
            return law.scaled(1.0, max(expected.COLLECTIVE_RELATED.error, law.error))
        return None

    def _from_other_groups(self, c: Collective) -> CollectiveLaw | None:
        """Interpolate between timed groups over log₂ of the ranks per node, or of the nodes."""
        single, sizes = c.nodes == 1, self._neighbours(c)
        if len(sizes) < 2:
            return None
        want = c.per_node if single else c.nodes
        right = min(max(bisect_left(sizes, want), 1), len(sizes) - 1)
        low, high = (
            self._known(c._replace(per_node=size) if single else c._replace(nodes=size))
            for size in (sizes[right - 1], sizes[right])
        )
        assert low is not None
        assert high is not None
        weight = math.log2(want / sizes[right - 1]) / math.log2(sizes[right] / sizes[right - 1])
        latency = low.latency_us + weight * (high.latency_us - low.latency_us)
        transfer = low.transfer_us + weight * (high.transfer_us - low.transfer_us)
        latency = max(latency, 0.5 * low.latency_us)
        transfer = max(transfer, 0.5 * low.transfer_us)
        far = reach(want, sizes[0], sizes[-1])
        error = expected.COLLECTIVE_GROUPS.error * (1 + math.log2(far))
        if "assumed" in (low.source, high.source):
            return CollectiveLaw(latency, transfer, "assumed", max(error, low.error, high.error))
        return CollectiveLaw(latency, transfer, "extrapolated", error)

    def _neighbours(self, c: Collective) -> list[int]:
        """Return the ranks per node, or the numbers of nodes, with which the op was timed."""
        return sorted(
            (p if c.nodes == 1 else n)
            for op, n, p, ctas in self.groups()
            if (op, ctas) == (c.op, 0) and (n == 1 if c.nodes == 1 else (n > 1 and p == c.per_node))
        )

    def _from_one_group(self, c: Collective) -> CollectiveLaw | None:
        """Scale the only timed group (assumed): latency ∝ log₂ of ranks, transfer as in a ring."""
        sizes = self._neighbours(c)
        if len(sizes) != 1:
            return None
        only = c._replace(per_node=sizes[0]) if c.nodes == 1 else c._replace(nodes=sizes[0])
        law = self._known(only)
        assert law is not None
        ring = (1 - 1 / c.ranks) / (1 - 1 / only.ranks)
        steps = math.log2(c.ranks) / math.log2(only.ranks)
        return CollectiveLaw(
            law.latency_us * steps,
            law.transfer_us * ring,
            "assumed",
            expected.COLLECTIVE_ONE_GROUP.error,
        )

    def _from_wires(self, c: Collective) -> CollectiveLaw | None:
        """Return the law of several nodes without timings: the slower of node links and NICs.

        Each rank has its own NIC, and each doubling of the nodes adds a NIC latency. Over n nodes
        an all-reduce, which sums in a node first, sends 2(n − 1)/n of the tensor through the
        group's NICs in a node, and an all-to-all (n − 1)/n of each rank's. Gathers and scatters
        are rings of all ranks, which NCCL has no other way for (graph/tuning.cc): r ranks pass on
        (r − 1)/r of the tensor.
        """
        if self._nic_gb_s is None or self._nic_latency_us is None or c.nodes == 1:
            return None
        inside = self._law(c._replace(nodes=1))
        passes = 2.0 if c.op == "all_reduce" else 1.0
        nics = 1 if c.op == "all_to_all" else c.per_node
        parts = c.nodes if c.op in ("all_reduce", "all_to_all") else c.ranks
        wire_bytes = passes * (parts - 1) / parts * c.size_bytes / nics
        wire_us = wire_bytes / (self._nic_gb_s * 1e3)
        latency = inside.latency_us + self._nic_latency_us * math.log2(c.nodes)
        return CollectiveLaw(
            latency, max(wire_us, inside.transfer_us), "assumed", expected.COLLECTIVE_WIRES.error
        )

    def _with_ctas(self, c: Collective) -> CollectiveLaw:
        """Return the law of a gather or scatter, assuming that CTAs slow it like the all-reduce.

        Raise MissingSectionError if the all-reduce was not timed with this number of CTAs either.
        """
        multimem = c.op in MULTIMEM.values()
        reduce: CollectiveKind = MULTIMEM["all_reduce"] if multimem else "all_reduce"
        whole = c._replace(op=reduce)
        limited, free = self._known(whole), self._known(whole._replace(ctas=0))
        if not c.op.endswith(("all_gather", "reduce_scatter")) or limited is None or free is None:
            raise self._no_ctas(whole)
        law = self._law(c._replace(ctas=0))
        error = max(expected.COLLECTIVE_RELATED.error, law.error, limited.error)
        return law.scaled(limited.total_us / free.total_us, error)

    def _no_ctas(self, c: Collective) -> MissingSectionError:
        known = [k for o, n, p, k in self.groups() if (o, n, p) == (c.op, c.nodes, c.per_node)]
        return MissingSectionError(
            f"The profile times {c.op} on {c.nodes}×{c.per_node} ranks with comm_ctas in "
            f"{sorted({0, *known})}, got {c.ctas}; use one of those (0 is NCCL's own choice)."
        )


# Durations of kernels that fuse a GEMM with its collective, tile by tile --------------------------
# Tiles of 128 × 256 outputs run in waves, one tile per SM: the GEMM's own time is rounded up to
# whole waves. With the gather, tiles run in the order in which their rows arrive, and a wave begins
# when all its rows are there. With the scatter, the SMs of a wave multiply together and then store
# together, to all ranks at once, so that little of the exchange is hidden; a sum over the received
# parts follows (not counted here). Sources: Flux (arXiv 2406.06858) has these kernels, the tile is
# CUTLASS's usual one on Hopper.

TILE_M: Final = 128
TILE_N: Final = 256
SM_COUNT: Final = 132
"""SMs of an H100, where a profile does not say."""
BARRIER_US: Final = 10.0
"""All ranks meet before and behind such a kernel (assumed: two signals through NVLink and back)."""


def gathered_us(gemm: Gemm, alone_us: Floats, copy_us: Floats, ranks: int, sms: int) -> Floats:
    """Return the times of a GEMM whose input's chunks arrive ``copy_us`` after each other; a rank's
    own chunk is there. ``alone_us``: at several clocks."""
    waves, wave_us = _waves(gemm, alone_us, sms)
    wave = np.arange(waves)
    last_tile = np.minimum((wave + 1) * sms, _tiles(gemm)) - 1
    last_row = np.minimum(gemm.m, (last_tile // math.ceil(gemm.n / TILE_N) + 1) * TILE_M)
    chunk = -(-last_row * ranks // gemm.m) - 1
    # The last wave ends when all those after the one that waited longest are done.
    done_us: Floats = (np.outer(copy_us, chunk) + np.outer(wave_us, waves - wave)).max(axis=1)
    return done_us + BARRIER_US


def scattered_us(
    gemm: Gemm, alone_us: Floats, exchange_us: Floats, ranks: int, sms: int
) -> Floats:  # fmt: skip
    """Return the times of a GEMM whose tiles are stored to the ranks that add them up."""
    waves, wave_us = _waves(gemm, alone_us, sms)
    return waves * wave_us + exchange_us + BARRIER_US


def _waves(gemm: Gemm, alone_us: Floats, sms: int) -> tuple[int, Floats]:
    """Return the number of waves, and the time of each."""
    waves = _tiles(gemm) / sms
    return math.ceil(waves), alone_us / waves


def _tiles(gemm: Gemm) -> int:
    return math.ceil(gemm.m / TILE_M) * math.ceil(gemm.n / TILE_N)
