"""Print results as tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domino_tune.base.progress import Progress
from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli.progress import progress as progress
from domino_tune.cli.progress import still_progress as still_progress
from domino_tune.results import to_json

if TYPE_CHECKING:
    from domino_tune.requests.outputs import PlanOutputs
    from domino_tune.results.files import (
        CheckResult,
        DiffResult,
        ImportResult,
        ProfileResult,
        Trust,
    )
    from domino_tune.results.listed import ModelsResult, TokenAddedResult, TokenResult
    from domino_tune.results.shown import Shown
    from domino_tune.results.simulate import Simulated
    from domino_tune.store.plans import PlanFile
    from domino_tune.store.profiles import ProfileSummary
    from simulator.issue_order import IssueOrder
    from simulator.specs import ModelSpec


def answer(result: Any, as_json: bool, table: Callable[[Any], None] | None = None) -> None:
    """Print the result as JSON, or as its table: by default those that it has itself."""
    if as_json:
        sys.stdout.write(json_text(to_json(result)))
    else:
        (table or tables)(result)


def json_text(value: Any) -> str:
    """Return ``value`` as indented JSON with a final newline."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def tell_written(outputs: PlanOutputs, best: Simulated, strategy: str) -> None:
    """Say whose plan was written, where it is not the chosen one's and nobody asked for it."""
    if strategy != best.plan.strategy and not outputs.out_of:
        print_line(
            f"{outputs.out} holds the plan of {strategy}, which the verdict recommends; that of "
            f"{best.plan.strategy} is written with --out-of {best.plan.strategy}.",
            sys.stderr,
        )


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


def plan(file: PlanFile) -> None:
    """Print the content of a plan file, and the case that it was made for."""
    from domino_tune.results.shown import ms, workload_line

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


@contextmanager
def lines_progress() -> Iterator[Progress]:
    """Show a status line if stderr is a terminal, else print plain lines."""
    if sys.stderr.isatty():
        with still_progress() as update:
            yield update
    else:
        yield lambda message: print_line(message, sys.stderr)


def interrupted(path: Path, resume: str) -> None:
    """Print where the measurements are, and how to continue."""
    state = f"The measurements are in {path}." if path.exists() else "Nothing was measured yet."
    print_line(f"{state} To go on: {resume}", sys.stderr)


def profiles(found: Sequence[ProfileSummary]) -> None:
    """Print one row a profile."""
    print_table(
        Table(
            columns=("profile", "from", "machine", "created", "sections", "id"),
            rows=[
                (
                    item.name, item.origin, item.gpu, item.created,
                    ", ".join(f"{name} ({kind})" for name, kind in item.sections.items()),
                    item.content_id[:19] + "…",
                )
                for item in found
            ],
            narrow=("sections", "id", "created", "from"),
            below="sections",
        )
    )  # fmt: skip


def profile(result: ProfileResult) -> None:
    """Print the machine, then the sections."""
    machine = result.machine
    facts = [
        ("GPU", machine.gpu),
        ("GPUs a node", str(machine.gpus_per_node)),
        *([("GPUs an NVLink domain", str(machine.domain))] if machine.gpus_per_domain else []),
        ("memory", f"{machine.gpu_memory_gib:g} GiB"),
        ("SMs", str(machine.sm_count)),
        ("peak", ", ".join(f"{k} {v:g} TFLOP/s" for k, v in machine.peak_tflops.items())),
        ("memory bandwidth", f"{machine.memory_bandwidth_gb_s:g} GB/s"),
        ("backend", machine.backend),
        *machine.details.items(),
        ("created", result.created),
        ("id", result.content_id),
        ("missing sections", ", ".join(result.missing) or "none"),
    ]
    print_table(Table(title=result.name, columns=("", "value"), rows=facts))
    print_table(
        Table(
            columns=("section", "kind", ">rows", ">fits", ">error", "source"),
            rows=[
                (
                    item.section, item.kind, str(item.rows), str(item.fits), percent(item.error),
                    item.source,
                )
                for item in result.sections
            ],
            notes=[
                *(f"{item.section}, clock: {item.clock}" for item in result.sections if item.clock),
                *(f"{item.section}: {item.note}" for item in result.sections if item.note),
            ],
        )
    )  # fmt: skip


def checked(result: CheckResult) -> None:
    """Print each section's leave-out error."""
    print_table(
        Table(
            title=f"{result.profile.name} is valid ({result.profile.content_id})",
            columns=("section", "kind", ">rows", ">fits", ">error", "how the error is computed"),
            rows=[
                (
                    item.section, item.kind, str(item.rows), str(item.fits), percent(item.error),
                    item.how,
                )
                for item in result.sections
            ],
            notes=_fits_note(result),
        )
    )  # fmt: skip
    print_table(
        Table(
            title="How sure it makes a prediction (two row slices)",
            columns=("case", "confidence", ">ms", ">from", ">to", "time by source"),
            rows=[_trusted(item) for item in result.trust],
        )
    )
    print_table(
        Table(
            title="Assumed, not measured",
            columns=("where", "what", ">expected error"),
            rows=[(item.where, item.what, percent(item.error)) for item in result.assumptions],
        )
    )


def _trusted(item: Trust) -> tuple[str, ...]:
    if item.level is None or item.interval_ms is None:
        return (item.case, "–", "–", "–", "–", item.note)
    shares = ", ".join(f"{share:.0%} {source}" for source, share in item.shares.items())
    return (
        item.case, item.level, f"{item.iteration_ms:.0f}", f"{item.interval_ms.low:.0f}",
        f"{item.interval_ms.high:.0f}", shares,
    )  # fmt: skip


def _fits_note(result: CheckResult) -> list[str]:
    if all(item.rows for item in result.sections):
        return []
    return [
        "Sections of fits have no rows to leave out: their error was stated at fitting; "
        "`scripts/bench accuracy` computes it again."
    ]


def imported(result: ImportResult) -> None:
    """Print how many rows were written, and where."""
    replaced = f", {result.replaced} in place of earlier ones," if result.replaced else ""
    note = f" Note: {result.note}." if result.note else ""
    print_line(
        f"Added {result.rows} {result.section} rows{replaced} to profile {result.profile.name!r}: "
        f"{result.path}.{note}"
    )
    warn(result.warnings)


def diff(result: DiffResult) -> None:
    """Print everything that differs."""
    if not result.differences:
        print_line(f"The same content: {result.first.content_id}.")
        return
    print_table(
        Table(columns=("where", result.first.name, result.second.name), rows=result.differences)
    )


def percent(error: float | None) -> str:
    """Return a relative error as text, or a dash where it is unknown."""
    return "–" if error is None else f"{error:.1%}"


def tokens(found: Sequence[TokenResult]) -> None:
    """Print one row a token."""
    print_table(
        Table(
            columns=("name", "owner", "scope", "created", "expires", "last used"),
            rows=[
                (
                    one.name,
                    one.owner,
                    one.scope,
                    one.created,
                    one.expires or "never",
                    one.used or "never",
                )
                for one in found
            ],
        )
    )


def added_token(result: TokenAddedResult) -> None:
    """Print the secret alone to stdout, so that it can go into a file; the rest to stderr."""
    print(result.secret)
    print_line(
        f"Token {result.name} of {result.owner}, scope {result.scope}: store it now, it is not "
        "shown again.",
        sys.stderr,
    )
