"""Resume: compute after a wait takes longer, by the cost of a wait of that length."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.case import Case
from simulator.cost import CostModel
from simulator.cpu_hosts import Resumed, ResumeFit, ResumeRow
from simulator.errors import ProfileError
from simulator.lookup import Provenance
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import predict, simulate
from simulator.profile import ResumeSection
from simulator.schedule import COMPUTE, Timeline
from tests.unit.simulator.cases import with_cost
from tests.unit.simulator.test_skew import small_case

ROWS = (ResumeRow(100.0, 10.0), ResumeRow(200.0, 16.0))


def cold(case: Case, *rows: ResumeRow, recovery_us: float = 1e-3) -> Case:
    fit = ResumeFit(rows=rows, recovery_us=recovery_us, error=0.1, samples=1)
    section = ResumeSection(fit=fit, provenance=Provenance(kind="measured", source="a test"))
    return with_cost(case, CostModel(replace(case.cost.profile, resume=section), cuda_graph=True))


def compute_ns(timeline: Timeline) -> list[int]:
    """Durations of the compute ops, in order."""
    return [end - start for _, start, end in timeline.lane(COMPUTE)]


def test_a_wait_between_rows_costs_what_the_line_says() -> None:
    fit = ResumeFit(rows=ROWS, recovery_us=50.0, error=0.1, samples=1)
    idle_ns = (0, 50_000, 100_000, 150_000, 200_000, 10**6)
    assert [fit.owed_ns(idle, 0) for idle in idle_ns] == [0, 5000, 10000, 13000, 16000, 16000]
    assert fit.owed_ns(100_000, 12_345) == 12_345  # more is owed already


def test_ops_pay_by_their_length_until_nothing_is_owed() -> None:
    lane = Resumed(ResumeFit(rows=ROWS, recovery_us=50.0, error=0.1, samples=1))
    longer = []
    now_ns = 100_000
    for _ in range(4):
        longer.append(lane.paid_ns(now_ns, 50_000))
        lane.busy_until_ns = now_ns = now_ns + 50_000 + longer[-1]
    assert longer == [5000, 2500, 1250, 625]


def test_nothing_is_lost_where_nothing_waits() -> None:
    case = small_case()
    assert predict(cold(case, *ROWS), NO_COMM) == predict(case, NO_COMM)


def test_waits_that_cost_nothing_change_nothing() -> None:
    case = small_case()
    for plan in (MEGATRON, SlicePlan(row_slices=2)):
        assert predict(cold(case, ResumeRow(1.0, 0.0)), plan) == predict(case, plan)


def test_each_exposed_collective_costs_the_compute_behind_it() -> None:
    """Waits of any length cost 5 us, which the first op pays at once."""
    case = small_case()
    usual, slow = (simulate(one, MEGATRON) for one in (case, cold(case, ResumeRow(1e-3, 5.0))))
    spans = [(start, end) for _, start, end in usual.lane(COMPUTE)]
    waits = sum(start > end for (_, end), (start, _) in pairwise(spans))
    assert waits
    longer = [a - b for a, b in zip(compute_ns(slow), compute_ns(usual), strict=True)]
    assert sum(longer) == pytest.approx(5000 * waits, rel=0.01)
    assert sum(one > 4900 for one in longer) == waits


def test_rows_are_sorted_and_of_waits_that_were() -> None:
    for rows in ((ResumeRow(0.0, 1.0),), ROWS[::-1], (ROWS[0], ROWS[0]), (ResumeRow(1.0, -1.0),)):
        with pytest.raises(ProfileError, match="resume fit"):
            ResumeFit(rows=rows, recovery_us=1.0, error=0.1, samples=1)
    with pytest.raises(ProfileError, match="recovery_us"):
        ResumeFit(rows=ROWS, recovery_us=0.0, error=0.1, samples=1)
