"""Results of layout and scale: the best layouts, at one number of GPUs and at each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table
from domino_tune.results import LabelledPlan
from domino_tune.results.shown import Shown, factor, frame, money, ms, named, plan_words, share
from domino_tune.results.simulate import Simulated, SimulateResult
from domino_tune.results.tune import RunsThere, frameworks_table, stopped_words
from domino_tune.store.plans import ProfileRef
from simulator.case import Cost
from simulator.overlap import RIVAL_NAMES
from simulator.specs import ModelSpec
from simulator.usable import percent

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class LayoutResult:
    """A layout with its best plan.

    ``pp_layers``: of each virtual stage, where they are not equal; ``recompute_layers``: how many
    of each are recomputed, the fewest that fit, 0 for all.
    ``domino_gain``: the time of the best layout without Domino over this one's;
    ``domino_gain_here``: that of this layout in plain Megatron-LM. None where that does not fit.
    ``fits_chance``: how likely its peak fits a GPU.
    """

    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int
    ep: int
    etp: int
    pp_layers: tuple[int, ...]
    micro_batch_size: int
    grad_accumulation: int
    recompute: str
    recompute_layers: int
    plan: LabelledPlan
    iteration_ms: float
    tokens_per_second_per_gpu: float
    mfu: float | None
    peak_memory_gib: float
    fits_chance: float
    cost: Cost | None
    domino_gain: float | None
    domino_gain_here: float | None

    @property
    def label(self) -> str:
        """The layout in a few words: ``tp 4, pp 2, dp 8, micro-batch 1``."""
        sizes = {
            "tp": self.tp, "pp": self.pp, "vpp": self.vpp, "cp": self.cp, "dp": self.dp,
            "ep": self.ep, "etp": self.etp,
        }  # fmt: skip
        shown = [
            f"{name} {size}" for name, size in sizes.items() if name in ("tp", "dp") or size > 1
        ]
        if self.pp_layers:
            shown.append(stages_words(self.pp_layers))
        shown.append(f"micro-batch {self.micro_batch_size}")
        if self.recompute != "none":
            layers = self.recompute_layers
            several = f"{layers} layer{'s' * (layers > 1)} of each stage recomputed"
            shown.append(several if layers else "recomputed")
        return ", ".join(shown)


@dataclass(frozen=True, kw_only=True)
class Layouts(Shown):
    """The best layouts of those that fit with a chance of 80 % or more, fastest first, and how they
    were found.

    ``best``: the best cut of the first one, simulated in full. ``best_without_domino``: the fastest
    layout whose plan slices nothing: plain Megatron-LM or a rival. ``unsure_layouts``: faster ones
    that fit with less chance, each with one plan. ``not_searched``: what may be faster, as no
    search looked at it. ``frontier``: examined layouts that no other beats in both time and
    memory.
    ``candidates``: layouts whose weights fit, with ``plans`` in all; ``evaluations``: plans that
    were simulated. ``infeasible`` counts layouts by reason. ``stopped_by``: as in a tune; then
    nothing is known of the best layout without Domino. ``frameworks``: of the best layout, as in a
    tune.
    """

    best: Simulated
    gpus: int
    global_batch_size: int
    layouts: tuple[LayoutResult, ...]
    best_without_domino: LayoutResult | None
    frontier: tuple[LayoutResult, ...]
    optimality: str
    candidates: int
    plans: int
    evaluations: int
    infeasible: dict[str, int]
    seconds: float
    stopped_by: str | None = None
    frameworks: tuple[RunsThere, ...] = ()
    not_searched: tuple[str, ...] = ()
    unsure_layouts: tuple[LayoutResult, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return the best one's simulation, what frameworks run of it, the frontier, layouts that
        may not fit, and the best layouts."""
        shown = (frameworks_table(self.frameworks),) if self.frameworks else ()
        frontier = _table(LESS_MEMORY, self.frontier, marked=(0,))
        unsure = (_table(UNSURE, self.unsure_layouts),) if self.unsure_layouts else ()
        first, *others = self.best.tables()
        first = replace(first, title=f"{_headline(self.layouts[0])} {first.title}")
        return (first, *others, *shown, frontier, *unsure, _layouts(self))

    def to_frame(self) -> DataFrame:
        """Return one row a layout, fastest first."""
        rows = [{**asdict(one), "plan": one.plan.label} for one in self.layouts]
        return frame(rows, [item.name for item in fields(LayoutResult)])


@dataclass(frozen=True, kw_only=True)
class LayoutsResult(Layouts):
    """The same where it was computed."""

    best: SimulateResult


def _headline(best: LayoutResult) -> str:
    how = RIVAL_NAMES.get(best.plan.strategy) or plan_words(best.plan)
    return (
        f"Train with {best.label}, {how}: {best.tokens_per_second_per_gpu:,.0f} tokens/s/GPU, "
        f"{best.peak_memory_gib:.0f} GiB per GPU."
    )


