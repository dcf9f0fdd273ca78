"""What a launch needs to know: how many ranks, over what, and how patient to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from simulator.errors import InputError
from simulator.specs import require_positive_int

Backend = Literal["gloo", "nccl"]
Message = dict[str, object]
"""What rank 0 reports; JSON."""
BACKENDS: Final = get_args(Backend)
CTA_SETTINGS: Final = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
"""Environment variables that NCCL lets stand above what a communicator asks for: with one of them
set, all communicators have the same CTAs."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """``tp`` · ``dp`` ranks; rank = dp_rank · tp + tp_rank.

    ``emulate_link_bits_per_s`` puts the ranks on two emulated hosts with a link of that speed.
    ``nproc_per_node`` is how many ranks to start here; None means all. ``lone``: only rank 0 is
    started, and its job has the others' part in collectives emulated.
    When no rank makes progress for ``hang_timeout_s``, the run is ended.
    Raises InputError on what cannot be started anywhere.
    """

    tp: int
    dp: int = 1
    backend: Backend = "gloo"
    emulate_link_bits_per_s: int | None = None
    threads_per_rank: int = 1
    nproc_per_node: int | None = None
    hang_timeout_s: float = 40
    lone: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "threads_per_rank"):
            require_positive_int("launch", name, getattr(self, name))
        for name in ("emulate_link_bits_per_s", "nproc_per_node"):
            if getattr(self, name) is not None:
                require_positive_int("launch", name, getattr(self, name))
        if self.backend not in BACKENDS:
            raise InputError(
                f"launch.backend must be one of {', '.join(BACKENDS)}, got {self.backend!r}."
            )
        if not (math.isfinite(self.hang_timeout_s) and self.hang_timeout_s > 0):
            raise InputError(
                f"launch.hang_timeout_s must be a number of seconds > 0, "
                f"got {self.hang_timeout_s!r}."
            )
        if self.lone and self.emulate_link_bits_per_s is not None:
            raise InputError(
                "A rank that is alone has no link: --emulate-collectives takes their times from "
                "the profile; leave out --emulate-link."
            )
        if self.backend == "nccl" and self.emulate_link_bits_per_s is not None:
            raise InputError(
                "An emulated link slows TCP down, which NCCL inside one machine does not use; "
                "give --emulate-link with --backend gloo only."
            )

    @property
    def world_size(self) -> int:
        """All ranks that are started."""
        return 1 if self.lone else self.tp * self.dp
