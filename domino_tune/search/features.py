"""Pool: the plans that a Bayesian search chooses from, as points.

Counts are exponents of two, names are one-hot, and each axis is scaled to 0 … 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.plan import SlicePlan

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Observations = Mapping[int, tuple[float, float]]
"""Log ns and its standard error, by index in a pool."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Plans to choose from, and the expectation for each before it is evaluated.

    ``points``: [n, d] features. ``log_prior``: [n] log of the expected ns. ``sensitivity``: [n, k]
    change of log ns under each of k errors that the expectation may have.
    """

    plans: tuple[SlicePlan, ...]
    points: Floats
    log_prior: Floats
    sensitivity: Floats

    @property
    def times_ns(self) -> Floats:
        """Return the [n] expected ns."""
        return np.asarray(np.exp(self.log_prior))


def encode(plans: Sequence[SlicePlan]) -> Floats:
    """Return one row per plan, with columns only for what differs between plans.

    scikit-optimize refuses a dimension with only one value.
    """
    from skopt.space import Categorical, Real, Space  # takes 1.3 s to import

    columns = [column for column in zip(*map(_raw, plans), strict=True) if len(set(column)) > 1]
    if not columns:
        return np.zeros((len(plans), 1))
    dimensions: list[Any] = [
        Categorical(sorted(set(column)), transform="onehot")
        if isinstance(column[0], str)
        else Real(min(column), max(column), transform="normalize")
        for column in columns
    ]
    points = Space(dimensions).transform(list(zip(*columns, strict=True)))
    return np.asarray(points, dtype=np.float64)


def _raw(plan: SlicePlan) -> tuple[float | str, ...]:
    """Return the features, with powers of two as exponents; 0 CTAs (NCCL's choice) is placed below
    1.
    """
    counts = [math.log2(count) for count in plan.slices]
    ctas = math.log2(plan.comm_ctas) if plan.comm_ctas else -1.0
    flags = (float(plan.merge_wgrad), float(plan.sequence_parallel))
    return (*counts, ctas, *flags, plan.order, plan.wgrad, f"{plan.slice_dim} {plan.slice_balance}")
