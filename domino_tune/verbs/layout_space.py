"""The layouts of a model on a number of GPUs: how model and batch may be divided, and with which
plans.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, Final, NamedTuple

from domino_tune.base.cores import Ahead, in_turn
from domino_tune.requests import LayoutRequest
from domino_tune.requests.fields import JobFields, WorkloadFields
from domino_tune.search.layouts import (
    NO_CHOICE,
    Candidate,
    Least,
    fewest,
    recomputed,
    recomputing,
)
from domino_tune.search.simulated import slicings_of, usual_rivals
from domino_tune.store.shelf import Shelf
from domino_tune.verbs.advice import unsliced_plans
from domino_tune.verbs.resolve import (
    how_tokens_move,
    in_domains,
    place,
    resolve,
    usual_sharing,
)
from domino_tune.verbs.tune import divisors
from simulator.case import Case
from simulator.curves import Prices
from simulator.errors import InfeasiblePlanError, InputError
from simulator.least_memory import KeptBytes, LeastBytes
from simulator.plan import SlicePlan, row_problem
from simulator.ranks import Layers, Shared
from simulator.sharding import balanced_layers, spread_layers
from simulator.specs import ModelSpec
from simulator.usable import UNSURE

MOST_MICRO_BATCH: Final = 16
MOST_VPP: Final = 8
LEAST_CHUNK_TOKENS: Final = 1024
"""Fewest tokens in a context-parallel rank's chunks of a sequence."""
ROW_SLICES: Final = (1, 2, 3, 4)
COL_SLICES: Final = (1, 2, 4)


class Layout(NamedTuple):
    """How the model and the batch are divided among the GPUs."""

    tp: int
    cp: int
    pp: int
    vpp: int
    dp: int
    micro_batch_size: int
    pp_layers: tuple[int, ...] = ()
    ep: int = 1
    etp: int = 0

    @property
    def words(self) -> str:
        """The sizes that divide something: ``tp 8, pp 2``."""
        sizes = {name: getattr(self, name) for name in ("tp", "cp", "pp", "dp", "ep")}
        divided = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        return ", ".join(divided) or "one GPU"

    def micros(self, batch: int) -> int:
        """Return the micro-batches of one iteration of ``batch`` sequences."""
        return batch // self.dp // self.micro_batch_size


def base_of(request: LayoutRequest, shelf: Shelf) -> Case:
    """Return the request's case with as many replicas as GPUs."""
    if not request.gpus or not request.global_batch_size:
        raise InputError(
            "Layouts need both: give --gpus N and --global-batch-size B, in sequences."
        )
    given = {name: getattr(request, name) for name in JobFields.model_fields}
    whole: dict[str, Any] = {"tp": 1, "micro_batch_size": request.micro_batch_size or 1}
    whole |= dict.fromkeys(("dp", "pp", "vpp", "cp", "nodes", "sequence_parallel"))
    whole |= dict.fromkeys(("ep", "etp", "moe_dispatcher", "moe_dispatcher_sms", "moe_imbalance"))
    case = resolve(WorkloadFields(**given | whole), shelf=shelf)
    cluster = replace(case.cluster, dp=request.gpus, ranks_per_domain=0)
    cluster = place(cluster, case.profile, request.nodes)
    return replace(case, cluster=cluster, sequence_parallel=request.sequence_parallel)


def batch_of(request: LayoutRequest) -> int:
    """Return the sequences of one iteration."""
    return request.global_batch_size or 0


def candidates_of(
    base: Case, request: LayoutRequest, ahead: Ahead = in_turn
) -> tuple[list[Candidate], Counter[str], list[Candidate]]:
    """Return the layouts that may be recommended, counts of why others are not, and those that may
    fit with less chance.
    """
    found, edge, infeasible = [], [], Counter[str]()
    cases, shared = list[Case](), Shared(Prices.of(base))
    layers: dict[tuple[object, ...], Layers] = {}
    groups: dict[tuple[object, ...], _LayoutGroup] = {}
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
        alike = layout.tp, layout.cp, layout.ep, layout.etp, case.cluster.domain
        if alike not in layers:
            layers[alike] = Layers(shared)
        key = *alike, layout.micro_batch_size
        if key not in groups:
            groups[key] = _LayoutGroup(layers[alike], unsliced_plans(case), tuple(_cuts(case)), [])
        groups[key].numbers.append(len(cases))
        cases.append(case)
    for number, (group, fits) in sorted(_fits(cases, request, list(groups.values()), ahead)):
        case, memory = cases[number], cases[number].memory
        if fits.held_bytes > memory.usable_bytes:
            infeasible["memory"] += 1
            continue
        again = recomputed_layers(case, request)
        if fits.held_bytes <= memory.sure_bytes:
            found.append(group.candidate(case, again, fits.least))
        else:
            infeasible[UNSURE] += 1
            least = {mode: one._replace(sure=one.usable) for mode, one in fits.least.items()}
            edge.append(group.candidate(case, again, least))
    return found, infeasible, edge


