"""Confidence of a prediction: its level by the sources of the time on its critical path, and what a
profile does not know of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from simulator.case import Case
from simulator.cost import CostModel
from simulator.cpu_hosts import Resumed
from simulator.draws import Draw, Family
from simulator.lookup import SOURCE_OF, Source
from simulator.profile import ResumeSection, SkewSection
from simulator.schedule import COMPUTE, OpTemplate, Timeline

LOW_SHARE: Final = 0.20
"""Confidence is low when more than this share of the time was extrapolated or assumed."""
MEDIUM_SHARE: Final = 0.05
UNSURE: Final[tuple[Source, ...]] = ("extrapolated", "assumed")

Level = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """How much of an iteration was timed; ``shares``: parts of the time by look-up source."""

    level: Level
    shares: dict[str, float]
    warnings: tuple[str, ...]


def confidence_of(timeline: Timeline, cost: CostModel) -> Confidence:
    """Return how well known the time of ``timeline`` is, which was predicted with ``cost``."""
    total = timeline.makespan_ns
    path = _Path(cost)
    for op, elapsed_ns, paid_ns, times in _critical_ops(timeline, cost):
        path.add(op, elapsed_ns, paid_ns, times)
    path.wait(total - path.spent.total())
    shares = {source: time_ns / total for source, time_ns in path.spent.most_common()}
    return Confidence(
        level=_level(sum(shares.get(source, 0.0) for source in UNSURE)),
        shares=shares,
        warnings=tuple(
            f"{role}: looked up far outside the profile's range "
            f"({elapsed / total:.0%} of the time)."
            for role, elapsed in path.far.most_common()
            if elapsed > 0.01 * total
        ),
    )


class _Path:
    """Sums over the critical path, ns: time by source, extrapolated time by role."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.spent: Counter[str] = Counter()
        self.far: Counter[str] = Counter()

    def add(self, op: OpTemplate, elapsed_ns: int, paid_ns: int, times: int) -> None:
        """Add an op that occurs ``times`` times on the path. Split its time into the look-up, an
        inline launch, recovery from the last wait, a wait for other ranks, and contention."""
        cost = self.cost
        estimate = cost.estimate(op.signature)
        alone_ns = min(elapsed_ns, cost.duration_ns(op.signature))
        launch_ns = min(elapsed_ns - alone_ns, _inline_ns(op, cost))
        paid_ns = min(elapsed_ns - alone_ns - launch_ns, paid_ns)
        stretched_ns = elapsed_ns - alone_ns - launch_ns - paid_ns
        waited_ns = _waited_ns(op, cost, alone_ns, stretched_ns)
        slowed_ns, slowed_by = cost.slowed_ns(op.signature)
        self._spend(estimate.source, times * (alone_ns - slowed_ns))
        self._spend(slowed_by, times * slowed_ns)
        self._spend(cost.launch.source, times * launch_ns)
        self._spend(_source_of(cost.profile.resume), times * paid_ns)
        self._spend(_source_of(cost.profile.skew), times * waited_ns)
        self._spend(_slowdown_source(op, cost), times * (stretched_ns - waited_ns))
        if estimate.source == "extrapolated":
            self.far[op.role] += times * elapsed_ns

    def wait(self, waited_ns: int) -> None:
        """Add the gaps between ops: waits for an asynchronous host, else waits for other ranks."""
        if self.cost.launch.mode == "async":
            self._spend(self.cost.launch.source, waited_ns)
        else:
            self._spend(_source_of(self.cost.profile.skew), waited_ns)

    def _spend(self, source: Source, time_ns: int) -> None:
        if time_ns:
            self.spent[source] += time_ns


def _critical_ops(
    timeline: Timeline, cost: CostModel
) -> Iterator[tuple[OpTemplate, int, int, int]]:
    """Yield (op, its ns, the ns that it paid for the last wait, count) for the distinct ops of the
    critical path. Layers are alike, so most ops occur many times."""
    paid_ns, path = _paid_ns(timeline, cost), timeline.critical_path
    ops = [timeline.templates[index] for index in path]
    elapsed_ns = [timeline.end_ns[index] - timeline.start_ns[index] for index in path]
    paid = [paid_ns.get(index, 0) for index in path]
    known = {id(op): op for op in ops}
    counts = Counter(zip(map(id, ops), elapsed_ns, paid, strict=True))
    for (number, op_ns, wait_ns), times in counts.items():
        yield known[number], op_ns, wait_ns, times


def _inline_ns(op: OpTemplate, cost: CostModel) -> int:
    """Return the launch inside the op, in ns: where the host computes, too."""
    inline = cost.launch.mode == "inline" and op.lane == COMPUTE
    return cost.launch.of(op.signature) if inline else 0


