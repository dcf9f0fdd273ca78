"""Claims of the Domino paper beside the simulator's predictions. Nothing is fitted to the paper.

Paper (arXiv 2409.15241): row slices hide up to 100 % of communication on one node, column slices
alone 50–70 %. It is up to 1.3× faster than Megatron-LM.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.search import SpaceSpec, enumerate_plans
from lab.bench.cases import make_case, model_for
from simulator.case import Case
from simulator.closed_form import ClosedForm
from simulator.cost import Changes
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.recurrence import Totals

MODELS_SEEN: Final = ("gpt3-6.7b", "gpt3-13b", "llama2-7b", "llama2-13b")
TP: Final = (8, 16, 32)
SEQ: Final = (512, 1024)
BATCHES: Final = (8, 16, 32)
ROWS: Final = SpaceSpec(row_slices=(2, 4, 8), col_slices=(1,), dgrad_slices=())
COLUMNS: Final = SpaceSpec(row_slices=(1,), col_slices=(2, 4, 8), dgrad_slices=())
BOTH: Final = SpaceSpec(row_slices=(1, 2, 4, 8), col_slices=(1, 2, 4), dgrad_slices=())
NO_CONTENTION: Final = Changes(contention=0.0)


class Prediction(NamedTuple):
    """One case. ``exposed``: Megatron's share of an iteration. ``rows``, ``columns``: shares of
    communication hidden by row or column slices alone. ``gain``: speedup of the best plan."""

    exposed: float
    rows: float
    columns: float
    gain: float
    plan: str


def paper() -> list[Table]:
    """Return the ranges for each TP degree, and a row for each case."""
    found: dict[tuple[int, bool], list[Prediction]] = {}
    lines = []
    for name, tp, seq, batch in product(MODELS_SEEN, TP, SEQ, BATCHES):
        case = make_case(model_for(name, tp), tp, seq, batch)
        on = predict_case(case)
        off = predict_case(replace(case, changes=NO_CONTENTION))
        found.setdefault((tp, True), []).append(on)
        found.setdefault((tp, False), []).append(off)
        lines.append((name, str(tp), str(seq), str(batch), *_columns(on), *_columns(off)))
    return [_summary(found), _cases(lines)]


def predict_case(case: Case) -> Prediction:
    """Predict the best plans of row slices alone, of column slices alone, and of all."""
    closed_form = ClosedForm(case)
    base = predict(case, MEGATRON)
    _, rows = _best(case, closed_form, ROWS)
    _, columns = _best(case, closed_form, COLUMNS)
    plan, both = _best(case, closed_form, BOTH)
    return Prediction(
        exposed=base.exposed_ns / base.makespan_ns,
        rows=_hidden(rows),
        columns=_hidden(columns),
        gain=base.makespan_ns / both.makespan_ns,
        plan=plan.cut,
    )


def _best(case: Case, closed_form: ClosedForm, spec: SpaceSpec) -> tuple[SlicePlan, Totals]:
    """Return the fastest plan. It is proven: plans are skipped only for their lower bound."""
    plans = enumerate_plans(case.model, case.workload, spec=spec)
    best: tuple[SlicePlan, Totals] | None = None
    bounded = [(closed_form.lower_bound_ns(plan), plan) for plan in plans]
    for bound_ns, plan in sorted(bounded, key=lambda item: item[0]):
        if best is not None and bound_ns >= best[1].makespan_ns:
            break
        found = predict(case, plan)
        if best is None or found.makespan_ns < best[1].makespan_ns:
            best = plan, found
    assert best is not None
    return best


def _hidden(found: Totals) -> float:
    return 1 - found.exposed_ns / found.comm_ns


def _columns(found: Prediction) -> tuple[str, ...]:
    return (
        f"{100 * found.exposed:.0f}%", f"{100 * found.rows:.0f}%", f"{100 * found.columns:.0f}%",
        f"{found.gain:.2f}×", found.plan,
    )  # fmt: skip


def _cases(lines: list[tuple[str, ...]]) -> Table:
    return Table(
        title="Every case: Megatron's exposed share, share hidden by rows alone and by columns "
        "alone, gain and cut of the best plan; with contention | without",
        columns=("model", ">tp", ">seq", ">batch", ">exposed", ">rows", ">cols", ">gain", "cut",
                 ">| exposed", ">rows", ">cols", ">gain", "cut"),
        rows=lines,
        notes=["Rows alone: 2, 4, 8; columns alone: 2, 4, 8; best: rows 1–8, columns 1–4 a block, "
               "all orders. Memory is not checked. Cut: rows × attention/MLP columns."],
    )  # fmt: skip


def _summary(found: dict[tuple[int, bool], list[Prediction]]) -> Table:
    rows = []
    for (tp, contended), cases in sorted(
        found.items(), key=lambda item: (item[0][0], not item[0][1])
    ):
        rows.append((
            str(tp), "with" if contended else "without",
            _range([case.rows for case in cases]), _range([case.columns for case in cases]),
            f"{min(c.gain for c in cases):.2f}–{max(c.gain for c in cases):.2f}×",
            f"{median(c.gain for c in cases):.2f}×",
        ))  # fmt: skip
    rows.append(("8 … 32", "paper", "up to 100% (one node)", "50–70%", "up to 1.3×", "-"))
    return Table(
        title="The paper's claims: GPT-3 6.7B, 13B and Llama-2 7B, 13B, seq 512 and 1024, "
        "micro-batch 8, 16 and 32",
        columns=("tp", "contention", "hidden by rows alone", "by columns alone", "gain", ">median"),
        rows=rows,
    )


def _range(shares: list[float]) -> str:
    return f"{100 * min(shares):.0f}–{100 * max(shares):.0f}%"
