"""Slowdowns of any set of lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.contention import (
    SCALE,
    CollectiveFamily,
    ComputeContention,
    ComputeFamily,
    Contention,
    ContentionFamily,
    ContentionFit,
    MemoryQueue,
    SizeContention,
    Slowdown,
)
from simulator.errors import InputError, ProfileError

FIT = ContentionFit(
    sm_count=100, default_ctas=20,
    compute=(
        ComputeContention(family="gemm", sms_per_cta=2.0, factor=1.1, error=0.03),
        ComputeContention(family="pointwise", sms_per_cta=0.0, factor=1.2, error=0.03),
    ),
    collective=Slowdown(factor=1.15, error=0.03), same_links=Slowdown(factor=2.0, error=0.1),
    other_links=Slowdown(factor=1.1, error=0.1),
)  # fmt: skip
GEMM, POINTWISE = ComputeFamily("gemm"), ComputeFamily("pointwise")
TP, TP10, DP = CollectiveFamily(1, 8), CollectiveFamily(1, 8, 10), CollectiveFamily(4, 1)
FAMILIES = st.sampled_from([None, TP, TP10, DP])


def sized(family: CollectiveFamily, size_bytes: int) -> CollectiveFamily:
    return family._replace(size_bytes=size_bytes)


def slow(*families: ContentionFamily | None) -> tuple[float, ...]:
    return tuple(s / SCALE for s in Contention(FIT).slowdowns(families))


def test_nobody_slows_down_alone() -> None:
    assert slow(GEMM, None, None) == (1, 1, 1)
    assert slow(None, TP, None) == (1, 1, 1)
    assert slow(None, None, None) == (1, 1, 1)


def test_compute_loses_the_sms_that_the_collective_holds() -> None:
    assert slow(GEMM, TP) == pytest.approx((1.1 * 100 / 60, 1.15), abs=1e-3)
    assert slow(GEMM, TP10) == pytest.approx((1.1 * 100 / 80, 1.15), abs=1e-3)
    assert slow(POINTWISE, TP) == pytest.approx((1.2, 1.15), abs=1e-3)


def test_two_collectives_share_links_or_not() -> None:
    assert slow(None, TP, TP) == pytest.approx((1, 2, 2), abs=1e-3)
    assert slow(None, TP, DP) == pytest.approx((1, 1.1, 1.1), abs=1e-3)
    assert slow(GEMM, TP, DP)[1:] == pytest.approx((1.1 * 1.15, 1.1 * 1.15), abs=1e-3)
    assert slow(None, TP, TP, TP)[1:] == pytest.approx((3, 3, 3), abs=1e-3)


def test_compute_keeps_some_sms_whatever_happens() -> None:
    assert slow(GEMM, TP, TP, TP)[0] == pytest.approx(11.0, abs=1e-3)


def test_a_collective_waits_for_memory_beside_an_op_that_streams() -> None:
    queue = MemoryQueue(attained_gb_s=4000, busiest=0.9, wait=0.1, by_cta=0.05, error=0.04)
    fit = replace(FIT, memory=queue)
    contention = Contention(fit)
    assert contention.depends_on_streams
    beside = {
        gb_s: contention.slowdowns((ComputeFamily("pointwise", gb_s), TP10))[1] / SCALE
        for gb_s in (0, 2000, 3600, 4800)
    }
    factor = FIT.collective.factor
    assert beside[0] == pytest.approx(factor, abs=1e-3)
    assert beside[2000] == pytest.approx(factor * (1 + 0.1 * 1 * 1.5), abs=1e-3)
    assert beside[3600] == beside[4800] == pytest.approx(factor * (1 + 0.1 * 9 * 1.5), abs=1e-3)
    assert fit.most_beside_compute(10) == pytest.approx(beside[4800], abs=1e-3)
    assert contention.slowdowns((None, TP10)) == (SCALE, SCALE)
    assert not Contention(fit, strength=0).depends_on_streams
    assert not Contention(replace(SIZED, memory=queue)).depends_on_streams
    assumed = fit.as_assumed(0.25).memory
    assert assumed is not None
    assert (assumed.kind, assumed.error) == ("assumed", 0.25)


def test_a_family_without_a_law_takes_the_first() -> None:
    assert slow(ComputeFamily("attention"), TP) == slow(GEMM, TP)


@given(st.sampled_from([None, GEMM, POINTWISE]), st.lists(FAMILIES, max_size=4))
def test_strength_scales_the_excess(
    compute: ComputeFamily | None, lanes: list[CollectiveFamily | None]
) -> None:
    families = (compute, *lanes)
    full = Contention(FIT).slowdowns(families)
    half = Contention(FIT, strength=0.5).slowdowns(families)
    assert Contention(FIT, strength=0.0).slowdowns(families) == (SCALE,) * len(families)
    assert Contention(None).slowdowns(families) == (SCALE,) * len(families)
    for whole, part in zip(full, half, strict=True):
        assert whole >= SCALE
        assert abs((whole - SCALE) / 2 - (part - SCALE)) <= 1


SIZED = replace(
    FIT,
    by_size=(
        SizeContention(1 << 10, {"gemm": 1.4, "pointwise": 1.2}, 3.0),
        SizeContention(1 << 20, {"gemm": 1.2}, 2.0),
    ),
)


@pytest.mark.parametrize(
    ("size", "compute", "collective"),
    [
        (1, 1.4, 3.0), (1 << 10, 1.4, 3.0), (1 << 15, 1.3, 2.5), (1 << 20, 1.2, 2.0),
        (1 << 30, 1.2, 2.0),
    ],
)  # fmt: skip
def test_by_size_is_a_line_over_the_logarithm_that_stays_beyond_its_ends(
    size: int, compute: float, collective: float
) -> None:
    slowed = Contention(SIZED).slowdowns((GEMM, sized(TP, size)))
    assert [s / SCALE for s in slowed] == pytest.approx([compute, collective], abs=1e-3)


def test_by_size_of_no_known_size_is_the_least_and_several_add_up() -> None:
    law = Contention(SIZED)
    assert law.slowdowns((GEMM, TP))[0] / SCALE == pytest.approx(1.2, abs=1e-3)
    # One size has pointwise ops, none has attention.
    for family, size, slowdown in (
        ("pointwise", 1 << 10, 1.2), ("pointwise", 1 << 20, 1.2),
        ("attention", 1 << 10, 1.3), ("attention", 1 << 20, 1.2),
    ):  # fmt: skip
        beside = law.slowdowns((ComputeFamily(family), sized(TP, size)))[0] / SCALE
        assert beside == pytest.approx(slowdown, abs=1e-3)
    assert law.slowdowns((None, sized(TP, 4096))) == (SCALE, SCALE)
    both = law.slowdowns((GEMM, sized(TP, 1024), sized(DP, 1 << 20)))
    expected = (1 + 0.4 + 0.2, 1.1 * 3.0, 1.1 * 2.0)
    assert [s / SCALE for s in both] == pytest.approx(expected, abs=1e-3)
    half = Contention(SIZED, strength=0.5).slowdowns((GEMM, sized(TP, 1024)))
    assert [s / SCALE for s in half] == pytest.approx([1.2, 2.0], abs=1e-3)


@pytest.mark.parametrize(
    "rows",
    [
        (SizeContention(0, {"gemm": 1.0}, 1.0),),
        (SizeContention(1, {}, 1.0),),
        (SizeContention(1, {"gemm": 0.9}, 1.0),),
        (SizeContention(1, {"gemm": 1.0}, 0.9),),
        (SizeContention(2, {"gemm": 1.0}, 1.0), SizeContention(1, {"gemm": 1.0}, 1.0)),
    ],
)
def test_sizes_that_cannot_be_are_refused(rows: tuple[SizeContention, ...]) -> None:
    with pytest.raises(ProfileError, match="by_size"):
        replace(FIT, by_size=rows)


def test_off_means_off() -> None:
    assert Contention(None).is_off
    assert Contention(FIT, strength=0.0).is_off
    assert not Contention(FIT).is_off
    with pytest.raises(InputError):
        Contention(FIT, strength=-1.0)


# What a collective waits for memory ---------------------------------------------------------------

RATES = st.floats(min_value=0, max_value=1e5)
CTAS = st.integers(min_value=0, max_value=132)


def queue(busiest: float = 0.9, wait: float = 0.02, kind: str = "fitted") -> MemoryQueue:
    return MemoryQueue(
        attained_gb_s=4000, busiest=busiest, wait=wait, by_cta=0.03, kind=kind, error=0.04  # type: ignore[arg-type]
    )  # fmt: skip


@given(RATES, RATES, CTAS, CTAS)
def test_it_grows_with_the_rate_and_with_ctas_up_to_what_was_timed(
    one: float, other: float, few: int, many: int
) -> None:
    law = queue()
    slow, fast = sorted((one, other))
    few, many = sorted((few, many))
    assert 1 <= law.slowdown(slow, few) <= law.slowdown(fast, many) <= law.most(many)


def test_beside_an_op_that_streams_nothing_it_waits_for_nobody() -> None:
    assert queue().slowdown(0, 32) == 1


@pytest.mark.parametrize(
    "wrong", [{"busiest": 1.0}, {"busiest": -0.1}, {"wait": float("nan")}, {"kind": "guessed"}]
)
def test_impossible_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match=next(iter(wrong))):
        queue(**wrong)  # type: ignore[arg-type]
