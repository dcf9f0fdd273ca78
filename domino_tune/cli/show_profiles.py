"""Print results of the profiles verbs as tables."""

from __future__ import annotations

from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli.show import warn
from domino_tune.results.files import (
    CheckResult,
    DiffResult,
    ImportResult,
    ProfileResult,
    ProfilesResult,
    Trust,
)


def listing(result: ProfilesResult) -> None:
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
                for item in result.profiles
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


def check(result: CheckResult) -> None:
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
        Table(
            columns=("where", result.first.name, result.second.name),
            rows=result.differences,
        )
    )


def percent(error: float | None) -> str:
    """Return a relative error as text, or a dash where it is unknown."""
    return "–" if error is None else f"{error:.1%}"
