"""Gaussian processes of GEMM tables against the textbook's formulas, written out for few rows."""

from __future__ import annotations

from itertools import product
from math import exp, expm1, log

import numpy as np
import pytest

from simulator.lookup.gemm_law import Floats, RooflineLaw
from simulator.lookup.gemm_table import GemmCurves, GemmPoints, calibrated, kernel, way

LAW = RooflineLaw(fixed_us=2.0, flops_per_us=1e9, bytes_per_us=3e6)
Shape = tuple[int, int, int]


def test_a_kernel_is_a_sum_of_exponentials_of_distances() -> None:
    left, right = np.array([[0.0, 1.0]]), np.array([[0.5, 3.0], [0.0, 1.0]])
    found = kernel(left, right, [(0.3, (2.0, 4.0)), (0.1, (1.0, 0.5))])
    assert found.tolist() == [
        pytest.approx([0.3 * exp(-0.25 - 0.5) + 0.1 * exp(-0.5 - 4.0), 0.4]),
    ]


def test_errors_are_scaled_to_those_of_the_rows_left_out() -> None:
    """Mean of |e^x − 1|; a prior of 8 % weighs as four rows; deviations have the mean 0.02."""
    logs, deviations = np.array([0.1, -0.2, 0.05]), np.array([0.01, 0.02, 0.03])
    mean = (expm1(0.1) - expm1(-0.2) + expm1(0.05)) / 3
    expected = (3 * mean + 4 * 0.08) / 7
    assert calibrated(logs, deviations) == pytest.approx((mean, expected / 0.02))
    alone = calibrated(np.array([0.0]), np.array([0.02]))
    assert alone == pytest.approx((4 * 0.08 / 5, 4 * 0.08 / 5 / 0.02))
    two = calibrated(np.array([0.0, 0.0]), np.array([0.02, 0.02]))
    assert two == pytest.approx((0.0, 4 * 0.08 / 6 / 0.02))


def test_every_way_to_write_has_its_bit() -> None:
    found = [
        way(accumulate=adds, bias=bias, strided=strided)
        for strided, bias, adds in product((False, True), repeat=3)
    ]
    assert found == list(range(8))


def covariance(one: Shape, other: Shape, alike: int) -> float:
    """The module's kernel: trend, same tile grid, same n and k; a fifth is shared by rows that
    write alike, and 2/300 for each of three properties that is equal."""
    m, n, k = (abs(log(a / b)) for a, b in zip(one, other, strict=True))
    smooth = 6e-2 * exp(-m / 25 - n / 12 - k / 12)
    grid = 8e-4 * exp(-m / 0.01 - n / 0.1 - k / 2)
    along_m = 5e-4 * exp(-m / 5 - n / 0.01 - k / 0.01)
    return (smooth + grid + along_m) * (1.0 if alike == 3 else 0.8) + 2e-2 / 3 * alike


@pytest.mark.parametrize("ways", [(0, 0), (0, 1), (5, 2)])
def test_two_rows_teach_as_the_textbook_says(ways: tuple[int, int]) -> None:
    shapes: list[Shape] = [(64, 512, 1024), (256, 540, 1024)]
    asked: Shape = (128, 520, 2000)
    wanted = ways[0]
    alike = [3 - bin(w ^ wanted).count("1") for w in ways]
    between = 3 - bin(ways[0] ^ ways[1]).count("1")
    residuals, spread = np.array([0.1, 0.3]), 0.1
    times = [LAW.parts(*shape).total_us for shape in shapes]
    us = np.array(times) * np.exp(residuals)
    noise = 1.5e-4 + 0.3 * spread**2
    matrix = np.array(
        [
            [covariance(shapes[0], shapes[0], 3) + noise,
             covariance(shapes[0], shapes[1], between)],
            [covariance(shapes[0], shapes[1], between),
             covariance(shapes[1], shapes[1], 3) + noise],
        ]
    )  # fmt: skip
    near = np.array([covariance(asked, s, a) for s, a in zip(shapes, alike, strict=True)])
    offset = float(near @ np.linalg.solve(matrix, residuals - 0.2))
    points = GemmPoints(
        np.array(shapes, dtype=float), us, spread * us, np.array(ways, dtype=np.intp), LAW
    )
    found_us, error = points.predict(*asked, wanted)
    assert found_us == pytest.approx(LAW.parts(*asked).total_us * exp(0.2 + offset))
    # Left out, each row is predicted from the other one: 0.2 ∓ their shared part of 0.1.
    inverse = np.linalg.inv(matrix)
    left_out = inverse @ (residuals - 0.2) / np.diag(inverse)
    deviations = np.diag(inverse) ** -0.5
    mean = float(np.abs(np.expm1(left_out)).mean())
    scale = (2 * mean + 4 * 0.08) / 6 / float(deviations.mean())
    prior = 2e-2 + 6e-2 + 8e-4 + 5e-4
    variance = prior + 1.5e-4 - float(near @ np.linalg.solve(matrix, near))
    assert points.leave_out_error == pytest.approx(mean)
    assert error == pytest.approx(scale * variance**0.5)


def curve_covariance(one: Floats, other: Floats) -> float:
    """The kernel of curves over (n, k): a smooth part, and one of nearly the same n."""
    n, k = np.abs(np.log(one / other))
    return float(5e-3 * np.exp(-n / 2 - k / 2) + 2e-3 * np.exp(-n / 0.07 - k / 2))


def test_two_curves_teach_as_the_textbook_says() -> None:
    """Pairs (512, 1024) and (540, 2048), both timed at m = 64 and 256."""
    pairs = np.array([[512.0, 1024.0], [540.0, 2048.0]])
    residuals = np.array([[0.1, 0.2], [0.3, 0.5]])
    m = np.array([64.0, 256.0, 64.0, 256.0])
    n, k = np.repeat(pairs, 2, axis=0).T
    us = LAW.times_us(m, n, k) * np.exp(residuals.ravel())
    curves = GemmCurves(m, n, k, us, LAW)
    matrix = np.array([[curve_covariance(a, b) for b in pairs] for a in pairs]) + 5e-4 * np.eye(2)
    asked = np.array([530.0, 1500.0])
    near = np.array([curve_covariance(asked, pair) for pair in pairs])
    mean = residuals.mean(axis=0)
    inverse = np.linalg.inv(matrix)
    at_ends = mean + near @ inverse @ (residuals - mean)
    for rows, residual in ((64, at_ends[0]), (128, at_ends.mean()), (256, at_ends[1])):
        found_us, _ = curves.predict(rows, 530, 1500)
        assert found_us == pytest.approx(LAW.parts(rows, 530, 1500).total_us * exp(residual))
    _, error = curves.predict(64, 530, 1500)
    left_out = inverse @ (residuals - mean) / np.diag(inverse)[:, None]
    least = float(np.abs(np.expm1(left_out)).mean())
    scale = (2 * least + 4 * 0.08) / 6 / float((np.diag(inverse) ** -0.5).mean())
    variance = 5e-3 + 2e-3 + 5e-4 - float(near @ inverse @ near)
    assert curves.leave_out_error == pytest.approx(least)
    assert error == pytest.approx(scale * variance**0.5)
