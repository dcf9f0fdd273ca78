"""How long collectives wait for later ranks: compute alone and beside others counts apart."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.compiler import compile_program
from simulator.contention import ComputeContention, Contention, ContentionFit, Slowdown
from simulator.cpu_hosts import SkewFit, SkewRow
from simulator.launch import Launch
from simulator.ops import Collective, Gemm, Signature
from simulator.program import WORK_UNIT
from simulator.schedule import COMPUTE, DP, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.values import Ref
from tests.unit.simulator.dags import TableCost

ROWS = (SkewRow(1000.0, 1000.0),)
"""A wait as long as the compute before it."""
Item = tuple[int, int] | tuple[int, int, str]
"""Lane, duration alone (ns), and the value of the op that it reads: ``v0`` is the first op's."""


def waits_ns(*items: Item, slower: float = 1.0, count: int = 1, **skew: Any) -> list[int]:
    """The wait of each collective (ns), where a GEMM beside one takes ``slower`` times as long."""
    law = ContentionFit(
        sm_count=1, default_ctas=1,
        compute=(ComputeContention(family="gemm", sms_per_cta=0, factor=slower, error=0.0),),
        collective=Slowdown(factor=1.0, error=0.0), same_links=Slowdown(factor=1.0, error=0.0),
        other_links=Slowdown(factor=1.0, error=0.0),
    )  # fmt: skip
    durations: dict[Signature, int] = {}
    templates = []
    for number, (lane, spent_ns, *reads) in enumerate(items):
        signature = Collective("all_reduce", number, 2, 1) if lane else Gemm(number, 1, 1)
        durations[signature] = spent_ns
        templates.append(OpTemplate(
            f"attn.{number}", -1, signature, lane, 0, tuple(Ref(name) for name in reads),
            (Ref(f"v{number}"),),
        ))  # fmt: skip
    fit = SkewFit(slowest_factor=1.0, error=0.0, **skew)
    cost = TableCost(durations, Contention(law), Launch(mode="none"), fit)
    segment = Segment(templates=tuple(templates), count=count)
    schedule = Schedule(parts=(Repeat(segments=(segment,)),))
    steps, found = compile_program(schedule, cost).root.steps(), []
    for before, step in zip((None, *steps), steps, strict=False):
        if step.lane and step.family:
            late = before is not None and before.lane == step.lane and not before.family
            found.append(before.work // WORK_UNIT if late and before else 0)
    return found


def test_compute_beside_a_flight_counts_apart() -> None:
    """300 ns alone, which nobody waits for; a collective of 500 ns, 200 ns beside it."""
    first = ((COMPUTE, 300), (TP, 500), (COMPUTE, 200))
    assert waits_ns(*first, (TP, 500), beside=ROWS) == [0, 200]
    assert waits_ns(*first, (DP, 500), rows=ROWS, beside=ROWS) == [300, round(130_000**0.5)]


def test_what_is_beside_counts_at_its_slowed_length() -> None:
    """Beside 500 ns of a collective, 250 ns of a GEMM that takes twice as long; 150 ns after it."""
    items = ((TP, 500), (COMPUTE, 400), (TP, 500))
    assert waits_ns(*items, slower=2.0, beside=ROWS) == [0, 500]
    rows = (SkewRow(0.15, 0.15),)
    assert waits_ns(*items, slower=2.0, rows=rows, beside=(SkewRow(1.0, 0.0),)) == [0, 150]


def test_what_compute_waited_for_has_landed() -> None:
    """The second collective counts 100 ns beside the first, then as many alone."""
    items = ((TP, 500), (TP, 500), (COMPUTE, 100, "v0"), (COMPUTE, 100, "v1"), (TP, 500))
    assert waits_ns(*items, beside=ROWS) == [0, 0, 100]
    assert waits_ns(*items, rows=ROWS, beside=(SkewRow(1.0, 0.0),)) == [0, 0, 100]


def test_both_parts_of_a_wait_add_up_as_roots_of_squares() -> None:
    items = ((COMPUTE, 400), (DP, 300), (COMPUTE, 300), (TP, 500))
    assert waits_ns(*items, rows=ROWS, beside=ROWS) == [400, 500]


@pytest.mark.parametrize("rows", [(), ROWS])
def test_without_rows_of_its_own_all_compute_counts_as_alone(rows: tuple[SkewRow, ...]) -> None:
    found = waits_ns((TP, 500), (COMPUTE, 200), (COMPUTE, 100), (TP, 500), rows=rows)
    assert found == [0, 300 if rows else 0]
