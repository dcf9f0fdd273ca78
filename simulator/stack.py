"""The stack of layers: which kinds of layers a rank has, one after the other.

All that is said of a layer's ops is said of a *uniform* stack, whose layers are of one kind; a
stack is a sequence of such runs, and each thing that depends on all layers is a sum over them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from simulator.dtypes import Fp8Recipe
from simulator.modules import fitting, plays_again
from simulator.specs import ClusterSpec, ModelSpec, Recompute, Workload


class LayerKind(NamedTuple):
    """What may differ from layer to layer: what backward computes again, the format in which the
    linear layers multiply, and whether experts take the MLP's place."""

    recompute: Recompute
    fp8_recipe: Fp8Recipe
    experts: bool = False

    def model(self, model: ModelSpec) -> ModelSpec:
        """Return ``model`` with layers of this kind alone."""
        if self.experts == (model.num_experts > 0):
            return replace(model, first_k_dense_replace=0)
        return replace(
            model, num_experts=0, num_experts_per_tok=0, moe_intermediate_size=0,
            shared_expert_intermediate_size=0, first_k_dense_replace=0,
        )  # fmt: skip

    def of(self, workload: Workload) -> Workload:
        """Return ``workload`` for a stack of layers of this kind alone."""
        quantized = self.fp8_recipe != "none"
        again = self.recompute == "selective"
        modules = fitting(workload.recompute_modules, experts=self.experts) if again else ()
        return replace(
            workload, recompute=self.recompute, recompute_layers=0, recompute_modules=modules,
            fp8_recipe=self.fp8_recipe,
            num_layers_at_start_in_bf16=0, num_layers_at_end_in_bf16=0,
            fp8_param_gather=quantized and workload.fp8_param_gather,
            moe_imbalance=workload.moe_imbalance if self.experts else 1.0,
        )  # fmt: skip

    def cluster(self, cluster: ClusterSpec) -> ClusterSpec:
        """Return ``cluster`` for a stack of layers of this kind alone."""
        plain = self.experts or (cluster.ep, cluster.etp) == (1, 0)
        return cluster if plain else replace(cluster, ep=1, etp=0)


class Run(NamedTuple):
    """Consecutive layers of one kind."""

    kind: LayerKind
    layers: range


@lru_cache(maxsize=256)
def stack(model: ModelSpec, workload: Workload) -> tuple[Run, ...]:
    """Return the runs of a stack, first layer first; none is empty."""
    count = model.stacked_layers
    again = 0 if workload.recompute == "none" else workload.recompute_layers or count
    begin = min(workload.num_layers_at_start_in_bf16, count)
    end = max(begin, count - workload.num_layers_at_end_in_bf16)
    dense = min(model.first_k_dense_replace, count) if model.num_experts else count
    seams = sorted({0, min(again, count), begin, end, dense, count})
    return tuple(
        Run(
            LayerKind(
                _recompute(workload, experts=first >= dense) if first < again else "none",
                workload.fp8_recipe if begin <= first < end else "none",
                first >= dense,
            ),
            range(first, last),
        )
        for first, last in pairwise(seams)
    )


def _recompute(workload: Workload, *, experts: bool) -> Recompute:
    """Return what a layer computes again, with or without ``experts``."""
    nothing = workload.modules and not fitting(workload.modules, experts=experts)
    return "none" if nothing else workload.recompute


def own_kind(model: ModelSpec, workload: Workload) -> LayerKind:
    """Return the kind that a layer has by default in ``model`` and ``workload``."""
    return LayerKind(workload.recompute, workload.fp8_recipe, model.num_experts > 0)


@lru_cache(maxsize=256)
def is_uniform(model: ModelSpec, workload: Workload) -> bool:
    """Return whether all layers are of the workload's own kind."""
    return tuple(kinds(model, workload)) == (own_kind(model, workload),)


def kinds(model: ModelSpec, workload: Workload) -> dict[LayerKind, int]:
    """Return the number of layers of each kind."""
    found: dict[LayerKind, int] = {}
    for run in stack(model, workload):
        found[run.kind] = found.get(run.kind, 0) + len(run.layers)
    return found


def joined(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return ``runs`` with those of forward put together that differ only in what backward does."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].kind[1:] == run.kind[1:]:
            found[-1] = Run(found[-1].kind, range(found[-1].layers.start, run.layers.stop))
        else:
            found.append(run)
    return tuple(found)


def reads_columns(model: ModelSpec, workload: Workload) -> bool:
    """Return whether backward plays forward's column pieces again, or reads them."""
    return plays_again(workload.recompute, workload.modules) or model.post_norm
