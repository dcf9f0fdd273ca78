"""The specification of a launch: ranks, backend, link, timeout; and its threads' priority."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from simulator.errors import InputError, require_positive_int
from simulator.overlap import RIVALS, RUNS_IN
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Recompute, Workload

Backend = Literal["gloo", "nccl"]
Message = dict[str, object]
"""A JSON object that rank 0 reports."""
PLAYED_RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
"""What backward may compute again on real ranks."""
CTA_SETTINGS: Final = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
"""Environment variables that NCCL prefers to a communicator's own configuration: with one of them
set, all communicators use the same number of CTAs."""
QUEUES_SETTING: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Environment variable of the number of CUDA's hardware queues. With one, kernels start in the
order of their launch."""

LEAST_TORCH: Final = (2, 8)
"""The first torch that launches a synchronous NCCL collective on the stream of its caller."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """``tp`` · ``dp`` ranks; rank = dp_rank · tp + tp_rank.

    ``emulate_link_bits_per_s`` puts the ranks on two emulated hosts with a link of that speed.
    ``nproc_per_node`` is the number of ranks to start here; None means all. ``single_rank`` starts
    rank 0 only; its job emulates the collectives with the other ranks. The run ends when no rank
    makes progress for ``hang_timeout_s`` seconds. ``kernels_in_order``: a GPU starts kernels in the
    order of their launch (one hardware queue), so that a collective starts before the op after it.
    Raise InputError for a link without speed, or that no collective would use.
    """

    tp: int
    dp: int = 1
    backend: Backend = "gloo"
    emulate_link_bits_per_s: int | None = None
    threads_per_rank: int = 1
    nproc_per_node: int | None = None
    hang_timeout_s: float = 40
    single_rank: bool = False
    kernels_in_order: bool = False

    def __post_init__(self) -> None:
        if self.emulate_link_bits_per_s is not None:
            require_positive_int("launch", "emulate_link_bits_per_s", self.emulate_link_bits_per_s)
        if self.single_rank and self.emulate_link_bits_per_s is not None:
            raise InputError(
                "A single rank has no link: --emulate-collectives takes the times of collectives "
                "from the profile; leave out --emulate-link."
            )
        if self.backend == "nccl" and self.emulate_link_bits_per_s is not None:
            raise InputError(
                "An emulated link slows TCP, which NCCL does not use inside one machine; "
                "give --emulate-link with --backend gloo only."
            )

    @property
    def world_size(self) -> int:
        """Return the number of ranks that are started."""
        return 1 if self.single_rank else self.tp * self.dp


def check_torch(version: str) -> None:
    """Raise InputError for a ``version`` of torch on which lanes over NCCL would not be lanes. One
    that does not begin with two numbers, as an own build's may, is taken for new enough."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        raise InputError(
            f"Collectives over NCCL need torch {least} or newer, got {version}: an older one "
            "launches them on a stream of its own, without the priority that lets them start "
            f"before compute. Install a newer one (pip install 'torch>={least}'), or take a "
            "container that has it."
        )


def check_own_strategy(plan: SlicePlan) -> None:
    """Raise InputError for a strategy of another framework."""
    if plan.strategy in RIVALS:
        raise InputError(
            f"The runtime does not play strategy {plan.strategy!r}; that runs in "
            f"{RUNS_IN[plan.strategy]}. Make a plan with --strategy domino or megatron."
        )


def check_played(workload: Workload, cluster: ClusterSpec, remedy: str) -> None:
    """Raise InputError for parallelism, layers, recomputation and collectives that the runtime does
    not play; ``remedy`` starts the advice."""
    if cluster.pp > 1 or cluster.cp > 1:
        raise InputError(
            f"The runtime plays tensor and data parallelism, got {cluster.levels}. {remedy} with "
            "--pp 1 and --cp 1, or use simulate or whatif, which predict the rest."
        )
    if workload.fp8_recipe != "none":
        raise InputError(
            f"The runtime multiplies in BF16, got --fp8-recipe {workload.fp8_recipe}. {remedy} "
            "without it; or time the job in your own framework and give its log to calibrate."
        )
    modules = [name for name in workload.modules if name != "core_attn"]
    if modules:
        raise InputError(
            f"The runtime does not compute {', '.join(modules)} again alone; that runs in "
            f"Megatron-LM. {remedy} with --set recompute_modules=core_attn."
        )
    if workload.recompute not in PLAYED_RECOMPUTE:
        raise InputError(
            f"The runtime does not play --recompute {workload.recompute}; that runs in torchtitan. "
            f"{remedy} with --recompute {', '.join(PLAYED_RECOMPUTE[:-1])} or "
            f"{PLAYED_RECOMPUTE[-1]}."
        )
    missing = {
        f"{workload.data_parallel} (--data-parallel replicas)": workload.data_parallel
        != "replicas",
        "multimem collectives (--tp-collectives nccl)": workload.tp_collectives != "nccl",
    }
    refuse_unplayed(missing, remedy)


def refuse_unplayed(missing: Mapping[str, bool], remedy: str) -> None:
    """Raise InputError for features, with their options, that are asked for and not played."""
    found = [name for name, asked in missing.items() if asked]
    if found:
        raise InputError(
            f"The runtime does not play {', '.join(found)} yet, so real ranks cannot run this. "
            f"{remedy} with the options in brackets."
        )


def check_heads(model: ModelSpec, tp: int, remedy: str) -> None:
    """Raise InputError for more ranks than key-value heads."""
    if tp > model.num_key_value_heads:
        raise InputError(
            f"{model.name} has num_key_value_heads = {model.num_key_value_heads}, fewer than tp = "
            f"{tp}; real ranks do not copy key-value heads yet. {remedy} --tp "
            f"{model.num_key_value_heads} or less, or simulate, tune or whatif without real runs."
        )


# Real-time priority for communication threads on a core that they share with compute --------------
# On CPU, threads of gloo and of the lanes move a rank's collectives; they sleep most of the time.
# An ordinary scheduler lets a thread that wakes up wait for the computing one, up to a tick (4 ms):
# a collective of 0.3 ms then takes 3 ms. Threads of real-time priority run at once, as NCCL's
# kernels do on their high-priority stream. They use little of a core, so no thread starves.
#
# They take turns (SCHED_RR): gloo's thread of sockets spins, by epoll, while another thread holds
# the lock of a connection. Without turns it would never leave the core to that one.

_LEAST: Final = 1


@contextmanager
def for_new_threads() -> Iterator[bool]:
    """Give real-time priority to threads started inside, then restore the calling thread's own.

    Yield whether the system allowed it: root may do it, other users within their limit on real-time
    priority (``ulimit -r``).
    """
    before = _become_urgent()
    try:
        yield before is not None
    finally:
        if before is not None:
            os.sched_setscheduler(0, *before)


def may_be_urgent() -> bool:
    """Return whether this thread may take real-time priority; try it and undo it."""
    with for_new_threads() as urgent:
        return urgent


def _become_urgent() -> tuple[int, os.sched_param] | None:
    """Take real-time priority. Return the policy before, or None where it is not allowed."""
    if not hasattr(os, "sched_setscheduler"):
        return None
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LEAST))
    except PermissionError:
        return None
    return before
