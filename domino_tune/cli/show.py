"""Print results as tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from domino_tune.base.progress import Progress, no_progress
from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.results import (
    ModelsResult,
    PlanResult,
    Simulated,
    Tuned,
    Variant,
    WhatIfPoint,
    WhatIfResult,
)
from domino_tune.results.simulate import workload_line
from domino_tune.results.tune import ContentionSensitivity, GridCell, TrialResult
from simulator.issue_order import IssueOrder


def models(result: ModelsResult) -> None:
    """Print one row a preset."""
    rows = [
        (
            model.name, f"{model.parameters / 1e9:.1f} B", str(model.num_hidden_layers),
            str(model.hidden_size), str(model.num_attention_heads), str(model.num_key_value_heads),
            str(model.intermediate_size), str(model.vocab_size),
            str(model.max_position_embeddings), _kind(model.gated_mlp, model.norm),
        )
        for model in result.models
    ]  # fmt: skip
    print_table(
        Table(
            columns=(
                "model", ">parameters", ">layers", ">hidden", ">heads", ">kv heads", ">ffn",
                ">vocabulary", ">positions", "kind",
            ),
            rows=rows,
        )
    )  # fmt: skip


def _kind(gated: bool, norm: str) -> str:
    return f"{'SwiGLU' if gated else 'GeLU'}, {'RMSNorm' if norm == 'rmsnorm' else 'LayerNorm'}"


def simulate(result: Simulated) -> None:
    """Print baseline, chosen plan and bound, one row each; then the confidence."""
    print_table(
        Table(
            title=workload_line(result.model, result.workload, result.cluster, result.profile.name),
            columns=(
                "", "plan", ">iteration", ">speedup", ">compute", ">comm", ">exposed", ">hidden",
                ">idle", ">memory", ">tokens/s",
            ),
            rows=[
                _variant_row(name, variant, result.baseline_ms)
                for name, variant in result.variants.items()
            ],
            marked=(1,),
            notes=(_confidence_line(result),),
            narrow=(
                "idle", "compute", "tokens/s", "memory", "comm", "hidden", "exposed", "plan",
            ),
            below="plan",
        )
    )  # fmt: skip
    warn(result.warnings)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to stderr, which is visible when stdout goes into a pipe."""
    for text in warnings:
        print_line(f"warning: {text}", sys.stderr, "yellow")


def ms(value: float) -> str:
    """Return milliseconds as text, to 0.1 ms."""
    return f"{value:,.1f} ms"


def _variant_row(name: str, variant: Variant, baseline_ms: float) -> tuple[str, ...]:
    return (
        "bound" if name == "no_comm" else name, variant.label, ms(variant.iteration_ms),
        f"{baseline_ms / variant.iteration_ms:.3f}x", ms(variant.compute_ms), ms(variant.comm_ms),
        ms(variant.exposed_comm_ms), f"{variant.hidden_comm_fraction:.0%}", ms(variant.idle_ms),
        f"{variant.peak_memory_gib:.1f} GiB", f"{variant.tokens_per_second:,.0f}",
    )  # fmt: skip


def _confidence_line(result: Simulated) -> str:
    interval = result.interval_ms
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in result.confidence_shares.items())
    return (
        f"Confidence {result.confidence}: {interval.low:,.0f}–{interval.high:,.0f} ms; "
        f"time by source of lookup: {shares}."
    )


def tune(result: Tuned) -> None:
    """Print the best plan, the grid of cuts, the closest rivals, and where the choice changes."""
    simulate(result.best)
    _grid(result)
    fastest = min(trial.iteration_ms for trial in result.trials)
    ranked = sorted(_shortlist(result), key=lambda trial: trial.iteration_ms)
    print_table(
        Table(
            title="The chosen plan, and the fastest of each number of row slices",
            columns=(">row slices", "plan", ">micro-batch", ">iteration", ">above fastest",
                     ">memory"),
            rows=[
                (
                    str(trial.plan.row_slices), trial.plan.label, str(trial.micro_batch_size),
                    ms(trial.iteration_ms), f"{trial.iteration_ms / fastest - 1:+.1%}",
                    f"{trial.peak_memory_gib:.1f} GiB",
                )
                for trial in ranked
            ],
            marked=[i for i, trial in enumerate(ranked) if _is_best(trial, result)],
            notes=[_search_line(result), *_contention_lines(result.contention)],
            narrow=("micro-batch", "memory", "plan"),
            below="plan",
        )
    )  # fmt: skip


def _grid(result: Tuned) -> None:
    """Print the fastest plan of each cut, rows by columns."""
    columns = sorted({cell.col_slices for cell in result.grid})
    rows = sorted({cell.row_slices for cell in result.grid})
    cells = {(cell.row_slices, cell.col_slices): cell for cell in result.grid}
    print_table(
        Table(
            title="Iteration time by cut: row slices down, column slices of both blocks across",
            columns=(">rows", *(f">{column} column{'s' * (column > 1)}" for column in columns)),
            rows=[
                (str(row), *(_cell_text(cells[row, column]) for column in columns)) for row in rows
            ],
            marked=[i for i, row in enumerate(rows) if row == result.best.plan.row_slices],
        )
    )


def _cell_text(cell: GridCell) -> str:
    return cell.reason if cell.iteration_ms is None else ms(cell.iteration_ms)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a status line where stderr is a terminal; print nothing elsewhere."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:
        yield lambda message: status.update(message)


