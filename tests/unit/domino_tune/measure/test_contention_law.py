"""Slowdowns by CTA count become the law's numbers; those of gloo stay as they are, by size."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.measure.contention_law import (
    DEFAULT_CTAS,
    LEAST_ERROR,
    assumptions,
    contention_fit,
    law_of,
    with_earlier_sizes,
)
from simulator.contention import (
    CollectiveFamily,
    ComputeFamily,
    Contention,
    compute_slowdown,
)

SMS = 132
CTAS = (1, 2, 4, 8, 16, 32)
LAWS = {"attention": (0.6, 1.02), "gemm": (1.2, 1.08), "pointwise": (0.0, 1.15)}


def row(
    ctas: int, like: int = 0, *, size_bytes: int = 1 << 26, op: str = "all_reduce", **more: Any
) -> dict[str, Any]:
    """A row as ranks report it, of ``ctas``, slowed as by ``like`` of them."""
    compute = {family: compute_slowdown(*law, like or ctas, SMS) for family, law in LAWS.items()}
    return {
        "op": op, "size_bytes": size_bytes, "ctas": ctas, "compute": compute, "collective": 1.1,
        "spread": 0.01, "samples": 3, **more,
    }  # fmt: skip


@pytest.mark.parametrize("law", LAWS.values())
def test_a_law_is_found_again(law: tuple[float, float]) -> None:
    found = law_of([(ctas, compute_slowdown(*law, ctas, SMS)) for ctas in CTAS], SMS)
    assert found == pytest.approx(law, rel=1e-3, abs=1e-6)


def test_a_law_never_speeds_anything_up() -> None:
    assert law_of([(1, 0.98), (8, 0.99), (32, 1.0)], SMS) == (0.0, 1.0)
    falling = law_of([(1, 1.2), (8, 1.1), (32, 1.05)], SMS)
    assert falling[0] == 0.0
    assert 1.05 < falling[1] < 1.2
    steep = law_of([(8, 1.0), (16, 1.0), (32, 1.3)], SMS)
    assert steep[1] == 1.0
    assert 0 < steep[0] < 2


def test_one_count_alone_is_taken_for_lost_sms() -> None:
    per_cta, factor = law_of([(16, 1.2)], SMS)
    assert factor == 1.0
    assert compute_slowdown(per_cta, factor, 16, SMS) == pytest.approx(1.2, rel=1e-4)


def test_rows_by_cta_count_give_the_law_and_no_sizes() -> None:
    fit = contention_fit([*map(row, CTAS), row(0, like=20)], sm_count=SMS)
    assert fit.by_size == ()
    assert fit.sm_count == SMS
    assert fit.default_ctas == 20
    assert fit.collective.factor == pytest.approx(1.1)
    assert {law.family for law in fit.compute} == set(LAWS)
    contention = Contention(fit)
    beside = contention.slowdowns((ComputeFamily("gemm"), CollectiveFamily(1, 8, 16)))
    assert beside[0] / 1024 == pytest.approx(compute_slowdown(*LAWS["gemm"], 16, SMS), rel=2e-3)
    chosen = contention.slowdowns((ComputeFamily("gemm"), CollectiveFamily(1, 8)))
    assert chosen[0] / 1024 == pytest.approx(compute_slowdown(*LAWS["gemm"], 20, SMS), rel=2e-3)


def test_what_was_not_measured_is_assumed() -> None:
    bare = row(4)
    del bare["collective"]  # no all-reduce ended beside compute
    del bare["compute"]["attention"]
    fit = contention_fit([bare], sm_count=SMS)
    assert fit.default_ctas == DEFAULT_CTAS
    assert fit.collective.factor == 1.0
    assert [law.family for law in fit.compute] == ["gemm", "pointwise"]


def test_rows_of_gloo_are_kept_by_size() -> None:
    rows = [row(0, like=4, size_bytes=size) for size in (4096, 1024)]
    fit = contention_fit(rows, sm_count=1)
    assert [kept.bytes for kept in fit.by_size] == [1024, 4096]
    assert fit.by_size[0].compute["gemm"] == pytest.approx(compute_slowdown(*LAWS["gemm"], 4, SMS))
    assert fit.by_size[0].collective_factor == pytest.approx(1.1)


def test_a_size_whose_collectives_nobody_saw_takes_the_nearest_ones() -> None:
    rows = [row(0, like=4, size_bytes=size) for size in (1 << 10, 1 << 20, 1 << 22)]
    rows[0]["collective"] = 3.0
    del rows[2]["collective"]
    fit = contention_fit(rows, sm_count=1)
    assert [kept.collective_factor for kept in fit.by_size] == [3.0, 1.1, 1.1]
    for one in rows:
        one.pop("collective", None)
    assert {kept.collective_factor for kept in contention_fit(rows, sm_count=1).by_size} == {1.0}
    assert "compute does not slow collectives" in assumptions(rows, None)


def test_a_family_goes_by_the_sizes_that_have_it() -> None:
    rows = [row(0, size_bytes=1 << power, compute={"gemm": 2.0 * power}) for power in (10, 12, 14)]
    assert "nearest sizes" not in assumptions(rows, None)
    rows[0]["compute"]["attention"], rows[2]["compute"]["attention"] = 3.0, 5.0
    assert "nearest sizes" in assumptions(rows, None)
    fit = contention_fit(rows, sm_count=1)
    assert {law.family: law.factor for law in fit.compute} == {"attention": 4.0, "gemm": 24.0}
    assert "attention" not in fit.by_size[1].compute
    flights = (CollectiveFamily(2, 1, 0, size) for size in (1 << 10, 1 << 12, 1 << 14))
    beside = [
        Contention(fit).slowdowns((ComputeFamily("attention"), flight))[0] / 1024
        for flight in flights
    ]
    assert beside == [3.0, 4.0, 5.0]


def test_an_earlier_run_may_have_seen_other_families() -> None:
    seen = {"gemm": 2.0}, {"gemm": 4.0, "attention": 3.0}
    now, earlier = (
        contention_fit([row(0, size_bytes=1024, compute=compute)], sm_count=1) for compute in seen
    )
    assert with_earlier_sizes(now, earlier).by_size[0].compute == {"gemm": 3.0, "attention": 3.0}


@pytest.mark.parametrize("ctas", [0, 4])
def test_the_error_is_what_steps_differ_by(ctas: int) -> None:
    noisy = [row(ctas, like=4, spread=spread) for spread in (0.1, 0.3)]
    assert contention_fit(noisy[:1], sm_count=SMS).compute[0].error == pytest.approx(0.1)
    calm = row(ctas, like=4, spread=0.0)
    assert contention_fit([calm], sm_count=SMS).compute[0].error == LEAST_ERROR


def test_two_collectives_at_once_are_as_measured_or_said_to_be_assumed() -> None:
    rows = [row(0, like=4)]
    assumed = contention_fit(rows, sm_count=1)
    assert (assumed.same_links.factor, assumed.other_links.factor) == (2.0, 1.0)
    assert "same links" in assumptions(rows, None)
    assert "different links" in assumptions(rows, None)
    apart = {"shared": False, "factor": 1.25, "samples": 3}
    found = contention_fit(rows, sm_count=1, lanes=apart)
    assert (found.same_links.factor, found.other_links.factor) == (2.0, 1.25)
    assert "same links" in assumptions(rows, apart)
    assert "different links" not in assumptions(rows, apart)
    shared = {"shared": True, "factor": 1.75, "samples": 3}
    found = contention_fit(rows, sm_count=1, lanes=shared)
    assert (found.same_links.factor, found.other_links.factor) == (1.75, 1.0)
    assert "same links" not in assumptions(rows, shared)


def test_what_an_earlier_run_measured_by_size_counts() -> None:
    earlier = contention_fit([row(0, like=4, size_bytes=1024, collective=1.5)], sm_count=1)
    now = [row(0, like=4, size_bytes=size) for size in (1024, 4096)]
    both = with_earlier_sizes(contention_fit(now, sm_count=1), earlier)
    assert [kept.collective_factor for kept in both.by_size] == pytest.approx([1.3, 1.1])
    by_ctas = contention_fit([row(4)], sm_count=SMS)
    assert with_earlier_sizes(by_ctas, earlier) == by_ctas


def test_ops_that_keep_collectives_out_fill_the_gpu() -> None:
    rows = [
        {"op": "all_reduce", "size_bytes": 1 << 26, "ctas": ctas, "emulated": True,
         "compute": {"gemm": 1.1, "attention": 1.1, "pointwise": 1.2}, "collective": 1.1,
         "spread": 0.01, "samples": 2}
        for ctas in (1, 8)
    ]  # fmt: skip
    waits = {"gemm": [0.9, 0.6, 0.3], "pointwise": [0.02, 0.9, 0.04]}
    fit = contention_fit(rows, sm_count=132, waits=waits)
    assert {law.family: law.fills for law in fit.compute} == {
        "gemm": True, "attention": False, "pointwise": False,
    }  # fmt: skip
    assert not any(law.fills for law in contention_fit(rows, sm_count=132).compute)
    assert "as emulated ones do" in assumptions(rows, None)
