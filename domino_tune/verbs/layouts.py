"""layout: the best layouts of a model for a number of GPUs and a global batch."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from domino_tune.base.cores import Ahead, Beside, copies, in_turn, later, on_all_cores
from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import LayoutRequest
from domino_tune.requests.problems import fields_named
from domino_tune.results.layouts import LayoutResult, LayoutsResult
from domino_tune.results.simulate import SimulateResult
from domino_tune.results.tune import RunsThere
from domino_tune.search.layouts import (
    Candidate,
    LayoutSearch,
    Timed,
    recomputing,
)
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.advice import (
    Deadline,
    OutOfTimeError,
    most_likely,
    really_fits,
    unsliced_plans,
    weights_fit,
    words_of,
)
from domino_tune.verbs.layout_space import (
    COL_SLICES,
    MOST_MICRO_BATCH,
    MOST_VPP,
    ROW_SLICES,
    base_of,
    batch_of,
    candidates_of,
    case_of,
    layouts_of,
    recomputed_layers,
)
from domino_tune.verbs.resolve import Chosen, place
from domino_tune.verbs.simulate import simulate_plan
from domino_tune.verbs.tune import frameworks_of
from simulator.case import Case
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import InfeasiblePlanError, InputError
from simulator.greedy import order_of
from simulator.least_memory import KeptBytes, LeastBytes
from simulator.memory import may_fit, peak_bytes
from simulator.model_flops import mfu
from simulator.usable import UNSURE

LISTING: Final = "listing the layouts"
"""What a search says it does until it knows how many there are."""
MANY: Final = 100
"""Number of layouts from which a search first warns that it may take minutes."""
MOST_TIMES: Final = 64
"""Largest factor on the GPUs that an answer suggests if a model does not fit."""
FIXED: Final = ("tp", "pp", "cp", "ep", "dp", "micro_batch_size")
"""Fields of a layout that must divide something, where they are given."""
NOT_SEARCHED: Final = {
    "other methods of userbuffers, async-TP and tile fusion, in other layouts than the best": "",
    "recomputation of single ops": "recompute",
    "stages of other numbers of layers": "",
    "tensor parallelism across NVLink domains": "tp",
    f"micro-batches above {MOST_MICRO_BATCH}": "micro_batch_size",
    f"vpp above {MOST_VPP}": "vpp",
    f"more than {ROW_SLICES[-1]} row or {COL_SLICES[-1]} column slices, and fixed orders": "",
    "other sharing among replicas": "data_parallel",
    "other schedules of a pipeline": "pp_schedule",
    "other exchanges of context-parallel ranks": "cp_comm",
}
"""What no search covers, though it may be faster -> the field that asks for it or forbids it."""
OF_EXPERTS: Final = {
    "other dispatchers of experts' tokens": "moe_dispatcher",
    "column slices of layers with experts": "",
}  # fmt: skip
"""The same where a model has experts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayoutSpace:
    """The layouts of a request that may be recommended, with counts of why others are not.

    ``base``: the case of one layout; the others divide it differently. ``edge``: layouts that may
    fit, but with less chance than is recommended.
    """

    request: LayoutRequest
    base: Case
    candidates: Sequence[Candidate]
    infeasible: Counter[str]
    edge: Sequence[Candidate] = ()


def tune_layouts(
    request: LayoutRequest, progress: Progress = no_progress, *, shelf: Shelf = DISK
) -> LayoutsResult:
    """Return the best layouts of the request's model on its GPUs.

    Raise InputError, and InfeasiblePlanError if no layout fits in memory.
    """
    began = time.perf_counter()
    progress(LISTING)
    space = space_of(request, shelf, on_all_cores)
    many = len(space.candidates)
    progress(f"{many:,} layouts that may fit" + "; this may take minutes" * (many >= MANY))
    search = LayoutSearch(space.candidates, progress, on_all_cores, edge=space.edge)
    search.run()
    progress(f"{search.evaluations:,} plans done, none left; comparing strategies")
    with copies() as beside:
        result = conclude(space, search, on_all_cores, beside)
    return replace(result, seconds=time.perf_counter() - began)


