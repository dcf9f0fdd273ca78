"""Contention: how much ops slow each other down while several lanes are in flight.

Law (its form was fitted on 4× A100 and on an H200, see the profile's provenance): beside
collectives that hold C CTAs, the slowdown of an op is SMs/(SMs − a·C) × f, with a and f by op
family: a CTA has its SM for as long as it stays. The slowdown of a collective is g while compute
runs, times what it waits for memory beside ops that stream (``simulator.contention``). Each other
collective in flight adds to it: one amount on the same links (both inside a node, or both between
nodes), another amount on other links.

A GEMM's CTAs take all SMs and keep them until they retire. So an op of a family that ``fills`` the
GPU lets no collective in before it ends, or before a GEMM's last wave where that leaves SMs enough
(see ``simulator.waves`` and ``simulator.kernels.player``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Final, Literal, NamedTuple, TypeVar

from simulator.errors import InputError, ProfileError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    FIT_KINDS,
    FitKind,
    require_choice,
    require_count,
    require_number,
    require_positive,
    require_sorted,
)
from simulator.ops import CollectiveKind

# MemoryQueue --------------------------------------------------------------------------------------
# What a collective loses beside an op that keeps the GPU's memory busy.
#
# A collective's CTA keeps a fixed number of bytes in flight, so its rate falls as memory latency
# grows. Where an op uses most of the memory's bandwidth, requests queue: the mean wait in a queue
# with one server grows as ρ / (1 − ρ), where ρ is the share of time that the server is busy. So
# beside an op that moves ``gb_s`` a collective of C CTAs takes
#     1 + wait · ρ / (1 − ρ) · (1 + by_cta · C),   ρ = gb_s / attained_gb_s,
# times as long. Our H200's records show this (docs/gpu.md): 1.02 to 1.07 beside ``gelu``, which
# moves 3/4 as many bytes a second as a long ``add``, and 1.2 to 1.45 beside ``add`` itself.


@dataclass(frozen=True, kw_only=True)
class MemoryQueue:
    """The law's numbers, how they are known, and the expected relative error of a slowdown.

    ``attained_gb_s``: the most that any long op moved. ``busiest``: the largest ρ at which
    collectives were timed; beyond it the law stays as it is there.
    """

    attained_gb_s: float
    busiest: float
    wait: float
    by_cta: float
    kind: FitKind = "fitted"
    error: float

    def __post_init__(self) -> None:
        owner = "contention memory"
        require_positive(owner, "attained_gb_s", self.attained_gb_s)
        for name in ("busiest", "wait", "by_cta", "error"):
            require_number(owner, name, getattr(self, name))
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        if self.busiest >= 1:
            raise ProfileError(f"{owner}: busiest must be below 1, got {self.busiest!r}.")

    def slowdown(self, gb_s: float, ctas: int) -> float:
        """Return how many times as long a collective of ``ctas`` takes beside an op that moves
        ``gb_s``."""
        busy = min(gb_s / self.attained_gb_s, self.busiest)
        return 1 + self.wait * busy / (1 - busy) * (1 + self.by_cta * ctas)

    def most(self, ctas: int) -> float:
        """Return the largest slowdown of a collective of ``ctas``."""
        return self.slowdown(self.attained_gb_s, ctas)


# Contention ---------------------------------------------------------------------------------------

SCALE: Final = 1024  # slowdowns are integers in 1/1024
_LEAST_SMS: Final = 0.1  # compute keeps at least this share of the SMs


Known = TypeVar("Known", "Slowdown", "ComputeContention", MemoryQueue)
Part = Literal["compute", "collectives", "links"]
"""The parts of the law that may be wrong: slowdowns of compute, of collectives beside compute, and
of collectives beside each other."""


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A factor ≥ 1 of the law, how it is known, and the expected relative error of it."""

    factor: float
    kind: FitKind = "fitted"
    error: float

    def __post_init__(self) -> None:
        require_number("contention", "factor", self.factor, low=1.0)
        require_choice("contention", "kind", self.kind, FIT_KINDS)
        require_number("contention", "error", self.error)

    def off(self, times: float) -> Slowdown:
        """Return the factor, wrong by ``times`` its error."""
        return replace(self, factor=_off(self.factor, self.error, times))


