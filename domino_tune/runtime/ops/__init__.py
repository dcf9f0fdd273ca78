"""Ops: the tensor functions of a schedule's ops. May import lanes.kernels and parameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch

from domino_tune.runtime.ops.pointwise import keep_mask, pointwise_for
from domino_tune.runtime.parameters import Parameters, Shards
from simulator.errors import InputError
from simulator.issue_order import ALL_SLICES, JOINED, SIDES
from simulator.schedule import Op
from simulator.shapes import Shapes
from simulator.sharding import padded_vocab_size
from simulator.values import Ref

# Inputs of merged weight gradients ----------------------------------------------------------------
# Slices of a value that are written side by side.
#
# One GEMM reads all slices of dy and of x, so each is one matrix. Kernels of ours, and those of
# torch that take a place to write to, write their slice into it; a gather does, too. For the others
# the schedule has a copy (``simulator/issue_order.py``).

IN_PLACE: Final = ("attn.rope_bwd", "attn.qk_norm_bwd", "attn.kv_bwd")
"""Roles whose first value is the tensor that they read first."""


class Side(NamedTuple):
    """The place of a slice's value: the name of slice 0's value, and the slice."""

    whole: str
    row: int


def sides_of(ops: Sequence[Op], slices: int) -> dict[str, Side]:
    """Return the values that merged weight gradients over ``slices`` slices read side by side."""
    found: dict[str, Side] = {}
    for op in reversed(ops):
        if op.slice == ALL_SLICES and op.role.endswith("_wgrad") and slices > 1:
            for names in pair_of(op, slices):
                sides = [Side(names[0], row) for row in range(slices)]
                found.update(zip(names, sides, strict=False) if len(names) > 1 else ())
        elif op.role in IN_PLACE and op.writes[0] in found:
            found[op.reads[0]] = found[op.writes[0]]
    return found


def pair_of(op: Op, slices: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values of dy and of x that a weight gradient over ``slices`` slices reads: one for
    each slice, or one for all."""
    joined = (op.called(Ref(f"{op.role}.{side}").form(JOINED)) for side in SIDES)
    first, second = (1 if one in op.reads else slices for one in joined)
    return op.reads[:first], op.reads[first : first + second]


