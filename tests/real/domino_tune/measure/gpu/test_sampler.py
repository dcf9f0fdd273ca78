"""A sampler: samples while work runs, and the joules of that time; and a machine without NVML."""

from __future__ import annotations

import itertools
import time

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu.sampler import Meter, Sample, Sampler, nvml_meter


def _meter() -> Meter:
    joules = itertools.count(1000.0, 42.0)
    clocks = itertools.count(1980, -1)
    return Meter(
        lambda: Sample(time.perf_counter_ns(), next(clocks), 700.0, 4),
        lambda: next(joules),
        1980,
        700.0,
    )


def test_it_samples_as_long_as_work_runs() -> None:
    with Sampler(_meter(), period_s=0.001) as sampler:
        until = time.monotonic() + 5
        while len(sampler.samples) < 20 and time.monotonic() < until:
            time.sleep(0.001)
    count = len(sampler.samples)
    assert count >= 20
    assert sampler.energy_j == 42.0
    assert [sample.clock_mhz for sample in sampler.samples] == list(range(1980, 1980 - count, -1))
    moments = [sample.at_ns for sample in sampler.samples]
    assert moments == sorted(moments)
    assert not sampler._thread.is_alive()


def test_it_ends_with_work_that_fails() -> None:
    sampler = Sampler(_meter(), period_s=60.0)
    with pytest.raises(RuntimeError, match="out of memory"), sampler:
        raise RuntimeError("out of memory")
    assert sampler.energy_j == 42.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="no GPU must be here for this")
def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(RunError, match="NVML does not answer: "):
        nvml_meter(torch.device("cuda", 0))
