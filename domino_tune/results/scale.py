"""Result of scale: the best layout at each number of GPUs, for the same global batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from domino_tune.base.tables import Table
from domino_tune.results.layouts import LayoutResult
from domino_tune.results.shown import Shown, frame
from domino_tune.results.texts import factor, money, ms, share
from domino_tune.store.plans import ProfileRef
from simulator.specs import ModelSpec
from simulator.usable import percent

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """One number of GPUs: its best layout, or ``error``, which says why no layout was found.

    ``tokens_per_second`` is the rate of all GPUs. ``scaling_efficiency``: tokens/s/GPU relative to
    the first number of GPUs with a layout. ``best_without_domino`` is None if no layout fits
    without it. ``optimality`` comes from the search, ``warnings`` from the prediction.
    """

    gpus: int
    layout: LayoutResult | None = None
    tokens_per_second: float | None = None
    scaling_efficiency: float | None = None
    best_without_domino: LayoutResult | None = None
    optimality: str | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScaleResult(Shown):
    """The best layout at each number of GPUs, all with the same ``global_batch_size``.

    ``stopped_by``: why a job ended before the last number, ``user`` or ``time``; the layout of its
    last point is then the best so far. None if it has all numbers.
    """

    points: tuple[ScalePoint, ...]
    model: ModelSpec
    profile: ProfileRef
    seq_length: int
    global_batch_size: int
    seconds: float
    stopped_by: str | None = None

    @property
    def found(self) -> tuple[tuple[ScalePoint, LayoutResult], ...]:
        """The points that have a layout, each with its layout."""
        return tuple((point, point.layout) for point in self.points if point.layout)

    @property
    def asked(self) -> str:
        """The question in a few words: model, machine and batch."""
        return (
            f"{self.model.name} on {self.profile.name}, {self.global_batch_size:,} sequences of "
            f"{self.seq_length:,} tokens an iteration"
        )

    def tables(self) -> Sequence[Table]:
        """Return one table: one row per number of GPUs."""
        table = Table(
            title=f"The best layout at each number of GPUs: {self.asked}",
            columns=COLUMNS,
            rows=[_row(point) for point in self.points],
            notes=tuple(_notes(self)),
            narrow=(
                "iteration", "memory", "fits", "MFU", "tokens/s", "gain", "plan", "layout",
            ),
            below="layout",
        )  # fmt: skip
        return (table,)

    def alerts(self) -> Sequence[str]:
        """Return each warning once, after its numbers of GPUs."""
        about: dict[str, list[str]] = {}
        for point in self.points:
            for text in point.warnings:
                about.setdefault(text, []).append(f"{point.gpus:,}")
        return [f"{', '.join(numbers)} GPUs: {text}" for text, numbers in about.items()]

    def to_frame(self) -> DataFrame:
        """Return one row per number of GPUs; if no layout was found, ``error`` says why."""
        names = [item.name for item in fields(LayoutResult)]
        rows = []
        for point in self.points:
            layout = point.layout
            rows.append(
                {
                    "gpus": point.gpus, **(asdict(layout) if layout else {}),
                    "layout": layout.label if layout else "",
                    "plan": layout.plan.label if layout else "",
                    "tokens_per_second": point.tokens_per_second,
                    "scaling_efficiency": point.scaling_efficiency, "error": point.error or "",
                }
            )  # fmt: skip
        return frame(
            rows, ["gpus", "layout", *names, "tokens_per_second", "scaling_efficiency", "error"]
        )


COLUMNS: Final = (
    ">GPUs", "layout", "plan", ">tokens/s/GPU", ">tokens/s", ">MFU", ">iteration", ">memory",
    ">fits", ">gain", ">efficiency",
)  # fmt: skip


def _row(point: ScalePoint) -> tuple[str, ...]:
    one = point.layout
    if one is None or point.tokens_per_second is None:
        return (f"{point.gpus:,}", "not possible", *[""] * (len(COLUMNS) - 2))
    return (
        f"{point.gpus:,}", one.label, one.plan.label, f"{one.tokens_per_second_per_gpu:,.0f}",
        f"{point.tokens_per_second:,.0f}", share(one.mfu), ms(one.iteration_ms),
        f"{one.peak_memory_gib:.1f} GiB", percent(one.fits_chance), factor(one.domino_gain),
        share(point.scaling_efficiency),
    )  # fmt: skip


def _notes(result: ScaleResult) -> Iterator[str]:
    """Yield why a number has no layout, what the columns mean, and how the answer was found."""
    for point in result.points:
        if point.error:
            yield f"{point.gpus:,} GPUs: {point.error}"
    first = result.found[0][0].gpus
    yield (
        f"All numbers train the same global batch of {result.global_batch_size:,} sequences "
        "(strong scaling)."
    )
    yield (
        f"efficiency: tokens/s/GPU over those at {first:,} GPUs; gain: over the best layout "
        "without Domino at the same number."
    )
    yield from _cheapest(result)
    kinds = {point.optimality for point, _ in result.found}
    yield f"{', '.join(sorted(kind for kind in kinds if kind))}; {result.seconds:.1f} s."


def _cheapest(result: ScaleResult) -> Iterator[str]:
    """Yield the numbers of GPUs by cost, the cheapest first, where a price is known."""
    costs = [(one.cost, point.gpus) for point, one in result.found if one.cost]
    if costs:
        ranked = sorted(costs, key=lambda item: item[0].trillion_tokens)
        told = ", ".join(
            f"{money(cost.trillion_tokens)} on {gpus:,} GPUs"
            + (f" ({cost.run_days:,.1f} days for the run)" if cost.run_days is not None else "")
            for cost, gpus in ranked
        )
        yield f"1e12 tokens cost, at {ranked[0][0].gpu_hour:g} a GPU hour: {told}."
