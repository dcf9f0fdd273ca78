"""Numbers of a profile at their limits, and what its tables take from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulator.cpu_hosts import SkewFit
from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import LONGEST_NOTE, LONGEST_TEXT, Provenance
from simulator.lookup.attention import AttentionFit
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.expected import POINTWISE_TABLE
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow
from simulator.ops import Collective, Gemm, Pointwise
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    GemmSection,
    LaunchSection,
    Machine,
    PointwiseSection,
    Profile,
    SkewSection,
    to_plain,
)

BY_HAND = Provenance(kind="measured", source="this test")
MACHINE = Machine(
    gpu="G", gpus_per_node=8, gpu_memory_gib=80.0, sm_count=132,
    peak_tflops={"bf16": 1000.0, "fp32": 50.0}, memory_bandwidth_gb_s=4000.0, backend="nccl",
)  # fmt: skip
EMPTY = Profile(name="empty", created="2025-01-31", machine=MACHINE)
CORE = AttentionFit(
    sm_count=132, head_dim=128, fixed_us=14.0, row_ns=0.56, tflops=630.0, tile_tflops=3000.0,
    blend=1.2, backward_ratio=2.9, min_seq=1024, max_seq=16384, error=0.05, backward_error=0.07,
)  # fmt: skip
RING = CollectiveFit(
    op="all_reduce", nodes=1, per_node=8, latency_us=10.0, us_per_mib=(5.0,), min_bytes=1,
    max_bytes=1 << 30, error=0.02,
)  # fmt: skip


def with_machine(**changes: Any) -> Profile:
    return replace(EMPTY, machine=replace(MACHINE, **changes))


def with_core(**changes: Any) -> Profile:
    section = AttentionSection(fit=replace(CORE, **changes), provenance=BY_HAND)
    return replace(EMPTY, attention=section)


def with_ring(**changes: Any) -> Profile:
    section = CollectiveSection(fits=(replace(RING, **changes),), provenance=BY_HAND)
    return replace(EMPTY, collectives=section)


Make = Callable[[float], Profile]
LIMITS: list[tuple[str, float, float, Make]] = [
    ("gpu_memory_gib", math.nan, 1e15, lambda x: with_machine(gpu_memory_gib=x)),
    ("memory_bandwidth_gb_s", 1e-3, 1e9, lambda x: with_machine(memory_bandwidth_gb_s=x)),
    ("peak_tflops", 1e-3, 1e12, lambda x: with_machine(peak_tflops={"bf16": x})),
    ("row_ns", math.nan, 1e9, lambda x: with_core(row_ns=x)),
    ("backward_ratio", 1e-3, 1e3, lambda x: with_core(backward_ratio=x)),
    ("backward_error", math.nan, 10.0, lambda x: with_core(backward_error=x)),
    ("latency_us", math.nan, 1e9, lambda x: with_ring(latency_us=x)),
    ("us_per_mib", math.nan, 1e6, lambda x: with_ring(us_per_mib=(x,))),
    (
        "slowest_factor", 1.0, 1e3,
        lambda x: replace(
            EMPTY, skew=SkewSection(fit=SkewFit(slowest_factor=x, error=0.0), provenance=BY_HAND)
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "low", "high", "make"), LIMITS, ids=[row[0] for row in LIMITS])
def test_numbers_are_taken_up_to_their_limits(
    name: str, low: float, high: float, make: Make
) -> None:
    make(high)
    beyond = [math.nextafter(high, math.inf)]
    if not math.isnan(low):
        make(low)
        beyond.append(math.nextafter(low, -math.inf))
    for number in beyond:
        with pytest.raises(ProfileError, match=name):
            make(number)


@pytest.mark.parametrize(
    "bad",
    ["\x1b]0;title\x07", "a\nb", "a\tb", "\x00", "\x7f", "\x9b31m", "a\u202eb", "a\u2066b",
     "a\u200bb", "a\u2028b", "\ud800"],
)  # fmt: skip
def test_texts_that_a_terminal_would_obey_are_refused(bad: str) -> None:
    noted = replace(BY_HAND, note=bad)
    makers: list[Callable[[], object]] = [
        lambda: with_machine(gpu=bad),
        lambda: with_machine(details={"driver": bad}),
        lambda: with_machine(details={bad: "1"}),
        lambda: CollectiveSection(fits=(RING,), provenance=noted),
    ]
    for make in makers:
        with pytest.raises(ProfileError, match=r"holds the character U\+[0-9A-F]{4}"):
            make()


def test_texts_are_taken_up_to_their_length() -> None:
    assert with_machine(gpu="µ × “é” – 中").machine.gpu == "µ × “é” – 中"
    with_machine(gpu="x" * LONGEST_TEXT)
    with pytest.raises(ProfileError, match=r"machine.gpu may have 1,000 characters, got 1,000,000"):
        with_machine(gpu="x" * 1_000_000)
    noted = replace(BY_HAND, note="x" * LONGEST_NOTE)
    CollectiveSection(fits=(RING,), provenance=noted)
    with pytest.raises(ProfileError, match="note may have 64,000 characters"):
        CollectiveSection(fits=(RING,), provenance=replace(noted, note=noted.note + "x"))


def test_counts_are_taken_up_to_a_million() -> None:
    assert with_machine(sm_count=10**6).machine.sm_count == 10**6
    assert with_machine(sm_count=1).machine.sm_count == 1
    for count in (0, 10**6 + 1):
        with pytest.raises(ProfileError, match="sm_count"):
            with_machine(sm_count=count)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queue_depth": 0}, "queue_depth"), ({"samples": -1}, "samples"),
        ({"mode": "slow"}, "mode must be one of async, inline, none"),
        ({"cost_us": {"gemms": 1.0}}, "cost_us kind must be one of gemm, attention"),
        ({"cost_us": {"gemm": -1.0}}, r"cost_us.*gemm"),
    ],
    ids=str,
)  # fmt: skip
def test_launches_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    section = LaunchSection(mode="async", cost_us={"gemm": 0.0}, provenance=BY_HAND)
    assert (section.queue_depth, section.samples) == (1024, 0)
    assert replace(section, queue_depth=1).queue_depth == 1
    with pytest.raises(ProfileError, match=message):
        replace(section, **changes)


def test_sections_list_each_law_once() -> None:
    points = PointwiseFit(
        names=("gelu",), fixed_us=2.0, small_gb_s=1.0, knee_bytes=1, large_gb_s=1.0, max_bytes=1,
        error=0.1,
    )  # fmt: skip
    with pytest.raises(ProfileError, match="'gelu' is listed twice"):
        PointwiseSection(fits=(points, points), provenance=BY_HAND)
    with pytest.raises(ProfileError, match="sorted by group, each group once"):
        CollectiveSection(fits=(RING, RING), provenance=BY_HAND)
    for name in ("nic_gb_s", "nic_latency_us"):
        with pytest.raises(ProfileError, match=name):
            CollectiveSection(**{name: 0.0}, provenance=BY_HAND)  # type: ignore[arg-type]


def test_a_missing_section_is_told_with_those_there_are() -> None:
    with pytest.raises(MissingSectionError, match=r"no 'gemm' section \(it has none\)"):
        EMPTY.section("gemm")
    with pytest.raises(MissingSectionError, match=r"no 'gemm' section \(it has collectives\)"):
        with_ring().section("gemm")


def test_tables_know_the_machines_rates() -> None:
    """A teraflop is 1e12 FLOP/s and a GB/s 1e9 bytes/s; a missing error has a default."""
    profile = replace(EMPTY, gemm=GemmSection(provenance=BY_HAND))
    op = Gemm(1000, 1000, 1000, dtype="fp32")
    expected = 2e9 / 50e6 + 4 * 3e6 / 4e6
    assert profile.gemm_table().estimate(op).duration_us == pytest.approx(expected)
    rows = tuple(
        PointwiseRow(name="gelu", bytes_read=size, bytes_written=0, median_us=float(size))
        for size in (10, 20)
    )
    rings = tuple(
        CollectiveRow(op="all_reduce", nodes=1, per_node=8, bytes=size, median_us=float(size))
        for size in (10, 20)
    )
    for told, errors in ((None, (POINTWISE_TABLE.error, 0.05)), (0.03, (0.03, 0.03))):
        source = replace(BY_HAND, error=told)
        full = replace(
            EMPTY, pointwise=PointwiseSection(rows=rows, provenance=source),
            collectives=CollectiveSection(rows=rings, provenance=source),
        )  # fmt: skip
        between = full.pointwise_table().estimate(Pointwise("gelu", 15, 0))
        assert between == (15.0, "interpolated", errors[0])
        ring = full.collective_table().estimate(Collective("all_reduce", 15, 1, 8))
        assert ring == (15.0, "interpolated", errors[1])


def test_choices_of_ctas_are_those_of_rows_and_laws_of_all_reduces() -> None:
    fits = (replace(RING, ctas=4), replace(RING, ctas=9), replace(RING, op="broadcast", ctas=3))
    section = CollectiveSection(fits=fits, provenance=BY_HAND)
    profile = replace(EMPTY, collectives=section)
    assert profile.comm_ctas_choices(1, 8) == (0, 4, 9)
    assert profile.comm_ctas_choices(2, 8) == (0,)
    assert profile.comm_ctas_choices(1, 4) == (0,)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_names_are_short_and_plain(name: str) -> None:
    assert replace(EMPTY, name=name).name == name
    for wrong in (name + "x" * 64, name + "/", f"-{name}", name + "\n"):
        with pytest.raises(ProfileError, match="1–64 letters"):
            replace(EMPTY, name=wrong)


def test_dates_may_have_a_time() -> None:
    assert replace(EMPTY, created="2025-01-31T10:20:30Z").created.endswith("Z")
    for wrong in ("2025-01-31T10:20:30", "25-01-31", "2025-01-31 "):
        with pytest.raises(ProfileError, match="created must be"):
            replace(EMPTY, created=wrong)


def test_a_newer_schema_asks_for_an_upgrade() -> None:
    current = EMPTY.schema
    with pytest.raises(ProfileError, match="upgrade domino_tune"):
        replace(EMPTY, schema=current + 1)
    with pytest.raises(ProfileError, match=rf"{current - 1} is not {current}\.$"):
        replace(EMPTY, schema=current - 1)


def test_whole_numbers_are_plain_ints_while_they_are_exact() -> None:
    plain = to_plain({"a": (2.0, 2.5), "b": float(2**53 - 1), "c": float(2**53), "d": -2.0})
    assert [type(x) for x in (*plain["a"], plain["b"], plain["c"], plain["d"])] == [
        int, float, int, float, int,
    ]  # fmt: skip
    assert plain == {"a": [2, 2.5], "b": 2**53 - 1, "c": 2.0**53, "d": -2}
    assert "samples" not in to_plain(LaunchSection(mode="none", cost_us={}, provenance=BY_HAND))
