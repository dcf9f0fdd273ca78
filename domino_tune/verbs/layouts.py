"""layout: the best layouts of a model for a number of GPUs and a global batch."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, Final, NamedTuple

from domino_tune.base.cores import Ahead, in_turn, on_all_cores
from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import JobFields, LayoutRequest, WorkloadFields
from domino_tune.results.frameworks import RunsThere
from domino_tune.results.layouts import LayoutResult, LayoutsResult
from domino_tune.results.simulate import SimulateResult
from domino_tune.search.layouts import (
    NO_CHOICE,
    Candidate,
    LayoutSearch,
    Timed,
    fewest,
    recomputing,
)
from domino_tune.search.rivals import usual_rivals
from domino_tune.search.simulated import slicings_of
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
from domino_tune.verbs.frameworks import frameworks_of
from domino_tune.verbs.resolve import Chosen, in_domains, place, resolve, usual_sharing
from domino_tune.verbs.simulate import simulate_plan
from domino_tune.verbs.tune import divisors
from simulator.case import Case
from simulator.clocked_form import Layers
from simulator.errors import InfeasiblePlanError, InputError
from simulator.model_flops import mfu
from simulator.ordering import order_of
from simulator.peak import may_fit, peak_bytes, static_memory
from simulator.pipeline.memory import KeptBytes
from simulator.plan import SlicePlan, row_problem
from simulator.sharding import balanced_layers, spread_layers
from simulator.specs import ModelSpec
from simulator.units import GIB, MS_PER_NS
from simulator.usable import UNSURE

MOST_MICRO_BATCH: Final = 16
MOST_VPP: Final = 8
MANY: Final = 100
"""Number of layouts from which a search first warns that it may take minutes."""
MOST_TIMES: Final = 64
"""Largest factor on the GPUs that an answer suggests if a model does not fit."""
LEAST_CHUNK_TOKENS: Final = 1024
"""Fewest tokens in a context-parallel rank's chunks of a sequence."""
ROW_SLICES: Final = (1, 2, 3, 4)
COL_SLICES: Final = (1, 2, 4)
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


class Layout(NamedTuple):
    """How the model and the batch are divided among the GPUs."""

    tp: int
    cp: int
    pp: int
    vpp: int
    dp: int
    micro_batch_size: int
    pp_layers: tuple[int, ...] = ()

    def micros(self, batch: int) -> int:
        """Return the micro-batches of one iteration of ``batch`` sequences."""
        return batch // self.dp // self.micro_batch_size


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
    space = space_of(request, shelf)
    many = len(space.candidates)
    progress(f"{many:,} layouts that may fit" + "; this may take minutes" * (many >= MANY))
    search = LayoutSearch(space.candidates, progress, on_all_cores)
    search.run()
    progress(f"{search.evaluations:,} plans done, none left; comparing strategies")
    return replace(conclude(space, search, on_all_cores), seconds=time.perf_counter() - began)


def space_of(request: LayoutRequest, shelf: Shelf = DISK) -> LayoutSpace:
    """Return the layouts that the request's search covers. Raise as ``check_may_fit`` does."""
    base = base_of(request, shelf)
    check_may_fit(base, request)
    candidates, infeasible, edge = candidates_of(base, request)
    return LayoutSpace(
        request=request, base=base, candidates=candidates, infeasible=infeasible, edge=edge
    )


def conclude(
    space: LayoutSpace,
    search: LayoutSearch,
    ahead: Ahead = in_turn,
    *,
    stopped_by: str | None = None,
) -> LayoutsResult:
    """Return the answer of a search that has ended, with the best layout simulated and compared
    with its rivals; ``seconds`` is 0. ``stopped_by``: why the search ended early; then nothing is
    proven, and the best layout without Domino is unknown. Raise InfeasiblePlanError if no layout is
    recommended because of its memory.
    """
    base, candidates, kept = space.base, space.candidates, search.kept()
    first = search.first
    best = first.best(first.own) if first else None
    if first is None or best is None:
        raise _nothing_fits(base, space.request)
    case = first.recomputing(best.again)
    chosen = Chosen(plan=best.plan, order=order_of(case, best.plan))
    looked = Counter(UNSURE if one.unsure else "memory" for one in candidates if one.fits_not)
    simulated = simulate_plan(case, chosen, judged=ahead)
    rival = None if stopped_by else _without_domino(search, first, simulated)
    rival_ns = rival[1].iteration_ns if rival else None
    return LayoutsResult(
        best=simulated,
        gpus=base.cluster.world_size,
        global_batch_size=_batch(space.request),
        layouts=tuple(_result(one, one.best(), rival_ns) for one in kept),
        best_without_domino=_result(*rival, rival_ns) if rival else None,
        unsure_layouts=tuple(
            _result(one, timed, rival_ns) for one, timed in search.unsure(space.edge)
        ),
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
            for text, name in NOT_SEARCHED.items()
            if not name or getattr(space.request, name) is None
        ),
    )


