"""How a collective gets onto a busy GPU, beside our H200's records: each op withheld.

There an emulated collective ran back to back beside one op, back to back too. The same two lanes
are played with the law that is fitted to all other ops. Of collectives the median is compared, of
ops the mean, as the records have them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Final, Literal, NamedTuple, get_args

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.baselines import case_of
from lab.bench.cases import time_ms
from lab.bench.facts import REPOSITORY
from lab.fits.common import records
from lab.fits.contention import (
    FAMILIES,
    FILLING,
    FULL_RATE,
    beside_cells,
    fit_beside,
    fit_memory,
    full_cells,
    gb_s_of,
    streamed_cells,
)
from lab.fits.measured import GPU
from lab.verdict import Check, at_most, check_table, reported
from simulator.contention import CollectiveFamily, ComputeFamily, Contention, ContentionFit
from simulator.implementation import LAUNCH_ORDERS
from simulator.ops import Gemm, Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.program import FIRST, REST, WORK_UNIT, Loop, Program, Step
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.waves import Waves, waves_of
from tests.support.by_hand import record

NAME: Final = "h200-sxm"
LIMIT: Final = 0.05
OPS: Final = 60
"""Ops of a loop that is played; its ends are left out."""
CTAS_PER_SM: Final[dict[float, int]] = {0.0: 4, FULL_RATE: 2}
"""Emulated CTAs that share an SM, by the bytes/ns that each moves, because of their registers: with
4 SMs free, 16 or 8 got in at once, 32 or 16 did not (all three GEMMs of 128 tiles)."""
Rule = Literal["at once", "at its end", "in its last wave"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)
"""When a collective gets in beside a GEMM; of these the last is the simulator's."""


class Pair(NamedTuple):
    """Two numbers: of the op and of the collective."""

    op: float
    collective: float


class Cell(NamedTuple):
    """One measured cell: relative errors by rule."""

    family: str
    name: str
    errors: dict[Rule, Pair]


def admission() -> list[Table]:
    """Return the errors by family and by rule, and what each launch order does to a job."""
    rows = records(REPOSITORY / "measurements" / NAME / "contention.jsonl.gz")
    gemms = [row for row in rows if row["family"] == "gemm"]
    moving, still = list(_cells(rows, rows, FULL_RATE)), list(_cells(gemms, rows, 0.0))
    return [_beside_records(rows, moving), _rules(moving, still), _launch_orders()]


def _beside_records(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> Table:
    checks: list[Check] = []
    for family in FAMILIES:
        mine = [cell for cell in cells if cell.family == family]
        error = _error(mine)
        again = _repeated(row for row in rows if row["family"] == family)
        names = dict.fromkeys(cell.name for cell in mine)
        parts = {name: [one for one in mine if one.name == name] for name in names}
        checks += [
            at_most(f"{family}, {len(mine)} cells: the op", LIMIT, error.op),
            at_most(f"{family}: the collective", LIMIT, error.collective),
            *(
                reported(f"  {name}, {len(some)} cells: the collective",
                         f"{_error(some).collective:.1%}")
                for name, some in parts.items()
            ),
            reported("  how far the same cells are apart: the op", f"{again.op:.1%}"),
            reported("  how far the same cells are apart: the collective",
                     f"{again.collective:.1%}"),
        ]  # fmt: skip
    return check_table(
        "Op and collective beside each other (MAPE), each op withheld", checks,
        notes=[
            "The same cells: 8 and 32 CTAs were run four times, with each priority and order. "
            "Beside weight gradients, which add to fp32, a collective of two CTAs or more that "
            "moves bytes gets in an op later than one that moves none; why is not known."
        ],
    )  # fmt: skip


def _rules(moving: Sequence[Cell], still: Sequence[Cell]) -> Table:
    """Return the errors beside GEMMs by rule. A collective that moves nothing is not slowed: what
    is off then is when it got in."""
    table = []
    for what, cells in (("moves nothing", still), ("moves bytes", moving)):
        some = [one for one in cells if one.family == "gemm"]
        errors = [_error(some, rule).collective for rule in RULES]
        table.append((what, str(len(some)), *(f"{error:.1%}" for error in errors)))
    return Table(
        title="When a collective gets in beside a GEMM: MAPE of the collective by rule",
        columns=("collective", ">cells", *(f">{rule}" for rule in RULES)),
        rows=table,
    )


def _error(cells: Sequence[Cell], rule: Rule = "in its last wave") -> Pair:
    return _mean([cell.errors[rule] for cell in cells])


def _mean(pairs: Sequence[Pair]) -> Pair:
    return Pair(*(statistics.fmean(some) for some in zip(*pairs, strict=True)))


def _off(one: Pair, other: Pair) -> Pair:
    """Return how far ``one`` is from ``other``, relative."""
    return Pair(*(abs(mine / theirs - 1) for mine, theirs in zip(one, other, strict=True)))


def _measured(cell: Mapping[str, Any]) -> Pair:
    return Pair(cell["op_mean_ns"], cell["collective_ns"])


def _repeated(rows: Iterable[Mapping[str, Any]]) -> Pair:
    """Return the mean distance of a cell from the mean of its three repetitions."""
    found: dict[tuple[str, int], list[Pair]] = defaultdict(list)
    for row in rows:
        for cell in row["cells"]:
            if cell["rate"] == FULL_RATE:
                found[row["case"], cell["ctas"]].append(_measured(cell))
    return _mean([
        _off(one, _mean(cells[:index] + cells[index + 1 :]))
        for cells in found.values() if len(cells) > 1
        for index, one in enumerate(cells)
    ])  # fmt: skip


def _cells(
    asked: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], rate: float
) -> Iterator[Cell]:
    """Yield the cells of ``asked``, each by the law of the other cases of ``rows``."""
    fitted: dict[str, ContentionFit] = {}
    for row, cell in full_cells(asked, rate):
        family, case = row["family"], row["case"]
        if case not in fitted:
            fitted[case] = _without(rows, family, case, rate)
        rules = RULES if family == "gemm" else RULES[-1:]
        yield Cell(
            family, row["name"],
            {
                rule: _off(_played(row, cell, fitted[case], rule), _measured(cell))
                for rule in rules
            },
        )  # fmt: skip


