"""Levels: the time on the critical path by the provenance of its look-ups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.confidence import (
    LOW_SHARE,
    MEDIUM_SHARE,
    Confidence,
    confidence_of,
    unknowns_of,
)
from simulator.contention import Contention, Slowdown
from simulator.cost import CostModel
from simulator.cpu_hosts import CpuHosts, ResumeFit, ResumeRow, SkewFit
from simulator.draws import CalibratedPart, Calibration
from simulator.implementation import IMPLEMENTATIONS
from simulator.launch import Launch
from simulator.lookup import Estimate, Provenance, ProvenanceKind, Source
from simulator.ops import Collective, Gemm, Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import simulate
from simulator.presets import MODELS
from simulator.profile import Profile, ResumeSection, SkewSection
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment, Timeline
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile

GEMM, OTHER, REDUCE = Gemm(1, 1, 1), Gemm(2, 2, 2), Collective("all_reduce", 8, 1, 8)
SLICED = SlicePlan(row_slices=2)


class StatedCost(CostModel):
    """A cost model whose estimates are given."""

    def __init__(self, estimates: dict[Signature, Estimate]) -> None:
        super().__init__(bundled_profile(), cuda_graph=True)
        self.stated = estimates
        self.contention = Contention(None)

    def estimate(self, signature: Signature) -> Estimate:
        return self.stated[signature]


def timeline_of(*spans: tuple[str, Signature, int, int]) -> Timeline:
    """Ops one after another: role, signature, start, end."""
    templates = tuple(
        OpTemplate(role, -1, signature, TP if signature is REDUCE else COMPUTE, 0, (), ())
        for role, signature, _, _ in spans
    )
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),))
    return Timeline(
        schedule=schedule,
        start_ns=tuple(start for _, _, start, _ in spans),
        end_ns=tuple(end for _, _, _, end in spans),
    )


def costs(source: Source = "fitted", other_us: float = 0.2) -> StatedCost:
    return StatedCost(
        {
            GEMM: Estimate(0.6, "measured", 0.1),
            OTHER: Estimate(other_us, source, 0.5),
            REDUCE: Estimate(0.2, "interpolated", 0.2),
        }
    )


SERIAL = timeline_of(("a", GEMM, 0, 600), ("b", OTHER, 600, 800), ("ar", REDUCE, 800, 1000))


def test_time_counts_by_the_source_of_its_look_up() -> None:
    found = confidence_of(SERIAL, costs())
    assert found.shares == pytest.approx({"measured": 0.6, "fitted": 0.2, "interpolated": 0.2})
    assert (found.level, found.warnings) == ("high", ())


def test_only_the_critical_path_counts() -> None:
    hidden = timeline_of(("a", GEMM, 0, 600), ("ar", REDUCE, 600, 800), ("b", OTHER, 600, 1000))
    assert "interpolated" not in confidence_of(hidden, costs(other_us=0.4)).shares


@pytest.mark.parametrize(("length", "level"), [(40, "high"), (150, "medium"), (400, "low")])
@pytest.mark.parametrize("source", ["extrapolated", "assumed"])
def test_time_that_was_not_looked_up_lowers_the_level(
    length: int, level: str, source: Source
) -> None:
    assert (MEDIUM_SHARE, LOW_SHARE) == (0.05, 0.20)
    timeline = timeline_of(("a", GEMM, 0, 1000 - length), ("b", OTHER, 1000 - length, 1000))
    cost = costs(source, other_us=length / 1000)
    cost.stated[GEMM] = Estimate((1000 - length) / 1000, "measured", 0.1)
    found = confidence_of(timeline, cost)
    assert found.level == level
    assert bool(found.warnings) == (source == "extrapolated")


@pytest.mark.parametrize(("wait", "level"), [(20, "high"), (150, "medium"), (400, "low")])
def test_waits_for_a_host_of_assumed_costs_lower_the_level(wait: int, level: str) -> None:
    cost = StatedCost({GEMM: Estimate((1000 - wait) / 1000, "measured", 0.0)})
    cost.launch = Launch(mode="async", source="assumed", error=0.5)
    found = confidence_of(timeline_of(("a", GEMM, wait, 1000)), cost)
    assert found.level == level
    assert found.shares == pytest.approx({"measured": 1 - wait / 1000, "assumed": wait / 1000})


@pytest.mark.parametrize(("stretch", "level"), [(40, "high"), (150, "medium"), (400, "low")])
def test_what_assumed_contention_adds_lowers_the_level(stretch: int, level: str) -> None:
    cost = StatedCost({GEMM: Estimate((1000 - stretch) / 1000, "measured", 0.0)})
    cost.contention = Contention(bundled_profile().section("contention").fit, strength=0.0)
    found = confidence_of(timeline_of(("a", GEMM, 0, 1000)), cost)
    assert found.level == level
    assert found.shares == pytest.approx(
        {"measured": 1 - stretch / 1000, "assumed": stretch / 1000}
    )


def with_kinds(profile: Profile, **kinds: ProvenanceKind) -> Profile:
    """The profile with the sections' provenance of these kinds."""
    sections: dict[str, Any] = {
        name: replace(
            profile.section(name),
            provenance=replace(profile.section(name).provenance, kind=kind, error=0.2),
        )
        for name, kind in kinds.items()
    }
    return replace(profile, **sections)


