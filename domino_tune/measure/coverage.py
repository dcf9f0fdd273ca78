"""Probes for a tuning space, or for the general grid of models that nobody named.

A signature depends on the row slices and on at most one of the four column cuts. So plans with
equal cuts everywhere contain all of them but one kind: weight gradients that write where those
plans add, or the reverse, as any slice may be first in some order. Whole micro-batches of that
slice's size, two per iteration, contain both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from domino_tune.measure.probe_set import (
    ContentionProbe,
    ProbeCase,
    ProbeSet,
    collective_key,
    compute_only,
    signatures,
)
from domino_tune.runtime.launch_spec import CTA_SETTINGS
from domino_tune.search.space import SpaceSpec
from simulator.dtypes import GIB, Dtype
from simulator.errors import InfeasiblePlanError, InputError
from simulator.ops import Collective, CollectiveKind, Gemm, Signature
from simulator.plan import MEGATRON, Order, SlicePlan, row_problem, searched_slicings
from simulator.presets import llama_model
from simulator.profile import Machine, Profile
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload

PROBE_LAYERS: Final = 2
"""Layers of a probe of a model with more than PROBE_FULL layers."""
PROBE_FULL: Final = 4
CONTENTION_CUTS: Final = (1, 4, 8, 16)
"""Messages during which compute is timed, as parts of the largest."""
SHARDED: Final[tuple[CollectiveKind, ...]] = ("reduce_scatter", "all_gather")
"""Collectives of sequence parallelism."""
CTAS: Final = (1, 2, 4, 8, 16, 32)
CTA_CUTS: Final = (1, 4, 16)
"""Messages that are timed with every CTA count, as parts of the largest."""
DEEP_PARAMETERS: Final = 300_000_000
"""Parameters of the largest model that is played with all layers: drawing more takes too long."""
DEEP_TOKENS: Final = 16
STATE_BYTES: Final = 20
"""Most memory of one parameter: fp32 copy, both moments, gradient, compute-dtype copy."""


def probe_model(model: ModelSpec) -> ModelSpec:
    """Return the model with few layers, to play it often: all layers have the same signatures."""
    if model.num_hidden_layers <= PROBE_FULL:
        return model
    return replace(model, num_hidden_layers=PROBE_LAYERS)


def coverage(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    *,
    memory_bytes: int,
    ctas: tuple[int, ...] = (),
) -> ProbeSet:
    """Return cases that contain all signatures of the space's plans, most useful first.

    Few slices come first: such plans win, and others can be interpolated between them if time runs
    out. ``memory_bytes`` is the memory of a rank. ``ctas`` are the CTA counts to measure besides
    the backend's choice. Raise InputError where the model does not shard.
    """
    spec = usual_space(workload, cluster)
    cuts = list(_cuts(spec, model, workload, cluster))
    target = _target(model, workload, cluster, cuts)
    lacking = set(compute_only(target))
    cases, found_ops = [], set(lacking)
    for case in _candidates(model, workload, cluster, cuts, memory_bytes):
        plans = []
        for plan in case.plans:
            found = compute_only(case.signatures(plan))
            if found & lacking:
                plans.append(plan)
                lacking -= found
                found_ops |= found if case.workload.seq_length == workload.seq_length else set()
        if plans:
            cases.append(replace(case, plans=tuple(plans)))
    return ProbeSet(
        cases=tuple(cases),
        collectives=with_ctas(_collectives(model, workload, cluster, cuts), cluster, ctas),
        contention=contention_of(model, workload, cluster, spec.sequence_parallels, ctas),
        ops=frozenset(found_ops),
    )


def needed_bytes(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, profile: Profile, memory_bytes: int
) -> int:
    """Return the most memory that a rank may need to play the cases of ``coverage``, bytes."""
    cuts = list(_cuts(usual_space(workload, cluster), model, workload, cluster))
    cases = _candidates(model, workload, cluster, cuts, memory_bytes)
    return max(case.peak_bytes(profile) for case in cases)


def usual_space(workload: Workload, cluster: ClusterSpec) -> SpaceSpec:
    """Return the space of a tune: with sequence parallelism and without, where tp divides the
    sequences, and with slices of sequences, where the micro-batch is one."""
    shards = cluster.tp > 1 and workload.seq_length % cluster.tp == 0
    return SpaceSpec(
        sequence_parallels=(True, False) if shards else (False,),
        slicings=searched_slicings(workload.micro_batch_size),
    )


def cta_counts(machine: Machine) -> tuple[int, ...]:
    """Return the CTA counts to measure: none without NCCL, or where a setting fixes them."""
    fixed = any(name in machine.details for name in CTA_SETTINGS)
    return CTAS if machine.backend == "nccl" and not fixed else ()


def with_ctas(
    collectives: tuple[Collective, ...], cluster: ClusterSpec, ctas: tuple[int, ...]
) -> tuple[Collective, ...]:
    """Return ``collectives``, then those of each CTA count: of each kind the tensor-parallel
    group's largest message, parts of it, and its smallest. Times of other sizes lie on lines
    between them."""
    kinds: dict[str, list[Collective]] = {}
    for one in collectives:
        if (one.nodes, one.per_node) == cluster.tp_group:
            kinds.setdefault(one.op, []).append(one)
    by_ctas = []
    for mine in kinds.values():
        largest, least = (pick(mine, key=lambda c: c.size_bytes) for pick in (max, min))
        parts = [*(largest.size_bytes // cut for cut in CTA_CUTS), least.size_bytes]
        sizes = [size for size in dict.fromkeys(parts) if size >= least.size_bytes]
        by_ctas += [largest._replace(size_bytes=s, ctas=count) for s in sizes for count in ctas]
    return (*collectives, *by_ctas)


def contention_of(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    sequence_parallels: Collection[bool],
    ctas: tuple[int, ...] = (),
) -> ContentionProbe | None:
    """Return two row slices to time with messages of their size and of their column pieces; with
    ``ctas``, with the largest at each count, the backend's choice last. At TP 1 collectives are
    emulated, with each count; None without any.

    On CPU scatters and gathers take another share of the core than all-reduces, so they are timed,
    too; on a GPU what counts is the CTAs that they hold.
    """
    if cluster.tp == 1 and not ctas:
        return None
    plan = SlicePlan(row_slices=2, order="intra", wgrad="eager")
    if workload.micro_batch_size == 1:
        plan = replace(plan, slice_dim="sequence") if workload.seq_length > 1 else MEGATRON
    shapes = Shapes(model=model, workload=workload, cluster=cluster, plan=plan)
    whole = Collective(
        "all_reduce", shapes.hidden_bytes(0), *cluster.tp_group, dtype=workload.dtype
    )
    if ctas:
        counts = ctas if cluster.tp == 1 else (*ctas, 0)
        return ContentionProbe(
            case=0, plan=plan, messages=tuple(whole._replace(ctas=count) for count in counts)
        )
    parts = [whole._replace(size_bytes=whole.size_bytes // cut) for cut in CONTENTION_CUTS]
    if True in sequence_parallels:
        parts += [part._replace(op=op) for op in SHARDED for part in tuple(parts)]
    return ContentionProbe(case=0, plan=plan, messages=tuple(parts))


def _cuts(
    spec: SpaceSpec, model: ModelSpec, workload: Workload, cluster: ClusterSpec
) -> Iterator[SlicePlan]:
    """Yield plans with equal cuts everywhere, unsliced first; last those with merged weight
    gradients, whose inputs are copied together."""
    for sharded in spec.sequence_parallels:
        yield replace(MEGATRON, sequence_parallel=sharded)
    columns = sorted({*spec.col_slices, *spec.dgrad_slices})
    rows = sorted(set(spec.row_slices), key=lambda rows: (rows & (rows - 1) != 0, rows))
    slices = [(count, slicing) for count in rows for slicing in spec.slicings_for(count)]
    merged: list[SlicePlan] = []
    for cut, (count, (dim, balance)), sharded in product(columns, slices, spec.sequence_parallels):
        plan = SlicePlan(
            row_slices=count, attn_col_slices=cut, mlp_col_slices=cut, order="intra",
            wgrad="eager", sequence_parallel=sharded, slice_dim=dim, slice_balance=balance,
        )  # fmt: skip
        if not row_problem(plan, workload, cluster) and model.hidden_size % cut == 0:
            yield plan
            if count > 1 and cut == columns[0]:
                merged.append(replace(plan, merge_wgrad=True))
    yield from merged


def _unsliced(cuts: Iterable[SlicePlan]) -> tuple[SlicePlan, ...]:
    return tuple(plan for plan in cuts if plan.strategy == "megatron")


def _target(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, cuts: list[SlicePlan]
) -> frozenset[Signature]:
    """Return every signature of the space, for all orders and numbers of micro-batches."""
    found: set[Signature] = set()
    for micros in (1, 2):
        job = replace(workload, grad_accumulation=micros)
        for plan in cuts if micros == 1 else _unsliced(cuts):
            found |= signatures(model, job, cluster, plan)
    for signature in list(found):
        if isinstance(signature, Gemm) and signature.layout == "wgrad":
            found.add(signature._replace(accumulate=not signature.accumulate))
    return frozenset(found)


def _candidates(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    cuts: list[SlicePlan],
    memory_bytes: int,
) -> Iterator[ProbeCase]:
    """Yield the batch itself; two micro-batches of it and of each slice's size; all layers."""
    probe = probe_model(model)
    yield ProbeCase(model=probe, workload=workload, cluster=cluster, plans=tuple(cuts))
    sizes = {
        (shapes.rows[row], len(shapes.spans[row]))
        for plan in cuts
        for shapes in [Shapes(model=model, workload=workload, cluster=cluster, plan=plan)]
        for row in range(plan.row_slices)
    }
    for batch, length in sorted(sizes, reverse=True):
        job = replace(workload, micro_batch_size=batch, seq_length=length, grad_accumulation=2)
        yield ProbeCase(model=probe, workload=job, cluster=cluster, plans=(MEGATRON,))
    shallow = replace(
        workload, micro_batch_size=1, seq_length=min(DEEP_TOKENS, workload.seq_length)
    )
    if probe != model and _is_quick(model, shallow, cluster, memory_bytes):
        yield ProbeCase(model=model, workload=shallow, cluster=cluster, plans=_unsliced(cuts))


