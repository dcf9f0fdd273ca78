"""CostModel: the duration of an op's signature and its error, with what-if changes applied."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.contention import CollectiveFamily, ComputeFamily, Contention, ContentionFit, Family
from simulator.cpu_hosts import NO_TIMES, IdleTimes
from simulator.draws import NOMINAL, Draw, family_of
from simulator.dtypes import S_PER_NS
from simulator.errors import InputError, ProfileError
from simulator.launch import NO_LAUNCH, launch_of
from simulator.lookup import SOURCE_OF, Estimate, Source
from simulator.lookup.collectives import SM_COUNT, gathered_us, scattered_us
from simulator.lookup.expected import TILE_FUSED
from simulator.ops import Attention, Collective, Fused, Gemm, Pointwise, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simulator.launch import Hosts
    from simulator.lookup import Provenance
    from simulator.lookup.attention import AttentionTable
    from simulator.lookup.collectives import CollectiveTable
    from simulator.lookup.gemm import GemmTable
    from simulator.lookup.pointwise import PointwiseTable
    from simulator.power import PowerSection
    from simulator.profile import Profile

    Floats = NDArray[np.float64]


# No machine differs by more than these factors, and beyond them times overflow. A link may fall
# further than a rate of the GPU: from NVLink to gigabit Ethernet is 1 / 4000.
LEAST_FACTORS: Final[dict[str, float]] = {
    "link_bandwidth": 1e-5, "gpu_flops": 1e-3, "memory_bandwidth": 1e-3,
    "host_speed": 1e-3,
}  # fmt: skip
MOST_FACTOR: Final = 1e3


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What-if multipliers of the machine: 2.0 doubles a rate (or a latency); 1.0 changes nothing.

    ``contention`` scales the excess of every slowdown over 1; 0.0 turns contention off.
    ``host_speed``: of the host's Python and launches. ``compute_speed`` is the speed of all compute
    ops and of the launch costs inside them (``inline``). Raise InputError for a factor out of
    range.
    """

    link_bandwidth: float = 1.0
    link_latency: float = 1.0
    gpu_flops: float = 1.0
    memory_bandwidth: float = 1.0
    contention: float = 1.0
    host_speed: float = 1.0
    compute_speed: float = 1.0

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name == "compute_speed":  # measured, not asked for
                assert self.compute_speed > 0
                continue
            value, low = getattr(self, item.name), LEAST_FACTORS.get(item.name, 0.0)
            if not low <= value <= MOST_FACTOR:
                off = ", 0 meaning off" if item.name == "contention" else ""
                raise InputError(
                    f"{item.name} must be a factor from {low:g} to {MOST_FACTOR:g}{off}, "
                    f"got {value:.4g}."
                )

    @property
    def of_gpu(self) -> bool:
        """Whether the GPU has other rates than the profile's."""
        return (self.gpu_flops, self.memory_bandwidth) != (1.0, 1.0)


NO_CHANGES: Final = Changes()
SECTION_OF: Final[dict[str, str]] = {
    "gemm": "gemm", "attention": "attention", "pointwise": "pointwise", "collective": "collectives",
}  # fmt: skip
"""Kind of an op -> the section of a profile that has its times."""


