"""Heat map of the best iteration time by row and column slices, and a table of plans."""

from __future__ import annotations

from domino_tune.report.data import HeatCell, PlanRow, ReportData
from domino_tune.report.markup import Html, join, section, table, tag
from domino_tune.report.names import gib_text, ms_text
from domino_tune.report.plan_names import plan_key, plan_name
from domino_tune.report.ties import TIE_WORDS, tie_mark, ties

STRONGEST = 72
"""Per cent of full colour of the best (and the worst) cell; text on it stays readable."""


def heat_map(data: ReportData) -> Html:
    """Return the section of the page; empty without cells and plans."""
    if not data.heat and not data.plans:
        return Html("")
    parts = []
    if data.heat:
        note = tag("p", data.heat_note, class_="note") if data.heat_note else ""
        parts.append(tag("div", _grid(data), note))
    if data.plans:
        parts.append(tag("div", _plans(data)))
    return section(
        "cuts", "Every way to cut it", tag("div", *parts, class_="pair"), lead=_lead(data)
    )


def _lead(data: ReportData) -> str:
    times = [cell.iteration_ms for cell in data.heat if cell.iteration_ms is not None]
    if not times:
        return ""
    faster = sum(time < data.numbers.baseline_ms for time in times)
    return (
        f"{faster} of {len(times)} cuts beat Megatron-LM's "
        f"{ms_text(data.numbers.baseline_ms)} ms; the slowest takes {ms_text(max(times))} ms."
    )


def _grid(data: ReportData) -> Html:
    cells = {(cell.row_slices, cell.col_slices): cell for cell in data.heat}
    rows = sorted({cell.row_slices for cell in data.heat})
    columns = sorted({cell.col_slices for cell in data.heat})
    times = [cell.iteration_ms for cell in data.heat if cell.iteration_ms is not None]
    best, worst = min(times, default=0.0), max(times, default=0.0)
    head = tag(
        "tr",
        tag("th", "rows ↓ columns →", scope="col", class_="corner"),
        *(tag("th", str(column), scope="col") for column in columns),
    )
    body = [
        tag(
            "tr",
            tag("th", str(row), scope="row"),
            *(
                _cell(cells.get((row, column)), best, worst, data.numbers.baseline_ms)
                for column in columns
            ),
        )
        for row in rows
    ]
    grid = tag(
        "table",
        tag("caption", "Iteration in ms by row and column slices; green beats Megatron-LM"),
        tag("thead", head), tag("tbody", *body), class_="heat",
    )  # fmt: skip
    return tag(
        "div", grid, class_="scroll", tabindex="0", role="region", aria_label="Heat map of cuts"
    )


def _cell(cell: HeatCell | None, best: float, worst: float, baseline: float) -> Html:
    if cell is None or cell.iteration_ms is None:
        reason = cell.note if cell and cell.note else "not feasible, or not tried"
        return tag("td", "–", class_="none", title=reason)
    time = cell.iteration_ms
    faster = time < baseline
    edge = best if faster else max(worst, baseline)
    share = abs(baseline - time) / abs(baseline - edge) if edge != baseline else 0.0
    kind = ("good" if faster else "bad") + (" best" if time == best else "")
    gain = f"{baseline / time:.2f}×" if time else ""
    return tag(
        "td", ms_text(time), tag("small", gain), class_=kind, title=cell.note or None,
        style=f"--v:{8 + (STRONGEST - 8) * min(1.0, share):.0f}%",
    )  # fmt: skip


def _plans(data: ReportData) -> Html:
    fastest = min(row.iteration_ms for row in data.plans)
    several = sum(ties(row.iteration_ms, fastest) for row in data.plans) > 1
    rows = [
        _plan_row(row, data.numbers.baseline_ms, several and ties(row.iteration_ms, fastest))
        for row in data.plans
    ]
    note = tag("p", TIE_WORDS, class_="note") if several else ""
    return join(table(("Plan", "ms", "speedup", "GiB"), rows, class_="plans"), note, plan_key())


def _plan_row(row: PlanRow, baseline: float, tied: bool) -> tuple[str, ...]:
    memory = "–" if row.peak_memory_gib is None else gib_text(row.peak_memory_gib)
    gain = f"{baseline / row.iteration_ms:.2f}×" if row.iteration_ms else "–"
    name = join(plan_name(row.plan), row.note, tie_mark(tied))
    return name, ms_text(row.iteration_ms), gain, memory
