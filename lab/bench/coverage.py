"""How many published runs lie in the interval that is stated for them, by what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.verbs.simulate import shortened
from lab.bench.cases import interval, recorded, time_ms
from lab.bench.runs import (
    Run,
    async_tp_run,
    b200_runs,
    ci_runs,
    korthikanti_runs,
    userbuffers_runs,
    vtrain_runs,
)
from lab.bench.vtrain import Row
from lab.verdict import Check, check_table
from simulator.units import MS_PER_NS
from simulator.unknowns import highest, wider

LEAST: Final = 0.8
"""Share of the runs with software or networks that a profile does not know, in their interval."""


class Held(NamedTuple):
    """A run beside its prediction. ``low``, ``high``: its interval, over the prediction; ``plain``:
    the upper end without what the profile does not know."""

    run: Run
    ms: float
    low: float
    plain: float
    high: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.run.measured_ms / self.ms

    @property
    def known(self) -> bool:
        """Whether nothing widens the interval."""
        return self.high == self.plain


def held(run: Run) -> Held:
    """Return a run's prediction and its interval."""
    shown = shortened(run.case)
    found, middle_ns = interval(shown, run.plan), recorded(shown, run.plan).makespan_ns
    ms, high = time_ms(run.case, run.plan), found.high_ns / middle_ns
    more = (one.more_ns * MS_PER_NS / ms for one in wider(run.case, run.plan))
    return Held(run, ms, found.low_ns / middle_ns, high, highest(1.0, high, more))


def coverage() -> list[Table]:
    """Return the runs that lie in their intervals, group by group, with and without what widens
    them."""
    vtrain = [(run, held(run)) for run in vtrain_runs()]
    groups: dict[str, list[Held]] = {
        "A100, 2022: Korthikanti": [held(run) for run in korthikanti_runs()]
    }
    for run, one in vtrain:
        groups.setdefault(f"A100, 2022: vTrain, {Row(run, one.ms).kind}", []).append(one)
    groups |= {
        "A100, today: Megatron's CI": [held(run) for run in ci_runs() if _on(run, "a100")],
        "H100, today: Megatron's CI": [held(run) for run in ci_runs() if _on(run, "h100")],
        "H100, today: NeMo": [held(run) for run in userbuffers_runs()],
        "H100, today: torchtitan": [held(async_tp_run())],
        "B200, today: SimuMax": [held(run) for run in b200_runs()],
    }
    return [_table(groups), _checks(groups)]


def _on(run: Run, gpu: str) -> bool:
    return run.case.profile.name.startswith(gpu)


def _table(groups: Mapping[str, Sequence[Held]]) -> Table:
    return Table(
        title="Published runs in their intervals; nothing fitted",
        columns=(
            "runs", ">rows", ">in without", ">in", ">longer", ">shorter", ">measured / predicted",
            ">up without", ">up", ">down",
        ),
        rows=[_row(name, rows) for name, rows in groups.items()],
        notes=(
            "Without: without what the profile does not know about implementation and network "
            "(simulator/unknowns.py). Up, down: mean ends of the intervals.",
        ),
    )  # fmt: skip


def _row(name: str, rows: Sequence[Held]) -> tuple[str, ...]:
    ratios = [one.ratio for one in rows]
    without = sum(one.low <= one.ratio <= one.plain for one in rows)
    longer = sum(one.ratio > one.high for one in rows)
    shorter = sum(one.ratio < one.low for one in rows)
    return (
        name, str(len(rows)), str(without), str(len(rows) - longer - shorter), str(longer),
        str(shorter), f"{min(ratios):.2f}–{max(ratios):.2f}",
        f"{mean(one.plain for one in rows) - 1:+.1%}",
        f"{mean(one.high for one in rows) - 1:+.1%}", f"{mean(one.low for one in rows) - 1:+.1%}",
    )  # fmt: skip


def _checks(groups: Mapping[str, Sequence[Held]]) -> Table:
    old = _all(rows for name, rows in groups.items() if "2022" in name)
    today = _all(rows for name, rows in groups.items() if "today" in name)
    share = mean(one.low <= one.ratio <= one.high for one in old)
    widened = sum(not one.known for one in today)
    checks = [
        Check(
            what=f"of {len(old)} runs of 2022, in their interval", target=f"≥ {LEAST:.0%}",
            measured=f"{share:.0%}", ok=share >= LEAST,
        ),
        Check(
            what=f"of {len(today)} runs of today, widened", target="0", measured=str(widened),
            ok=not widened,
        ),
    ]  # fmt: skip
    return check_table("Coverage: what is not known widens, what is known does not", checks)


def _all(groups: Iterable[Sequence[Held]]) -> list[Held]:
    return [one for rows in groups for one in rows]
