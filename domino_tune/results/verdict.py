"""The verdict: which strategy is the fastest, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.results.json_form import LabelledPlan
from domino_tune.results.texts import ms

NAMES: Final[Mapping[str, str]] = {
    "megatron": "Megatron", "domino": "Domino", "userbuffers": "userbuffers",
    "async-tp": "async-TP", "fused": "tile fusion",
}  # fmt: skip
"""Strategy -> its name in a sentence."""
CLEAR: Final = 0.6
"""Chance from which on a strategy is called the fastest."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A strategy's plan; speed-ups are over the baseline.

    ``low``, ``high``: the speed-up that one of ten machine draws is below, or above. ``chance``:
    the share of draws in which no other plan that fits is faster. ``runs_in``: the frameworks that
    have the strategy.
    """

    strategy: str
    plan: LabelledPlan
    iteration_ms: float
    speedup: float
    low: float
    high: float
    chance: float
    fits: bool
    runs_in: str

    @property
    def name(self) -> str:
        """The strategy, with what makes it another Megatron than most train with."""
        name = NAMES.get(self.strategy, self.strategy)
        if self.strategy == "megatron":
            name += " with sequence parallelism" if self.plan.sequence_parallel else ""
        return name

    @property
    def times(self) -> str:
        """The speed-up and its interval: ``1.06x (1.02–1.10)``."""
        return f"{self.speedup:.2f}x ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The contestants, baseline first, on ``draws`` machines that the profile may mean.

    ``text``: the answer in words. ``unsure``: by how much each family of errors moves the
    chosen plan's speed-up, as a relative standard error, the largest first. ``seed``: of the draws.
    """

    text: str
    contestants: tuple[Contestant, ...]
    draws: int
    seed: int
    unsure: dict[str, float]

    def table(self) -> Table:
        """Return one row a contestant."""
        worst = [f"{family} {error:.1%}" for family, error in list(self.unsure.items())[:3]]
        return Table(
            title=self.text,
            columns=(
                "strategy", "plan", ">iteration", ">speedup", ">80 % of draws", ">fastest",
                "runs in",
            ),
            rows=[_row(one) for one in self.contestants],
            marked=tuple(
                i for i, one in enumerate(self.contestants)
                if one.chance == max(other.chance for other in self.contestants)
            ),
            notes=(
                f"{self.draws:,} machines drawn from the profile's errors; what makes the speed-up unsure: "
                f"{', '.join(worst) or 'nothing'}.",
            ),
            narrow=("runs in", "iteration"),
            below="plan",
        )  # fmt: skip


def _row(one: Contestant) -> tuple[str, ...]:
    chance = f"{one.chance:.0%}" if one.fits else "does not fit"
    return (
        one.name, one.plan.label, ms(one.iteration_ms), f"{one.speedup:.3f}x",
        f"{one.low:.2f}–{one.high:.2f}", chance, one.runs_in,
    )  # fmt: skip


def verdict_text(contestants: Sequence[Contestant]) -> str:
    """Return the answer in words: the strategy that is most often the fastest, Domino where that is
    another one, and the next."""
    baseline, *others = contestants
    fit = [one for one in contestants if one.fits]
    if not fit:
        return "No plan fits the memory."
    best = max(fit, key=lambda one: one.chance)
    rest = sorted((one for one in others if one is not best and one.fits), key=_by_chance)
    over = f" over {baseline.name}" if baseline.fits else f"; {baseline.name} does not fit"
    first = "Not here" if best is baseline else f"{best.name} {best.times}{over}"
    told = [one for one in rest if one.strategy == "domino"]
    told += [one for one in rest if one not in told][: 2 - len(told)]
    next_ones = "; ".join(f"{one.name} {one.speedup:.2f}x ({one.chance:.0%})" for one in told)
    if best.chance >= CLEAR:
        sure = f"fastest with {best.chance:.0%}"
    else:
        sure = f"who is fastest is open ({best.chance:.0%})"
    if best is baseline:
        sure = sure.replace("fastest", f"{baseline.name} is fastest", 1)
    return f"{first}; {sure}" + (f"; {next_ones}." if next_ones else ".")


def _by_chance(one: Contestant) -> tuple[float, float]:
    return -one.chance, -one.speedup