class CostModel:
    """Durations, contention and launch costs of one profile under one set of changes.

    ``hosts``: what the job's implementation spends on its host; None: what the profile's launches
    take. ``clock_mhz``: the GPU's clock; 0 for the durations as they were timed. ``kept``: what
    others made of these costs for all plans. Raise MissingSectionError if an op needs a section
    that the profile lacks.
    """

    clock_mhz: int = 0

    def __init__(
        self,
        profile: Profile,
        *,
        changes: Changes = NO_CHANGES,
        hosts: Hosts | None = None,
        cuda_graph: bool = False,
    ) -> None:
        self.profile = profile
        self.changes = changes
        self.draw = NOMINAL
        self._estimates: dict[Signature, Estimate] = {}
        self._durations_ns: dict[Signature, int] = {}
        self._timed_mhz: dict[Signature, float] = {}
        self._timed: dict[Signature, tuple[float, float, float, float]] = {}
        self._at_clocks: dict[int, AtClock] = {}
        self.kept: dict[object, Any] = {}
        fit = _contention_fit(profile)
        self.contention = Contention(fit, strength=changes.contention)
        self.launch = NO_LAUNCH if cuda_graph else launch_of(
            profile, hosts, compute_speed=changes.compute_speed, host_speed=changes.host_speed
        )  # fmt: skip
        self.skew = profile.skew.fit if profile.skew else None
        self.resume = profile.resume.fit if profile.resume else None
        self.idle_lane = profile.collectives.idle_lane if profile.collectives else None
        self.power = profile.power

    def estimate(self, signature: Signature) -> Estimate:
        """Return the duration alone on the changed machine; raise ProfileError if it is invalid."""
        estimate = self._estimates.get(signature)
        if estimate is None and isinstance(signature, Gemm) and signature.looped:
            estimate = self._estimates[signature] = self.estimate(signature._replace(looped=False))
        if estimate is None:
            estimate = self._as_known(signature, self._estimate(signature))
            if not (math.isfinite(estimate.duration_us) and estimate.duration_us >= 0):
                raise ProfileError(
                    f"Profile {self.profile.name!r} gives {estimate.duration_us!r} us for "
                    f"{signature}; a duration must be finite and not negative: check the profile."
                )
            self._estimates[signature] = estimate
        return estimate

    def duration_ns(self, signature: Signature) -> int:
        """Return the duration of ``estimate`` in whole nanoseconds, at least 1."""
        duration_ns = self._durations_ns.get(signature)
        if duration_ns is None:
            duration_ns = max(1, round(self.estimate(signature).duration_us * 1000))
            self._durations_ns[signature] = duration_ns
        return duration_ns

    def slowed_ns(self, signature: Signature) -> tuple[int, Source]:
        """Return by how many ns the clock makes the op longer than its timing, and the source of
        that number."""
        return 0, "measured"

    def awake_ns(self, signature: Signature) -> int:
        """Return an op's duration (ns) on an awake lane, with all that an idle link can save."""
        return self.duration_ns(signature) - self.idle_times(signature).wake_ns

    def least_ns(self, signature: Signature) -> int:
        """Return the least duration (ns) of an op over all idle times of its lane."""
        idle = self.idle_times(signature)
        return self.duration_ns(signature) - idle.wake_ns + idle.least_ns

    def idle_times(self, signature: Signature) -> IdleTimes:
        """Return what a collective saves and pays after its lane idled. Links inside a node have no
        bucket, so they save nothing; waking is part of the duration and leaves at least 1 ns of
        it."""
        law = self.idle_lane
        if law is None or not isinstance(signature, Collective):
            return NO_TIMES
        off = 1000 * self.draw.factor(family_of(signature), law.error)
        saved_us = law.saved_us(signature.bus_bytes) if signature.nodes > 1 else 0.0
        wake_ns = round(off * law.wake_us * self.changes.link_latency)
        return IdleTimes(
            round(off * saved_us / self.changes.link_bandwidth),
            min(wake_ns, self.duration_ns(signature) - 1),
        )

    def family(self, signature: Signature) -> Family:
        """Return the contention family, with the numbers that the law needs and no others."""
        if isinstance(signature, Collective):
            fit = self.contention.fit
            ctas = signature.reserved_sms or signature.ctas
            group = signature.nodes, signature.per_node, ctas
            if fit and fit.by_size:
                return CollectiveFamily(*group, signature.size_bytes, signature.op)
            if signature.op == "peer_copy":
                return CollectiveFamily(*group, op=signature.op)
            return CollectiveFamily(*group)
        gb_s = 0
        if isinstance(signature, Pointwise) and self.contention.depends_on_streams:
            gb_s = signature.moved_bytes // self.duration_ns(signature)
        return ComputeFamily(signature.kind, gb_s)

    def at_clock(self, clock_mhz: int) -> AtClock:
        """Return the same costs at a clock; the profile needs a power section."""
        if clock_mhz not in self._at_clocks:
            self._at_clocks[clock_mhz] = AtClock(self, clock_mhz)
        return self._at_clocks[clock_mhz]

    def beside(self, fit: ContentionFit) -> CostModel:
        """Return the same costs under another law of contention."""
        other = copy.copy(self)
        other._at_clocks, other.kept = {}, {}
        other.contention = Contention(fit, strength=self.changes.contention)
        return other

    def drawn(self, draw: Draw) -> CostModel:
        """Return the costs of a machine that is as ``draw`` says."""
        return Drawn(self, draw)

    def _as_known(self, signature: Signature, estimate: Estimate) -> Estimate:
        """Return ``estimate``; if its section is assumed, so is the result, with at least its
        error."""
        provenance: Provenance = self.profile.section(SECTION_OF[signature.kind]).provenance
        if provenance.kind != "assumed":
            return estimate
        return Estimate(
            estimate.duration_us, "assumed", max(estimate.error, provenance.error or 0.0)
        )

    def _estimate(self, signature: Signature) -> Estimate:
        if isinstance(signature, Fused):
            return self._fused(signature)
        if isinstance(signature, Gemm):
            gemms = self._gemms
            return self._compute(gemms.estimate(signature), gemms.shares(signature))
        if isinstance(signature, Attention):
            cores = self._attentions
            return self._compute(cores.estimate(signature), cores.shares(signature))
        if isinstance(signature, Pointwise):
            points = self._pointwise
            fixed, memory = points.shares(signature)
            return self._compute(points.estimate(signature), (fixed, 0.0, memory))
        return self._collective(signature)

    def _fused(self, signature: Fused) -> Estimate:
        """Return the estimate of a tile-fused kernel, computed from those of its GEMM and of the
        peer copies or the exchange that it hides."""
        gemm, transfer = self.estimate(signature.gemm), self.estimate(moved_by(signature))
        both_us = (np.array([one.duration_us]) for one in (gemm, transfer))
        kernel_us = self.fused_us(signature, *both_us)
        return Estimate(
            float(kernel_us[0]), "assumed", max(gemm.error, transfer.error, TILE_FUSED.error)
        )

    def fused_us(self, signature: Fused, gemm_us: Floats, transfer_us: Floats) -> Floats:
        """Return the times of a tile-fused kernel, at several clocks."""
        fit, collective = self.contention.fit, signature.collective
        kernel_us = (gathered_us if collective.op == "all_gather" else scattered_us)(
            signature.gemm, gemm_us, transfer_us, collective.ranks,
            fit.sm_count if fit else SM_COUNT,
        )  # fmt: skip
        return self.draw.factor("tile_fused", TILE_FUSED.error) * kernel_us

    def _compute(self, base: Estimate, shares: tuple[float, float, float]) -> Estimate:
        """Return ``base`` in a step of the slowest rank, each share scaled by its change."""
        slower = 1.0 if self.skew is None else self.skew.compute_factor
        base = base._replace(duration_us=base.duration_us * slower / self.changes.compute_speed)
        fixed, flops, memory = shares
        total = fixed + flops + memory
        if total <= 0 or (self.changes.gpu_flops == self.changes.memory_bandwidth == 1.0):
            return base
        after = fixed + flops / self.changes.gpu_flops + memory / self.changes.memory_bandwidth
        return base._replace(duration_us=base.duration_us * after / total)

    def _collective(self, signature: Collective) -> Estimate:
        table = self._collectives
        base = table.estimate(signature)
        if self.changes.link_bandwidth == self.changes.link_latency == 1.0:
            return base
        latency, transfer = table.shares(signature)
        after = latency * self.changes.link_latency + transfer / self.changes.link_bandwidth
        return base._replace(duration_us=after)

    @cached_property
    def _gemms(self) -> GemmTable:
        return self.profile.gemm_table()

    @cached_property
    def _attentions(self) -> AttentionTable:
        return self.profile.attention_table()

    @cached_property
    def _pointwise(self) -> PointwiseTable:
        return self.profile.pointwise_table()

    @cached_property
    def _collectives(self) -> CollectiveTable:
        return self.profile.collective_table()


