"""A machine that the simulator is wrong about: other contention, other links, quirks of its own,
and noise. Its runs are paired with the baseline's, as real ones are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from domino_tune.search.measured import (
    MeasuredOptions,
    MeasuredSearch,
    Ratio,
    measured_pool,
    ratio_of,
    search_measured,
)
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.search.space import Floats, Pool, SpaceSpec, enumerate_plans
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.cost import Factors
from simulator.predict import predict
from simulator.specs import ClusterSpec, ModelSpec, Workload

MODEL = ModelSpec(
    name="toy", num_hidden_layers=4, hidden_size=2048, num_attention_heads=16,
    num_key_value_heads=16, head_dim=128, intermediate_size=8192, vocab_size=1000,
    max_position_embeddings=2048,
)  # fmt: skip
SPEC = SpaceSpec(row_slices=(1, 2, 4), col_slices=(1, 2, 4), dgrad_slices=())
ROUNDS, FINAL_ROUNDS = 10, 20
STEP_NOISE = 0.02


class RealMachine:
    """``pool``: what the simulator believes, with links ``link`` times the profile's.
    ``truths``: log times of the pool under each of ``wrong``."""

    def __init__(self, link: float, wrong: Sequence[dict[str, float]]) -> None:
        case = Case(
            model=MODEL, workload=Workload(seq_length=1024, micro_batch_size=4),
            cluster=ClusterSpec(tp=4), profile=load_profile("h100-dgx"),
            factors=Factors(link_bandwidth=link),
        )  # fmt: skip
        plans = enumerate_plans(case.model, case.workload, spec=SPEC)
        problem = SimulatedPlans(case=case, plans=plans)
        self.pool: Pool = measured_pool(problem, list(plans))
        self.truths = [
            self._times(problem, replace(case, factors=replace(case.factors, **change)))
            for change in wrong
        ]

    def _times(self, problem: SimulatedPlans, case: Case) -> Floats:
        orders = ((plan, problem.order(plan)) for plan in self.pool.plans)
        return np.log([predict(case, plan, order).makespan_ns for plan, order in orders])

    def quirks(self, size: float, drawn: np.random.Generator) -> Floats:
        """[n] log errors that no change of the machine explains: by number of slices, merging and
        order (about 1.5 ``size`` each), and plan by plan (``size``)."""
        features = np.array(
            [
                (
                    math.log2(plan.row_slices), math.log2(plan.attn_col_slices),
                    plan.merge_wgrad, plan.order == "greedy", plan.wgrad == "deferred",
                )
                for plan in self.pool.plans
            ],
            dtype=float,
        )  # fmt: skip
        features[0] = 0
        weights = drawn.normal(0, 1.5 * size, features.shape[1])
        return np.asarray(features @ weights + drawn.normal(0, size, len(features)))


class Runs:
    """Runs plans of a pool whose true log times are ``truth``; speed drifts from run to run (0.8 to
    1.3) and within one. ``launches`` lists what was run together."""

    def __init__(self, truth: Floats, drawn: np.random.Generator) -> None:
        self.truth = truth
        self.drawn = drawn
        self.launches: list[tuple[int, ...]] = []

    def measure(self, index: int) -> Ratio | None:
        return self._run([index] if index else [], ROUNDS).get(index)

    def compare(self, indices: Sequence[int]) -> dict[int, Ratio]:
        return self._run(indices, FINAL_ROUNDS)

    def _run(self, others: Sequence[int], rounds: int) -> dict[int, Ratio]:
        self.launches.append(tuple(others))
        together = [0, *others]
        drift = np.cumsum(self.drawn.normal(0, 0.01, rounds)) + self.drawn.uniform(-0.22, 0.26)
        noise = self.drawn.normal(0, STEP_NOISE, (rounds, len(together)))
        times = 1e9 * np.exp(self.truth[together] - self.truth[0] + drift[:, None] + noise)
        steps = times.astype(int).T.tolist()
        return {index: ratio_of(steps[at], steps[0]) for at, index in enumerate(together) if at}

    def search(self, pool: Pool, options: MeasuredOptions) -> MeasuredSearch:
        return search_measured(pool, self.measure, self.compare, options)

    def regret(self, index: int) -> float:
        """How much slower than the best of all plans a plan truly is."""
        return math.exp(self.truth[index] - self.truth.min()) - 1
