"""whatif: the same plan, or the best one, on a changed machine or workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from domino_tune.base.progress import Progress, no_progress
from domino_tune.base.units import (
    Dimension,
    QuantityError,
    moe_imbalance,
    names_in,
    parse_quantity,
    power_cap_w,
)
from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.requests.options import MOST
from domino_tune.results import made_of
from domino_tune.results.simulate import Simulated, SimulateResult
from domino_tune.results.whatif import WhatIf, WhatIfPoint, WhatIfResult
from domino_tune.search.problem import Record, choose_best, go_on
from domino_tune.search.simulated import CasePlans
from domino_tune.store.plans import PlanFile
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.job_notes import job_notes
from domino_tune.verbs.resolve import (
    Chosen,
    check_quantization,
    place,
    plan_of,
    read_plan_file,
    resolve,
)
from domino_tune.verbs.simulate import simulate_plan
from domino_tune.verbs.tune import search
from simulator.case import Case
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError, unknown_name
from simulator.ops import Collective
from simulator.plan import SlicePlan

Apply = Callable[[Case, str], Case]
Best = Callable[[Case], Chosen]
About = tuple[Case, Chosen]
PROBE_BYTES: Final = 256 << 20
"""Size of the all-reduce that gives the profile's link bandwidth and latency."""


def _machine(key: str, dimension: Dimension, fact: Callable[[Case], float]) -> Apply:
    """Return a change of the machine: a factor, or a value relative to the profile's ``fact``."""

    def apply(case: Case, text: str) -> Case:
        quantity = parse_quantity(key, text, ("factor", dimension))
        factor = quantity.value
        if quantity.dimension != "factor":
            factor /= fact(case)
        old: float = getattr(case.factors, key)
        return replace(case, factors=replace(case.factors, **{key: old * factor}))

    return apply


def _probe(case: Case) -> tuple[Collective, float, float]:
    """Return a large all-reduce of the TP group, its latency and its transfer time, in seconds."""
    nodes, per_node = case.cluster.tp_group
    if case.cluster.tp == 1:
        raise InputError(
            "With tp 1 there is no link whose value can be set; give a factor, or a larger --tp."
        )
    probe = Collective("all_reduce", PROBE_BYTES, nodes, per_node)
    latency_us, transfer_us = case.profile.collective_table().shares(probe)
    return probe, latency_us * 1e-6, transfer_us * 1e-6


def link_bandwidth(case: Case) -> float:
    """Return the bus bandwidth of a large all-reduce, in bytes/s (nccl-tests' busbw)."""
    probe, _, transfer_s = _probe(case)
    return probe.bus_bytes / transfer_s


def link_latency(case: Case) -> float:
    """Return the part of an all-reduce's time that does not depend on its size, in seconds."""
    return _probe(case)[1]


def _peak_flops(case: Case) -> float:
    rates, dtype = case.profile.machine.peaks, case.workload.linear_math
    if dtype not in rates:
        raise InputError(
            f"Profile {case.profile.name!r} has no peak FLOP/s of {dtype}; give a factor."
        )
    return rates[dtype] * 1e12


def _host_speed(case: Case, text: str) -> Case:
    factor = parse_quantity("host_speed", text, ("factor",)).value
    factors = replace(case.factors, host_speed=case.factors.host_speed * factor)
    return replace(case, factors=factors)


def _contention(case: Case, text: str) -> Case:
    try:
        factor = 0.0 if text == "off" else parse_quantity("contention", text, ("factor",)).value
    except QuantityError as error:
        raise QuantityError(f"{str(error).removesuffix('.')}, or off.") from None
    factors = replace(case.factors, contention=case.factors.contention * factor)
    return replace(case, factors=factors)


def _count(key: str, text: str, old: int) -> int:
    """Return the whole number in ``text``, which may be a multiple of ``old``."""
    quantity = parse_quantity(key, text, ("number", "factor"))
    value = quantity.value * (old if quantity.dimension == "factor" else 1)
    if value < 1 or value != int(value):
        raise InputError(f"{key} must be a whole number ≥ 1, got {text!r}.")
    if value > MOST:
        raise InputError(f"{key} must be a whole number ≤ {MOST}, got {text!r}.")
    return int(value)


def _workload(case: Case, **changes: Any) -> Case:
    return replace(case, workload=replace(case.workload, **changes))


def _cluster(case: Case, **changes: Any) -> Case:
    return replace(case, cluster=replace(case.cluster, **changes))


def _counted(key: str) -> Apply:
    return lambda case, text: _workload(
        case, **{key: _count(key, text, getattr(case.workload, key))}
    )


def _group(key: str) -> Apply:
    def apply(case: Case, text: str) -> Case:
        size: dict[str, Any] = {key: _count(key, text, getattr(case.cluster, key))}
        cluster = replace(case.cluster, **size, ranks_per_node=2**30, ranks_per_domain=0)
        return replace(case, cluster=place(cluster, case.profile, None))

    return apply


