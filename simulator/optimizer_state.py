"""What Adam keeps of a parameter: its two moments, and a main parameter in fp32.

Moments below fp32 are those of Megatron-LM's precision-aware optimizer, TransformerEngine's
FusedAdam. It also keeps, in the place of a main parameter, the 16 bits that its parameter in BF16
lacks (``store_param_remainders``), where it has the main parameters at all: with FP8 that has no
delayed scaling Megatron-LM has them (``use_precision_aware_optimizer_no_fp8_or_ds_fp8``).
"""

from __future__ import annotations

from typing import Final

from simulator.dtypes import MomentsDtype
from simulator.specs import Workload

MOMENT_BYTES: Final[dict[MomentsDtype, int]] = {"fp32": 4, "bf16": 2, "fp8": 1}
"""Bytes of one of the moments; in FP8 with a scale a tensor."""
MAIN_BYTES: Final = 4
"""Bytes of an fp32 main parameter; it exists beside a parameter of fewer bytes."""


def keeps_remainders(workload: Workload) -> bool:
    """Return whether a main parameter is kept as what its parameter in BF16 lacks."""
    owns = workload.fp8_recipe in ("none", "delayed") and not workload.fp8_param_gather
    return workload.moments_dtype != "fp32" and workload.dtype == "bf16" and owns


def moments_bytes(workload: Workload) -> int:
    """Return the bytes of a parameter's two moments."""
    return 2 * MOMENT_BYTES[workload.moments_dtype]


def state_bytes(workload: Workload) -> int:
    """Return the bytes that are kept of a parameter beside itself."""
    main = MAIN_BYTES if workload.dtype_bytes < MAIN_BYTES else 0
    kept = MAIN_BYTES - workload.dtype_bytes if keeps_remainders(workload) else main
    return kept + moments_bytes(workload)
