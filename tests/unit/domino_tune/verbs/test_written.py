"""Plan files of an answer: what its verdict recommends, and each plan that it compares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.requests.outputs import PlanOutputs
from domino_tune.results.simulate import SimulateResult
from domino_tune.verbs.plan import export_plan, export_text
from domino_tune.verbs.simulate import plan_file_of, recommended, simulate, strategies_of
from simulator.errors import InputError


@pytest.fixture(scope="module")
def result() -> SimulateResult:
    return simulate(
        SimulateRequest(
            model="llama3-8b", overrides=("num_hidden_layers=4",), profile="a100-sxm", tp=4, pp=2,
            seq_length=4096, micro_batch_size=2, grad_accumulation=4, sequence_parallel=True,
        )
    )  # fmt: skip


def _leading(result: SimulateResult, strategy: str) -> SimulateResult:
    """Return the answer as if a strategy were the fastest in all draws."""
    assert result.verdict is not None
    contestants = tuple(
        replace(one, chance=float(one.strategy == strategy), fits=True)
        for one in result.verdict.contestants
    )
    return replace(result, verdict=replace(result.verdict, contestants=contestants))


def test_it_is_the_one_that_the_verdict_recommends(result: SimulateResult) -> None:
    assert recommended(_leading(result, "userbuffers")) == "userbuffers"
    assert recommended(_leading(result, "userbuffers"), target="deepspeed") == "domino"
    assert recommended(replace(result, verdict=None)) == "domino"


def test_each_compared_plan_can_be_had(result: SimulateResult) -> None:
    """With the numbers of its row in the same answer."""
    assert result.verdict is not None
    assert strategies_of(result)[0] == "domino"
    assert set(strategies_of(result)) == {one.strategy for one in result.verdict.contestants}
    for one in result.verdict.contestants:
        file = plan_file_of(result, one.strategy)
        assert file.plan == one.plan
        assert file.predicted.iteration_ms == pytest.approx(one.iteration_ms)
        assert file.cluster == result.cluster
    assert plan_file_of(result, "domino") == result.plan_file


def test_frameworks_that_have_a_rival_get_its_flags(result: SimulateResult) -> None:
    """Of a pipeline, too: nobody types the overlap flags by hand."""
    file = plan_file_of(result, "userbuffers")
    assert "--tp-comm-overlap" in export_text(export_plan(file, "megatron"))
    assert "qkv_fprop" in export_text(export_plan(file, "te-userbuffers"))
    assert "async_tensor_parallel" in export_text(
        export_plan(plan_file_of(result, "async-tp"), "torchtitan")
    )


def test_a_plan_that_is_not_compared_is_refused(result: SimulateResult) -> None:
    alone = replace(result, verdict=None)
    with pytest.raises(InputError, match=r"'fused' is compared here.*there are those of domino\."):
        plan_file_of(alone, "fused")
    with pytest.raises(InputError, match="--out-of says whose plan --out writes"):
        PlanOutputs(out_of="userbuffers")
