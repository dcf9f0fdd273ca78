"""Unknowns: what a profile does not know about a job's implementation and network.

No error of a look-up covers them, since nothing that was timed shows them. Each says by how much a
family of durations may be longer, with a source other than whole jobs. They only make an iteration
longer: libraries, drivers and networks that were not timed are older or have fewer features. A
family that measured iterations calibrate (``calibration``) is no longer unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from simulator.case import Case
from simulator.draws import Draw, Family
from simulator.issue_order import LayerOrder
from simulator.ordering import order_of
from simulator.plan import SlicePlan
from simulator.predict import predict


class Unknown(NamedTuple):
    """``name``: one word. ``factors``: of durations, at the slow end of timings from elsewhere.
    ``why``: in words."""

    name: str
    factors: Mapping[Family, float]
    why: str

    @property
    def draw(self) -> Draw:
        """The machine that has this unknown's slow durations."""
        return Draw(factors=self.factors)


KERNELS_OF_2022: Final = Unknown(
    "kernels",
    dict.fromkeys(("gemm_forward", "gemm_dgrad", "gemm_wgrad", "attention", "pointwise"), 1.15),
    "{how} runs kernels of 2022, and the profile times those of today: GEMMs of a Llama 2 layer on "
    "an H100 took 10 to 15 % longer with the libraries of 2024",
)
"""Sources: data/measured/h100_layer_gemms_llama2.csv.gz beside h100_gemm_bf16.csv.gz."""
HOST_OF_2022: Final = Unknown(
    "host",
    {"launch": 3.0},
    "nobody timed {how} on hosts of its time: on older ones a launch takes up to three times what "
    "is assumed (--cuda-graph leaves it out)",
)
"""A kernel takes 6 us of today's hosts that were timed, and up to 18 us of others."""
NETWORK: Final = Unknown(
    "network",
    {"collective_between_nodes": 2.0},
    "nobody timed the network of these nodes, and what is published of nodes with one GPU differs "
    "by a factor of two",
)
"""machines.csv of ai-dynamo/aiconfigurator has 800 Gb/s for each B200, vendors sell 400; A100s are
sold with 200 Gb/s each (DGX A100) and with less."""


class Wider(NamedTuple):
    """By how much an unknown may make an iteration longer, ns."""

    unknown: Unknown
    more_ns: int


def wider(case: Case, plan: SlicePlan, order: LayerOrder | None = None) -> tuple[Wider, ...]:
    """Return by how much each unknown may make an iteration of ``plan`` longer, if it does."""
    unknown = unknowns_of(case)
    if not unknown:
        return ()
    order = order or order_of(case, plan)
    usual_ns = predict(case, plan, order).makespan_ns
    found = (
        Wider(one, predict(case.drawn(one.draw), plan, order).makespan_ns - usual_ns)
        for one in unknown
    )
    return tuple(one for one in found if one.more_ns > 0)


def highest(middle: float, high: float, more: Iterable[float]) -> float:
    """Return the upper end of an interval around ``middle``, raised by what is unknown."""
    return middle + math.hypot(high - middle, *more)


def unknowns_of(case: Case) -> tuple[Unknown, ...]:
    """Return the unknowns that apply to the case."""
    how, told = case.workload.implementation.name, case.cost.draw.errors
    of_2022 = how == "megatron-2022" and case.profile.machine.backend == "nccl"
    found = (
        one._replace(why=one.why.format(how=how))
        for one, holds in (
            (KERNELS_OF_2022, of_2022),
            (HOST_OF_2022, of_2022 and case.cost.launch.mode == "async"),
            (NETWORK, _crosses_nodes(case) and not _times_nodes(case)),
        )
        if holds and not one.factors.keys() <= told.keys()
    )
    return tuple(found)


def _crosses_nodes(case: Case) -> bool:
    return case.cluster.domains > 1


def _times_nodes(case: Case) -> bool:
    """Whether the profile has timings of any group over several nodes."""
    section = case.profile.collectives
    if section is None:
        return False
    rows, fits = section.rows, section.fits
    return any(row.nodes > 1 for row in rows) or any(fit.nodes > 1 for fit in fits)
