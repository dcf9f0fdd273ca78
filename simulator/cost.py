"""CostModel: what each op takes on a machine, and how sure that is, from a profile and a change."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simulator.contention import CollectiveFamily, ComputeFamily, Contention
from simulator.cpu_hosts import NO_TIMES, CpuHosts, IdleTimes
from simulator.draws import Draw, family_of
from simulator.dtypes import S_PER_NS
from simulator.errors import InputError, ProfileError
from simulator.launch import NO_LAUNCH, launch_of
from simulator.lookup import SOURCE_OF, Estimate, Source
from simulator.lookup.collectives import SM_COUNT, gathered_us, scattered_us
from simulator.lookup.expected import TILE_FUSED
from simulator.ops import Attention, Collective, Fused, Gemm, Pointwise, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simulator.contention import ContentionFamily, ContentionFit
    from simulator.draws import Family
    from simulator.launch import Hosts
    from simulator.lookup import Provenance
    from simulator.lookup.attention import AttentionTable
    from simulator.lookup.collectives import CollectiveTable
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
class Factors:
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


NO_FACTORS: Final = Factors()


@dataclass(frozen=True, kw_only=True)
class Change:
    """How a machine differs from its profile: by what-if factors, then as each draw says, then by
    its clock; 0 leaves durations as they were timed."""

    factors: Factors = NO_FACTORS
    draws: tuple[Draw, ...] = ()
    clock_mhz: int = 0

    def off(self, family: Family, error: float) -> float:
        """Return by what the draws multiply a time that no look-up gives."""
        return math.prod((draw.factor(family, error) for draw in self.draws), start=1.0)


# Look-ups -----------------------------------------------------------------------------------------

SECTION_OF: Final[dict[str, str]] = {
    "gemm": "gemm", "attention": "attention", "pointwise": "pointwise", "collective": "collectives",
}  # fmt: skip
"""Kind of an op -> the section of a profile that has its times."""


class LookUps:
    """Durations on a profile's machine under what-if factors, each looked up once. Raise
    MissingSectionError if an op needs a section that the profile lacks."""

    def __init__(self, profile: Profile, factors: Factors) -> None:
        self.profile, self.factors = profile, factors
        self._slower = _cpu_hosts(profile).compute_factor
        self._known: dict[Signature, Estimate] = {}

    def __getitem__(self, signature: Signature) -> Estimate:
        """Return the duration alone; raise ProfileError if it is invalid."""
        estimate = self._known.get(signature)
        if estimate is None and isinstance(signature, Gemm) and signature.looped:
            estimate = self._known[signature] = self[signature._replace(looped=False)]
        if estimate is None:
            estimate = self._as_known(signature, self._estimate(signature))
            if not (math.isfinite(estimate.duration_us) and estimate.duration_us >= 0):
                raise ProfileError(
                    f"Profile {self.profile.name!r} gives {estimate.duration_us!r} us for "
                    f"{signature}; a duration must be finite and not negative: check the profile."
                )
            self._known[signature] = estimate
        return estimate

    def least_us(self, signature: Signature) -> float:
        """Return the time of an op at the machine's peak, which no measured iteration shows that
        it beats."""
        if not isinstance(signature, Gemm | Attention):
            return 0.0
        peak = self.factors.gpu_flops * self.factors.compute_speed
        return self.profile.machine.roof.floor_us(signature.dtype, signature.flops, 0) / peak

    def _as_known(self, signature: Signature, estimate: Estimate) -> Estimate:
        """Return ``estimate``; if its section is assumed, so is the result, with at least its
        error."""
        provenance: Provenance = self.profile.section(SECTION_OF[signature.kind]).provenance
        if provenance.kind != "assumed":
            return estimate
        error = max(estimate.error, provenance.error or 0.0)
        return Estimate(estimate.duration_us, "assumed", error)

    def _estimate(self, signature: Signature) -> Estimate:
        if isinstance(signature, Collective):
            return self._collective(signature)
        if isinstance(signature, Attention):
            cores = self._attentions
            return self._compute(cores.estimate(signature), cores.shares(signature))
        if isinstance(signature, Pointwise):
            points = self._pointwise
            fixed, memory = points.shares(signature)
            return self._compute(points.estimate(signature), (fixed, 0.0, memory))
        assert isinstance(signature, Gemm)
        gemms = self.profile.gemm_table()
        return self._compute(gemms.estimate(signature), gemms.shares(signature))

    def _compute(self, base: Estimate, shares: tuple[float, float, float]) -> Estimate:
        """Return ``base`` in a step of the slowest rank, each share scaled by its change."""
        slower, factors = self._slower, self.factors
        base = base._replace(duration_us=base.duration_us * slower / factors.compute_speed)
        fixed, flops, memory = shares
        total = fixed + flops + memory
        if total <= 0 or not factors.of_gpu:
            return base
        after = fixed + flops / factors.gpu_flops + memory / factors.memory_bandwidth
        return base._replace(duration_us=base.duration_us * after / total)

    def _collective(self, signature: Collective) -> Estimate:
        table = self._collectives
        base = table.estimate(signature)
        if self.factors.link_bandwidth == self.factors.link_latency == 1.0:
            return base
        latency, transfer = table.shares(signature)
        after = latency * self.factors.link_latency + transfer / self.factors.link_bandwidth
        return base._replace(duration_us=after)

    @cached_property
    def _attentions(self) -> AttentionTable:
        return self.profile.attention_table()

    @cached_property
    def _pointwise(self) -> PointwiseTable:
        return self.profile.pointwise_table()

    @cached_property
    def _collectives(self) -> CollectiveTable:
        return self.profile.collective_table()


# Costs --------------------------------------------------------------------------------------------


class OpTiming(NamedTuple):
    """What determines an op's time and power at any clock: its timing (µs), the clock of that
    timing (MHz), the elasticity, and the watts above idle at boost."""

    us: float
    mhz: float
    elasticity: float
    boost_w: float


class CostModel:
    """Durations, contention and launch costs of one profile under one change.

    ``hosts``: what the job's implementation spends on its host; None: what the profile's launches
    take. ``kept``: what others made of these costs for all plans. All machines that are made of one
    share its look-ups, and all clocks of a machine its timings.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        factors: Factors = NO_FACTORS,
        hosts: Hosts | None = None,
        cuda_graph: bool = False,
    ) -> None:
        self.profile = profile
        self.change = Change(factors=factors)
        self.contention = Contention(_contention_fit(profile), strength=factors.contention)
        self.launch = NO_LAUNCH if cuda_graph else launch_of(
            profile, hosts, compute_speed=factors.compute_speed, host_speed=factors.host_speed
        )  # fmt: skip
        self.cpu = _cpu_hosts(profile)
        self.power = profile.power
        self._look_ups = LookUps(profile, factors)
        self._timed: dict[Signature, OpTiming] = {}
        self._at_clocks: dict[int, CostModel] = {0: self}
        self._estimates: dict[Signature, Estimate] = {}
        self._durations_ns: dict[Signature, int] = {}
        self._energies_j: dict[Signature, float] = {}
        self.kept: dict[object, Any] = {}

    def drawn(self, draw: Draw) -> CostModel:
        """Return the costs if this machine is off as ``draw`` says, at the same clock."""
        other = self._changed(draws=(*self.change.draws, draw), clock_mhz=0)
        other._timed, other._at_clocks = {}, {0: other}
        other.launch = self.launch.off(
            draw.factor("launch", self.launch.error), draw.errors.get("launch", math.inf)
        )
        other.power = self.power and draw.power(self.power)
        other.cpu = self.cpu.with_waits_off(partial(draw.factor, "hosts"))
        fit = self.contention.fit
        law = fit and draw.contention(fit)
        if law is not fit:
            other.contention = Contention(law, strength=self.contention.strength)
        return other.at_clock(self.change.clock_mhz)

    def at_clock(self, clock_mhz: int) -> CostModel:
        """Return the costs at a clock, 0 for as timed. Others need a profile with a power
        section."""
        found = self._at_clocks.get(clock_mhz)
        if found is None:
            found = self._at_clocks[clock_mhz] = self._changed(clock_mhz=clock_mhz)
        return found

    def _changed(self, **parts: Any) -> CostModel:
        """Return a copy with other parts of the change, of which no duration is known yet."""
        other = copy.copy(self)
        other.change = replace(self.change, **parts)
        other._estimates, other._durations_ns, other._energies_j, other.kept = {}, {}, {}, {}
        return other

    def estimate(self, signature: Signature) -> Estimate:
        """Return the duration alone on this machine; raise ProfileError if it is invalid."""
        found = self._estimates.get(signature)
        if found is None:
            found = self._estimates[signature] = self._estimate(signature)
        return found

    def _estimate(self, signature: Signature) -> Estimate:
        """Return the duration that was looked up, off as each draw says, stretched to the clock."""
        if isinstance(signature, Fused):  # of its parts on this machine
            return self._fused(signature)
        if not self.change.clock_mhz:
            found = self._look_ups[signature]
            for draw in self.change.draws:
                before, found = found, draw.estimate(signature, found)
                if self.cpu.skew and not isinstance(signature, Collective):
                    slower = self.cpu.pace(partial(draw.factor, "hosts"))
                    found = found._replace(duration_us=slower * found.duration_us)
                if draw.factors and found.duration_us < before.duration_us:
                    least_us = min(before.duration_us, self._look_ups.least_us(signature))
                    found = found._replace(duration_us=max(found.duration_us, least_us))
            return found
        us, source, error = self.at_clock(0).estimate(signature)  # the same, once for all clocks
        kind, mhz = signature.kind, self.timed(signature).mhz
        return Estimate(us * self._law.stretch(kind, mhz, self.change.clock_mhz), source, error)

    def _fused(self, signature: Fused) -> Estimate:
        """Return the estimate of a tile-fused kernel, computed from those of its GEMM and of the
        peer copies or the exchange that it hides."""
        gemm, transfer = self.estimate(signature.gemm), self.estimate(moved_by(signature))
        both_us = (np.array([one.duration_us]) for one in (gemm, transfer))
        kernel_us = self.fused_us(signature, *both_us)
        error = max(gemm.error, transfer.error, TILE_FUSED.error)
        return Estimate(float(kernel_us[0]), "assumed", error)

    def fused_us(self, signature: Fused, gemm_us: Floats, transfer_us: Floats) -> Floats:
        """Return the times of a tile-fused kernel, at several clocks."""
        fit, collective = self.contention.fit, signature.collective
        kernel_us = (gathered_us if collective.op == "all_gather" else scattered_us)(
            signature.gemm, gemm_us, transfer_us, collective.ranks,
            fit.sm_count if fit else SM_COUNT,
        )  # fmt: skip
        return self.change.off("tile_fused", TILE_FUSED.error) * kernel_us

    def timed(self, signature: Signature) -> OpTiming:
        """Return how an op was timed, which is looked up once for all clocks."""
        found = self._timed.get(signature)
        if found is None:
            law, kind, product = self._law, signature.kind, _product(signature)
            us = self.at_clock(0).estimate(signature).duration_us
            found = self._timed[signature] = OpTiming(
                us, law.timed_mhz(kind, us, product), law.family(kind).elasticity,
                law.boost_w(kind, product),
            )  # fmt: skip
        return found

    @property
    def _law(self) -> PowerSection:
        return self.power or self.profile.section("power")

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
        slowed_ns = self.duration_ns(signature) - self.at_clock(0).duration_ns(signature)
        if not slowed_ns:
            return 0, "measured"
        return slowed_ns, SOURCE_OF[self._law.family(signature.kind).kind]

    def energy_j(self, signature: Signature) -> float:
        """Return the energy (J) that the op draws above idle."""
        energy_j = self._energies_j.get(signature)
        if energy_j is None:
            if isinstance(signature, Fused):  # waiting for tiles draws little
                return self.energy_j(signature.gemm) + self.energy_j(signature.collective)
            mhz, product = self.timed(signature).mhz, _product(signature)
            watts = self._law.draw_w(signature.kind, mhz, self.change.clock_mhz or mhz, product)
            energy_j = self._energies_j[signature] = watts * self.duration_ns(signature) * S_PER_NS
        return energy_j

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
        law, factors = self.cpu.idle_lane, self.change.factors
        if law is None or not isinstance(signature, Collective):
            return NO_TIMES
        off = 1000 * self.change.off(family_of(signature), law.error)
        saved_us = law.saved_us(signature.bus_bytes) if signature.nodes > 1 else 0.0
        wake_ns = round(off * law.wake_us * factors.link_latency)
        return IdleTimes(
            round(off * saved_us / factors.link_bandwidth),
            min(wake_ns, self.duration_ns(signature) - 1),
        )

    def family(self, signature: Signature) -> ContentionFamily:
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


def moved_by(signature: Fused) -> Collective:
    """Return the copy of a chunk or the exchange that a tile-fused kernel hides."""
    one = signature.collective
    if one.op == "all_gather":
        return one._replace(op="peer_copy", size_bytes=one.size_bytes // one.ranks)
    return one._replace(op="all_to_all")


def _product(signature: Signature) -> str:
    """Return in what a GEMM multiplies; of other ops nothing."""
    return signature.dtype if isinstance(signature, Gemm) else ""


def _cpu_hosts(profile: Profile) -> CpuHosts:
    skew, resume, links = profile.skew, profile.resume, profile.collectives
    return CpuHosts(
        skew=skew.fit if skew else None, resume=resume.fit if resume else None,
        idle_lane=links.idle_lane if links else None,
    )  # fmt: skip


def _contention_fit(profile: Profile) -> ContentionFit | None:
    """Return the law; where its section is assumed, every number of it is."""
    section = profile.contention
    if section is None:
        return None
    provenance = section.provenance
    assumed = provenance.kind == "assumed"
    return section.fit.as_assumed(provenance.error or 0.0) if assumed else section.fit
