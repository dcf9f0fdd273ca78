"""ReportData: everything that the page shows; the page itself predicts nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from domino_tune.results.layouts import Layouts
from domino_tune.results.simulate import UsableMemory, Verdict
from simulator.errors import InputError
from simulator.plan import SlicePlan
from simulator.schedule import Timeline


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One timeline of the page.

    ``alone_ns[i]`` is the i-th op's time alone (``CostModel.duration_ns``), from which the page
    computes the time that contention added. Raise InputError unless it is empty or has one time per
    op.
    """

    plan: SlicePlan
    timeline: Timeline
    alone_ns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.alone_ns and len(self.alone_ns) != len(self.timeline.start_ns):
            raise InputError(
                f"alone_ns needs one time an op, got {len(self.alone_ns)} for "
                f"{len(self.timeline.start_ns)} ops; leave it empty or give all."
            )


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The result of ``simulate``; times in ms. ``exposed_ms``: the exposed part of the plan's
    ``comm_ms``; ``baseline_exposed_ms``: that of the baseline. ``mfu`` is None if no peak is known;
    clocks (of the plan and of the baseline) and mean power are None if the profile has no law of
    power.
    """

    iteration_ms: float
    baseline_ms: float
    no_comm_ms: float
    comm_ms: float
    exposed_ms: float
    baseline_exposed_ms: float
    peak_memory_gib: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    low_ms: float
    high_ms: float
    confidence: str
    shares: dict[str, float]
    mfu: float | None = None
    clock_mhz: int | None = None
    baseline_clock_mhz: int | None = None
    power_w: float | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type == "float" and not (math.isfinite(value) and value >= 0):
                raise InputError(f"report {item.name} must be finite and ≥ 0, got {value!r}.")

    @property
    def speedup(self) -> float:
        """Time of the baseline over that of the chosen plan."""
        return self.baseline_ms / self.iteration_ms if self.iteration_ms else math.nan


@dataclass(frozen=True, kw_only=True)
class Held:
    """Peak memory of one variant by category, in GiB."""

    name: str
    gib: dict[str, float]
    chosen: bool = False

    @property
    def total_gib(self) -> float:
        """Sum of all categories."""
        return sum(self.gib.values())


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass of a stage over a micro-batch: forward (F), backward (B) or weight gradients (W)."""

    kind: str
    micro: int
    chunk: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True, kw_only=True)
class PipelinePicture:
    """The passes of each stage; ``end_ms``: when the iteration ends."""

    title: str
    stages: tuple[tuple[Pass, ...], ...]
    end_ms: float


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """The best plan of a cut; ``iteration_ms`` is None if no plan is feasible or none was tried.

    ``note`` names the plan, or says why there is no plan.
    """

    row_slices: int
    col_slices: int
    iteration_ms: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One row of the table of plans; ``note`` follows the plan's name."""

    plan: SlicePlan
    iteration_ms: float
    peak_memory_gib: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """``winner`` is the best plan from contention × ``factor`` upwards (0: off, 1: as in the
    profile).

    A page gets all of them by factor; the first has the lowest factor of all points.
    """

    factor: float
    winner: SlicePlan
    iteration_ms: float
    baseline_ms: float


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The chosen plan's time with ``key`` changed to ``low`` and to ``high`` (``0.5x``, ``2x``)."""

    key: str
    low: str
    high: str
    low_ms: float
    high_ms: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One plot of ``whatif --sweep``: ``series`` maps a name to one time in ms per point."""

    x_label: str
    xs: tuple[str, ...]
    series: dict[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for name, values in self.series.items():
            if len(values) != len(self.xs):
                raise InputError(
                    f"sweep series {name!r} has {len(values)} values for {len(self.xs)} points."
                )


@dataclass(frozen=True, kw_only=True)
class Search:
    """How the plan was found. ``found``: the set of plans among which it is the best, in words;
    ``infeasible`` counts plans by reason.
    """

    method: str
    found: str
    space_size: int
    evaluations: int
    seconds: float | None = None
    infeasible: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a section of the profile."""

    section: str
    kind: str
    source: str
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything on the page. Empty tuples and None omit their part.

    ``title``: model, ranks and profile in one line. ``workload``: (name, value) pairs.
    ``commands``: (purpose, command) pairs. ``heat_note``: a sentence on the cells of the heat map.
    ``verdict``: all strategies. ``layouts``: the best ones of a search; ``pipelines``: those of the
    baseline and of the plan. ``held``: memory of the variants, ``usable``: memory of a GPU.
    ``tie``: why the chosen plan is not the fastest, or empty.
    """

    title: str
    workload: tuple[tuple[str, str], ...]
    profile: str
    baseline: Shown
    chosen: Shown
    bound: Shown
    numbers: Numbers
    held: tuple[Held, ...] = ()
    usable: UsableMemory | None = None
    fits_chance: float = 1.0
    verdict: Verdict | None = None
    layouts: Layouts | None = None
    pipelines: tuple[PipelinePicture, ...] = ()
    heat: tuple[HeatCell, ...] = ()
    heat_note: str = ""
    plans: tuple[PlanRow, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    tie: str = ""
    sensitivity: tuple[Sensitivity, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    search: Search | None = None
    sources: tuple[Source, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
