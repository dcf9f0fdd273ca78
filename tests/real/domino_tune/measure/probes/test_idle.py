"""The probe of waits: a step is cut at its pauses, and lanes pause as requested."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.probes.idle import PausedStep, stretches_of
from domino_tune.measure.resume_law import Resumption, WaitStretch
from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.silent import PausingLane
from simulator.ops import Collective, Signature

OP: Signature = Collective("all_reduce", 1, 1, 2)
OTHER: Signature = Collective("all_reduce", 2, 1, 2)


def test_a_step_is_cut_where_ranks_slept() -> None:
    usual_us = {OP: 100.0, OTHER: 10.0}
    short = [
        (OP, 0.0, 130.0), (OTHER, 20.0, 10.0), (OP, 1050.0, 120.0), (OTHER, 900.0, 11.0),
        (OP, 1101.0, 150.0),
    ]  # fmt: skip
    long = [(OP, 3900.0, 100.0), (OP, 4001.0, 90.0), (OTHER, 5.0, 9.0)]
    steps = [
        PausedStep(pause_s, ops, sum(usual_us[signature] for signature, _, _ in ops))
        for pause_s, ops in ((1e-3, short), (4e-3, long), (1e-3, short[:3]))
    ]
    assert stretches_of(steps, usual_us) == {
        1e-3: [
            WaitStretch(1050.0, (Resumption(100.0, 20.0), Resumption(10.0, 1.0))),
            WaitStretch(1101.0, (Resumption(100.0, 50.0),)),
            WaitStretch(1050.0, (Resumption(100.0, 20.0),)),
        ],
        4e-3: [WaitStretch(4001.0, (Resumption(100.0, -10.0), Resumption(10.0, -1.0)))],
    }


def test_a_step_without_waits_tells_nothing() -> None:
    assert stretches_of([PausedStep(1e-3, [(OP, 0.0, 100.0)], 100.0)], {OP: 100.0}) == {}


def test_a_machine_that_is_slower_just_then_loses_nothing_to_waits() -> None:
    step = PausedStep(1e-3, [(OP, 1050.0, 120.0), (OTHER, 0.0, 12.0)], steady_us=132.0)
    found = stretches_of([step], {OP: 100.0, OTHER: 10.0})
    (stretch,) = found[1e-3]
    assert [op.usual_us for op in stretch.ops] == pytest.approx([120.0, 12.0])
    assert [op.extra_us for op in stretch.ops] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_a_lane_pauses_as_long_as_it_is_set_to_and_once() -> None:
    lane, call = PausingLane(), all_reduce(torch.zeros(4))
    assert lane.issue("x", call).pause_s == 0.0
    lane.pause_s = 0.02
    first, second = (lane.issue("x", call) for _ in range(2))
    began = time.perf_counter()
    first.wait()
    slept = time.perf_counter() - began
    assert slept >= 0.02
    assert (first.pause_s, second.pause_s) == (0.0, 0.02)
