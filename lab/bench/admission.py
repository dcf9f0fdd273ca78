"""How a collective gets onto a busy GPU, beside our H200's records: each op withheld. There an
emulated collective ran back to back beside one op, back to back too. The same two lanes are played
with the law that is fitted to all other ops. Of collectives the median is compared, of ops the
mean, as the records have them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Final, Literal, get_args

import numpy as np

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab import sizes_of
from lab.bench.baselines import case_of
from lab.bench.common import SOURCES, shown, time_ms
from lab.fits import contention as law
from lab.fits.common import Floats
from lab.fits.contention import FAMILIES, FILLING, FULL_RATE, full_cells
from lab.fits.measured import GPU
from lab.verdict import Check, at_most, reported, table
from simulator.contention import CollectiveFamily, ComputeFamily, Contention, ContentionFit
from simulator.implementation import LAUNCH_ORDERS
from simulator.ops import Gemm, Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.program import FIRST, REST, WORK_UNIT, Loop, Program, Step
from simulator.schedule import COMPUTE, TP, OpTemplate, Repeat, Schedule, Segment
from simulator.waves import Waves, waves_of
from tests.support.by_hand import record

OPS: Final = 60  # Ops of a loop that is played; its ends are left out
CTAS_PER_SM: Final[dict[float, int]] = {0.0: 4, FULL_RATE: 2}
"""Emulated CTAs that share an SM, by the bytes/ns that each moves, because of their registers: with
4 SMs free, 16 or 8 got in at once, 32 or 16 did not (all three GEMMs of 128 tiles)."""
Rule = Literal["at once", "at its end", "in its last wave"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)
"""When a collective gets in beside a GEMM; of these the last is the simulator's."""
Row = Mapping[str, Any]


Pair = Floats  # Of the op and of the collective
Cell = tuple[str, str, dict[Rule, Pair]]
"""Family, name of the op, and relative errors by rule of one measured cell."""


def admission() -> list[Table]:
    """Return the errors by family and by rule, and what each launch order does to a job."""
    rows = SOURCES.ours("contention")
    gemms = [row for row in rows if row["family"] == "gemm"]
    moving, still = list(_cells(rows, rows, FULL_RATE)), list(_cells(gemms, rows, 0.0))
    return [_beside_records(rows, moving), _rules(moving, still), _launch_orders()]


def _beside_records(rows: Sequence[Row], cells: Sequence[Cell]) -> Table:
    checks: list[Check] = []
    for family in FAMILIES:
        mine = [cell for cell in cells if cell[0] == family]
        op, collective = _error(mine)
        checks += [
            at_most(f"{family}, {len(mine)} cells: the op", 0.05, op),
            at_most(f"{family}: the collective", 0.05, collective),
        ]
        for name in dict.fromkeys(cell[1] for cell in mine):
            some = [cell for cell in mine if cell[1] == name]
            what = f"  {name}, {len(some)} cells: the collective"
            checks.append(reported(what, f"{_error(some)[1]:.1%}"))
        again = _repeated(row for row in rows if row["family"] == family)
        for what, off in zip(("op", "collective"), again, strict=True):
            checks.append(reported(f"  how far the same cells are apart: the {what}", f"{off:.1%}"))
    return shown("beside", checks)


def _rules(moving: Sequence[Cell], still: Sequence[Cell]) -> Table:
    """Return the errors by rule; if a collective that moves nothing is off, it got in wrongly."""
    lines = []
    for what, cells in (("moves nothing", still), ("moves bytes", moving)):
        some = [one for one in cells if one[0] == "gemm"]
        errors = (f"{_error(some, rule)[1]:.1%}" for rule in RULES)
        lines.append((what, len(some), *errors))
    title = "When a collective gets in beside a GEMM: MAPE of the collective by rule"
    return table(title, f"collective|>cells|>{'|>'.join(RULES)}", lines)


def _error(cells: Sequence[Cell], rule: Rule = "in its last wave") -> Pair:
    return np.asarray(np.mean([errors[rule] for *_, errors in cells], axis=0))


def _measured(cell: Row) -> Pair:
    return np.array([cell["op_mean_ns"], cell["collective_ns"]])


def _repeated(rows: Iterable[Row]) -> Pair:
    found: dict[tuple[str, int], list[Pair]] = defaultdict(list)
    for row in rows:
        for cell in row["cells"]:
            if cell["rate"] == FULL_RATE:
                found[row["case"], cell["ctas"]].append(_measured(cell))
    again = [cells for cells in found.values() if len(cells) > 1]
    off = [abs(x / np.mean(cells[:i] + cells[i + 1 :], axis=0) - 1)
           for cells in again for i, x in enumerate(cells)]  # fmt: skip
    return np.asarray(np.mean(off, axis=0))


