"""Contention: how much ops slow each other down while several lanes are in flight.

Law (shapes fitted on 4× A100 and on an H200, see the profile's provenance): beside collectives
that hold C CTAs, an op that takes T alone slows by SMs/(SMs − a·C) × f + min(1, u·C/T), with a, f
and u by op family: u is what it loses however long it is, its last wave, which is all of it at
most. A collective slows by g while compute runs, and each other collective in flight adds to that:
one amount for sharing the same links (both inside a node, or both between nodes), another for not
sharing them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, NamedTuple

from simulator.errors import InputError
from simulator.lookup import (
    ABSENT_IF_EMPTY,
    FIT_KINDS,
    FitKind,
    require_choice,
    require_count,
    require_number,
    require_sorted,
)

SCALE: Final = 1024  # slowdowns are whole numbers of 1/1024
_LEAST_SMS: Final = 0.1  # compute keeps at least this share of the SMs


@dataclass(frozen=True, kw_only=True)
class ComputeContention:
    """What a collective costs one family of compute.

    ``sms_per_cta`` (a), ``factor`` (f) and ``us_per_cta`` (u) of this module's docstring.
    """

    family: str
    sms_per_cta: float
    factor: float
    us_per_cta: float = field(default=0.0, metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        require_number(f"contention {self.family}", "sms_per_cta", self.sms_per_cta)
        require_number(f"contention {self.family}", "factor", self.factor, low=1.0)
        require_number(f"contention {self.family}", "us_per_cta", self.us_per_cta)

    def slowdown(self, ctas: int, sm_count: int, alone_us: float) -> float:
        """Of an op that takes ``alone_us`` alone, beside collectives that hold ``ctas`` CTAs."""
        longer = min(1.0, self.us_per_cta * ctas / alone_us)
        return compute_slowdown(self.sms_per_cta, self.factor, ctas, sm_count) + longer


class SizeContention(NamedTuple):
    """Measured beside collectives of ``bytes``: how much compute slows, by family, and they do."""

    bytes: int
    compute: dict[str, float]
    collective_factor: float


@dataclass(frozen=True, kw_only=True)
class ContentionFit:
    """The law of this module's docstring.

    ``default_ctas``: CTAs of a collective that left the choice to NCCL (assumed). A compute family
    that ``compute`` does not list takes the law of the first one.

    ``by_size``: where collectives take their share of a core rather than of a GPU's SMs, that share
    hangs on their size. These rows then stand in for the law's factors; between two, what they say
    is interpolated over the logarithm of the size, and beyond the ends it stays. A family that some
    rows do not have goes by those that do; one that none has slows as the others do on average.
    """

    sm_count: int
    default_ctas: int
    compute: tuple[ComputeContention, ...]
    collective_factor: float
    shared_links_factor: float
    apart_factor: float
    kind: FitKind = "fitted"
    error: float
    by_size: tuple[SizeContention, ...] = field(default=(), metadata=ABSENT_IF_EMPTY)

    def __post_init__(self) -> None:
        owner = "contention fit"
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        for name in ("sm_count", "default_ctas"):
            require_count(owner, name, getattr(self, name))
        require_count(owner, "number of compute families", len(self.compute))
        for name in ("collective_factor", "shared_links_factor", "apart_factor"):
            require_number(owner, name, getattr(self, name), low=1.0)
        require_number(owner, "error", self.error)
        for row in self.by_size:
            require_count(owner, "by_size bytes", row.bytes)
            require_number(owner, "by_size collective_factor", row.collective_factor, low=1.0)
            require_count(owner, "number of by_size compute families", len(row.compute))
            for factor in row.compute.values():
                require_number(owner, "by_size compute factor", factor, low=1.0)
        require_sorted("contention by_size", [row.bytes for row in self.by_size])


class _Flight(NamedTuple):
    """A collective in flight, as far as contention cares. ``bytes`` 0: of no known size."""

    between_nodes: bool
    ctas: int
    bytes: int


def family_name(op: str, nodes: int, per_node: int, ctas: int, size_bytes: int = 0) -> str:
    """The contention family of a collective, e.g. ``all_reduce/1x8/c0``, with ``/b4096`` behind it
    where its size counts."""
    name = f"{op}/{nodes}x{per_node}/c{ctas}"
    return f"{name}/b{size_bytes}" if size_bytes else name


def compute_family_name(kind: str, alone_ns: int = 0) -> str:
    """The contention family of compute, e.g. ``gemm``, with ``/t52000`` behind it where its
    duration counts."""
    return f"{kind}/t{alone_ns}" if alone_ns else kind


def _flight(family: str, default_ctas: int) -> _Flight:
    name, _, size = family.partition("/b")
    _, group, ctas = name.split("/")
    nodes = int(group.split("x")[0])
    return _Flight(nodes > 1, int(ctas[1:]) or default_ctas, int(size or 0))


def compute_slowdown(sms_per_cta: float, factor: float, ctas: int, sm_count: int) -> float:
    """This module's law, of ops so long that their last wave does not count."""
    left = sm_count - sms_per_cta * ctas
    return factor * sm_count / max(left, _LEAST_SMS * sm_count)


