"""The bound holds and the estimate is near, on the bundled profile, for random cases and plans."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from domino_tune.search import Evaluation, SearchOptions, Space, SpaceSpec, enumerate_plans
from domino_tune.search.exhaustive import search_exhaustive
from simulator.case import Case
from simulator.closed_form import ClosedForm
from simulator.cost import Changes
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.simulator.cases import bundled_profile, uneven_profile

GPT = ModelSpec(
    name="gpt", num_hidden_layers=6, hidden_size=2048, num_attention_heads=32,
    num_key_value_heads=32, head_dim=64, intermediate_size=8192, vocab_size=50257,
    max_position_embeddings=4096, hidden_dropout=0.1,
)  # fmt: skip
LLAMA = ModelSpec(
    name="llama", num_hidden_layers=5, hidden_size=4096, num_attention_heads=32,
    num_key_value_heads=16, head_dim=128, intermediate_size=11008, vocab_size=32000,
    max_position_embeddings=4096, hidden_act="silu", gated_mlp=True, norm="rmsnorm",
    position_embedding="rope", tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip


def random_case(rng: random.Random) -> Case:
    tp = rng.choice([1, 2, 8, 16])
    cuda_graph = rng.random() < 0.5
    profile = uneven_profile() if rng.random() < 0.5 else bundled_profile()
    changes = Changes(
        link_bandwidth=rng.choice([0.2, 1.0, 4.0]), contention=rng.choice([0.0, 1.0, 2.0])
    )
    return Case(
        model=rng.choice([GPT, LLAMA]),
        workload=Workload(
            seq_length=rng.choice([256, 1024]),
            micro_batch_size=rng.choice([1, 4, 7, 16]),
            grad_accumulation=rng.choice([1, 3]),
        ),
        cluster=ClusterSpec(
            tp=tp, dp=rng.choice([1, 8 // tp if tp < 8 else 2]), cuda_graph=cuda_graph
        ),
        profile=profile,
        changes=changes,
    )


class EngineProblem:
    """A case searched with the fast engine, memory left out."""

    def __init__(self, case: Case, plans: Space) -> None:
        self.case = case
        self.plans = plans
        self.closed_form = ClosedForm(case)
        self.lower_bound_ns = self.closed_form.lower_bound_ns
        self.prior_ns = self.closed_form.prior_ns

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        return Evaluation(iteration_ns=predict(self.case, plan).makespan_ns, peak_bytes=0)


def random_plans(case: Case, rng: random.Random, count: int) -> Iterator[SlicePlan]:
    space = enumerate_plans(case.model, case.workload)
    for _ in range(count):
        yield space[rng.randrange(len(space))]


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_and_the_estimate_is_near(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng)
    closed_form = ClosedForm(case)
    for plan in random_plans(case, rng, 8):
        time_ns = predict(case, plan).makespan_ns
        assert closed_form.lower_bound_ns(plan) <= time_ns, plan.label
        assert 0.4 <= closed_form.prior_ns(plan) / time_ns <= 2.0, plan.label


@pytest.mark.parametrize("order", ["inter", "paper", "intra", "greedy"])
def test_the_bound_holds_for_two_slices_in_every_order(order: str) -> None:
    case = random_case(random.Random(1))
    spec = SpaceSpec(row_slices=(1, 2), col_slices=(1,), dgrad_slices=())
    for plan in enumerate_plans(case.model, case.workload, spec=spec):
        if plan.order == order:
            assert ClosedForm(case).lower_bound_ns(plan) <= predict(case, plan).makespan_ns


def test_bounds_prove_the_optimum_of_a_real_case() -> None:
    case = random_case(random.Random(2))
    spec = SpaceSpec(row_slices=(1, 2, 4), col_slices=(1, 2), dgrad_slices=(), orders=("intra",))
    problem = EngineProblem(case, enumerate_plans(case.model, case.workload, spec=spec))
    result = search_exhaustive(problem, SearchOptions())
    fastest_ns = min(problem.evaluate(plan).iteration_ns for plan in problem.plans)
    assert result.optimality == "proven"
    assert min(trial.iteration_ns for trial in result.trials) == fastest_ns
