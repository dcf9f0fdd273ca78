"""What is read off a GPU's clock and power: steady states, bursts, elasticities."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu.loads import (
    CLOCK_KNOWN_AFTER_NS,
    Meter,
    Ran,
    Sample,
    Sampler,
    burst_mhz,
    clock_at,
    elasticity,
    mixed_elasticities,
    nvml_meter,
    power_message,
    settled,
)  # fmt: skip

# A sampler ----------------------------------------------------------------------------------------
# Samples while work runs, and the joules of that time; and a machine without NVML.

pytest.importorskip("torch")


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


# What is read off a GPU's clock and power ---------------------------------------------------------

pytest.importorskip("torch")

FALLING = (1980, 1900, 1700, 1600, 1470)


def samples_of(clocks: tuple[int, ...]) -> list[Sample]:
    return [Sample(1000 * i, mhz, 700.0 - i, 0) for i, mhz in enumerate(clocks)]


def test_what_is_steady_counts() -> None:
    found = settled(samples_of(FALLING), 3000)
    assert found == {"clock_mhz": 1535, "power_w": 696.5}
    assert settled(samples_of(FALLING), 9000) == {"clock_mhz": 1470, "power_w": 696}


def test_a_bursts_clock_is_that_of_its_rate() -> None:
    """1,744 MHz, as our H200's: 790 TFLOP/s in the first 20 ms and 666 at 1,470 MHz."""
    took = [666e4] * 4 + [790e4] * 50
    ends = [round(sum(took[: i + 1])) for i in range(len(took))]
    ran = [Ran(0, at_ns, took_ns) for at_ns, took_ns in zip(ends, took, strict=True)]
    assert burst_mhz(ran, ends[10], 1470.0) == pytest.approx(1470 * 790 / 666)
    assert burst_mhz(ran[:1], ends[10], 1470.0) == 1470.0


def test_elasticities_are_read_off_a_falling_clock() -> None:
    samples = samples_of(FALLING)
    told = {0: 1.0, 1: 0.5, 2: 0.0}
    ran = [
        Ran(which, 1000 * i + 1 + CLOCK_KNOWN_AFTER_NS, 1e5 * (1980 / mhz) ** told[which])
        for i, mhz in enumerate(FALLING)
        for which in told
    ]
    late = [one._replace(at_ns=one.at_ns + CLOCK_KNOWN_AFTER_NS) for one in samples]
    early = [Ran(which, 1, 9e9) for which in told]  # NVML does not tell their clock yet
    found = mixed_elasticities([*early, *ran], late, 0)
    assert found == pytest.approx({"gemm": 1.0, "attention": 0.5, "pointwise": 0.0}, abs=1e-6)


def test_a_steady_clock_tells_none() -> None:
    samples = samples_of((1980, 1965, 1980))
    assert elasticity([(1, 1.0), (1001, 2.0), (2001, 1.0)], samples) is None
    assert elasticity([(1, 1.0)], samples_of(FALLING)) is None
    assert mixed_elasticities([Ran(0, 10**12, 1.0), Ran(0, 10**12, 1.0)], samples, 0) == {}


def test_the_clock_is_that_of_the_last_sample() -> None:
    samples = [Sample(at, mhz, 1.0, 0) for at, mhz in ((10, 1980), (20, 1800))]
    assert [clock_at(samples, at) for at in (5, 11, 20, 21, 99)] == [1980, 1980, 1980, 1800, 1800]


def test_a_message_has_the_limits_of_the_gpu() -> None:
    meter = Meter(lambda: Sample(0, 1980, 100.0, 0), lambda: 0.0, 1980, 700.0)
    assert power_message(meter, [{"load": "rest"}]) == {
        "kind": "power", "boost_mhz": 1980, "cap_w": 700.0, "loads": [{"load": "rest"}],
    }  # fmt: skip