def space_of(
    request: LayoutRequest, shelf: Shelf = DISK, ahead: Ahead = in_turn
) -> LayoutSpace:  # fmt: skip
    """Return the layouts that the request's search covers. Raise as ``check_may_fit`` does."""
    base = base_of(request, shelf)
    check_may_fit(base, request)
    candidates, infeasible, edge = candidates_of(base, request, ahead)
    return LayoutSpace(
        request=request, base=base, candidates=candidates, infeasible=infeasible, edge=edge
    )


def conclude(
    space: LayoutSpace,
    search: LayoutSearch,
    ahead: Ahead = in_turn,
    beside: Beside = later,
    *,
    stopped_by: str | None = None,
) -> LayoutsResult:
    """Return the answer of a search that has ended: the best layout, simulated and compared with
    its rivals, and ``beside`` that layouts that fit with less chance; ``seconds`` is 0.

    ``stopped_by``: why the search ended early; then nothing is proven, and the best layout without
    Domino is unknown. Raise InfeasiblePlanError if no layout is recommended because of its memory.
    """
    base, candidates, kept = space.base, space.candidates, search.kept()
    first = search.first
    best = first.best(first.own) if first else None
    if first is None or best is None:
        raise _nothing_fits(base, space.request)
    case = first.recomputing(best.again)
    chosen = Chosen(plan=best.plan, order=order_of(case, best.plan))
    looked = Counter(UNSURE if one.unsure else "memory" for one in candidates if one.fits_not)
    everyone = [*candidates, *space.edge]
    unsure = beside(lambda: [(everyone.index(one), timed) for one, timed in search.unsure()])
    simulated = simulate_plan(case, chosen, judged=ahead)
    rival = None if stopped_by else _without_domino(search, first, best.again, simulated)
    rival_ns = rival[1].iteration_ns if rival else None
    experts = base.model.num_experts > 0
    return LayoutsResult(
        best=simulated,
        gpus=base.cluster.world_size,
        global_batch_size=batch_of(space.request),
        layouts=tuple(_result(one, one.best(), rival_ns) for one in kept),
        best_without_domino=_result(*rival, rival_ns) if rival else None,
        unsure_layouts=tuple(_result(everyone[one], timed, rival_ns) for one, timed in unsure()),
        frontier=_frontier(search, rival_ns),
        optimality="best_found" if stopped_by else "proven",
        candidates=len(candidates),
        plans=sum(len(one.plans) for one in candidates),
        evaluations=search.evaluations,
        infeasible=dict(sorted((space.infeasible + looked).items())),
        seconds=0.0,
        stopped_by=stopped_by,
        frameworks=_frameworks(case, simulated),
        not_searched=tuple(
            text
            for text, name in {**NOT_SEARCHED, **(OF_EXPERTS if experts else {})}.items()
            if not name or getattr(space.request, name) is None
        ),
    )


def _without_domino(
    search: LayoutSearch, first: Candidate, again: int, simulated: SimulateResult
) -> tuple[Candidate, Timed] | None:
    """Return the layout and the plan that are the fastest without Domino: plain Megatron-LM or a
    rival in any layout, or one that was tuned for the verdict on ``first`` with ``again``
    recomputed layers. Return None if none is recommended.
    """
    plain, case = search.best_unsliced(), first.recomputing(again)
    found = [(plain, plain.best(plain.others))] if plain else []
    for one in simulated.verdict.contestants if simulated.verdict else ():
        if one.recommended and one.strategy != "domino":
            time_ns = round(one.iteration_ms / MS_PER_NS)
            peak = peak_bytes(case, one.plan)
            found.append((first, Timed(one.plan, time_ns, peak, again)))
    fits = [(candidate, timed) for candidate, timed in found if timed is not None]
    return min(fits, key=lambda one: one[1].iteration_ns, default=None)