def of_profile(profile: Profile, plan: SlicePlan = MEGATRON, **cluster: Any) -> Confidence:
    case = Case(
        model=MODELS["gpt3-6.7b"],
        workload=Workload(seq_length=2048, micro_batch_size=8),
        cluster=ClusterSpec(tp=8, **cluster),
        profile=profile,
    )
    return confidence_of(simulate(case, plan), case.cost)


SECTION_SHARES = {"gemm": 0.25, "attention": 0.02, "pointwise": 0.02, "collectives": 0.1}


@pytest.mark.parametrize("section", SECTION_SHARES)
def test_look_ups_of_an_assumed_section_are_assumed(section: str) -> None:
    before = of_profile(with_kinds(bundled_profile(), launch="measured"), cuda_graph=True)
    assumed: dict[str, ProvenanceKind] = {section: "assumed"}
    after = of_profile(with_kinds(bundled_profile(), **assumed), cuda_graph=True)
    more = after.shares["assumed"] - before.shares.get("assumed", 0.0)
    assert more > SECTION_SHARES[section]


@pytest.mark.parametrize("section", ["contention", "collectives", "launch"])
def test_a_fitted_law_in_an_assumed_section_is_assumed(section: str) -> None:
    """The H200's laws are fitted; a section that says it is assumed outweighs them."""
    profile = load_profile("h200-sxm")
    given = {name: profile.section(name).provenance.kind for name in ("contention", "launch")}
    assert given == {"contention": "fitted", "launch": "measured"}
    plan = MEGATRON if section == "collectives" else SlicePlan(row_slices=4)
    known: dict[str, ProvenanceKind] = {section: "fitted"}
    assumed: dict[str, ProvenanceKind] = {section: "assumed"}
    before = of_profile(with_kinds(profile, **known), plan)
    after = of_profile(with_kinds(profile, **assumed), plan)
    assert after.shares["assumed"] > before.shares["assumed"]


def test_launches_inside_of_ops_are_as_sure_as_launches() -> None:
    """On a machine whose host computes, an op's launch counts by the launches' own provenance."""
    cost = StatedCost({GEMM: Estimate(0.9, "measured", 0.0)})
    cost.launch = Launch(mode="inline", cost_ns={"gemm": 100}, source="assumed", error=0.5)
    found = confidence_of(timeline_of(("a", GEMM, 0, 1000)), cost)
    assert found.shares == pytest.approx({"measured": 0.9, "assumed": 0.1})
    assert found.level == "medium"


def test_what_compute_pays_for_a_wait_is_as_sure_as_the_law_of_waits() -> None:
    """A wait of 100 us costs 10 us; an op of 50 us after it pays half, one more a quarter."""
    cost = StatedCost({GEMM: Estimate(50.0, "measured", 0.0)})
    law = ResumeFit(rows=(ResumeRow(100.0, 10.0),), recovery_us=50.0, error=0.4, samples=1)
    section = ResumeSection(fit=law, provenance=Provenance(kind="fitted", source="made up"))
    cost.cpu, cost.profile = CpuHosts(resume=law), replace(bundled_profile(), resume=section)
    spans = [(0, 50_000), (150_000, 205_000), (205_000, 257_500)]
    found = confidence_of(timeline_of(*(("a", GEMM, *span) for span in spans)), cost)
    assert found.shares["fitted"] == pytest.approx(7.5 / 257.5)


