"""Experts' look-ups: grouped GEMMs, and dispatch and combine of tokens.

Law: the tiles of all products share the SMs, as if each product had its share of them; their bytes,
every expert's weights among them, move beside. So few rows an expert leave tiles half empty, and
fewer still wait for weights. ``params`` are the law of kernels that take all experts in one launch,
which others timed in inference servers. A trainer's linear layers take ``times`` as long, by
layout: they issue a GEMM an expert.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast, get_args

from simulator.dtypes import MATH_BYTES
from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import (
    FIT_KINDS,
    Estimate,
    FitKind,
    expected,
    reach,
    require_choice,
    require_count,
    require_number,
    require_positive,
    row_error,
    widened,
)
from simulator.lookup.collective_law import CollectiveFit, CollectiveLaw, GroupKey
from simulator.lookup.gemm_law import (
    FAR_OCTAVES,
    SAME_RATE,
    GemmParts,
    Params,
    TiledLaw,
    check_params,
    make_law,
    moved_bytes,
)
from simulator.ops import Collective, CollectiveKind, Gemm, Layout

LAW: Final = "tiled"
RANGES: Final = ("groups", "rows", "n", "k")


class GroupedRow(NamedTuple):
    """One measured call: median and spread of ``samples`` runs, in us."""

    groups: int
    m: int
    n: int
    k: int
    layout: str
    dtype: str
    accumulate: bool
    median_us: float
    spread_us: float
    samples: int

    @property
    def signature(self) -> Gemm:
        """The op that was timed."""
        return Gemm(
            self.m, self.n, self.k, cast("Layout", self.layout), self.dtype, self.accumulate,
            groups=self.groups,
        )  # fmt: skip


class Times(NamedTuple):
    """How many times as long as the law says a trainer's calls multiply, and move bytes."""

    flops: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class GroupedFit:
    """The law of one dtype.

    ``group_us``: what each expert adds to a call. ``withheld_error``: the law's mean error on
    models withheld from the fit; ``error``: that of a look-up. ``ranges``: least and most groups,
    rows an expert, n and k of the fitted rows' forward products.
    """

    dtype: str
    params: Params
    group_us: float
    times: Mapping[str, Times]
    withheld_error: float
    error: float
    ranges: Mapping[str, tuple[int, int]]
    kind: FitKind = "fitted"

    def __post_init__(self) -> None:
        owner = f"grouped gemm fit of {self.dtype}"
        require_choice(owner, "dtype", self.dtype, tuple(MATH_BYTES))
        require_choice(owner, "kind", self.kind, FIT_KINDS)
        check_params(owner, LAW, self.params)
        for name in ("group_us", "withheld_error", "error"):
            require_number(owner, name, getattr(self, name))
        if set(self.times) != set(get_args(Layout)):
            raise ProfileError(
                f"{owner}: times must be of {', '.join(get_args(Layout))}, got "
                f"{sorted(self.times)}."
            )
        for layout, times in self.times.items():
            for name, value in zip(Times._fields, times, strict=True):
                require_positive(owner, f"times.{layout}.{name}", value)
        if set(self.ranges) != set(RANGES):
            raise ProfileError(
                f"{owner}: ranges must be of {', '.join(RANGES)}, got {sorted(self.ranges)}."
            )
        for name, (low, high) in self.ranges.items():
            require_count(owner, f"ranges.{name}", low)
            require_count(owner, f"ranges.{name}", high, low=low)


class GroupedLaw:
    """A fit's law on a GPU of ``sm_count`` SMs."""

    def __init__(self, fit: GroupedFit, sm_count: int) -> None:
        self.fit, self._sms = fit, sm_count
        self._law = cast("TiledLaw", make_law(LAW, fit.params, sm_count))

    def parts(self, gemm: Gemm, *, times: Times | None = None) -> GemmParts:
        """Return the call's time and its fixed, FLOP-bound and memory-bound parts.

        ``times`` replaces those of the gemm's layout.
        """
        law, (flops, memory) = self._law, times or self.fit.times[gemm.layout]
        each_us = law.multiply_us(gemm.m, gemm.n, gemm.k, self._sms / gemm.groups)
        compute_us = flops * each_us * law.slower(1e-9 * gemm.flops)
        found = law.joined(compute_us, memory * law.move_us(1e-6 * moved_bytes(gemm)))
        more_us = self.fit.group_us * gemm.groups
        return found._replace(total_us=found.total_us + more_us, fixed_us=found.fixed_us + more_us)

    def octaves_outside(self, gemm: Gemm) -> float:
        """Return the doublings by which the call is outside the fitted rows, in its worst size."""
        rows, n, k = gemm.m, gemm.n, gemm.k
        if gemm.layout == "wgrad":
            rows, n, k = gemm.k, gemm.m, gemm.n
        sizes = {"groups": gemm.groups, "rows": rows, "n": n, "k": k}
        return math.log2(max(reach(sizes[name], *self.fit.ranges[name]) for name in RANGES))


