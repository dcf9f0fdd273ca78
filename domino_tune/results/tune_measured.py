"""Result of `tune --objective measure`: the best plan by measurement, beside predictions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from domino_tune.results import Interval, TuneResult, to_json
from simulator.plan import SlicePlan


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """A plan that was run, or that could not: ``failed`` then says why, and its numbers are None.

    ``speedup``: time of the baseline over time of the plan, of steps that followed each other;
    ``speedup_interval`` contains it with 95 %. ``measured_ms``: the baseline's median over all its
    steps, divided by the speedup. ``compared``: the plan was run again at the end, beside the other
    plans that were close.
    """

    plan: SlicePlan
    predicted_ms: float
    predicted_speedup: float
    measured_ms: float | None
    measured_interval_ms: Interval | None
    speedup: float | None
    speedup_interval: Interval | None
    peak_memory_gib: float | None
    compared: bool
    failed: str


@dataclass(frozen=True, kw_only=True)
class MeasuredTuneResult(TuneResult):
    """``best`` simulates the plan that measured fastest.

    ``optimality`` is ``best_found``, or ``all_measured`` where every plan of the space was run.
    ``measured``: all plans in the order of their runs, the baseline first; ``chosen`` and
    ``baseline`` are two of them. ``stopped`` is trials, small gain or all measured. ``new_runs``:
    plans that this call ran; the others were in ``evidence``. ``comparisons``: launches that ran
    measured plans again, side by side; ``evaluations`` does not count them.
    """

    chosen: MeasuredPlan
    baseline: MeasuredPlan
    measured: tuple[MeasuredPlan, ...]
    stopped: str
    rounds: int
    comparisons: int
    new_runs: int
    evidence: str
    resume: str
    backend: str
    emulate_link_bits_per_s: int | None
    machine_differences: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> Any:
        """Return what was measured, then the fields of `tune`.

        A time is simulated where its name does not contain ``measured``.
        """
        mine = {item.name for item in fields(self)} - {item.name for item in fields(TuneResult)}
        answer = {name: value for name, value in super().to_json().items() if name not in mine}
        best = {
            **answer.pop("best"),
            "measured_ms": to_json(self.chosen.measured_ms),
            "measured_interval_ms": to_json(self.chosen.measured_interval_ms),
            "measured_speedup": to_json(self.chosen.speedup),
            "measured_speedup_interval": to_json(self.chosen.speedup_interval),
        }
        rest = {
            name: to_json(getattr(self, name)) for name in sorted(mine - {"chosen", "baseline"})
        }
        return {
            "objective": "measure",
            "best": best,
            "measured_baseline_ms": to_json(self.baseline.measured_ms),
            "measured_baseline_interval_ms": to_json(self.baseline.measured_interval_ms),
            **rest,
            **answer,
        }
