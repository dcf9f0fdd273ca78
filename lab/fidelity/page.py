"""The report: tables for the terminal, a Markdown page (results/fidelity.md), and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from domino_tune.base.tables import Table
from lab import told
from lab.fidelity.scores import ALWAYS_TWO, MIN_SPREAD, TUNED, Setting, score
from lab.verdict import Check, at_least, at_most, check_table, markdown_section, reported, shown

FORMS: Final[dict[str, Any]] = told(__file__)
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