class GroupedTable:
    """Look-up of grouped GEMMs: a measured row, else the law of the dtype."""

    def __init__(
        self, rows: Iterable[GroupedRow], fits: Iterable[GroupedFit], sm_count: int
    ) -> None:
        self._exact = {row.signature: row for row in rows}
        self._laws = {fit.dtype: GroupedLaw(fit, sm_count) for fit in fits}

    def estimate(self, gemm: Gemm) -> Estimate | None:
        """Return the call's duration; None for a dtype without law."""
        gemm = _as_fitted(gemm)
        row = self._exact.get(gemm)
        if row is not None:
            return Estimate(row.median_us, "measured", row_error(row))
        law = self._laws.get(gemm.dtype)
        if law is None:
            return None
        beyond = law.octaves_outside(gemm)
        error = law.fit.error + expected.GEMM_OCTAVE.error * beyond
        far = beyond > FAR_OCTAVES and law.fit.kind == "fitted"
        return Estimate(law.parts(gemm).total_us, "extrapolated" if far else law.fit.kind, error)

    def shares(self, gemm: Gemm) -> tuple[float, float, float] | None:
        """Return the fixed, FLOP-bound and memory-bound fractions; None without law."""
        gemm = _as_fitted(gemm)
        law = self._laws.get(gemm.dtype)
        if law is None:
            return None
        parts = law.parts(gemm)
        fixed, flops = parts.fixed_us / parts.total_us, parts.flops_us / parts.total_us
        return fixed, flops, 1.0 - fixed - flops


def _as_fitted(gemm: Gemm) -> Gemm:
    """Return the call in the dtype of its law, packed and without bias."""
    dtype = SAME_RATE.get(gemm.dtype, gemm.dtype)
    return gemm._replace(dtype=dtype, strides=(0, 0, 0), bias=False)


# Dispatch and combine of experts' tokens by DeepEP and Hybrid-EP ----------------------------------
# Time by bytes, group and SMs.
#
# ``size_bytes`` is what a rank gets (dispatch) or gives (combine), a copy of a token for each rank
# that needs it, its own share counted. Laws are piecewise α–β by the SMs that the kernels hold,
# with a share for each row, since an SM handles one row after the other: rows of 4 KiB reach half
# the rate of rows of 14. Between two numbers of SMs both shares are interpolated, below the fewest
# the transfer takes longer in proportion, above the most it stays.
#
# Over n nodes of p ranks the network carries a copy a node, not a rank. A token that goes to
# ``TOP_K`` of many experts spread at random reaches d(r) = r·(1 − (1 − 1/r)^TOP_K) of r equal
# parts, so of a rank's bytes d(n)/d(n·p) are copies that a rank of its rail gets, and (n − 1)/n of
# these come from other nodes:
#
#     network bytes = size_bytes · d(n)/d(n·p) · (n − 1)/n
#
# over the rank's own NIC, while NVLink carries ``size_bytes`` within the node; the slower one
# counts.

DEFAULT_SMS: Final[dict[CollectiveKind, int]] = {
    "deepep_dispatch": 20, "deepep_combine": 20, "hybridep_dispatch": 16, "hybridep_combine": 16,
}  # fmt: skip
"""SMs where none are told: Megatron-LM's defaults of moe_deepep_num_sms (DeepEP's own, too) and of
moe_hybridep_num_sms."""
STANDS_IN: Final[dict[CollectiveKind, CollectiveKind]] = {
    "hybridep_dispatch": "deepep_dispatch", "hybridep_combine": "deepep_combine",
}  # fmt: skip
"""Whose law serves one node where Hybrid-EP was not timed."""
TOP_K: Final = 8
"""Experts of a token: of DeepSeek-V3 and Qwen3."""


def reached(parts: int) -> float:
    """Return how many of equal parts a token reaches."""
    return float(parts * (1 - (1 - 1 / parts) ** TOP_K))


def network_bytes(c: Collective) -> float:
    """Return the bytes that a rank's NIC brings from other nodes."""
    copies = reached(c.nodes) / reached(c.ranks)
    return c.size_bytes * copies * (c.nodes - 1) / c.nodes