def test_a_wait_for_other_ranks_is_not_contention() -> None:
    cost = StatedCost({GEMM: Estimate(0.5, "measured", 0.0), REDUCE: Estimate(0.2, "fitted", 0.0)})
    known = bundled_profile()
    fit = known.section("contention").fit
    few = replace(
        fit, collective=Slowdown(factor=1.5, kind="fitted", error=0.0),
        same_links=Slowdown(factor=1.0, error=0.0), other_links=Slowdown(factor=1.0, error=0.0),
    )  # fmt: skip
    skew = SkewFit(slowest_factor=1.0, error=0.0)
    provenance = Provenance(kind="measured", source="made up")
    cost.profile = replace(known, skew=SkewSection(fit=skew, provenance=provenance))
    cost.cpu, cost.contention = CpuHosts(skew=skew), Contention(few)
    found = confidence_of(timeline_of(("a", GEMM, 0, 500), ("ar", REDUCE, 500, 1000)), cost)
    # 500 ns of 200: at most 100 by contention, the other 200 waited.
    assert found.shares == pytest.approx({"measured": 0.7, "fitted": 0.3})


# Test unknowns ------------------------------------------------------------------------------------
# What a profile does not know about a job.


def case_of(
    profile: str | Profile = "a100-sxm", implementation: str = "megatron-2022",
    cluster: ClusterSpec | None = None, sequences: int = 4,
) -> Case:  # fmt: skip
    known = load_profile(profile) if isinstance(profile, str) else profile
    workload = Workload(
        seq_length=1024, micro_batch_size=sequences, implementation=IMPLEMENTATIONS[implementation]
    )
    return Case(
        model=replace(MODELS["gpt3-1.3b"], num_hidden_layers=4), workload=workload,
        cluster=cluster or ClusterSpec(tp=4), profile=known,
    )  # fmt: skip


TWO_NODES = ClusterSpec(tp=8, dp=2)


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (case_of(), ["kernels", "host"]),
        (case_of(cluster=ClusterSpec(tp=4, cuda_graph=True)), ["kernels"]),
        (case_of(cluster=TWO_NODES), ["kernels", "host", "network"]),
        (case_of(implementation="megatron-te"), []),
        (case_of(implementation="torch", cluster=TWO_NODES), ["network"]),
        (case_of("b200-sxm", "megatron-te", TWO_NODES), ["network"]),
        (case_of("b200-sxm", "megatron-te"), []),
        *((case_of(name, "megatron-te", TWO_NODES), []) for name in ("h100-dgx", "h200-sxm")),
        (case_of("h100-dgx", "megatron-2022"), ["kernels", "host"]),
    ],
    ids=lambda value: f"{value.profile.name}" if isinstance(value, Case) else "-".join(value),
)
def test_what_is_not_known(case: Case, names: list[str]) -> None:
    assert [one.name for one in unknowns_of(case)] == names


def test_a_sentence_names_the_implementation() -> None:
    assert unknowns_of(case_of())[0].why.startswith("megatron-2022 runs kernels of 2022")


def test_measured_iterations_tell_what_was_unknown() -> None:
    profile = load_profile("a100-sxm")
    parts = tuple(
        CalibratedPart(part=part, factor=1.1, error=0.02)
        for part in ("attention", "gemm", "launch", "pointwise")
    )
    told = Calibration(
        parts=parts, constant_ms=0.0, runs=3, base="a100-sxm",
        provenance=Provenance(kind="fitted", source="runs of a test"),
    )  # fmt: skip
    names = [one.name for one in unknowns_of(case_of(replace(profile, calibration=told)))]
    assert names == []
    calibrated = case_of(replace(profile, calibration=told), cluster=TWO_NODES)
    assert [one.name for one in unknowns_of(calibrated)] == ["network"]
