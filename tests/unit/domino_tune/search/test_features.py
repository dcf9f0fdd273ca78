"""Plans as points: exponents of two, one-hot names, each axis from 0 to 1."""

from __future__ import annotations

import numpy as np

from domino_tune.search.features import Pool, encode
from simulator.plan import SlicePlan


def test_counts_are_exponents_between_the_least_and_the_most() -> None:
    plans = [SlicePlan(row_slices=rows, attn_col_slices=8 // rows) for rows in (1, 2, 8)]
    points = encode(plans)
    assert points[:, 0].tolist() == [0.0, 1 / 3, 1.0]
    assert points[:, 1].tolist() == [1.0, 2 / 3, 0.0]
    assert points[:, 2].tolist() == points[:, 1].tolist(), "dgrads follow the columns"
    assert points.shape == (3, 3), "what all plans share has no column"


def test_nccls_own_choice_stands_below_one_cta() -> None:
    points = encode([SlicePlan(comm_ctas=ctas) for ctas in (0, 1, 2, 8)])
    assert points.ravel().tolist() == [0.0, 0.25, 0.5, 1.0]


def test_names_are_one_hot_and_merging_is_zero_or_one() -> None:
    plans = [
        SlicePlan(order="intra", wgrad="eager"),
        SlicePlan(order="inter", wgrad="eager"),
        SlicePlan(order="paper", wgrad="eager", merge_wgrad=True),
    ]
    assert encode(plans).tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]]


def test_equal_plans_are_one_point() -> None:
    assert encode([SlicePlan(), SlicePlan()]).tolist() == [[0.0], [0.0]]


def test_a_pool_knows_times_from_their_logarithms() -> None:
    logs = np.log(np.array([1e6, 2e6]))
    plans = (SlicePlan(), SlicePlan(row_slices=4))
    pool = Pool(plans=plans, points=encode(plans), log_prior=logs, sensitivity=np.ones((2, 1)))
    assert np.allclose(pool.times_ns, [1e6, 2e6])
