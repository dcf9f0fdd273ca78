"""Plans that ran on one GPU, beside what was predicted of them then and what is today."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from domino_tune.base.tables import Table
from lab.fidelity.page import choice_checks, detail, worst_errors
from lab.fidelity.scores import Setting, score, setting_from
from lab.fidelity.settings import KINDS
from lab.gpu.proof import SHAPES, WAYS, ProofCase, measured_profile, proof_case
from lab.verdict import Check, at_most, check_table, reported
from simulator.plan import SlicePlan
from simulator.predict import played
from simulator.units import MS_PER_NS

Row = Mapping[str, Any]
ERROR: Final = 0.03
REGRET: Final = 0.01
EMULATED: Final = (
    "Some layers with the true shards of one rank. Collectives are emulated: their durations are "
    "the profile's and were not measured. Ops and launches were measured on this GPU before any "
    "plan ran. link: the way to launch ops. Other columns: results/fidelity.md."
)
ANEW: Final = (
    "Of the plans that ran, those whose cut has a name, by today's laws, planned again by them."
)


def proof_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the plans' targets and times, and predictions of today beside those of then, of ways
    to launch that the runtime still has."""
    ways = [proof_case(*shape, *way) for shape in SHAPES for way in WAYS]
    names = {f"plans {one.ops.name} {one.launch}" for one in ways}
    settings = [setting_from(row["setting"]) for row in rows if row["case"] in names]
    if not settings:
        return []
    return [check_table("Emulated on one GPU", proof_checks(settings), [EMULATED]),
            *detail(settings), predicted_anew(rows)]  # fmt: skip


def proof_checks(settings: Sequence[Setting]) -> list[Check]:
    """Return the targets beside the measured numbers."""
    total = score(settings)
    return [
        reported("cells (plans of a model, batch and way to launch)", str(total.cells)),
        reported("noise floor: the same plan in two launches", f"{total.noise:.2%}"),
        at_most("iteration time, mean absolute error", ERROR, total.error),
        reported("the same at the GPU's speed while plans ran", f"{total.steady_error:.2%}"),
        *worst_errors(total),
        *choice_checks(total, REGRET),
    ]


def predicted_anew(rows: Sequence[Row]) -> Table:
    """Return the errors of today's predictions, by way of launching."""
    ran = {row["case"]: row for row in rows}
    checks: list[Check] = []
    for way in WAYS:
        cases = [proof_case(*shape, *way) for shape in SHAPES]
        errors = [error for case in cases for error in _errors(ran, case)]
        if errors:
            name = f"{cases[0].launch}, {len(errors)} plans"
            checks += [
                at_most(f"{name}: mean error", ERROR, statistics.fmean(map(abs, errors))),
                reported("  from, to", f"{min(errors):+.1%}, {max(errors):+.1%}"),
            ]
    return check_table("The same plans by today's laws", checks, [ANEW])


def _errors(ran: Mapping[str, Row], proof: ProofCase) -> list[float]:
    """Return how far off the predictions of the cuts that have names are, if they ran."""
    name = proof.ops.name
    row, ops = ran.get(f"plans {name} {proof.launch}"), ran.get(f"ops {name}")
    if row is None or ops is None:
        return []
    case = proof.predicted_by(measured_profile([ops]))
    named = {plan.label: plan for plan in (*KINDS["plain"].plans.values(), SlicePlan())}
    return [
        played(case, named[cell.label]).totals.makespan_ns
        * MS_PER_NS
        / statistics.median(cell.first)
        - 1
        for cell in setting_from(row["setting"]).cells
        if cell.label in named
    ]
