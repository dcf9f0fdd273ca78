"""Print validations as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli.show import ms, warn
from domino_tune.results.simulate import workload_line
from domino_tune.results.validate import Iteration, RoleTimes, ValidatedPlan, ValidateResult

NONE: Final = "–"


def validation(result: ValidateResult) -> None:
    """Print times, then communication and memory, then the ops of each given plan."""
    if result.interrupted:
        print_line("Interrupted: only the rounds until then are shown.", sys.stdout, "yellow")
    _times(result)
    _communication(result)
    for plan in result.plans[2:]:
        if plan.roles:
            _roles(plan)
    warn(result.warnings)


def _times(result: ValidateResult) -> None:
    print_table(
        Table(
            title=workload_line(result.model, result.workload, result.cluster, result.profile.name),
            columns=(
                "", "plan", ">predicted", ">measured", ">95 % interval", ">error",
                ">at present speed", ">speedup predicted", ">measured speedup", ">rounds",
            ),
            rows=[_time_row(plan) for plan in result.plans],
            marked=range(2, len(result.plans)),
            notes=(_conditions(result), _speed_line(result)),
            narrow=(
                "rounds", "at present speed", "95 % interval", "speedup predicted",
                "measured speedup", "plan",
            ),
            below="plan",
        )
    )  # fmt: skip


def _time_row(one: ValidatedPlan) -> tuple[str, ...]:
    predicted, measured, interval = one.predicted, one.measured, one.interval_ms
    return (
        one.name, one.plan.label, ms(predicted.iteration_ms),
        ms(measured.iteration_ms) if measured else one.failed or NONE,
        f"{interval.low:,.1f}–{interval.high:,.1f} ms" if interval else NONE,
        _percent(one.error), _percent(one.error_at_present_speed),
        _factor(predicted.speedup), _factor(measured.speedup if measured else None),
        str(len(one.makespans_ms)),
    )  # fmt: skip


def _conditions(result: ValidateResult) -> str:
    link = result.emulate_link_bits_per_s
    over = f"{result.backend} over an emulated link of {link / 1e6:,.0f} Mbit/s" if link else (
        result.backend
    )  # fmt: skip
    if result.emulated_collectives:
        over = "emulated collectives, whose times come from the profile and were not measured"
    return (
        f"Measured over {over}: median over rounds of the slowest rank. Predicted with "
        f"{result.profile.name}, {result.profile.content_id}."
    )


def _speed_line(result: ValidateResult) -> str:
    if result.present_speed is None:
        return "The present speed of the machine was not measured."
    return (
        f"The machine computes {result.present_speed:.3f} times as fast now as when it was "
        "profiled; the error at present speed is that of a prediction with this factor."
    )


def _communication(result: ValidateResult) -> None:
    print_table(
        Table(
            title="Communication and memory, predicted and measured",
            columns=(
                "", ">exposed", ">measured exposed", ">hidden", ">measured hidden",
                ">memory", ">measured memory",
            ),
            rows=[
                (
                    one.name,
                    *_pair(one, "exposed_comm_ms", ms),
                    *_pair(one, "hidden_comm_fraction", lambda share: f"{share:.0%}"),
                    *_pair(one, "peak_memory_gib", _memory),
                )
                for one in result.plans
            ],
            marked=range(2, len(result.plans)),
        )
    )  # fmt: skip


def _pair(one: ValidatedPlan, name: str, text: Callable[[float], str]) -> tuple[str, str]:
    """Return a number predicted and measured, as text."""

    def cell(side: Iteration | None) -> str:
        value = getattr(side, name) if side else None
        return NONE if value is None else text(value)

    return cell(one.predicted), cell(one.measured)


def _memory(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{1024 * gib:,.1f} MiB"


def _roles(one: ValidatedPlan) -> None:
    print_table(
        Table(
            title=f"Ops of {one.name}: {one.plan.label}",
            columns=("op", ">count", ">predicted", ">measured", ">measured / predicted"),
            rows=[_role_row(row) for row in one.roles],
        )
    )


def _role_row(row: RoleTimes) -> tuple[str, ...]:
    return (
        row.role, str(row.count), f"{row.predicted_ms:,.2f} ms", f"{row.measured_ms:,.2f} ms",
        NONE if row.ratio is None else f"{row.ratio:.3f}",
    )  # fmt: skip


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:+.1%}"


def _factor(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}x"
