"""What of a GPU's memory the tensors of a job can use, and how likely a predicted peak fits it.

Of what the driver reports go CUDA's context, the communicators' buffers and the margin that is
asked for; the rest is *usable*. A peak counts *allocated* bytes. PyTorch's allocator *reserves*
more, since a freed block is not always of the size that is asked for next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

from simulator.dtypes import GIB
from simulator.profile import Machine
from simulator.specs import ClusterSpec

SURE: Final = 0.8
"""Chance to fit from which on a plan is recommended."""
UNSURE: Final = "memory below 80 %"
"""Reason of plans that fit, but with less chance."""
DRIVER_SHARE: Final = 0.01
"""Of the label's memory, what the driver keeps: GPUs of 80, 141 and 180 GB report 79.1, 139.8 and
178.35 GiB."""
CONTEXT_BYTES: Final = 512 << 20
CONNECTION_BYTES: Final = 12 << 20
"""Buffers of one channel to one peer and back: 10 MiB that receive (NCCL's three protocols: 0.5,
4.7 and 4 MiB, src/init.cc) and 2 MiB that send, as its log prints them (NVIDIA/nccl issue 1685)."""
NODE_CHANNELS: Final = 24
"""Channels of a communicator inside a node of NVSwitches."""
NETWORK_CHANNELS: Final = 16
RING_AND_TREE: Final = 3
"""Connections a channel: one of the ring, two of the tree."""
PREDICTED_SD: Final = 0.0075
"""Of the logarithm of measured over predicted allocated bytes: data/published, 18 runs in nine
layouts (``scripts/bench published``)."""


class Fragmentation(NamedTuple):
    """Mean and standard deviation of the logarithm of reserved over allocated bytes."""

    mean: float
    sd: float
    source: str


_SEEN: Final = "jobs of {} in public threads (data/published/reserved_memory.csv)"
_MEGATRON: Final = Fragmentation(0.085, 0.056, f"measured: 4 {_SEEN.format('Megatron-LM')}")
_TORCH: Final = Fragmentation(0.075, 0.048, f"measured: 6 {_SEEN.format('PyTorch')}")
FRAGMENTS: Final = {
    "megatron-te": _MEGATRON,
    "megatron-2022": _MEGATRON,
    "torch": _TORCH,
    "domino-tune": _TORCH._replace(source=_TORCH.source.replace("measured", "assumed as")),
}
"""Implementation -> how much more than its peak its allocator reserves."""
NO_ALLOCATOR: Final = Fragmentation(0.0, 0.0, "counted: the system's memory has no such fragments")


class Taken(NamedTuple):
    """Bytes that no tensor can have, what has them, and how that is known."""

    what: str
    size: int
    source: str


class Margin(NamedTuple):
    """Memory to leave free: bytes, plus a share of the memory that a GPU reports."""

    size: int = 0
    share: float = 0.0


NO_MARGIN: Final = Margin()


@dataclass(frozen=True, kw_only=True)
class Usable:
    """Usable bytes: those of the machine (``total``) less ``taken``.

    ``sure_bytes``: the largest peak whose chance to fit is SURE.
    """

    total: int
    total_source: str
    taken: tuple[Taken, ...]
    fragments: Fragmentation

    @property
    def usable_bytes(self) -> int:
        """What is left for tensors; never below 0."""
        return max(0, self.total - sum(one.size for one in self.taken))

    @property
    def sure_bytes(self) -> int:
        """The largest peak that fits with a chance of SURE or more."""
        behind = self.fragments.mean + NormalDist().inv_cdf(SURE) * self._sd
        return math.floor(self.usable_bytes * math.exp(-behind))

    def reserved_bytes(self, peak_bytes: int) -> int:
        """Return the bytes that the allocator is expected to reserve for a peak of allocated
        bytes."""
        return round(peak_bytes * math.exp(self.fragments.mean))

    def chance(self, peak_bytes: int) -> float:
        """Return how likely a job of this predicted peak fits: SURE or more just where the peak is
        not above ``sure_bytes``."""
        if not self.usable_bytes:
            return 0.0
        spare = math.log(self.usable_bytes / max(1, peak_bytes)) - self.fragments.mean
        chance = NormalDist().cdf(spare / self._sd)
        return max(SURE, chance) if peak_bytes <= self.sure_bytes else chance

    @property
    def _sd(self) -> float:
        return math.hypot(self.fragments.sd, PREDICTED_SD)


def usable_memory(
    machine: Machine, cluster: ClusterSpec, implementation: str, *, tied: bool, margin: Margin
) -> Usable:
    """Return the memory of one rank. ``tied``: first and last stage share the embedding table."""
    label = round(machine.gpu_memory_gib * GIB)
    asked = margin.size + round(margin.share * label)
    left_free = (Taken("margin", asked, "asked for: --memory-margin"),) if asked else ()
    if machine.backend != "nccl":
        return Usable(
            total=label, total_source="measured: the host's memory, shared by its ranks",
            taken=left_free, fragments=NO_ALLOCATOR,
        )  # fmt: skip
    return Usable(
        total=label,
        total_source=_label_source(machine),
        taken=(*_taken(machine, label, cluster, tied=tied), *left_free),
        fragments=FRAGMENTS[implementation],
    )


def _label_source(machine: Machine) -> str:
    if not machine.memory_reported:
        return "nominal: the label's"
    return f"reported: {machine.details.get('memory', 'by the driver to this process')}"


def _taken(machine: Machine, label: int, cluster: ClusterSpec, *, tied: bool) -> list[Taken]:
    found = []
    if not machine.memory_reported:
        kept = round(DRIVER_SHARE * label)
        found.append(
            Taken("driver", kept, "assumed: 1 %, as GPUs of 80, 141 and 180 GB report less")
        )
    found.append(
        Taken(
            "CUDA context", CONTEXT_BYTES,
            "assumed: PyTorch's is 300 to 400 MB (pytorch issues 107667, 109888), and kernels of "
            "other libraries come on top",
        )
    )  # fmt: skip
    groups = communicators(cluster, tied=tied)
    if groups:
        found.append(
            Taken(
                "communicators", sum(groups.values()),
                f"counted: NCCL's buffers of {', '.join(groups)}, 12 MiB a channel and connection "
                "(NCCL's source; NVIDIA/nccl issue 1685)",
            )
        )  # fmt: skip
    return found


def communicators(cluster: ClusterSpec, *, tied: bool) -> dict[str, int]:
    """Return the bytes of each communicator of a rank, by Megatron-LM's name of its group.

    Those of collectives have a ring and a tree; stages and context-parallel ranks send to the next
    and receive from the last.
    """
    found: dict[str, int] = {}
    if cluster.world_size > 1:
        found["world"] = _collectives(cluster.world_group)
    if cluster.tp > 1:
        found["tp"] = _collectives(cluster.tp_group)
    if cluster.replicas > 1:
        found["dp"] = _collectives(cluster.dp_group)
    if cluster.cp > 1:
        found["cp"] = _messages(cluster.cp_group, min(2, cluster.cp - 1))
    if cluster.pp > 1:
        pairs = (cluster.p2p_group(stage) for stage in range(cluster.pp - 1))
        found["pp"] = _messages(min(pairs), min(2, cluster.pp - 1))
        found["embedding"] = _collectives(cluster.p2p_group(cluster.pp - 1)) if tied else 0
    if cluster.tp * cluster.pp > 1:
        found["model-parallel"] = _collectives(
            cluster.world_group if cluster.pp > 1 else cluster.tp_group
        )
    return {name: size for name, size in found.items() if size}


def _collectives(group: tuple[int, int]) -> int:
    """Return the bytes of a communicator; of two ranks ring and tree have one peer."""
    nodes, each = group
    connections = RING_AND_TREE if nodes * each > 2 else RING_AND_TREE - 1
    return _channels(group) * connections * CONNECTION_BYTES


def _messages(group: tuple[int, int], peers: int) -> int:
    return _channels(group) * peers * CONNECTION_BYTES


def _channels(group: tuple[int, int]) -> int:
    return NODE_CHANNELS if group[0] == 1 else NETWORK_CHANNELS


def percent(chance: float) -> str:
    """Return a chance in whole percent, rounded down: nothing below SURE reads as SURE."""
    return f"{math.floor(100 * chance)} %"
