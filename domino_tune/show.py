"""Results as tables, for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from domino_tune.results import (
    ContentionSensitivity,
    ModelsResult,
    SimulateResult,
    TrialResult,
    TuneResult,
    Variant,
)
from domino_tune.tables import Table, print_line, print_table
from simulator.specs import ClusterSpec, ModelSpec, Workload


def models(result: ModelsResult) -> None:
    """One row a preset."""
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


def simulate(result: SimulateResult) -> None:
    """Baseline, chosen plan and bound, one row each; then how sure that is."""
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
            notes=(_sure_line(result),),
        )
    )  # fmt: skip
    warn(result.warnings)


def workload_line(model: ModelSpec, workload: Workload, cluster: ClusterSpec, profile: str) -> str:
    """What was asked, on one line."""
    parts = [
        f"{model.name} on {profile}", f"tp {cluster.tp}", f"dp {cluster.dp}",
        f"{cluster.nodes} node{'s' if cluster.nodes > 1 else ''}",
        f"seq {workload.seq_length}", f"micro-batch {workload.micro_batch_size}",
        f"grad accumulation {workload.grad_accumulation}", workload.dtype,
    ]  # fmt: skip
    return ", ".join([*parts, *(["CUDA graphs"] if cluster.cuda_graph else [])])


def warn(warnings: Iterable[str]) -> None:
    """Warnings go to stderr, where they are seen when the result is piped on."""
    for text in warnings:
        print_line(f"warning: {text}", sys.stderr, "yellow")


def ms(value: float) -> str:
    """Milliseconds, to 0.1."""
    return f"{value:,.1f} ms"


def _variant_row(name: str, variant: Variant, baseline_ms: float) -> tuple[str, ...]:
    return (
        "bound" if name == "no_comm" else name, variant.label, ms(variant.iteration_ms),
        f"{baseline_ms / variant.iteration_ms:.3f}x", ms(variant.compute_ms), ms(variant.comm_ms),
        ms(variant.exposed_comm_ms), f"{variant.hidden_comm_fraction:.0%}", ms(variant.idle_ms),
        f"{variant.peak_memory_gib:.1f} GiB", f"{variant.tokens_per_second:,.0f}",
    )  # fmt: skip


def _sure_line(result: SimulateResult) -> str:
    interval = result.interval_ms
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in result.confidence_shares.items())
    return (
        f"Confidence {result.confidence}: {interval.low:,.0f}–{interval.high:,.0f} ms; "
        f"time by source of look-up: {shares}."
    )


def tune(result: TuneResult) -> None:
    """The best plan beside baseline and bound, its closest rivals, and what it hangs on."""
    simulate(result.best)
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
        )
    )  # fmt: skip


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A status line on stderr where that is a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda message: None
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:
        yield lambda message: status.update(message)


def _shortlist(result: TuneResult) -> list[TrialResult]:
    chosen = [trial for trial in result.trials if _is_best(trial, result)]
    fastest: dict[int, TrialResult] = {}
    for trial in sorted(result.trials, key=lambda trial: trial.iteration_ms):
        fastest.setdefault(trial.plan.row_slices, trial)
    return [*chosen, *(trial for trial in fastest.values() if trial not in chosen)]


def _is_best(trial: TrialResult, result: TuneResult) -> bool:
    same_batch = trial.micro_batch_size == result.best.workload.micro_batch_size
    return same_batch and trial.plan == result.best.plan


def _search_line(result: TuneResult) -> str:
    infeasible = ", ".join(f"{count:,} {reason}" for reason, count in result.infeasible.items())
    certainty = "proven optimal" if result.optimality == "proven" else "best found, not proven"
    return (
        f"{result.search}: {certainty}; {result.space_size:,} combinations, "
        f"{result.evaluations:,} simulated, {result.pruned:,} ruled out by a bound, "
        f"not runnable: {infeasible or 'none'}; {result.seconds:.1f} s. Within 1 % of the fastest, "
        "less memory and fewer slices win."
    )


def _contention_lines(found: ContentionSensitivity | None) -> list[str]:
    """Where the choice would change, in words."""
    if found is None:
        return []
    lines = []
    for factor, where in ((found.changes_below, "below"), (found.changes_above, "above")):
        if factor is None:
            continue
        near = min(found.points, key=lambda point: _beyond(point.factor, factor, where))
        lines.append(
            f"With slowdowns {where} {factor:.2f}x of the profile's, {near.winner.label} would win."
        )
    factors = [point.factor for point in found.points]
    return lines or [
        f"The choice holds for slowdowns from {min(factors):g}x to {max(factors):g}x the profile's."
    ]


def _beyond(factor: float, change: float, where: str) -> float:
    """Distance of a point behind the change; infinite before it."""
    distance = change - factor if where == "below" else factor - change
    return distance if distance >= 0 else float("inf")
