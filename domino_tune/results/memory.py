"""What of a GPU's memory tensors can use, and why not all of it."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.dtypes import GIB
from simulator.usable import Usable


@dataclass(frozen=True, kw_only=True)
class TakenMemory:
    """Memory that no tensor can have: what has it, GiB, and how that is known."""

    what: str
    gib: float
    source: str


@dataclass(frozen=True, kw_only=True)
class UsableMemory:
    """GiB of a GPU. ``usable_gib``: what is left of ``gpu_gib`` after ``taken``.

    ``recommended_gib``: the largest predicted peak that fits with a chance of 80 %.
    ``reserved_gib``: what PyTorch's allocator is expected to reserve for the chosen plan's peak.
    Each source begins with how the number is known: measured, reported, nominal, counted, assumed
    or asked for.
    """

    gpu_gib: float
    source: str
    taken: tuple[TakenMemory, ...]
    usable_gib: float
    recommended_gib: float
    reserved_gib: float
    reserved_source: str

    @classmethod
    def of(cls, memory: Usable, peak_bytes: int) -> UsableMemory:
        """Return what is usable, and what a peak reserves of it."""
        return cls(
            gpu_gib=memory.total / GIB,
            source=memory.total_source,
            taken=tuple(
                TakenMemory(what=one.what, gib=one.size / GIB, source=one.source)
                for one in memory.taken
            ),
            usable_gib=memory.usable_bytes / GIB,
            recommended_gib=memory.sure_bytes / GIB,
            reserved_gib=memory.reserved_bytes(peak_bytes) / GIB,
            reserved_source=memory.fragments.source,
        )

    @property
    def text(self) -> str:
        """How the usable memory comes about, in one line."""
        less = "".join(f" − {one.gib:.1f} {one.what}" for one in self.taken)
        kind = self.source.partition(":")[0]
        return (
            f"Usable: {self.gpu_gib:.1f} GiB ({kind}){less} = {self.usable_gib:.1f} GiB; peaks up "
            f"to {self.recommended_gib:.1f} GiB are recommended."
        )