class Drawn(CostModel):
    """The costs of ``nominal`` on a machine that is off as ``draw`` says."""

    def __init__(self, nominal: CostModel, draw: Draw) -> None:
        self.__dict__.update(nominal.__dict__)
        self.draw = draw
        self._nominal = nominal
        self._estimates, self._durations_ns, self._timed_mhz, self._at_clocks = {}, {}, {}, {}
        self._timed, self.kept = {}, {}
        fit = nominal.contention.fit
        self.contention = Contention(
            fit and draw.contention(fit), strength=nominal.changes.contention
        )
        self.launch = nominal.launch.off(
            draw.factor("launch", nominal.launch.error), draw.errors.get("launch", math.inf)
        )
        self.power = nominal.power and draw.power(nominal.power)

    def estimate(self, signature: Signature) -> Estimate:
        """Return the duration alone on this machine."""
        if isinstance(signature, Fused):  # of its parts on this machine
            return self._fused(signature)
        estimate = self._estimates.get(signature)
        if estimate is None:
            nominal = self._nominal.estimate(signature)
            estimate = self.draw.estimate(signature, nominal)
            if self.draw.factors and estimate.duration_us < nominal.duration_us:
                least_us = min(nominal.duration_us, self._least_us(signature))
                estimate = estimate._replace(duration_us=max(estimate.duration_us, least_us))
            self._estimates[signature] = estimate
        return estimate

    def _least_us(self, signature: Signature) -> float:
        """Return the time of an op at the machine's peak, which no measured iteration shows that
        it beats."""
        if not isinstance(signature, Gemm | Attention):
            return 0.0
        peak = self.changes.gpu_flops * self.changes.compute_speed
        return self.profile.machine.roof.floor_us(signature.dtype, signature.flops, 0) / peak


