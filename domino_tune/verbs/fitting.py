"""The smallest change with which a job fits the memory of its GPUs, for jobs that do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from simulator.case import Case
from simulator.errors import InputError
from simulator.peak import may_fit
from simulator.specs import DataParallel

MOST_REPLICAS: Final = 1024
SHARDING: Final[tuple[DataParallel, ...]] = ("distributed-optimizer", "fsdp")


def smallest_change(case: Case) -> str:
    """Return the options with which some plan fits, or why none do.

    Tried in this order: a smaller micro-batch, a sharded optimizer, recomputation, more
    tensor-parallel ranks, and more replicas, which share the optimizer; then the last two with one
    sequence a micro-batch. Recomputing the attention core alone saves nothing.
    """
    one = _micro_batch(case, 1)
    again = replace(case, workload=replace(case.workload, recompute="full"))
    for changed in (
        *_smaller(case), *_sharded(case), again, *_larger(case), *_larger(one), *_more(one)
    ):  # fmt: skip
        if may_fit(changed):
            return f"the smallest change that fits: {_options(case, changed)}."
    return (
        "no smaller micro-batch, larger tp or more replicas make it fit: lower --seq-length, or "
        "take GPUs with more memory."
    )


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


def _more(case: Case) -> Iterator[Case]:
    """Yield the case with more replicas that share the optimizer, and then everything."""
    for kind in SHARDING:
        dp = 2 * case.cluster.dp
        while dp <= MOST_REPLICAS:
            with suppress(InputError):  # it does not fill nodes evenly
                yield replace(_with(case, kind), cluster=replace(case.cluster, dp=dp))
            dp *= 2


def _options(case: Case, changed: Case) -> str:
    """Return the options by which ``changed`` differs."""
    before, after = _numbers(case), _numbers(changed)
    return " ".join(
        f"--{name.replace('_', '-')} {value}"
        for name, value in after.items()
        if value != before[name]
    )


def _numbers(case: Case) -> dict[str, object]:
    cluster, work = case.cluster, case.workload
    return {
        "tp": cluster.tp, "dp": cluster.dp, "micro_batch_size": work.micro_batch_size,
        "grad_accumulation": work.grad_accumulation, "data_parallel": work.data_parallel,
        "recompute": work.recompute,
    }  # fmt: skip