class _LayoutGroup(NamedTuple):
    """Layouts with the same kinds of layers and micro-batches, by ``numbers``; they share parts of
    their bounds, and their plans without and with slices."""

    layers: Layers
    unsliced: tuple[SlicePlan, ...]
    sliced: tuple[SlicePlan, ...]
    numbers: list[int]

    def candidate(self, case: Case, again: range, least: dict[bool, Least]) -> Candidate:
        """Return a layout that may recompute ``again`` layers of a virtual stage."""
        usual = recomputing(case, again, min(one.sure for one in least.values()))
        return Candidate(
            case=usual, again=again[min(one.usable for one in least.values()) :],
            sliced=self.sliced, unsliced=self.unsliced, rivals=usual_rivals(usual),
            layers=self.layers, least=least,
        )  # fmt: skip


class _Fits(NamedTuple):
    """Lower bounds on the memory of a layout's plans: of all with the most recomputed layers, and
    by ``sequence_parallel`` where that may fit."""

    held_bytes: int
    least: dict[bool, Least]


def _fits(
    cases: Sequence[Case], request: LayoutRequest, groups: Sequence[_LayoutGroup], ahead: Ahead
) -> Iterator[tuple[int, tuple[_LayoutGroup, _Fits]]]:
    """Yield each case's number, with its group and how it fits."""
    shared, alike = KeptBytes(), defaultdict[int, list[_LayoutGroup]](list)
    for group in groups:
        alike[id(group.layers)].append(group)
    several = list(alike.values())

    def of_groups(number: int) -> list[list[_Fits]]:
        kept = KeptBytes(shared)
        return [
            [
                _fits_of(cases[one], recomputed_layers(cases[one], request), group.unsliced, kept)
                for one in group.numbers
            ]
            for group in several[number]
        ]

    for number, found in ahead(of_groups, range(len(several))):
        for group, fitting in zip(several[number], found(), strict=True):
            for one, fits in zip(group.numbers, fitting, strict=True):
                yield one, (group, fits)


def _fits_of(
    case: Case, again: range, plans: Sequence[SlicePlan], kept: KeptBytes
) -> _Fits:  # fmt: skip
    """Return how a layout fits; ``plans``: those without slices."""
    bounds, memory = [LeastBytes(case, plan, kept) for plan in plans], case.memory
    most = recomputed(case.workload, again, again[-1])
    held_bytes = [one.of(most) for one in bounds]
    held = max(bounds[0].static, min(held_bytes))
    if held > memory.usable_bytes:
        return _Fits(held, {})
    least = {}
    for one, most_bytes in zip(bounds, held_bytes, strict=True):

        @cache
        def bytes_of(count: int, one: LeastBytes = one) -> int:
            return one.of(recomputed(case.workload, again, count))

        limits = memory.sure_bytes, memory.usable_bytes
        counts = (fewest(again, bytes_of, limit) for limit in limits)
        least[one.plan.sequence_parallel] = Least(most_bytes, *counts)
    return _Fits(held, least)


def recomputed_layers(case: Case, request: LayoutRequest) -> range:
    """Return the numbers of recomputed layers a virtual stage to choose from; the last is all."""
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
                        layout = Layout(tp, cp, pp, vpp, dp, 0, stages)
                        for divided in _experts(base.model, request, layout):
                            yield from _batches(request, divided)


def _experts(model: ModelSpec, request: LayoutRequest, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with every division of its experts: among ep groups of ranks that share
    each, all ranks of a tensor-parallel group or one.
    """
    if not model.num_experts:
        yield layout
        return
    ranks = layout.tp * layout.cp * layout.dp
    for etp in _choices(request.etp, iter(dict.fromkeys((1, layout.tp)))):
        shares = (n for n in divisors(ranks // etp) if model.num_experts % n == 0)
        for ep in _choices(request.ep, shares):
            if ranks % (ep * etp) == 0:
                yield layout._replace(ep=ep, etp=etp)


def _batches(request: LayoutRequest, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with every micro-batch size."""
    each, rest = divmod(batch_of(request), layout.dp)
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
        ep=layout.ep, etp=layout.etp, ranks_per_node=2**30, ranks_per_domain=0,
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
        grad_accumulation=layout.micros(batch_of(request)),
        **shared,
        **how_tokens_move(request),
    )
    return base.training(workload, cluster)


def _cuts(case: Case) -> Iterator[SlicePlan]:
    """Yield the plans to evaluate: a few cuts in the planner's order, with one wgrad for all row
    slices where they can have one. Slices of sequences are balanced.
    """
    experts = case.model.num_experts > 0
    merges = not experts and case.workload.fp8_recipe == "none"
    if case.cluster.tp == 1 and not experts:
        return
    dims = dict.fromkeys(dim for dim, _ in slicings_of(case))
    pieces = (1,) if experts else COL_SLICES
    for dim, rows, columns, mode in product(dims, ROW_SLICES, pieces, case.modes):
        if (rows, columns) == (1, 1) or (dim == "sequence" and rows == 1):
            continue
        plan = SlicePlan(
            row_slices=rows, attn_col_slices=columns, mlp_col_slices=columns, slice_dim=dim,
            attn_dgrad_slices=1 if case.model.kv_lora_rank else 0,
            merge_wgrad=rows > 1 and merges, sequence_parallel=mode,
        )  # fmt: skip
        fits = case.model.hidden_size % columns == 0
        if fits and not row_problem(plan, case.workload, case.cluster):
            yield plan
