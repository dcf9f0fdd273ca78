"""Environment variables that make a run overlap as its plan says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from simulator.implementation import Implementation
from simulator.plan import SlicePlan


def environment(
    plan: SlicePlan, implementation: Implementation, *, cuda_graph: bool = False
) -> dict[str, str]:
    """Return the variables for every rank; ``cuda_graph``: steps are graphs.

    ``CUDA_DEVICE_MAX_CONNECTIONS=1``, where the launch order is ``ordered``: one hardware queue, so
    that the device starts kernels in the order of the schedule. ``TORCH_NCCL_HIGH_PRIORITY=1``:
    PyTorch runs NCCL on a high-priority stream, so that a collective that waits gets the next SMs.
    ``NCCL_MIN_CTAS`` and ``NCCL_MAX_CTAS`` (NCCL ≥ 2.17): the plan's CTAs, where it chose some.
    ``NCCL_ALGO=Ring``, and ``NVTE_ALLOW_NONDETERMINISTIC_ALGO=0`` (TransformerEngine's attention),
    where the implementation says so.
    """
    ordered = implementation.starts(cuda_graph=cuda_graph) == "ordered"
    found = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if ordered else {}
    if plan.strategy == "domino":
        found["TORCH_NCCL_HIGH_PRIORITY"] = "1"
    if plan.comm_ctas:
        found |= {"NCCL_MIN_CTAS": str(plan.comm_ctas), "NCCL_MAX_CTAS": str(plan.comm_ctas)}
    if implementation.nccl_algo == "ring":
        found["NCCL_ALGO"] = "Ring"
    if implementation.deterministic_attention:
        found["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"
    return found


def export_lines(variables: Mapping[str, str]) -> list[str]:
    """Return lines ``export NAME=VALUE`` for a shell to source."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