def _is_quick(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, memory_bytes: int
) -> bool:
    """Return whether all layers fit half the memory and draw quickly: for the optimizer's ops."""
    shapes = Shapes(model=model, workload=workload, cluster=cluster, plan=MEGATRON)
    fits = shapes.held.whole * STATE_BYTES <= memory_bytes // 2
    return fits and model.parameters <= DEEP_PARAMETERS


def _collectives(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, cuts: list[SlicePlan]
) -> tuple[Collective, ...]:
    """Return every message of the space, few slices first; buckets depend on the order, too."""
    found: dict[tuple[str, int, int, int, int], Collective] = {}
    orders: tuple[Order, ...] = ("inter", "paper")
    plans = [*cuts, *(SlicePlan(row_slices=2, order=order, wgrad="eager") for order in orders)]
    for plan in plans:
        try:
            played = signatures(model, workload, cluster, plan)
        except InfeasiblePlanError:  # two slices of a single sequence
            continue
        messages = [s for s in played if isinstance(s, Collective) and s.ranks > 1]
        for message in sorted(messages, key=lambda s: (-s.size_bytes, s)):
            found.setdefault(collective_key(message), message)
    return tuple(found.values())


# The general grid ---------------------------------------------------------------------------------
# Synthetic models of two styles, with hidden sizes, token counts, messages.

