"""Studies of the search by measurement: how often it ends near the best plan."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import numpy as np
import pytest

from domino_tune.search.measured import TRIALS, MeasuredOptions, Method
from tests.unit.domino_tune.search.real_machine import RealMachine, Runs
from tests.unit.domino_tune.search.test_measured import LINKS, WRONG

FAR: tuple[dict[str, float], ...] = (
    {"link_bandwidth": 0.35, "contention": 0.0},
    {"link_bandwidth": 0.4, "contention": 0.0},
    {"link_bandwidth": 0.3, "link_latency": 0.25},
)
"""So wrong that neither the simulator's best plan nor the baseline is within 2 % of the best."""
SEEDS = range(16)
QUIRKS = (0.007, 0.01)
NEAR = 0.02


@pytest.fixture(scope="module")
def machines() -> list[RealMachine]:
    return [RealMachine(link, WRONG + FAR) for link in LINKS]


class Study(NamedTuple):
    """Regrets of the plan found, of the simulator's best and of the baseline; plans measured."""

    found: list[float]
    simulated: list[float]
    baseline: list[float]
    counts: list[int]

    def near(self, regrets: list[float]) -> float:
        return sum(regret <= NEAR for regret in regrets) / len(regrets)


def study(
    machines: list[RealMachine], truths: slice, size: float, method: Method = "bayes"
) -> Study:
    """Search on each machine, under each of the errors, with each seed."""
    told = Study([], [], [], [])
    for machine in machines:
        simulated = 1 + int(np.argmin(machine.pool.log_prior[1:]))
        for number, truth in enumerate(machine.truths[truths]):
            for seed in SEEDS:
                drawn = np.random.default_rng([number, seed, int(1e4 * size)])
                runs = Runs(truth + machine.quirks(size, drawn), drawn)
                result = runs.search(machine.pool, MeasuredOptions(method=method, seed=seed))
                told.found.append(runs.regret(result.best))
                told.simulated.append(runs.regret(simulated))
                told.baseline.append(runs.regret(0))
                told.counts.append(len(result.ratios) + len(result.failed))
    print(
        f"\n{method}, quirks {size:.1%}: {told.near(told.found):.1%} of {len(told.found)} within "
        f"2 %, median regret {statistics.median(told.found):.2%}, evaluations median "
        f"{statistics.median(told.counts):g}; simulator alone {told.near(told.simulated):.1%}, "
        f"median {statistics.median(told.simulated):.2%}"
    )
    return told


@pytest.mark.parametrize("size", QUIRKS)
def test_within_two_percent_of_the_best_in_eight_evaluations(
    machines: list[RealMachine], size: float
) -> None:
    """The share of searches that end within 2 %, over machines, errors and seeds."""
    told = study(machines, slice(0, len(WRONG)), size)
    assert told.near(told.found) >= 0.95
    assert told.near(told.simulated) <= 0.9
    assert max(told.counts) <= TRIALS


@pytest.mark.parametrize("size", [0.0, 0.005])
def test_it_gets_there_from_afar_where_random_plans_do_not(
    machines: list[RealMachine], size: float
) -> None:
    """Nothing that a search runs first is near the best. Random plans get as many trials."""
    far = slice(len(WRONG), None)
    told, drawn = (study(machines, far, size, method) for method in ("bayes", "random"))
    for first in (told.simulated, told.baseline):
        assert told.near(first) == 0
    assert told.near(told.found) >= 0.95
    assert told.near(drawn.found) <= 0.2
    assert max(told.counts) <= TRIALS == max(drawn.counts)
