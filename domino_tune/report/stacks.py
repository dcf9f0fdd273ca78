"""Stacked bars of several variants, and the table that explains their colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from domino_tune.report.markup import Html, tag

LABELLED: Final = 0.06
"""Least share of the longest bar that a piece's label fits in."""


@dataclass(frozen=True)
class Stack:
    """One variant's bar: values by part, in one unit."""

    name: str
    parts: Mapping[str, float]
    chosen: bool = False


@dataclass(frozen=True)
class Legend:
    """What the parts are called, which CSS class colours each, and how values are written.

    ``unit`` follows a value in a piece's tooltip.
    """

    names: Mapping[str, str]
    classes: Mapping[str, str]
    unit: str
    written: Callable[[float], str]


def stacked(stacks: Sequence[Stack], legend: Legend, longest: float, *extra: Html) -> Html:
    """Return the bars; ``longest`` is the value at full width, ``extra`` is drawn over each bar."""
    bars = [_bar(stack, legend, longest, extra) for stack in stacks]
    return tag("div", *bars, class_="stacks", aria_hidden="true")


def _bar(stack: Stack, legend: Legend, longest: float, extra: tuple[Html, ...]) -> Html:
    pieces = [
        tag(
            "i",
            tag("b", legend.written(value)) if value > LABELLED * longest else "",
            class_=legend.classes[part],
            style=f"width:{100 * value / longest:.3f}%",
            title=f"{legend.names[part]}: {legend.written(value)} {legend.unit}",
        )
        for part, value in stack.parts.items()
        if value
    ]
    label = tag("span", stack.name, class_="name")
    return tag("div", label, tag("span", *pieces, *extra, class_="track"),
               class_="stack chosen" if stack.chosen else "stack")  # fmt: skip


def stack_rows(stacks: Sequence[Stack], legend: Legend) -> list[tuple[str, ...]]:
    """Return a row a part that any variant has, with its swatch, and a row of sums."""
    rows: list[tuple[str, ...]] = []
    for part, name in legend.names.items():
        values = [stack.parts[part] for stack in stacks]
        if any(values):
            swatch = tag("i", "", class_=f"swatch {legend.classes[part]}")
            written = (legend.written(value) if value else "–" for value in values)
            rows.append((tag("span", swatch, name), *written))
    sums = (legend.written(sum(stack.parts.values())) for stack in stacks)
    return [*rows, ("All", *sums)]
