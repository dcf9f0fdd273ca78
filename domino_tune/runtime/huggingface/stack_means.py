"""Means of a stack's gradients over replicas, under way while backward runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from domino_tune.runtime.huggingface.gradients import Gradients
from domino_tune.runtime.huggingface.replicas import Replicas
from domino_tune.runtime.huggingface.shard import Held, ShardedStack, local
from simulator import optimizer


@dataclass(frozen=True)
class Bucket:
    """Gradients that are averaged together, a range of a stack's flat tensor. ``matrices``: those
    that must be complete before; none of vectors, which are complete when backward is."""

    start: int
    end: int
    matrices: frozenset[str]
    held: tuple[Held, ...]


def buckets_of(stack: ShardedStack) -> list[Bucket]:
    """Return a stack's buckets: matrices of layers, the last first, as many as Megatron-LM takes
    and the simulator prices; then all vectors."""
    shards = stack.shards
    specs = [one for one in shards.specs if one.is_matrix]
    found, end = [], len(specs)
    for start in range(len(specs) - 1, -1, -1):
        if start and specs[start - 1].owner == specs[start].owner:
            continue
        size = shards.ranges[end - 1][1] - shards.ranges[start][0]
        if not start or size >= optimizer.DP_BUCKET_PARAMETERS:
            found.append(_bucket(stack, start, end))
            end = start
    return [*found, _bucket(stack, len(specs), len(shards.specs))]


def _bucket(stack: ShardedStack, first: int, last: int) -> Bucket:
    ranges, specs = stack.shards.ranges, stack.shards.specs[first:last]
    names = {one.name for one in specs}
    return Bucket(
        start=ranges[first][0], end=ranges[last - 1][1],
        matrices=frozenset(one.name for one in specs if one.is_matrix),
        held=tuple(held for held in stack.held if held.weight in names),
    )  # fmt: skip


class StackMeans:
    """Averages ``gradients`` of a stack over replicas, within one pass of its backward.

    Each bucket is sent when its last matrix is complete. Gradients of earlier micro-batches are in
    ``parameter.grad``: they are taken from there, so that the mean is of all. Buckets with a
    parameter that has a hook of the user's are left to the end of backward: the hook gets the
    gradient of this rank and micro-batch.
    """

    def __init__(
        self, replicas: Replicas, buckets: Sequence[Bucket], gradients: Gradients,
        needed: frozenset[torch.nn.Parameter],
    ) -> None:  # fmt: skip
        self._replicas, self._needed = replicas, needed
        self._flat, self._views = gradients.grad, gradients.rounded
        self._open = [(one, set(one.matrices)) for one in buckets]
        replicas.begin()

    def complete(self, name: str) -> None:
        """Send what was waiting for the gradient of a matrix."""
        for bucket, left in self._open:
            left.discard(name)
            if not left and name in bucket.matrices:
                self._send(bucket)

    def finish(self) -> None:
        """Send the vectors, and wait for all."""
        for bucket, _ in self._open:
            if not bucket.matrices:
                self._send(bucket)
        self._replicas.wait()

    def _send(self, bucket: Bucket) -> None:
        held = [one for one in bucket.held if one.parameter in self._needed]
        if not held or any(one.parameter._backward_hooks for one in held):
            return
        for one in held:
            mine = one.view(self._views)
            if one.parameter.grad is not None:
                mine.add_(local(one.parameter.grad))
                one.parameter.grad = None
            self._replicas.note(one.parameter, mine)
        self._replicas.send(self._flat[bucket.start : bucket.end])


def added_to(ctx: Any, parameters: Sequence[torch.nn.Parameter]) -> frozenset[torch.nn.Parameter]:
    """Return those of ``parameters``, the last inputs of an autograd function whose backward runs,
    to whose ``grad`` it adds; none for torch.autograd.grad, which leaves ``grad`` as it is."""
    nodes = [node for node, _ in ctx.next_functions[-len(parameters) :]]
    needed = ctx.needs_input_grad[-len(parameters) :]
    found = [
        (one, node) for one, node, wanted in zip(parameters, nodes, needed, strict=True) if wanted
    ]
    try:
        return frozenset(one for one, node in found if torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return frozenset()