class AtClock(CostModel):
    """The costs of ``timed_cost``, stretched to a clock."""

    def __init__(self, timed: CostModel, clock_mhz: int) -> None:
        self.__dict__.update(timed.__dict__)
        self.clock_mhz = clock_mhz
        self.timed_cost = timed
        self._power: PowerSection = timed.power or timed.profile.section("power")
        self._estimates, self._durations_ns, self.kept = {}, {}, {}
        self._energies_j: dict[Signature, float] = {}

    def estimate(self, signature: Signature) -> Estimate:
        """Return the duration alone at this clock."""
        if isinstance(signature, Fused):  # of its parts at this clock
            return self._fused(signature)
        estimate = self._estimates.get(signature)
        if estimate is None:
            timed_us, source, error = self.timed_cost.estimate(signature)
            mhz = self.timed_mhz(signature)
            stretch = self._power.stretch(signature.kind, mhz, self.clock_mhz)
            estimate = self._estimates[signature] = Estimate(timed_us * stretch, source, error)
        return estimate

    def timed_mhz(self, signature: Signature) -> float:
        """Return the clock at which the op was timed; it is looked up once for all clocks."""
        mhz = self._timed_mhz.get(signature)
        if mhz is None:
            timed_us = self.timed_cost.estimate(signature).duration_us
            mhz = self._power.timed_mhz(signature.kind, timed_us, _product(signature))
            self._timed_mhz[signature] = mhz
        return mhz

    def timed(self, signature: Signature) -> tuple[float, float, float, float]:
        """Return the numbers that determine an op's time and power at any clock: its timing (µs),
        the clock of that timing (MHz), the elasticity, and the watts above idle at boost. Each
        signature is looked up once."""
        found = self._timed.get(signature)
        if found is None:
            elasticity = self._power.family(signature.kind).elasticity
            timed_us = self.timed_cost.estimate(signature).duration_us
            boost_w = self._power.boost_w(signature.kind, _product(signature))
            found = timed_us, self.timed_mhz(signature), elasticity, boost_w
            self._timed[signature] = found
        return found

    def at_clock(self, clock_mhz: int) -> AtClock:
        """Return the same costs at another clock."""
        return self.timed_cost.at_clock(clock_mhz)

    def beside(self, fit: ContentionFit) -> CostModel:
        """Return the same costs, at the same clock, under another law of contention."""
        return self.timed_cost.beside(fit).at_clock(self.clock_mhz)

    def slowed_ns(self, signature: Signature) -> tuple[int, Source]:
        """Return by how much the clock makes the op longer than it was timed."""
        slowed_ns = self.duration_ns(signature) - self.timed_cost.duration_ns(signature)
        return slowed_ns, SOURCE_OF[self._power.family(signature.kind).kind]

    def energy_j(self, signature: Signature) -> float:
        """Return the energy (J) that the op draws above idle."""
        energy_j = self._energies_j.get(signature)
        if energy_j is None:
            if isinstance(signature, Fused):  # waiting for tiles draws little
                return self.energy_j(signature.gemm) + self.energy_j(signature.collective)
            mhz = self.timed_mhz(signature)
            product = _product(signature)
            watts = self._power.draw_w(signature.kind, mhz, self.clock_mhz, product)
            energy_j = watts * self.duration_ns(signature) * S_PER_NS
            self._energies_j[signature] = energy_j
        return energy_j


def moved_by(signature: Fused) -> Collective:
    """Return the copy of a chunk or the exchange that a tile-fused kernel hides."""
    one = signature.collective
    if one.op == "all_gather":
        return one._replace(op="peer_copy", size_bytes=one.size_bytes // one.ranks)
    return one._replace(op="all_to_all")


def _product(signature: Signature) -> str:
    """Return in what a GEMM multiplies; of other ops nothing."""
    return signature.dtype if isinstance(signature, Gemm) else ""


def _contention_fit(profile: Profile) -> ContentionFit | None:
    """Return the law; where its section is assumed, every number of it is."""
    section = profile.contention
    if section is None:
        return None
    provenance = section.provenance
    assumed = provenance.kind == "assumed"
    return section.fit.as_assumed(provenance.error or 0.0) if assumed else section.fit