def _waited_ns(op: OpTemplate, cost: CostModel, alone_ns: int, stretched_ns: int) -> int:
    """Return the part of the stretch (ns) that contention cannot explain: a collective's wait for
    the last rank."""
    fit = cost.contention.fit
    if cost.cpu.skew is None or op.lane == COMPUTE:
        return 0
    most = 1.0
    if fit is not None:
        most = fit.most_beside_compute(cost.contention.sms_of(cost.family(op.signature)))
        most *= max(fit.same_links.factor, fit.other_links.factor)
    return max(0, stretched_ns - round(alone_ns * (most - 1) * cost.contention.strength))


def _slowdown_source(op: OpTemplate, cost: CostModel) -> Source:
    """Return the source of the contention law that slowed the op."""
    fit = cost.contention.fit
    if fit is None:
        return "assumed"
    return (fit.law(op.signature.kind) if op.lane == COMPUTE else fit.collective).kind


def _source_of(section: SkewSection | ResumeSection | None) -> Source:
    """Return the source of a section's fit."""
    return SOURCE_OF[section.provenance.kind] if section is not None else "assumed"


def _paid_ns(timeline: Timeline, cost: CostModel) -> dict[int, int]:
    """Return how much longer (ns) compute ops took for the waits before them, by issue order."""
    if cost.cpu.resume is None:
        return {}
    paid_ns, lane = {}, Resumed(cost.cpu.resume)
    spans = zip(timeline.templates, timeline.start_ns, timeline.end_ns, strict=True)
    for index, (op, start_ns, end_ns) in enumerate(spans):
        if op.lane == COMPUTE:
            work_ns = cost.duration_ns(op.signature) + _inline_ns(op, cost)
            paid_ns[index] = lane.paid_ns(start_ns, work_ns)
            lane.busy_until_ns = end_ns
    return paid_ns


def _level(unsure: float) -> Level:
    if unsure > LOW_SHARE:
        return "low"
    return "medium" if unsure > MEDIUM_SHARE else "high"


# Unknowns -----------------------------------------------------------------------------------------
# What a profile does not know about a job's implementation and network.
#
# No error of a look-up covers them, since nothing that was timed shows them. Each says by how much
# a family of durations may be longer, with a source other than whole jobs. They only make an
# iteration longer: libraries, drivers and networks that were not timed are older or have fewer
# features. A family that measured iterations calibrate (``calibration``) is no longer unknown.


class Unknown(NamedTuple):
    """``name``: one word. ``factors``: of durations, at the slow end of timings from elsewhere.
    ``why``: in words."""

    name: str
    factors: Mapping[Family, float]
    why: str

    @property
    def draw(self) -> Draw:
        """The machine that has this unknown's slow durations."""
        return Draw(factors=self.factors)


KERNELS_OF_2022: Final = Unknown(
    "kernels",
    dict.fromkeys(("gemm_forward", "gemm_dgrad", "gemm_wgrad", "attention", "pointwise"), 1.15),
    "{how} runs kernels of 2022, and the profile times those of today: GEMMs of a Llama 2 layer on "
    "an H100 took 10 to 15 % longer with the libraries of 2024",
)
"""Sources: data/measured/h100_layer_gemms_llama2.csv.gz beside h100_gemm_bf16.csv.gz."""
HOST_OF_2022: Final = Unknown(
    "host",
    {"launch": 3.0},
    "nobody timed {how} on hosts of its time: on older ones a launch takes up to three times what "
    "is assumed (--cuda-graph leaves it out)",
)
"""A kernel takes 6 us of today's hosts that were timed, and up to 18 us of others."""
NETWORK: Final = Unknown(
    "network",
    {"collective_between_nodes": 2.0},
    "nobody timed the network of these nodes, and what is published of nodes with one GPU differs "
    "by a factor of two",
)
"""machines.csv of ai-dynamo/aiconfigurator has 800 Gb/s for each B200, vendors sell 400; A100s are
sold with 200 Gb/s each (DGX A100) and with less."""


def unknowns_of(case: Case) -> tuple[Unknown, ...]:
    """Return the unknowns that apply to the case."""
    how = case.workload.implementation.name
    told = {family for draw in case.cost.change.draws for family in draw.errors}
    of_2022 = how == "megatron-2022" and case.profile.machine.backend == "nccl"
    found = (
        one._replace(why=one.why.format(how=how))
        for one, holds in (
            (KERNELS_OF_2022, of_2022),
            (HOST_OF_2022, of_2022 and case.cost.launch.mode == "async"),
            (NETWORK, case.cluster.domains > 1 and not _times_nodes(case)),
        )
        if holds and not one.factors.keys() <= told
    )
    return tuple(found)


def _times_nodes(case: Case) -> bool:
    """Whether the profile has timings of any group over several nodes."""
    section = case.profile.collectives
    if section is None:
        return False
    rows, fits = section.rows, section.fits
    return any(row.nodes > 1 for row in rows) or any(fit.nodes > 1 for fit in fits)