def _at_size(flight: _Flight, rows: Sequence[tuple[int, float]]) -> float:
    """What (bytes, factor) rows say at the flight's size; the least for one of no known size."""
    if not flight.bytes:
        return min(factor for _, factor in rows)
    index = bisect_left(rows, (flight.bytes, 0.0))
    if index in (0, len(rows)):
        return rows[min(index, len(rows) - 1)][1]
    (low, at_low), (high, at_high) = rows[index - 1], rows[index]
    share = math.log(flight.bytes / low) / math.log(high / low)
    return at_low + share * (at_high - at_low)


class Contention:
    """Slowdowns for any set of lanes; ``strength`` scales the excess, 0 turns contention off."""

    def __init__(self, fit: ContentionFit | None, *, strength: float = 1.0) -> None:
        if not 0 <= strength < float("inf"):
            raise InputError(f"contention must be a finite factor ≥ 0, got {strength!r}.")
        self.fit = fit
        self.strength = strength
        self._cache: dict[tuple[str | None, ...], tuple[int, ...]] = {}
        self._compute = {law.family: law for law in fit.compute} if fit else {}

    @property
    def is_off(self) -> bool:
        """True when nothing slows anything."""
        return self.fit is None or self.strength == 0

    def slowdowns(self, families: tuple[str | None, ...]) -> tuple[int, ...]:
        """Slowdown × SCALE (≥ SCALE) of each lane; entry 0 is compute, None is an idle lane."""
        known = self._cache.get(families)
        if known is None:
            factors = self._factors(families)
            known = tuple(round(SCALE * (1 + self.strength * (f - 1))) for f in factors)
            self._cache[families] = known
        return known

    def _factors(self, families: tuple[str | None, ...]) -> tuple[float, ...]:
        if self.fit is None:
            return (1.0,) * len(families)
        flights = [_flight(f, self.fit.default_ctas) if f else None for f in families[1:]]
        compute = families[0]
        beside = 1.0
        if compute is not None and any(flights):
            kind, _, alone_ns = compute.partition("/t")
            there = [flight for flight in flights if flight]
            beside = self._beside(kind, int(alone_ns or 0), there)
        return beside, *(
            1.0 if flight is None else self._collective_factor(index, flights, compute is not None)
            for index, flight in enumerate(flights)
        )

    def hangs_on_duration(self, family: str) -> bool:
        """Whether ops of one family of compute slow the more, the shorter they are."""
        if self.fit is None or self.strength == 0 or self.fit.by_size:
            return False
        return self._law(family).us_per_cta > 0

    def _beside(self, family: str, alone_ns: int, flights: list[_Flight]) -> float:
        """What all collectives in flight together cost an op; ``alone_ns`` 0: a long one."""
        assert self.fit is not None
        if not self.fit.by_size:
            ctas = sum(flight.ctas for flight in flights)
            alone_us = alone_ns / 1000 or math.inf
            return self._law(family).slowdown(ctas, self.fit.sm_count, alone_us)
        rows = self._sizes(family)
        return 1.0 + sum(_at_size(flight, rows) - 1.0 for flight in flights)

    def _sizes(self, family: str) -> list[tuple[int, float]]:
        """(bytes, slow-down) of a family of compute, beside each size that has it."""
        assert self.fit is not None
        rows = self.fit.by_size
        known = [(row.bytes, row.compute[family]) for row in rows if family in row.compute]
        return known or [(row.bytes, fmean(row.compute.values())) for row in rows]

    def _law(self, family: str) -> ComputeContention:
        assert self.fit is not None
        return self._compute.get(family, self.fit.compute[0])

    def _collective_factor(
        self, index: int, flights: list[_Flight | None], computing: bool
    ) -> float:
        assert self.fit is not None
        me = flights[index]
        assert me is not None
        factor = 1.0
        for other, flight in enumerate(flights):
            if flight is not None and other != index:
                shared = flight.between_nodes == me.between_nodes
                factor += (self.fit.shared_links_factor if shared else self.fit.apart_factor) - 1
        if not computing:
            return factor
        if self.fit.by_size:
            return factor * _at_size(me, [(r.bytes, r.collective_factor) for r in self.fit.by_size])
        return factor * self.fit.collective_factor