def _frameworks(case: Case, best: SimulateResult) -> tuple[RunsThere, ...]:
    """Return what frameworks run of the best layout; a request for it names the layout's sizes."""
    cluster, work = case.cluster, case.workload
    layout: dict[str, object] = {
        "tp": cluster.tp, "pp": cluster.pp, "vpp": cluster.vpp, "cp": cluster.cp,
        "dp": cluster.dp, "recompute": work.recompute,
    }  # fmt: skip
    if case.model.num_experts:
        layout |= {"ep": cluster.ep, "etp": cluster.expert_tp}
    if work.recompute_layers:
        layout["recompute_layers"] = work.recompute_layers
    if work.pp_layers:
        layout["pp_layers"] = ",".join(map(str, work.pp_layers))
    return tuple(
        replace(one, request={**layout, **one.request}) if one.request else one
        for one in frameworks_of(case, best)
    )


def check_may_fit(base: Case, request: LayoutRequest) -> None:
    """Raise InputError if no layout divides GPUs and batch. Raise InfeasiblePlanError, with the
    smallest change that was found to fit, if no layout fits. ``base`` is that of ``base_of``.
    Checks that take long are left to the search.
    """
    try:
        found = _some_may_fit(base, request, Deadline())
    except OutOfTimeError:
        return
    if found is None:
        raise InputError(
            f"No layout divides {request.gpus} GPUs and {request.global_batch_size} sequences as "
            f"asked{_why_none(base, request)}"
        ).at(next((name for name in FIXED if getattr(request, name)), "gpus"))
    if not found:
        raise _nothing_fits(base, request)


def _why_none(base: Case, request: LayoutRequest) -> str:
    """Return what is wrong with a field of the request in a layout that divides much, or what has
    to divide what."""
    for layout in reversed(list(layouts_of(base, request))):
        try:
            case = case_of(base, request, layout)
            case.shapes(unsliced_plans(case)[0])
        except (InputError, InfeasiblePlanError) as error:
            if not request.given().keys().isdisjoint(fields_named(str(error))):
                return f": with {layout.words}, {error}"
    return (
        ": tp, pp, cp and ep must divide the GPUs and the model, dp × --micro-batch-size the "
        "batch. Leave out fixed flags, or give other numbers."
    )


def _some_may_fit(base: Case, request: LayoutRequest, deadline: Deadline) -> bool | None:
    """Return whether a layout may fit; None if none divides the GPUs and the batch. Check the
    layouts that need the least memory per GPU first. Raise OutOfTimeError.
    """
    looked = False
    for case in _cases(base, request, deadline):
        looked = True
        if weights_fit(case) and may_fit(case):
            return True
    return False if looked else None


def _cases(base: Case, request: LayoutRequest, deadline: Deadline) -> Iterator[Case]:
    """Yield the possible layouts as cases, those that need the least memory per GPU first; each
    with the most recomputation, and with none.
    """
    for layout in reversed(list(layouts_of(base, request))):
        deadline.check()
        with suppress(InputError, InfeasiblePlanError):
            case = case_of(base, request, layout)
            case.shapes(unsliced_plans(case)[0])
            again = recomputed_layers(case, request)
            for layers in sorted({again[-1], again[0]}, reverse=True):
                yield recomputing(case, again, layers)


def _some_fits(base: Case, request: LayoutRequest, deadline: Deadline) -> bool:
    """Return whether a layout was found that fits with its activations. Raise OutOfTimeError."""
    kept: dict[tuple[object, ...], KeptBytes] = defaultdict(KeptBytes)
    for case in _cases(base, request, deadline):
        cluster = case.cluster
        shared = kept[cluster.tp, cluster.cp, cluster.ep, cluster.etp, cluster.domain]
        least = (LeastBytes(case, plan, shared) for plan in unsliced_plans(case))
        plans = [one.plan for one in least if one.of(case.workload) <= case.memory.sure_bytes]
        if plans and really_fits(case, plans):
            return True
    return False


