"""The smallest change with which a job fits the memory of its GPUs, for jobs that do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.peak import least_peak_bytes, may_fit, peak_bytes, static_memory
from simulator.plan import MEGATRON
from simulator.specs import DataParallel
from simulator.units import GIB

MOST_REPLICAS: Final = 1024
MOST_STAGES: Final = 16
SHARDING: Final[tuple[DataParallel, ...]] = ("distributed-optimizer", "fsdp")


def check_may_fit(case: Case) -> None:
    """Raise InfeasiblePlanError when no plan fits the memory, without looking at each of them.

    Nothing is refused that could run: ``least_peak_bytes`` is not above any plan's peak.
    """
    if may_fit(case):
        return
    least, static = least_peak_bytes(case), sum(static_memory(case, MEGATRON))
    change = smallest_change(case)
    raise InfeasiblePlanError(
        f"No plan fits in the memory of {case.profile.machine.gpu}: each needs "
        f"{least / GIB:,.1f} GiB or more at its peak ({static / GIB:,.1f} GiB of weights, "
        "gradients and optimizer state, the rest activations), but it has "
        f"{case.capacity_bytes / GIB:.0f} GiB; {_words(change)}",
        reason="memory",
        change=change,
    )


def smallest_change(case: Case) -> dict[str, object]:
    """Return the options, by name, with which some plan fits; empty where none of these do.

    Tried in this order: a smaller micro-batch, a sharded optimizer, recomputation, more
    tensor-parallel ranks, then these with one sequence a micro-batch; a pipeline; and more
    replicas, which share the optimizer. Recomputing the attention core alone saves nothing.
    """
    one = _micro_batch(case, 1)
    again = replace(case, workload=replace(case.workload, recompute="full"))
    for changed in (
        *_smaller(case), *_sharded(case), again, *_larger(case), *_larger(one), *_deeper(one),
        *_more(one),
    ):  # fmt: skip
        fits = _pipeline_fits if changed.cluster.pp > 1 else may_fit
        if _weights_fit(changed) and fits(changed):
            before, after = _numbers(case), _numbers(changed)
            return {name: value for name, value in after.items() if value != before[name]}
    return {}


def _words(change: Mapping[str, object]) -> str:
    if not change:
        return (
            "no smaller micro-batch, larger tp, pipeline or more replicas make it fit: lower "
            "--seq-length, or take GPUs with more memory."
        )
    options = (f"--{name.replace('_', '-')} {value}" for name, value in change.items())
    return f"the smallest change that fits: {' '.join(options)}."


def _weights_fit(case: Case) -> bool:
    """Return whether weights, gradients and optimizer state alone fit, which is told sooner."""
    return sum(static_memory(case, MEGATRON)) <= case.capacity_bytes


def _pipeline_fits(case: Case) -> bool:
    """Return whether a plan fits with its activations, of which ``may_fit`` knows nothing where
    there is a pipeline."""
    plans = [replace(MEGATRON, sequence_parallel=mode) for mode in case.modes]
    return any(peak_bytes(case, plan) <= case.capacity_bytes for plan in plans)


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
            yield _micro_batch(case, smaller)


def _sharded(case: Case) -> Iterator[Case]:
    if case.cluster.dp > 1:
        yield from (_with(case, kind) for kind in SHARDING)


def _with(case: Case, kind: DataParallel) -> Case:
    return replace(case, workload=replace(case.workload, data_parallel=kind))


def _larger(case: Case) -> Iterator[Case]:
    """Yield the case with more tensor-parallel ranks, up to a whole node."""
    for tp in range(case.cluster.tp + 1, case.profile.machine.gpus_per_node + 1):
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