def _nodes(case: Case, text: str) -> Case:
    nodes = _count("nodes", text, case.cluster.nodes)
    return replace(case, cluster=place(case.cluster, case.profile, nodes))


def _cuda_graph(case: Case, text: str) -> Case:
    if text not in ("on", "off"):
        raise InputError(f"cuda_graph must be on or off, got {text!r}.")
    return _cluster(case, cuda_graph=text == "on")


def _fp8_recipe(case: Case, text: str) -> Case:
    changes: dict[str, Any] = {"fp8_recipe": text}
    if text == "none":
        changes |= {
            "fp8_param_gather": False, "num_layers_at_start_in_bf16": 0,
            "num_layers_at_end_in_bf16": 0,
        }  # fmt: skip
    workload = replace(case.workload, **changes)
    check_quantization(case.model, workload, case.profile)
    return replace(case, workload=workload)


def _clock_mhz(case: Case, text: str) -> Case:
    old = case.cluster.clock_mhz or (case.power.boost_mhz if case.power else 1)
    return _cluster(case, clock_mhz=_count("clock_mhz", text, old))


KEYS: Final[dict[str, Apply]] = {
    "tp": _group("tp"),
    "nodes": _nodes,
    "micro_batch_size": _counted("micro_batch_size"),
    "seq_length": _counted("seq_length"),
    "cuda_graph": _cuda_graph,
    "cuda_graph_scope": lambda case, text: _workload(
        case, cuda_graph_scope=() if text == "none" else names_in(text.replace("+", ","))
    ),
    "fp8_recipe": _fp8_recipe,
    "ep": _group("ep"),
    "moe_dispatcher": lambda case, text: _workload(case, moe_dispatcher=text),
    "moe_imbalance": lambda case, text: _workload(
        case, moe_imbalance=moe_imbalance("moe_imbalance", text)
    ),
    "power_cap": lambda case, text: _cluster(case, power_cap_w=power_cap_w("power_cap", text)),
    "clock_mhz": _clock_mhz,
    "link_bandwidth": _machine("link_bandwidth", "bytes/s", link_bandwidth),
    "link_latency": _machine("link_latency", "s", link_latency),
    "gpu_flops": _machine("gpu_flops", "flop/s", _peak_flops),
    "memory_bandwidth": _machine(
        "memory_bandwidth", "bytes/s", lambda s: s.profile.machine.memory_bandwidth_gb_s * 1e9
    ),
    "host_speed": _host_speed,
    "contention": _contention,
}
"""Changes by name, in the order in which they are made. The machine's come last: their values with
a unit are relative to the profile's value for the TP group, which earlier changes may replace."""


def parse_changes(texts: Sequence[str]) -> dict[str, str]:
    """Return the KEY=VALUE pairs. Raise InputError for an unknown or a repeated key."""
    changes: dict[str, str] = {}
    for text in texts:
        key, value = _split("--change", text)
        if key in changes:
            raise InputError(f"--change names {key} twice; give it once, or use --sweep.")
        changes[key] = value
    return changes