def _without_domino(
    search: LayoutSearch, first: Candidate, simulated: SimulateResult
) -> tuple[Candidate, Timed] | None:
    """Return the layout and the plan that are the fastest without Domino: plain Megatron-LM or a
    rival in any layout, or one tuned for the verdict in the best. Return None if none is
    recommended.
    """
    best = first.best(first.own)
    again = best.again if best else 0
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
            "asked: tp, pp and cp must divide the GPUs and the model, dp × --micro-batch-size the "
            "batch. Leave out fixed flags, or give other numbers."
        )
    if not found:
        raise _nothing_fits(base, request)


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
            again = _again(case, request)
            for layers in sorted({again[-1], again[0]}, reverse=True):
                yield recomputing(case, again, layers)


def _some_fits(base: Case, request: LayoutRequest, deadline: Deadline) -> bool:
    """Return whether a layout was found that fits with its activations. Raise OutOfTimeError."""
    kept: dict[tuple[object, ...], KeptBytes] = defaultdict(KeptBytes)
    for case in _cases(base, request, deadline):
        work, cluster = case.workload, case.cluster
        least = kept[cluster.tp, cluster.cp, work.micro_batch_size, work.recompute]
        plans = [
            plan
            for plan in unsliced_plans(case)
            if weights_fit(case) and least.least_bytes(case, plan) <= case.memory.sure_bytes
        ]
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


def base_of(request: LayoutRequest, shelf: Shelf) -> Case:
    """Return the request's case with as many replicas as GPUs."""
    if not request.gpus or not request.global_batch_size:
        raise InputError(
            "Layouts need both: give --gpus N and --global-batch-size B, in sequences."
        )
    given = {name: getattr(request, name) for name in JobFields.model_fields}
    whole: dict[str, Any] = {"tp": 1, "micro_batch_size": request.micro_batch_size or 1}
    whole |= dict.fromkeys(("dp", "pp", "vpp", "cp", "nodes", "sequence_parallel"))
    case = resolve(WorkloadFields(**given | whole), shelf=shelf)
    cluster = replace(case.cluster, dp=request.gpus, ranks_per_domain=0)
    cluster = place(cluster, case.profile, request.nodes)
    return replace(case, cluster=cluster, sequence_parallel=request.sequence_parallel)


def _batch(request: LayoutRequest) -> int:
    return request.global_batch_size or 0


def candidates_of(
    base: Case, request: LayoutRequest
) -> tuple[list[Candidate], Counter[str], list[Candidate]]:
    """Return the layouts that may be recommended, counts of why others are not, and those that may
    fit with less chance.
    """
    found, edge, infeasible = [], [], Counter[str]()
    layers: dict[tuple[object, ...], Layers] = defaultdict(Layers)
    kept: dict[tuple[object, ...], KeptBytes] = defaultdict(KeptBytes)
    for layout in layouts_of(base, request):
        try:
            case = case_of(base, request, layout)
            case.shapes(unsliced_plans(case)[0])
        except InputError:
            infeasible["shape"] += 1
            continue
        except InfeasiblePlanError as error:
            infeasible[error.reason] += 1
            continue
        key = layout.tp, layout.cp, layout.micro_batch_size
        one, memory = _candidate(case, _again(case, request), layers[key], kept[key]), case.memory
        static = sum(static_memory(case, one.unsliced[0]))
        held = max(static, one.least_bytes)
        if held <= memory.sure_bytes:
            found.append(one)
            continue
        fits = held <= memory.usable_bytes
        infeasible[UNSURE if fits else "memory"] += 1
        if fits:
            edge.append(one)
    return found, infeasible, edge


def _candidate(case: Case, again: range, layers: Layers, kept: KeptBytes) -> Candidate:
    """Return a layout with the recomputation from which on it may fit."""

    @cache
    def least_bytes(count: int) -> int:
        some = recomputing(case, again, count)
        return min(kept.least_bytes(some, plan) for plan in unsliced_plans(some))

    return Candidate(
        case=recomputing(case, again, fewest(again, least_bytes, case.memory.sure_bytes)),
        again=again[fewest(again, least_bytes, case.memory.usable_bytes) :],
        sliced=tuple(_cuts(case)),
        unsliced=unsliced_plans(case),
        rivals=usual_rivals(case),
        layers=layers,
        kept=kept,
    )


def _again(case: Case, request: LayoutRequest) -> range:
    """Return the numbers of recomputed layers a virtual stage to choose from, the last of which is
    all.
    """
    if request.recompute is not None:
        return NO_CHOICE
    return range(max(chunk.layers for rank in case.chunks for chunk in rank) + 1)


