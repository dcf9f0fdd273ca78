"""What was predicted before changes no prediction: plans share what they look up by all that it
depends on."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import resolve
from simulator import templates
from simulator.build import Builder
from simulator.case import Case
from simulator.cost import CostModel
from simulator.errors import MissingSectionError
from simulator.greedy import order_of
from simulator.memory import peak_bytes
from simulator.ops import Pointwise
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.schedule import OpTemplate
from tests.unit.simulator.cases import KINDS, random_case, random_plan


def predicted(case: Case, plans: list[SlicePlan]) -> dict[SlicePlan, tuple[object, int]]:
    """Totals and peak bytes of plans, predicted in this order, of which nothing is known before."""
    templates._shared_by.cache_clear()
    return {plan: (predict(case, plan), peak_bytes(case, plan)) for plan in plans}


@pytest.mark.parametrize("block", range(0, 60, 15))
def test_predictions_are_the_same_in_any_order(block: int) -> None:
    profile = load_profile("h100-dgx")
    for seed in range(block, block + 15):
        rng = random.Random(seed)
        case = random_case(rng, layers=2, micros=2, cost=CostModel(profile))
        plans = list({random_plan(rng, case, rng.choice(KINDS)) for _ in range(6)})
        with suppress(MissingSectionError):
            assert predicted(case, plans) == predicted(case, plans[::-1]), seed


def test_the_host_waits_for_the_last_slices_loss_alone() -> None:
    """Six slices of 16 sequences have slices of two, as eight have, and end with the sixth."""
    asked = TuneRequest(
        model="gpt3-13b", profile="h100-dgx", tp=8, seq_length=1024, micro_batch_size=16,
        overrides=("num_hidden_layers=2",),
    )  # fmt: skip
    case = resolve(asked)
    for rows in (6, 8):
        plan = SlicePlan(row_slices=rows)
        schedule = Builder(case.shapes(plan), order_of(case, plan)).schedule()
        awaited = [op.slice for op in schedule.templates() if awaits(op)]
        assert awaited == [rows - 1]


def awaits(op: OpTemplate) -> bool:
    return isinstance(op.signature, Pointwise) and op.signature.awaited and op.role == "loss.sum"