def _without(
    rows: Sequence[Mapping[str, Any]], family: str, case: str, rate: float
) -> ContentionFit:
    """Return the law of ``family`` from all cells but those of ``case``. Collectives that move
    nothing are not slowed; others as those beside pointwise ops are."""
    known: ContentionFit = load_profile(NAME).section("contention").fit
    assert known.memory is not None
    others = [row for row in rows if row["case"] != case]
    mine = [one for one in beside_cells(others, rate) if one.family == family]
    factor, memory = 1.0, None
    if rate:
        found = fit_memory(streamed_cells(others), known.memory.attained_gb_s)
        factor, memory = found.factor, found.law
    return replace(
        known, compute=(fit_beside(mine, sm_count=GPU.machine.sm_count),),
        collective=replace(known.collective, factor=factor), memory=memory,
    )  # fmt: skip


def _played(
    row: Mapping[str, Any], cell: Mapping[str, Any], fit: ContentionFit, rule: Rule
) -> Pair:
    """Return the mean time of an op and the median of a collective in a long loop."""
    op_ns, collective_ns = round(row["alone_again_ns"]), round(cell["collective_alone_ns"])
    count = 1 + OPS * op_ns * 3 // collective_ns
    needs = -(-cell["ctas"] // CTAS_PER_SM[cell["rate"]])
    sent = Step(TP, collective_ns * WORK_UNIT, 2, (), 0, needs=needs)
    steps = (sent,) * count + _op(row, op_ns, rule) * OPS
    beside = ComputeFamily(row["family"], 0 if row["family"] in FILLING else gb_s_of(row))
    families = (None, beside, CollectiveFamily(1, 8, ctas=cell["ctas"]))
    program = Program(
        root=Loop(body=steps), lanes=2, families=families, contention=Contention(fit), queue_depth=0
    )
    templates = tuple(
        OpTemplate("op", -1, Pointwise("copy", 0, 0), step.lane, 0, (), ())
        for step in steps if step.part != REST
    )  # fmt: skip
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),))
    timeline = record(schedule, program)
    ends: dict[int, list[int]] = {COMPUTE: [], TP: []}
    for template, end in zip(templates, timeline.end_ns, strict=True):
        ends[template.lane].append(end)
    whole = ends[COMPUTE][-1]
    done = [end for end in ends[TP] if end <= whole]
    return Pair(whole / OPS, statistics.median(b - a for a, b in pairwise(done)))


def _op(row: Mapping[str, Any], op_ns: int, rule: Rule) -> tuple[Step, ...]:
    """Return the steps of one op."""
    whole = Step(COMPUTE, op_ns * WORK_UNIT, 1, (), 0)
    if rule == "at once" or row["family"] not in FILLING:
        return (whole,)
    waves = waves_of(_gemm(row), GPU.machine.sm_count) if row["family"] == "gemm" else Waves(1, 0)
    if rule == "at its end" or not waves.free_sms:
        return (whole._replace(room=0),)
    first = op_ns * (waves.waves - 1) // waves.waves * WORK_UNIT
    if not first:
        return (whole._replace(room=waves.free_sms),)
    return (
        whole._replace(work=first, room=0, part=FIRST),
        whole._replace(work=whole.work - first, room=waves.free_sms, part=REST),
    )


def _gemm(row: Mapping[str, Any]) -> Gemm:
    tokens, out, wide = row["shape"]
    sizes = {
        "forward": (tokens, out, wide), "dgrad": (tokens, wide, out), "wgrad": (out, wide, tokens)
    }[row["name"]]  # fmt: skip
    return Gemm(*sizes, row["name"], accumulate=row["name"] == "wgrad")


def _launch_orders() -> Table:
    plans = {
        "Megatron-LM with SP": replace(MEGATRON, sequence_parallel=True),
        "2 rows, greedy": SlicePlan(row_slices=2, sequence_parallel=True),
        "2 rows, inter": SlicePlan(order="inter", wgrad="eager", sequence_parallel=True),
        "4 rows, greedy": SlicePlan(row_slices=4, sequence_parallel=True),
    }
    rows = []
    for profile, name in product(("h100-dgx", NAME), plans):
        case, times = case_of(profile, "gpt3-13b", 8), []
        for order in LAUNCH_ORDERS:
            how = replace(case.workload.implementation, launch_order=order)
            there = replace(case, workload=replace(case.workload, implementation=how))
            times.append(f"{time_ms(there, plans[name]):.1f}")
        rows.append((profile, name, *times))
    return Table(
        title="GPT-3 13B at TP 8, 8 × 2,048: ms by launch order",
        columns=("profile", "plan", *(f">{order}" for order in LAUNCH_ORDERS)),
        rows=rows,
    )