def _cells(asked: Sequence[Row], rows: Sequence[Row], rate: float) -> Iterator[Cell]:
    """Yield the cells of ``asked``, each by the law of the other cases of ``rows``."""
    fitted: dict[str, ContentionFit] = {}
    for row, cell in full_cells(asked, rate):
        family, case = row["family"], row["case"]
        if case not in fitted:
            fitted[case] = _without(rows, family, case, rate)
        measured, rules = _measured(cell), RULES if family == "gemm" else RULES[-1:]
        errors = {x: abs(_played(row, cell, fitted[case], x) / measured - 1) for x in rules}
        yield family, row["name"], errors


def _without(rows: Sequence[Row], family: str, case: str, rate: float) -> ContentionFit:
    """Return the law without ``case``; collectives that move nothing are not slowed."""
    known: ContentionFit = load_profile(GPU.name).section("contention").fit
    assert known.memory is not None
    others = [row for row in rows if row["case"] != case]
    mine = [one for one in law.beside_cells(others, rate) if one.family == family]
    factor, memory = 1.0, None
    if rate:
        memory, factor = law.fit_memory(law.streamed_cells(others), known.memory.attained_gb_s)
    return replace(
        known, compute=(law.fit_beside(mine, sm_count=GPU.machine.sm_count),),
        collective=replace(known.collective, factor=factor), memory=memory,
    )  # fmt: skip


def _played(row: Row, cell: Row, fit: ContentionFit, rule: Rule) -> Pair:
    op_ns, collective_ns = round(row["alone_again_ns"]), round(cell["collective_alone_ns"])
    count = 1 + OPS * op_ns * 3 // collective_ns
    needs = -(-cell["ctas"] // CTAS_PER_SM[cell["rate"]])
    sent = Step(TP, collective_ns * WORK_UNIT, 2, (), 0, needs=needs)
    steps = (sent,) * count + _op(row, op_ns, rule) * OPS
    beside = ComputeFamily(row["family"], 0 if row["family"] in FILLING else law.gb_s_of(row))
    families = (None, beside, CollectiveFamily(1, 8, ctas=cell["ctas"]))
    told: dict[str, Any] = {"families": families, "contention": Contention(fit)}
    program = Program(root=Loop(body=steps), lanes=2, queue_depth=0, **told)
    templates = tuple(
        OpTemplate("op", -1, Pointwise("copy", 0, 0), step.lane, 0, (), ())
        for step in steps if step.part != REST
    )  # fmt: skip
    schedule = Schedule(parts=(Repeat(segments=(Segment(templates=templates),)),))
    ends: dict[int, list[int]] = {COMPUTE: [], TP: []}
    for template, end in zip(templates, record(schedule, program).end_ns, strict=True):
        ends[template.lane].append(end)
    whole = ends[COMPUTE][-1]
    done = [end for end in ends[TP] if end <= whole]
    return np.array([whole / OPS, statistics.median(b - a for a, b in pairwise(done))])


def _op(row: Row, op_ns: int, rule: Rule) -> tuple[Step, ...]:
    whole, family, name = Step(COMPUTE, op_ns * WORK_UNIT, 1, (), 0), row["family"], row["name"]
    if rule == "at once" or family not in FILLING:
        return (whole,)
    waves = Waves(1, 0)
    if family == "gemm":
        gemm = Gemm(*sizes_of(name, row["shape"]), name, accumulate=name == "wgrad")
        waves = waves_of(gemm, GPU.machine.sm_count)
    if rule == "at its end" or not waves.free_sms:
        return (whole._replace(room=0),)
    first = op_ns * (waves.waves - 1) // waves.waves * WORK_UNIT
    rest = whole._replace(work=whole.work - first, room=waves.free_sms)
    if not first:
        return (rest,)
    return whole._replace(work=first, room=0, part=FIRST), rest._replace(part=REST)


def _launch_orders() -> Table:
    plans = {
        "Megatron-LM with SP": replace(MEGATRON, sequence_parallel=True),
        "2 rows, greedy": SlicePlan(row_slices=2, sequence_parallel=True),
        "2 rows, inter": SlicePlan(order="inter", wgrad="eager", sequence_parallel=True),
        "4 rows, greedy": SlicePlan(row_slices=4, sequence_parallel=True),
    }
    lines = []
    for profile, name in product(("h100-dgx", GPU.name), plans):
        case = case_of(profile, "gpt3-13b", 8)
        hows = (replace(case.workload.implementation, launch_order=one) for one in LAUNCH_ORDERS)
        works = (replace(case.workload, implementation=how) for how in hows)
        times = (time_ms(replace(case, workload=work), plans[name]) for work in works)
        lines.append((profile, name, *(f"{one:.1f}" for one in times)))
    title = "GPT-3 13B at TP 8, 8 × 2,048: ms by launch order"
    return table(title, f"profile|plan|>{'|>'.join(LAUNCH_ORDERS)}", lines)
