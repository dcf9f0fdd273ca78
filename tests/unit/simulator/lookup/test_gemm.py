"""The chain of answers: row, interpolation, fit, another layout, the roofline."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError, MissingSectionError, ProfileError
from simulator.lookup.gemm import GemmFit, GemmRow, GemmTable
from simulator.lookup.gemm_law import TiledLaw, make_law
from simulator.ops import Gemm
from tests.unit.simulator.lookup.gemm_shapes import PARAMS, PEAK, RANGES, SMS, law_rows, table

GEMM = Gemm(1000, 3000, 3000)


def fit(layout: str = "forward", dtype: str = "bf16") -> GemmFit:
    return GemmFit(
        law="tiled", layout=layout, dtype=dtype, params=PARAMS, error=0.04, ranges=RANGES
    )


def row(m: int, n: int, k: int, us: float, layout: str = "forward", acc: bool = False) -> GemmRow:
    return GemmRow(m, n, k, layout, "bf16", acc, (0, 0, 0), us, 0.01 * us, 20)


def test_a_row_of_the_very_signature_wins() -> None:
    answer = table([row(512, 512, 512, 7.0)], [fit()]).estimate(Gemm(512, 512, 512))
    assert answer == (7.0, "measured", 0.01)


def test_a_strided_row_answers_only_its_own_strides() -> None:
    strided = row(512, 512, 512, 9.0)._replace(strides=(1024, 0, 0))
    answer = table([strided, row(512, 512, 512, 7.0)])
    assert answer.estimate(Gemm(512, 512, 512, strides=(1024, 0, 0))).duration_us == 9.0
    other = answer.estimate(Gemm(512, 512, 512, strides=(2048, 0, 0)))
    assert other.source == "interpolated"


def test_between_rows_it_interpolates_and_stays_near_them() -> None:
    rows = [row(m, n, 1024, 1e-9 * m * n * 1024 + 5) for m in (256, 1024) for n in (512, 2048)]
    answer = table(rows, [fit()]).estimate(Gemm(512, 1024, 1024))
    assert answer.source == "interpolated"
    assert answer.duration_us == pytest.approx(5 + 512 * 1024 * 1024e-9, rel=0.3)


def test_rows_pull_the_law_towards_them() -> None:
    slow = table(law_rows(factor=1.5), [fit()])
    near, law = Gemm(1500, 3000, 3000), make_law("tiled", PARAMS, SMS)
    assert slow.estimate(near).duration_us == pytest.approx(
        1.5 * law.parts(1500, 3000, 3000).total_us, rel=1e-6
    )


def test_without_rows_the_fit_answers_with_its_error() -> None:
    answer = table([], [fit()]).estimate(Gemm(4096, 5120, 640))
    assert (answer.source, answer.error) == ("fitted", 0.04)


@pytest.mark.parametrize(("m", "source"), [(65536, "fitted"), (65537, "extrapolated")])
def test_far_outside_the_range_is_extrapolated_with_a_wider_error(m: int, source: str) -> None:
    answer = table([], [fit()]).estimate(Gemm(m, 5120, 5120))
    assert answer.source == source
    assert answer.error > fit().error


def test_fp16_runs_at_the_rate_of_bf16() -> None:
    known = table([row(512, 512, 512, 7.0)], [fit()])
    for shape in (Gemm(512, 512, 512), Gemm(700, 512, 512)):
        assert known.estimate(shape._replace(dtype="fp16")) == known.estimate(shape)


@pytest.mark.parametrize("layout", ["dgrad", "wgrad"])
def test_another_layout_is_assumed_like_the_known_one(layout: str) -> None:
    known = table([], [fit()])
    own, other = known.estimate(Gemm(4096, 512, 512)), known.estimate(Gemm(4096, 512, 512, layout))  # type: ignore[arg-type]
    assert other.duration_us == own.duration_us
    assert other.source == "assumed"
    assert other.error > own.error


def test_own_layout_comes_before_another() -> None:
    known = table([row(256, 256, 256, 4.0, "dgrad"), row(1024, 1024, 1024, 9.0, "dgrad")], [fit()])
    assert known.estimate(Gemm(512, 512, 512, "dgrad")).source == "interpolated"


def test_accumulating_costs_the_traffic_of_an_fp32_result() -> None:
    known = table([], [fit("wgrad")])
    plain = known.estimate(Gemm(1024, 1024, 8192, "wgrad"))
    added = known.estimate(Gemm(1024, 1024, 8192, "wgrad", accumulate=True))
    assert added.duration_us - plain.duration_us == pytest.approx(1024 * 1024 * 6 / 3.35e12 * 1e6)
    assert added.source == "assumed"


def test_fp32_falls_back_to_the_roofline() -> None:
    answer = table([], [fit()]).estimate(Gemm(1024, 1024, 1024, dtype="fp32"))
    bound = 2 * 1024**3 / PEAK["fp32"] + 4 * 3 * 1024**2 / 3.35e12
    assert answer.source == "assumed"
    assert answer.duration_us == pytest.approx(1e6 * bound)


def test_nothing_known_says_what_is() -> None:
    with pytest.raises(MissingSectionError, match=r"'fp64'.*bf16, fp32"):
        table([], [fit()]).estimate(Gemm(8, 8, 8, dtype="fp64"))


@given(
    m=st.integers(1, 100_000), n=st.integers(1, 100_000), k=st.integers(1, 100_000),
    layout=st.sampled_from(["forward", "dgrad", "wgrad"]), accumulate=st.booleans(),
    with_rows=st.booleans(),
)  # fmt: skip
def test_every_shape_has_a_finite_answer_and_shares_that_sum_to_one(
    m: int, n: int, k: int, layout: str, accumulate: bool, with_rows: bool
) -> None:
    known = WITH_ROWS if with_rows else WITHOUT_ROWS
    gemm = Gemm(m, n, k, layout, "bf16", accumulate)  # type: ignore[arg-type]
    answer = known.estimate(gemm)
    assert math.isfinite(answer.duration_us)
    assert answer.duration_us > 0
    assert answer.error > 0
    assert known.estimate(gemm) == answer
    shares = known.shares(gemm)
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= -1e-12


def test_shares_follow_what_bounds_the_shape() -> None:
    known = table([], [fit()])
    assert known.shares(Gemm(8192, 8192, 8192))[1] > 0.9
    assert known.shares(Gemm(16, 8192, 8192))[2] > 0.5
    assert known.shares(Gemm(16, 32, 32))[0] > 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"error": math.nan}, {"error": -0.1}, {"layout": "sideways"}, {"dtype": "int3"},
        {"params": {**PARAMS, "norm": math.inf}}, {"params": {**PARAMS, "norm": "4"}},
        {"ranges": {"m": (1, 2)}}, {"ranges": {**RANGES, "k": (5, 4)}},
    ],
)  # fmt: skip
def test_an_impossible_fit_is_refused(change: dict[str, object]) -> None:
    given = {"law": "tiled", "layout": "forward", "dtype": "bf16", "params": PARAMS}
    with pytest.raises(ProfileError):
        GemmFit(**{**given, "error": 0.04, "ranges": RANGES, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "params",
    [
        {}, {**PARAMS, "surprise": 1.0}, {**PARAMS, "tile_us": (1.0, 2.0)},
        {**PARAMS, "mb_us": 0.0}, {**PARAMS, "fixed_us": -1e9},
    ],
)  # fmt: skip
def test_a_law_refuses_numbers_it_cannot_use(params: dict[str, float]) -> None:
    with pytest.raises(ProfileError):
        make_law("tiled", params, SMS)


def test_an_unknown_law_names_the_known() -> None:
    with pytest.raises(InputError, match=r"Did you mean 'tiled'.*roofline, tiled"):
        make_law("tilde", PARAMS, SMS)


def test_a_tiled_law_knows_its_gpu() -> None:
    law = make_law("tiled", PARAMS, SMS)
    assert isinstance(law, TiledLaw)
    assert law.sm_count == SMS


def test_a_dtype_that_is_taken_from_bf16_has_its_flops_and_its_bytes_times_as_many() -> None:
    """fp32 here: 15 times the time per FLOP, twice the bytes."""
    known = GemmTable(
        [], fits=[fit()], peak_flops=PEAK, memory_bandwidth=3.35e12, sm_count=SMS,
        times_bf16={"fp32": 15.0},
    )  # fmt: skip
    gemm = Gemm(256, 4096, 512)
    fixed, flops, memory = known.shares(gemm)
    assert min(fixed, flops, memory) > 0.1
    times = fixed + 15 * flops + 2 * memory
    expected = fixed / times, 15 * flops / times, 2 * memory / times
    wide = gemm._replace(dtype="fp32")
    assert known.shares(wide) == pytest.approx(expected)
    us = known.estimate(gemm).duration_us
    assert known.estimate(wide).duration_us == pytest.approx(times * us)


def test_leave_out_error_is_that_of_the_rows() -> None:
    assert WITH_ROWS.leave_out_error() == pytest.approx(0.0, abs=1e-9)
    assert WITHOUT_ROWS.leave_out_error() == 0.0


WITHOUT_ROWS: GemmTable = table([], [fit()])
WITH_ROWS: GemmTable = table(law_rows(factor=1.1), [fit()])


@pytest.mark.parametrize("known", [False, True])
def test_rows_that_add_teach_those_that_overwrite_and_the_other_way_round(known: bool) -> None:
    rows = [row(r.m, r.n, r.k, 1.3 * r.median_us, acc=known) for r in law_rows()]
    borrowed = table(rows, [fit()]).estimate(GEMM._replace(accumulate=not known))
    own = table(rows, [fit()]).estimate(GEMM._replace(accumulate=known))
    extra_us = 6 * GEMM.m * GEMM.n / 3.35e12 * 1e6
    wanted_us = own.duration_us + (-extra_us if known else extra_us)
    assert borrowed.source == "assumed"
    assert borrowed.duration_us == pytest.approx(wanted_us)


def test_more_rows_than_can_teach_one_another_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulator.lookup.gemm.MAX_POINTS", len(law_rows()))
    rows = [
        row(r.m, r.n, r.k, factor * r.median_us, acc=adds)
        for r in law_rows()
        for adds, factor in ((False, 1.0), (True, 1.5))
    ]
    times = [
        table(rows, [fit()]).estimate(GEMM._replace(accumulate=adds)).duration_us
        for adds in (False, True)
    ]
    assert times[1] / times[0] == pytest.approx(1.5, rel=0.02)
