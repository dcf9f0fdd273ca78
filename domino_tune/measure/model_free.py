"""The general grid: synthetic models of two styles, with hidden sizes, token counts, messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from domino_tune.measure.coverage import contention_of, cta_counts, with_ctas
from domino_tune.measure.probe_set import ProbeCase, ProbeSet, compute_only
from simulator.dtypes import GIB, Dtype
from simulator.errors import InputError
from simulator.ops import Collective, CollectiveKind
from simulator.plan import MEGATRON, SlicePlan
from simulator.presets import llama_model
from simulator.profile import Profile
from simulator.specs import ClusterSpec, ModelSpec, Workload

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