@dataclass(frozen=True, kw_only=True)
class ComputeContention:
    """The law's numbers for one family of compute, and the expected relative error of a slowdown.

    ``sms_per_cta`` and ``factor`` are a and f of this module's docstring.
    ``fills``: a collective that finds such an op in flight waits for its end, or for the last wave
    of a GEMM that leaves it room there.
    """

    family: str
    sms_per_cta: float
    factor: float
    fills: bool = field(default=False, metadata=ABSENT_IF_EMPTY)
    kind: FitKind = "fitted"
    error: float

    def __post_init__(self) -> None:
        require_choice(f"contention {self.family}", "kind", self.kind, FIT_KINDS)
        require_number(f"contention {self.family}", "error", self.error)
        require_number(f"contention {self.family}", "sms_per_cta", self.sms_per_cta)
        require_number(f"contention {self.family}", "factor", self.factor, low=1.0)

    def off(self, times: float) -> ComputeContention:
        """Return the law with slowdowns that are wrong by ``times`` their error."""
        return replace(self, factor=_off(self.factor, self.error, times))

    def slowdown(self, ctas: int, sm_count: int) -> float:
        """Return the slowdown of an op beside collectives that hold ``ctas``."""
        return compute_slowdown(self.sms_per_cta, self.factor, ctas, sm_count)


class SizeContention(NamedTuple):
    """Slowdowns with collectives ``op`` of ``bytes``: of compute by family, and of the
    collectives."""

    bytes: int
    compute: dict[str, float]
    collective_factor: float
    op: CollectiveKind = "all_reduce"