class ExpertExchange:
    """Look-up of dispatches and combines."""

    def __init__(
        self,
        fits: Mapping[GroupKey, CollectiveFit],
        nic_gb_s: float | None,
        nic_latency_us: float | None,
    ) -> None:
        self._fits: dict[tuple[str, int, int], dict[int, CollectiveFit]] = {}
        for (op, nodes, per_node, sms), fit in fits.items():
            if op in DEFAULT_SMS:
                self._fits.setdefault((op, nodes, per_node), {})[sms] = fit
        self._nic_gb_s, self._nic_latency_us = nic_gb_s, nic_latency_us

    def law(self, c: Collective) -> CollectiveLaw:
        """Return the law; raise MissingSectionError if nothing related was timed."""
        found = self._timed(c) or self._between(c) or self._over_network(c)
        if found is None and c.op in STANDS_IN:
            other = self.law(c._replace(op=STANDS_IN[c.op], ctas=c.ctas or DEFAULT_SMS[c.op]))
            return other.scaled(1.0, max(other.error, expected.COLLECTIVE_RELATED.error))
        if found is None:
            raise MissingSectionError(
                f"The profile times no {c.op} like that on {c.nodes}×{c.per_node} ranks; it has "
                f"{', '.join(f'{o} {n}×{p}' for o, n, p in sorted(self._fits)) or 'none'}. Use the "
                "dispatcher `alltoall` or `allgather`, or import timings."
            )
        return found

    def _timed(self, c: Collective) -> CollectiveLaw | None:
        """Return the law of the group's own timings, between those of its numbers of SMs."""
        by_sms = self._fits.get((c.op, c.nodes, c.per_node))
        if by_sms is None:
            return None
        sms, known = c.ctas or DEFAULT_SMS[c.op], sorted(by_sms)
        right = min(bisect_left(known, sms), len(known) - 1)
        high = _law(by_sms[known[right]], c)
        if sms > known[right]:
            return _beyond(high, 1.0, reach(sms, known[0], known[-1]))
        if sms == known[right]:
            return high
        if right == 0:
            return _beyond(high, known[0] / sms, known[0] / sms)
        low = _law(by_sms[known[right - 1]], c)
        weight = math.log(sms / known[right - 1]) / math.log(known[right] / known[right - 1])
        return _mixed(low, high, weight, max(low.error, high.error))

    def _between(self, c: Collective) -> CollectiveLaw | None:
        """Interpolate over log₂ of ranks of one node or domain, or of nodes, within the timed ones
        and, in a domain, beyond them."""
        single = c.nodes == 1
        sizes = sorted(
            p if single else n
            for op, n, p in self._fits
            if op == c.op and (n == 1 if single else n > 1 and p == c.per_node)
        )
        want = c.per_node if single else c.nodes
        if not sizes or (not single and not sizes[0] <= want <= sizes[-1]):
            return None
        error = expected.COLLECTIVE_GROUPS.error
        right = bisect_left(sizes, want)
        if right in (0, len(sizes)):
            nearest = sizes[min(right, len(sizes) - 1)]
            only = self._of(c, nearest)
            factor = max(1.0, math.log2(want) / math.log2(nearest))
            ring = (1 - 1 / want) / (1 - 1 / nearest)
            off = max(only.error, error * (1 + math.log2(reach(want, sizes[0], sizes[-1]))))
            return CollectiveLaw(only.latency_us * factor, only.transfer_us * ring, "assumed", off)
        low, high = self._of(c, sizes[right - 1]), self._of(c, sizes[right])
        weight = math.log2(want / sizes[right - 1]) / math.log2(sizes[right] / sizes[right - 1])
        return _mixed(low, high, weight, max(error, low.error, high.error))

    def _of(self, c: Collective, size: int) -> CollectiveLaw:
        found = self._timed(c._replace(per_node=size) if c.nodes == 1 else c._replace(nodes=size))
        assert found is not None
        return found

    def _over_network(self, c: Collective) -> CollectiveLaw | None:
        """Return the slower of the node's law and the NICs, as said above."""
        if c.nodes == 1 or self._nic_gb_s is None or self._nic_latency_us is None:
            return None
        inside = self.law(c._replace(nodes=1))
        wire_us = network_bytes(c) / (1e3 * self._nic_gb_s)
        latency_us = inside.latency_us + self._nic_latency_us * math.log2(c.nodes)
        error = max(inside.error, expected.COLLECTIVE_WIRES.error)
        return CollectiveLaw(latency_us, max(wire_us, inside.transfer_us), "assumed", error)


def _law(fit: CollectiveFit, c: Collective) -> CollectiveLaw:
    source, error = widened(fit.kind, fit.error, reach(c.size_bytes, 1, fit.max_bytes))
    rows = c.size_bytes / c.row_bytes if c.row_bytes else 0
    transfer_us = fit.transfer_us(c.size_bytes) + 1e-3 * fit.ns_per_row * rows
    return CollectiveLaw(fit.latency_us, transfer_us, source, error)


def _beyond(law: CollectiveLaw, slower: float, far: float) -> CollectiveLaw:
    error = max(law.error, expected.COLLECTIVE_GROUPS.error * (1 + math.log2(far)))
    return CollectiveLaw(law.latency_us, law.transfer_us * slower, "assumed", error)


def _mixed(low: CollectiveLaw, high: CollectiveLaw, weight: float, error: float) -> CollectiveLaw:
    latency_us, transfer_us = (
        a + weight * (b - a)
        for a, b in ((low.latency_us, high.latency_us), (low.transfer_us, high.transfer_us))
    )
    assumed = "assumed" in (low.source, high.source)
    return CollectiveLaw(latency_us, transfer_us, "assumed" if assumed else "interpolated", error)
