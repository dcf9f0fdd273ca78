"""What an iteration is made of, and the layers beside plain ones, on a lone CPU rank."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.lone_rank import lone_session
from domino_tune.measure.plain_job import rounds_alone
from domino_tune.measure.speed import spent
from domino_tune.measure.spent import KINDS, Spent
from domino_tune.runtime.plain import PlainModel
from domino_tune.runtime.session import Session
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.domino_tune.runtime.jobs import GPT, LLAMA, Job, batch
from tests.domino_tune.runtime.reference import full_weights

TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")


def _session(model: ModelSpec) -> Session:
    workload = Workload(seq_length=9, micro_batch_size=2, dtype="fp32")
    return lone_session(model, workload, ClusterSpec(tp=2), torch.device("cpu"))


@pytest.mark.parametrize("plan", [MEGATRON, TWO], ids=lambda p: p.label)
def test_ops_and_gaps_are_the_whole(plan: SlicePlan) -> None:
    found = spent(_session(LLAMA), plan, 3)
    assert set(found.by_kind_us) == set(KINDS)
    assert all(found.share(kind) > 0 for kind in KINDS)
    assert found.graph_us is None
    assert 0 <= found.gaps < 1
    assert found.flops == spent(_session(LLAMA), MEGATRON, 1).flops


def test_shares_are_of_the_faster_way_and_mfu_of_the_peak() -> None:
    one = Spent(
        label="plan", by_kind_us={"gemm": 50.0, "attention": 10.0, "pointwise": 20.0},
        eager_us=200.0, graph_us=100.0, flops=4_000_000_000,
    )  # fmt: skip
    assert one.share("gemm") == 0.5
    assert one.gaps == pytest.approx(0.2)
    assert one.mfu(peak_tflops=80.0) == pytest.approx(0.5)  # 40 TFLOP/s


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda m: m.name)
def test_layers_are_timed_beside_plain_ones(model: ModelSpec) -> None:
    rounds = rounds_alone(_session(model), 3)
    assert len(rounds) == 3
    assert all(one.ours_ns > 0 and one.theirs_ns > 0 for one in rounds)


def test_main_gradients_of_plain_layers_are_those_of_autograd() -> None:
    job = Job(name="", model=LLAMA, sequences=2)
    weights = {name: weight.requires_grad_() for name, weight in full_weights(job).items()}
    main = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    tokens, targets = batch(job, 0)
    PlainModel(model=LLAMA, weights=weights).loss(tokens, targets).backward()  # type: ignore[no-untyped-call]
    expected = {name: weight.grad for name, weight in weights.items()}
    for weight in weights.values():
        weight.grad = None
    PlainModel(model=LLAMA, weights=weights, main_grads=main).loss(tokens, targets).backward()  # type: ignore[no-untyped-call]
    linears = [name for name in weights if name.endswith((".a", ".b")) and name.startswith("l")]
    assert len(linears) == 4 * LLAMA.num_hidden_layers
    for name, gradient in expected.items():
        assert gradient is not None
        found = main[name] if name in linears else weights[name].grad
        assert found is not None
        assert torch.allclose(found, gradient, rtol=1e-10, atol=1e-14), name