@dataclass(frozen=True, kw_only=True)
class ContentionFit:
    """The law of this module's docstring.

    ``default_ctas``: CTAs of a collective that leaves the choice to NCCL (assumed). A compute
    family that ``compute`` does not list uses the law of the first one.

    ``by_size``: where collectives take a share of a CPU core, not of a GPU's SMs, the share depends
    on the operation and its size. These rows then replace the law's factors: interpolated over the
    logarithm of the size, constant beyond the ends. A family that is missing in some rows uses the
    other rows; a family that is missing in all rows uses the mean of the other families. An
    operation without rows is like an all-reduce.
    """

    sm_count: int
    default_ctas: int
    compute: tuple[ComputeContention, ...]
    collective: Slowdown
    same_links: Slowdown
    other_links: Slowdown
    memory: MemoryQueue | None = field(default=None, metadata=ABSENT_IF_EMPTY)
    by_size: tuple[SizeContention, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = "contention fit"
        for name in ("sm_count", "default_ctas"):
            require_count(owner, name, getattr(self, name))
        require_count(owner, "number of compute families", len(self.compute))
        for row in self.by_size:
            require_count(owner, "by_size bytes", row.bytes)
            require_number(owner, "by_size collective_factor", row.collective_factor, low=1.0)
            require_count(owner, "number of by_size compute families", len(row.compute))
            for factor in row.compute.values():
                require_number(owner, "by_size compute factor", factor, low=1.0)
        require_sorted("contention by_size", [(row.op, row.bytes) for row in self.by_size])

    def rows_of(self, op: CollectiveKind) -> list[SizeContention]:
        """Return the rows by size of an operation; those of all-reduces where it has none."""
        own = [row for row in self.by_size if row.op == op]
        return own or [row for row in self.by_size if row.op == "all_reduce"]

    def law(self, family: str) -> ComputeContention:
        """Return the law of a compute family; that of the first one if it is not listed."""
        return next((law for law in self.compute if law.family == family), self.compute[0])

    def off(self, part: Part, times: float) -> ContentionFit:
        """Return the law with the slowdowns of ``part`` wrong by ``times`` their errors."""
        if part == "links":
            return replace(
                self, same_links=self.same_links.off(times), other_links=self.other_links.off(times)
            )
        if part == "collectives":
            error = self.collective.error
            rows = [
                row._replace(collective_factor=_off(row.collective_factor, error, times))
                for row in self.by_size
            ]
            return replace(self, collective=self.collective.off(times), by_size=tuple(rows))
        rows = [
            row._replace(
                compute={
                    family: _off(factor, self.law(family).error, times)
                    for family, factor in row.compute.items()
                }
            )
            for row in self.by_size
        ]
        compute = tuple(law.off(times) for law in self.compute)
        return replace(self, compute=compute, by_size=tuple(rows))

    def as_assumed(self, error: float) -> ContentionFit:
        """Return the law with every number assumed, and errors of at least ``error``."""
        return replace(
            self,
            compute=tuple(_as_assumed(law, error) for law in self.compute),
            collective=_as_assumed(self.collective, error),
            same_links=_as_assumed(self.same_links, error),
            other_links=_as_assumed(self.other_links, error),
            memory=self.memory and _as_assumed(self.memory, error),
        )

    def most_beside_compute(self, ctas: int) -> float:
        """Return the largest slowdown that compute gives a collective of ``ctas``."""
        sized = max((row.collective_factor for row in self.by_size), default=1.0)
        waits = self.memory.most(ctas) if self.memory else 1.0
        return max(self.collective.factor * waits, sized)


class ComputeFamily(NamedTuple):
    """Compute ops that contention treats alike. ``gb_s``: what one moves through memory; 0 if the
    law does not need it, or if it is no op that streams."""

    kind: str
    gb_s: int = 0


class CollectiveFamily(NamedTuple):
    """Collectives that contention treats alike.

    ``ctas`` 0 leaves the choice to NCCL; ``size_bytes`` is 0, and ``op`` an all-reduce, if the law
    does not need them. A ``peer_copy`` takes no SMs.
    """

    nodes: int
    per_node: int
    ctas: int = 0
    size_bytes: int = 0
    op: CollectiveKind = "all_reduce"

    @property
    def between_nodes(self) -> bool:
        """Whether it uses the links between nodes."""
        return self.nodes > 1


ContentionFamily = ComputeFamily | CollectiveFamily
InFlight = tuple[ContentionFamily | None, ...]
"""Families in flight together: compute first, then every comm lane; None is an idle lane."""


def _off(factor: float, error: float, times: float) -> float:
    """Return a slowdown that is wrong by ``times`` its relative error, at least 1."""
    return max(1.0, factor * math.pow(1 + error, times))


def _as_assumed(known: Known, error: float) -> Known:
    return replace(known, kind="assumed", error=max(error, known.error))


def compute_slowdown(sms_per_cta: float, factor: float, ctas: int, sm_count: int) -> float:
    """Return the law's slowdown, which leaves at least ``_LEAST_SMS`` of the SMs."""
    left = sm_count - sms_per_cta * ctas
    return factor * sm_count / max(left, _LEAST_SMS * sm_count)


def _at_size(size_bytes: int, rows: Sequence[tuple[int, float]]) -> float:
    """Return the factor of (bytes, factor) rows at this size; the least for 0, an unknown size."""
    if not size_bytes:
        return min(factor for _, factor in rows)
    index = bisect_left(rows, (size_bytes, 0.0))
    if index in (0, len(rows)):
        return rows[min(index, len(rows) - 1)][1]
    (low, at_low), (high, at_high) = rows[index - 1], rows[index]
    share = math.log(size_bytes / low) / math.log(high / low)
    return at_low + share * (at_high - at_low)


class Contention:
    """Slowdowns of any set of lanes; ``strength`` scales the excess over 1, 0 turns it off."""

    def __init__(self, fit: ContentionFit | None, *, strength: float = 1.0) -> None:
        if not 0 <= strength < float("inf"):
            raise InputError(f"contention must be a finite factor ≥ 0, got {strength!r}.")
        self.fit = fit
        self.strength = strength
        self._cache: dict[InFlight, tuple[int, ...]] = {}

    @property
    def is_off(self) -> bool:
        """Whether every slowdown is 1."""
        return self.fit is None or self.strength == 0

    def slowdowns(self, families: InFlight) -> tuple[int, ...]:
        """Return the slowdown × SCALE (≥ SCALE) of each lane."""
        slowdowns = self._cache.get(families)
        if slowdowns is None:
            factors = self._factors(families)
            slowdowns = tuple(round(SCALE * (1 + self.strength * (f - 1))) for f in factors)
            self._cache[families] = slowdowns
        return slowdowns

    def _factors(self, families: InFlight) -> tuple[float, ...]:
        if self.fit is None:
            return (1.0,) * len(families)
        compute = families[0] if isinstance(families[0], ComputeFamily) else None
        flights = [f if isinstance(f, CollectiveFamily) else None for f in families[1:]]
        active = [flight for flight in flights if flight]
        compute_factor = self._compute_factor(compute, active) if compute and active else 1.0
        return compute_factor, *(
            1.0 if flight is None else self._collective_factor(index, flights, compute)
            for index, flight in enumerate(flights)
        )

    @property
    def sm_count(self) -> int:
        """SMs of the GPU; 0 without a law."""
        return self.fit.sm_count if self.fit else 0

    def sms_of(self, family: ContentionFamily) -> int:
        """Return the SMs that a collective needs to start, at least 1: a CTA of NCCL's, with 80 KiB
        of shared memory and 512 threads or more, has one for itself (assumed)."""
        assert isinstance(family, CollectiveFamily)
        return max(1, self._ctas(family)) if self.fit else 1

    def fills(self, kind: str) -> bool:
        """Return whether ops of this kind hold all SMs that they can take."""
        return self.fit is not None and not self.is_off and self._law(kind).fills

    @property
    def admits_late(self) -> bool:
        """Return whether some ops hold all SMs that they can take."""
        fit = self.fit
        return fit is not None and not self.is_off and any(law.fills for law in fit.compute)

    @cached_property
    def admission(self) -> tuple[object, ...]:
        """What decides which ops let collectives in, and how many SMs these need."""
        fit = self.fit
        if fit is None:
            return ()
        fills = tuple((law.family, law.fills) for law in fit.compute)
        return self.is_off, fit.sm_count, fit.default_ctas, fills

    @property
    def depends_on_streams(self) -> bool:
        """Whether slowdowns depend on what an op moves through memory."""
        fit = self.fit
        return fit is not None and not self.is_off and fit.memory is not None and not fit.by_size

    def _ctas(self, flight: CollectiveFamily) -> int:
        assert self.fit is not None
        return 0 if flight.op == "peer_copy" else flight.ctas or self.fit.default_ctas

    def _compute_factor(self, family: ComputeFamily, flights: list[CollectiveFamily]) -> float:
        """Return an op's slowdown by all collectives in flight."""
        assert self.fit is not None
        if not self.fit.by_size:
            ctas = sum(map(self._ctas, flights))
            return self._law(family.kind).slowdown(ctas, self.fit.sm_count)
        return 1.0 + sum(
            _at_size(flight.size_bytes, self._sizes(family.kind, flight.op)) - 1.0
            for flight in flights
        )

    def _sizes(self, kind: str, op: CollectiveKind) -> list[tuple[int, float]]:
        """Return (bytes, slowdown) of a compute kind beside ``op``, or the mean of all kinds if no
        row has it."""
        assert self.fit is not None
        rows = self.fit.rows_of(op)
        own = [(row.bytes, row.compute[kind]) for row in rows if kind in row.compute]
        return own or [(row.bytes, fmean(row.compute.values())) for row in rows]

    def _law(self, kind: str) -> ComputeContention:
        assert self.fit is not None
        return self.fit.law(kind)

    def _collective_factor(
        self, index: int, flights: list[CollectiveFamily | None], compute: ComputeFamily | None
    ) -> float:
        assert self.fit is not None
        me = flights[index]
        assert me is not None
        factor = 1.0
        for other, flight in enumerate(flights):
            if flight is not None and other != index:
                shared = flight.between_nodes == me.between_nodes
                links = self.fit.same_links if shared else self.fit.other_links
                factor += links.factor - 1
        if compute is None:
            return factor
        if self.fit.by_size:
            rows = [(row.bytes, row.collective_factor) for row in self.fit.rows_of(me.op)]
            return factor * _at_size(me.size_bytes, rows)
        memory = self.fit.memory
        waits = memory.slowdown(compute.gb_s, self._ctas(me)) if memory else 1.0
        return factor * self.fit.collective.factor * waits
