"""What a profile does not know about a job widens its interval upwards, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.calibration import CalibratedPart, Calibration
from simulator.case import Case
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import MEGATRON
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.provenance import Provenance
from simulator.specs import ClusterSpec, Workload
from simulator.unknowns import highest, unknowns_of, wider


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
    more = wider(case, MEGATRON)
    assert {one.unknown.name for one in more} <= set(names)
    assert all(one.more_ns > 0 for one in more)


def test_a_sentence_names_the_implementation() -> None:
    assert unknowns_of(case_of())[0].why.startswith("megatron-2022 runs kernels of 2022")


def test_an_unknown_adds_what_the_iteration_takes_with_it() -> None:
    case = case_of(sequences=16)
    kernels = wider(case, MEGATRON)[0]
    usual_ns = predict(case, MEGATRON).makespan_ns
    assert 0.08 < kernels.more_ns / usual_ns < 0.15  # compute alone, 15 % longer
    slow = case.drawn(kernels.unknown.draw)
    assert predict(slow, MEGATRON).makespan_ns == usual_ns + kernels.more_ns


def test_a_host_matters_where_layers_are_short() -> None:
    def share(sequences: int) -> float:
        case = case_of(sequences=sequences)
        more = {one.unknown.name: one.more_ns for one in wider(case, MEGATRON)}
        return more.get("host", 0) / predict(case, MEGATRON).makespan_ns

    assert share(1) > 0.4
    assert share(32) < 0.05


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


def test_the_upper_end_goes_up_and_no_further() -> None:
    assert highest(100.0, 110.0, []) == pytest.approx(110.0)
    assert highest(100.0, 103.0, [4.0]) == pytest.approx(105.0)
