"""Line plots, drawn by a script of the page, with the same values as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from domino_tune.report.markup import Html, table, tag
from domino_tune.report.names import STRATEGY_NAMES, change_label, ms_text
from simulator.errors import InputError

ROLES: Final = {
    STRATEGY_NAMES["megatron"]: "base",
    "this plan": "chosen",
    STRATEGY_NAMES["no_comm"]: "bound",
}
"""Lines in the colours of the page's bars; each other line has a colour of its own."""


class Axis(NamedTuple):
    """A plot's values: their name, unit (empty: none), and number of decimals; None: as for times
    in ms.
    """

    name: str
    unit: str
    digits: int | None

    def written(self, value: float | None) -> str:
        """Return a value as text without its unit."""
        if value is None:
            return "–"
        return ms_text(value) if self.digits is None else f"{value:,.{self.digits}f}"


TIMES: Final = Axis("Iteration", "ms", None)


def plot_figure(
    caption: str,
    x_label: str,
    xs: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    axis: Axis = TIMES,
) -> Html:
    """Return a plot of values over ``xs``, evenly spaced in the order given, with a caption.

    ``series`` maps a name to one value per point, None if missing. ``static/plot.js`` draws them.
    Raise InputError for a series with another number of values, or with one that is not finite.
    """
    for name, values in series.items():
        if len(values) != len(xs) or not all(math.isfinite(value or 0.0) for value in values):
            raise InputError(f"Series {name!r} needs {len(xs)} finite values, got {list(values)}.")
    what = change_label(x_label)
    data = {
        "label": axis.name, "x": what, "xs": list(xs), "unit": axis.unit, "digits": axis.digits,
        "lines": [
            {"name": name, "role": ROLES.get(name, ""), "values": list(values)}
            for name, values in series.items()
        ],
    }  # fmt: skip
    rows = [
        (x, *(axis.written(values[index]) for values in series.values()))
        for index, x in enumerate(xs)
    ]
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", "", class_="plot-host", data_plot=json.dumps(data, ensure_ascii=False)),
        tag("details", tag("summary", "As a table"), table((what, *series), rows)),
    )


def tick_step(least: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is at least ``least``."""
    unit: float = 10.0 ** math.floor(math.log10(least))
    return next(k * unit for k in (1, 2, 5, 10) if k * unit >= least)