def layouts_of(base: Case, request: LayoutRequest) -> Iterator[Layout]:
    """Yield every layout of the request; sizes that it gives are fixed."""
    gpus, length = base.cluster.world_size, base.workload.seq_length
    domain, layers = base.profile.machine.domain, base.model.num_hidden_layers
    for tp in _choices(request.tp, (n for n in divisors(gpus) if n <= domain)):
        chunks = (n for n in divisors(gpus) if length >= 2 * n * LEAST_CHUNK_TOKENS or n == 1)
        for cp in _choices(request.cp, chunks):
            for pp in _choices(request.pp, (n for n in divisors(gpus) if n <= layers)):
                dp, rest = divmod(gpus, tp * cp * pp)
                if rest or not dp or (request.dp and request.dp != dp):
                    continue
                for vpp in _choices(request.vpp, _virtual(pp, layers)):
                    for stages in _stages(base.model, pp * vpp):
                        yield from _batches(request, Layout(tp, cp, pp, vpp, dp, 0, stages))


def _batches(request: LayoutRequest, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with every micro-batch size."""
    each, rest = divmod(_batch(request), layout.dp)
    if rest or not each:
        return
    sizes = (n for n in divisors(each) if n <= MOST_MICRO_BATCH)
    for size in _choices(request.micro_batch_size, sizes):
        if each % size == 0:
            yield layout._replace(micro_batch_size=size)


def _stages(model: ModelSpec, stages: int) -> Iterator[tuple[int, ...]]:
    """Yield the layers of each virtual stage: () where they are equal, else as equal as they can
    be; and with the head balanced by fewer layers, where that is worth it.
    """
    layers = model.num_hidden_layers
    yield spread_layers(layers, stages) if layers % stages else ()
    balanced = balanced_layers(model, stages) if stages > 1 else ()
    if balanced:
        yield balanced


def _choices(given: int | None, usual: Iterator[int]) -> list[int]:
    return [given] if given else list(usual)


def _virtual(pp: int, layers: int) -> Iterator[int]:
    """Yield the virtual stages that leave no stage, or only the first and the last, with fewer
    layers.
    """
    yield 1
    for vpp in range(2, MOST_VPP + 1) if pp > 1 else ():
        stages = pp * vpp
        if stages <= layers and -layers % stages <= 2:
            yield vpp


def case_of(base: Case, request: LayoutRequest, layout: Layout) -> Case:
    """Return the layout as a case. Raise InputError if it does not suit the model."""
    cluster = replace(
        base.cluster, tp=layout.tp, cp=layout.cp, pp=layout.pp, vpp=layout.vpp, dp=layout.dp,
        ranks_per_node=2**30, ranks_per_domain=0,
    )  # fmt: skip
    cluster = in_domains(cluster, base.profile, base.cluster.ranks_per_node)
    shared = {
        name: usual
        for name, usual in usual_sharing(cluster).items()
        if getattr(request, name) is None
    }
    workload = replace(
        base.workload,
        pp_layers=layout.pp_layers,
        micro_batch_size=layout.micro_batch_size,
        grad_accumulation=layout.micros(_batch(request)),
        **shared,
    )
    return base.training(workload, cluster)


def _cuts(case: Case) -> Iterator[SlicePlan]:
    """Yield the plans to evaluate: a few cuts in the planner's order, with one wgrad for all row
    slices. Slices of sequences are balanced.
    """
    if case.cluster.tp == 1:
        return
    dims = dict.fromkeys(dim for dim, _ in slicings_of(case))
    for dim, rows, columns, mode in product(dims, ROW_SLICES, COL_SLICES, case.modes):
        if (rows, columns) == (1, 1) or (dim == "sequence" and rows == 1):
            continue
        plan = SlicePlan(
            row_slices=rows, attn_col_slices=columns, mlp_col_slices=columns, slice_dim=dim,
            merge_wgrad=rows > 1, sequence_parallel=mode,
        )  # fmt: skip
        fits = case.model.hidden_size % columns == 0
        if fits and not row_problem(plan, case.workload, case.cluster):
            yield plan


def _result(one: Candidate, found: Timed | None, rival_ns: int | None) -> LayoutResult:
    assert found is not None
    case = one.recomputing(found.again)
    work, cluster = case.workload, case.cluster
    here = one.best(one.unsliced)
    seconds = found.iteration_ns * 1e-9
    return LayoutResult(
        tp=cluster.tp, pp=cluster.pp, vpp=cluster.vpp, cp=cluster.cp, dp=cluster.dp,
        pp_layers=work.pp_layers,
        micro_batch_size=work.micro_batch_size, grad_accumulation=work.grad_accumulation,
        recompute=work.recompute, recompute_layers=work.recompute_layers, plan=found.plan,
        iteration_ms=found.iteration_ns * MS_PER_NS,
        tokens_per_second_per_gpu=case.tokens / seconds / cluster.world_size,
        mfu=mfu(case, found.iteration_ns), peak_memory_gib=found.peak_bytes / GIB,
        fits_chance=case.memory.chance(found.peak_bytes),
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