@contextmanager
def still_progress() -> Iterator[Progress]:
    """Show a status line without a spinner, which would slow ranks that are timed."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    clear, width = "\r\x1b[K", shutil.get_terminal_size().columns - 1

    def update(message: str) -> None:
        print(f"{clear}{message[:width]}", end="", file=sys.stderr, flush=True)

    try:
        yield update
    finally:
        print(clear, end="", file=sys.stderr, flush=True)


def _shortlist(result: Tuned) -> list[TrialResult]:
    chosen = [trial for trial in result.trials if _is_best(trial, result)]
    fastest: dict[int, TrialResult] = {}
    for trial in sorted(result.trials, key=lambda trial: trial.iteration_ms):
        fastest.setdefault(trial.plan.row_slices, trial)
    return [*chosen, *(trial for trial in fastest.values() if trial not in chosen)]


def _is_best(trial: TrialResult, result: Tuned) -> bool:
    same_batch = trial.micro_batch_size == result.best.workload.micro_batch_size
    return same_batch and trial.plan == result.best.plan


def _search_line(result: Tuned) -> str:
    infeasible = ", ".join(f"{count:,} {reason}" for reason, count in result.infeasible.items())
    certainty = "proven optimal" if result.optimality == "proven" else "best found, not proven"
    return (
        f"{result.search}: {certainty}; {result.space_size:,} combinations, "
        f"{result.evaluations:,} simulated, {result.pruned:,} ruled out by a bound, "
        f"not runnable: {infeasible or 'none'}; {result.seconds:.1f} s. Among plans within 1 % of "
        "the fastest, less memory and fewer slices win."
    )


def _contention_lines(found: ContentionSensitivity | None) -> list[str]:
    """Return at which contention the best plan changes, in words."""
    if found is None:
        return []
    if len(found.crossovers) == 1:
        ends = f"{_contention(found.points[0].factor)} to {_contention(found.points[-1].factor)}"
        return [f"The same plan wins from {ends}."]
    first, *later = found.crossovers
    parts = [f"With {_contention(first.factor)}, the winner is {first.winner.label}"]
    parts += [
        f"from {_contention(crossover.factor)} on, {crossover.winner.label}" for crossover in later
    ]
    return ["; ".join(parts) + "."]


def _contention(factor: float) -> str:
    return f"{factor:.3g} times the profile's slowdowns" if factor else "no contention"


def whatif(result: WhatIfResult) -> None:
    """Print one row a point, the unchanged case first."""
    base = result.base.result
    assert base is not None
    rows = [_point_row(_point_name(result.base), result.base, base)]
    for point in result.points:
        rows.append(_point_row(_point_name(point), point, base))
    print_table(
        Table(
            title=workload_line(base.model, base.workload, base.cluster, base.profile.name),
            columns=(
                "change", "plan", ">iteration", ">unchanged / this", ">baseline", ">bound",
                ">speedup", ">exposed", ">memory", ">tokens/s", "confidence",
            ),
            rows=rows,
            notes=[_replay_line(result)],
            narrow=(
                "exposed", "tokens/s", "confidence", "bound", "memory", "baseline",
                "unchanged / this", "plan",
            ),
            below="plan",
        )
    )  # fmt: skip
    warn(_point_warnings(result))
    warn(f"{result.sweep}={point.value}: {point.error}" for point in result.points if point.error)


def _replay_line(result: WhatIfResult) -> str:
    if result.retuned:
        return "Each row is the best plan of its point."
    return "Every row replays the same plan and order; --retune finds the best plan of each point."


def _point_row(name: str, point: WhatIfPoint, base: Simulated) -> tuple[str, ...]:
    found = point.result
    if found is None:
        return (name, "not possible", *[""] * 9)
    return (
        name, found.plan.label, ms(found.iteration_ms),
        f"{base.iteration_ms / found.iteration_ms:.3f}x", ms(found.baseline_ms),
        ms(found.no_comm_ms), f"{found.speedup:.3f}x", ms(found.exposed_comm_ms),
        f"{found.peak_memory_gib:.1f} GiB",
        f"{found.variants['chosen'].tokens_per_second:,.0f}", found.confidence,
    )  # fmt: skip


def _point_name(point: WhatIfPoint) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.changes.items()) or "unchanged"


def _point_warnings(result: WhatIfResult) -> list[str]:
    """Return each warning once, after the names of its points."""
    about: dict[str, list[str]] = {}
    for point in (result.base, *result.points):
        for text in point.result.warnings if point.result else ():
            about.setdefault(text, []).append(_point_name(point))
    return [f"{'; '.join(names)}: {text}" for text, names in about.items()]


def plan(result: PlanResult) -> None:
    """Print the content of a plan file, and the case that it was made for."""
    file = result.plan_file
    print_table(
        Table(
            title=workload_line(file.model, file.workload, file.cluster, file.profile.name),
            columns=("", "value"),
            rows=[
                ("plan", file.plan.label),
                *((name, str(value)) for name, value in asdict(file.plan).items()),
                ("profile id", file.profile.content_id),
                ("predicted iteration", ms(file.predicted.iteration_ms)),
                ("predicted baseline", ms(file.predicted.baseline_ms)),
                ("predicted bound", ms(file.predicted.no_comm_ms)),
                ("predicted memory", f"{file.predicted.peak_memory_gib:.1f} GiB"),
                ("forward order", _order_text(file.order.forward)),
                ("backward order", _order_text(file.order.backward)),
            ],
        )
    )


def _order_text(line: IssueOrder) -> str:
    layers = "a layer" if line.stride == 1 else f"{line.stride} layers"
    return f"{len(line.tokens)} fragments for {layers}: {' '.join(line.to_strings())}"
