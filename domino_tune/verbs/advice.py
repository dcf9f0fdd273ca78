"""Whether a job fits the memory of its GPUs, and for one that does not, what would."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Final

from domino_tune.requests import TuneRequest
from domino_tune.search.simulated import check_target
from simulator.case import Case
from simulator.dtypes import GIB
from simulator.errors import InfeasiblePlanError, InputError
from simulator.memory import least_peak_bytes, may_fit, peak_bytes, static_memory
from simulator.plan import MAX_ROW_SLICES, MEGATRON, SlicePlan
from simulator.specs import DataParallel
from simulator.usable import UNSURE, percent

ADVICE_S: Final = 4.0
"""Longest time that advice is looked for; then it is left out."""
MOST_REPLICAS: Final = 1024
MOST_STAGES: Final = 16
SHARDING: Final[tuple[DataParallel, ...]] = ("distributed-optimizer", "fsdp")


class OutOfTimeError(Exception):
    """The time for advice is over."""


class Deadline:
    """Ends a search for advice after ``seconds`` of this thread's CPU (default: ``ADVICE_S``)."""

    def __init__(self, seconds: float | None = None) -> None:
        self._until = time.thread_time() + (ADVICE_S if seconds is None else seconds)

    def check(self) -> None:
        """Raise OutOfTimeError when the time is over."""
        if time.thread_time() >= self._until:
            raise OutOfTimeError


def unsliced_plans(case: Case) -> tuple[SlicePlan, ...]:
    """Return the plans of a case that slice nothing, one for each of its modes."""
    return _unsliced(case.modes)


@cache
def _unsliced(modes: tuple[bool, ...]) -> tuple[SlicePlan, ...]:
    return tuple(replace(MEGATRON, sequence_parallel=mode) for mode in modes)


def weights_fit(case: Case, divided_by: int = 1) -> bool:
    """Return whether weights, gradients and optimizer state alone leave a GPU room. ``divided_by``:
    of how many GPUs, among which they would be divided evenly; 1 is as the case divides them."""
    if divided_by > 1:
        case = replace(case, cluster=replace(case.cluster, dp=1))
    held = sum(static_memory(case, unsliced_plans(case)[0]))
    return held <= divided_by * case.memory.sure_bytes


def really_fits(case: Case, plans: Sequence[SlicePlan]) -> bool:
    """Return whether one of ``plans`` fits with its activations, so that it is recommended."""
    if not (weights_fit(case) and may_fit(case)):
        return False
    return any(peak_bytes(case, plan) <= case.memory.sure_bytes for plan in plans)


def _lean_plans(case: Case, target: str | None) -> Iterator[SlicePlan]:
    """Yield plans of the search that need little memory: without slices, and with most."""
    most = min(2 if target else MAX_ROW_SLICES, case.workload.micro_batch_size)
    if target is None:
        yield from unsliced_plans(case)
    for mode in case.modes if most > 1 else ():
        if not (target and mode):  # the target has no sequence parallelism
            yield SlicePlan(row_slices=most, order="intra", wgrad="eager", sequence_parallel=mode)


def most_likely(cases: Iterator[Case]) -> str:
    """Return which of the layouts fits most likely, and how likely, as the end of a sentence;
    nothing where none fits. What is found when the time for advice is over counts."""
    best, words = 0.0, ""
    with suppress(OutOfTimeError):
        for case in cases:
            memory, work, plans = case.memory, case.workload, unsliced_plans(case)
            if sum(static_memory(case, plans[0])) > memory.usable_bytes:
                continue
            peak = min(peak_bytes(case, plan) for plan in plans)
            if peak <= memory.usable_bytes and memory.chance(peak) > best:
                best = memory.chance(peak)
                again = ", recomputed" * (work.recompute != "none")
                words = (
                    f"; the most likely one is {case.cluster.levels} at micro-batch "
                    f"{work.micro_batch_size}{again}, which fits with {percent(best)}"
                )
    return words


def words_of(change: Mapping[str, object]) -> str:
    """Return the change in words, as the end of a sentence; nothing where none is known."""
    if not change:
        return ""
    options = (f"--{name.replace('_', '-')} {value}" for name, value in change.items())
    return f"; the smallest change that fits: {' '.join(options)}"


def smallest_change(case: Case, request: TuneRequest, deadline: Deadline) -> dict[str, object]:
    """Return the options, by name, with which a plan was found to fit; empty where none of these
    do, or the time is over.

    Tried in this order: a smaller micro-batch, a sharded optimizer, recomputation, more
    tensor-parallel ranks, then these with one sequence a micro-batch; a pipeline; and more
    replicas, which share the optimizer. Recomputing the attention core alone saves nothing.
    """
    one = _micro_batch(case, 1)
    again = replace(case, workload=replace(case.workload, recompute="full", recompute_modules=()))
    with suppress(OutOfTimeError):
        for changed in (
            *_smaller(case), *_sharded(case), again, *_larger(case), *_larger(one),
            *_deeper(one), *_more(one),
        ):  # fmt: skip
            deadline.check()
            plans = tuple(_lean_plans(changed, request.target))
            if _can_be_asked(case, changed, request) and really_fits(changed, plans):
                before, after = _numbers(case), _numbers(changed)
                return {name: value for name, value in after.items() if value != before[name]}
    return {}


