"""Everything to measure: cases to play, collectives, contention; and the part that is still
missing.

Ops are timed within a schedule that plays without communication, so that caches hold the same as in
training. A case is a model and a workload, with the plans to play.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from domino_tune.measure.laws import lacking_loads
from simulator.build import build_schedule
from simulator.case import Case
from simulator.memory import peak_bytes
from simulator.ops import Collective, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.profile import Profile
from simulator.specs import ClusterSpec, ModelSpec, Workload

LEAST_ROUNDS: Final = 3


@dataclass(frozen=True, kw_only=True)
class ProbeCase:
    """A model, a workload and the plans to play, most useful first."""

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    plans: tuple[SlicePlan, ...]

    def signatures(self, plan: SlicePlan) -> frozenset[Signature]:
        """Return every signature that playing ``plan`` times, collectives included."""
        return signatures(self.model, self.workload, self.cluster, plan)

    def lacking(self, ops: frozenset[Signature], timed: Mapping[Signature, int]) -> ProbeCase:
        """Return the case with only the plans that have any of ``ops``, fewest timings first."""
        counts = [
            (min(timed.get(op, 0) for op in left), plan)
            for plan in self.plans
            if (left := self.signatures(plan) & ops)
        ]
        first = sorted(counts, key=lambda pair: pair[0])
        return replace(self, plans=tuple(plan for _, plan in first))

    def rounds(self, samples: int) -> int:
        """Return how often ranks play each plan to time an op of every layer ``samples`` times."""
        return max(LEAST_ROUNDS, math.ceil(samples / self.model.num_hidden_layers))

    def peak_bytes(self, profile: Profile) -> int:
        """Return the memory of a rank that plays the case unsliced, bytes: the most that any of its
        plans needs."""
        case = Case(model=self.model, workload=self.workload, cluster=self.cluster, profile=profile)
        return peak_bytes(case, MEGATRON)


@dataclass(frozen=True, kw_only=True)
class ContentionProbe:
    """``plan`` of case number ``case``, timed while each of ``messages`` runs back to back."""

    case: int
    plan: SlicePlan
    messages: tuple[Collective, ...]


@dataclass(frozen=True, kw_only=True)
class ProbeSet:
    """Everything to measure. ``ops``: the compute signatures that a profile stores; ``loads``:
    those that show a GPU's power."""

    cases: tuple[ProbeCase, ...]
    collectives: tuple[Collective, ...]
    contention: ContentionProbe | None
    ops: frozenset[Signature]
    loads: tuple[str, ...] = ()

    def without_collectives(self) -> ProbeSet:
        """Return the compute part, which fewer ranks than the cluster has can measure."""
        return replace(self, collectives=(), contention=None)

    def lacking(self, profile: Profile, samples: int, ranks: int) -> ProbeSet:
        """Return what ``profile`` lacks: everything with fewer timings than ``ranks`` ranks would
        take.

        Those with the fewest timings come first, so that interrupted runs reach all of them in the
        end. Contention counts as measured if nothing else is missing: ranks measure everything in
        rounds.
        """
        timed, reduced = timed_ops(profile), timed_collectives(profile)
        ops = self.ops - self._known_ops(timed, samples, ranks)
        counts = [(reduced.get(collective_key(c), 0), c) for c in self.collectives]
        collectives = tuple(
            c for count, c in sorted(counts, key=lambda pair: pair[0]) if count < samples
        )
        unfinished = profile.contention is None or bool(ops or collectives)
        cases = [case.lacking(ops, timed) for case in self.cases]
        if lacks_waits(profile, ranks) and cases and not cases[0].plans:
            cases[0] = replace(cases[0], plans=_first_and_sliced(self.cases[0].plans))
        return ProbeSet(
            cases=tuple(cases),
            collectives=collectives,
            contention=self.contention if unfinished else None,
            ops=ops,
            loads=tuple(one for one in lacking_loads(profile.power) if one in self.loads),
        )

    def _known_ops(
        self, timed: Mapping[Signature, int], samples: int, ranks: int
    ) -> set[Signature]:
        return {
            signature
            for case in self.cases
            for plan in case.plans
            for signature in case.signatures(plan) & self.ops
            if timed.get(signature, 0) >= min(samples, ranks * case.rounds(samples))
        }

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to measure."""
        plans = any(case.plans for case in self.cases)
        return not (plans or self.collectives or self.contention or self.loads)

    def payload(self, samples: int, seconds: float | None) -> dict[str, Any]:
        """Return the payload of ``measure.probes.rank_job``.

        It contains cases without plans, so that case numbers stay valid.
        """
        return {
            "cases": [
                {
                    "model": asdict(case.model),
                    "workload": asdict(case.workload),
                    "cluster": asdict(case.cluster),
                    "plans": [asdict(plan) for plan in case.plans],
                    "rounds": case.rounds(samples) if self._has_work(number) else 0,
                }
                for number, case in enumerate(self.cases)
            ],
            "collectives": [list(collective) for collective in self.collectives],
            "contention": self._contention_payload(),
            "loads": list(self.loads),
            "seconds": seconds,
        }

    def _has_work(self, number: int) -> bool:
        """Return whether that case has something to measure; the first case includes the
        collectives."""
        contention = self.contention is not None and self.contention.case == number
        return bool(self.cases[number].plans or contention or (number == 0 and self.collectives))

    def _contention_payload(self) -> dict[str, Any] | None:
        if self.contention is None:
            return None
        found = self.contention
        return {
            "case": found.case,
            "plan": asdict(found.plan),
            "messages": [list(message) for message in found.messages],
        }


@lru_cache(maxsize=1024)
def signatures(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, plan: SlicePlan
) -> frozenset[Signature]:
    """Return every signature of a plan's schedule."""
    schedule = build_schedule(model, workload, cluster, plan)
    return frozenset(
        template.signature
        for part in schedule.parts
        for segment in part.segments
        for template in segment.templates
    )


def lacks_waits(profile: Profile, ranks: int) -> bool:
    """Return whether ranks sleep while they wait for each other, as on CPUs, and the profile lacks
    the length or the cost of these waits."""
    sleep = ranks > 1 and profile.machine.backend == "gloo"
    return sleep and (profile.skew is None or profile.resume is None)


def _first_and_sliced(plans: tuple[SlicePlan, ...]) -> tuple[SlicePlan, ...]:
    """Return the plans that show waits: the first, and one that computes alongside collectives."""
    sliced = (plan for plan in plans[1:] if plan.row_slices > 1)
    return (*plans[:1], *islice(sliced, 1))


def compute_only(found: frozenset[Signature]) -> frozenset[Signature]:
    """Return the signatures of compute ops."""
    return frozenset(s for s in found if not isinstance(s, Collective))


def collective_key(collective: Collective) -> tuple[str, int, int, int, int]:
    """Return the key of a collective in profiles, which ignore the dtype."""
    op, size, nodes, per_node, ctas, *_ = collective
    return op, nodes, per_node, ctas, size


def timed_ops(profile: Profile) -> dict[Signature, int]:
    """Return the number of timings of each compute signature that has a row in the profile."""
    sections = profile.gemm, profile.attention, profile.pointwise
    return {row.signature: row.samples for section in sections if section for row in section.rows}


def timed_collectives(profile: Profile) -> dict[tuple[str, int, int, int, int], int]:
    """Return the number of timings of each collective in the profile, by its key."""
    rows = profile.collectives.rows if profile.collectives else ()
    return {row.key: row.samples for row in rows}
