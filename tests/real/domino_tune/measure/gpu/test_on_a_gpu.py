"""What ``profile`` records of one GPU, on a device, small and in seconds."""

from __future__ import annotations

import statistics
import time

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.gpu import ARRIVALS, CTAS, Encounter, Gate, first_works
from domino_tune.measure.gpu.loads import Sampler, back_to_back, family_replay, nvml_meter
from domino_tune.measure.laws import COMPUTE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees no CUDA device"),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("family", COMPUTE)
def test_a_family_runs_as_a_graph(family: str) -> None:
    ran = back_to_back([family_replay(family)], 0.3)
    times_ns = [one.took_ns for one in ran]
    assert len(times_ns) > 2
    assert statistics.quantiles(times_ns, n=10)[-1] < 3 * statistics.median(times_ns)


def test_families_take_turns() -> None:
    ran = back_to_back([family_replay(family) for family in COMPUTE], 0.0)
    assert [one.which for one in ran] == [0, 1, 2]
    assert [one.at_ns for one in ran] == sorted(one.at_ns for one in ran)


def test_nvml_tells_clock_power_and_limits() -> None:
    meter = nvml_meter(DEVICE)
    with Sampler(meter) as sampler:
        time.sleep(0.5)
    assert len(sampler.samples) > 10
    assert all(0 < s.clock_mhz <= meter.boost_mhz < 4000 for s in sampler.samples)
    assert all(10 < sample.power_w < 2000 for sample in sampler.samples)
    assert 50 < meter.cap_w < 2000
    assert sampler.energy_j > 0


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_a_collective_meets_a_gemm(arrival: str) -> None:
    gate, work = Gate(), first_works()[0].make()
    alone_ns = gate.alone_ns(work)
    found = gate.meet(Encounter(work, alone_ns, CTAS[0], 40.0, arrival))
    assert 0 < found.first_in <= found.all_in < found.end
    assert len(found.ops) == (0 if arrival.startswith("idle") else 3)
    assert found.arrived < 2 * alone_ns  # no copy waits for all GEMMs