def _can_be_asked(case: Case, changed: Case, request: TuneRequest) -> bool:
    """Return whether the changed options go with the rest of the request."""
    if request.nodes and changed.cluster.world_size != case.cluster.world_size:
        return False  # more ranks would need other nodes than those that are given
    try:
        check_target(changed, request.target)
    except InfeasiblePlanError:
        return False
    return True


def _micro_batch(case: Case, size: int) -> Case:
    """Return the case with micro-batches of ``size`` sequences and the same global batch."""
    work = case.workload
    total = work.micro_batch_size * work.grad_accumulation
    changed = replace(work, micro_batch_size=size, grad_accumulation=total // size)
    return replace(case, workload=changed)


def _smaller(case: Case) -> Iterator[Case]:
    size = case.workload.micro_batch_size
    for smaller in range(size - 1, 0, -1):
        if size % smaller == 0:
            with suppress(InputError):  # stages would not divide the micro-batches
                yield _micro_batch(case, smaller)


def _sharded(case: Case) -> Iterator[Case]:
    if case.cluster.dp > 1:
        for kind in SHARDING:
            with suppress(InputError):  # fsdp is not simulated with a pipeline
                yield _with(case, kind)


def _with(case: Case, kind: DataParallel) -> Case:
    return replace(case, workload=replace(case.workload, data_parallel=kind))


def _larger(case: Case) -> Iterator[Case]:
    """Yield the case with more tensor-parallel ranks, up to all that NVLink connects."""
    for tp in range(case.cluster.tp + 1, case.profile.machine.domain + 1):
        with suppress(InputError):  # it does not shard, or does not fill nodes evenly
            yield replace(case, cluster=replace(case.cluster, tp=tp))


def _deeper(case: Case) -> Iterator[Case]:
    """Yield the case with more stages of a pipeline, which have equally many layers."""
    if case.cluster.vpp > 1 or case.workload.pp_layers or case.workload.recompute_layers:
        return
    pp = 2 * case.cluster.pp
    while pp <= min(MOST_STAGES, case.model.num_hidden_layers):
        if case.model.num_hidden_layers % pp == 0:
            with suppress(InputError):  # it does not fill nodes evenly
                yield replace(case, cluster=replace(case.cluster, pp=pp))
        pp *= 2


def _more(case: Case) -> Iterator[Case]:
    """Yield the case with more replicas that share the optimizer, and then everything."""
    for kind in SHARDING:
        dp = 2 * case.cluster.dp
        while dp <= MOST_REPLICAS:
            with suppress(InputError):  # it does not fill nodes evenly
                yield replace(_with(case, kind), cluster=replace(case.cluster, dp=dp))
            dp *= 2


def _numbers(case: Case) -> dict[str, object]:
    cluster, work = case.cluster, case.workload
    return {
        "tp": cluster.tp, "pp": cluster.pp, "dp": cluster.dp,
        "micro_batch_size": work.micro_batch_size,
        "grad_accumulation": work.grad_accumulation, "data_parallel": work.data_parallel,
        "recompute": work.recompute,
    }  # fmt: skip


def check_may_fit(case: Case, request: TuneRequest) -> None:
    """Raise InfeasiblePlanError when no plan can be recommended for its memory, without looking at
    each of them.

    Nothing is refused that could be: ``least_peak_bytes`` is not above any plan's peak.
    """
    if may_fit(case):
        return
    least, static = least_peak_bytes(case), sum(static_memory(case, unsliced_plans(case)[0]))
    # Of a what-if only the changed machine is known, not which options would change it so.
    asked = request.model is not None
    change = smallest_change(case, request, Deadline()) if asked else {}
    memory = case.memory
    chance = percent(memory.chance(least))
    raise InfeasiblePlanError(
        f"No plan fits in the memory of {case.profile.machine.gpu} with a chance of 80 % or more: "
        f"each needs {least / GIB:,.1f} GiB or more at its peak ({static / GIB:,.1f} GiB of "
        "weights, gradients and optimizer state, the rest activations), which fits with "
        f"{chance} at most; {memory.usable_bytes / GIB:,.1f} GiB are usable, and up to "
        f"{memory.sure_bytes / GIB:,.1f} GiB are recommended{words_of(change)}.",
        reason="memory" if least > memory.usable_bytes else UNSURE,
        change=change,
    )
