"""The loss of megatron-te, which is told where nobody said which it is and the other costs more."""

from __future__ import annotations

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.results.simulate import SimulateResult
from domino_tune.verbs.simulate import LEAST_RISE, simulate
from tests.support.plans import plan_file

ASKED = {
    "model": "llama3-8b", "profile": "h100-dgx", "tp": "1", "pp": "4", "seq_length": "4096",
    "micro_batch_size": "1", "grad_accumulation": "16", "strategy": "megatron",
}  # fmt: skip
UNFUSED = "cross_entropy_loss_fusion=false"


def answer(**changes: str) -> SimulateResult:
    return simulate(request_from_text(SimulateRequest, {**ASKED, **changes}))


def told(result: SimulateResult) -> str:
    return " ".join(text for text in result.warnings if "loss is assumed" in text)


def test_the_other_loss_is_told_with_its_time() -> None:
    fused = answer()
    other = answer(implementation_set=UNFUSED)
    rise = other.iteration_ms / fused.iteration_ms - 1
    assert rise > 0.1  # of a stage with 8 of 32 layers and a vocabulary of 128,256
    assert f"takes {other.iteration_ms:,.1f} ms, {rise:+.0%}." in told(fused)
    assert UNFUSED in told(fused)


@pytest.mark.parametrize(
    "changes",
    [
        {"implementation_set": UNFUSED},
        {"implementation_set": "cross_entropy_loss_fusion=true"},
        {"implementation": "megatron-2022"},
        {"implementation": "torch"},
    ],
)
def test_what_was_said_or_is_so_by_name_is_not_told(changes: dict[str, str]) -> None:
    assert not told(answer(**changes))


def test_a_head_that_matters_little_is_not_told() -> None:
    small = {"model": "llama2-7b", "tp": "8", "pp": "1"}
    fused, other = answer(**small), answer(**small, implementation_set=UNFUSED)
    assert 0 < other.iteration_ms / fused.iteration_ms - 1 < LEAST_RISE
    assert not told(fused)


def test_a_plan_file_says_which_it_is() -> None:
    made = simulate(request_from_text(SimulateRequest, {}), plan_file=plan_file())
    assert not told(made)


def test_a_loss_that_is_told_leaves_the_baseline_without_sequence_parallelism() -> None:
    result = answer(tp="2")
    assert told(result)
    assert result.baseline_no_sp_ms is not None