def _smallest_change(base: Case, request: LayoutRequest) -> dict[str, object]:
    """Return the fields of the request with which some layout was found to fit; {} if none was, or
    the time for advice is over.

    Try in this order: recomputation, one sequence per micro-batch, and 2, 4 … times the GPUs, up to
    MOST_TIMES.
    """
    deadline = Deadline()
    changes: list[dict[str, object]] = [{"recompute": "full"}, {"micro_batch_size": 1}]
    gpus = base.cluster.world_size
    changes += [{"gpus": gpus << doubled} for doubled in range(1, MOST_TIMES.bit_length())]
    for change in changes:
        if all(getattr(request, name) is None for name in change):
            continue  # already searched
        with suppress(InputError, OutOfTimeError):
            asked = request.but(**change)
            cluster = replace(base.cluster, dp=asked.gpus or gpus, ranks_per_domain=0)
            if not weights_fit(base, divided_by=cluster.dp):
                continue
            case = replace(base, cluster=place(cluster, base.profile, request.nodes))
            if _some_fits(case, asked, deadline):
                return change
    return {}


def _nothing_fits(base: Case, request: LayoutRequest) -> InfeasiblePlanError:
    change = _smallest_change(base, request)
    near = most_likely(_cases(base, request, Deadline()))
    return InfeasiblePlanError(
        f"No layout of {base.model.name} on {base.cluster.world_size} GPUs fits the memory of "
        f"{base.profile.machine.gpu} with a chance of 80 % or more{near}{words_of(change)}.",
        reason=UNSURE if near else "memory",
        change=change,
    )


def best_so_far(search: LayoutSearch) -> LayoutResult | None:
    """Return the fastest layout of an unfinished search, without Domino's gain over the best layout
    without Domino, which is not known yet. Return None if nothing fits so far.
    """
    kept = search.kept()
    return _result(kept[0], kept[0].best(), None) if kept else None


def _result(one: Candidate, found: Timed | None, rival_ns: int | None) -> LayoutResult:
    assert found is not None
    case = one.recomputing(found.again)
    work, cluster = case.workload, case.cluster
    here = one.best(one.unsliced)
    seconds = found.iteration_ns * 1e-9
    return LayoutResult(
        tp=cluster.tp, pp=cluster.pp, vpp=cluster.vpp, cp=cluster.cp, dp=cluster.dp,
        ep=cluster.ep, etp=cluster.etp, pp_layers=work.pp_layers,
        micro_batch_size=work.micro_batch_size, grad_accumulation=work.grad_accumulation,
        recompute=work.recompute, recompute_layers=work.recompute_layers, plan=found.plan,
        iteration_ms=found.iteration_ns * MS_PER_NS,
        tokens_per_second_per_gpu=case.tokens / seconds / cluster.world_size,
        mfu=mfu(case, found.iteration_ns), peak_memory_gib=found.peak_bytes / GIB,
        fits_chance=case.memory.chance(found.peak_bytes),
        cost=case.priced(found.iteration_ns * MS_PER_NS),
        domino_gain=rival_ns / found.iteration_ns if rival_ns else None,
        domino_gain_here=here.iteration_ns / found.iteration_ns if here else None,
    )  # fmt: skip


def _frontier(search: LayoutSearch, rival_ns: int | None) -> tuple[LayoutResult, ...]:
    """Return the evaluated layouts that no other beats in both time and memory."""
    timed = [
        (found, one)
        for one in search.candidates
        for found in one.timed.values()
        if found is not None
    ]
    best: list[LayoutResult] = []
    least = None
    for found, one in sorted(timed, key=lambda item: (item[0].iteration_ns, item[0].peak_bytes)):
        if least is None or found.peak_bytes < least:
            least = found.peak_bytes
            best.append(_result(one, found, rival_ns))
    return tuple(best)
