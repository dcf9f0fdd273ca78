"""Results as tables, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from domino_tune.results import ModelsResult, SimulateResult, Variant
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
