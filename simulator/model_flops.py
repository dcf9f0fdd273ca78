"""FLOPs of an iteration: the model's, which MFU counts, and those that GPUs execute at least."""

from __future__ import annotations

from typing import Final

from simulator.case import Case, place
from simulator.model_sizes import MTP_NORMS
from simulator.sharding import padded_vocab_size
from simulator.specs import ModelSpec

PASSES: Final = 3
"""Forward once, and backward twice as much."""


def model_flops(case: Case) -> int:
    """Return the FLOPs of one iteration over all ranks, as Megatron-LM counts them.

    A multiply-add is two. The head counts, half of the scores as a causal mask leaves, of experts
    those that a token meets, norms of latent attention and of multi-token prediction, no router,
    and nothing that is computed again (``num_floating_point_operations`` in Megatron-LM's
    training.py).
    """
    model = case.model
    attention = sum(_scores(case)) // 2 + model.latent_norm_parameters
    per_token = sum(layers * (linears + attention) for layers, linears in _kinds(model))
    per_token += _predictions(model) + _heads(case) + _norms_of_predictions(model)
    return PASSES * 2 * per_token * case.tokens


def executed_flops(case: Case) -> float:
    """Return the least FLOPs that tensor cores execute in one iteration, over all ranks."""
    return sum(_executed(case))


def _executed(case: Case) -> tuple[float, float]:
    """Return ``executed_flops`` of layers' linears, and the others.

    Besides the model's FLOPs these are recomputation, in backward's attention kernel or by
    ``--recompute``, and the masked half of the scores where attention is not one kernel.
    """
    work = case.workload
    fused = work.flash_attention or case.cluster.cp > 1
    seen = 1 / 2 if fused else 1.0
    by_keys, by_values = (seen * scores for scores in _scores(case))
    core = by_keys + by_values
    core_backward = 2 * core + (by_keys if fused else 0.0)
    linear, other = 0.0, float(PASSES * (_predictions(case.model) + _heads(case)))
    parts = zip(_kinds(case.model), _layers_again(case), ("mlp", "moe"), strict=True)
    for (layers, linears), again, whole in parts:
        mlp = linears - case.model.attention_linear_parameters
        linear += layers * PASSES * linears
        other += layers * (core + core_backward)
        if work.recompute == "full":
            linear, other = linear + again * linears, other + again * core
        elif work.recompute == "selective":
            linear += again * mlp * (whole in work.modules)  # at least
            other += again * (core if fused else by_keys) * ("core_attn" in work.modules)
    return 2 * linear * case.tokens, 2 * other * case.tokens


def _kinds(model: ModelSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the layers of each kind, dense ones and those with experts, and the elements of one's
    weight matrices that a token meets; layers of multi-token prediction count as the last one."""
    dense, experts, further = (
        model.dense_layers,
        model.expert_layers,
        model.num_nextn_predict_layers,
    )
    with_experts = model.predicts_with_experts
    return (
        (dense + further * (not with_experts), model.linear_parameters),
        (experts + further * with_experts, model.active_linear_parameters if experts else 0),
    )


def _layers_again(case: Case) -> tuple[int, int]:
    """Return how many layers of each kind backward computes again, ``recompute_layers`` of each
    chunk; those of multi-token prediction where all layers are."""
    model, most = case.model, case.workload.recompute_layers or case.model.num_hidden_layers
    dense = experts = first = 0
    pp = len(case.chunks)
    for stage in range(pp * len(case.chunks[0])):
        rank, number = place(stage, pp, case.workload.pp_schedule)
        layers = case.chunks[rank][number].layers
        again = min(most, layers)
        found = min(again, max(0, model.dense_layers - first))
        dense, experts, first = dense + found, experts + again - found, first + layers
    further = model.num_nextn_predict_layers * (not case.workload.recompute_layers)
    if model.predicts_with_experts:
        return dense, experts + further
    return dense + further, experts


def _scores(case: Case) -> tuple[int, int]:
    """Return the multiply-adds of a token in a layer's attention core without a mask: queries by
    keys, which backward's kernel multiplies again, and probabilities by values."""
    model, length = case.model, case.workload.seq_length
    return model.num_attention_heads * model.head_dim * length, model.attention_size * length


def _heads(case: Case) -> int:
    """Return the multiply-adds of a token in the head, which each further prediction has again."""
    one = case.model.hidden_size * padded_vocab_size(case.model, case.cluster)
    return (1 + case.model.num_nextn_predict_layers) * one


def _predictions(model: ModelSpec) -> int:
    """Return the multiply-adds of a token in the projections before further predictions."""
    return model.num_nextn_predict_layers * 2 * model.hidden_size**2


def _norms_of_predictions(model: ModelSpec) -> int:
    return model.num_nextn_predict_layers * MTP_NORMS * model.hidden_size


def flops_per_gpu(case: Case, iteration_ns: int) -> float:
    """Return the model FLOP/s of one GPU."""
    return model_flops(case) / (iteration_ns * 1e-9) / case.cluster.world_size


def executed_per_gpu(case: Case, iteration_ns: int) -> float:
    """Return the least FLOP/s that one GPU must have executed."""
    return executed_flops(case) / (iteration_ns * 1e-9) / case.cluster.world_size


def least_iteration_s(case: Case) -> float:
    """Return the time in which GPUs at their peaks execute an iteration's FLOPs, layers' linears at
    that of what they are quantized to; 0 where a peak is not known."""
    peaks, work = case.profile.machine.peaks, case.workload
    linear, other = peaks.get(work.linear_math), peaks.get(work.math)
    if not linear or not other:
        return 0.0
    parts = zip(_executed(case), (linear, other), strict=True)
    return sum(1e-12 * flops / peak for flops, peak in parts) / case.cluster.world_size


def mfu(case: Case, iteration_ns: int) -> float | None:
    """Return the model FLOP/s over the dense peak for the math in use (TF32's where fp32 is
    computed in TF32), with the case's changes to the machine. Return None if no peak is known, or
    if the rate exceeds it: then it is not the peak of that math."""
    peak_tflops = case.profile.machine.peaks.get(case.workload.linear_math)
    if not peak_tflops:
        return None
    share = flops_per_gpu(case, iteration_ns) / (peak_tflops * 1e12 * case.factors.gpu_flops)
    return share if share <= 1 else None
