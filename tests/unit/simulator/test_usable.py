"""Usable memory by hand, and that the chance to fit is 80 % just where a plan is recommended."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from simulator.dtypes import GIB
from simulator.implementation import NAMES
from simulator.profile import Machine
from simulator.specs import ClusterSpec
from simulator.usable import (
    CONNECTION_BYTES,
    CONTEXT_BYTES,
    FRAGMENTS,
    NO_MARGIN,
    PREDICTED_SD,
    SURE,
    Margin,
    Usable,
    communicators,
    percent,
    usable_memory,
)

ONE = ClusterSpec(tp=1)
REPORTED = {"a100-sxm": 79.15, "h100-dgx": 79.11, "h200-sxm": 139.8, "b200-sxm": 178.35,
            "b300-sxm": 268.59, "gb200-nvl72": 185.03, "gb300-nvl72": 277.55}  # fmt: skip


def machine(**changes: object) -> Machine:
    return replace(load_profile("h100-dgx").machine, **changes)  # type: ignore[arg-type]


def of(
    on: Machine, cluster: ClusterSpec = ONE, margin: Margin = NO_MARGIN, name: str = "megatron-te"
) -> Usable:
    return usable_memory(on, cluster, name, tied=False, margin=margin)


@pytest.mark.parametrize("name", REPORTED)
def test_a_bundled_machine_has_what_its_driver_reports_and_says_who_saw_that(name: str) -> None:
    found = of(load_profile(name).machine)
    assert found.total == round(REPORTED[name] * GIB)
    assert found.total_source.startswith(f"reported: {REPORTED[name]:g} GiB, ")
    assert [one.what for one in found.taken] == ["CUDA context"]
    assert found.usable_bytes == found.total - CONTEXT_BYTES


@pytest.mark.parametrize("label_gib", [80, 141, 180, 192])
def test_of_a_label_the_driver_keeps_one_percent(label_gib: int) -> None:
    found = of(machine(gpu_memory_gib=float(label_gib), memory_reported=False))
    assert found.total_source == "nominal: the label's"
    driver = found.taken[0]
    assert (driver.what, driver.size) == ("driver", round(0.01 * label_gib * GIB))
    assert driver.source.startswith("assumed: ")
    assert found.usable_bytes == found.total - driver.size - CONTEXT_BYTES


def test_ranks_on_cpus_share_the_hosts_memory_and_have_neither() -> None:
    found = of(machine(backend="gloo", gpu_memory_gib=8.0))
    assert (found.taken, found.usable_bytes) == ((), 8 * GIB)
    assert found.reserved_bytes(GIB) == GIB
    assert found.sure_bytes > 0.99 * found.usable_bytes


NODE, NETWORK = 24 * CONNECTION_BYTES, 16 * CONNECTION_BYTES


@pytest.mark.parametrize(
    ("cluster", "tied", "parts"),
    [
        (ONE, False, {}),
        (ClusterSpec(tp=8), True, {"world": 3 * NODE, "tp": 3 * NODE, "model-parallel": 3 * NODE}),
        (
            ClusterSpec(tp=2), False,
            {"world": 2 * NODE, "tp": 2 * NODE, "model-parallel": 2 * NODE},
        ),
        (ClusterSpec(tp=1, dp=16), False, {"world": 3 * NETWORK, "dp": 3 * NETWORK}),
        (
            ClusterSpec(tp=4, pp=4, dp=2, vpp=5), False,
            {
                "world": 3 * NETWORK, "tp": 3 * NODE, "dp": 2 * NODE, "pp": 2 * NETWORK,
                "model-parallel": 3 * NETWORK,
            },
        ),
        (
            ClusterSpec(tp=2, pp=2, cp=2), True,
            {
                "world": 3 * NODE, "tp": 2 * NODE, "dp": 2 * NODE, "cp": NODE, "pp": NODE,
                "embedding": 2 * NODE, "model-parallel": 3 * NODE,
            },
        ),
    ],
)  # fmt: skip
def test_communicators_by_hand(cluster: ClusterSpec, tied: bool, parts: dict[str, int]) -> None:
    assert communicators(cluster, tied=tied) == parts
    found = usable_memory(machine(), cluster, "torch", tied=tied, margin=NO_MARGIN)
    counted = sum(one.size for one in found.taken if one.what == "communicators")
    assert counted == sum(parts.values())
    named = next((one.source for one in found.taken if one.what == "communicators"), "")
    assert all(name in named for name in parts)


def test_a_communicator_of_one_node_is_about_as_large_as_one_was_measured() -> None:
    """544 MB for two A100s and 688 MB for more: NVIDIA/nccl issue 964."""
    sizes = communicators(ClusterSpec(tp=2), tied=False)["tp"], 3 * NODE
    assert sizes[0] == pytest.approx(544e6, rel=0.12)
    assert sizes[1] == pytest.approx(688e6, rel=0.35)


@pytest.mark.parametrize(
    ("margin", "gib"), [(Margin(4 * GIB), 4.0), (Margin(share=0.05), 0.05 * 79.11)]
)
def test_a_margin_is_left_free_and_named(margin: Margin, gib: float) -> None:
    plain, found = of(machine()), of(machine(), margin=margin)
    assert found.taken[-1].what == "margin"
    assert found.taken[-1].source == "asked for: --memory-margin"
    assert (plain.usable_bytes - found.usable_bytes) / GIB == pytest.approx(gib)
    assert found.sure_bytes < plain.sure_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_peak_is_recommended_just_where_its_chance_is_80_percent(name: str) -> None:
    found = of(machine(), ClusterSpec(tp=8), name=name)
    assert found.chance(found.sure_bytes) == pytest.approx(SURE, abs=1e-6)
    assert found.chance(found.sure_bytes) >= SURE
    assert found.chance(found.sure_bytes + 1) < SURE
    peaks = [round(gib * GIB / 4) for gib in range(1, 4 * 100)]
    chances = [found.chance(peak) for peak in peaks]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.999
    assert chances[-1] < 0.001
    for peak, chance in zip(peaks, chances, strict=True):
        assert (chance >= SURE) is (peak <= found.sure_bytes)
    assert found.sure_bytes < found.usable_bytes


def test_the_chance_by_hand() -> None:
    """Where the expected reserved bytes are just the usable ones, it is a half."""
    found = of(machine())
    fragments = FRAGMENTS["megatron-te"]
    half = round(found.usable_bytes / math.exp(fragments.mean))
    assert found.reserved_bytes(half) == pytest.approx(found.usable_bytes, rel=1e-9)
    assert found.chance(half) == pytest.approx(0.5, abs=1e-6)
    one_sd = round(half / math.exp(math.hypot(fragments.sd, PREDICTED_SD)))
    assert found.chance(one_sd) == pytest.approx(0.8413, abs=1e-4)


def test_nothing_fits_where_nothing_is_usable() -> None:
    found = of(machine(), margin=Margin(200 * GIB))
    assert (found.usable_bytes, found.sure_bytes, found.chance(1)) == (0, 0, 0.0)


def test_less_than_80_percent_never_reads_so() -> None:
    assert percent(0.7999) == "79 %"
    assert percent(SURE) == "80 %"
    assert percent(1.0) == "100 %"
