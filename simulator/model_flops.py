"""Model FLOPs of an iteration: what MFU counts, whatever the ranks really compute."""

from __future__ import annotations

from simulator.case import Case
from simulator.sharding import padded_vocab_size

PASSES = 3
"""Forward once, and backward twice as much."""


def model_flops(case: Case) -> int:
    """Return the FLOPs of one iteration over all ranks, as Megatron-LM counts them.

    A multiply-add is two. The head counts, attention as if it were not causal, and nothing that is
    computed again (``num_floating_point_operations`` in Megatron-LM's training.py).
    """
    model, length = case.model, case.workload.seq_length
    scores = 2 * model.attention_size * length  # queries by keys, and probabilities by values
    head = model.hidden_size * padded_vocab_size(model, case.cluster)
    per_token = model.num_hidden_layers * (model.linear_parameters + scores) + head
    return PASSES * 2 * per_token * case.tokens


def flops_per_gpu(case: Case, iteration_ns: int) -> float:
    """Return the model FLOP/s of one GPU."""
    return model_flops(case) / (iteration_ns * 1e-9) / case.cluster.world_size


def mfu(case: Case, iteration_ns: int) -> float | None:
    """Return the model FLOP/s over the dense peak of the dtype, on the machine as it is changed;
    None where no peak is known, or the rate is above it, which then is not the peak of what was
    multiplied."""
    peak_tflops = case.profile.machine.peak_tflops.get(case.workload.dtype)
    if not peak_tflops:
        return None
    share = flops_per_gpu(case, iteration_ns) / (peak_tflops * 1e12 * case.changes.gpu_flops)
    return share if share <= 1 else None
