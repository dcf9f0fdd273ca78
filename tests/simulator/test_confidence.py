"""Intervals and levels: errors weighted by time on the critical path."""

from __future__ import annotations

import math

import pytest

from simulator.case import Case
from simulator.confidence import LOW_SHARE, MEDIUM_SHARE, confidence_of
from simulator.contention import Contention
from simulator.cost import CostModel, Launch
from simulator.estimate import Estimate, Source
from simulator.ops import Collective, Gemm, Signature
from simulator.plan import MEGATRON
from simulator.predict import simulate
from simulator.presets import MODELS
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.skew import SkewFit
from simulator.specs import ClusterSpec, Workload
from simulator.timeline import Timeline
from tests.simulator.cases import bundled_profile, cost_model, with_cost

GEMM, OTHER, REDUCE = Gemm(1, 1, 1), Gemm(2, 2, 2), Collective("all_reduce", 8, 1, 8)


class StatedCost(CostModel):
    """A cost model whose estimates are given."""

    def __init__(self, estimates: dict[Signature, Estimate]) -> None:
        self.estimates = estimates
        self.contention = Contention(None)
        self.skew: SkewFit | None = None
        self.launch = Launch(mode="none")

    def estimate(self, signature: Signature) -> Estimate:
        return self.estimates[signature]


def timeline_of(*spans: tuple[str, Signature, int, int]) -> Timeline:
    """Ops one after another: role, signature, start, end."""
    templates = tuple(
        OpTemplate(role, -1, signature, TP if signature is REDUCE else COMPUTE, 0, (), ())
        for role, signature, _, _ in spans
    )
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),), value_bytes={})
    return Timeline(
        schedule=schedule,
        start_ns=tuple(start for _, _, start, _ in spans),
        end_ns=tuple(end for _, _, _, end in spans),
    )


def costs(source: Source = "fitted") -> StatedCost:
    return StatedCost(
        {
            GEMM: Estimate(0.6, "measured", 0.1),
            OTHER: Estimate(0.2, source, 0.5),
            REDUCE: Estimate(0.2, "interpolated", 0.2),
        }
    )


SERIAL = timeline_of(("a", GEMM, 0, 600), ("b", OTHER, 600, 800), ("ar", REDUCE, 800, 1000))


def test_one_sections_errors_add_and_sections_are_independent() -> None:
    found = confidence_of(SERIAL, costs())
    half = math.hypot(600 * 0.1 + 200 * 0.5, 200 * 0.2)
    assert (found.low_ns, found.high_ns) == (round(1000 - half), round(1000 + half))
    assert found.shares == pytest.approx({"measured": 0.6, "fitted": 0.2, "interpolated": 0.2})
    assert (found.level, found.warnings) == ("high", ())


def test_only_the_critical_path_counts() -> None:
    hidden = timeline_of(("a", GEMM, 0, 600), ("ar", REDUCE, 600, 800), ("b", OTHER, 600, 1000))
    assert "interpolated" not in confidence_of(hidden, costs()).shares


@pytest.mark.parametrize(("length", "level"), [(40, "high"), (150, "medium"), (400, "low")])
@pytest.mark.parametrize("source", ["extrapolated", "assumed"])
def test_time_that_was_not_looked_up_lowers_the_level(
    length: int, level: str, source: Source
) -> None:
    assert (MEDIUM_SHARE, LOW_SHARE) == (0.05, 0.20)
    timeline = timeline_of(("a", GEMM, 0, 1000 - length), ("b", OTHER, 1000 - length, 1000))
    found = confidence_of(timeline, costs(source))
    assert found.level == level
    assert bool(found.warnings) == (source == "extrapolated")


def test_skew_makes_compute_less_sure_and_nothing_else() -> None:
    cost = costs()
    cost.skew = SkewFit(slowest_factor=1.0, error=0.3)
    found = confidence_of(SERIAL, cost)
    half = math.hypot(600 * 0.1 + 200 * 0.5, 200 * 0.2, 800 * 0.3)
    assert (found.low_ns, found.high_ns) == (round(1000 - half), round(1000 + half))


def test_an_interval_never_reaches_below_zero() -> None:
    cost = StatedCost({GEMM: Estimate(1.0, "assumed", 3.0)})
    found = confidence_of(timeline_of(("a", GEMM, 0, 1000)), cost)
    assert (found.low_ns, found.high_ns) == (0, 4000)


def test_contention_widens_a_real_interval() -> None:
    widths = []
    for contention in (0.0, 2.0):
        case = with_cost(
            Case(
                model=MODELS["gpt3-6.7b"],
                workload=Workload(seq_length=512, micro_batch_size=8),
                cluster=ClusterSpec(tp=8),
                profile=bundled_profile(),
            ),
            cost_model(contention, True),
        )
        timeline = simulate(case, MEGATRON)
        found = confidence_of(timeline, case.cost)
        assert found.low_ns < timeline.makespan_ns < found.high_ns
        assert sum(found.shares.values()) == pytest.approx(1.0)
        widths.append(found.high_ns - found.low_ns)
    assert widths[1] > widths[0]