def parse_sweep(text: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the swept key and its values; the key is empty without a sweep."""
    if text is None:
        return "", ()
    key, listed = _split("--sweep", text)
    values = tuple(value.strip() for value in listed.split(","))
    if not all(values) or len(set(values)) != len(values):
        raise InputError(f"--sweep needs KEY=A,B,C with each value once, got {text!r}.")
    return key, values


def _split(flag: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not value:
        raise InputError(f"{flag} needs KEY=VALUE, got {text!r}; write it like link_bandwidth=2x.")
    if key not in KEYS:
        raise unknown_name("key of " + flag, key, KEYS)
    return key, value


def changed(case: Case, changes: Mapping[str, str]) -> Case:
    """Return the case with all changes, made in the order of KEYS."""
    before = _job_notes(case)
    for key in sorted(changes, key=list(KEYS).index):
        case = KEYS[key](case, changes[key])
    others = (note for note in case.notes if note not in before)
    return replace(case, notes=(*others, *_job_notes(case)))


def _job_notes(case: Case) -> list[str]:
    return job_notes(case.workload, case.cluster, case.profile, case.sequence_parallel)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A plan and the points at which it, or with ``retune`` the best plan, is predicted.

    ``changes`` are made at every point. ``swept`` is the key of ``values``; both are empty without
    a sweep, and there is one point. Raise InputError when nothing changes, or when ``swept`` is
    also in ``changes``.
    """

    case: Case
    chosen: Chosen
    changes: Mapping[str, str]
    swept: str = ""
    values: tuple[str, ...] = ()
    retune: bool = False

    def __post_init__(self) -> None:
        if not self.changes and not self.values:
            raise InputError(
                f"Say what to change: give --change or --sweep with one of {', '.join(KEYS)}."
            )
        if self.swept in self.changes:
            raise InputError(f"{self.swept} is both changed and swept; leave one out.")

    @property
    def size(self) -> int:
        """Number of points, without the unchanged case."""
        return len(self.values) or 1

    def unchanged(
        self, progress: Progress = no_progress, best: Best | None = None
    ) -> SimulateResult:
        """Return the prediction of the unchanged case. Raise what the simulation raises."""
        return self._predict({}, progress, best)

    def point(
        self, index: int, progress: Progress = no_progress, best: Best | None = None
    ) -> WhatIfPoint:
        """Return prediction ``index``; ``best`` finds the plan of a retuned point.

        Raise QuantityError for a malformed value. A sweep's point holds its other errors itself.
        """
        if not self.values:
            result = self._predict(self.changes, progress, best)
            return WhatIfPoint(changes=dict(self.changes), prediction=result.prediction)
        changes = {**self.changes, self.swept: self.values[index]}
        try:
            predicted = self._predict(changes, progress, best)
        except QuantityError:
            raise
        except DominoTuneError as error:
            return WhatIfPoint(changes=changes, error=str(error))
        return WhatIfPoint(changes=changes, prediction=predicted.prediction)

    def answer(
        self, unchanged: Simulated, points: Sequence[WhatIfPoint], stopped_by: str | None = None
    ) -> WhatIf:
        """Return the points beside the unchanged case. Raise InputError when none has a
        prediction."""
        if all(point.error for point in points):
            first = points[0].error
            raise InputError(f"No point of the sweep can be predicted; the first: {first}")
        return WhatIf(
            model=unchanged.model, profile=unchanged.profile,
            base=WhatIfPoint(changes={}, prediction=unchanged.prediction), points=tuple(points),
            sweep=self.swept or None, retuned=self.retune, notes=self.case.notes,
            stopped_by=stopped_by,
        )  # fmt: skip

    def _predict(
        self, changes: Mapping[str, str], progress: Progress, best: Best | None
    ) -> SimulateResult:
        progress(", ".join(f"{key}={value}" for key, value in changes.items()) or "unchanged")
        there = changed(self.case, changes)
        if not self.retune:
            try:
                return simulate_plan(there, self.chosen)
            except InfeasiblePlanError as error:
                told = f"{error} Or search for a plan that suits, with --retune."
                raise InfeasiblePlanError(told, reason=error.reason) from None
        return simulate_plan(
            there, best(there) if best else best_plan(CasePlans(case=there), progress)
        )


def whatif(
    request: WhatIfRequest,
    progress: Progress = no_progress,
    *,
    plan_file: PlanFile | None = None,
    shelf: Shelf = DISK,
) -> WhatIfResult:
    """Predict a plan, or with ``retune`` the best one, on a changed machine or workload.

    ``plan_file`` and ``shelf`` as in ``simulate``.
    """
    return what_if(ask(request, plan_file or read_plan_file(request), shelf), progress)


def ask(
    request: WhatIfRequest,
    plan_file: PlanFile | None = None,
    shelf: Shelf = DISK,
    about: About | None = None,
) -> Question:
    """Return the question of a request, ``about`` what it asks if that is known. Names are looked
    up on ``shelf``. Raise InputError."""
    changes = parse_changes(request.change)
    swept, values = parse_sweep(request.sweep)
    case, chosen = about or asked_about(request, plan_file, shelf)
    return Question(
        case=case, chosen=chosen, changes=changes, swept=swept, values=values, retune=request.retune
    )


def asked_about(
    request: WhatIfRequest, plan_file: PlanFile | None = None, shelf: Shelf = DISK
) -> About:
    """Return the unchanged case and the plan that a request asks about, with its order."""
    case = resolve(request, plan_file, shelf)
    plan = plan_of(request, plan_file, case)
    return case, Chosen.of(case, plan, plan_file.order if plan_file else None)


def what_if(question: Question, progress: Progress = no_progress) -> WhatIfResult:
    """Predict the plan on the unchanged case and at every point.

    Raise InputError when no point of a sweep can be predicted.
    """
    unchanged = question.unchanged(progress)
    points = [question.point(index, progress) for index in range(question.size)]
    return made_of(WhatIfResult, question.answer(unchanged, points), unchanged=unchanged)


def best_plan(
    plans: CasePlans,
    progress: Progress = no_progress,
    *,
    record: Record | None = None,
    pause: Callable[[], None] = go_on,
) -> Chosen:
    """Return the best plan of a changed case, as ``tune`` finds it by default; see ``search``."""
    made = search(plans, TuneRequest(), progress, record=record, pause=pause)
    return _chosen(plans, made.found.best.plan)


def best_so_far(plans: CasePlans, record: Record) -> Chosen:
    """Return the best plan of a search that was interrupted; ``record`` has a trial."""
    return _chosen(plans, choose_best(record.trials).plan)


def _chosen(plans: CasePlans, plan: SlicePlan) -> Chosen:
    return Chosen(plan=plan, order=plans.problem.order(plan))
