"""Result of `validate`: predicted and measured times, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

from domino_tune.results import Interval
from domino_tune.results.json_form import HIDDEN
from domino_tune.store.plans import ProfileRef
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One iteration, predicted or measured.

    ``speedup``: the baseline's time over this one's, None where the baseline was not measured.
    Measured communication is that of the median step.
    """

    iteration_ms: float
    speedup: float | None
    comm_ms: float | None
    exposed_comm_ms: float | None
    hidden_comm_fraction: float | None
    peak_memory_gib: float | None


@dataclass(frozen=True, kw_only=True)
class RoleTimes:
    """All ops of one role: their number, and their total time in flight.

    ``ratio`` is measured over predicted. Predicted times include the slowdown of ops that overlap.
    """

    role: str
    count: int
    predicted_ms: float
    measured_ms: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class ValidatedPlan:
    """One plan.

    ``error``: predicted over measured, less 1; ``error_at_present_speed``: the same with compute
    predicted at the speed that the machine has now. ``interval_ms`` contains the true median with
    95 %; with fewer than six rounds it is their range. ``spread_ms``: half of the interquartile
    range. ``measured`` and the fields that depend on it are None where the plan was not run;
    ``failed`` then says why. ``loss``: that of the first round. ``captured``: measured as a CUDA
    graph; ``why_not_captured`` says why not where one was asked for.
    """

    name: str
    plan: SlicePlan
    predicted: Iteration
    measured: Iteration | None
    error: float | None
    error_at_present_speed: float | None
    interval_ms: Interval | None
    spread_ms: float | None
    loss: float | None
    failed: str
    makespans_ms: tuple[float, ...]
    roles: tuple[RoleTimes, ...]
    captured: bool = False
    why_not_captured: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidateResult:
    """Plans on real ranks beside their predictions.

    The first plan is the baseline, the second the bound without communication. ``profile``: the
    profile that predicted. ``present_speed``: the machine's speed over its speed when it was
    profiled. ``machine_differences``: how this machine differs from the profile's.
    ``interrupted``: fewer rounds ran than asked for. ``emulated_collectives``: one rank ran, and
    collectives took the profile's times.
    """

    plans: tuple[ValidatedPlan, ...]
    max_error: float | None
    present_speed: float | None
    profile: ProfileRef
    machine_differences: tuple[str, ...]
    warnings: tuple[str, ...]
    rounds: int
    interrupted: bool
    emulated_collectives: bool
    backend: str
    emulate_link_bits_per_s: int | None
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    timelines: dict[str, Timeline] = field(metadata=HIDDEN, repr=False)
