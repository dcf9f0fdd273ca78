"""Chunks: the layers of a model, divided among the virtual stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from simulator.errors import InputError
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, PipelineSchedule, Workload


class Chunk(NamedTuple):
    """The layers of one virtual stage, and whether it has the embedding, and the head and loss.
    ``dense``: how many of the layers have no experts, in a model that has some."""

    layers: int
    embedding: bool
    head: bool
    dense: int = 0

    def model(self, whole: ModelSpec) -> ModelSpec:
        """Return the model of the chunk's layers alone."""
        predicting = whole.num_nextn_predict_layers * self.head
        return replace(
            whole, num_hidden_layers=self.layers, first_k_dense_replace=self.dense,
            num_nextn_predict_layers=predicting,
        )  # fmt: skip

    def of(self, shapes: Shapes) -> Shapes:
        """Return the shapes of the chunk, from those of the whole model."""
        return replace(
            shapes,
            model=self.model(shapes.model),
            workload=self.workload(shapes.workload),
            embedding=self.embedding,
            head=self.head,
        )

    def workload(self, whole: Workload) -> Workload:
        """Return the settings of the chunk's layers, from those of all."""
        return replace(
            whole,
            recompute_layers=min(whole.recompute_layers, self.layers),
            num_layers_at_start_in_bf16=whole.num_layers_at_start_in_bf16 * self.embedding,
            num_layers_at_end_in_bf16=whole.num_layers_at_end_in_bf16 * self.head,
        )


def chunks_of_ranks(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec
) -> tuple[tuple[Chunk, ...], ...]:
    """Return the chunks of each rank of the pipeline, in the order of the model."""
    stages = cluster.pp * cluster.vpp
    layers = workload.pp_layers or (model.num_hidden_layers // stages,) * stages
    for end, count in (
        (0, workload.num_layers_at_start_in_bf16), (-1, workload.num_layers_at_end_in_bf16),
    ):  # fmt: skip
        if stages > 1 and count > layers[end]:
            raise InputError(
                f"{count} layers in BF16 are more than the {layers[end]} of a virtual stage; give "
                "at most that many, or fewer stages."
            )
    firsts = [0, *accumulate(layers)]
    chunks = [
        Chunk(
            count, k == 0, k == stages - 1,
            min(count, max(0, model.first_k_dense_replace - firsts[k])),
        )
        for k, count in enumerate(layers)
    ]  # fmt: skip
    of_rank: list[list[Chunk]] = [[] for _ in range(cluster.pp)]
    for stage, chunk in enumerate(chunks):
        of_rank[place(stage, cluster.pp, workload.pp_schedule)[0]].append(chunk)
    return tuple(map(tuple, of_rank))


def place(stage: int, pp: int, schedule: PipelineSchedule) -> tuple[int, int]:
    """Return the rank and the chunk there of a virtual stage: chunk k // pp of rank k % pp, as in
    Megatron-LM; in a V the second chunks go back from the last rank to the first."""
    chunk, rank = divmod(stage, pp)
    turned = schedule == "dualpipev" and chunk == 1
    return (pp - 1 - rank if turned else rank), chunk


def stage_of(rank: int, chunk: int, pp: int, schedule: PipelineSchedule) -> int:
    """Return the virtual stage of a rank's chunk."""
    return chunk * pp + place(chunk * pp + rank, pp, schedule)[0]


def joined(chunks: tuple[Chunk, ...]) -> Chunk:
    """Return all layers of a rank as one chunk."""
    return Chunk(
        sum(chunk.layers for chunk in chunks),
        any(chunk.embedding for chunk in chunks),
        any(chunk.head for chunk in chunks),
        sum(chunk.dense for chunk in chunks),
    )
