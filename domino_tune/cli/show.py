"""Print results as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli.progress import progress, still_progress

if TYPE_CHECKING:
    from domino_tune.results.files import PlanResult
    from domino_tune.results.listed import ModelsResult
    from domino_tune.results.shown import Shown
    from simulator.issue_order import IssueOrder
    from simulator.specs import ModelSpec

__all__ = ["models", "plan", "progress", "still_progress", "tables", "warn"]


def tables(result: Shown) -> None:
    """Print the tables of a result, then its warnings."""
    for table in result.tables():
        print_table(table)
    warn(result.alerts())


def models(result: ModelsResult) -> None:
    """Print one row a preset."""
    rows = [
        (
            model.name, f"{model.parameters / 1e9:.1f} B", str(model.num_hidden_layers),
            str(model.hidden_size), str(model.num_attention_heads), str(model.num_key_value_heads),
            str(model.intermediate_size), str(model.vocab_size),
            str(model.max_position_embeddings), _kind(model),
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


def _kind(model: ModelSpec) -> str:
    kind = f"{'SwiGLU' if model.gated_mlp else 'GeLU'}, "
    kind += "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    return f"{kind}, q and k norms" if model.qk_norm else kind


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to stderr, which is visible when stdout goes into a pipe."""
    for text in warnings:
        print_line(f"warning: {text}", sys.stderr, "yellow")


def plan(result: PlanResult) -> None:
    """Print the content of a plan file, and the case that it was made for."""
    from domino_tune.results.shown import ms
    from domino_tune.results.simulate import workload_line

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
