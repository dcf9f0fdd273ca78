"""The verdict: which strategy is the fastest, by how much, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.results.json_form import LabelledPlan
from domino_tune.results.texts import ms, named
from simulator.usable import SURE, percent

CLEAR: Final = 0.6
"""Lowest chance at which a strategy is called the fastest."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A strategy's plan; speed-ups are over the baseline. ``name``: the strategy's, for use in a
    sentence.

    ``low``, ``high``: the 10th and the 90th percentile of the speed-up over the machine draws.
    ``chance``: the share of draws in which no other plan that is sure enough to fit
    (``fits_chance``, 80 % or more) is faster. ``runs_in``: the frameworks that have the strategy.
    """

    strategy: str
    name: str
    plan: LabelledPlan
    iteration_ms: float
    speedup: float
    low: float
    high: float
    chance: float
    fits: bool
    fits_chance: float
    runs_in: str

    @property
    def recommended(self) -> bool:
        """Whether the plan is sure enough to fit a GPU."""
        return self.fits_chance >= SURE


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The contestants, baseline first, compared on ``draws`` machines within the profile's errors.

    ``text``: the answer in words. ``unsure``: how much each family of errors moves the chosen
    plan's speed-up, as a relative standard error, the largest first. ``seed``: of the draws.
    """

    text: str
    contestants: tuple[Contestant, ...]
    draws: int
    seed: int
    unsure: dict[str, float]

    @property
    def leader(self) -> Contestant | None:
        """Return the strategy that is sure enough to fit and is most often the fastest; None if no
        strategy is sure enough.
        """
        return max((one for one in self.contestants if one.recommended), key=_chance, default=None)

    def table(self) -> Table:
        """Return one row per contestant."""
        worst = [f"{family} {error:.1%}" for family, error in list(self.unsure.items())[:3]]
        return Table(
            title=self.text,
            columns=(
                "strategy", "plan", ">iteration", ">speedup", ">80 % of draws", ">fastest",
                "runs in",
            ),
            rows=[_row(one) for one in self.contestants],
            marked=tuple(i for i, one in enumerate(self.contestants) if one is self.leader),
            notes=(
                f"{self.draws:,} machines drawn from the profile's errors; what makes the "
                "speed-up unsure: "
                f"{', '.join(worst) or 'nothing'}.",
            ),
            narrow=("runs in", "plan", "iteration"),
            below="plan",
        )  # fmt: skip


def _chance(one: Contestant) -> float:
    return one.chance


def _row(one: Contestant) -> tuple[str, ...]:
    chance = f"{one.chance:.0%}" if one.recommended else fits_words(one)
    return (
        one.name, named(one.plan), ms(one.iteration_ms), f"{one.speedup:.3f}x",
        f"{one.low:.2f}–{one.high:.2f}", chance, one.runs_in,
    )  # fmt: skip


def fits_words(one: Contestant) -> str:
    """Return why a plan is not recommended because of its memory."""
    return f"fits: {percent(one.fits_chance)}" if one.fits else "does not fit"
