"""A space is refused for its memory only where no plan of it fits."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.results.tune import TuneResult
from domino_tune.search.space import Space, SpaceSpec, enumerate_plans
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.tune import tune_cases
from simulator.build import build_schedule
from simulator.case import Case
from simulator.dtypes import GIB
from simulator.errors import InfeasiblePlanError
from simulator.greedy import order_of
from simulator.kernels.lives import TURN
from simulator.memory import least_peak_bytes, live_peaks, peak_bytes
from simulator.usable import SURE
from tests.support.room import with_room
from tests.unit.simulator.cases import cost_model, random_case

SEEDS = range(10)
RANDOM = TuneRequest(
    model="llama2-7b", profile="a100-sxm", tp=8, seq_length=512, micro_batch_size=4,
    search="random", trials=10, implementation_set=("dummy_wgrads=false",),
)  # fmt: skip


def random_space(seed: int) -> tuple[Case, Space]:
    """A small case, and all plans of its rows in every order, with one or two column pieces."""
    rng = random.Random(seed)
    case = random_case(rng, layers=7, micros=1, cost=cost_model(1.0, False))
    case = replace(case, workload=replace(case.workload, micro_batch_size=rng.randint(1, 5)))
    routes = case.model.num_experts > 0 and case.cluster.tp > 1
    shards = routes or case.workload.recompute == "per-op"
    spec = SpaceSpec(col_slices=(1, 2), dgrad_slices=(), sequence_parallels=(shards,))
    return case, enumerate_plans(case.model, case.workload, spec=spec)


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_needs_less_than_the_least(seed: int) -> None:
    """And what that rests on: the head's memory depends on row slices alone."""
    case, space = random_space(seed)
    least = least_peak_bytes(case)
    heads = defaultdict(set)
    for plan in space:
        order = order_of(case, plan)
        assert peak_bytes(case, plan, order) >= least, plan.label
        schedule = build_schedule(case.model, case.workload, case.cluster, plan, order)
        heads[plan.row_slices].add(live_peaks(schedule)[TURN].whole)
    assert {len(peaks) for peaks in heads.values()} == {1}


def tuned(case: Case, sure_bytes: int) -> TuneResult:
    return tune_cases([with_room(case, sure_bytes)], RANDOM)


def test_the_last_byte_decides() -> None:
    """Of this model some plans need the least and no more, so a byte less fits none."""
    case = resolve(RANDOM)
    least = least_peak_bytes(case)
    with pytest.raises(InfeasiblePlanError) as caught:
        tuned(case, least - 1)
    assert caught.value.reason == "memory below 80 %"
    assert f"each needs {least / GIB:,.1f} GiB or more" in str(caught.value)
    assert "No plan fits in the memory" in str(caught.value)
    assert "the smallest change that fits: --" in str(caught.value)
    best = tuned(case, least).best
    assert best.peak_memory_gib == least / GIB
    assert best.fits
    assert best.fits_chance == pytest.approx(SURE)
