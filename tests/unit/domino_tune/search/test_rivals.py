"""The rivals' plans: never worse than their frameworks' own, and hardly to be bettered by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.search.simulated import SHORT_LAYERS, has_rivals, rival_plans, tuned_rival
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import resolve
from simulator.case import Case
from simulator.errors import InfeasiblePlanError
from simulator.overlap import CHOICES, RIVALS, gemms_of
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.profile import Profile

TOLD: Final = 0.005
"""Methods are chosen one after the other; by so much a later choice may turn an earlier one."""
CASES: Final[tuple[dict[str, Any], ...]] = (
    {"model": "gpt3-6.7b", "tp": 8},
    {"model": "gpt3-6.7b", "tp": 4, "dp": 2, "micro_batch_size": 4, "grad_accumulation": 2},
    {"model": "llama3-8b", "tp": 2, "pp": 2, "seq_length": 4096, "grad_accumulation": 4},
    {"model": "gpt3-1.3b", "tp": 8, "profile": "a100-sxm", "cuda_graph": True},
)


@cache
def profile(name: str) -> Profile:
    return load_profile(name)


def case_of(layers: int = SHORT_LAYERS, **given: Any) -> Case:
    asked: dict[str, Any] = {
        "profile": "h100-dgx", "seq_length": 2048, "micro_batch_size": 2,
        "overrides": (f"num_hidden_layers={layers}",),
    }  # fmt: skip
    return resolve(SimulateRequest(**{**asked, **given}))


def usual(strategy: str, *told: str) -> SlicePlan:
    return replace(
        MEGATRON, strategy=strategy, sequence_parallel=True, tp_comm_overlap=told  # type: ignore[arg-type]
    )  # fmt: skip


def changed(plan: SlicePlan) -> Iterator[SlicePlan]:
    """The plans that differ in the method of a single GEMM."""
    told = dict(text.split("=") for text in plan.tp_comm_overlap)
    for kind, how in CHOICES[plan.strategy]:
        for gemm in gemms_of(kind):
            texts = tuple(f"{name}={text}" for name, text in {**told, gemm: how.text}.items())
            yield replace(plan, tp_comm_overlap=texts)


def fastest_ns(case: Case, plans: Iterator[SlicePlan]) -> int:
    """The least time of the plans that the case can run."""
    times = []
    for plan in plans:
        try:
            times.append(predict(case, plan).makespan_ns)
        except InfeasiblePlanError:
            continue
    return min(times)


@pytest.mark.parametrize("strategy", RIVALS)
@pytest.mark.parametrize("given", CASES, ids=str)
def test_a_tuned_rival_is_not_slower_than_its_frameworks_methods(
    given: dict[str, Any], strategy: str
) -> None:
    for layers in (SHORT_LAYERS, 2 * SHORT_LAYERS):
        case = case_of(layers, **given)
        tuned = tuned_rival(case, strategy)
        assert (tuned.strategy, tuned.sequence_parallel) == (strategy, True)
        best_ns, usual_ns = (predict(case, one).makespan_ns for one in (tuned, usual(strategy)))
        assert best_ns <= usual_ns


@pytest.mark.parametrize("strategy", RIVALS)
@pytest.mark.parametrize(
    "given",
    [
        {"model": "gpt3-6.7b", "tp": 8},
        {"model": "gpt3-13b", "tp": 8, "micro_batch_size": 4},
        {"model": "llama3-8b", "tp": 4},
    ],
    ids=str,
)
def test_no_single_gemm_is_better_off_with_another_method(
    given: dict[str, Any], strategy: str
) -> None:
    """Where the case is the short stack on which methods are compared."""
    case = case_of(**given)
    tuned = tuned_rival(case, strategy)
    tuned_ns = predict(case, tuned).makespan_ns
    assert tuned_ns <= fastest_ns(case, changed(usual(strategy)))
    assert tuned_ns <= fastest_ns(case, changed(tuned)) * (1 + TOLD)


def test_methods_are_told_where_they_help() -> None:
    """At 8 ranks a small model's GEMMs are too short to be cut."""
    tuned = tuned_rival(case_of(model="gpt3-1.3b", tp=8, cuda_graph=True), "userbuffers")
    assert "proj_fprop=none" in tuned.tp_comm_overlap
    told = [text.partition("=")[0] for text in tuned.tp_comm_overlap]
    assert len(told) == len(set(told))


def test_every_rival_has_a_plan() -> None:
    plans = rival_plans(case_of(model="gpt3-6.7b", tp=8))
    assert {name: plan.strategy for name, plan in plans.items()} == {name: name for name in RIVALS}


def test_a_rival_that_cannot_cut_the_tokens_is_left_out() -> None:
    """Twelve tokens are no four chunks for four ranks; the others' chunks are one a rank."""
    case = case_of(model="gpt3-6.7b", tp=4, seq_length=12, micro_batch_size=1)
    assert set(rival_plans(case)) == {"async-tp", "fused"}
    with pytest.raises(InfeasiblePlanError, match="4 chunks for 4 ranks"):
        tuned_rival(case, "userbuffers")


def on_cpu() -> Profile:
    known = profile("h100-dgx")
    return replace(known, machine=replace(known.machine, backend="gloo"))


def test_there_are_no_rivals_where_they_cannot_run() -> None:
    here = case_of(model="gpt3-6.7b", tp=8)
    assert has_rivals(here)
    nowhere = {
        "on a CPU": replace(here, profile=on_cpu()),
        "with one rank": case_of(model="gpt3-6.7b", tp=1),
        "between nodes": case_of(model="gpt3-6.7b", tp=16),
        "tp split over nodes": case_of(model="gpt3-6.7b", tp=8, nodes=2),
        "without sequence parallelism": case_of(model="gpt3-6.7b", tp=8, sequence_parallel=False),
        "sequences that tp does not divide": case_of(model="gpt3-6.7b", tp=8, seq_length=2044),
    }
    for where, case in nowhere.items():
        assert not has_rivals(case), where
        assert rival_plans(case) == {}, where