SMALLEST_MESSAGE: Final = 4 << 10
LAYERS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Sizes, each log-spaced, most useful first. ``batches`` are (sequences, tokens of each);
    ``largest_message`` is in bytes."""

    hidden_sizes: tuple[int, ...]
    head_dim: int
    batches: tuple[tuple[int, int], ...]
    vocab_size: int
    largest_message: int


CPU: Final = Grid(
    hidden_sizes=(512, 256, 1024),
    head_dim=64,
    batches=((8, 128), (2, 512)),
    vocab_size=4096,
    largest_message=64 << 20,
)
GPU: Final = Grid(
    hidden_sizes=(4096, 2048, 1024, 8192),
    head_dim=128,
    batches=((8, 1024), (2, 4096)),
    vocab_size=32_000,
    largest_message=GIB,
)


def model_free_probes(grid: Grid, cluster: ClusterSpec, dtype: Dtype, profile: Profile) -> ProbeSet:
    """Return the grid's cases that fit half of a rank's memory, and messages for every group.

    Raise InputError where no case fits.
    """
    capacity = profile.machine.gpu_memory_gib * GIB / 2
    cases = tuple(
        case
        for hidden in grid.hidden_sizes
        for batch, seq in grid.batches
        for model in (_gpt(grid, hidden, seq, cluster.tp), _llama(grid, hidden, seq, cluster.tp))
        if (
            case := ProbeCase(
                model=model,
                workload=Workload(seq_length=seq, micro_batch_size=batch, dtype=dtype),
                cluster=cluster,
                plans=_plans(batch, sharded=cluster.tp > 1 and seq % cluster.tp == 0),
            )
        ).peak_bytes(profile)
        <= capacity
    )
    if not cases:
        raise InputError(
            f"A rank has {profile.machine.gpu_memory_gib:.2g} GiB, too little for any case of the "
            "general grid; name a small model with --for-model, or start fewer ranks."
        )
    ctas = cta_counts(profile.machine)
    played = (case.signatures(plan) for case in cases for plan in case.plans)
    return ProbeSet(
        cases=cases,
        collectives=with_ctas(_messages(grid, cluster, dtype), cluster, ctas),
        contention=contention_of(
            cases[0].model, cases[0].workload, cluster, (cluster.tp > 1,), ctas
        ),
        ops=compute_only(frozenset().union(*played)),
    )


def _plans(batch: int, *, sharded: bool) -> tuple[SlicePlan, ...]:
    """Return plans for token counts by row slices, for column pieces, for slices of sequences, and
    where asked for with sequence parallelism."""
    rows = [1 << power for power in range(1, batch.bit_length())]
    cuts = [(count, 1) for count in rows] + [(1, 4), (2, 2)]
    whole = (
        MEGATRON,
        *(
            SlicePlan(
                row_slices=count, attn_col_slices=columns, mlp_col_slices=columns,
                order="intra", wgrad="eager",
            )
            for count, columns in cuts
        ),
        SlicePlan(order="intra", wgrad="eager", slice_dim="sequence", slice_balance="even"),
    )  # fmt: skip
    if not sharded:
        return whole
    return (*whole, *(replace(plan, sequence_parallel=True) for plan in (whole[0], whole[-1])))


def _gpt(grid: Grid, hidden: int, seq: int, tp: int) -> ModelSpec:
    heads = _rounded(hidden / grid.head_dim, tp)
    return ModelSpec(
        name=f"probe-gpt-{heads * grid.head_dim}",
        num_hidden_layers=LAYERS,
        hidden_size=heads * grid.head_dim,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=grid.head_dim,
        intermediate_size=4 * heads * grid.head_dim,
        vocab_size=grid.vocab_size,
        max_position_embeddings=seq,
    )


def _llama(grid: Grid, hidden: int, seq: int, tp: int) -> ModelSpec:
    heads = _rounded(hidden / grid.head_dim, tp)
    grouped = heads % (4 * tp) == 0
    size = heads * grid.head_dim
    return llama_model(
        f"probe-llama-{size}", LAYERS, size, heads, heads // 4 if grouped else heads,
        _rounded(size * 8 / 3, 64 * tp), vocab=grid.vocab_size, positions=seq,
    )  # fmt: skip


def _rounded(value: float, unit: int) -> int:
    """Return ``value`` rounded up to a multiple of ``unit``."""
    return math.ceil(value / unit) * unit


def _messages(grid: Grid, cluster: ClusterSpec, dtype: Dtype) -> tuple[Collective, ...]:
    """Return messages of powers of two for every group: every third power first. Tensor-parallel
    ranks also gather and scatter."""
    powers = range(SMALLEST_MESSAGE.bit_length() - 1, grid.largest_message.bit_length())
    coarse_first = sorted(powers, key=lambda power: (power - powers[0]) % 3 != 0)
    kinds: dict[tuple[CollectiveKind, tuple[int, int]], None] = {}
    for group in (cluster.tp_group, cluster.dp_group):
        kinds["all_reduce", group] = None
    for op in ("all_gather", "reduce_scatter"):
        kinds[op, cluster.tp_group] = None
    return tuple(
        Collective(op, 1 << power, *group, 0, dtype)
        for power in coarse_first
        for op, group in kinds
        if math.prod(group) > 1
    )