class Rooms:
    """Matrices whose slices are being written. ``sides``: the values that share one."""

    def __init__(self, sides: Mapping[str, Side], tokens: Sequence[int]) -> None:
        self._sides, self._tokens = sides, tokens
        self._open: dict[str, tuple[torch.Tensor, int]] = {}

    def room(self, name: str, rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
        """Return where to write the value ``name``: beside its other slices, or a new tensor."""
        side = self._sides.get(name)
        if side is None or rows != self._tokens[side.row]:  # a share of its tokens is read as it is
            return like.new_empty((rows, width))
        whole, left = self._open.pop(side.whole, (None, len(self._tokens)))
        if whole is None:
            whole = like.new_empty((sum(self._tokens), width))
        if left > 1:
            self._open[side.whole] = whole, left - 1
        start = sum(self._tokens[: side.row])
        return whole[start : start + rows]

    def clear(self) -> None:
        """Forget what a step that failed has begun."""
        self._open.clear()


def as_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return matrices, one below the other: a view where they are adjacent in memory."""
    first, rows = tensors[0], sum(len(one) for one in tensors)
    if len(tensors) == 1:
        return first
    size, place = first.shape[1] * first.element_size(), first.data_ptr()
    for one in tensors:
        beside = one.data_ptr() == place and one.is_contiguous()
        if not beside or one.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(tuple(tensors))
        place += len(one) * size
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1), first.storage_offset())


@dataclass(frozen=True, kw_only=True)
class Training:
    """Hyperparameters that are not part of a schedule. ``clip_norm`` 0 switches clipping off."""

    seed: int = 0
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    clip_norm: float = 1.0


@dataclass(kw_only=True)
class State:
    """One rank's state. ``values`` maps value names to tensors. ``saved`` holds what an op saves
    for its backward op, under the name of the value it wrote; those that are ``recomputed`` save
    nothing the first time. ``sides``: values that are written side by side with those of other
    slices. ``watches_layers``: sum up each layer's gradients for a check."""

    shapes: Shapes
    parameters: Shards
    training: Training
    tp_rank: int = 0
    dp_rank: int = 0
    train: bool = True
    tokens: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    targets: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    recomputed: frozenset[str] = frozenset()
    sides: Mapping[str, Side] = field(default_factory=dict)
    watches_layers: bool = False

    def __post_init__(self) -> None:
        model, cluster = self.shapes.model, self.shapes.cluster
        if model.attention_dropout:
            raise InputError(
                f"attention_dropout = {model.attention_dropout} is not supported: slicing would "
                "change the masks of attention. Use --set attention_dropout=0."
            )
        self.pointwise = pointwise_for(self.parameters.device)
        self.vocab = padded_vocab_size(model, cluster) // cluster.tp
        self.vocab_start = self.tp_rank * self.vocab
        self.vocab_valid = max(0, min(self.vocab, model.vocab_size - self.vocab_start))
        self._starts = [0, *itertools.accumulate(self.shapes.rows)]
        self._scratch: dict[tuple[int, ...], torch.Tensor] = {}
        self._shared: dict[tuple[int, int, str], tuple[torch.Tensor, int]] = {}

    @property
    def trained(self) -> Parameters:
        """Return the parameters with what the runtime's own optimizer needs."""
        assert isinstance(self.parameters, Parameters)
        return self.parameters

    def read(self, op: Op, index: int) -> torch.Tensor:
        """Return the value of the op's ``index``-th read."""
        return self.values[op.reads[index]]

    def write(self, op: Op, tensor: torch.Tensor, index: int = 0) -> None:
        """Set the op's ``index``-th value."""
        self.values[op.writes[index]] = tensor

    @cached_property
    def rooms(self) -> Rooms:
        """Return the matrices that slices share."""
        slices = range(self.shapes.plan.row_slices)
        return Rooms(self.sides, [self.shapes.tokens(row) for row in slices])

    def room(
        self, op: Op, like: torch.Tensor, width: int | None = None, index: int = 0
    ) -> torch.Tensor:
        """Return where the op is to write its ``index``-th value, of as many rows as ``like``, and
        as wide or of ``width``; see ``Rooms``."""
        columns = like.shape[1] if width is None else width
        return self.rooms.room(op.writes[index], len(like), columns, like)

    def clear(self) -> None:
        """Forget the values of a step that failed."""
        self.values.clear()
        self.rooms.clear()
        self._shared.clear()

    def save(self, op: Op, found: Any) -> None:
        """Keep what the backward op of ``op`` needs, unless ``op`` is played again before it."""
        if op.name not in self.recomputed:
            self.saved[op.writes[0]] = found

    def whole(self, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return a tensor of ``tokens`` rows: ``tensor``, or zeros where nothing was gathered."""
        shape = (tokens, *tensor.shape[1:])
        if tensor.shape == shape:
            return tensor
        if shape not in self._scratch:
            self._scratch[shape] = tensor.new_zeros(shape)
        return self._scratch[shape]

    def place(self, op: Op, width: int, like: torch.Tensor) -> torch.Tensor | None:
        """Return where the op shall write: its rows of a tensor of all positions, if slices are
        positions of one sequence and attention will read them all; else None."""
        shapes = self.shapes
        packs = op.role.startswith("attn.qkv") and shapes.plan.slices_sequences
        if not packs or shapes.rows[op.slice] > 1:
            return None
        key = op.micro, op.layer, op.role
        length = shapes.workload.seq_length
        buffer, left = self._shared.pop(key, (None, shapes.plan.row_slices))
        if buffer is None:
            buffer = like.new_empty((length, width))
        if left > 1:
            self._shared[key] = buffer, left - 1
        return buffer[self.positions(op)]

    def mine(self, tensor: torch.Tensor, op: Op) -> torch.Tensor:
        """Return this rank's share of the tokens of ``tensor``: itself, or a part of it where
        nothing was scattered."""
        tp = self.shapes.cluster.tp
        if self.shapes.shards_tokens and len(tensor) == self.shapes.tokens(op.slice):
            return tensor.chunk(tp)[self.tp_rank]
        return tensor

    def weight(self, name: str) -> torch.Tensor:
        """Return a weight by its name in the schedule, e.g. ``l3.w.attn.qkv``."""
        return self.parameters.weights[name]

    def micro_rows(self, op: Op) -> slice:
        """Return the sequences of the op's slice, as indices into this replica's batch."""
        offset = op.micro * self.shapes.workload.micro_batch_size
        first = 0 if self.shapes.plan.slices_sequences else self._starts[op.slice]
        return slice(offset + first, offset + first + self.shapes.rows[op.slice])

    def positions(self, op: Op) -> slice:
        """Return the positions of the op's slice in its sequences."""
        span = self.shapes.spans[op.slice]
        return slice(span.start, span.stop)

    def dropout_mask(self, op: Op, site: str) -> torch.Tensor | None:
        """Return the keep-mask of all tokens of the op's slice; None in evaluation and without
        dropout."""
        rate = self.shapes.model.hidden_dropout
        if not rate or not self.train:
            return None
        rows, device = self.micro_rows(op), self.parameters.device
        replica = self.dp_rank * len(self.tokens)
        length, hidden = self.shapes.workload.seq_length, self.shapes.model.hidden_size
        mask = keep_mask(
            range(replica + rows.start, replica + rows.stop),
            (length, hidden),
            rate,
            seed=self.training.seed,
            step=self.parameters.step_count if device.type == "cuda" else self.parameters.steps,
            site=site,
            device=device,
        )
        return mask.view(-1, length, hidden)[:, self.positions(op)].reshape(-1, hidden)

    def token_ids(self, op: Op) -> torch.Tensor:
        """Return the token ids of the op's rows, flat."""
        return self.tokens[self.micro_rows(op), self.positions(op)].reshape(-1)

    def target_ids(self, op: Op) -> torch.Tensor:
        """Return the targets of the op's rows, flat."""
        return self.targets[self.micro_rows(op), self.positions(op)].reshape(-1)

    @property
    def loss_scale(self) -> float:
        """Return the factor of gradients until Adam applies them; 1 for dtypes other than fp16.
        fp16 has no numbers below 6e-8, and dividing by the number of tokens would push a token's
        gradient below that. The factor, the largest power of two up to that number, delays the
        division."""
        if self.shapes.workload.dtype != "fp16":
            return 1.0
        return float(1 << (self.global_tokens.bit_length() - 1))

    @property
    def global_tokens(self) -> int:
        """Return the tokens of the step over all replicas: the divisor of the loss."""
        work, cluster = self.shapes.workload, self.shapes.cluster
        return work.tokens * work.grad_accumulation * cluster.dp
