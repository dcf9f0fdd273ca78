"""Scores: errors of predictions, and the cost of choosing a plan by them. A ``Setting`` is a model
on a link. Its plans are measured in two launches with the same number of rounds: the difference
between the launches is the noise of measuring."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.parsing import parse
from lab import told
from lab.verdict import Check, at_least, at_most, check_table, markdown_section, reported, shown
from simulator.errors import InputError
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import llama_model
from simulator.specs import ModelSpec, Workload

MIN_SPREAD: Final = 0.05
"""Settings whose plans spread by less do not count for regret: there any choice is good."""


def within_rounds(times: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the log of each plan's time less the mean log of its round. A round is short, so a
    slow machine slows all of ``times[plan][round]`` alike."""
    rounds = [[math.log(time) for time in together] for together in zip(*times, strict=True)]
    relative = [[log - statistics.fmean(logs) for log in logs] for logs in rounds]
    return [list(logs) for logs in zip(*relative, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One plan of a model on a link. Times are in ms; ``first`` and ``second`` are the rounds of
    the two launches. Errors are predicted / measured − 1, ``noise`` second / first launch − 1.

    ``steady_ms``: the prediction at the compute speed that the machine had while the plans ran.
    ``emulated``: rounds on one rank whose collectives take the durations of the profile.
    ``predicted_emulated_ms``: the prediction for these, without waits for other ranks. ``hidden``:
    the measured share of communication that compute hides. ``drawn``: low and high end of the
    verdict's speed-up over the setting's baseline; None if the plan is the baseline or no verdict
    was asked for."""

    plan: str
    label: str
    predicted_ms: float
    steady_ms: float
    first: tuple[float, ...]
    second: tuple[float, ...]
    emulated: tuple[float, ...]
    predicted_emulated_ms: float
    exposed_ms: float
    predicted_exposed_ms: float
    hidden: float
    drawn: tuple[float, float] | None = None

    first_ms = property(lambda self: statistics.median(self.first))
    second_ms = property(lambda self: statistics.median(self.second))
    emulated_ms = property(lambda self: statistics.median(self.emulated))
    error = property(lambda self: self.predicted_ms / self.first_ms - 1)
    steady_error = property(lambda self: self.steady_ms / self.first_ms - 1)
    noise = property(lambda self: self.second_ms / self.first_ms - 1)
    emulated_error = property(lambda self: self.predicted_emulated_ms / self.emulated_ms - 1)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model on one link. ``speed``: that of compute while plans ran, over the profile's."""

    model: str
    link: str
    profile_id: str
    profile_s: float
    speed: float
    cells: tuple[Cell, ...]

    def cell(self, plan: str) -> Cell:
        """Return the cell of the plan with this name."""
        return next(cell for cell in self.cells if cell.plan == plan)

    name = property(lambda self: f"{self.model}, {self.link}")
    error = property(lambda self: statistics.fmean(abs(cell.error) for cell in self.cells))
    random_regret = property(lambda self: statistics.fmean(map(self.regret, self.plans)))
    plans = property(lambda self: [cell.plan for cell in self.cells])
    all_pairs = property(lambda self: math.comb(len(self.cells), 2))

    @property
    def spread(self) -> float:
        """Return slowest plan / fastest plan − 1, as measured."""
        logs = self._relative_logs(0, 1).values()
        return math.exp(max(logs) - min(logs)) - 1

    def speedup(self, plan: str) -> float:
        """Return the measured speed-up of a plan over the baseline, from both launches."""
        logs = self._relative_logs(0, 1)
        return math.exp(logs[BASELINE] - logs[plan])

    def covered(self) -> Iterator[bool]:
        """Yield for each plan with a drawn interval whether it contains the measured speed-up."""
        for cell in self.cells:
            if cell.drawn is not None:
                low, high = cell.drawn
                yield low <= self.speedup(cell.plan) <= high

    def regret(self, plan: str) -> float:
        """Return how much slower a plan is than the best measured one, as a fraction. The best of
        several noisy times looks better than it is. So one launch picks the best plan and the other
        launch gives both times, then the other way round. The mean of both can be below 0 if all
        plans take the same time."""
        first, second = self._relative_logs(0), self._relative_logs(1)
        costs = [
            judge[plan] - judge[min(pick, key=pick.__getitem__)]
            for pick, judge in ((first, second), (second, first))
        ]
        return math.exp(statistics.fmean(costs)) - 1

    @property
    def pair_noise(self) -> float:
        """Return how much the ratio of two plans' times differs between launches, on average."""
        first, second = self._relative_logs(0), self._relative_logs(1)
        return statistics.fmean(
            abs((first[a.plan] - first[b.plan]) - (second[a.plan] - second[b.plan]))
            for a, b in combinations(self.cells, 2)
        )

    def pairs(self) -> Iterator[bool]:
        """Yield for each pair that differs by more than the noise whether its order is right."""
        first, second = self._relative_logs(0), self._relative_logs(1)
        noise = self.pair_noise
        for a, b in combinations(self.cells, 2):
            one, two = first[a.plan] - first[b.plan], second[a.plan] - second[b.plan]
            if one * two > 0 and min(abs(one), abs(two)) > noise:
                yield (a.predicted_ms > b.predicted_ms) == (one > 0)

    def _relative_logs(self, *launches: int) -> dict[str, float]:
        """Return the median over all rounds of each plan's ``within_rounds``."""
        times = [
            [time for launch in launches for time in (cell.first, cell.second)[launch]]
            for cell in self.cells
        ]
        logs = map(statistics.median, within_rounds(times))
        return dict(zip(self.plans, logs, strict=True))


def setting_from(plain: Mapping[str, Any]) -> Setting:
    """Return the setting from the JSON of its ``asdict``."""
    return parse(Setting, plain, source="a setting", error=InputError)


def score(settings: Sequence[Setting]) -> SimpleNamespace:
    """Return a report's numbers: errors and noise are means of absolute relative values, but for
    ``worst_cell``'s, which has its sign; ``concordance``, of the pairs that ``Setting.pairs``
    judges, is None without any; regrets are the worst of settings that spread by > MIN_SPREAD."""
    cells = [cell for setting in settings for cell in setting.cells]
    worst_setting = max(settings, key=lambda setting: setting.error)
    in_setting, worst_cell = max(
        ((setting, cell) for setting in settings for cell in setting.cells),
        key=lambda named: abs(named[1].error),
    )
    pairs = [right for setting in settings for right in setting.pairs()]
    spread = [setting for setting in settings if setting.spread > MIN_SPREAD]
    return SimpleNamespace(
        cells=len(cells), error=statistics.fmean(abs(cell.error) for cell in cells),
        worst_setting=worst_setting.name, worst_setting_error=worst_setting.error,
        worst_cell=f"{in_setting.name}, {worst_cell.plan}", worst_cell_error=worst_cell.error,
        steady_error=statistics.fmean(abs(cell.steady_error) for cell in cells),
        noise=statistics.fmean(abs(cell.noise) for cell in cells),
        emulated_error=statistics.fmean(abs(cell.emulated_error) for cell in cells),
        pairs=len(pairs), left_out=sum(setting.all_pairs for setting in settings) - len(pairs),
        concordance=statistics.fmean(pairs) if pairs else None, settings=len(settings),
        spread_settings=len(spread),
        tuned_regret=max((setting.regret(TUNED) for setting in spread), default=None),
        two_regret=max((setting.regret(ALWAYS_TWO) for setting in spread), default=None),
        random_regret=max((setting.random_regret for setting in spread), default=None),
    )  # fmt: skip


# Settings: the models, links and plans that a report covers by default (scores.toml) --------------

TOLD: Final[dict[str, Any]] = told(__file__)
LINKS: Final[list[str]] = TOLD["links"]
ALWAYS_TWO: Final = "inter"  # The plan of DeepSpeed's Domino on every machine
TUNED: Final = "tuned"
BASELINE: Final = "baseline"
Job = tuple[ModelSpec, Workload]


class Kind(NamedTuple):
    """One report. ``sequence_parallel``: what `tune` is asked for; None leaves it the choice."""

    title: str
    models: dict[str, Job]
    plans: dict[str, SlicePlan]
    sequence_parallel: bool | None

    @classmethod
    def of(cls, name: str) -> Kind:
        """Return a kind of the file."""
        one = TOLD[name]
        mode, plans = one.get("sequence_parallel"), {BASELINE: MEGATRON}
        plans |= {plan: SlicePlan(**fields) for plan, fields in one["plans"].items()}
        if mode:
            plans = {plan: replace(x, sequence_parallel=True) for plan, x in plans.items()}
        jobs = dict(MODELS)
        for model, (spec, work) in MODELS.items() if name == "sequences" else ():
            length = work.seq_length * work.micro_batch_size
            jobs[model] = spec, replace(work, seq_length=length, micro_batch_size=1)
        return cls(one["title"], jobs, plans, mode)


def _model(name: str, hidden: int, layers: int) -> ModelSpec:
    heads = hidden // 64
    if name.startswith("llama"):
        return llama_model(name, layers, hidden, heads, heads // 2, hidden * 11 // 4,
                           vocab=2048, positions=1024)  # fmt: skip
    return ModelSpec(
        name=name, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=heads, head_dim=64, intermediate_size=4 * hidden, vocab_size=2048,
        max_position_embeddings=1024,
    )  # fmt: skip


MODELS: Final[dict[str, Job]] = {
    name: (_model(name, *size), Workload(seq_length=seq, micro_batch_size=batch, dtype="fp32"))
    for name, *size, seq, batch in TOLD["models"]
}
KINDS: Final[dict[str, Kind]] = {name: Kind.of(name) for name in ("plain", "sharded", "sequences")}


# The report: tables for the terminal, a Markdown page (results/fidelity.md), and JSON -------------

FORMS: Final[dict[str, Any]] = TOLD["forms"]
LEAN: Final = 0.015
INTERVAL: Final = 0.80  # Part of the draws that the verdict's interval holds
OFF: Final = 0.08
NO_SETTING: Final = "no such setting"


def checks(settings: Sequence[Setting]) -> list[Check]:
    """Return the targets beside the numbers; the mean error's sign says which way they lean."""
    total = score(settings)
    lean = statistics.fmean(cell.error for setting in settings for cell in setting.cells)
    at_speed = [setting for setting in settings if setting.link == "1gbit"]
    *errors, steady = errors_of(total, "machine")
    hidden = "communication hidden by the tuned plan"
    return [
        reported("cells (plans of a model on a link)", str(total.cells)),
        *errors, Check("the same with its sign", f"within ±{LEAN:.1%}", f"{lean:+.2%}",
                       abs(lean) <= LEAN), steady,
        reported("the same on one rank with emulated collectives", f"{total.emulated_error:.2%}"),
        *worst_errors(total), *choice_checks(total, 0.02), *_coverage(settings),
        *(at_least(f"{hidden}, {one.name}", 0.80, one.cell(TUNED).hidden) for one in at_speed),
    ]  # fmt: skip


def errors_of(total: SimpleNamespace, what: str) -> list[Check]:
    """Return the noise and the mean errors, at last that at the speed of ``what`` ran plans."""
    return [
        reported("noise floor: the same plan in two launches", f"{total.noise:.2%}"),
        at_most("iteration time, mean absolute error", 0.03, total.error),
        reported(f"the same at the {what}'s speed while plans ran", f"{total.steady_error:.2%}"),
    ]


def _coverage(settings: Sequence[Setting]) -> list[Check]:
    held = [found for setting in settings for found in setting.covered()]
    if not held:
        return []
    what = f"speed-ups over the baseline within the verdict's interval, of {len(held)}"
    share, target = statistics.fmean(held), f"{INTERVAL:.0%} ± {OFF:.0%}"
    return [Check(what, target, f"{share:.1%}", abs(share - INTERVAL) <= OFF)]


def worst_errors(total: SimpleNamespace) -> list[Check]:
    """Return the largest errors beside the mean."""
    setting = f"mean absolute error of the worst setting, {total.worst_setting}"
    return [
        reported(setting, f"{total.worst_setting_error:.2%}"),
        reported(f"largest error of a cell, {total.worst_cell}", f"{total.worst_cell_error:+.2%}"),
    ]


def choice_checks(total: SimpleNamespace, regret: float) -> list[Check]:
    """Return the checks of choosing by predictions: order of pairs, and regret of the choice."""
    worst = (
        f"worst regret of `tune` in the {total.spread_settings} of {total.settings} settings whose "
        f"plans spread by > {MIN_SPREAD:.0%}"
    )
    ordered = f"pairs of plans in the right order, of {total.pairs} that differ by more than noise"
    left_out = f"{total.left_out} of {total.pairs + total.left_out}"
    two, anyhow = (
        NO_SETTING if one is None else f"{one:.1%}"
        for one in (total.two_regret, total.random_regret)
    )
    return [
        reported(ordered, "no such pair") if total.concordance is None
        else at_least(ordered, 0.95, total.concordance),
        reported("pairs left out: they differ by no more than noise", left_out),
        reported(worst, NO_SETTING) if total.tuned_regret is None
        else at_most(worst, regret, total.tuned_regret),
        reported("worst regret of always two row slices", two),
        reported("worst regret of a random plan, on average", anyhow),
    ]  # fmt: skip


def tables(settings: Sequence[Setting], title: str) -> list[Table]:
    """Return the table of checks, and the tables of ``detail``."""
    return [check_table(title, checks(settings)), *detail(settings)]


def detail(settings: Sequence[Setting]) -> list[Table]:
    """Return the tables of settings, of cells and of drawn speed-ups."""
    every = [
        (one, one.regret(TUNED), one.regret(ALWAYS_TWO), one.profile_id.removeprefix("sha256:"))
        for one in settings
    ]
    cells = [(setting, cell) for setting in settings for cell in setting.cells]
    drawn = [(one, cell, one.speedup(cell.plan)) for one, cell in cells if cell.drawn]
    found = [shown(FORMS, "settings", every), shown(FORMS, "cells", cells)]
    return [*found, shown(FORMS, "speed-ups", drawn)] if drawn else found


def markdown(settings: Sequence[Setting], machine: str, title: str) -> str:
    """Return the report as a Markdown page."""
    form = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    head = form.format(machine=machine, title=title)
    return "\n".join([head, *map(markdown_section, tables(settings, title))])


def to_json(settings: Sequence[Setting], machine: str) -> str:
    """Return the score and all settings as JSON."""
    every = [asdict(setting) for setting in settings]
    plain = {"machine": machine, "score": vars(score(settings)), "settings": every}
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"
