"""Plans as points: counts as exponents, names one-hot, each axis scaled to 0 … 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.plan import SlicePlan

Floats = npt.NDArray[np.float64]


def encode(plans: Sequence[SlicePlan]) -> Floats:
    """Return one row a plan, columns only for what differs between plans.

    A dimension with one value is left out, since scikit-optimize's cannot be that narrow.
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
    """Powers of two as exponents; 0 CTAs (NCCL's choice) sits below 1."""
    counts = [math.log2(count) for count in plan.slices]
    ctas = math.log2(plan.comm_ctas) if plan.comm_ctas else -1.0
    return (*counts, ctas, float(plan.merge_wgrad), plan.order, plan.wgrad)
