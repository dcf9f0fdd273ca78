"""Skew: the step is the slowest rank's, and collectives wait for the last to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.case import Case
from simulator.cost import CostModel
from simulator.cpu_hosts import SkewFit, SkewRow
from simulator.errors import ProfileError
from simulator.lookup import Provenance
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import predict, simulate
from simulator.presets import MODELS
from simulator.profile import SkewSection, to_plain
from simulator.schedule import COMPUTE
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile, cost_model, with_cost

MEASURED = Provenance(kind="measured", source="a test")


def small_case() -> Case:
    return with_cost(
        Case(
            model=replace(MODELS["llama2-7b"], num_hidden_layers=5),
            workload=Workload(seq_length=1024, micro_batch_size=4),
            cluster=ClusterSpec(tp=8),
            profile=bundled_profile(),
        ),
        cost_model(1.0, True),
    )


def skewed(case: Case, **fields: object) -> Case:
    fit = SkewFit(**{"slowest_factor": 1.0, "error": 0.0, **fields})  # type: ignore[arg-type]
    section = SkewSection(fit=fit, provenance=MEASURED)
    profile = replace(case.cost.profile, skew=section)
    return with_cost(case, CostModel(profile, cuda_graph=True))


def test_a_stretch_between_rows_waits_as_long_as_the_line_says() -> None:
    fit = SkewFit(slowest_factor=1.0, rows=(SkewRow(100.0, 10.0), SkewRow(200.0, 16.0)), error=0.0)
    lengths = (0.0, 50.0, 100.0, 150.0, 200.0, 1000.0)
    assert [fit.wait_us(length) for length in lengths] == [0.0, 5.0, 10.0, 13.0, 16.0, 16.0]


def test_equally_fast_ranks_change_nothing() -> None:
    case = small_case()
    for plan in (MEGATRON, SlicePlan(row_slices=2)):
        assert predict(skewed(case), plan) == predict(case, plan)


def test_compute_takes_what_the_slowest_rank_takes() -> None:
    case = small_case()
    slow = skewed(case, slowest_factor=1.25)
    expected = 1.25 * predict(case, NO_COMM).makespan_ns
    assert predict(slow, NO_COMM).makespan_ns == pytest.approx(expected, rel=1e-4)


def test_each_exposed_collective_waits_for_the_last_rank() -> None:
    case = small_case()
    late = skewed(case, rows=(SkewRow(1e-3, 5.0),))
    timelines = [simulate(one, MEGATRON) for one in (case, late)]
    spans = [
        [end - start for op, start, end in zip(t.ops, t.start_ns, t.end_ns, strict=True)
         if op.lane != COMPUTE and op.role == "attn.proj.ar"]
        for t in timelines
    ]  # fmt: skip
    assert spans[0]
    longer = {after - before for before, after in zip(*spans, strict=True)}
    assert longer == {5000}


def test_waiting_for_a_late_rank_slows_no_compute() -> None:
    """Behind waits longer than all there is to compute, nothing computes while bytes move."""
    case, plan = small_case(), SlicePlan(row_slices=2, order="inter", wgrad="eager")
    late = skewed(case, rows=(SkewRow(1e-3, 1e6),))
    alone = with_cost(case, cost_model(0.0, True))
    assert predict(case, plan).compute_ns > predict(alone, plan).compute_ns
    assert predict(late, plan).compute_ns == predict(alone, plan).compute_ns


def test_the_shortcut_and_the_engine_of_record_agree_under_skew() -> None:
    case = skewed(small_case(), slowest_factor=1.1, rows=(SkewRow(40.0, 7.0), SkewRow(900.0, 31.0)))
    for plan in (
        MEGATRON,
        SlicePlan(row_slices=2),
        SlicePlan(row_slices=3, order="intra", wgrad="eager"),
    ):
        assert predict(case, plan).makespan_ns == simulate(case, plan).makespan_ns


def test_a_profile_without_skew_keeps_its_content_id() -> None:
    profile = small_case().cost.profile
    assert "skew" not in to_plain(profile)
    assert "skew" in to_plain(skewed(small_case()).cost.profile)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"samples": -1}, "samples must be a whole number ≥ 0"),
        ({"slowest_factor": 0.9}, "slowest_factor must be a finite number ≥ 1"),
        ({"rows": (SkewRow(2.0, 1.0), SkewRow(1.0, 1.0))}, "sorted by compute_us"),
        ({"rows": (SkewRow(0.0, 1.0),)}, "compute_us must be > 0"),
        ({"rows": (SkewRow(1.0, float("nan")),)}, "wait_us must be a finite number"),
    ],
)
def test_what_no_machine_can_have_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        skewed(small_case(), **fields)
