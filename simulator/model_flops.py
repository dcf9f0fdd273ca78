"""FLOPs of an iteration: the model's, which MFU counts, and those that GPUs execute at least."""

from __future__ import annotations

from typing import Final

from simulator.case import Case
from simulator.sharding import padded_vocab_size

PASSES: Final = 3
"""Forward once, and backward twice as much."""
FUSED_BACKWARD: Final = 5 / 2
"""Backward of attention in one kernel over its forward: it multiplies queries and keys again."""


def model_flops(case: Case) -> int:
    """Return the FLOPs of one iteration over all ranks, as Megatron-LM counts them.

    A multiply-add is two. The head counts, half of the scores as a causal mask leaves, and nothing
    that is computed again (``num_floating_point_operations`` in Megatron-LM's training.py).
    """
    layer = case.model.linear_parameters + _scores(case) // 2
    per_token = case.model.num_hidden_layers * layer + _head(case)
    return PASSES * 2 * per_token * case.tokens


def executed_flops(case: Case) -> float:
    """Return the least FLOPs that tensor cores execute in one iteration, over all ranks.

    Besides the model's FLOPs these are recomputation, in backward's attention kernel or by
    ``--recompute``, and the masked half of the scores where attention is not one kernel.
    """
    work, layers = case.workload, case.model.num_hidden_layers
    fused = work.implementation.flash_attention or case.cluster.cp > 1
    core = _scores(case) / 2 if fused else _scores(case)
    core_backward = FUSED_BACKWARD if fused else PASSES - 1
    layer = PASSES * case.model.linear_parameters + (1 + core_backward) * core
    again = _layers_again(case) * {
        "full": case.model.linear_parameters + core,
        "selective": core if fused else core / 2,  # queries by keys
    }.get(work.recompute, 0.0)
    return 2 * (layers * layer + again + PASSES * _head(case)) * case.tokens


def _layers_again(case: Case) -> int:
    """Return how many layers backward computes again, ``recompute_layers`` of each chunk."""
    most = case.workload.recompute_layers or case.model.num_hidden_layers
    return sum(min(most, chunk.layers) for rank in case.chunks for chunk in rank)


def _scores(case: Case) -> int:
    """Return the multiply-adds of a token in a layer's attention core without a mask: queries by
    keys, and probabilities by values."""
    return 2 * case.model.attention_size * case.workload.seq_length


def _head(case: Case) -> int:
    return case.model.hidden_size * padded_vocab_size(case.model, case.cluster)


def flops_per_gpu(case: Case, iteration_ns: int) -> float:
    """Return the model FLOP/s of one GPU."""
    return model_flops(case) / (iteration_ns * 1e-9) / case.cluster.world_size


def executed_per_gpu(case: Case, iteration_ns: int) -> float:
    """Return the least FLOP/s that one GPU must have executed."""
    return executed_flops(case) / (iteration_ns * 1e-9) / case.cluster.world_size


def mfu(case: Case, iteration_ns: int) -> float | None:
    """Return the model FLOP/s over the dense peak for the math in use (TF32's where fp32 is
    computed in TF32), with the case's changes to the machine. Return None if no peak is known, or
    if the rate exceeds it: then it is not the peak of that math."""
    peak_tflops = case.profile.machine.peaks.get(case.workload.linear_math)
    if not peak_tflops:
        return None
    share = flops_per_gpu(case, iteration_ns) / (peak_tflops * 1e12 * case.changes.gpu_flops)
    return share if share <= 1 else None
