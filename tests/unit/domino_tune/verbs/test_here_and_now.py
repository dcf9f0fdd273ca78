"""A single rank that emulates collectives: what ranks and links do to each other is not there."""

from __future__ import annotations

from dataclasses import replace

from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.verbs.validate import as_emulated
from simulator.case import Case
from simulator.cpu_hosts import IdleLane, SkewFit, SkewRow
from simulator.lookup import Provenance
from simulator.profile import SkewSection
from tests.unit.simulator.test_skew import small_case

SKEW = SkewFit(slowest_factor=1.02, step_excess=0.01, rows=(SkewRow(9.0, 1.0),), error=0.01)
LAW = IdleLane(burst_bytes=9000, burst_us=90.0, wake_us=5.0, error=0.1, samples=1)


def case_of_ranks() -> Case:
    case = small_case()
    assert case.profile.collectives is not None
    section = SkewSection(fit=SKEW, provenance=Provenance(kind="measured", source="a test"))
    collectives = replace(case.profile.collectives, idle_lane=LAW)
    return replace(case, profile=replace(case.profile, skew=section, collectives=collectives))


def test_one_rank_waits_for_nobody_and_its_link_never_idles() -> None:
    ranks = case_of_ranks()
    for backend in ("gloo", "nccl"):
        alone = as_emulated(ranks, LaunchSpec(tp=2, single_rank=True, backend=backend)).profile
        assert alone.skew is not None
        assert alone.skew.fit == replace(SKEW, slowest_factor=1.0, rows=(), error=0.0)
        assert alone.collectives is not None
        assert alone.collectives.idle_lane is None
        assert alone.collectives.rows == ranks.profile.collectives.rows  # type: ignore[union-attr]
        assert (alone.contention is None) == (backend == "gloo")