def _rows(layouts: Sequence[LayoutResult]) -> list[tuple[str, ...]]:
    return [_row(number, one) for number, one in enumerate(layouts, 1)]


def _row(number: int, one: LayoutResult) -> tuple[str, ...]:
    return (
        str(number), str(one.tp), str(one.pp), str(one.vpp), str(one.cp), str(one.dp),
        str(one.ep), str(one.micro_batch_size), _recomputed(one), _named(one),
        f"{one.tokens_per_second_per_gpu:,.0f}", share(one.mfu), ms(one.iteration_ms),
        f"{one.peak_memory_gib:.1f} GiB", percent(one.fits_chance), _gain(one.domino_gain),
        _gain(one.domino_gain_here),
    )  # fmt: skip


def stages_words(layers: Sequence[int]) -> str:
    """Return the layers of virtual stages: ``stages of 3 × 9, 5 layers``."""
    runs = [(count, len(list(alike))) for count, alike in groupby(layers)]
    told = (f"{times} × {count}" if times > 1 else str(count) for count, times in runs)
    return f"stages of {', '.join(told)} layers"


def _named(one: LayoutResult) -> str:
    stages = f"; {stages_words(one.pp_layers)}" if one.pp_layers else ""
    return f"{named(one.plan)}{stages}"


def _recomputed(one: LayoutResult) -> str:
    layers = one.recompute_layers
    return f"{one.recompute}, {layers} layer{'s' * (layers > 1)}" if layers else one.recompute


def _gain(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}x"


COLUMNS: Final = (
    ">", ">tp", ">pp", ">vpp", ">cp", ">dp", ">ep", ">micro-batch", "recompute", "plan",
    ">tokens/s/GPU",
    ">MFU", ">iteration", ">memory", ">fits", ">gain", ">gain here",
)  # fmt: skip
NARROW: Final = ("plan", "MFU", "gain here", "cp", "ep", "iteration", "vpp", "gain")
"""Columns that are left out where there is no room, first to last."""
LESS_MEMORY: Final = (
    "Less memory for more time: layouts that no other examined layout beats in both"
)
UNSURE: Final = "Faster, but not recommended: layouts that fit with a chance below 80 %"


def _layouts(result: Layouts) -> Table:
    infeasible = ", ".join(f"{count:,} {reason}" for reason, count in result.infeasible.items())
    return _table(
        f"The best layouts of {result.best.model.name} on {result.gpus} GPUs, "
        f"{result.global_batch_size} sequences an iteration",
        result.layouts,
        marked=(0,),
        notes=(
            _rival(result),
            "gain: over that; gain here: over the same layout in plain Megatron-LM.",
            f"{_sure(result)} of {result.candidates:,} layouts with {result.plans:,} plans of "
            f"Megatron-LM, Domino and its rivals, {result.evaluations:,} simulated, the rest "
            f"{'not looked at' if result.stopped_by else 'ruled out by a bound'}; layouts that "
            f"cannot run: {infeasible or 'none'}; {result.seconds:.1f} s.",
            *(
                [f"Not searched, so perhaps faster: {'; '.join(result.not_searched)}."]
                if result.not_searched
                else []
            ),
        ),
    )


def _sure(result: Layouts) -> str:
    return "Proven the fastest" if result.optimality == "proven" else "The best so far"


def _rival(result: Layouts) -> str:
    """Return what is known of the best layout without Domino."""
    without = result.best_without_domino
    if result.stopped_by:
        return f"Searched{stopped_words(result.stopped_by)}: other layouts may be faster."
    if without is None:
        return "Without Domino, no layout is likely enough to fit."
    return (
        f"Without Domino the best found is {without.plan.label} with {without.label}: "
        f"{ms(without.iteration_ms)}, {without.tokens_per_second_per_gpu:,.0f} tokens/s/GPU."
    )


def _table(title: str, layouts: Sequence[LayoutResult], **more: Any) -> Table:
    return Table(
        title=title, columns=COLUMNS, rows=_rows(layouts), narrow=NARROW, below="plan", **more
    )


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
            columns=POINT_COLUMNS,
            rows=[_point_row(point) for point in self.points],
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


POINT_COLUMNS: Final = (
    ">GPUs", "layout", "plan", ">tokens/s/GPU", ">tokens/s", ">MFU", ">iteration", ">memory",
    ">fits", ">gain", ">efficiency",
)  # fmt: skip


def _point_row(point: ScalePoint) -> tuple[str, ...]:
    one = point.layout
    if one is None or point.tokens_per_second is None:
        return (f"{point.gpus:,}", "not possible", *[""] * (len(POINT_COLUMNS) - 2))
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
