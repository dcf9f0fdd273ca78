"""What frameworks can run: the best plan, or else the best of the plans that they support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from domino_tune.base.tables import Table
from domino_tune.results.json_form import LabelledPlan
from domino_tune.results.texts import ms


@dataclass(frozen=True, kw_only=True)
class RunsThere:
    """The best plan that fits and that a framework can run; it and its numbers are None if no such
    plan exists.

    ``runs_best``: whether that is the best plan of all. ``speedup``: over the same baseline.
    ``route`` and ``request``: where to ask for that plan, and the fields to change in the request;
    None if the baseline is the best there.
    """

    framework: str
    runs_best: bool
    plan: LabelledPlan | None
    iteration_ms: float | None
    speedup: float | None
    route: str | None
    request: dict[str, Any] | None


def frameworks_table(frameworks: Sequence[RunsThere]) -> Table:
    """Return one row per framework."""
    return Table(
        title="What frameworks run of it",
        columns=("framework", "runs the best plan", "best plan there", ">iteration", ">speedup"),
        rows=[
            (
                one.framework, "yes" if one.runs_best else "no",
                one.plan.label if one.plan else "none",
                "" if one.iteration_ms is None else ms(one.iteration_ms),
                "" if one.speedup is None else f"{one.speedup:.3f}x",
            )
            for one in frameworks
        ],
        narrow=("best plan there", "iteration"),
        below="best plan there",
    )  # fmt: skip
